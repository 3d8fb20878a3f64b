//! The same rains on every shape of Redis: children of the program, servers side by side, under Sentinel, a cluster; by TLS and with the
//! least rights.

/// Nodes with a door: TLS, and users with the least rights.
mod doors;

use hongbao::rain::State;

use crate::support::cluster::Cluster;
use crate::support::crowd::{assert_paid, crowd};
use crate::support::redis::{Redis, flags};
use crate::support::sentinels::Sentinels;
use crate::support::server::Server;

fn start(flags: &[String]) -> Server {
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    Server::start(&flags)
}

/// Two rains from creation to finish: one that is sold out, and one of which something is left for the sponsor.
async fn whole_rains(flags: &[String]) -> Server {
    let server = start(flags);
    for (packets, people) in [(192, 220), (192, 60)] {
        let rain = server.open_rain(packets, 60_000).await;
        let told = crowd(&server, rain, people).end().await;
        assert_eq!(told.len() as u32, packets.min(people));
        let audit = assert_paid(&server, rain, &told).await;
        assert_eq!(audit.credited_count, told.len() as u64);
        assert_eq!(audit.refunded_cents.0 > 0, people < packets);
        server
            .until(rain, |rain| rain.state == State::Finished)
            .await;
        let audit = server.admin().audit(rain).await.unwrap();
        assert!(audit.balanced, "{audit:?}");
    }
    assert!(!server.log().contains(" ERROR "), "{}", server.log());
    assert!(!server.log().contains(" WARN "), "{}", server.log());
    server
}

#[tokio::test(flavor = "multi_thread")]
async fn whole_rains_on_managed_nodes() {
    whole_rains(&[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whole_rains_on_nodes_side_by_side() {
    let nodes = [Redis::fit().await, Redis::fit().await, Redis::fit().await];
    whole_rains(&flags(&nodes.each_ref())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whole_rains_under_sentinel() {
    let sentinels = Sentinels::start(3).await;
    whole_rains(&sentinels.flags()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whole_rains_on_a_cluster() {
    let cluster = Cluster::start(3, 0).await;
    whole_rains(&cluster.flags()).await;
}
