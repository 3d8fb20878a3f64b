//! Packets that are moved to where people tap, and what a crash half-way leaves behind.

use hongbao::rain::Rain;
use hongbao::store::bucket::Bucket;
use hongbao::store::bucket_of;
use hongbao::wire::Outcome;

use crate::support::bench::{Bench, give};
use crate::support::server::Server;
use crate::support::wire::{Raw, final_outcome};

/// `count` different people whose bucket is `number` tap once.
async fn tap(bench: &Bench, rain: &Rain, number: usize, prefix: &str, count: usize) {
    let bucket = &bench.buckets(rain)[number];
    let users = (0..)
        .map(|n| format!("{prefix}-{n}"))
        .filter(|user| bucket_of(rain.id, user, rain.salts.len()) == number);
    let users: Vec<String> = users.take(count).collect();
    for batch in users.chunks(256) {
        bucket.grab(batch.iter().map(String::as_str)).await.unwrap();
    }
}

async fn pools(buckets: &[Bucket]) -> Vec<u64> {
    let mut pools = vec![];
    for bucket in buckets {
        pools.push(bucket.level().await.unwrap().pool);
    }
    pools
}

#[tokio::test]
async fn no_packet_is_stranded_while_somebody_taps_another_bucket() {
    let bench = Bench::new(3).await;
    let rain = bench.open(300, 30_000).await;
    let buckets = bench.buckets(&rain);
    // Everybody who taps belongs to bucket 1.
    for round in 0..400 {
        tap(&bench, &rain, 1, &format!("crowd{round}"), 3).await;
        bench
            .steward
            .advance(bench.rain(rain.id).await)
            .await
            .unwrap();
        if bench.rain(rain.id).await.sold_out {
            assert_eq!(pools(&buckets).await, [0, 0, 0]);
            let census = buckets[1].census().await.unwrap();
            assert_eq!(census.winners, 300, "all of them were won in one bucket");
            assert!(bench.audit(rain.id).await.balanced);
            return;
        }
    }
    panic!("packets are stranded: {:?}", pools(&buckets).await);
}

#[tokio::test]
async fn nothing_is_moved_where_nobody_taps() {
    let bench = Bench::new(2).await;
    let rain = bench.open(100, 10_000).await;
    tap(&bench, &rain, 0, "exactly", 50).await;
    bench
        .steward
        .advance(bench.rain(rain.id).await)
        .await
        .unwrap();
    assert_eq!(pools(&bench.buckets(&rain)).await, [0, 50]);
}

#[tokio::test]
async fn each_step_of_a_transfer_may_be_repeated_and_finished_by_a_successor() {
    let bench = Bench::new(2).await;
    let rain = bench.open(100, 10_000).await;
    let buckets = bench.buckets(&rain);
    let balanced = async || {
        let report = bench.audit(rain.id).await;
        assert!(report.balanced, "{:?}", report.differences.first());
        (report.pool_count, report.transfer_count)
    };
    let first = give(&buckets, 0, "t1", 1, 20).await.unwrap();
    assert_eq!(
        give(&buckets, 0, "t1", 1, 20).await.as_ref(),
        Some(&first),
        "asked again it gives no more"
    );
    assert_eq!(pools(&buckets).await, [30, 50]);
    assert_eq!(balanced().await, (80, 20));
    buckets[1].take(&first).await.unwrap();
    buckets[1].take(&first).await.unwrap();
    assert_eq!(pools(&buckets).await, [30, 70]);
    assert_eq!(
        balanced().await,
        (100, 0),
        "a packet in its new pool and still in the old outbox is one packet"
    );
    buckets[0].given(&first).await.unwrap();
    buckets[0].given(&first).await.unwrap();
    // A steward that slept since it read the outbox comes back: too late to do harm.
    buckets[1].take(&first).await.unwrap();
    assert_eq!(balanced().await, (100, 0));

    // The giver dies after the first step; whoever comes next finishes it, and a closing rain does before it counts.
    let second = give(&buckets, 1, "t2", 0, 30).await.unwrap();
    assert_eq!(second.packets.len(), 30);
    bench
        .ledger
        .close_rain(rain.id, hongbao::clock::now_ms())
        .await
        .unwrap();
    bench
        .steward
        .advance(bench.rain(rain.id).await)
        .await
        .unwrap();
    assert_eq!(pools(&buckets).await, [60, 40]);
    assert_eq!(
        give(&buckets, 0, "t3", 1, 5).await,
        None,
        "a closed gate gives nothing"
    );
    assert_eq!(bench.balance("sponsor:acme").await, 10_000);
    assert!(bench.audit(rain.id).await.balanced);
}

