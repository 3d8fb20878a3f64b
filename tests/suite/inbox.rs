//! After the credit: one message for each packet in its user's inbox, whoever dies in between, and a push to whoever is online.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use hongbao::client::{BackoffBounds, Client, Event, Login, Settings};
use hongbao::rain::{Cents, Claim, Packet, Rain, RainId, UserId};
use hongbao::store::Store;
use hongbao::store::inbox::{Contents, Credited, Draft, Keep, Message, Place};
use hongbao::wire::client_frame::Request;
use hongbao::wire::inbox_message::Contents as Told;
use hongbao::wire::server_frame::Message as Reply;
use hongbao::wire::{Hello, Inbox, InboxMessage, InboxPage, Outcome, PacketCredited, Ping};

use crate::support::bench::Bench;
use crate::support::eventually;
use crate::support::redis::{Redis, store};
use crate::support::server::Server;
use crate::support::wire::{Raw, final_outcome};

const KEEP: Keep = Keep {
    ms: 600_000,
    messages: 500,
};

fn user(name: &str) -> UserId {
    UserId::new(name).unwrap()
}

fn packet(index: u32) -> Packet {
    Packet {
        id: RainId::new(7).unwrap().packet(index),
        cents: Cents(888),
    }
}

/// Puts a message into a user's inbox without telling anyone.
async fn write(store: &Store, name: &str, index: u32) -> Place {
    let draft = Draft {
        user: user(name),
        contents: Contents::PacketCredited {
            packet: packet(index),
        },
    };
    let written = store.write_messages(&[draft], KEEP, None).await;
    written[0].clone().unwrap().unwrap()
}

async fn messages(store: &Store, user: &UserId) -> Vec<Message> {
    store.read_inbox(user, 0, 100).await.unwrap().messages
}

fn credited(message: &InboxMessage) -> &PacketCredited {
    let Some(Told::PacketCredited(credited)) = &message.contents else {
        panic!("{message:?}")
    };
    credited
}

async fn page(raw: &mut Raw, after_message_id: u64, limit: u32) -> InboxPage {
    let asked = Inbox {
        after_message_id,
        limit,
        ..Inbox::default()
    };
    match raw.ask(Request::Inbox(asked)).await {
        Reply::InboxPage(page) => page,
        other => panic!("{other:?}"),
    }
}

/// The next push of a message; others are passed over.
async fn pushed(raw: &mut Raw) -> InboxMessage {
    loop {
        if let Some(Reply::InboxMessage(message)) = raw.receive().await.unwrap().message {
            return message;
        }
    }
}

/// A server on these nodes whose gateway hears of credits on all of them.
async fn server_on(nodes: &[&Redis], more: &[&str]) -> Server {
    let urls: Vec<String> = nodes.iter().map(|node| node.url()).collect();
    let urls = format!("store.nodes={urls:?}");
    let settings = [&["store.topology=nodes", urls.as_str()], more].concat();
    let server = Server::start(&settings);
    for node in nodes {
        listens(node).await;
    }
    server
}

async fn listens(node: &Redis) {
    eventually("a gateway to listen", async || {
        let reply = node.call(&["PUBSUB", "NUMSUB", "hb:credited"]).await;
        let (_, listeners): (String, u32) = redis::from_redis_value(reply).unwrap();
        (listeners > 0).then_some(())
    })
    .await;
}

// ---- the push ----

#[tokio::test]
async fn a_credit_is_pushed_to_every_session_of_its_user_and_to_nobody_else() {
    let (a, b) = (Redis::fit().await, Redis::fit().await);
    let server = server_on(&[&a, &b], &["gateway.workers=2"]).await;
    let rain = server.open_rain(100, 10_000).await;
    let mut anna = vec![];
    for _ in 0..4 {
        anna.push(Raw::user(&server, "anna").await);
    }
    let mut ben = Raw::user(&server, "ben").await;
    let won = final_outcome(&mut anna[0], rain.get()).await;
    assert_eq!(won.outcome(), Outcome::Won);
    let mut ids = vec![];
    for session in &mut anna {
        let message = pushed(session).await;
        let told = credited(&message);
        assert_eq!(
            (told.rain_id, told.packet_id, told.cents),
            (rain.get(), won.packet_id, won.cents)
        );
        assert!((told.credited_at_ms - hongbao::clock::now_ms()).abs() < 60_000);
        assert_eq!(message.previous_message_id, 0, "it is the first");
        ids.push(message.message_id);
    }
    ids.dedup();
    let [id] = ids[..] else {
        panic!("different ids for one message: {ids:?}")
    };
    let inbox = page(&mut anna[1], 0, 0).await;
    assert_eq!((inbox.messages.len(), inbox.more), (1, false));
    assert_eq!(inbox.messages[0].message_id, id);
    assert_eq!(credited(&inbox.messages[0]).cents, won.cents);
    // What ben is told next is about ben.
    let won = final_outcome(&mut ben, rain.get()).await;
    assert_eq!(credited(&pushed(&mut ben).await).packet_id, won.packet_id);
}

