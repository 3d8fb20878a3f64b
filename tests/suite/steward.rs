//! A steward and settlers in this process, on nodes that the test can spoil.

use hongbao::ledger::Verdict;
use hongbao::rain::{Claim, State, UserId};
use hongbao::steward::audit::Kind;
use redis::Value;

use crate::support::bench::{Bench, Settlers};
use crate::support::eventually;

/// Three rains of three buckets used to add up to more claims than one transaction takes: nothing was settled any more.
#[tokio::test]
async fn many_rains_with_a_backlog_are_settled_side_by_side() {
    let bench = Bench::new(3).await;
    let mut rains = vec![];
    for _ in 0..7 {
        let rain = bench.open(2_100, 210_000).await;
        bench.grab(&rain, "user", 2_000).await;
        rains.push(rain);
    }
    let settlers = Settlers::start(&bench);
    for rain in &rains {
        eventually("a settled rain", async || {
            let report = bench.audit(rain.id).await;
            (report.in_motion == 0 && report.credited_count > 0).then_some(())
        })
        .await;
    }
    settlers.stop().await;
    for rain in &rains {
        let report = bench.audit(rain.id).await;
        assert!(report.balanced, "{:?}", report.differences.first());
    }
}

#[tokio::test]
async fn a_rain_called_off_while_it_loads_gives_everything_back() {
    let bench = Bench::new(2).await;
    let rain = bench.created(3_000, 300_000).await;
    // One chunk of one bucket has arrived.
    let bucket = &bench.buckets(&rain)[0];
    assert_eq!(bucket.load(0, &[]).await.unwrap(), Some(1));
    assert!(
        bench.audit(rain.id).await.balanced,
        "packets that are not loaded yet are not missing"
    );
    bench.ledger.close_rain(rain.id, 5).await.unwrap();
    assert_eq!(bench.advance(rain.id).await, Ok(State::Refunded));
    assert_eq!(bench.balance("sponsor:acme").await, 300_000);
    assert_eq!(bench.advance(rain.id).await, Ok(State::Finished));
    assert!(bench.audit(rain.id).await.balanced);
    // A steward that was still loading finds the gates shut.
    assert_eq!(bucket.load(1, &[]).await.unwrap(), None);
}

#[tokio::test]
async fn a_load_that_runs_twice_or_at_once_doubles_nothing() {
    let bench = Bench::new(3).await;
    let rain = bench.created(5_000, 500_000).await;
    let both = tokio::join!(
        bench.steward.advance(rain.clone()),
        bench.steward.advance(rain.clone())
    );
    assert!(both.0.is_ok() && both.1.is_ok(), "{both:?}");
    let report = bench.audit(rain.id).await;
    assert!(report.balanced, "{:?}", report.differences.first());
    assert_eq!(report.pool_count, 5_000);
}

