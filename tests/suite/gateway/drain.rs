//! The end of a gateway, and moving to another.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hongbao::client::{BackoffBounds, Client, Login, Settings};
use hongbao::wire::client_frame::Request;
use hongbao::wire::server_frame::Message;
use hongbao::wire::{CloseCode, Grab, Outcome};
use tokio::net::TcpStream;

use crate::support::crowd::assert_paid;
use crate::support::redis::Redis;
use crate::support::server::Server;
use crate::support::wire::Raw;
use crate::support::{PATIENCE, eventually};

fn grab(rain: hongbao::rain::RainId) -> Request {
    Request::Grab(Grab {
        rain_id: rain.get(),
        ..Grab::default()
    })
}

/// A server whose only node is the test's, which waits long for it.
async fn on_a_node_that_may_stop(redis: &Redis, more: &[&str]) -> Server {
    let nodes = format!("store.nodes=[\"{}\"]", redis.url());
    let mut settings = vec![
        "store.topology=nodes",
        &nodes,
        "store.call_timeout_ms=20000",
        "settle.lease_ms=120000",
        "steward.lease_ms=120000",
        "gateway.drain_timeout_ms=30000",
    ];
    settings.extend(more);
    Server::start(&settings)
}

#[tokio::test]
async fn a_drain_says_not_ready_then_accepts_no_more_then_sends_everyone_away_at_spread_times() {
    let mut server = Server::start(&[
        "gateway.drain_delay_ms=400",
        "gateway.drain_spread_ms=10000",
    ]);
    let mut people = vec![];
    for n in 0..40 {
        people.push(Raw::user(&server, &format!("user-{n}")).await);
    }
    let ready = format!("http://{}/readyz", server.addresses.probes);
    assert_eq!(reqwest::get(&ready).await.unwrap().status(), 200);
    let told = Instant::now();
    server.terminate();
    eventually("the load balancer to be told", async || {
        (reqwest::get(&ready).await.ok()?.status() == 503).then_some(())
    })
    .await;
    // Whom the load balancer still sends is served.
    if told.elapsed() < Duration::from_millis(200) {
        people.push(Raw::user(&server, "late").await);
    }
    let mut after = vec![];
    for person in &mut people {
        let Some(Message::GoAway(away)) = person.receive().await.unwrap().message else {
            panic!("no GoAway")
        };
        assert_eq!(away.code(), CloseCode::Draining);
        assert!((1..=10_000).contains(&away.reconnect_after_ms));
        after.push(away.reconnect_after_ms);
    }
    assert!(told.elapsed() >= Duration::from_millis(400));
    assert!(TcpStream::connect(server.gateway()).await.is_err());
    after.sort_unstable();
    // Forty instants in ten seconds: each quarter has some (that one has none is a chance of 4 in 100,000).
    for quarter in 0..4 {
        let quarter = quarter * 2_500..=(quarter + 1) * 2_500;
        assert!(after.iter().any(|ms| quarter.contains(ms)), "{after:?}");
    }
    drop(people);
    assert!(server.ended().await.success());
}

#[tokio::test]
async fn grabs_in_flight_are_answered_after_the_goodbye() {
    let redis = Redis::fit().await;
    let mut server = on_a_node_that_may_stop(&redis, &[]).await;
    let rain = server.open_rain(10, 1_000).await;
    let mut anna = Raw::user(&server, "anna").await;
    let mut idle = Raw::user(&server, "idle").await;
    redis.stop();
    let asked = anna.send(grab(rain)).await;
    // Once its Pong is there, the grab before it has been read.
    let pong = anna.ask(Request::Ping(Default::default())).await;
    assert!(matches!(pong, Message::Pong(_)));
    server.terminate();
    let goodbye = anna.receive().await.unwrap().message;
    assert!(matches!(goodbye, Some(Message::GoAway(_))), "{goodbye:?}");
    assert_eq!(
        idle.gone().await.0,
        CloseCode::Draining,
        "who waits for nothing is not kept"
    );
    redis.go_on();
    let answer = anna.receive().await.unwrap();
    assert_eq!(answer.request_id, asked);
    let Some(Message::GrabResult(result)) = answer.message else {
        panic!()
    };
    assert_eq!(result.outcome(), Outcome::Won);
    assert!(anna.receive().await.is_none());
    drop(anna);
    assert!(server.ended().await.success());
}

#[tokio::test]
async fn a_second_signal_does_not_wait_for_anybody() {
    let redis = Redis::fit().await;
    let mut server = on_a_node_that_may_stop(&redis, &[]).await;
    let rain = server.open_rain(10, 1_000).await;
    let mut anna = Raw::user(&server, "anna").await;
    redis.stop();
    anna.send(grab(rain)).await;
    server.terminate();
    assert!(matches!(
        anna.receive().await.unwrap().message,
        Some(Message::GoAway(_))
    ));
    assert!(!server.has_died());
    let second = Instant::now();
    server.terminate();
    assert_eq!(server.ended().await.code(), Some(1));
    assert!(
        second.elapsed() < Duration::from_secs(5),
        "{:?}",
        second.elapsed()
    );
    redis.go_on();
}

