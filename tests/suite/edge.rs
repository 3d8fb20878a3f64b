//! Trusted servers that grab for many users over one connection.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use futures_util::stream::{FuturesUnordered, StreamExt};
use hongbao::client::admin::NewRain;
use hongbao::client::{Client, Event, Login, Settings};
use hongbao::rain::UserId;
use hongbao::wire::client_frame::Request;
use hongbao::wire::inbox_message::Contents;
use hongbao::wire::server_frame::Message;
use hongbao::wire::{CloseCode, Grab, GrabResult, Inbox, InboxMessage, Outcome, Ping};

use crate::support::proxy::{Cut, Proxy};
use crate::support::redis::Redis;
use crate::support::server::{Server, new_rain};
use crate::support::wire::Raw;
use crate::support::{PATIENCE, eventually};

async fn edge_client(server: &Server) -> (Client, hongbao::client::Events) {
    let settings = Settings::for_edge(vec![server.gateway().to_string()]);
    let login = Login::with_token(server.edge_token("edge-1"));
    Client::connect(Arc::new(settings), login).await.unwrap()
}

/// Sends a grab for each user without waiting; the results by user, and what was pushed in between.
async fn grab_all(
    edge: &mut Raw,
    rain: u32,
    users: &[String],
) -> (HashMap<String, GrabResult>, Vec<InboxMessage>) {
    let mut asked = HashMap::new();
    for user in users {
        let grab = Grab {
            rain_id: rain,
            user: user.clone(),
            ..Grab::default()
        };
        asked.insert(edge.send(Request::Grab(grab)).await, user.clone());
    }
    let (mut results, mut pushed) = (HashMap::new(), vec![]);
    while results.len() < users.len() {
        let frame = edge.receive().await.expect("the session lives on");
        match frame.message.unwrap() {
            Message::GrabResult(result) => {
                let user = asked.remove(&frame.request_id).expect("one answer each");
                results.insert(user, result);
            }
            Message::InboxMessage(message) => pushed.push(message),
            other => panic!("{other:?}"),
        }
    }
    (results, pushed)
}

#[tokio::test]
async fn an_edge_session_grabs_for_many_users_and_is_told_of_their_credits() {
    let server = Server::start(&["gateway.workers=2"]);
    let rain = server.open_rain(300, 30_000).await;
    let mut edge = Raw::edge(&server, "edge-1").await;
    let mut bystander = Raw::edge(&server, "edge-2").await;
    let users: Vec<String> = (0..400).map(|n| format!("user-{n}")).collect();
    let (results, mut pushed) = grab_all(&mut edge, rain.get(), &users).await;
    let won: HashMap<&str, u64> = results
        .iter()
        .filter(|(_, result)| result.outcome() == Outcome::Won)
        .map(|(user, result)| (user.as_str(), result.packet_id))
        .collect();
    let packets: HashSet<u64> = won.values().copied().collect();
    assert!(won.len() > 200, "{}", won.len());
    assert_eq!(packets.len(), won.len());

    while pushed.len() < won.len() {
        match edge.receive().await.unwrap().message.unwrap() {
            Message::InboxMessage(message) => pushed.push(message),
            other => panic!("{other:?}"),
        }
    }
    let told: HashMap<&str, u64> = pushed
        .iter()
        .map(|message| match &message.contents {
            Some(Contents::PacketCredited(credited)) => (message.user.as_str(), credited.packet_id),
            None => panic!("{message:?}"),
        })
        .collect();
    assert_eq!(told, won, "each user's own credit, once");

    // A repeat, on this connection or another, finds what the user has.
    let some = &users[..50];
    let (again, _) = grab_all(&mut edge, rain.get(), some).await;
    let (elsewhere, _) = grab_all(&mut bystander, rain.get(), some).await;
    for user in some {
        if let Some(packet) = won.get(user.as_str()) {
            for repeat in [&again[user], &elsewhere[user]] {
                assert_eq!(repeat.outcome(), Outcome::AlreadyWon);
                assert_eq!(repeat.packet_id, *packet);
            }
        }
    }

    // The inbox of whom it names, and of nobody else.
    let (user, packet) = won.iter().next().unwrap();
    let asked = Inbox {
        user: (*user).to_owned(),
        ..Inbox::default()
    };
    let Message::InboxPage(page) = edge.ask(Request::Inbox(asked)).await else {
        panic!("no page")
    };
    let Some(Contents::PacketCredited(credited)) = &page.messages[0].contents else {
        panic!("{page:?}")
    };
    assert_eq!(credited.packet_id, *packet);
    // It is the same user who comes with a phone.
    let mut phone = Raw::user(&server, user).await;
    assert_eq!(phone.grab(rain.get()).await.packet_id, *packet);
}

