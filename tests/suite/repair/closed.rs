//! Nobody who may have won is told that the rain is over, and whoever has not won is told so in the end.

use std::collections::HashSet;

use hongbao::rain::{RainId, State};
use hongbao::steward::repair::Repair;
use hongbao::store::bucket_of;
use hongbao::wire::Outcome;
use redis::Value;

use super::{assert_paid, close, finished, settle_all, tap, users, users_of};
use crate::support::bench::Bench;
use crate::support::eventually;
use crate::support::redis::{Redis, flags};
use crate::support::server::Server;
use crate::support::wire::{Raw, final_outcome};

/// The gates that people meet who have not won.
async fn gates(bench: &Bench, rain: &hongbao::rain::Rain, users: &[String]) -> HashSet<String> {
    let (wins, gates) = tap(bench, rain, users).await;
    assert!(wins.is_empty(), "{wins:?}");
    gates
}

fn only(gate: &str) -> HashSet<String> {
    HashSet::from([gate.to_owned()])
}

/// Somebody of the first of two buckets.
fn of_bucket_0(rain: RainId, prefix: &str) -> String {
    let mut names = (0..).map(|n| format!("{prefix}-{n}"));
    let own = |name: &String| bucket_of(rain, name, 2) == 0;
    names.find(own).unwrap()
}

/// What the gates of a node say.
async fn states(node: &Redis) -> Vec<String> {
    let keys = node.done(&["KEYS", "hb:{*}:gate"]).await;
    let keys: Vec<String> = redis::from_redis_value(keys).unwrap();
    let mut states = vec![];
    for key in keys {
        if let Value::BulkString(state) = node.done(&["HGET", &key, "state"]).await {
            states.push(String::from_utf8(state).unwrap());
        }
    }
    states
}

/// The steward shut the empty bucket, and its gate said CLOSED to a user whom the ledger had paid; the session kept that for good.
#[tokio::test(flavor = "multi_thread")]
async fn a_paid_winner_hears_retry_until_the_bucket_is_repaired_and_then_of_the_packet() {
    let mut nodes = [Redis::fit().await, Redis::fit().await];
    let flags = flags(&nodes.each_ref());
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let server = Server::start(&flags);
    let rain = server.open_rain(100, 10_000).await;
    let (anna, ben) = (of_bucket_0(rain, "anna"), of_bucket_0(rain, "ben"));
    let won = Raw::user(&server, &anna).await.grab(rain.get()).await;
    assert_eq!(won.outcome(), Outcome::Won);
    server.until_settled(rain).await;
    server.admin().close_rain(rain).await.unwrap();
    let told = final_outcome(&mut Raw::user(&server, &ben).await, rain.get()).await;
    assert_eq!(told.outcome(), Outcome::Closed);

    // The other node is away: nothing can be repaired.
    nodes[1].kill();
    nodes[0].restart_empty().await;
    eventually("the steward to shut what is there", async || {
        (states(&nodes[0]).await == ["closed"]).then_some(())
    })
    .await;
    let mut sessions = [
        Raw::user(&server, &anna).await,
        Raw::user(&server, &ben).await,
    ];
    for session in &mut sessions {
        for _ in 0..10 {
            let outcome = session.grab(rain.get()).await.outcome();
            assert_eq!(outcome, Outcome::Retry);
        }
    }

    nodes[1].restart().await;
    let [mut asked_before, mut stranger] = sessions;
    let found = final_outcome(&mut asked_before, rain.get()).await;
    assert_eq!(found.outcome(), Outcome::AlreadyWon);
    assert_eq!(
        (found.packet_id, found.cents),
        (won.packet_id, won.cents),
        "the packet that was won first"
    );
    let told = final_outcome(&mut stranger, rain.get()).await;
    assert_eq!(told.outcome(), Outcome::Closed);
}

#[tokio::test]
async fn a_rain_that_closes_while_a_bucket_is_suspect_is_over_there_when_it_is_repaired() {
    let mut bench = Bench::new(2).await;
    let rain = bench.open(400, 40_000).await;
    let before = bench.nodes[0].aof_len();
    let (told, _) = tap(&bench, &rain, &users("u", 100)).await;
    settle_all(&bench, &rain).await;
    bench.nodes[0].roll_back(before).await;
    bench.nodes[1].kill();
    let strangers = users_of(&rain, 0, 2, "late", 5);
    eventually("the node", async || {
        (gates(&bench, &rain, &strangers).await == only("Suspect")).then_some(())
    })
    .await;
    close(&bench, &rain).await;
    for _ in 0..3 {
        assert!(bench.advance(rain.id).await.is_err(), "a node is away");
        assert_eq!(states(&bench.nodes[0]).await, ["closed"]);
        assert_eq!(gates(&bench, &rain, &strangers).await, only("Suspect"));
    }

    bench.nodes[1].restart().await;
    finished(&bench, &rain).await;
    assert_eq!(gates(&bench, &rain, &strangers).await, only("Closed"));
    let (again, _) = tap(&bench, &rain, &users("u", 100)).await;
    assert_eq!(again, told);
    assert_paid(&bench, &rain, &told).await;
}

