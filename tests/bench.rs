//! Benchmarks of settlement, loading and auditing, each shown as a ratio or a rate of one run. `make bench-settle`.

#[path = "suite/support/mod.rs"]
#[allow(dead_code, reason = "shared with the suite, which uses the rest")]
mod support;

use std::time::{Duration, Instant};

use hongbao::config;
use hongbao::rain::split::{Rule, Seed, Split, Tier};
use hongbao::rain::{Cents, Rain};
use hongbao::settle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use support::bench::Bench;
use support::postgres;

const CLAIMS: u32 = 100_000;
/// Enough to take about a second one by one.
const CLAIMS_ONE_BY_ONE: u32 = 1_000;
const ROUNDS: usize = 3;

/// A rain of which `claims` packets have been won and none settled.
async fn won(bench: &Bench, claims: u32) -> Rain {
    let rain = bench.open(claims, i64::from(claims) * 100).await;
    // More people than packets, since they do not spread evenly over the buckets.
    bench.grab(&rain, "user", claims + claims / 5 + 100).await;
    rain
}

/// Claims settled per second, from the claim list to the ack of the last.
async fn settled_per_second(bench: &Bench, settings: &config::Settle, claims: u32) -> f64 {
    let rain = won(bench, claims).await;
    let buckets = bench.buckets(&rain);
    let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
    let started = Instant::now();
    settle::start(
        settings,
        bench.store.clone(),
        bench.ledger.clone(),
        &tasks,
        &stop,
    );
    loop {
        let mut unsettled = 0;
        for bucket in &buckets {
            unsettled += bucket.census().await.unwrap().unsettled();
        }
        if unsettled == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await; // a finer look would take its time from the settlers
    }
    let rate = f64::from(claims) / started.elapsed().as_secs_f64();
    stop.cancel();
    tasks.close();
    tasks.wait().await;
    rate
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

async fn settlement(name: &str, bench: &Bench) {
    let batched = bench.settle().clone();
    let one_by_one = config::Settle {
        workers: 1,
        batch_max: 1,
        ..batched.clone()
    };
    let (mut fast, mut slow) = (vec![], vec![]);
    for _ in 0..ROUNDS {
        fast.push(settled_per_second(bench, &batched, CLAIMS).await);
        slow.push(settled_per_second(bench, &one_by_one, CLAIMS_ONE_BY_ONE).await);
    }
    println!("{name}: batched {fast:.0?} claims/s, one transaction a claim {slow:.0?} claims/s");
    let (fast, slow) = (median(fast), median(slow));
    let verdict = if fast >= 10.0 * slow {
        "reached"
    } else {
        "MISSED"
    };
    println!(
        "{name}: {fast:.0} / {slow:.0} = {:.1} x (goal 10 x: {verdict})",
        fast / slow
    );
    assert!(fast >= 10.0 * slow, "the goal is missed");
}

#[tokio::test(flavor = "multi_thread")]
async fn b7_settlement_on_sqlite() {
    settlement("B7 settlement, SQLite", &Bench::new(3).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn b7_settlement_on_postgres() {
    let database = postgres::database().await;
    let bench = Bench::with_ledger(3, &database, tempfile::tempdir().unwrap()).await;
    settlement("B7 settlement, PostgreSQL", &bench).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_million_packets_loaded_and_audited() {
    let bench = Bench::new(3).await;
    let rain = bench.created(1_000_000, 500_000_000).await;
    let started = Instant::now();
    bench.steward.advance(rain.clone()).await.unwrap();
    println!(
        "load: 1,000,000 packets into 3 nodes in {:.2?} (goal 3 s)",
        started.elapsed()
    );
    let rain = bench
        .ledger
        .open_rain(rain.id, hongbao::clock::now_ms() - 10)
        .await
        .unwrap();
    bench.steward.advance(rain.clone()).await.unwrap();
    bench.grab(&rain, "user", 500_000).await;
    let started = Instant::now();
    let report = bench.audit(rain.id).await;
    assert!(report.balanced);
    println!(
        "audit: 1,000,000 packets, {} in pools, {} claims, in {:.2?} (goal 20 s)",
        report.pool_count,
        report.claims_count,
        started.elapsed()
    );
}

#[test]
fn ten_million_packets_split() {
    let packets = 10_000_000;
    let tiers = vec![
        Tier {
            count: 10,
            cents: Cents(88_800),
        },
        Tier {
            count: 999_990,
            cents: Cents(888),
        },
        Tier {
            count: 9_000_000,
            cents: Cents(18),
        },
    ];
    let tier_total: i64 = tiers
        .iter()
        .map(|tier| i64::from(tier.count) * tier.cents.0)
        .sum();
    for (name, rule, total) in [
        ("even", Rule::Even, 3_000_000_000),
        ("double_mean", Rule::DoubleMean, 3_000_000_000),
        ("line_cut", Rule::LineCut, 3_000_000_000),
        ("tiers", Rule::Tiers(tiers), tier_total),
    ] {
        let split = Split {
            rule,
            total: Cents(total),
            packets,
            min: Cents(1),
            max: Cents(i64::MAX),
        };
        let started = Instant::now();
        let sum: Cents = split.allocation(&Seed([1; 32])).unwrap().amounts().sum();
        assert_eq!(sum, split.total);
        println!(
            "split {name}: 10,000,000 packets in {:.2?} (goal 5 s)",
            started.elapsed()
        );
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status
        .lines()
        .find(|line| line.starts_with("VmHWM"))
        .unwrap_or_default();
    println!(
        "split: peak memory of this process {} (goal 200 MB)",
        peak.trim_start_matches("VmHWM:").trim()
    );
}