/// What one person saw: the packet, and the longest time without an answer.
type Seen = (Option<(u64, i64)>, Duration);

/// Grabs again and again until `over`; nothing but an outcome may ever come back.
async fn keeps_tapping(client: Client, rain: hongbao::rain::RainId, over: Arc<AtomicBool>) -> Seen {
    let (mut packet, mut longest) = (None, Duration::ZERO);
    while !over.load(Ordering::Relaxed) || packet.is_none() {
        let asked = Instant::now();
        let reply = client.grab(rain).await.expect("the client hides a restart");
        longest = longest.max(asked.elapsed());
        match (reply.known(), reply.packet) {
            (Some(Outcome::Won | Outcome::AlreadyWon), Some(won)) => {
                let won = (won.id.get(), won.cents.0);
                assert_eq!(
                    *packet.get_or_insert(won),
                    won,
                    "another packet than before"
                );
            }
            (Some(Outcome::Missed), None) if packet.is_none() => {}
            other => panic!("{other:?}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await; // people tap at some pace
    }
    (packet, longest)
}

#[tokio::test(flavor = "multi_thread")]
async fn two_gateways_are_restarted_one_after_the_other_under_load_and_nobody_notices() {
    let nodes = [Redis::fit().await, Redis::fit().await];
    let nodes = format!(
        "store.nodes=[\"{}\",\"{}\"]",
        nodes[0].url(),
        nodes[1].url()
    );
    let start = |more: &[&str]| {
        let mut settings = vec!["store.topology=nodes", &nodes[..]];
        settings.extend(more);
        Server::start(&settings)
    };
    let mut rest = start(&["server.roles=[\"settle\",\"steward\",\"admin\"]"]);
    let secret = format!(
        "tokens.secret_file={}",
        rest.data_dir().join("token-secret").display()
    );
    let gateway = || {
        start(&[
            "server.roles=[\"gateway\"]",
            &secret,
            "gateway.drain_spread_ms=400",
        ])
    };
    let mut gateways = [gateway(), gateway()];
    rest.addresses.gateway = gateways[0].addresses.gateway;
    let rain = rest.open_rain(1_000, 1_000_000).await;

    let settings = Arc::new(Settings {
        reconnect: BackoffBounds {
            first_ms: 20,
            max_ms: 200,
        },
        ..Settings::new(
            gateways
                .iter()
                .map(|gateway| gateway.gateway().to_string())
                .collect(),
        )
    });
    let over = Arc::new(AtomicBool::new(false));
    // New people come all the time, so that wins are under way whatever happens to the gateways.
    let (settings, coming) = (settings.clone(), over.clone());
    let tokens = (0..600)
        .map(|n| rest.token(&format!("user-{n}")))
        .collect::<Vec<_>>();
    let crowd = tokio::spawn(async move {
        let mut people = vec![];
        for token in tokens {
            let (settings, over) = (settings.clone(), coming.clone());
            people.push(tokio::spawn(async move {
                let (client, _events) = Client::connect(settings, Login::with_token(token))
                    .await
                    .unwrap();
                keeps_tapping(client, rain, over).await
            }));
            if coming.load(Ordering::Relaxed) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await; // people come one by one
        }
        people
    });

    let sessions = async |gateway: &Server| gateway.metric("hongbao_sessions").await;
    for restarted in [0, 1] {
        eventually("both to have sessions", async || {
            (sessions(&gateways[0]).await >= 20.0 && sessions(&gateways[1]).await >= 20.0)
                .then_some(())
        })
        .await;
        let gateway = &mut gateways[restarted];
        gateway.terminate();
        assert!(gateway.ended().await.success());
        let log = gateway.log();
        assert!(!log.contains("WARN") && !log.contains("ERROR"), "{log}");
        gateways[restarted].start_again();
    }
    eventually("the second to be used again", async || {
        (sessions(&gateways[1]).await >= 20.0).then_some(())
    })
    .await;
    over.store(true, Ordering::Relaxed);
    let people = crowd.await.unwrap();
    let (mut told, mut longest) = (HashMap::new(), Duration::ZERO);
    for (n, person) in people.into_iter().enumerate() {
        let (packet, waited) = tokio::time::timeout(PATIENCE, person)
            .await
            .unwrap()
            .unwrap();
        told.insert(format!("user-{n}"), packet.unwrap());
        longest = longest.max(waited);
    }
    println!(
        "{} people won through two restarts; the longest wait for an answer was {longest:.0?}",
        told.len()
    );
    assert!(told.len() >= 100);
    assert!(longest < Duration::from_secs(5), "{longest:?}");
    assert_paid(&rest, rain, &told).await;
}
