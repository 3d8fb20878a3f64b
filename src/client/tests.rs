/// Rains with a key.
mod keyed;
/// What a gateway does not accept.
mod refused;

use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::time::{Instant, timeout};

use super::stand_in::{Peer, StandIn, result, welcome};
use super::*;
use crate::rain::{Cents, RainId};
use crate::wire::client_frame::Request;
use crate::wire::{
    GoAway, GrabResult, Outcome, Pong, RainOpened, RainSoldOut, Refused, ServerFrame, Watching,
    frame,
};

/// Packet 41 of rain 7.
const PACKET: u64 = 30_064_771_113;
/// No test waits longer for something that must happen.
const PATIENCE: Duration = Duration::from_secs(20);

fn rain() -> RainId {
    RainId::new(7).unwrap()
}

async fn soon<T>(what: impl Future<Output = T>) -> T {
    timeout(PATIENCE, what).await.expect("took too long")
}

async fn connected(gateway: &StandIn) -> (Client, Events, Peer) {
    let (client, peer) = soon(async {
        tokio::join!(
            Client::connect(gateway.settings(), Login::with_token("token")),
            gateway.welcome()
        )
    })
    .await;
    let (client, mut events) = client.unwrap();
    let first = events.next().await.unwrap();
    assert_eq!(first, Event::Connected { session_id: 1 });
    (client, events, peer)
}

fn go_away(code: CloseCode, reconnect_after_ms: u32) -> Message {
    Message::GoAway(GoAway {
        code: code.into(),
        reason: "test".into(),
        reconnect_after_ms,
    })
}

#[tokio::test]
async fn hello_carries_the_token_and_the_protocol() {
    let gateway = StandIn::start().await;
    let login = Login::with_token("abc.def.ghi");
    let (client, _events, driver) = Client::open(gateway.settings(), login);
    let driver = tokio::spawn(driver.run());
    let mut peer = soon(gateway.accept()).await;
    match soon(peer.hear()).await {
        (id, Request::Hello(hello)) => {
            assert!(id >= 1);
            assert_eq!((hello.token.as_str(), hello.protocol), ("abc.def.ghi", 1));
        }
        other => panic!("{other:?}"),
    }
    drop(client);
    assert_eq!(soon(driver).await.unwrap(), ClientError::Closed);
    assert!(soon(peer.hear_or_end()).await.is_none());
}

#[tokio::test]
async fn replies_find_their_requests_in_any_order() {
    let gateway = StandIn::start().await;
    let (client, _events, mut peer) = connected(&gateway).await;
    let grabs = async {
        tokio::join!(
            client.grab_once(rain()),
            client.grab_once(rain()),
            client.ping()
        )
    };
    let serve = async {
        let first = peer.hear_grab().await;
        let second = peer.hear_grab().await;
        let (ping, _) = peer.hear().await;
        let pong = Pong {
            server_time_ms: 1_000_500,
        };
        peer.say(ping, Message::Pong(pong)).await;
        peer.say(second, result(Outcome::Missed, 0, 0)).await;
        peer.say(99, result(Outcome::SoldOut, 0, 0)).await; // to nobody
        peer.say(first, result(Outcome::Won, PACKET, 888)).await;
    };
    let ((first, second, ping), ()) = soon(async { tokio::join!(grabs, serve) }).await;
    let packet = first.unwrap().packet.unwrap();
    assert_eq!((packet.id.get(), packet.cents), (PACKET, Cents(888)));
    assert_eq!(second.unwrap().known(), Some(Outcome::Missed));
    ping.unwrap();
    assert!((1_000_500..1_100_000).contains(&client.server_now_ms().unwrap()));
}

