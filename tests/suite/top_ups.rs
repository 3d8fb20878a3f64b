//! Packets and money added to a rain, whatever it is doing, and whoever dies or is late meanwhile.

/// What an operator asks for and what a phone sees.
mod outside;

use hongbao::rain::{Packet, Rain, State, Step};
use hongbao::steward::audit::{Kind, audit};
use hongbao::steward::repair::Repair;
use hongbao::store::bucket::Bucket;
use redis::Value;

use crate::support::bench::Bench;
use crate::support::eventually;

/// The packets of chunk `k` for bucket number `bucket`.
fn chunk(rain: &Rain, k: u32, bucket: usize) -> Vec<Packet> {
    let allocation = rain.parts.allocation().unwrap();
    let buckets = rain.salts.len();
    let own = allocation
        .chunk(k)
        .filter(|(index, _)| *index as usize % buckets == bucket);
    own.map(|(index, cents)| Packet {
        id: rain.id.packet(index),
        cents,
    })
    .collect()
}

async fn field(bench: &Bench, bucket: &Bucket, field: &str) -> Option<String> {
    let node = bench.store.node_of(&bucket.tag);
    match bench.nodes[node]
        .call(&["HGET", &bucket.keys.gate, field])
        .await
    {
        Value::BulkString(bytes) => Some(String::from_utf8(bytes).unwrap()),
        _ => None,
    }
}

/// Of every bucket.
async fn fields(bench: &Bench, rain: &Rain, name: &str) -> Vec<Option<String>> {
    let mut found = vec![];
    for bucket in bench.buckets(rain) {
        found.push(field(bench, &bucket, name).await);
    }
    found
}

async fn winners(bench: &Bench, rain: &Rain) -> u64 {
    let mut winners = 0;
    for bucket in bench.buckets(rain) {
        winners += bucket.census().await.unwrap().winners;
    }
    winners
}

/// Packets in the pools, after an audit that must balance.
async fn left(bench: &Bench, rain: &Rain) -> u64 {
    let report = bench.audit(rain.id).await;
    assert!(report.balanced, "{:?}", report.differences.first());
    let known = bench.rain(rain.id).await;
    assert_eq!(report.packets, known.parts.packets());
    assert_eq!(report.funded_cents, known.parts.total());
    report.pool_count
}

/// Every claim has been credited.
async fn settled(bench: &Bench, rain: &Rain) {
    let unsettled = async || {
        let mut unsettled = 0;
        for bucket in bench.buckets(rain) {
            unsettled += bucket.census().await.unwrap().unsettled();
        }
        (unsettled == 0).then_some(())
    };
    let settling = crate::support::eventually("all claims to settle", unsettled);
    bench.settling(settling).await;
}

async fn advance_until_loaded(bench: &Bench, rain: &Rain) {
    crate::support::eventually("the top-up to be loaded", async || {
        let _ = bench.advance(rain.id).await;
        bench.rain(rain.id).await.parts.are_loaded().then_some(())
    })
    .await;
}

/// Settled, closed, refunded, finished: every cent is with a user or with the sponsor.
async fn to_the_end(bench: &Bench, rain: &Rain) {
    settled(bench, rain).await;
    let now = hongbao::clock::now_ms();
    bench.ledger.close_rain(rain.id, now).await.unwrap();
    for state in [State::Refunded, State::Finished] {
        while bench.rain(rain.id).await.state < state {
            bench.advance(rain.id).await.unwrap();
        }
        left(bench, rain).await;
    }
    assert_eq!(bench.balance(&format!("escrow:{}", rain.id)).await, 0);
    let totals = bench.ledger.rain_totals(rain.id).await.unwrap();
    assert_eq!(totals.funded.0, totals.credited.0 + totals.refunded.0);
    assert_eq!(bench.balance("sponsor:acme").await, totals.refunded.0);
    assert!(bench.ledger.books().await.unwrap().agree());
}

