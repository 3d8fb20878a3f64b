//! Hostile clients on a real gateway: each limit, what the client is told, and that it is counted.

use std::time::{Duration, Instant};

use hongbao::wire::client_frame::Request;
use hongbao::wire::server_frame::Message;
use hongbao::wire::{ClientFrame, CloseCode, Grab, Hello, Inbox, Outcome, Ping, frame};

use crate::support::eventually;
use crate::support::redis::Redis;
use crate::support::server::Server;
use crate::support::wire::Raw;

async fn refused(server: &Server, reason: &str) -> f64 {
    let name = format!("hongbao_connections_refused_total{{reason=\"{reason}\"}}");
    server.metric(&name).await
}

async fn closed(server: &Server, code: CloseCode) -> f64 {
    let name = format!(
        "hongbao_connections_closed_total{{code=\"{}\"}}",
        code.as_str_name()
    );
    server.metric(&name).await
}

async fn frames_refused(server: &Server, limit: &str) -> f64 {
    server
        .metric(&format!(
            "hongbao_frames_refused_total{{limit=\"{limit}\"}}"
        ))
        .await
}

/// Somebody else is served as ever.
async fn others_are_served(server: &Server) {
    let mut other = Raw::connect_from(server, "127.0.0.99").await;
    other.hello(&server.token("other")).await;
    assert!(matches!(
        other.ask(Request::Ping(Ping {})).await,
        Message::Pong(_)
    ));
}

#[tokio::test]
async fn one_address_has_so_many_connections_and_others_have_theirs() {
    let server = Server::start(&["gateway.connections_per_address_max=2"]);
    let first = Raw::user(&server, "a").await;
    let _second = Raw::user(&server, "b").await;
    let mut third = Raw::connect(&server).await;
    assert_eq!(
        third.gone().await,
        (
            CloseCode::TooManyConnections,
            "too many connections from this address".into()
        )
    );
    assert_eq!(refused(&server, "address_full").await, 1.0);
    others_are_served(&server).await;
    drop(first);
    eventually("the place to be free", async || {
        let mut raw = Raw::connect(&server).await;
        raw.send(hello(&server)).await;
        matches!(raw.receive().await?.message, Some(Message::Welcome(_))).then_some(())
    })
    .await;
}

fn hello(server: &Server) -> Request {
    Request::Hello(Hello {
        token: server.token("a"),
        protocol: 1,
        last_message_id: 0,
    })
}

#[tokio::test]
async fn an_address_that_connects_too_often_is_dropped_without_a_word() {
    let server = Server::start(&["gateway.connects_per_address_per_second=3"]);
    let mut dropped = 0;
    let hello = ClientFrame {
        request_id: 1,
        request: Some(hello(&server)),
    };
    for _ in 0..40 {
        let welcomed = async {
            let mut raw = Raw::try_connect(&server).await?;
            raw.try_bytes(&frame::encode(&hello)).await.then_some(())?;
            raw.receive().await
        };
        dropped += i32::from(welcomed.await.is_none());
    }
    // Two seconds' worth at once, and one more for each third of a second that this took.
    assert!(dropped >= 20, "{dropped}");
    assert_eq!(refused(&server, "address_rate").await, f64::from(dropped));
    others_are_served(&server).await;
}

#[tokio::test]
async fn connections_beyond_the_accept_rate_wait_and_are_not_lost() {
    let server = Server::start(&["gateway.accepts_per_second=20"]);
    let started = Instant::now();
    let mut people = vec![];
    for n in 0..60 {
        people.push(Raw::user(&server, &format!("user-{n}")).await);
    }
    // 40 at once, then one in 50 ms.
    assert!(
        started.elapsed() >= Duration::from_millis(900),
        "{:?}",
        started.elapsed()
    );
    assert!(server.metric("hongbao_accepts_delayed_total").await >= 10.0);
    for person in &mut people {
        assert!(matches!(
            person.ask(Request::Ping(Ping {})).await,
            Message::Pong(_)
        ));
    }
}

