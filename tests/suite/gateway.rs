//! The wire: what a phone may send, and what it must not.

/// The end of a gateway, and moving to another.
mod drain;
/// Bytes that nobody would send.
mod fuzz;
/// Hostile clients on a real gateway.
mod limits;
/// Load balancers that say whom they forward.
mod proxy;
/// Certificates, handshakes, sessions over TLS.
mod tls;

use std::time::Duration;

use hongbao::gateway::token;
use hongbao::rain::{State, UserId};
use hongbao::wire::client_frame::Request;
use hongbao::wire::frame;
use hongbao::wire::server_frame::Message;
use hongbao::wire::{ClientFrame, CloseCode, Grab, Hello, Outcome, Ping, Watch};

use crate::support::server::{Server, new_rain};
use crate::support::wire::{Raw, final_outcome};

#[tokio::test]
async fn a_second_grab_returns_the_first_packet_on_any_session_and_after_the_rain_is_closed() {
    let server = Server::start(&[]);
    let rain = server.open_rain(600, 100_000).await;
    let mut anna = Raw::user(&server, "anna").await;
    let first = anna.grab(rain.get()).await;
    assert_eq!(first.outcome(), Outcome::Won);
    assert!(first.cents > 0 && first.packet_id >> 32 == u64::from(rain.get()));
    let same = |result: &hongbao::wire::GrabResult| {
        assert_eq!(result.outcome(), Outcome::AlreadyWon);
        assert_eq!(
            (result.packet_id, result.cents),
            (first.packet_id, first.cents)
        );
    };
    same(&anna.grab(rain.get()).await);
    let mut other_phone = Raw::user(&server, "anna").await;
    same(&other_phone.grab(rain.get()).await);
    server.admin().close_rain(rain).await.unwrap();
    let mut later = Raw::user(&server, "anna").await;
    same(&later.grab(rain.get()).await);
    let mut ben = Raw::user(&server, "ben").await;
    assert_eq!(ben.grab(rain.get()).await.outcome(), Outcome::Closed);
    assert_eq!(ben.grab(rain.get()).await.outcome(), Outcome::Closed);
}

#[tokio::test]
async fn a_grab_in_the_wrong_place_or_time_has_its_own_outcome() {
    let server = Server::start(&["gateway.retry_after_ms=40"]);
    let rain = server.ready_rain(10, 1_000).await;
    let mut anna = Raw::user(&server, "anna").await;
    let early = anna.grab(rain.get()).await;
    assert_eq!(early.outcome(), Outcome::NotOpen);
    assert!(early.retry_after_ms > 0);
    for unknown in [0, 4_711, u32::MAX] {
        assert_eq!(
            anna.grab(unknown).await.outcome(),
            Outcome::NoSuchRain,
            "{unknown}"
        );
    }
    server.admin().open_rain(rain).await.unwrap();
    assert_eq!(
        final_outcome(&mut anna, rain.get()).await.outcome(),
        Outcome::Won
    );
}