#[tokio::test]
async fn packets_added_before_the_load_are_loaded_with_the_rest() {
    let bench = Bench::new(3).await;
    let rain = bench.created(1_500, 150_000).await;
    bench.top_up(&rain, 40, 4_000).await;
    bench.top_up(&rain, 2_100, 21_000).await;
    assert_eq!(
        left(&bench, &rain).await,
        3_640,
        "on their way, not missing"
    );
    assert_eq!(bench.advance(rain.id).await, Ok(State::Ready));
    let loaded = bench.rain(rain.id).await;
    assert!(loaded.parts.are_loaded());
    // 2 chunks, 1 and 3.
    assert_eq!(
        fields(&bench, &rain, "chunks").await,
        vec![Some("6".to_owned()); 3]
    );
    assert_eq!(
        fields(&bench, &rain, "epoch").await,
        vec![Some("1".to_owned()); 3]
    );
    assert_eq!(left(&bench, &rain).await, 3_640);
    to_the_end(&bench, &rain).await;
}

#[tokio::test]
async fn packets_added_while_the_rain_is_loaded_follow_it() {
    let bench = Bench::new(2).await;
    let rain = bench.created(2_500, 250_000).await;
    let buckets = bench.buckets(&rain);
    // A steward died in its load: one bucket has two chunks, the other one.
    for (bucket, k) in [(0, 0), (1, 0), (0, 1)] {
        let packets = chunk(&rain, k, bucket);
        assert_eq!(
            buckets[bucket].load(k, &packets).await.unwrap(),
            Some(k + 1)
        );
    }
    bench.top_up(&rain, 1_200, 12_000).await;
    // One that has not heard of the top-up ends the load that it knows.
    bench.steward.advance(rain.clone()).await.unwrap();
    let ready = bench.rain(rain.id).await;
    assert_eq!(
        (ready.state, ready.parts.loaded_packets()),
        (State::Ready, 2_500)
    );
    assert_eq!(
        fields(&bench, &rain, "state").await,
        vec![Some("ready".to_owned()); 2]
    );
    assert_eq!(left(&bench, &rain).await, 3_700);
    bench.top_up(&rain, 1, 3).await;
    bench.advance(rain.id).await.unwrap();
    assert!(bench.rain(rain.id).await.parts.are_loaded());
    assert_eq!(
        fields(&bench, &rain, "chunks").await,
        vec![Some("6".to_owned()); 2]
    );
    assert_eq!(left(&bench, &rain).await, 3_701);
    to_the_end(&bench, &rain).await;
}

#[tokio::test]
async fn packets_added_to_an_open_rain_are_won_like_the_others() {
    let bench = Bench::new(3).await;
    let rain = bench.open(300, 30_000).await;
    bench.grab(&rain, "first", 2_000).await;
    bench.advance(rain.id).await.unwrap();
    bench.grab(&rain, "first", 2_000).await; // what was moved to where they tap
    while !bench.rain(rain.id).await.sold_out {
        bench.grab(&rain, "first", 2_000).await;
        bench.advance(rain.id).await.unwrap();
    }
    assert_eq!(left(&bench, &rain).await, 0);
    let epochs = fields(&bench, &rain, "epoch").await;
    for (packets, total) in [(1_300, 26_000), (2, 5), (700, 14_000)] {
        let before = left(&bench, &rain).await;
        let topped_up = bench.top_up(&rain, packets, total).await;
        assert!(!topped_up.sold_out);
        bench.advance(rain.id).await.unwrap();
        assert!(bench.rain(rain.id).await.parts.are_loaded());
        assert_eq!(left(&bench, &rain).await, before + u64::from(packets));
    }
    let later = fields(&bench, &rain, "epoch").await;
    assert!(
        epochs
            .iter()
            .zip(&later)
            .all(|(before, after)| before < after),
        "{epochs:?} {later:?}"
    );
    assert_eq!(fields(&bench, &rain, "hungry").await, vec![None; 3]);
    bench.grab(&rain, "second", 900).await;
    assert_eq!(winners(&bench, &rain).await, 1_200);
    bench.grab(&rain, "first", 2_000).await;
    assert!(
        winners(&bench, &rain).await > 1_200,
        "who came too late may win now"
    );
    let before = winners(&bench, &rain).await;
    bench.grab(&rain, "second", 900).await;
    assert_eq!(winners(&bench, &rain).await, before, "nobody wins twice");
    to_the_end(&bench, &rain).await;
}

