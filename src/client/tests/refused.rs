use std::sync::Mutex;

use super::*;
use crate::wire::inbox_message::Contents;
use crate::wire::{InboxMessage, InboxPage, PacketCredited};

fn refused(code: CloseCode) -> Message {
    Message::Refused(Refused {
        code: code.into(),
        reason: "test".into(),
    })
}

#[tokio::test]
async fn a_wrong_request_is_not_repeated() {
    let gateway = StandIn::start().await;
    let (client, _events, mut peer) = connected(&gateway).await;
    let serve = async {
        let id = peer.hear_grab().await;
        peer.say(id, result(Outcome::NoSuchRain, 0, 0)).await;
        let (id, _) = peer.hear().await;
        let refused = Refused {
            code: CloseCode::FrameInvalid.into(),
            reason: "room name".into(),
        };
        peer.say(id, Message::Refused(refused)).await;
    };
    let wrong = async { (client.grab(rain()).await, client.watch("{}").await) };
    let ((grab, watch), ()) = soon(async { tokio::join!(wrong, serve) }).await;
    assert_eq!(grab.unwrap().after(), AfterGrab::Fix);
    assert_eq!(
        watch.unwrap_err().to_string(),
        "refused by the gateway: FRAME_INVALID (room name)"
    );
}

#[tokio::test]
async fn a_refused_token_ends_the_session_with_its_code() {
    let gateway = StandIn::start().await;
    let serve = async {
        let mut peer = gateway.accept().await;
        let (id, _) = peer.hear().await;
        let refused = Refused {
            code: CloseCode::TokenExpired.into(),
            reason: "exp was an hour ago".into(),
        };
        peer.say(id, Message::Refused(refused)).await;
        peer
    };
    let connect = Client::connect(gateway.settings(), Login::with_token("old"));
    let (client, _peer) = soon(async { tokio::join!(connect, serve) }).await;
    match client.map(|_| ()).unwrap_err() {
        ClientError::Refused(refusal) => {
            assert_eq!(refusal.known(), Some(CloseCode::TokenExpired));
            assert_eq!(refusal.after(), AfterClose::FixFirst);
            assert_eq!(refusal.to_string(), "TOKEN_EXPIRED (exp was an hour ago)");
        }
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn a_session_that_was_replaced_does_not_come_back() {
    let gateway = StandIn::start().await;
    let (client, mut events, mut peer) = connected(&gateway).await;
    let serve = async {
        peer.hear_grab().await;
        peer.say(0, go_away(CloseCode::Replaced, 0)).await;
        peer
    };
    let (reply, mut peer) = soon(async { tokio::join!(client.grab(rain()), serve) }).await;
    let error = reply.unwrap_err();
    assert_eq!(
        error.to_string(),
        "sent away by the gateway: REPLACED (test)"
    );
    assert_eq!(soon(client.ready()).await, Err(error));
    assert_eq!(soon(events.next()).await, None);
    assert!(soon(peer.hear_or_end()).await.is_none());
}

/// A gap in the pushes was asked for once, refused, and left open until the next reconnect.
#[tokio::test]
async fn missed_messages_that_are_refused_for_the_moment_are_asked_for_again() {
    let gateway = StandIn::start().await;
    let (_client, mut events, mut peer) = connected(&gateway).await;
    let message = |message_id, previous_message_id| InboxMessage {
        message_id,
        previous_message_id,
        contents: Some(Contents::PacketCredited(PacketCredited::default())),
        user: String::new(),
    };
    peer.say(0, Message::InboxMessage(message(1_000_002, 1_000_001)))
        .await;
    for told in [Some(CloseCode::TooManyRequests), None] {
        let (id, request) = soon(peer.hear()).await;
        let Request::Inbox(asked) = request else {
            panic!("{request:?}")
        };
        // A minute before the first Welcome.
        assert_eq!(asked.after_message_id, 940_000);
        let page = InboxPage {
            messages: vec![message(1_000_001, 0), message(1_000_002, 0)],
            ..InboxPage::default()
        };
        peer.say(id, told.map_or(Message::InboxPage(page), refused))
            .await;
    }
    for id in [1_000_001, 1_000_002] {
        match soon(events.next()).await.unwrap() {
            Event::PacketCredited { message_id, .. } => assert_eq!(message_id, id),
            other => panic!("{other:?}"),
        }
    }
}

/// The room was silently not watched any more.
#[tokio::test]
async fn a_room_that_is_refused_for_the_moment_after_a_reconnect_is_asked_for_again() {
    let gateway = StandIn::start().await;
    let (client, _events, mut peer) = connected(&gateway).await;
    let watching = || {
        Message::Watching(Watching {
            room: "quiz".into(),
        })
    };
    let serve = async {
        let (id, _) = peer.hear().await;
        peer.say(id, watching()).await;
    };
    let (watched, ()) = soon(async { tokio::join!(client.watch("quiz"), serve) }).await;
    watched.unwrap();
    client.reconnect();
    let mut peer = soon(gateway.welcome()).await;
    for told in [refused(CloseCode::TooManyRequests), watching()] {
        let (id, request) = soon(peer.hear()).await;
        assert!(
            matches!(&request, Request::Watch(watch) if watch.room == "quiz"),
            "{request:?}"
        );
        peer.say(id, told).await;
    }
}

/// The new token was offered before every gateway knew its key, and refused. When the old one's end came the client took the new one for
/// tried, and gave up.
#[tokio::test]
async fn a_token_that_was_refused_as_a_renewal_is_still_good_for_the_next_session() {
    let gateway = StandIn::start().await;
    let token = Arc::new(Mutex::new("old"));
    let source = token.clone();
    let login = Login {
        token: Arc::new(move || (*source.lock().unwrap()).to_owned()),
        ..Login::with_token("")
    };
    let (client, _events, driver) = Client::open(gateway.settings(), login);
    tokio::spawn(driver.run());
    let mut peer = soon(gateway.accept()).await;
    let (id, _) = soon(peer.hear()).await;
    *token.lock().unwrap() = "new";
    let Message::Welcome(mut welcome) = welcome(30_000) else {
        unreachable!()
    };
    // Renewed when a quarter of it is left, at the latest.
    welcome.expires_at_ms = welcome.server_time_ms + 400;
    peer.say(id, Message::Welcome(welcome)).await;
    let (id, request) = soon(peer.hear()).await;
    assert!(
        matches!(&request, Request::Refresh(refresh) if refresh.token == "new"),
        "{request:?}"
    );
    peer.say(id, refused(CloseCode::TokenInvalid)).await;
    peer.say(0, go_away(CloseCode::SessionExpired, 0)).await;
    let mut peer = soon(gateway.accept()).await;
    let (id, request) = soon(peer.hear()).await;
    assert!(
        matches!(&request, Request::Hello(hello) if hello.token == "new"),
        "{request:?}"
    );
    peer.say(id, super::welcome(30_000)).await;
    soon(client.ready()).await.unwrap();
}

/// Without a new one there is nothing to come back with.
#[tokio::test]
async fn a_session_whose_token_ended_is_over_when_there_is_no_other_token() {
    let gateway = StandIn::start().await;
    let (client, _events, mut peer) = connected(&gateway).await;
    peer.say(0, go_away(CloseCode::SessionExpired, 0)).await;
    assert!(soon(peer.hear_or_end()).await.is_none());
    let error = soon(client.grab(rain())).await.unwrap_err();
    assert!(
        matches!(&error, ClientError::GoAway(refusal) if refusal.known() == Some(CloseCode::SessionExpired)),
        "{error}"
    );
}