// ---- crashes and outages ----

/// Every claim of the rain, as the buckets' lists hold them.
async fn claims(bench: &Bench, rain: &Rain) -> Vec<Claim> {
    let mut claims = vec![];
    for bucket in bench.buckets(rain) {
        let waiting = bucket.claims_page(0, 10_000).await.unwrap();
        claims.extend(waiting.into_iter().map(Result::unwrap));
    }
    claims
}

async fn until_settled(bench: &Bench, rain: &Rain) {
    eventually("a settled rain", async || {
        for bucket in bench.buckets(rain) {
            if bucket.census().await.ok()?.unsettled() > 0 {
                return None;
            }
        }
        Some(())
    })
    .await;
}

async fn assert_one_message_each(bench: &Bench, claims: &[Claim]) -> HashMap<UserId, u64> {
    let mut ids = HashMap::new();
    for claim in claims {
        let messages = messages(&bench.store, &claim.user).await;
        let [message] = &messages[..] else {
            panic!("{}: {messages:?}", claim.user)
        };
        let Some(Contents::PacketCredited { packet }) = message.contents else {
            panic!("{message:?}")
        };
        assert_eq!(packet, claim.packet);
        ids.insert(claim.user.clone(), message.id);
    }
    ids
}

#[tokio::test]
async fn a_crash_before_or_after_the_message_leaves_one_message_for_each_packet() {
    let bench = Bench::new(2).await;
    let rain = bench.open(300, 30_000).await;
    bench.grab(&rain, "user", 200).await;
    let claims = claims(&bench, &rain).await;
    assert!(claims.len() > 150);
    // The settler of some died between the commit and the message.
    bench.ledger.credit(&claims[..50], 5).await.unwrap();
    bench.settling(until_settled(&bench, &rain)).await;
    let ids = assert_one_message_each(&bench, &claims).await;

    // The settler of all died between the message and the ack.
    for bucket in bench.buckets(&rain) {
        for claim in &claims {
            let node = &bench.nodes[bench.store.node_of(&bucket.tag)];
            let held = node
                .call(&["HEXISTS", &bucket.keys.winners, claim.user.as_str()])
                .await;
            if held == redis::Value::Int(1) {
                node.call(&["LPUSH", &bucket.keys.claims, &claim.to_string()])
                    .await;
            }
        }
    }
    assert_eq!(
        crate::inbox::claims(&bench, &rain).await.len(),
        claims.len()
    );
    bench.settling(until_settled(&bench, &rain)).await;
    assert_eq!(
        assert_one_message_each(&bench, &claims).await,
        ids,
        "the messages of before"
    );
    assert!(bench.audit(rain.id).await.balanced);
}

#[tokio::test]
async fn while_a_users_node_is_away_others_are_settled_and_nothing_is_lost() {
    let mut bench = Bench::new(2).await;
    bench.buckets = 1; // on the first node
    bench.settings.settle.retry_base = Duration::from_millis(20);
    let rain = bench.open(300, 30_000).await;
    bench.grab(&rain, "user", 200).await;
    let claims = claims(&bench, &rain).await;
    assert_eq!(claims.len(), 200);
    let bucket = bench.buckets(&rain).remove(0);
    let away = |claim: &&Claim| bench.store.node_of_user(&claim.user) == 1;
    let waiting = claims.iter().filter(away).count() as u64;
    assert!((50..150).contains(&waiting), "{waiting}");

    bench.nodes[1].kill();
    let bench = &mut bench;
    let settled = async {
        // All are paid, and those whose inbox could be written are gone; then the others have come again, in vain.
        eventually("the others to be settled", async || {
            let census = bucket.census().await.unwrap();
            (census.claims_waiting == 0 && census.unsettled() == waiting).then_some(())
        })
        .await;
    };
    bench.settling(settled).await;
    let paid = bench.ledger.credit(&claims, 9).await.unwrap();
    assert!(
        paid.iter()
            .all(|verdict| *verdict == hongbao::ledger::Verdict::Existed),
        "{paid:?}"
    );
    let reply = bench.nodes[0]
        .call(&["HGETALL", &bucket.keys.attempts])
        .await;
    let attempts: HashMap<String, String> = redis::from_redis_value(reply).unwrap();
    assert_eq!(attempts.len() as u64, waiting);
    for attempt in attempts.values() {
        assert!(
            attempt.starts_with("0:0:inbox: node 127.0.0.1:"),
            "an attempt was burnt: {attempt}"
        );
    }

    bench.nodes[1].restart().await;
    bench.settling(until_settled(bench, &rain)).await;
    assert_one_message_each(bench, &claims).await;
    let report = bench.audit(rain.id).await;
    assert!(report.balanced, "{:?}", report.differences.first());
    assert_eq!((report.credited_count, report.dead_count), (200, 0));
}

