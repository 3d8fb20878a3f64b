//! The same rains on every shape of Redis: children of the program, servers side by side, under Sentinel, a cluster; by TLS and with the
//! least rights.

/// Slots that move, nodes that die and are replaced.
mod cluster;
/// Nodes with a door: TLS, and users with the least rights.
mod doors;
/// What WON stands for at each level.
mod durability;
/// Primaries that switch.
mod sentinel;

use std::time::Duration;

use hongbao::client::admin::NewRain;
use hongbao::rain::{Cents, Durability, RainId, State};
use hongbao::store::bucket_of;
use hongbao::wire::Outcome;

use crate::support::cluster::Cluster;
use crate::support::crowd::{Crowd, assert_paid, crowd, crowd_of};
use crate::support::eventually;
use crate::support::redis::{Redis, flags};
use crate::support::sentinels::Sentinels;
use crate::support::server::{Server, new_rain};
use crate::support::wire::Raw;

fn start(flags: &[String]) -> Server {
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    Server::start(&flags)
}

/// A rain of 60,000 cents that is open.
async fn open(server: &Server, packets: u32, durability: Durability) -> RainId {
    let admin = server.admin();
    admin.create_sponsor("acme").await.unwrap();
    admin.deposit("acme", Cents(60_000), "d").await.unwrap();
    let new = NewRain {
        durability: Some(durability),
        ..new_rain(packets, 60_000)
    };
    let rain = admin.create_rain(&new).await.unwrap().id;
    server.until(rain, |rain| rain.state == State::Ready).await;
    admin.open_rain(rain).await.unwrap();
    rain
}

/// 300 people who come within some seconds, long enough for something to happen.
fn arriving(server: &Server, rain: RainId) -> Crowd {
    crowd_of(server, rain, 0..300, Duration::from_millis(12))
}

/// What happened is over: more come, all 400 packets are won, and everybody is paid what they were told.
async fn all_is_won_and_paid(server: &Server, rain: RainId, people: Crowd) {
    eventually("a repair", async || {
        server.log().contains("repaired").then_some(())
    })
    .await;
    let late = crowd_of(server, rain, 300..420, Duration::ZERO);
    let mut told = people.end().await;
    told.extend(late.end().await);
    assert_eq!(told.len(), 400, "every packet is won");
    assert_paid(server, rain, &told).await;
}

/// Somebody who has not tapped yet, of one of three buckets.
fn stranger(rain: RainId, bucket: usize) -> String {
    let mut names = (0..).map(|n| format!("stranger-{n}"));
    names
        .find(|name| bucket_of(rain, name, 3) == bucket)
        .unwrap()
}

/// A stranger taps ten times, and hears nothing but that the outcome is unknown.
async fn only_retry(server: &Server, rain: RainId, bucket: usize) {
    let mut session = Raw::user(server, &stranger(rain, bucket)).await;
    for _ in 0..10 {
        let result = session.grab(rain.get()).await;
        assert_eq!(result.outcome(), Outcome::Retry);
        assert!(result.retry_after_ms > 0);
    }
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