#[tokio::test]
async fn two_stewards_that_balance_at_once_move_every_packet_once() {
    let bench = Bench::new(3).await;
    let rain = bench.open(600, 60_000).await;
    let other = hongbao::steward::Steward::new(
        &bench.settings.steward,
        bench.store.clone(),
        bench.ledger.clone(),
    );
    for round in 0..60 {
        tap(&bench, &rain, round % 3, &format!("crowd{round}"), 20).await;
        let now = bench.rain(rain.id).await;
        let both = tokio::join!(bench.steward.advance(now.clone()), other.advance(now));
        assert!(both.0.is_ok() && both.1.is_ok(), "{both:?}");
        let report = bench.audit(rain.id).await;
        assert!(report.balanced, "{:?}", report.differences.first());
    }
}

#[tokio::test]
async fn a_person_whose_bucket_is_empty_keeps_tapping_and_gets_a_packet_from_another() {
    let server = Server::start(&[]);
    let rain = server.open_rain(96, 9_600).await; // 32 in each of three buckets
    let users: Vec<String> = (0..)
        .map(|n| format!("user-{n}"))
        .filter(|user| bucket_of(rain, user, 3) == 2)
        .take(97)
        .collect();
    let mut won = 0;
    for user in &users {
        let mut raw = Raw::user(&server, user).await;
        // Whoever taps as fast as this is told to slow down sometimes.
        match final_outcome(&mut raw, rain.get()).await.outcome() {
            Outcome::Won => won += 1,
            Outcome::SoldOut => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(won, 96, "people of one bucket won the packets of all");
}

/// One dead node used to stop the transfers between all others.
#[tokio::test]
async fn a_dead_node_stops_no_transfer_between_the_others() {
    let mut bench = Bench::new(3).await;
    let rain = bench.open(300, 30_000).await;
    bench.nodes[2].kill();
    for round in 0..200 {
        tap(&bench, &rain, 1, &format!("crowd{round}"), 5).await;
        // The step fails, since a node is away; what could be done is done.
        let _ = bench.steward.advance(bench.rain(rain.id).await).await;
        if pools(&bench.buckets(&rain)[..2]).await == [0, 0] {
            assert_eq!(bench.buckets(&rain)[1].census().await.unwrap().winners, 200);
            return;
        }
    }
    panic!(
        "packets are stranded: {:?}",
        pools(&bench.buckets(&rain)[..2]).await
    );
}

/// Reusing an id used to destroy the packets of the second transfer.
#[tokio::test]
async fn an_id_that_was_used_before_is_refused_and_loses_nothing() {
    let bench = Bench::new(2).await;
    let rain = bench.open(100, 10_000).await;
    let buckets = bench.buckets(&rain);
    let first = give(&buckets, 0, "same", 1, 5).await.unwrap();
    buckets[1].take(&first).await.unwrap();
    buckets[0].given(&first).await.unwrap();
    let second = give(&buckets, 0, "same", 1, 5).await.unwrap();
    assert_ne!(first, second);
    assert!(buckets[1].take(&second).await.is_err());
    let report = bench.audit(rain.id).await;
    assert!(report.balanced && report.transfer_count == 5, "{report:?}");
}
