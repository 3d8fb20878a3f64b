//! The outbox and its deliveries: on both stores.

use hongbao::ledger::{
    After, Attempt, BuriedClaim, DeliveryState, EventKind, Ledger, LedgerError, LedgerSettings,
    Rotation, WEBHOOKS_MAX, Webhook, WebhookChange,
};
use hongbao::rain::{Cents, Rain, Step};

use super::{Store, claim, on_both_stores};

on_both_stores!(
    each_fact_is_one_event_however_often_it_is_recorded,
    an_event_and_its_fact_are_both_there_or_neither,
    a_claim_that_dies_is_told_once_for_each_burial,
    a_delivery_is_held_by_one_and_taken_over_when_its_holder_dies,
    a_delivery_that_failed_is_kept_until_it_is_sent_again,
    what_was_delivered_goes_when_it_is_old_and_its_event_with_the_rain,
    webhooks_are_changed_rotated_and_deleted_once,
);

fn webhook(id: &str, events: &[EventKind]) -> Webhook {
    Webhook {
        id: id.into(),
        url: "https://a.example".into(),
        events: events.to_vec(),
        enabled: true,
        generation: 1,
        secret_hash: "00".into(),
        overlap_until_ms: 0,
        created_at_ms: 1,
        deleted_at_ms: None,
    }
}

async fn ids(store: &Store, rain: &Rain) -> Vec<String> {
    let events = store.ledger.events_of(rain.id).await.unwrap();
    events.into_iter().map(|(id, _)| id).collect()
}

async fn create(store: &Store, id: &str, events: &[EventKind]) -> Webhook {
    let new = webhook(id, events);
    store.ledger.create_webhook(&new).await.unwrap()
}

/// Event ids of deliveries to one webhook, oldest first.
async fn told(ledger: &Ledger, webhook: &str) -> Vec<String> {
    let found = ledger.deliveries(None, Some(webhook), None, 1_000).await;
    let ids = found.unwrap().into_iter().rev().map(|found| found.event);
    ids.collect()
}

/// A loaded rain, opened at 100, sold out at 150, closed at 200, refunded at 300; each twice. What it was when it was found sold out.
async fn whole_life(store: &Store) -> (Rain, i64) {
    let (rain, ledger) = (store.rain(1_000).await, &store.ledger);
    ledger.step(rain.id, Step::Load).await.unwrap();
    let mut open = None;
    for at_ms in [100, 101] {
        open = Some(ledger.open_rain(rain.id, at_ms).await.unwrap());
    }
    let version = open.unwrap().version;
    for at_ms in [150, 151] {
        let sold_out = ledger.set_sold_out_if(rain.id, version, at_ms);
        assert!(sold_out.await.unwrap().sold_out);
    }
    for at_ms in [200, 201] {
        ledger.close_rain(rain.id, at_ms).await.unwrap();
    }
    for at_ms in [300, 301] {
        ledger.refund(rain.id, Cents(0), at_ms).await.unwrap();
    }
    (rain, version + 1)
}

async fn each_fact_is_one_event_however_often_it_is_recorded(store: Store) {
    let ledger = &store.ledger;
    let few = [EventKind::RainSoldOut, EventKind::RainRefunded];
    let silent = Webhook {
        enabled: false,
        ..webhook("w3", &EventKind::ALL)
    };
    for webhook in [webhook("w1", &EventKind::ALL), webhook("w2", &few), silent] {
        ledger.create_webhook(&webhook).await.unwrap();
    }
    let (rain, version) = whole_life(&store).await;
    let id = rain.id;
    let wanted = [
        format!("opened:{id}"),
        format!("sold_out:{id}:{version}"),
        format!("closed:{id}"),
        format!("refunded:{id}"),
    ];
    assert_eq!(ids(&store, &rain).await, wanted);
    assert_eq!(told(ledger, "w1").await, wanted);
    assert_eq!(
        told(ledger, "w2").await,
        [wanted[1].clone(), wanted[3].clone()]
    );
    assert!(told(ledger, "w3").await.is_empty());
    let newest = ledger.deliveries(None, Some("w1"), None, 1).await.unwrap();
    let body: serde_json::Value = serde_json::from_str(&newest[0].body).unwrap();
    assert_eq!(body["id"], wanted[3]);
    assert_eq!(
        (&body["event"], &body["at_ms"], &body["rain_id"]),
        (
            &"rain.refunded".into(),
            &300.into(),
            &serde_json::json!(rain.id)
        )
    );
    assert_eq!(body["data"]["refunded_cents"], 0);
    assert_eq!(body["data"]["total_cents"], 1_000);
    assert_eq!(body["data"]["closes_at_ms"], 200);
}