/// However many wait, a lane judges by the newest record of the rain.
#[tokio::test]
async fn a_crowd_that_never_pauses_is_told_that_the_rain_is_sold_out() {
    let server = Server::start(&["store.managed_nodes=1"]);
    let one_bucket = NewRain {
        buckets: Some(1),
        ..new_rain(10, 1_000)
    };
    let rain = server.ready(&one_bucket).await;
    server.admin().open_rain(rain).await.unwrap();
    let rain = rain.get();
    let mut edge = Raw::edge(&server, "edge-1").await;
    let mut next = 0;
    let mut ask = async |edge: &mut Raw| {
        next += 1;
        let grab = Grab {
            rain_id: rain,
            user: format!("user-{next}"),
            ..Grab::default()
        };
        edge.send(Request::Grab(grab)).await;
    };
    for _ in 0..2_000 {
        ask(&mut edge).await;
    }
    let sold_out = async {
        loop {
            match edge.receive().await.unwrap().message.unwrap() {
                Message::GrabResult(result) if result.outcome() == Outcome::SoldOut => return,
                Message::GrabResult(_) => ask(&mut edge).await,
                _ => {}
            }
        }
    };
    let told = tokio::time::timeout(PATIENCE, sold_out).await;
    told.expect("the rain is sold out, and nobody is told");
}

/// Batches of one bucket follow one another, and only what may still grow waits.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_batch_does_not_wait_for_the_answer_to_the_one_before() {
    let node = Redis::fit().await;
    let link = Proxy::start(node.port).await;
    let nodes = format!("store.nodes=[\"redis://127.0.0.1:{}\"]", link.port);
    let server = Server::start(&[
        "store.topology=nodes",
        &nodes,
        // The answers do not come: nothing is given up for that while the test runs.
        "store.call_timeout_ms=60000",
        "settle.lease_ms=300000",
        "steward.lease_ms=100000",
    ]);
    let one_bucket = NewRain {
        buckets: Some(1),
        ..new_rain(601, 60_100)
    };
    let rain = server.ready(&one_bucket).await;
    server.admin().open_rain(rain).await.unwrap();
    let rain = rain.get();
    let mut edge = Raw::edge(&server, "edge-1").await;
    let users: Vec<String> = (0..600).map(|n| format!("user-{n}")).collect();
    let winners = async || {
        let keys = node.ask(&["KEYS", "hb:*:winners"]).await?;
        let keys: Vec<String> = redis::from_redis_value(keys).ok()?;
        let count = node.ask(&["HLEN", keys.first()?]).await?;
        redis::from_redis_value::<u64>(count).ok()
    };

    // The way to the node is open, and then the answers stay away.
    edge.grab_as(rain, "first").await;
    link.cut(Cut::Answers);
    let unanswered = grab_all(&mut edge, rain, &users);
    let seen = async {
        eventually("a second batch behind the first", async || {
            (winners().await? > 1 + 256).then_some(())
        })
        .await;
        link.cut(Cut::Nothing);
    };
    let ((first, _), ()) = tokio::join!(unanswered, seen);
    let unknown = |result: &&GrabResult| result.outcome() == Outcome::Retry;
    assert!(first.values().filter(unknown).count() > 256);
    // Whoever lost an answer finds the packet.
    let again = eventually("everybody to have a packet", async || {
        let (again, _) = grab_all(&mut edge, rain, &users).await;
        let has_one = |result: &GrabResult| result.packet_id > 0;
        again.values().all(has_one).then_some(again)
    })
    .await;
    let packets: HashSet<u64> = again.values().map(|result| result.packet_id).collect();
    assert_eq!(packets.len(), users.len());
}

#[tokio::test]
async fn who_may_name_a_user_must_and_who_may_not_must_not() {
    let server = Server::start(&[]);
    let rain = server.open_rain(10, 1_000).await.get();
    let mut anna = Raw::user(&server, "anna").await;
    let mut edge = Raw::edge(&server, "edge-1").await;
    // Not even the session's own user.
    for named in ["ben", "anna", "two words"] {
        let refused = anna.grab_as(rain, named).await;
        assert_eq!(refused.outcome(), Outcome::UserNotAllowed, "{named}");
    }
    assert_eq!(edge.grab(rain).await.outcome(), Outcome::UserMissing);
    for bad in ["two words", "{tag}", &"x".repeat(65)] {
        let refused = edge.grab_as(rain, bad).await;
        assert_eq!(refused.outcome(), Outcome::BadRequest, "{bad}");
    }
    let inbox = |user: &str| {
        Request::Inbox(Inbox {
            user: user.into(),
            ..Inbox::default()
        })
    };
    for answer in [
        anna.ask(inbox("ben")).await,
        edge.ask(inbox("")).await,
        edge.ask(inbox("two words")).await,
    ] {
        let Message::Refused(refused) = answer else {
            panic!("{answer:?}")
        };
        assert_eq!(refused.code(), CloseCode::UserWrong);
    }
    // Both sessions go on.
    assert_eq!(anna.grab(rain).await.outcome(), Outcome::Won);
    assert_eq!(edge.grab_as(rain, "ben").await.outcome(), Outcome::Won);
    assert_eq!(
        edge.grab_as(rain, "anna").await.outcome(),
        Outcome::AlreadyWon
    );
    // An edge session's own name is nobody's who can win.
    assert_eq!(edge.grab_as(rain, "edge-1").await.outcome(), Outcome::Won);
}