#[tokio::test]
async fn what_was_lost_before_the_opening_is_loaded_again() {
    let bench = Bench::new(2).await;
    let rain = bench.ready(400, 40_000).await;
    bench.nodes[1].call(&["FLUSHALL"]).await;
    // The steward looks again after a second, or when it is a new one.
    let fresh = hongbao::steward::Steward::new(
        &bench.settings.steward,
        bench.store.clone(),
        bench.ledger.clone(),
    );
    eventually("the packets to be back", async || {
        fresh.advance(rain.clone()).await.unwrap();
        bench.audit(rain.id).await.balanced.then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_refund_pays_each_left_packet_once_and_no_damaged_pool() {
    let bench = Bench::new(2).await;
    let rain = bench.open(200, 20_000).await;
    bench.grab(&rain, "user", 50).await;
    let bucket = bench.buckets(&rain)[0].clone();
    let node = &bench.nodes[0];
    let Value::BulkString(packet) = node.call(&["LINDEX", &bucket.keys.pool, "0"]).await else {
        panic!()
    };
    let packet = String::from_utf8(packet).unwrap();
    node.call(&["RPUSH", &bucket.keys.pool, &packet]).await;
    let report = bench.audit(rain.id).await;
    assert_eq!(report.differences.len(), 1, "{:?}", report.differences);
    assert_eq!(
        (report.differences[0].kind, report.balanced),
        (Kind::PacketInTwoPlaces, false)
    );

    bench
        .ledger
        .close_rain(rain.id, hongbao::clock::now_ms())
        .await
        .unwrap();
    assert!(
        bench.advance(rain.id).await.is_err(),
        "a doubled packet is not refunded"
    );
    node.call(&["RPOP", &bucket.keys.pool]).await;
    node.call(&["RPUSH", &bucket.keys.pool, "30064771113:999"])
        .await;
    node.call(&["LPOP", &bucket.keys.pool]).await;
    assert!(
        bench.advance(rain.id).await.is_err(),
        "a foreign packet is not refunded"
    );
    node.call(&["RPOP", &bucket.keys.pool]).await;
    node.call(&["RPUSH", &bucket.keys.pool, &packet]).await;
    assert_eq!(bench.advance(rain.id).await, Ok(State::Refunded));
    let refunded = bench.balance("sponsor:acme").await;
    let report = bench.audit(rain.id).await;
    assert!(report.balanced, "{:?}", report.differences);
    assert_eq!(report.refunded_cents.0, refunded);
    assert_eq!(report.pool_cents.0 + report.claims_cents.0, 20_000);
    for _ in 0..3 {
        bench.steward.advance(rain.clone()).await.ok();
    }
    assert_eq!(
        bench.balance("sponsor:acme").await,
        refunded,
        "a late steward refunds nothing more"
    );
}

#[tokio::test]
async fn the_audit_names_every_kind_of_difference() {
    let bench = Bench::new(1).await;
    let rain = bench.open(100, 10_000).await;
    bench.grab(&rain, "user", 20).await;
    let bucket = bench.buckets(&rain)[0].clone();
    let (node, keys) = (&bench.nodes[0], &bucket.keys);
    let Value::Array(claims) = node.call(&["LRANGE", &keys.claims, "0", "-1"]).await else {
        panic!()
    };
    let claim = |n: usize| -> Claim {
        let Value::BulkString(bytes) = &claims[n] else {
            panic!()
        };
        String::from_utf8(bytes.clone()).unwrap().parse().unwrap()
    };
    // Each line spoils one thing; what it must be called stands behind it.
    node.call(&["LREM", &keys.claims, "0", &claim(0).to_string()])
        .await; // a win that is not credited
    let thief = Claim {
        user: UserId::new("thief").unwrap(),
        ..claim(1)
    };
    assert_eq!(
        bench.ledger.credit(&[thief], 1).await.unwrap(),
        [Verdict::Credited]
    ); // a wrong user
    node.call(&["RPOP", &keys.pool]).await; // a missing packet
    node.call(&["LPUSH", &keys.pool, "9999999999999:5"]).await; // an unknown packet
    node.call(&["LPUSH", &keys.claims, "scribble"]).await; // unreadable
    node.call(&[
        "HSET",
        &keys.winners,
        "user-twice",
        &claim(2).packet.to_string(),
    ])
    .await; // another wrong user
    let wrong = Claim {
        packet: hongbao::rain::Packet {
            cents: hongbao::rain::Cents(1_000_000),
            ..claim(3).packet
        },
        ..claim(3)
    };
    node.call(&["LREM", &keys.claims, "0", &claim(3).to_string()])
        .await;
    node.call(&["LPUSH", &keys.claims, &wrong.to_string()])
        .await; // a wrong amount
    let report = bench.audit(rain.id).await;
    let mut kinds: Vec<String> = report
        .differences
        .iter()
        .map(|difference| format!("{:?}", difference.kind))
        .collect();
    kinds.sort();
    kinds.dedup();
    let expected = [
        "MissingPacket",
        "Unreadable",
        "UnknownPacket",
        "WinNotCredited",
        "WrongAmount",
        "WrongUser",
    ];
    assert!(
        expected
            .iter()
            .all(|kind| kinds.contains(&(*kind).to_owned())),
        "{kinds:?}\n{:#?}",
        report.differences
    );
    assert!(!report.balanced);
}

#[tokio::test]
async fn a_crowd_that_grabs_while_the_audit_reads_is_no_difference() {
    let bench = Bench::new(2).await;
    let rain = bench.open(20_000, 2_000_000).await;
    let settlers = Settlers::start(&bench);
    let grabbing = async {
        for n in 0..40 {
            bench.grab(&rain, &format!("crowd{n}"), 400).await;
        }
    };
    let auditing = async {
        for _ in 0..4 {
            let report = bench.audit(rain.id).await;
            assert!(
                report.balanced,
                "{} differences: {:?}",
                report.differences_total,
                report.differences.first()
            );
        }
    };
    tokio::join!(grabbing, auditing);
    settlers.stop().await;
}
