//! The rain directory.

use hongbao::rain::{Durability, RainId, State};
use hongbao::store::directory::Snapshot;
use redis::Value;

use crate::support::redis::{Redis, store};

fn snapshot(rain: u32, version: i64) -> Snapshot {
    Snapshot {
        rain: RainId::new(rain).unwrap(),
        version,
        room: "quiz".into(),
        title: "test".into(),
        state: State::Ready,
        opens_at_ms: None,
        duration_ms: 1_000,
        salts: vec![1],
        durability: Durability::Memory,
        sold_out: false,
        announce_at_ms: None,
        grab_key: None,
    }
}

async fn holds(redis: &Redis, key: &str) -> bool {
    redis.done(&["EXISTS", key]).await == Value::Int(1)
}

/// The list was written first, and nothing after an error.
#[tokio::test]
async fn a_rain_whose_own_node_is_there_is_published_without_the_node_of_the_list() {
    let mut nodes = [Redis::fit().await, Redis::fit().await];
    let store = store(&[&nodes[0], &nodes[1]]).await;
    let mut rain = 0;
    let (list, other) = loop {
        rain += 1;
        store.publish(&snapshot(rain, 1)).await.unwrap();
        let list = usize::from(!holds(&nodes[0], "hb:rains").await);
        if !holds(&nodes[list], &format!("hb:rain:{rain}")).await {
            break (list, 1 - list);
        }
    };
    nodes[list].kill();
    // It is told that not all is done.
    store.publish(&snapshot(rain, 2)).await.unwrap_err();
    let published = store.snapshot(RainId::new(rain).unwrap()).await.unwrap();
    assert_eq!(published, Some(snapshot(rain, 2)));
    nodes[list].restart().await;
    nodes[other].kill();
    // The other way round nothing is published, and that is told as well.
    store.publish(&snapshot(rain, 3)).await.unwrap_err();
}