#[tokio::test]
async fn an_inbox_that_is_spoiled_ends_as_a_dead_letter_and_its_neighbours_are_told() {
    let mut bench = Bench::new(1).await;
    bench.settings.settle.retry_base = Duration::from_millis(1);
    bench.settings.settle.attempts_max = 3;
    let rain = bench.open(100, 10_000).await;
    bench.grab(&rain, "user", 40).await;
    let mut claims = claims(&bench, &rain).await;
    let victim = claims.remove(7);
    let key = format!("hb:{{u:{}}}:inbox", victim.user);
    bench.nodes[0].call(&["SET", &key, "spoiled"]).await;
    bench.settling(until_settled(&bench, &rain)).await;
    assert_one_message_each(&bench, &claims).await;
    let (_, letters) = bench.buckets(&rain)[0].dead_scan(0).await.unwrap();
    let [Ok(letter)] = &letters[..] else {
        panic!("{letters:?}")
    };
    assert_eq!((&letter.claim, letter.attempts), (&victim, 3));
    assert!(
        letter
            .reason
            .starts_with("inbox_spoiled: credited, but the user cannot be told: "),
        "{}",
        letter.reason
    );
    let paid = bench
        .ledger
        .credit(std::slice::from_ref(&victim), 9)
        .await
        .unwrap();
    assert_eq!(paid, [hongbao::ledger::Verdict::Existed]);
}

// ---- reading ----

#[tokio::test]
async fn an_inbox_is_paged_through_and_no_page_is_longer_than_a_hundred() {
    let redis = Redis::fit().await;
    let server = server_on(&[&redis], &[]).await;
    let store = store(&[&redis]).await;
    for index in 0..250 {
        write(&store, "anna", index).await;
    }
    let mut anna = Raw::user(&server, "anna").await;
    let mut packets = vec![];
    let (mut after, mut sizes) = (0, vec![]);
    loop {
        let page = page(&mut anna, after, [0, 100, 1_000][sizes.len() % 3]).await;
        assert_eq!(page.retry_after_ms, 0);
        sizes.push(page.messages.len());
        packets.extend(page.messages.iter().map(|m| credited(m).packet_id));
        after = page.messages.last().unwrap().message_id;
        if !page.more {
            break;
        }
    }
    assert_eq!(sizes, [100, 100, 50]);
    let all: Vec<u64> = (0..250).map(|index| packet(index).id.get()).collect();
    assert_eq!(packets, all);
    let one = page(&mut anna, 0, 1).await;
    assert_eq!((one.messages.len(), one.more), (1, true));
    let end = page(&mut anna, after, 10).await;
    assert_eq!((end.messages.len(), end.more), (0, false));
    let mut ben = Raw::user(&server, "ben").await;
    assert!(page(&mut ben, 0, 0).await.messages.is_empty());
}

#[tokio::test]
async fn hello_with_the_last_message_id_brings_what_was_missed_and_without_it_nothing() {
    let redis = Redis::fit().await;
    let server = server_on(&[&redis], &[]).await;
    let store = store(&[&redis]).await;
    let first = write(&store, "anna", 1).await;
    let second = write(&store, "anna", 2).await;
    for (last_message_id, missed) in [(first.id, vec![second.id]), (second.id, vec![])] {
        let mut anna = Raw::connect(&server).await;
        let hello = Hello {
            token: server.token("anna"),
            protocol: 1,
            last_message_id,
        };
        let welcome = anna.ask(Request::Hello(hello)).await;
        assert!(matches!(welcome, Reply::Welcome(_)), "{welcome:?}");
        let follows = anna.receive().await.unwrap();
        assert_eq!(follows.request_id, 0, "a push");
        let Some(Reply::InboxPage(page)) = follows.message else {
            panic!("{follows:?}")
        };
        let ids: Vec<u64> = page.messages.iter().map(|m| m.message_id).collect();
        assert_eq!((ids, page.more), (missed, false));
    }
    let mut anna = Raw::user(&server, "anna").await;
    anna.send(Request::Ping(Ping {})).await;
    let next = anna.receive().await.unwrap().message;
    assert!(matches!(next, Some(Reply::Pong(_))), "{next:?}");
}

