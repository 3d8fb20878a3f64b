/// Leases, retries, burials.
mod claims;
/// What gateways read of rains.
mod directory;
/// Messages to users.
mod inbox;
/// Random operations on a bucket and on a model of it.
mod model;

use hongbao::rain::{Durability, RainId};
use hongbao::store::keys::{BucketKeys, Tag};
use hongbao::store::slots::slot_of;
use hongbao::store::{Store, StoreError};
use redis::Value;

use crate::support::redis::{FIT, Redis, settings, store};

#[tokio::test]
async fn slots_are_those_of_cluster_keyslot() {
    let redis = Redis::start(&["--cluster-enabled", "yes"]).await;
    let tag = Tag {
        rain: RainId::new(123_456).unwrap(),
        bucket: 7,
        salt: 42,
    };
    let mut keys: Vec<String> = BucketKeys::new(&tag).all().map(str::to_owned).to_vec();
    keys.extend(
        [
            "hb:rain:7",
            "hb:rains",
            "{}",
            "a{}b{c}",
            "{{x}}",
            "hb:{u:anna@example.com}:inbox",
            "",
        ]
        .map(str::to_owned),
    );
    for key in keys {
        assert_eq!(
            redis.call(&["CLUSTER", "KEYSLOT", &key]).await,
            Value::Int(i64::from(slot_of(&key))),
            "{key}"
        );
    }
}

#[tokio::test]
async fn buckets_lie_evenly_on_the_nodes() {
    let (a, b, c) = (Redis::fit().await, Redis::fit().await, Redis::fit().await);
    let store = store(&[&a, &b, &c]).await;
    let rain = RainId::new(9).unwrap();
    let salts = store.salts(rain, 9);
    let nodes: Vec<usize> = hongbao::store::tags(rain, &salts)
        .map(|tag| store.node_of(&tag))
        .collect();
    assert_eq!(nodes, [0, 1, 2, 0, 1, 2, 0, 1, 2]);
}

async fn refusal(redis: &Redis, durability: Durability) -> String {
    let settings = settings(&[redis]);
    match Store::open(&settings.store, &settings.data_dir, durability).await {
        Ok(_) => panic!("the node was accepted"),
        Err(error) => error.to_string(),
    }
}

#[tokio::test]
async fn a_node_that_would_lose_money_is_refused_with_every_reason() {
    let redis = Redis::start(&["--maxmemory-policy", "allkeys-lru", "--appendonly", "no"]).await;
    let text = refusal(&redis, Durability::Memory).await;
    assert!(
        text.contains(
            "maxmemory-policy is \"allkeys-lru\", which may evict packets: set it to noeviction"
        ),
        "{text}"
    );
    assert!(text.contains("appendonly is \"no\""), "{text}");
    assert!(
        text.contains(&format!("127.0.0.1:{}", redis.port)),
        "{text}"
    );

    let redis = Redis::fit().await;
    let text = refusal(&redis, Durability::Fsync).await;
    assert!(
        text.contains("appendfsync is \"everysec\", too weak for durability fsync"),
        "{text}"
    );

    let replica =
        Redis::start(&[FIT, &["--replicaof", "127.0.0.1", &redis.port.to_string()]].concat()).await;
    let text = refusal(&replica, Durability::Memory).await;
    assert!(text.contains("it is a replica"), "{text}");
}

#[tokio::test]
async fn a_node_that_cannot_write_is_refused_at_the_start() {
    let full = Redis::start(&[FIT, &["--maxmemory", "1"]].concat()).await;
    let text = refusal(&full, Durability::Memory).await;
    assert!(text.contains("it is out of memory"), "{text}");

    let alone = Redis::start(&[FIT, &["--min-replicas-to-write", "1"]].concat()).await;
    let text = refusal(&alone, Durability::Memory).await;
    assert!(
        text.contains("it is read-only: it has 0 replicas"),
        "{text}"
    );

    let fit = Redis::fit().await;
    let text = refusal(&fit, Durability::Replicas(1)).await;
    assert!(text.contains("durability replicas:1 needs 1"), "{text}");
}

#[tokio::test]
async fn clocks_that_are_too_far_apart_are_refused() {
    let ahead = Redis::with_clock_ahead(700).await;
    let text = refusal(&ahead, Durability::Memory).await;
    assert!(
        text.contains("ms ahead of this machine's, more than 200"),
        "{text}"
    );

    // Each is near enough to this machine's clock, but not to the other's.
    let (fast, slow) = (
        Redis::with_clock_ahead(150).await,
        Redis::with_clock_ahead(-150).await,
    );
    let settings = settings(&[&fast, &slow]);
    let opened = Store::open(&settings.store, &settings.data_dir, Durability::Memory).await;
    let text = opened.map(drop).unwrap_err().to_string();
    assert!(text.contains("ahead of that of"), "{text}");
    assert!(text.contains(&format!("127.0.0.1:{}", fast.port)), "{text}");
}

#[tokio::test]
async fn a_node_that_is_not_there_is_named() {
    let mut redis = Redis::fit().await;
    redis.kill();
    let settings = settings(&[&redis]);
    let opened = Store::open(&settings.store, &settings.data_dir, Durability::Memory).await;
    match opened.map(drop) {
        Err(StoreError::Down { node, .. }) => assert_eq!(node, format!("127.0.0.1:{}", redis.port)),
        other => panic!("{other:?}"),
    }
}