#[tokio::test]
async fn a_paused_rain_is_topped_up_and_stays_paused() {
    let bench = Bench::new(2).await;
    let rain = bench.open(10, 1_000).await;
    bench.ledger.step(rain.id, Step::Pause).await.unwrap();
    bench.advance(rain.id).await.unwrap();
    bench.top_up(&rain, 1_500, 15_000).await;
    bench.advance(rain.id).await.unwrap();
    assert_eq!(left(&bench, &rain).await, 1_510);
    bench.grab(&rain, "user", 50).await;
    assert_eq!(winners(&bench, &rain).await, 0);
    bench.ledger.step(rain.id, Step::Resume).await.unwrap();
    bench.advance(rain.id).await.unwrap();
    bench.grab(&rain, "user", 50).await;
    assert_eq!(winners(&bench, &rain).await, 50);
    to_the_end(&bench, &rain).await;
}

/// The gate used to ask for exactly all chunks: no pause or resume while a top-up was on its way.
#[tokio::test]
async fn a_rain_can_be_paused_with_half_a_top_up_loaded() {
    let mut bench = Bench::new(2).await;
    let rain = bench.open(100, 10_000).await;
    let topped_up = bench.top_up(&rain, 3_000, 30_000).await;
    // A steward loaded the first of its three chunks into one bucket, and died; now the other bucket's node is away.
    let first = chunk(&topped_up, 1, 0);
    bench.buckets(&rain)[0].top_up(1, &first).await.unwrap();
    bench.nodes[1].kill();
    bench.ledger.step(rain.id, Step::Pause).await.unwrap();
    assert!(bench.advance(rain.id).await.is_err());
    let half = bench.buckets(&rain)[0].clone();
    assert_eq!(field(&bench, &half, "state").await, Some("paused".into()));
    assert!(!bench.rain(rain.id).await.parts.are_loaded());

    bench.nodes[1].restart().await;
    bench.ledger.step(rain.id, Step::Resume).await.unwrap();
    advance_until_loaded(&bench, &rain).await;
    assert_eq!(left(&bench, &rain).await, 3_100);
    to_the_end(&bench, &rain).await;
}

#[tokio::test]
async fn two_stewards_that_load_a_top_up_at_once_double_nothing() {
    let bench = Bench::new(3).await;
    let rain = bench.open(300, 30_000).await;
    let other = bench.other_steward();
    for round in 0..6 {
        let now = bench.top_up(&rain, 2_500, 25_000).await;
        let people = format!("crowd{round}");
        let all = tokio::join!(
            bench.steward.advance(now.clone()),
            other.advance(now.clone()),
            bench.grab(&rain, &people, 1_000),
            other.advance(rain.clone()), // it has not heard of any of them
        );
        assert!(all.0.is_ok() && all.1.is_ok() && all.3.is_ok(), "{all:?}");
        assert!(bench.rain(rain.id).await.parts.are_loaded());
        left(&bench, &rain).await;
    }
    to_the_end(&bench, &rain).await;
}

#[tokio::test]
async fn a_large_top_up_is_loaded_in_slices_and_the_rain_goes_on() {
    let bench = Bench::new(2).await;
    let rain = bench.open(100, 10_000).await;
    bench.top_up(&rain, 150_000, 1_500_000).await;
    bench.advance(rain.id).await.unwrap();
    let chunks = fields(&bench, &rain, "chunks").await;
    assert_eq!(
        chunks,
        vec![Some("101".to_owned()); 2],
        "one slice of 100 chunks"
    );
    bench.grab(&rain, "user", 300).await;
    assert_eq!(winners(&bench, &rain).await, 300, "what is there is won");
    assert_eq!(
        left(&bench, &rain).await,
        149_800,
        "the rest is no difference"
    );
    bench.advance(rain.id).await.unwrap();
    assert!(bench.rain(rain.id).await.parts.are_loaded());
    assert_eq!(left(&bench, &rain).await, 149_800);
    to_the_end(&bench, &rain).await;
}

