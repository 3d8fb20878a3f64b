//! Primaries that switch, sentinels that are wrong.

use hongbao::rain::Durability;

use super::{all_is_won_and_paid, arriving, only_retry, open, start};
use crate::support::crowd::{assert_paid, crowd};
use crate::support::eventually;
use crate::support::sentinels::{Sentinels, name};

#[tokio::test(flavor = "multi_thread")]
async fn a_switch_by_order_under_taps_is_followed_and_the_bucket_repaired() {
    let nodes = Sentinels::start(3).await;
    let server = start(&nodes.flags());
    let rain = open(&server, 400, Durability::Replicas(1)).await;
    let people = arriving(&server, rain);
    people.until_won(60).await;
    nodes.sentinels[0]
        .done(&["SENTINEL", "FAILOVER", &name(0)])
        .await;
    nodes.until_switched(0, nodes.replicas[0].port).await;
    all_is_won_and_paid(&server, rain, people).await;
    assert_eq!(nodes.primaries[0].info("role").await, "slave");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_primary_is_replaced_and_comes_back_as_a_replica() {
    let mut nodes = Sentinels::start(3).await;
    // A sentinel that is down is missed by nobody.
    nodes.sentinels[0].kill();
    let server = start(&nodes.flags());
    let rain = open(&server, 400, Durability::Replicas(1)).await;
    let people = arriving(&server, rain);
    people.until_won(60).await;
    nodes.primaries[0].kill();
    only_retry(&server, rain, 0).await;
    nodes.until_switched(0, nodes.replicas[0].port).await;
    // It takes itself for the primary that it was, until the sentinels tell it.
    nodes.primaries[0].restart().await;
    all_is_won_and_paid(&server, rain, people).await;
    assert_eq!(nodes.primaries[0].info("role").await, "slave");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sentinel_that_lives_in_the_past_is_not_believed() {
    let mut nodes = Sentinels::start(3).await;
    let stale = 0;
    let server = start(&nodes.flags());
    let rain = open(&server, 400, Durability::Replicas(1)).await;
    let people = arriving(&server, rain);
    people.until_won(60).await;
    // One that is away while the primaries switch, and then finds nobody who could tell it.
    nodes.sentinels[stale].kill();
    nodes.sentinels[1]
        .done(&["SENTINEL", "FAILOVER", &name(0)])
        .await;
    nodes.until_switched(0, nodes.replicas[0].port).await;
    eventually("the program to follow", async || {
        server.log().contains("a node has moved").then_some(())
    })
    .await;
    // The old primary is a replica by now, without which nothing could be won.
    eventually("the old primary to follow", async || {
        (nodes.primaries[0].info("role").await == "slave").then_some(())
    })
    .await;
    for other in 1..3 {
        nodes.sentinels[other].kill();
    }
    nodes.sentinels[stale].restart().await;
    all_is_won_and_paid(&server, rain, people).await;
    let moves = server.log().matches("a node has moved").count();
    assert_eq!(moves, 1, "{}", server.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_finds_the_primary_that_took_over_while_nobody_looked() {
    let mut nodes = Sentinels::start(1).await;
    nodes.primaries[0].kill();
    nodes.until_switched(0, nodes.replicas[0].port).await;
    let server = start(&nodes.flags());
    let rain = open(&server, 60, Durability::Memory).await;
    let told = crowd(&server, rain, 70).end().await;
    assert_eq!(told.len(), 60);
    assert_paid(&server, rain, &told).await;
    let keys = eventually("the keys", async || {
        nodes.replicas[0].ask(&["DBSIZE"]).await
    })
    .await;
    assert_ne!(keys, redis::Value::Int(0));
}