#[tokio::test]
async fn a_frame_that_has_begun_must_end_in_time_however_busy_the_client_looks() {
    let server = Server::start(&["gateway.frame_timeout_ms=300"]);
    let ping = frame::encode(&ClientFrame {
        request_id: 9,
        request: Some(Request::Ping(Ping {})),
    });
    // Slow, but in time: every frame has its own time.
    let mut slow = Raw::user(&server, "slow").await;
    for _ in 0..4 {
        for half in [&ping[..3], &ping[3..]] {
            slow.bytes(half).await;
            tokio::time::sleep(Duration::from_millis(60)).await; // the client is slow by intent
        }
        assert_eq!(slow.receive().await.unwrap().request_id, 9);
    }
    // The end of each comes with the beginning of the next: a frame has begun all the time, and each ends in time.
    let mut overlapping = Raw::user(&server, "overlapping").await;
    let end_and_beginning = [&ping[3..], &ping[..3]].concat();
    overlapping.bytes(&ping[..3]).await;
    for _ in 0..8 {
        tokio::time::sleep(Duration::from_millis(60)).await; // the client is slow by intent
        overlapping.bytes(&end_and_beginning).await;
        assert_eq!(overlapping.receive().await.unwrap().request_id, 9);
    }
    overlapping.bytes(&ping[3..]).await;
    let mut loris = Raw::user(&server, "loris").await;
    let long = [&4_000u32.to_be_bytes()[..], &[0; 4_000]].concat();
    let begun = Instant::now();
    let dripping = async {
        for byte in long {
            if !loris.try_bytes(&[byte]).await {
                break;
            }
            let next = loris.receive();
            match tokio::time::timeout(Duration::from_millis(10), next).await {
                Ok(Some(frame)) => match frame.message {
                    Some(Message::GoAway(away)) => return away.code(),
                    other => panic!("{other:?}"),
                },
                Ok(None) => panic!("closed without a word"),
                Err(_) => {}
            }
        }
        panic!("never closed")
    };
    assert_eq!(dripping.await, CloseCode::FrameTimeout);
    assert!(
        begun.elapsed() >= Duration::from_millis(290),
        "{:?}",
        begun.elapsed()
    );
    assert_eq!(closed(&server, CloseCode::FrameTimeout).await, 1.0);
    others_are_served(&server).await;
}

/// Whoever connects with something else finds out by a look at what came back.
#[tokio::test]
async fn another_protocol_is_told_what_it_is() {
    let server = Server::start(&["store.managed_nodes=1"]);
    for (bytes, what) in [
        (&b"GET / HTTP/1.1\r\n\r\n"[..], "this is HTTP"),
        (&[0x16, 0x03, 0x01, 0x02, 0x00], "this is TLS"),
        (
            b"PROXY TCP4 203.0.113.9 192.0.2.1 12345 7700\r\n",
            "version 1",
        ),
        (&[0x7F; 9], "exceeds 4096"),
    ] {
        let mut stranger = Raw::connect(&server).await;
        stranger.bytes(bytes).await;
        let (code, reason) = stranger.gone().await;
        assert_eq!(code, CloseCode::FrameTooLong);
        assert!(reason.contains(what), "{reason}");
    }
}

/// A Watch costs ten taps: no burst would ever have paid for it where fewer than five a second are allowed.
#[tokio::test]
async fn a_room_can_be_watched_however_few_frames_are_allowed() {
    for rate in [
        "gateway.frames_per_second=1",
        "gateway.frames_per_second=4",
        "gateway.user_frames_per_second=1",
    ] {
        let server = Server::start(&["store.managed_nodes=1", rate]);
        Raw::user(&server, "anna").await.watch("quiz").await;
    }
}

#[tokio::test]
async fn the_silent_and_the_idle_are_counted() {
    let server = Server::start(&[
        "gateway.hello_timeout_ms=60",
        "gateway.idle_timeout_ms=300",
        "gateway.heartbeat_interval_ms=100",
    ]);
    // A client that dribbles garbage before its Hello has no more time than a silent one.
    let mut silent = Raw::connect(&server).await;
    silent.bytes(&[0, 0]).await;
    assert_eq!(silent.gone().await.0, CloseCode::HelloExpected);
    let mut idle = Raw::user(&server, "anna").await;
    assert_eq!(idle.gone().await.0, CloseCode::Idle);
    assert_eq!(closed(&server, CloseCode::HelloExpected).await, 1.0);
    assert_eq!(closed(&server, CloseCode::Idle).await, 1.0);
}