#[tokio::test]
async fn what_was_not_loaded_before_the_close_goes_back_to_the_sponsor() {
    let bench = Bench::new(2).await;
    let rain = bench.open(100, 10_000).await;
    bench.grab(&rain, "user", 30).await;
    let topped_up = bench.top_up(&rain, 3_000, 30_000).await;
    let topped_up = {
        bench.top_up(&topped_up, 5, 500).await;
        bench.rain(rain.id).await
    };
    let buckets = bench.buckets(&rain);
    // A steward loaded two chunks of the first top-up into one bucket, one into the other, and died. Some of them were won.
    for (bucket, k) in [(0, 1), (1, 1), (0, 2)] {
        let packets = chunk(&topped_up, k, bucket);
        assert_eq!(
            buckets[bucket].top_up(k, &packets).await.unwrap(),
            Some(k + 1)
        );
    }
    bench.grab(&rain, "user", 600).await;
    assert_eq!(winners(&bench, &rain).await, 600);
    assert_eq!(left(&bench, &rain).await, 2_505);
    // Then the rain is closed, and a steward that was still loading finds the gates shut.
    let closed = bench
        .ledger
        .close_rain(rain.id, hongbao::clock::now_ms())
        .await
        .unwrap();
    for bucket in &buckets {
        bucket.close(Some(1)).await.unwrap();
    }
    bench.steward.advance(topped_up.clone()).await.unwrap();
    assert_eq!(
        fields(&bench, &rain, "chunks").await,
        [Some("3".into()), Some("2".into())]
    );
    assert_eq!(left(&bench, &rain).await, 2_505);
    // Two stewards refund at once, and once more.
    let other = bench.other_steward();
    let both = tokio::join!(
        bench.steward.advance(closed.clone()),
        other.advance(closed.clone())
    );
    assert!(both.0.is_ok() && both.1.is_ok(), "{both:?}");
    other.advance(closed).await.unwrap();
    let report = bench.audit(rain.id).await;
    assert_eq!(bench.balance("sponsor:acme").await, report.refunded_cents.0);
    assert_eq!(report.refunded_cents.0 + report.claims_cents.0, 40_500);
    assert_eq!((report.pool_count, report.claims_count), (2_505, 600));
    to_the_end(&bench, &rain).await;
}

#[tokio::test]
async fn a_rain_called_off_before_its_load_gives_its_top_ups_back_too() {
    let bench = Bench::new(2).await;
    let rain = bench.created(2_000, 200_000).await;
    bench.top_up(&rain, 1_000, 10_000).await;
    let bucket = bench.buckets(&rain)[0].clone();
    bucket.load(0, &chunk(&rain, 0, 0)).await.unwrap();
    to_the_end(&bench, &rain).await;
    assert_eq!(bench.balance("sponsor:acme").await, 210_000);
}

/// A steward that has just counted every packet as won writes it down after the top-up.
#[tokio::test]
async fn a_steward_that_missed_a_top_up_does_not_call_the_rain_sold_out() {
    let bench = Bench::new(1).await;
    let rain = bench.open(50, 5_000).await;
    bench.grab(&rain, "user", 60).await;
    let before = bench.rain(rain.id).await;
    bench.top_up(&rain, 10, 1_000).await;
    let late = bench.other_steward();
    late.advance(before.clone()).await.unwrap();
    assert!(!bench.rain(rain.id).await.sold_out);
    bench.advance(rain.id).await.unwrap();
    late.advance(before).await.unwrap();
    assert!(!bench.rain(rain.id).await.sold_out);
    let published = bench.store.snapshot(rain.id).await.unwrap().unwrap();
    assert!(!published.sold_out);

    bench.grab(&rain, "user", 70).await;
    bench.advance(rain.id).await.unwrap();
    bench.advance(rain.id).await.unwrap();
    assert!(bench.rain(rain.id).await.sold_out, "all 60 are won");
    assert_eq!(winners(&bench, &rain).await, 60);
    to_the_end(&bench, &rain).await;
}

