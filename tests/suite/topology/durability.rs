//! What WON stands for at each level.

use hongbao::client::admin::{AdminError, NewRain};
use hongbao::rain::{Cents, Durability, RainId, State};
use hongbao::store::{Store, StoreError};
use hongbao::wire::{GrabResult, Outcome};
use redis::Value;

use super::{all_is_won_and_paid, arriving, open, start};
use crate::support::eventually;
use crate::support::proxy::{Cut, Proxy};
use crate::support::redis::{FIT, Redis, flags, settings};
use crate::support::sentinels::replica_of;
use crate::support::server::{Server, new_rain};
use crate::support::wire::{Raw, final_outcome};

/// A primary, and a replica behind a link that can be cut.
struct Pair {
    primary: Redis,
    link: Proxy,
    replica: Redis,
}

impl Pair {
    async fn start() -> Pair {
        let primary = Redis::fit().await;
        let link = Proxy::start(primary.port).await;
        let replica = replica_of(&primary.door, link.port, &[]).await;
        let pair = Pair {
            primary,
            link,
            replica,
        };
        eventually("the replica", async || {
            (pair.replica.info("master_link_status").await == "up").then_some(())
        })
        .await;
        pair
    }

    fn serve(&self, more: &[&str]) -> Server {
        let mut flags = flags(&[&self.primary]);
        flags.extend(more.iter().map(|text| (*text).to_owned()));
        start(&flags)
    }
}

/// What a node knows to be a user's win, as it is at this moment.
async fn win(node: &Redis, rain: RainId, user: &str) -> Option<String> {
    let pattern = format!("hb:{{{rain}.*:winners");
    let keys = node.done(&["KEYS", &pattern]).await;
    let keys: Vec<String> = redis::from_redis_value(keys).unwrap();
    let key = keys.first()?;
    match node.done(&["HGET", key, user]).await {
        Value::BulkString(packet) => Some(String::from_utf8(packet).unwrap()),
        _ => None,
    }
}

fn packet(result: &GrabResult) -> String {
    format!("{}:{}", result.packet_id, result.cents)
}

#[tokio::test]
async fn a_win_is_told_when_a_replica_has_it_and_not_before_whoever_asks_again() {
    let pair = Pair::start().await;
    let server = pair.serve(&["gateway.replicas_wait_ms=100"]);
    let rain = open(&server, 20, Durability::Replicas(1)).await;
    for n in 0..5 {
        let user = format!("user-{n}");
        // On a busy machine the replica may be slower than the wait: then it is RETRY first.
        let mut session = Raw::user(&server, &user).await;
        let result = final_outcome(&mut session, rain.get()).await;
        let told = result.outcome();
        assert!(
            matches!(told, Outcome::Won | Outcome::AlreadyWon),
            "{told:?}"
        );
        let there = win(&pair.replica, rain, &user).await;
        assert_eq!(there, Some(packet(&result)));
    }
    pair.link.cut(Cut::Everything);
    let mut anna = Raw::user(&server, "anna").await;
    for _ in 0..2 {
        let result = anna.grab(rain.get()).await;
        assert_eq!(result.outcome(), Outcome::Retry);
        assert_eq!(result.packet_id, 0);
    }
    let won = win(&pair.primary, rain, "anna").await.unwrap();
    assert_eq!(win(&pair.replica, rain, "anna").await, None);
    // Another gateway, whose connections have written nothing.
    let other = pair.serve(&["gateway.replicas_wait_ms=100", "server.roles=[\"gateway\"]"]);
    let mut elsewhere = Raw::user(&other, "anna").await;
    assert_eq!(elsewhere.grab(rain.get()).await.outcome(), Outcome::Retry);
    pair.link.cut(Cut::Nothing);
    for session in [&mut elsewhere, &mut anna] {
        let result = final_outcome(session, rain.get()).await;
        assert_eq!(result.outcome(), Outcome::AlreadyWon);
        assert_eq!(packet(&result), won);
        assert_eq!(win(&pair.replica, rain, "anna").await, Some(won.clone()));
    }
}

