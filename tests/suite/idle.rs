//! Rains in which nothing happens: what they cost a node, and how soon it is seen that something does.

use std::time::{Duration, Instant};

use hongbao::clock::now_ms;
use hongbao::rain::{RainId, State};
use hongbao::store::bucket::GateAnswer;
use hongbao::store::keys;
use redis::aio::MultiplexedConnection;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::support::bench::Bench;
use crate::support::eventually;
use crate::support::server::{Server, new_rain};
use crate::support::wire::{Raw, final_outcome};

/// Of each kind of opening.
const RAINS: u32 = 12;
/// Commands a second of a rain with one bucket, those of scripts among them: it was 600, and is 13 when all rests are as long as they get.
const COMMANDS_MAX: f64 = 20.0;
/// Half of the longest rest of a bucket: whoever had to wait for its end would be later half of the time.
const PROMPT: Duration = Duration::from_millis(2_500);

async fn node_of(server: &Server) -> MultiplexedConnection {
    let url = format!("redis+unix://{}", server.addresses.nodes[0]);
    let client = redis::Client::open(url).unwrap();
    client.get_multiplexed_async_connection().await.unwrap()
}

/// How many commands the node has run, also inside of scripts.
async fn commands(node: &mut MultiplexedConnection) -> u64 {
    let stats: String = redis::cmd("INFO")
        .arg("commandstats")
        .query_async(node)
        .await
        .unwrap();
    let calls = |line: &str| -> Option<u64> {
        let (_, rest) = line.split_once(":calls=")?;
        rest.split(',').next()?.parse().ok()
    };
    stats.lines().filter_map(calls).sum()
}

/// Anna wins a packet and is paid.
async fn is_paid_soon(server: &Server, rain: RainId) {
    let mut anna = Raw::user(server, "anna").await;
    final_outcome(&mut anna, rain.get()).await;
    let won = Instant::now();
    server
        .until(rain, |rain| {
            rain.live.is_some_and(|live| live.credited_count == 1)
        })
        .await;
    assert!(won.elapsed() < PROMPT, "paid {:?} later", won.elapsed());
}

/// Settlers used to ask every bucket of every rain for claims 50 times a second each, a day before anybody could win there.
#[tokio::test]
async fn rains_that_wait_cost_their_node_little_and_are_at_full_pace_when_they_open() {
    let server = Server::start(&["store.managed_nodes=1"]);
    let opens_at_ms = now_ms() + 86_400_000;
    let mut by_operator = vec![];
    for opens_at_ms in [None, Some(opens_at_ms)] {
        for _ in 0..RAINS {
            let mut rain = new_rain(32, 3_200);
            rain.opens_at_ms = opens_at_ms;
            by_operator.push(server.ready(&rain).await);
        }
    }
    let mut soon = new_rain(32, 3_200);
    let opens_at_ms = now_ms() + 12_000;
    soon.opens_at_ms = Some(opens_at_ms);
    let by_itself = server.ready(&soon).await;

    let mut node = node_of(&server).await;
    let (mut last, mut at) = (commands(&mut node).await, Instant::now());
    let rains = f64::from(2 * RAINS + 1);
    eventually("rains that cost little", async || {
        tokio::time::sleep(Duration::from_millis(500)).await; // it is a rate that is looked at
        let (before, since) = (last, at);
        (last, at) = (commands(&mut node).await, Instant::now());
        let rate = (last - before) as f64 / since.elapsed().as_secs_f64() / rains;
        (rate < COMMANDS_MAX).then_some(())
    })
    .await;

    for rain in [by_operator[0], by_operator[RAINS as usize]] {
        server.admin().open_rain(rain).await.unwrap();
        is_paid_soon(&server, rain).await;
    }
    server
        .until(by_itself, |rain| rain.state == State::Open)
        .await;
    let late = now_ms() - opens_at_ms;
    assert!(late < PROMPT.as_millis() as i64, "open {late} ms late");
    is_paid_soon(&server, by_itself).await;
}

/// A bucket whose claims are all settled may rest; those that a person takes back are not to wait for that.
#[tokio::test]
async fn settlers_are_told_of_dead_letters_that_are_taken_back() {
    let bench = Bench::new(2).await;
    let rain = bench.open(100, 10_000).await;
    bench.grab(&rain, "anna", 1).await;
    let mut held = None;
    for bucket in bench.buckets(&rain) {
        let lease = bucket.lease(None, 60_000, 1, 10).await.unwrap();
        assert_eq!(lease.under_way, !lease.claims.is_empty());
        if lease.under_way {
            held = Some((bucket, lease));
        }
    }
    let (bucket, mut lease) = held.unwrap();
    let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
    let mut news = bench.store.watch_rains(&tasks, stop.clone());
    let packet = lease.claims[0].claim.packet.id.to_string();
    // Again until the listener is at work.
    eventually("news of the rain", async || {
        let letter = (lease.claims[0].claim.clone(), "conflict: a test".into());
        let buried = bucket.bury(lease.deadline_ms, None, &[letter]).await;
        assert_eq!(buried.unwrap(), 1);
        let taken = bucket.requeue(None, std::slice::from_ref(&packet)).await;
        assert_eq!(taken.unwrap(), 1);
        lease = bucket.lease(None, 60_000, 1, 10).await.unwrap();
        news.try_recv().ok().filter(|told| *told == rain.id)
    })
    .await;
    stop.cancel();
}

/// Each gate is told every second where it stands: that used to be a write each time, which went into the node's file and to its replicas.
#[tokio::test]
async fn a_gate_that_is_told_the_same_again_is_not_written() {
    let bench = Bench::new(1).await;
    let rain = bench.ready(100, 10_000).await;
    let bucket = &bench.buckets(&rain)[0];
    let written = async || bench.nodes[0].info("rdb_changes_since_last_save").await;
    let chunks = rain.parts.loaded_chunks();
    let before = written().await;
    let tell = async |paused, version| {
        let told = bucket.set_gate(chunks, paused, &rain.window, version).await;
        assert_eq!(told.unwrap(), GateAnswer::Set);
        written().await != before
    };
    assert!(!tell(false, rain.version).await);
    assert!(tell(true, rain.version).await, "it is paused");
    let before = written().await;
    let again = bucket.set_gate(chunks, true, &rain.window, rain.version);
    assert_eq!(again.await.unwrap(), GateAnswer::Set);
    assert_eq!(written().await, before);
    assert!(tell(true, rain.version + 1).await, "another version");
}

/// Where nothing happens no call fails: nobody would know of a node's end before somebody has a claim there, or a step to take.
#[tokio::test]
async fn those_who_only_listen_to_a_node_know_of_its_end() {
    let mut bench = Bench::new(1).await;
    bench.ready(100, 10_000).await;
    let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
    let mut news = bench.store.watch_rains(&tasks, stop.clone());
    eventually("a listener", async || {
        bench.nodes[0]
            .call(&["PUBLISH", keys::RAIN_CHANNEL, "7"])
            .await;
        news.try_recv().ok()
    })
    .await;
    assert!(bench.store.link(0).peer().is_some());
    bench.nodes[0].kill();
    eventually("the connection to be given up", async || {
        bench.store.link(0).peer().is_none().then_some(())
    })
    .await;
    stop.cancel();
}