/// As long as a top-up is not in its pools, nothing is sold out, however empty they are.
#[tokio::test]
async fn a_rain_whose_top_up_waits_for_its_node_is_not_sold_out() {
    let mut bench = Bench::new(2).await;
    let rain = bench.open(60, 6_000).await;
    while !bench.rain(rain.id).await.sold_out {
        bench.grab(&rain, "user", 200).await;
        bench.advance(rain.id).await.unwrap();
    }
    bench.top_up(&rain, 2, 200).await; // one packet for each bucket
    bench.nodes[1].kill();
    for _ in 0..3 {
        assert!(bench.advance(rain.id).await.is_err());
        assert!(!bench.rain(rain.id).await.sold_out);
    }
    bench.nodes[1].restart().await;
    advance_until_loaded(&bench, &rain).await;
    assert_eq!(left(&bench, &rain).await, 2);
    to_the_end(&bench, &rain).await;
}

#[tokio::test]
async fn an_audit_that_began_before_a_top_up_knows_its_packets() {
    let bench = Bench::new(2).await;
    let rain = bench.open(100, 10_000).await;
    bench.top_up(&rain, 1_500, 15_000).await;
    bench.advance(rain.id).await.unwrap();
    bench.grab(&rain, "user", 700).await;
    let report = audit(&bench.store, &bench.ledger, &rain).await.unwrap();
    assert!(report.balanced, "{:?}", report.differences.first());
    assert_eq!((report.packets, report.claims_count), (1_600, 700));
    // What is really wrong is so for every look.
    let bucket = bench.buckets(&rain)[0].clone();
    bench.nodes[0].call(&["LPOP", &bucket.keys.pool]).await;
    let report = audit(&bench.store, &bench.ledger, &rain).await.unwrap();
    let kinds: Vec<Kind> = report.differences.iter().map(|found| found.kind).collect();
    assert_eq!(kinds, [Kind::MissingPacket]);
}

/// Node 1 comes back without the chunk of a top-up that it had: some of its packets were won and paid, some won and not paid.
#[tokio::test]
async fn a_chunk_of_a_top_up_that_a_node_has_forgotten_is_not_given_twice() {
    let mut bench = Bench::new(2).await;
    let rain = bench.open(20, 2_000).await;
    bench.grab(&rain, "user", 5).await;
    let before = bench.nodes[1].aof_len();
    // Three chunks: both buckets have the first, and a steward died.
    let topped_up = bench.top_up(&rain, 2_500, 25_000).await;
    for (number, bucket) in bench.buckets(&rain).iter().enumerate() {
        let packets = chunk(&topped_up, 1, number);
        bucket.top_up(1, &packets).await.unwrap();
    }
    bench.grab(&rain, "paid", 300).await;
    settled(&bench, &rain).await;
    bench.grab(&rain, "unpaid", 50).await;
    let won = winners(&bench, &rain).await;
    bench.nodes[1].roll_back(before).await;
    let forgetful = bench.buckets(&rain)[1].clone();
    crate::support::eventually("the node", async || forgetful.standing().await.ok()).await;
    assert_eq!(forgetful.chunks_loaded().await.unwrap(), 1);
    assert!(
        forgetful.top_up(1, &chunk(&topped_up, 1, 1)).await.is_err(),
        "nothing more comes into a suspect bucket"
    );
    advance_until_loaded(&bench, &rain).await;
    assert_eq!(
        fields(&bench, &rain, "chunks").await,
        vec![Some("4".to_owned()); 2]
    );
    let now = winners(&bench, &rain).await;
    assert!(
        now < won,
        "who was not paid has lost the packet: {now} of {won}"
    );
    assert_eq!(left(&bench, &rain).await, 2_520 - now);
    bench.grab(&rain, "late", 400).await;
    settled(&bench, &rain).await;
    assert_eq!(
        bench.audit(rain.id).await.dead_count,
        0,
        "no packet is paid twice"
    );
    to_the_end(&bench, &rain).await;
}