#[tokio::test]
async fn frames_may_arrive_byte_by_byte_or_many_at_once() {
    let gateway = StandIn::start().await;
    let (client, mut events, mut peer) = connected(&gateway).await;
    let serve = async {
        let id = peer.hear_grab().await;
        let opened = ServerFrame {
            request_id: 0,
            message: Some(Message::RainOpened(RainOpened {
                rain_id: 7,
                title: "long enough to be cut: ".repeat(20),
                ..RainOpened::default()
            })),
        };
        let reply = ServerFrame {
            request_id: id,
            message: Some(result(Outcome::Won, PACKET, 1)),
        };
        for byte in frame::encode(&opened) {
            peer.stream.write_all(&[byte]).await.unwrap();
            tokio::task::yield_now().await;
        }
        let mut both = frame::encode(&opened).to_vec();
        both.extend(frame::encode(&reply));
        peer.stream.write_all(&both).await.unwrap();
    };
    let (reply, ()) = soon(async { tokio::join!(client.grab(rain()), serve) }).await;
    assert_eq!(reply.unwrap().known(), Some(Outcome::Won));
    for _ in 0..2 {
        match events.try_next() {
            Some(Event::RainOpened(opened)) => assert_eq!(opened.rain_id, 7),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(events.try_next(), None);
}

#[tokio::test]
async fn a_grab_whose_reply_was_lost_is_repeated_on_the_next_connection() {
    let gateway = StandIn::start().await;
    let (client, mut events, mut peer) = connected(&gateway).await;
    let mut attempts = Vec::new();
    let grab = client.grab_observed(rain(), |attempt| attempts.push(attempt.result.clone()));
    let serve = async {
        peer.hear_grab().await;
        drop(peer); // the win has happened, its reply is lost
        let mut peer = gateway.welcome().await;
        let id = peer.hear_grab().await;
        peer.say(id, result(Outcome::AlreadyWon, PACKET, 888)).await;
        peer
    };
    let (reply, _peer) = soon(async { tokio::join!(grab, serve) }).await;
    assert_eq!(reply.unwrap().packet.unwrap().cents, Cents(888));
    assert_eq!(attempts.len(), 2);
    assert_eq!(attempts[0], Err(ClientError::ConnectionLost));
    assert!(matches!(events.try_next(), Some(Event::Lost { .. })));
    assert!(matches!(events.try_next(), Some(Event::Connected { .. })));
    assert_eq!(client.stats().sessions, 2);
}

#[tokio::test]
async fn the_room_is_watched_again_after_a_reconnect() {
    let gateway = StandIn::start().await;
    let (client, mut events, mut peer) = connected(&gateway).await;
    let watching = |room: &str| Message::Watching(Watching { room: room.into() });
    let serve = async {
        let (id, _) = peer.hear().await;
        peer.say(id, watching("quiz")).await;
    };
    let (watched, ()) = soon(async { tokio::join!(client.watch("quiz"), serve) }).await;
    watched.unwrap();

    client.reconnect();
    let mut peer = soon(gateway.welcome()).await;
    let (id, request) = soon(peer.hear()).await;
    match request {
        Request::Watch(watch) => assert_eq!(watch.room, "quiz"),
        other => panic!("{other:?}"),
    }
    peer.say(id, watching("quiz")).await;
    let sold_out = RainSoldOut {
        rain_id: 7,
        room: "quiz".into(),
    };
    peer.say(0, Message::RainSoldOut(sold_out.clone())).await;
    let last = async {
        loop {
            match events.next().await.unwrap() {
                Event::RainSoldOut(push) => break push,
                Event::Lost { .. } | Event::Connected { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    };
    assert_eq!(soon(last).await, sold_out);
}

#[tokio::test]
async fn outcomes_that_ask_to_wait_are_repeated_after_that_time() {
    let gateway = StandIn::start().await;
    let (client, _events, mut peer) = connected(&gateway).await;
    let serve = async {
        for outcome in [Outcome::Busy, Outcome::Retry, Outcome::Paused] {
            let id = peer.hear_grab().await;
            let wait = GrabResult {
                outcome: outcome.into(),
                rain_id: 7,
                retry_after_ms: 15,
                ..GrabResult::default()
            };
            peer.say(id, Message::GrabResult(wait)).await;
        }
        let id = peer.hear_grab().await;
        peer.say(id, result(Outcome::Missed, 0, 0)).await;
    };
    let began = Instant::now();
    let (reply, ()) = soon(async { tokio::join!(client.grab(rain()), serve) }).await;
    assert_eq!(reply.unwrap().known(), Some(Outcome::Missed));
    assert!(began.elapsed() >= Duration::from_millis(45));
}

#[tokio::test]
async fn a_grab_before_the_opening_is_repeated_when_the_rain_opens() {
    let gateway = StandIn::start().await;
    let (client, _events, mut peer) = connected(&gateway).await;
    let serve = async {
        let id = peer.hear_grab().await;
        let early = GrabResult {
            outcome: Outcome::NotOpen.into(),
            rain_id: 7,
            retry_after_ms: 3_600_000, // longer than any test: only the push can end the wait
            ..GrabResult::default()
        };
        peer.say(id, Message::GrabResult(early)).await;
        let opened = RainOpened {
            rain_id: 7,
            ..RainOpened::default()
        };
        peer.say(0, Message::RainOpened(opened)).await;
        let id = peer.hear_grab().await;
        peer.say(id, result(Outcome::Won, PACKET, 5)).await;
    };
    let (reply, ()) = soon(async { tokio::join!(client.grab(rain()), serve) }).await;
    assert_eq!(reply.unwrap().known(), Some(Outcome::Won));
}

#[tokio::test]
async fn messages_of_a_newer_gateway_are_no_reason_to_stop() {
    let gateway = StandIn::start().await;
    let (client, _events, mut peer) = connected(&gateway).await;
    let serve = async {
        let first = peer.hear_grab().await;
        // A push and a reply with field 99, which this version does not know: 99 << 3 | 2 = 9a 06, no bytes long.
        let unknown = |id: u8| [0, 0, 0, 5, 0x08, id, 0x9a, 0x06, 0x00];
        peer.stream.write_all(&unknown(0)).await.unwrap();
        let id = u8::try_from(first).unwrap();
        peer.stream.write_all(&unknown(id)).await.unwrap();
        let second = peer.hear_grab().await;
        peer.say(second, result(Outcome::Missed, 0, 0)).await;
    };
    let twice = async { (client.grab(rain()).await, client.grab(rain()).await) };
    let ((first, second), ()) = soon(async { tokio::join!(twice, serve) }).await;
    let text = "the gateway broke the protocol: a reply of no kind that we know";
    assert_eq!(first.unwrap_err().to_string(), text);
    assert_eq!(second.unwrap().known(), Some(Outcome::Missed));
    assert_eq!(client.stats().sessions, 1);
}

#[tokio::test]
async fn before_a_drain_replies_in_flight_still_come_and_the_client_goes_elsewhere() {
    let (mut one, mut two) = (StandIn::start().await, StandIn::start().await);
    let other = two.settings.gateways[0].clone();
    one.settings.gateways.push(other);
    let login = Login::with_token("token");
    let (client, _events, driver) = Client::open(one.settings(), login);
    tokio::spawn(driver.run());
    // A session begins at a random gateway; "one" is the one it began at.
    let welcomed = async {
        tokio::select! { peer = one.welcome() => (peer, false), peer = two.welcome() => (peer, true) }
    };
    let (mut peer, swap) = soon(welcomed).await;
    if swap {
        std::mem::swap(&mut one, &mut two);
    }
    let serve = async {
        let id = peer.hear_grab().await;
        peer.say(0, go_away(CloseCode::Draining, 1)).await;
        peer.say(id, result(Outcome::Won, PACKET, 9)).await;
        let end = peer.hear_or_end().await;
        assert_eq!(end, None, "with nothing in flight the client closes");
        two.welcome().await
    };
    let tap = async {
        client.ready().await.unwrap();
        client.grab(rain()).await
    };
    let (reply, _peer) = soon(async { tokio::join!(tap, serve) }).await;
    assert_eq!(reply.unwrap().known(), Some(Outcome::Won));
}

#[tokio::test]
async fn a_frame_beyond_the_limit_costs_the_connection_and_no_memory() {
    let gateway = StandIn::start().await;
    let (client, mut events, mut peer) = connected(&gateway).await;
    let serve = async {
        peer.hear_grab().await;
        peer.stream
            .write_all(&u32::MAX.to_be_bytes())
            .await
            .unwrap();
        let mut peer = gateway.welcome().await;
        let id = peer.hear_grab().await;
        peer.say(id, result(Outcome::Closed, 0, 0)).await;
        peer
    };
    let (reply, _peer) = soon(async { tokio::join!(client.grab(rain()), serve) }).await;
    assert_eq!(reply.unwrap().known(), Some(Outcome::Closed));
    match events.try_next() {
        Some(Event::Lost { reason }) => {
            assert_eq!(
                reason,
                "the gateway sent a frame of 4294967295 bytes exceeds 65536"
            );
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn requests_beyond_the_limit_wait_for_a_reply() {
    let mut gateway = StandIn::start().await;
    gateway.settings.in_flight_max = 2;
    let (client, _events, mut peer) = connected(&gateway).await;
    let grabs = async {
        tokio::join!(
            client.grab_once(rain()),
            client.grab_once(rain()),
            client.grab_once(rain())
        )
    };
    let serve = async {
        let first = peer.hear_grab().await;
        let second = peer.hear_grab().await;
        let third = timeout(Duration::from_millis(30), peer.hear_grab()).await;
        assert!(third.is_err(), "the third is held back");
        peer.say(second, result(Outcome::Missed, 0, 0)).await;
        let third = peer.hear_grab().await;
        peer.say(third, result(Outcome::SoldOut, 0, 0)).await;
        peer.say(first, result(Outcome::Won, PACKET, 3)).await;
    };
    let ((first, second, third), ()) = soon(async { tokio::join!(grabs, serve) }).await;
    let outcomes = [first, second, third].map(|reply| reply.unwrap().known().unwrap());
    assert_eq!(outcomes, [Outcome::Won, Outcome::Missed, Outcome::SoldOut]);
}

/// One reply that is late holds the slots of those behind it; its reply frees them all, and one of those who waited was woken, the rest one by one
/// by its replies: at a time one request was on its way, until nobody waited.
#[tokio::test]
async fn a_late_reply_wakes_as_many_as_there_is_room_for() {
    let mut gateway = StandIn::start().await;
    gateway.settings.in_flight_max = 3;
    let (client, _events, mut peer) = connected(&gateway).await;
    let missed = || result(Outcome::Missed, 0, 0);
    let (all_wait, waited) = tokio::sync::oneshot::channel();
    let late = client.grab_once(rain());
    // As many as four times what may be in flight, with the late one.
    let behind = async {
        for _ in 0..11 {
            client.grab_once(rain()).await.unwrap();
        }
        let asked = async { all_wait.send(()).unwrap() };
        let pings = async { tokio::join!(client.ping(), client.ping(), client.ping(), asked) };
        let (first, second, third, ()) = pings.await;
        first.and(second).and(third).unwrap();
    };
    let serve = async {
        let late = peer.hear_grab().await;
        for _ in 0..11 {
            let id = peer.hear_grab().await;
            peer.say(id, missed()).await;
        }
        waited.await.unwrap();
        peer.say(late, missed()).await;
        let mut pings = vec![];
        for _ in 0..3 {
            pings.push(peer.hear().await.0);
        }
        for id in pings {
            let server_time_ms = 1_000_500;
            peer.say(id, Message::Pong(Pong { server_time_ms })).await;
        }
    };
    let (late, (), ()) = soon(async { tokio::join!(late, behind, serve) }).await;
    late.unwrap();
}

#[tokio::test]
async fn an_idle_session_sends_heartbeats_and_a_silent_gateway_is_left() {
    let mut gateway = StandIn::start().await;
    gateway.settings.reply_ms = 40;
    let (client, mut events, driver) = Client::open(gateway.settings(), Login::with_token("token"));
    tokio::spawn(driver.run());
    let mut peer = soon(gateway.accept()).await;
    let (hello, _) = soon(peer.hear()).await;
    peer.say(hello, welcome(50)).await;
    for _ in 0..3 {
        match soon(peer.hear()).await {
            (id, Request::Ping(_)) => {
                let pong = Pong {
                    server_time_ms: 1_000_000,
                };
                peer.say(id, Message::Pong(pong)).await;
            }
            other => panic!("{other:?}"),
        }
    }
    // From here on the gateway is frozen: it neither answers nor closes.
    let lost = async {
        loop {
            if let Event::Lost { reason } = events.next().await.unwrap() {
                break reason;
            }
        }
    };
    assert_eq!(soon(lost).await, "no heartbeat reply within 40 ms");
    let _peer = soon(gateway.welcome()).await;
    drop(client);
}

#[tokio::test]
async fn a_request_without_a_reply_times_out_and_the_dead_connection_is_left() {
    let mut gateway = StandIn::start().await;
    gateway.settings.reply_ms = 30;
    let (client, _events, mut frozen) = connected(&gateway).await;
    let serve = async {
        frozen.hear_grab().await;
        let mut peer = gateway.welcome().await;
        let id = peer.hear_grab().await;
        peer.say(id, result(Outcome::AlreadyWon, PACKET, 7)).await;
        (peer, frozen)
    };
    let mut errors = Vec::new();
    let grab = client.grab_observed(rain(), |attempt| {
        errors.extend(attempt.result.clone().err())
    });
    let (reply, _peers) = soon(async { tokio::join!(grab, serve) }).await;
    assert_eq!(reply.unwrap().known(), Some(Outcome::AlreadyWon));
    assert_eq!(errors, [ClientError::TimedOut { ms: 30 }]);
}

#[tokio::test(start_paused = true)]
async fn with_nobody_there_tries_grow_rare_and_the_caller_is_told() {
    let address = {
        let gateway = StandIn::start().await;
        gateway.settings.gateways[0].clone()
    }; // closed again: connecting is refused at once
    let mut settings = Settings::new(vec![address.clone()]);
    settings.first_session_ms = 60_000;
    let began = Instant::now();
    let error = Client::connect(Arc::new(settings), Login::with_token("token"))
        .await
        .map(|_| ())
        .unwrap_err();
    assert_eq!(began.elapsed().as_secs(), 60);
    assert!(error.to_string().contains(&address), "{error}");
    assert!(matches!(error, ClientError::Unreachable { ms: 60_000, .. }));
}

#[tokio::test(start_paused = true)]
async fn back_off_between_connections_has_the_stated_bounds() {
    let address = StandIn::start().await.settings.gateways[0].clone();
    let settings = Settings::new(vec![address]);
    let (client, _events, driver) = Client::open(Arc::new(settings), Login::with_token("token"));
    tokio::spawn(driver.run());
    assert!(
        timeout(Duration::from_secs(20), client.ready())
            .await
            .is_err()
    );
    // Delays are 0.125–0.25, 0.25–0.5, 0.5–1, 1–2, 2–4, 4–8, 8–16 s: the first six are over after 7.9 to 15.75 s, and a seventh may be.
    assert!(
        (7..=8).contains(&client.stats().attempts),
        "{:?}",
        client.stats()
    );
    assert_eq!(client.stats().sessions, 0);
}

#[tokio::test]
async fn dropping_the_client_ends_its_driver_even_between_connections() {
    let gateway = StandIn::start().await;
    let mut settings = gateway.settings.clone();
    settings.reconnect.first_ms = 3_600_000;
    settings.reconnect.max_ms = 3_600_000;
    let (client, mut events, driver) = Client::open(Arc::new(settings), Login::with_token("token"));
    let driver = tokio::spawn(driver.run());
    drop(soon(gateway.welcome()).await);
    while !matches!(soon(events.next()).await, Some(Event::Lost { .. })) {}
    drop(client);
    assert_eq!(soon(driver).await.unwrap(), ClientError::Closed);
    assert_eq!(soon(events.next()).await, None);
}
/// The load generator holds a hundred thousand of them.
#[test]
fn a_session_is_small() {
    let settings = Arc::new(Settings::new(vec!["127.0.0.1:1".into()]));
    let (_client, _events, driver) = Client::open(settings, Login::with_token("token"));
    let driver = std::mem::size_of_val(&driver.run());
    assert!(driver <= 768, "{driver} bytes");
    let shared = std::mem::size_of::<super::shared::Shared>();
    assert!(shared <= 656, "{shared} bytes");
}