#[tokio::test]
async fn an_inbox_whose_node_is_away_is_asked_for_again_and_others_are_read_meanwhile() {
    let (a, mut b) = (Redis::fit().await, Redis::fit().await);
    let server = server_on(&[&a, &b], &["store.probe_interval_ms=20"]).await;
    let store = store(&[&a, &b]).await;
    let on = |node| {
        (0..)
            .map(|n| format!("user-{n}"))
            .find(|name| store.node_of_user(&user(name)) == node)
    };
    let (here, there) = (on(0).unwrap(), on(1).unwrap());
    write(&store, &here, 1).await;
    let place = write(&store, &there, 2).await;
    b.kill();
    let mut there = Raw::user(&server, &there).await;
    let unread = page(&mut there, 0, 0).await;
    assert_eq!((unread.messages.len(), unread.more), (0, true));
    assert!(unread.retry_after_ms > 0);
    let mut here = Raw::user(&server, &here).await;
    assert_eq!(page(&mut here, 0, 0).await.messages.len(), 1);
    b.restart().await;
    let read = eventually("the inbox to be read", async || {
        let page = page(&mut there, 0, 0).await;
        (!page.more).then_some(page)
    })
    .await;
    assert_eq!(read.messages[0].message_id, place.id);
}

// ---- the client library ----

fn client_settings(server: &Server) -> Arc<Settings> {
    Arc::new(Settings {
        reconnect: BackoffBounds {
            first_ms: 10,
            max_ms: 200,
        },
        ..Settings::new(vec![server.gateway().to_string()])
    })
}

/// The next credit: its message id and packet index.
async fn next_credit(events: &mut hongbao::client::Events) -> (u64, u32) {
    loop {
        let event = tokio::time::timeout(crate::support::PATIENCE, events.next()).await;
        if let Event::PacketCredited {
            message_id,
            credited,
        } = event.expect("no credit is told").unwrap()
        {
            return (message_id, credited.packet_id as u32);
        }
    }
}

#[tokio::test]
async fn a_client_is_told_of_every_credit_once_through_lost_pushes_reconnects_and_restarts() {
    let redis = Redis::fit().await;
    let server = server_on(&[&redis], &[]).await;
    let store = store(&[&redis]).await;
    // What the settler publishes; everything else here is written without a word.
    let publish = async |index: u32, place: Place| {
        let claim = Claim {
            packet: packet(index),
            user: user("anna"),
        };
        store
            .publish_credited(&store.links()[0], &[Credited { claim, place }])
            .await
            .unwrap();
    };
    let login = Login::with_token(server.token("anna"));
    let (client, mut events) = Client::connect(client_settings(&server), login.clone())
        .await
        .unwrap();
    let first = write(&store, "anna", 1).await;
    publish(1, first).await;
    assert_eq!(next_credit(&mut events).await, (first.id, 1));

    write(&store, "anna", 2).await; // a push that was lost
    let third = write(&store, "anna", 3).await;
    publish(3, third).await;
    assert_eq!(next_credit(&mut events).await.1, 2, "the gap is noticed");
    assert_eq!(next_credit(&mut events).await, (third.id, 3));
    publish(3, third).await; // again: it is known

    write(&store, "anna", 4).await; // while the phone changes its network
    client.reconnect();
    let (fourth, index) = next_credit(&mut events).await;
    assert_eq!(index, 4);
    assert_eq!(client.last_message_id(), fourth);
    let all = client.inbox(0, 100).await.unwrap();
    assert_eq!(all.messages.len(), 4);
    drop(client);

    write(&store, "anna", 5).await; // while the program is not running
    let login = Login {
        last_message_id: fourth,
        ..login
    };
    let (_client, mut events) = Client::connect(client_settings(&server), login)
        .await
        .unwrap();
    assert_eq!(next_credit(&mut events).await.1, 5);
}