/// A node that comes back empty looks like one whose load has not begun.
#[tokio::test]
async fn a_node_that_comes_back_empty_is_repaired_with_the_top_up_that_was_on_its_way() {
    let mut bench = Bench::new(2).await;
    let rain = bench.open(200, 20_000).await;
    bench.grab(&rain, "paid", 60).await;
    settled(&bench, &rain).await;
    bench.nodes[1].restart_empty().await;
    let topped_up = bench.top_up(&rain, 1_500, 15_000).await;
    let empty = bench.buckets(&rain)[1].clone();
    crate::support::eventually("the node", async || empty.standing().await.ok()).await;
    for k in 0..2 {
        let loaded = empty.top_up(k, &chunk(&topped_up, k, 1)).await;
        assert!(
            loaded.is_err(),
            "chunk {k} is not loaded into a bucket that is gone"
        );
    }
    // One that has not heard of the top-up repairs first; or the other does.
    let other = bench.other_steward();
    crate::support::eventually("the top-up to be loaded", async || {
        let _ = other.advance(rain.clone()).await;
        let _ = bench.advance(rain.id).await;
        bench.rain(rain.id).await.parts.are_loaded().then_some(())
    })
    .await;
    assert_eq!(left(&bench, &rain).await, 1_640);
    assert_eq!(winners(&bench, &rain).await, 60);
    to_the_end(&bench, &rain).await;
}

/// It would count too few chunks, and the next load would append those of the top-up once more.
#[tokio::test]
async fn a_repair_asked_for_by_somebody_who_missed_a_top_up_knows_it_all_the_same() {
    let mut bench = Bench::new(2).await;
    let rain = bench.open(100, 10_000).await;
    bench.top_up(&rain, 1_500, 15_000).await;
    bench.advance(rain.id).await.unwrap();
    bench.grab(&rain, "user", 80).await;
    bench.nodes[1].restart().await;
    let late = bench.other_steward();
    let report =
        crate::support::eventually("the repair", async || match late.repair(&rain).await {
            Ok(Repair::Done(report)) => Some(report),
            _ => None,
        })
        .await;
    assert_eq!(report.buckets, [1]);
    assert_eq!((report.packets_removed, report.packets_returned), (0, 0));
    assert_eq!(
        fields(&bench, &rain, "chunks").await,
        vec![Some("3".to_owned()); 2]
    );
    advance_until_loaded(&bench, &rain).await;
    assert_eq!(left(&bench, &rain).await, 1_520);
    to_the_end(&bench, &rain).await;
}

/// The top-up was half loaded when the rain was closed and a node forgot its half.
#[tokio::test]
async fn a_closed_rain_with_half_a_top_up_is_repaired_and_refunded_exactly() {
    let mut bench = Bench::new(2).await;
    let rain = bench.open(100, 10_000).await;
    let before = bench.nodes[0].aof_len();
    let topped_up = bench.top_up(&rain, 2_500, 25_000).await;
    let first = bench.buckets(&rain)[0].clone();
    first.top_up(1, &chunk(&topped_up, 1, 0)).await.unwrap();
    bench.grab(&rain, "paid", 200).await;
    settled(&bench, &rain).await;
    let now = hongbao::clock::now_ms();
    bench.ledger.close_rain(rain.id, now).await.unwrap();
    bench.nodes[0].roll_back(before).await;
    crate::support::eventually("the finish", async || {
        let state = bench.advance(rain.id).await;
        (state == Ok(State::Finished)).then_some(())
    })
    .await;
    left(&bench, &rain).await;
    let totals = bench.ledger.rain_totals(rain.id).await.unwrap();
    assert!(totals.credited_count > 100, "{totals:?}");
    assert_eq!(totals.credited.0 + totals.refunded.0, 35_000);
    assert_eq!(totals.escrow_balance.0, 0);
}

#[tokio::test]
async fn what_a_node_lost_before_the_opening_is_loaded_again_with_the_top_ups() {
    let bench = Bench::new(2).await;
    let rain = bench.ready(400, 40_000).await;
    bench.top_up(&rain, 100, 1_000).await;
    bench.advance(rain.id).await.unwrap();
    bench.nodes[1].call(&["FLUSHALL"]).await;
    let other = bench.other_steward();
    eventually("the packets to be back", async || {
        other.advance(bench.rain(rain.id).await).await.unwrap();
        bench.audit(rain.id).await.balanced.then_some(())
    })
    .await;
    assert_eq!(left(&bench, &rain).await, 500);
    to_the_end(&bench, &rain).await;
}