async fn an_event_and_its_fact_are_both_there_or_neither(store: Store) {
    let rain = store.rain(1_000).await;
    store.ledger.step(rain.id, Step::Load).await.unwrap();
    create(&store, "w1", &EventKind::ALL).await;
    // Nothing can be written into the outbox: then nothing happens either.
    let hide = "ALTER TABLE deliveries RENAME TO hidden";
    store.sql(hide).await.unwrap();
    store.ledger.open_rain(rain.id, 100).await.unwrap_err();
    let still = store.ledger.rain(rain.id).await.unwrap();
    assert_eq!(still.state, hongbao::rain::State::Ready);
    assert!(ids(&store, &rain).await.is_empty());
    let back = "ALTER TABLE hidden RENAME TO deliveries";
    store.sql(back).await.unwrap();
    store.ledger.open_rain(rain.id, 100).await.unwrap();
    assert_eq!(
        told(&store.ledger, "w1").await,
        [format!("opened:{}", rain.id)]
    );
}

async fn a_claim_that_dies_is_told_once_for_each_burial(store: Store) {
    let (rain, ledger) = (store.rain(1_000).await, &store.ledger);
    create(&store, "w1", &[EventKind::ClaimDead]).await;
    let buried = |index: u32, at_ms: i64| BuriedClaim {
        field: rain.id.packet(index).to_string(),
        claim: claim(&rain, index, 100, "anna"),
        at_ms,
        attempts: 3,
        reason: "unknown_account: the user has no account".into(),
    };
    let (first, again) = (
        [buried(0, 50), buried(1, 50)],
        [buried(0, 50), buried(0, 60)],
    );
    // Two stewards at once, and once more.
    let other = store.opened_again(LedgerSettings::default()).await;
    let (one, two) = tokio::join!(ledger.record_dead(&first), other.record_dead(&first));
    one.and(two).unwrap();
    ledger.record_dead(&again).await.unwrap();
    let (zero, one) = (rain.id.packet(0), rain.id.packet(1));
    let mut told = told(ledger, "w1").await;
    told.sort();
    let wanted = [
        format!("dead:{zero}:50"),
        format!("dead:{zero}:60"),
        format!("dead:{one}:50"),
    ];
    assert_eq!(told, wanted);
}

fn attempt(at_ms: i64, status: Option<u16>, error: Option<&str>) -> Attempt {
    Attempt {
        number: 0,
        at_ms,
        took_ms: 5,
        status,
        error: error.map(str::to_owned),
    }
}

async fn a_delivery_is_held_by_one_and_taken_over_when_its_holder_dies(store: Store) {
    let ledger = &store.ledger;
    create(&store, "w1", &EventKind::ALL).await;
    for name in 0..20 {
        let name = name.to_string();
        ledger.test_webhook("w1", &name, 100).await.unwrap();
    }
    assert_eq!(ledger.due_webhooks(99).await.unwrap(), [""; 0]);
    assert_eq!(ledger.due_webhooks(100).await.unwrap(), ["w1"]);
    let other = store.opened_again(LedgerSettings::default()).await;
    let mut taken = vec![];
    while taken.len() < 20 {
        let (a, b) = tokio::join!(
            ledger.hold_deliveries("w1", "a", 100, 200, 3),
            other.hold_deliveries("w1", "b", 100, 200, 3)
        );
        taken.extend(a.unwrap().into_iter().map(|held| ("a", held.id)));
        taken.extend(b.unwrap().into_iter().map(|held| ("b", held.id)));
    }
    let mut numbers: Vec<i64> = taken.iter().map(|(_, id)| *id).collect();
    numbers.sort();
    numbers.dedup();
    assert_eq!((taken.len(), numbers.len()), (20, 20));
    assert_eq!(ledger.due_webhooks(200).await.unwrap(), [""; 0]);
    // Their holders died: the time is over, and somebody else takes them.
    let held = ledger.hold_deliveries("w1", "c", 201, 300, 100);
    assert_eq!(held.await.unwrap().len(), 20);
    let (holder, id) = taken[0];
    let late = attempt(150, Some(200), None);
    let ours = ledger.attempted(id, holder, &late, After::Delivered);
    assert!(!ours.await.unwrap(), "it woke up too late");
    assert_eq!(
        ledger.delivery(id).await.unwrap().state,
        DeliveryState::Pending
    );
    let thanks = attempt(210, Some(200), None);
    let ours = ledger.attempted(id, "c", &thanks, After::Delivered);
    assert!(ours.await.unwrap());
    let delivery = ledger.delivery(id).await.unwrap();
    assert_eq!(
        (delivery.state, delivery.attempts, delivery.tries),
        (DeliveryState::Delivered, 2, 1)
    );
}