#[tokio::test]
async fn a_rain_opens_and_closes_by_its_times_and_everyone_watching_is_told() {
    let server = Server::start(&[]);
    let admin = server.admin();
    admin.create_sponsor("acme").await.unwrap();
    admin
        .deposit("acme", hongbao::rain::Cents(1_000), "d")
        .await
        .unwrap();
    let mut anna = Raw::user(&server, "anna").await;
    anna.watch("quiz").await;
    let mut stranger = Raw::user(&server, "stranger").await;
    stranger.watch("elsewhere").await;

    let opens_at_ms = hongbao::clock::now_ms() + 700;
    let new = hongbao::client::admin::NewRain {
        opens_at_ms: Some(opens_at_ms),
        duration_ms: Some(400),
        ..new_rain(10, 1_000)
    };
    let rain = admin.create_rain(&new).await.unwrap().id;
    let mut told = vec![];
    while told.len() < 3 {
        match anna.receive().await.unwrap().message.unwrap() {
            Message::RainAnnounced(announced) => {
                assert_eq!(
                    (announced.rain_id, announced.opens_at_ms),
                    (rain.get(), opens_at_ms)
                );
                told.push("announced");
            }
            Message::RainOpened(opened) => {
                assert!(opened.server_time_ms >= opens_at_ms);
                assert_eq!(opened.closes_at_ms, opens_at_ms + 400);
                told.push("opened");
            }
            Message::RainClosed(closed) => {
                assert_eq!(closed.rain_id, rain.get());
                assert!(hongbao::clock::now_ms() >= opens_at_ms + 400);
                told.push("closed");
            }
            Message::RainProgress(progress) => assert_eq!(progress.remaining, 10),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(told, ["announced", "opened", "closed"]);
    // Nobody closed it, yet it is closed, and the steward records it by itself.
    assert_eq!(anna.grab(rain.get()).await.outcome(), Outcome::Closed);
    server.until(rain, |rain| rain.state == State::Closed).await;
    let Message::Pong(pong) = stranger.ask(Request::Ping(Ping {})).await else {
        panic!("a push went astray")
    };
    assert!((pong.server_time_ms - hongbao::clock::now_ms()).abs() < 10_000);
}

#[tokio::test]
async fn tokens_that_are_missing_expired_forged_or_foreign_are_told_apart() {
    let server = Server::start(&[]);
    let anna = UserId::new("anna").unwrap();
    let hour = Duration::from_secs(3_600);
    let forged = token::issue(&anna, "default", b"guessed", hour);
    let foreign = token::issue(&anna, "another", &server.secret(), hour);
    for (token, code) in [
        (String::new(), CloseCode::TokenMissing),
        ("not a token".into(), CloseCode::TokenInvalid),
        (forged, CloseCode::TokenInvalid),
        (foreign, CloseCode::TokenInvalid),
    ] {
        let mut raw = Raw::connect(&server).await;
        raw.send(Request::Hello(Hello {
            token,
            protocol: 1,
            last_message_id: 0,
        }))
        .await;
        assert_eq!(raw.gone().await.0, code);
    }
    let mut raw = Raw::connect(&server).await;
    raw.send(Request::Hello(Hello {
        token: server.token("anna"),
        protocol: 9,
        last_message_id: 0,
    }))
    .await;
    let (code, reason) = raw.gone().await;
    assert_eq!(code, CloseCode::ProtocolUnsupported);
    assert!(reason.contains("protocol 9"), "{reason}");
}

#[tokio::test]
async fn frames_that_are_too_long_garbage_unknown_or_out_of_order_are_refused_once_and_closed() {
    let server = Server::start(&[]);
    let hello = frame::encode(&ClientFrame {
        request_id: 1,
        request: Some(Request::Hello(Hello {
            token: server.token("anna"),
            protocol: 1,
            last_message_id: 0,
        })),
    });
    let grab = frame::encode(&ClientFrame {
        request_id: 1,
        request: Some(Request::Grab(Grab {
            rain_id: 1,
            ..Grab::default()
        })),
    });
    let unknown = [0, 0, 0, 4, 0x08, 0x01, 0xFA, 0x01]; // field 31, cut short
    let future = [0, 0, 0, 5, 0x08, 0x01, 0xFA, 0x01, 0x00]; // field 31 with nothing in it
    for (bytes, code) in [
        (&9_120u32.to_be_bytes()[..], CloseCode::FrameTooLong),
        (&[0xFF; 4], CloseCode::FrameTooLong),
        (&[0, 0, 0, 0], CloseCode::FrameInvalid),
        (&[0, 0, 0, 3, 0xFF, 0xFF, 0xFF], CloseCode::FrameInvalid),
        (b"GET / HTTP/1.1\r\n\r\n", CloseCode::FrameTooLong),
        (&unknown, CloseCode::FrameInvalid),
        (&future, CloseCode::FrameInvalid),
        (&grab, CloseCode::HelloExpected),
    ] {
        let mut raw = Raw::connect(&server).await;
        raw.bytes(bytes).await;
        assert_eq!(raw.gone().await.0, code, "{bytes:?}");
    }
    let mut raw = Raw::connect(&server).await;
    raw.bytes(&9_120u32.to_be_bytes()).await;
    assert_eq!(raw.gone().await.1, "frame of 9120 bytes exceeds 4096");

    let mut twice = Raw::user(&server, "anna").await;
    twice.bytes(&hello).await;
    assert_eq!(twice.gone().await.0, CloseCode::HelloExpected);

    // A frame that comes in pieces is whole in the end; one that is cut for ever harms nobody.
    let mut pieces = Raw::connect(&server).await;
    let mut cut = Raw::connect(&server).await;
    cut.bytes(&hello[..10]).await;
    for piece in hello.chunks(3) {
        pieces.bytes(piece).await;
    }
    assert!(matches!(
        pieces.receive().await.unwrap().message,
        Some(Message::Welcome(_))
    ));
    drop(cut);
    let Message::Refused(refused) = pieces
        .ask(Request::Watch(Watch {
            room: "two words".into(),
        }))
        .await
    else {
        panic!()
    };
    assert!(refused.reason.contains("0 to 64 characters"));
    assert!(
        matches!(pieces.ask(Request::Ping(Ping {})).await, Message::Pong(_)),
        "the session lives on"
    );
}

#[tokio::test]
async fn the_silent_are_closed() {
    let server = Server::start(&[
        "gateway.hello_timeout_ms=60",
        "gateway.idle_timeout_ms=400",
        "gateway.heartbeat_interval_ms=100",
    ]);
    let mut silent = Raw::connect(&server).await;
    assert_eq!(silent.gone().await.0, CloseCode::HelloExpected);
    let mut idle = Raw::user(&server, "anna").await;
    assert_eq!(idle.gone().await.0, CloseCode::Idle);
}

#[tokio::test]
async fn more_connections_than_allowed_are_sent_away() {
    let server = Server::start(&["gateway.connections_max=2"]);
    let _first = Raw::user(&server, "a").await;
    let second = Raw::user(&server, "b").await;
    let mut third = Raw::connect(&server).await;
    assert_eq!(third.gone().await.0, CloseCode::TooManyConnections);
    let full = "hongbao_connections_refused_total{reason=\"gateway_full\"}";
    assert_eq!(server.metric(full).await, 1.0);
    drop(second);
    crate::support::eventually("a place to be free", async || {
        let mut raw = Raw::connect(&server).await;
        raw.send(Request::Hello(Hello {
            token: server.token("c"),
            protocol: 1,
            last_message_id: 0,
        }))
        .await;
        matches!(raw.receive().await?.message, Some(Message::Welcome(_))).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_drain_finishes_what_is_in_flight_and_says_goodbye() {
    let server = Server::start(&[]);
    let rain = server.open_rain(100, 10_000).await;
    let mut anna = Raw::user(&server, "anna").await;
    anna.send(Request::Grab(Grab {
        rain_id: rain.get(),
        ..Grab::default()
    }))
    .await;
    assert!(matches!(
        anna.receive().await.unwrap().message,
        Some(Message::GrabResult(_))
    ));
    let stopping = server.stop();
    let mut stopping = std::pin::pin!(stopping);
    // The credit of the grab may be told before the goodbye.
    let away = async {
        loop {
            match anna.receive().await.unwrap().message {
                Some(Message::InboxMessage(_)) => {}
                other => return other,
            }
        }
    };
    let away = tokio::select! {
        away = away => away,
        status = &mut stopping => panic!("stopped without a word: {status}"),
    };
    let Some(Message::GoAway(away)) = away else {
        panic!("no GoAway")
    };
    assert_eq!(away.code(), CloseCode::Draining);
    assert!(away.reconnect_after_ms > 0);
    assert!(anna.receive().await.is_none());
    drop(anna);
    assert!(stopping.await.success());
}

#[tokio::test]
async fn a_rain_is_sold_out_when_every_packet_has_been_won() {
    let server = Server::start(&[]);
    let rain = server.open_rain(3, 300).await; // so few packets lie in one bucket
    let mut outcomes = vec![];
    for user in ["a", "b", "c"] {
        outcomes.push(
            Raw::user(&server, user)
                .await
                .grab(rain.get())
                .await
                .outcome(),
        );
    }
    assert_eq!(outcomes, [Outcome::Won, Outcome::Won, Outcome::Won]);
    let mut late = Raw::user(&server, "d").await;
    loop {
        match late.grab(rain.get()).await.outcome() {
            Outcome::Missed => {} // until the steward has counted
            outcome => break assert_eq!(outcome, Outcome::SoldOut),
        }
    }

    let rain = server.open_rain(96, 9_600).await; // 32 in each of three buckets
    let mut won = 0;
    for n in 0..2_000 {
        let result = Raw::user(&server, &format!("user-{n}"))
            .await
            .grab(rain.get())
            .await;
        match result.outcome() {
            Outcome::Won => won += 1,
            Outcome::Missed => assert!(
                won < 96,
                "all packets are gone, yet the rain is said to go on"
            ),
            Outcome::SoldOut => {
                assert_eq!(won, 96, "sold out while packets are left");
                return;
            }
            other => panic!("{other:?}"),
        }
        if won == 96 {
            let mut last = Raw::user(&server, "last").await;
            while last.grab(rain.get()).await.outcome() != Outcome::SoldOut {}
            return;
        }
    }
    panic!("{won} packets won by 2,000 people");
}