/// WAIT of Redis 7.0 covers whatever the node had written, that of 7.2 only what its own connection has written: a win that is found is
/// written again for it. Here it is seen that it is, since the tests have no 7.2.
#[tokio::test]
async fn a_repeat_that_waits_writes_its_win_again() {
    let pair = Pair::start().await;
    let server = pair.serve(&[]);
    let rain = open(&server, 20, Durability::Replicas(1)).await;
    let mut sessions = [
        Raw::user(&server, "anna").await,
        Raw::user(&server, "anna").await,
    ];
    let won = sessions[0].grab(rain.get()).await;
    server.until_settled(rain).await;
    let writes = async || {
        let stats = pair
            .primary
            .line_of(&["INFO", "commandstats"], "cmdstat_hset");
        let calls = stats.await;
        let calls = calls.strip_prefix("calls=").unwrap().split(',').next();
        calls.unwrap().parse::<u64>().unwrap()
    };
    let before = writes().await;
    let again = sessions[1].grab(rain.get()).await;
    assert_eq!(again.outcome(), Outcome::AlreadyWon);
    assert_eq!(packet(&again), packet(&won));
    assert!(writes().await > before);
}

#[tokio::test]
async fn too_few_replicas_are_refused_at_the_start_when_a_rain_is_made_and_when_it_is_opened() {
    let mut pair = Pair::start().await;
    let alone = Redis::fit().await;
    let needs = async |node: &Redis, level: &str| {
        let settings = settings(&[node]);
        let dir = tempfile::tempdir().unwrap();
        Store::open(&settings.store, dir.path(), level.parse().unwrap()).await
    };
    let refused = needs(&alone, "replicas:1").await;
    assert!(matches!(refused, Err(StoreError::Unfit { .. })));
    let refused = needs(&pair.primary, "replicas:2").await;
    let problem = refused.err().unwrap().to_string();
    assert!(
        problem.contains("has 1 replicas, durability replicas:2 needs 2: add replicas"),
        "{problem}"
    );
    assert!(needs(&pair.primary, "replicas:1").await.is_ok());

    let server = pair.serve(&[]);
    let admin = server.admin();
    admin.create_sponsor("acme").await.unwrap();
    admin.deposit("acme", Cents(2_000), "d").await.unwrap();
    let new = |replicas| NewRain {
        durability: Some(Durability::Replicas(replicas)),
        ..new_rain(10, 1_000)
    };
    let refused = |result: Result<hongbao::client::admin::Rain, AdminError>| {
        let problem = result.unwrap_err().to_string();
        assert!(problem.contains("replicas of every node"), "{problem}");
    };
    refused(admin.create_rain(&new(2)).await);
    let rain = admin.create_rain(&new(1)).await.unwrap().id;
    server.until(rain, |rain| rain.state == State::Ready).await;
    pair.replica.kill();
    eventually("the replica to be missed", async || {
        (pair.primary.info("connected_slaves").await == "0").then_some(())
    })
    .await;
    refused(admin.open_rain(rain).await);
}

/// A node that flushes before it answers.
async fn flushing() -> Redis {
    let always = FIT.iter().chain(&["--appendfsync", "always"]);
    Redis::start(&always.copied().collect::<Vec<_>>()).await
}

/// A lane whose connection met a weak node kept to what it had seen, and answered RETRY for ever.
#[tokio::test]
async fn a_node_that_is_set_right_again_gives_at_level_fsync() {
    let node = flushing().await;
    let server = start(&flags(&[&node]));
    let rain = open(&server, 20, Durability::Fsync).await;
    let mut anna = Raw::user(&server, "anna").await;
    assert_eq!(anna.grab(rain.get()).await.outcome(), Outcome::Won);
    let set = async |policy: &str| {
        node.done(&["CONFIG", "SET", "appendfsync", policy]).await;
    };
    set("everysec").await;
    // Connections made from now on find a weak node.
    node.done(&["CLIENT", "KILL", "TYPE", "normal"]).await;
    let mut bob = Raw::user(&server, "bob").await;
    eventually(
        "a grab over a connection that knows the node as weak",
        async || {
            let told = bob.grab(rain.get()).await.outcome();
            assert!(matches!(told, Outcome::Retry | Outcome::Paused), "{told:?}");
            win(&node, rain, "bob").await
        },
    )
    .await;
    set("always").await;
    let mut carol = Raw::user(&server, "carol").await;
    eventually("grabs to be given again", async || {
        (carol.grab(rain.get()).await.outcome() == Outcome::Won).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_win_outlives_every_node_at_level_fsync() {
    let mut nodes = [flushing().await, flushing().await, flushing().await];
    let server = start(&flags(&nodes.each_ref()));
    let rain = open(&server, 400, Durability::Fsync).await;
    let people = arriving(&server, rain);
    people.until_won(100).await;
    nodes.iter_mut().for_each(Redis::kill);
    for node in &mut nodes {
        node.restart().await;
    }
    all_is_won_and_paid(&server, rain, people).await;
}