/// Nobody repairs it, and nobody has to.
#[tokio::test]
async fn a_rain_that_was_never_loaded_is_over_on_whatever_process_has_the_bucket() {
    let mut bench = Bench::new(2).await;
    let rain = bench.created(3_000, 300_000).await;
    // One bucket has begun, on a process that is gone; of the other there is nothing.
    let bucket = bench.buckets(&rain)[0].clone();
    assert_eq!(bucket.load(0, &[]).await.unwrap(), Some(1));
    bench.nodes[0].restart().await;
    close(&bench, &rain).await;
    finished(&bench, &rain).await;
    assert_eq!(gates(&bench, &rain, &users("u", 20)).await, only("Closed"));
    assert_eq!(bench.balance("sponsor:acme").await, 300_000);
}

/// A week long, until its keys expire, with no steward that would repair it.
#[tokio::test]
async fn a_finished_rain_is_over_after_a_restart_as_long_as_all_winners_are_there() {
    let mut bench = Bench::new(1).await;
    let rain = bench.open(100, 10_000).await;
    let (told, _) = tap(&bench, &rain, &users("u", 10)).await;
    settle_all(&bench, &rain).await;
    close(&bench, &rain).await;
    finished(&bench, &rain).await;
    bench.nodes[0].restart().await;
    let strangers = users("late", 5);
    eventually("the node", async || {
        (gates(&bench, &rain, &strangers).await == only("Closed")).then_some(())
    })
    .await;
    let (again, _) = tap(&bench, &rain, &users("u", 10)).await;
    assert_eq!(again, told);

    // A slot that moves takes its keys one after the other: the gate may be there and the winners lost.
    let bucket = bench.buckets(&rain)[0].clone();
    let forget = ["HDEL", &bucket.keys.winners, "u-3"];
    assert_eq!(bench.nodes[0].call(&forget).await, Value::Int(1));
    let lost = &users("u", 10)[3..4];
    assert_eq!(gates(&bench, &rain, lost).await, only("Suspect"));
}

/// It used to be finished between the look that found the bucket suspect and its repair, and would have stayed suspect.
#[tokio::test]
async fn a_rain_is_not_finished_while_a_bucket_is_suspect() {
    let mut bench = Bench::new(2).await;
    let rain = bench.open(100, 10_000).await;
    tap(&bench, &rain, &users("u", 10)).await;
    settle_all(&bench, &rain).await;
    close(&bench, &rain).await;
    assert_eq!(bench.advance(rain.id).await, Ok(State::Refunded));
    bench.nodes[1].restart().await;
    // A steward that looks at once, and one that still trusts what it was told.
    let other = bench.other_steward();
    eventually("the node", async || {
        other.advance(bench.rain(rain.id).await).await.ok()
    })
    .await;
    bench.advance(rain.id).await.unwrap();
    assert_eq!(bench.rain(rain.id).await.state, State::Refunded);
    finished(&bench, &rain).await;
    assert_eq!(
        gates(&bench, &rain, &users("late", 20)).await,
        only("Closed")
    );
}

/// A node that had forgotten the close gave packets that were refunded, from the repair until the steward shut it again.
#[tokio::test]
async fn a_repair_shuts_a_gate_that_has_forgotten_that_the_rain_is_over() {
    let mut bench = Bench::new(1).await;
    let rain = bench.open(100, 10_000).await;
    let (told, _) = tap(&bench, &rain, &users("u", 10)).await;
    settle_all(&bench, &rain).await;
    let before = bench.nodes[0].aof_len();
    close(&bench, &rain).await;
    assert_eq!(bench.advance(rain.id).await, Ok(State::Refunded));
    bench.nodes[0].roll_back(before).await;
    // By hand, so that nothing is shut before it.
    let refunded = bench.rain(rain.id).await;
    eventually("the repair", async || {
        let repaired = bench.steward.repair(&refunded).await;
        matches!(repaired, Ok(Repair::Done(_))).then_some(())
    })
    .await;
    assert_eq!(
        gates(&bench, &rain, &users("late", 5)).await,
        only("Closed")
    );
    finished(&bench, &rain).await;
    assert_paid(&bench, &rain, &told).await;
}
