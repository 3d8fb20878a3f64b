//! Slots that move, nodes that die and are replaced.

use hongbao::rain::{Durability, RainId};
use hongbao::store::slots::slot_of;
use redis::Value;

use super::{all_is_won_and_paid, arriving, only_retry, open, start};
use crate::support::cluster::Cluster;
use crate::support::eventually;

/// All keys on a node.
async fn keys(cluster: &Cluster, node: usize) -> Vec<String> {
    let answer = cluster.nodes[node].done(&["KEYS", "*"]).await;
    redis::from_redis_value(answer).unwrap()
}

/// The slot of one of the rain's buckets on a node.
async fn bucket_slot(cluster: &Cluster, node: usize, rain: RainId) -> u16 {
    let begins = format!("hb:{{{rain}.");
    let keys = keys(cluster, node).await;
    let gate = keys
        .iter()
        .find(|key| key.starts_with(&begins) && key.ends_with(":gate"));
    slot_of(gate.expect("every node has a bucket"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_whose_slot_is_moved_key_by_key_under_taps_loses_and_doubles_nothing() {
    let cluster = Cluster::start(3, 0).await;
    let server = start(&cluster.flags());
    let rain = open(&server, 400, Durability::Memory).await;
    let people = arriving(&server, rain);
    people.until_won(60).await;
    let slot = bucket_slot(&cluster, 0, rain).await;
    cluster.begin_move(slot, 0, 1).await;
    people.until_won(120).await;
    // One after the other, so that people tap while some keys are here and some there.
    while let [key, ..] = &cluster.keys_in(slot, 0).await[..] {
        cluster.move_key(key, 0, 1).await;
        only_retry(&server, rain, 0).await;
    }
    cluster.assign(slot, 1).await;
    all_is_won_and_paid(&server, rain, people).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_joins_takes_over_all_that_another_has_while_it_rains() {
    let mut cluster = Cluster::start(3, 0).await;
    let server = start(&cluster.flags());
    let rain = open(&server, 400, Durability::Memory).await;
    let people = arriving(&server, rain);
    people.until_won(60).await;
    let new = cluster.add().await;
    cluster.until_known().await;
    cluster.until_well().await;
    // Buckets, inboxes, the list of rains, leases.
    loop {
        let keys = keys(&cluster, 0).await;
        let Some(key) = keys.first() else { break };
        let slot = slot_of(key);
        cluster.begin_move(slot, 0, new).await;
        while let [key, ..] = &cluster.keys_in(slot, 0).await[..] {
            cluster.move_key(key, 0, new).await;
        }
        cluster.assign(slot, new).await;
    }
    all_is_won_and_paid(&server, rain, people).await;
    assert!(!keys(&cluster, new).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_dies_without_a_replica_costs_its_users_retries_and_nobody_else_anything() {
    let more = [
        "--cluster-require-full-coverage",
        "no",
        "--appendfsync",
        "always",
    ];
    let mut cluster = Cluster::start_behind(Default::default(), 3, 0, &more).await;
    let server = start(&cluster.flags());
    let rain = open(&server, 400, Durability::Fsync).await;
    let people = arriving(&server, rain);
    people.until_won(60).await;
    cluster.nodes[2].kill();
    only_retry(&server, rain, 2).await;
    // The others are told that it failed, and go on.
    eventually("the failure to be known", async || {
        let failed = cluster.nodes[0].line_of(&["CLUSTER", "INFO"], "cluster_slots_fail");
        (failed.await != "0").then_some(())
    })
    .await;
    only_retry(&server, rain, 2).await;
    people.until_won(160).await;
    cluster.nodes[2].restart().await;
    all_is_won_and_paid(&server, rain, people).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_is_down_as_a_whole_answers_everybody_retry_until_it_is_up_again() {
    let always = ["--appendfsync", "always"];
    let mut cluster = Cluster::start_behind(Default::default(), 3, 0, &always).await;
    let server = start(&cluster.flags());
    let rain = open(&server, 400, Durability::Fsync).await;
    let people = arriving(&server, rain);
    people.until_won(60).await;
    cluster.nodes[2].kill();
    eventually("the cluster to be down", async || {
        let state = cluster.nodes[0].line_of(&["CLUSTER", "INFO"], "cluster_state");
        (state.await == "fail").then_some(())
    })
    .await;
    only_retry(&server, rain, 0).await;
    cluster.nodes[2].restart().await;
    all_is_won_and_paid(&server, rain, people).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_takes_over_by_order_has_a_suspect_bucket_that_is_repaired() {
    let cluster = Cluster::start(3, 1).await;
    let server = start(&cluster.flags());
    let rain = open(&server, 400, Durability::Memory).await;
    let people = arriving(&server, rain);
    people.until_won(60).await;
    let replica = cluster.replicas_of(0).next().unwrap();
    let answer = cluster.nodes[replica].done(&["CLUSTER", "FAILOVER"]).await;
    assert!(matches!(answer, Value::Okay), "{answer:?}");
    cluster.until_primary(replica).await;
    all_is_won_and_paid(&server, rain, people).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_primary_is_replaced_and_every_replicated_win_is_there() {
    let mut cluster = Cluster::start(3, 1).await;
    let server = start(&cluster.flags());
    let rain = open(&server, 400, Durability::Replicas(1)).await;
    let people = arriving(&server, rain);
    people.until_won(60).await;
    cluster.nodes[0].kill();
    let replica = cluster.replicas_of(0).next().unwrap();
    cluster.until_primary(replica).await;
    // It comes back as the replica of its successor, without which no win there is safe enough.
    cluster.nodes[0].restart().await;
    all_is_won_and_paid(&server, rain, people).await;
}