/// Each piece wakes the gateway: a frame of four thousand pieces was one frame to the limits.
#[tokio::test(flavor = "multi_thread")]
async fn a_frame_in_many_pieces_is_paid_for_piece_by_piece() {
    let server = Server::start(&["gateway.frames_per_second=20"]);
    let mut drop_by_drop = Raw::user(&server, "anna").await;
    drop_by_drop.bytes(&[0, 0, 0x10, 0]).await;
    for _ in 0..4_000 {
        // Pieces that are read together count as one, so more are sent than are allowed.
        if !drop_by_drop.try_bytes(&[7]).await {
            break;
        }
        tokio::time::sleep(Duration::from_millis(1)).await; // nothing tells when a piece has been read
    }
    assert_eq!(drop_by_drop.gone().await.0, CloseCode::TooManyRequests);
    others_are_served(&server).await;
}

#[tokio::test]
async fn frames_beyond_the_rate_are_refused_by_kind_and_then_the_session_is_closed() {
    let server = Server::start(&["gateway.frames_per_second=20"]);
    let rain = server.open_rain(100, 10_000).await;
    let mut flood = Raw::user(&server, "flood").await; // one frame
    let (mut pongs, mut busy, mut refusals) = (0, 0, 0);
    for n in 0..200 {
        let request = match n % 2 {
            0 => Request::Ping(Ping {}),
            _ => Request::Grab(Grab {
                rain_id: rain.get(),
                ..Grab::default()
            }),
        };
        let frame = frame::encode(&ClientFrame {
            request_id: n + 1,
            request: Some(request),
        });
        if !flood.try_bytes(&frame).await {
            break;
        }
    }
    let away = loop {
        match flood.receive().await.unwrap().message.unwrap() {
            Message::Pong(_) => pongs += 1,
            Message::GrabResult(result) if result.outcome() == Outcome::Busy => {
                assert!(result.retry_after_ms > 0);
                busy += 1;
            }
            Message::Refused(refused) => {
                assert_eq!(refused.code(), CloseCode::TooManyRequests);
                refusals += 1;
            }
            Message::GoAway(away) => break away,
            Message::GrabResult(_) | Message::InboxMessage(_) => {}
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(away.code(), CloseCode::TooManyRequests);
    assert!(away.reconnect_after_ms > 0);
    // 40 at once, Hello among them, of which half are pings; another 40 are refused; some more came in while they were read.
    assert!((19..=25).contains(&pongs), "{pongs}");
    assert!(
        (18..=25).contains(&busy) && (18..=25).contains(&refusals),
        "{busy} {refusals}"
    );
    assert_eq!(
        frames_refused(&server, "session_rate").await,
        f64::from(busy + refusals + 1)
    );
    assert_eq!(closed(&server, CloseCode::TooManyRequests).await, 1.0);
    // Who does not know the protocol's first frame is not answered by kind.
    let mut stranger = Raw::connect(&server).await;
    stranger.try_bytes(&[0, 0, 0, 2, 8, 1].repeat(500)).await;
    assert!(stranger.receive().await.is_some());
    others_are_served(&server).await;
}

#[tokio::test]
async fn a_user_has_one_rate_for_all_sessions_and_across_reconnects() {
    let server = Server::start(&["gateway.user_frames_per_second=5"]);
    let mut phone = Raw::user(&server, "anna").await;
    let mut tablet = Raw::user(&server, "anna").await;
    let mut refusals = 0;
    for _ in 0..8 {
        for session in [&mut phone, &mut tablet] {
            match session.ask(Request::Ping(Ping {})).await {
                Message::Pong(_) => {}
                Message::Refused(refused) => {
                    assert_eq!(refused.code(), CloseCode::TooManyRequests);
                    refusals += 1;
                }
                other => panic!("{other:?}"),
            }
        }
    }
    assert!(refusals >= 3, "{refusals}");
    drop((phone, tablet));
    let mut again = Raw::connect(&server).await;
    again.hello(&server.token("anna")).await;
    assert!(matches!(
        again.ask(Request::Ping(Ping {})).await,
        Message::Refused(_)
    ));
    assert_eq!(
        frames_refused(&server, "user_rate").await,
        f64::from(refusals + 1)
    );
    others_are_served(&server).await;
}

/// A server on one node of the test's own, and a rain.
async fn on_one_node(redis: &Redis, more: &[&str]) -> Server {
    let nodes = format!("store.nodes=[\"{}\"]", redis.url());
    let mut settings = vec!["store.topology=nodes", &nodes];
    settings.extend(more);
    Server::start(&settings)
}

#[tokio::test]
async fn more_requests_in_flight_than_allowed_are_answered_at_once() {
    let redis = Redis::fit().await;
    let server = on_one_node(
        &redis,
        &[
            "gateway.in_flight_max=4",
            "store.call_timeout_ms=10000",
            "settle.lease_ms=60000",
            "steward.lease_ms=60000",
        ],
    )
    .await;
    let rain = server.open_rain(10, 1_000).await;
    let mut anna = Raw::user(&server, "anna").await;
    redis.stop(); // what is asked now stays in flight
    for _ in 0..6 {
        anna.send(Request::Grab(Grab {
            rain_id: rain.get(),
            ..Grab::default()
        }))
        .await;
    }
    let inbox = anna.send(Request::Inbox(Inbox::default())).await;
    for _ in 0..2 {
        let Some(Message::GrabResult(result)) = anna.receive().await.unwrap().message else {
            panic!()
        };
        assert_eq!(result.outcome(), Outcome::Busy);
    }
    let page = anna.receive().await.unwrap();
    assert_eq!(page.request_id, inbox);
    assert!(
        matches!(page.message, Some(Message::InboxPage(page)) if page.more && page.messages.is_empty())
    );
    redis.go_on();
    for _ in 0..4 {
        let Some(Message::GrabResult(result)) = anna.receive().await.unwrap().message else {
            panic!()
        };
        assert!(matches!(
            result.outcome(),
            Outcome::Won | Outcome::AlreadyWon
        ));
    }
    assert_eq!(
        server
            .metric("hongbao_in_flight_full_total{session=\"user\"}")
            .await,
        3.0
    );
}

#[tokio::test]
async fn a_client_that_does_not_read_is_dropped_and_costs_no_more_than_its_backlog() {
    let server = Server::start(&[
        "gateway.write_backlog_max_bytes=16384",
        "gateway.frames_per_second=10000000",
        "gateway.user_frames_per_second=10000000",
    ]);
    let mut slow = Raw::user(&server, "slow").await;
    let pings = frame::encode(&ClientFrame {
        request_id: 7,
        request: Some(Request::Ping(Ping {})),
    })
    .repeat(4_096);
    let writing = async { while slow.try_bytes(&pings).await {} };
    tokio::time::timeout(crate::support::PATIENCE, writing)
        .await
        .expect("a client that does not read is served without end");
    assert_eq!(closed(&server, CloseCode::SlowReader).await, 1.0);
    others_are_served(&server).await;
}

#[tokio::test]
async fn a_frame_that_is_too_long_is_refused_before_memory_is_reserved_for_it() {
    let server = Server::start(&[]);
    let before = server.resident_kib();
    let mut liars = vec![];
    for _ in 0..200 {
        let mut liar = Raw::connect(&server).await;
        liar.bytes(&u32::MAX.to_be_bytes()).await;
        liars.push(liar);
    }
    for liar in &mut liars {
        let Some(Message::GoAway(away)) = liar.receive().await.unwrap().message else {
            panic!()
        };
        assert_eq!(
            (away.code(), &away.reason[..]),
            (
                CloseCode::FrameTooLong,
                "frame of 4294967295 bytes exceeds 4096"
            )
        );
        assert!(liar.receive().await.is_none(), "one refusal, then the end");
    }
    assert_eq!(closed(&server, CloseCode::FrameTooLong).await, 200.0);
    let grown = server.resident_kib().saturating_sub(before);
    assert!(grown < 20_000, "{grown} KiB");
    others_are_served(&server).await;
}
