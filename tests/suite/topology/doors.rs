//! Nodes with a door: TLS, and users with the least rights.

use std::sync::Arc;

use super::whole_rains;
use crate::support::cluster::Cluster;
use crate::support::door::Door;
use crate::support::redis::{FIT, Redis, flags};
use crate::support::sentinels::Sentinels;

/// Nobody enters but by the file that operators are given, its password filled in.
fn with_least_rights(door: Door, rules: &str) -> Arc<Door> {
    assert!(rules.contains("<password>"));
    let rules = rules.replace("<password>", "secret");
    Arc::new(door.acl(&rules, "hongbao:secret"))
}

const NODES: &str = include_str!("../../../src/store/hongbao.acl");
const SENTINELS: &str = include_str!("../../../src/store/sentinel.acl");

#[tokio::test(flavor = "multi_thread")]
async fn whole_rains_by_tls_with_the_least_rights() {
    let door = with_least_rights(Door::tls(), NODES);
    let nodes = [
        Redis::start_behind(&door, FIT).await,
        Redis::start_behind(&door, FIT).await,
    ];
    let mut settings = door.flags();
    settings.extend(flags(&nodes.each_ref()));
    whole_rains(&settings).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whole_rains_under_sentinel_with_the_least_rights() {
    let door = with_least_rights(Door::default(), NODES);
    let gate = with_least_rights(Door::default(), SENTINELS);
    let sentinels = Sentinels::start_behind(door, gate, 2, &[]).await;
    whole_rains(&sentinels.flags()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whole_rains_on_a_cluster_by_tls_with_the_least_rights() {
    let door = with_least_rights(Door::tls(), NODES);
    let cluster = Cluster::start_behind(door, 3, 0, &[]).await;
    whole_rains(&cluster.flags()).await;
}
