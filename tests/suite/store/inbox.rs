//! Inboxes: written once, in order, trimmed by count and age, read by the page.

use hongbao::rain::{Cents, Packet, RainId, UserId};
use hongbao::store::inbox::{Contents, Draft, Keep, Page, Place};
use hongbao::store::{Store, StoreError, keys};
use redis::Value;

use crate::support::redis::{Redis, store};

const NOW: i64 = 1_700_000_000_000;
const KEEP: Keep = Keep {
    ms: 10_000,
    messages: 4,
};

fn anna() -> UserId {
    UserId::new("anna").unwrap()
}

fn draft(user: &str, index: u32) -> Draft {
    Draft {
        user: UserId::new(user).unwrap(),
        contents: contents(index),
    }
}

fn contents(index: u32) -> Contents {
    Contents::PacketCredited {
        packet: Packet {
            id: RainId::new(5).unwrap().packet(index),
            cents: Cents(i64::MAX - i64::from(index)),
        },
    }
}

/// Writes a message to anna; `None` if it was there.
async fn write(store: &Store, index: u32, now: i64) -> Option<(u64, u64)> {
    let written = store
        .write_messages(&[draft("anna", index)], KEEP, Some(now))
        .await;
    written[0]
        .clone()
        .unwrap()
        .map(|Place { id, previous }| (id, previous))
}

/// Anna's messages above `after`, by their packets' indices.
async fn indices(store: &Store, after: u64, limit: usize) -> (Vec<u32>, bool) {
    let Page { messages, more } = store.read_inbox(&anna(), after, limit).await.unwrap();
    let index = |contents| match contents {
        Some(Contents::PacketCredited { packet }) => packet.id.index(),
        None => u32::MAX,
    };
    (
        messages
            .into_iter()
            .map(|message| index(message.contents))
            .collect(),
        more,
    )
}

#[tokio::test]
async fn a_message_is_written_once_for_its_packet_and_ids_rise_whatever_the_clock_does() {
    let redis = Redis::fit().await;
    let store = store(&[&redis]).await;
    let now = NOW as u64;
    assert_eq!(write(&store, 1, NOW).await, Some((now, 0)));
    assert_eq!(write(&store, 1, NOW + 5).await, None, "it is there");
    assert_eq!(
        write(&store, 2, NOW).await,
        Some((now + 1, now)),
        "the same ms"
    );
    assert_eq!(
        write(&store, 3, NOW - 3_000).await,
        Some((now + 2, now + 1)),
        "the clock went back"
    );
    assert_eq!(write(&store, 4, NOW + 9).await, Some((now + 9, now + 2)));
    assert_eq!(indices(&store, 0, 10).await, (vec![1, 2, 3, 4], false));
    let page = store.read_inbox(&anna(), now + 2, 10).await.unwrap();
    assert_eq!(
        page.messages[0].contents,
        Some(contents(4)),
        "no digit of the amount is lost"
    );
    let nobody = UserId::new("nobody").unwrap();
    assert_eq!(
        store.read_inbox(&nobody, 0, 10).await.unwrap(),
        Page::default()
    );
}

#[tokio::test]
async fn an_inbox_is_read_by_the_page_from_any_id_kept_or_not() {
    let redis = Redis::fit().await;
    let store = store(&[&redis]).await;
    for index in 0..4 {
        write(&store, index, NOW + 10 * i64::from(index)).await;
    }
    let now = NOW as u64;
    assert_eq!(indices(&store, 0, 3).await, (vec![0, 1, 2], true));
    assert_eq!(indices(&store, now + 20, 3).await, (vec![3], false));
    assert_eq!(indices(&store, now, 3).await, (vec![1, 2, 3], false));
    assert_eq!(
        indices(&store, now + 5, 1).await,
        (vec![1], true),
        "no message has that id"
    );
    assert_eq!(indices(&store, u64::MAX, 3).await, (vec![], false));
    // A message of a newer version has its place, so that a client can go on after it.
    let newer = (now + 15).to_string();
    redis
        .call(&["ZADD", &keys::inbox(&anna()), &newer, "a new kind"])
        .await;
    assert_eq!(
        indices(&store, 0, 10).await,
        (vec![0, 1, u32::MAX, 2, 3], false)
    );
}

#[tokio::test]
async fn an_inbox_keeps_so_many_messages_for_so_long() {
    let redis = Redis::fit().await;
    let store = store(&[&redis]).await;
    for index in 0..6 {
        write(&store, index, NOW + i64::from(index)).await;
    }
    assert_eq!(
        indices(&store, 0, 10).await.0,
        [2, 3, 4, 5],
        "the newest four"
    );
    let Value::Int(ttl) = redis.call(&["PTTL", &keys::inbox(&anna())]).await else {
        panic!()
    };
    assert!((1..=10_000).contains(&ttl), "{ttl}");
    // 2 and 3 are as old as what is kept for 10,000 ms may be, and older; 4 is younger.
    write(&store, 6, NOW + 10_003).await;
    assert_eq!(indices(&store, 0, 10).await.0, [4, 5, 6]);
    // A smaller setting takes effect with the next message.
    let small = Keep {
        messages: 1,
        ..KEEP
    };
    let written = store
        .write_messages(&[draft("anna", 7)], small, Some(NOW + 10_004))
        .await;
    assert!(written[0].is_ok(), "{written:?}");
    assert_eq!(indices(&store, 0, 10).await.0, [7]);
}

#[tokio::test]
async fn a_key_of_the_wrong_type_stops_the_script_before_its_first_write_and_no_other_user() {
    let redis = Redis::fit().await;
    let store = store(&[&redis]).await;
    let inbox = keys::inbox(&anna());
    redis.call(&["SET", &inbox, "spoiled"]).await;
    let drafts = [draft("ben", 1), draft("anna", 2), draft("cleo", 3)];
    let written = store.write_messages(&drafts, KEEP, Some(NOW)).await;
    assert!(
        matches!(&written[1], Err(StoreError::Refused { code, .. }) if code == "WRONGTYPE"),
        "{:?}",
        written[1]
    );
    assert!(
        matches!((&written[0], &written[2]), (Ok(Some(_)), Ok(Some(_)))),
        "{written:?}"
    );
    let Value::BulkString(bytes) = redis.call(&["GET", &inbox]).await else {
        panic!()
    };
    assert_eq!(bytes, b"spoiled");
    assert_eq!(redis.call(&["PTTL", &inbox]).await, Value::Int(-1));
}

#[tokio::test]
async fn a_full_node_takes_no_message_and_a_forgetful_one_is_taught_the_script() {
    let redis = Redis::fit().await;
    let store = store(&[&redis]).await;
    assert!(write(&store, 1, NOW).await.is_some());
    redis.call(&["SCRIPT", "FLUSH"]).await;
    let drafts: Vec<Draft> = (0..600).map(|n| draft(&format!("user-{n}"), n)).collect();
    let written = store.write_messages(&drafts, KEEP, Some(NOW)).await;
    assert!(
        written
            .iter()
            .all(|written| matches!(written, Ok(Some(Place { previous: 0, .. })))),
        "{written:?}"
    );
    redis.call(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let written = store
        .write_messages(&[draft("anna", 2)], KEEP, Some(NOW))
        .await;
    assert!(
        matches!(&written[0], Err(StoreError::Refused { code, .. }) if code == "OOM"),
        "{written:?}"
    );
    assert_eq!(indices(&store, 0, 10).await.0, [1]);
}