#[tokio::test]
async fn an_edge_session_has_limits_of_its_own_and_beyond_them_is_busy() {
    let server = Server::start(&[
        "gateway.in_flight_max=2",
        "gateway.edge_in_flight_max=64",
        "store.managed_nodes=1",
    ]);
    let rain = server.open_rain(2_000, 20_000).await;
    let mut edge = Raw::edge(&server, "edge-1").await;
    let mut frames = bytes::BytesMut::new();
    for n in 0..1_000u64 {
        let grab = Grab {
            rain_id: rain.get(),
            user: format!("user-{n}"),
            ..Grab::default()
        };
        let frame = hongbao::wire::ClientFrame {
            request_id: 1_000 + n,
            request: Some(Request::Grab(grab)),
        };
        hongbao::wire::frame::put(&frame, &mut frames);
    }
    edge.bytes(&frames).await;
    let mut outcomes: HashMap<Outcome, u32> = HashMap::new();
    while outcomes.values().sum::<u32>() < 1_000 {
        if let Message::GrabResult(result) = edge.receive().await.unwrap().message.unwrap() {
            *outcomes.entry(result.outcome()).or_default() += 1;
            assert_eq!(result.outcome() == Outcome::Busy, result.retry_after_ms > 0);
        }
    }
    let (won, busy) = (outcomes[&Outcome::Won], outcomes[&Outcome::Busy]);
    assert!(won >= 64 && won + busy == 1_000, "{outcomes:?}");
    let metrics = server.metrics().await;
    let full = "hongbao_in_flight_full_total{session=\"edge\"}";
    assert!(metrics.contains(&format!("{full} {busy}\n")), "{metrics}");
    assert!(metrics.contains("hongbao_edge_sessions 1\n"), "{metrics}");
}

#[tokio::test]
async fn the_client_library_has_thousands_of_grabs_in_flight_and_learns_every_outcome() {
    let mut server = Server::start(&["gateway.lane_queue_max=1000"]);
    let rain = server.open_rain(2_000, 200_000).await;
    let (client, mut events) = edge_client(&server).await;
    let users: Vec<UserId> = (0..3_000)
        .map(|n| UserId::new(&format!("user-{n}")).unwrap())
        .collect();
    let grabs: FuturesUnordered<_> = users
        .iter()
        .map(|user| async { (user.clone(), client.grab_for(user, rain).await.unwrap()) })
        .collect();
    let replies: Vec<_> = grabs.collect().await;
    let mut won = HashMap::new();
    for (user, reply) in &replies {
        if let Some(packet) = reply.packet {
            assert_eq!(won.insert(user.clone(), packet), None);
        }
    }
    assert!(won.len() > 1_900, "{} of 2000 packets", won.len());
    let mut told = HashMap::new();
    while told.len() < won.len() {
        if let Event::UserCredited { user, credited, .. } = events.next().await.unwrap() {
            told.insert(user, credited.packet_id);
        }
    }
    assert!(
        won.iter()
            .all(|(user, packet)| told[user] == packet.id.get())
    );

    // The gateway dies and comes back: what was won is found again.
    server.kill();
    let server = server.restart();
    let (user, packet) = won.iter().next().unwrap();
    let again = client.grab_for(user, rain).await.unwrap();
    assert_eq!(again.packet, Some(*packet));
    let page = client.inbox_of(user, 0, 10).await.unwrap();
    assert_eq!(page.messages.len(), 1);
    drop(server);
}

/// Who came back and asked again was told of the packet, and waited for its credit for ever: at first everywhere, then still on a worker that had
/// never had an edge session before.
#[tokio::test]
async fn an_edge_session_that_asks_again_after_the_credit_is_told_of_it_once() {
    let server = Server::start(&["store.managed_nodes=1", "gateway.workers=2"]);
    let rain = server.open_rain(10, 1_000).await.get();
    let credited = async |edge: &mut Raw| match edge.receive().await.unwrap().message.unwrap() {
        Message::InboxMessage(message) => match message.contents.unwrap() {
            Contents::PacketCredited(credited) => (message.user, credited.packet_id),
        },
        other => panic!("{other:?}"),
    };
    let mut lost = Raw::edge(&server, "edge-1").await;
    let won = lost.grab_as(rain, "anna").await;
    assert_eq!(won.outcome(), Outcome::Won);
    let anna = ("anna".to_owned(), won.packet_id);
    assert_eq!(credited(&mut lost).await, anna);
    drop(lost);

    // The kernel chooses the worker: one in two thousand of these runs meets only that of the first.
    for _ in 0..12 {
        let mut back = Raw::edge(&server, "edge-1").await;
        for times in 0..2 {
            let again = back.grab_as(rain, "anna").await;
            assert_eq!(
                (again.outcome(), again.packet_id),
                (Outcome::AlreadyWon, won.packet_id)
            );
            if times == 0 {
                assert_eq!(credited(&mut back).await, anna);
            }
        }
        let ping = back.send(Request::Ping(Ping {})).await;
        assert_eq!(back.receive().await.unwrap().request_id, ping, "told once");
    }
}