async fn a_delivery_that_failed_is_kept_until_it_is_sent_again(store: Store) {
    let ledger = &store.ledger;
    create(&store, "w1", &EventKind::ALL).await;
    let id = ledger.test_webhook("w1", "a", 100).await.unwrap();
    let again = ledger.test_webhook("w1", "a", 105).await.unwrap();
    assert_eq!(again, id, "a repeat finds it");
    let try_it = async |now_ms: i64, after: After| {
        let held = ledger.hold_deliveries("w1", "a", now_ms, now_ms + 50, 9);
        assert_eq!(held.await.unwrap().len(), 1);
        let tried = attempt(now_ms, Some(503), Some("it answers 503"));
        assert!(ledger.attempted(id, "a", &tried, after).await.unwrap());
    };
    try_it(100, After::Again { due_ms: 130 }).await;
    assert_eq!(ledger.due_webhooks(129).await.unwrap(), [""; 0]);
    let backlog = ledger.backlog().await.unwrap();
    assert_eq!((backlog.pending, backlog.oldest_ms), (1, Some(100)));
    try_it(130, After::Failed).await;
    assert_eq!(ledger.due_webhooks(10_000).await.unwrap(), [""; 0]);
    assert_eq!(ledger.backlog().await.unwrap().pending, 0);
    assert_eq!(ledger.prune_deliveries(i64::MAX, 100).await.unwrap(), 0);
    let failed = ledger.deliveries(Some(DeliveryState::Failed), Some("w1"), None, 9);
    assert_eq!(failed.await.unwrap()[0].since_ms, 135);
    assert_eq!(ledger.resend_failed(Some("w2"), 200).await.unwrap(), 0);
    assert_eq!(ledger.resend_failed(None, 200).await.unwrap(), 1);
    let delivery = ledger.delivery(id).await.unwrap();
    assert_eq!(
        (delivery.state, delivery.tries, delivery.attempts),
        (DeliveryState::Pending, 0, 2)
    );
    try_it(200, After::Delivered).await;
    let numbers: Vec<u32> = ledger
        .attempts(id)
        .await
        .unwrap()
        .iter()
        .map(|a| a.number)
        .collect();
    assert_eq!(numbers, [1, 2, 3]);
    // Even what has arrived may be sent again by hand.
    let resent = ledger.resend(id, 300).await.unwrap();
    assert_eq!(resent.state, DeliveryState::Pending);
    let missing = ledger.resend(99, 300).await.unwrap_err();
    assert!(matches!(missing, LedgerError::NoDelivery(99)), "{missing}");
}

async fn what_was_delivered_goes_when_it_is_old_and_its_event_with_the_rain(store: Store) {
    let ledger = &store.ledger;
    create(&store, "w1", &[EventKind::RainOpened]).await;
    let (rain, _) = whole_life(&store).await;
    let held = ledger
        .hold_deliveries("w1", "a", 500, 600, 9)
        .await
        .unwrap();
    let thanks = attempt(500, Some(200), None);
    let done = ledger.attempted(held[0].id, "a", &thanks, After::Delivered);
    assert!(done.await.unwrap());
    assert_eq!(ledger.prune_deliveries(505, 100).await.unwrap(), 0);
    assert_eq!(ledger.prune_deliveries(506, 100).await.unwrap(), 1);
    // As long as the rain is there its facts can be seen again, and must be known.
    assert_eq!(ledger.prune_events(1_000, 100).await.unwrap(), 0);
    ledger.step(rain.id, Step::Finish).await.unwrap();
    assert_eq!(ledger.prune_events(300, 100).await.unwrap(), 3);
    assert_eq!(ledger.prune_events(301, 100).await.unwrap(), 1);
}

async fn webhooks_are_changed_rotated_and_deleted_once(store: Store) {
    let ledger = &store.ledger;
    for number in 0..WEBHOOKS_MAX {
        let new = webhook(&format!("w{number:03}"), &EventKind::ALL);
        assert_eq!(ledger.create_webhook(&new).await.unwrap(), new);
    }
    let refused = ledger.create_webhook(&webhook("x", &EventKind::ALL)).await;
    assert!(matches!(refused, Err(LedgerError::Webhooks)));
    let again = create(&store, "w007", &[EventKind::RainOpened]).await;
    assert_eq!(again.events, EventKind::ALL, "it was there");
    let change = WebhookChange {
        url: Some("https://b.example".into()),
        enabled: Some(false),
        events: None,
    };
    let changed = ledger.change_webhook("w007", &change).await.unwrap();
    assert_eq!(
        (changed.url.as_str(), changed.enabled, changed.events.len()),
        ("https://b.example", false, 5)
    );
    let rotation = |generation, request_key| Rotation {
        generation,
        secret_hash: "11",
        overlap_until_ms: 77,
        request_key,
    };
    for (rotation, generation) in [
        (rotation(2, "a"), 2),
        (rotation(2, "a"), 2),
        (rotation(3, "a"), 2),
        (rotation(3, "b"), 3),
    ] {
        let rotated = ledger.rotate_webhook("w007", &rotation).await.unwrap();
        assert_eq!(rotated.generation, generation);
    }
    let id = ledger.test_webhook("w007", "a", 5).await.unwrap();
    for at_ms in [8, 9] {
        let deleted = ledger.delete_webhook("w007", at_ms).await.unwrap();
        assert_eq!(deleted.deleted_at_ms, Some(8));
    }
    let delivery = ledger.delivery(id).await.unwrap();
    assert_eq!(delivery.state, DeliveryState::Failed);
    assert_eq!(ledger.resend_failed(None, 20).await.unwrap(), 0);
    assert_eq!(ledger.webhooks().await.unwrap().len(), 99);
    let gone = ledger.webhook("nobody").await.unwrap_err();
    assert!(matches!(gone, LedgerError::NoWebhook(_)), "{gone}");
}
