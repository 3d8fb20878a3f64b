//! Stewards that leave a rain to whoever holds its lease.

use std::sync::Arc;
use std::time::Duration;

use hongbao::config::LeaseTerms;
use hongbao::rain::{Rain, State};
use hongbao::steward::Steward;
use hongbao::store::fenced::Wait;
use hongbao::store::keys;
use hongbao::store::slots::{even_owner, slot_of};
use hongbao::{settle, steward};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{Contender, LONG, held, holder};
use crate::support::bench::Bench;
use crate::support::eventually;
use crate::support::server::Server;

#[tokio::test]
async fn a_steward_leaves_a_rain_alone_until_its_lease_is_free() {
    let bench = Bench::new(1).await;
    let mine = Contender::new(bench.store.clone(), LONG);
    let rain = bench.created(100, 10_000).await;
    let lease = mine
        .leases
        .acquire(&keys::rain_lease(rain.id), Wait::GiveUpAtOnce)
        .await
        .unwrap()
        .unwrap();
    let other = bench.created(100, 10_000).await;
    let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
    let steward = Steward::new(
        &bench.settings.steward,
        bench.store.clone(),
        bench.ledger.clone(),
    );
    steward::start(Arc::new(steward), &tasks, &stop);
    let ready = async |id| {
        eventually("a loaded rain", async || {
            (bench.rain(id).await.state == State::Ready).then_some(())
        })
        .await;
    };
    ready(other.id).await;
    assert_eq!(bench.rain(rain.id).await.state, State::Created);
    assert!(lease.release().await);
    ready(rain.id).await;
    stop.cancel();
    tasks.close();
    tasks.wait().await;
    for rain in [rain, other] {
        let name = keys::rain_lease(rain.id);
        assert_eq!(held(&bench.nodes[0], &name).await, None, "released by stop");
    }
    mine.end().await;
}

#[tokio::test]
async fn a_rain_whose_lease_lies_on_a_dead_node_is_not_left_alone() {
    let mut bench = Bench::new(2).await;
    let rain = bench.ready(200, 20_000).await;
    let name = keys::rain_lease(rain.id);
    let node = even_owner(slot_of(&keys::lease(&name)[0]), 2);
    let mut settings = bench.settings.steward.clone();
    settings.lease = LeaseTerms {
        length: Duration::from_secs(1),
        renew_interval: Duration::from_millis(200),
        margin: Duration::from_millis(200),
    };
    let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
    let steward = Steward::new(&settings, bench.store.clone(), bench.ledger.clone());
    steward::start(Arc::new(steward), &tasks, &stop);
    eventually("a steward at work", async || {
        held(&bench.nodes[node], &name).await
    })
    .await;
    bench.nodes[node].kill();
    tokio::time::sleep(settings.lease.length).await; // by then the lease is lost; nobody outside the steward can see it
    // Opened so long ago that it is time to close: that much can be done on one node.
    let opened = hongbao::clock::now_ms() - rain.window.duration_ms - 1;
    bench.ledger.open_rain(rain.id, opened).await.unwrap();
    eventually("the end of the rain's time", async || {
        (bench.rain(rain.id).await.state == State::Closed).then_some(())
    })
    .await;
    bench.nodes[node].restart().await;
    eventually("the end of the rain", async || {
        (bench.rain(rain.id).await.state == State::Finished).then_some(())
    })
    .await;
    assert!(bench.audit(rain.id).await.balanced);
    stop.cancel();
    tasks.close();
    tasks.wait().await;
}

/// A process that is a steward and nothing else.
fn steward_process(bench: &Bench, ledger: &str, terms: &[&str]) -> Server {
    let urls: Vec<String> = bench.nodes.iter().map(|node| node.url()).collect();
    let (urls, ledger) = (
        format!("store.nodes={urls:?}"),
        format!("ledger.url={ledger}"),
    );
    let mut settings = vec![
        "store.topology=nodes",
        &urls,
        &ledger,
        "server.roles=[\"steward\"]",
    ];
    settings.extend(terms);
    Server::start(&settings)
}

/// A bench whose ledger two processes share with it, two stewards, a rain, and which of them is at work on it: that one first.
async fn two_stewards(terms: &[&str]) -> (Bench, Rain, u64, [Server; 2]) {
    let dir = tempfile::tempdir().unwrap();
    let ledger = format!("sqlite:{}", dir.path().join("ledger").display());
    let bench = Bench::with_ledger(1, &ledger, dir).await;
    let rain = bench.created(400, 40_000).await;
    let mut stewards = [(); 2].map(|()| steward_process(&bench, &ledger, terms));
    let name = keys::rain_lease(rain.id);
    let (fence, pid) = eventually("a steward at work", async || {
        holder(&bench.nodes[0], &name).await
    })
    .await;
    if stewards[1].addresses.pid == pid {
        stewards.swap(0, 1);
    }
    assert_eq!(stewards[0].addresses.pid, pid);
    (bench, rain, fence, stewards)
}

#[tokio::test]
async fn when_a_steward_is_killed_the_other_takes_over_and_brings_the_rain_to_its_end() {
    let terms = [
        "steward.lease_ms=2000",
        "steward.lease_renew_ms=200",
        "steward.lease_margin_ms=200",
    ];
    let (bench, rain, fence, [mut first, second]) = two_stewards(&terms).await;
    let name = keys::rain_lease(rain.id);
    first.kill();
    let (next_fence, next) = eventually("another steward at work", async || {
        let found = holder(&bench.nodes[0], &name).await;
        found.filter(|(_, pid)| *pid != first.addresses.pid)
    })
    .await;
    assert_eq!(next, second.addresses.pid);
    assert!(next_fence > fence);
    let closed = bench
        .ledger
        .close_rain(rain.id, hongbao::clock::now_ms())
        .await;
    closed.unwrap();
    eventually("the end of the rain", async || {
        (bench.rain(rain.id).await.state == State::Finished).then_some(())
    })
    .await;
    assert_eq!(bench.balance("sponsor:acme").await, 40_000);
    eventually("the lease of a finished rain to be released", async || {
        held(&bench.nodes[0], &name).await.is_none().then_some(())
    })
    .await;
    assert!(second.stop().await.success());
}

#[tokio::test]
async fn a_steward_that_stops_hands_its_rains_over_at_once() {
    // Whoever waited for the end of this lease would wait for ever.
    let (bench, rain, fence, [first, second]) = two_stewards(&["steward.lease_ms=600000"]).await;
    let first_pid = first.addresses.pid;
    assert!(first.stop().await.success());
    let name = keys::rain_lease(rain.id);
    let (next_fence, next) = eventually("another steward at work", async || {
        let found = holder(&bench.nodes[0], &name).await;
        found.filter(|(_, pid)| *pid != first_pid)
    })
    .await;
    assert_eq!(next, second.addresses.pid);
    assert!(next_fence > fence);
}

/// The lease is taken away again and again, so that both stewards are at work on the rain at times: a waste, and nothing else.
#[tokio::test]
async fn two_stewards_at_work_on_one_rain_do_no_harm() {
    let bench = Bench::new(3).await;
    let mut settings = bench.settings.steward.clone();
    settings.interval = Duration::from_millis(5);
    // The holder learns late that it has lost its lease; the other asks soon.
    settings.lease = LeaseTerms {
        length: Duration::from_millis(200),
        renew_interval: Duration::from_millis(150),
        margin: Duration::from_millis(10),
    };
    let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
    for _ in 0..2 {
        let steward = Steward::new(&settings, bench.store.clone(), bench.ledger.clone());
        steward::start(Arc::new(steward), &tasks, &stop);
    }
    let (store, ledger) = (bench.store.clone(), bench.ledger.clone());
    settle::start(bench.settle(), store, ledger, &tasks, &stop);
    let rain = bench.created(900, 90_000).await;
    let is = async |wanted: State| bench.rain(rain.id).await.state >= wanted;
    eventually("a loaded rain", async || {
        is(State::Ready).await.then_some(())
    })
    .await;
    let opened = bench.ledger.open_rain(rain.id, hongbao::clock::now_ms());
    opened.await.unwrap();
    let name = keys::rain_lease(rain.id);
    let [key, _] = keys::lease(&name);
    let node = &bench.nodes[even_owner(slot_of(&key), 3)];
    let mut fences = std::collections::BTreeSet::new();
    let mut taps = 0;
    eventually("a finished rain with many holders", async || {
        if let Some((fence, _)) = holder(node, &name).await {
            fences.insert(fence);
        }
        node.call(&["DEL", &key]).await;
        taps += 1;
        bench.grab(&rain, &format!("crowd{taps}"), 10).await;
        if fences.len() >= 8 && !is(State::Closed).await {
            let now = hongbao::clock::now_ms();
            bench.ledger.close_rain(rain.id, now).await.unwrap();
        }
        is(State::Finished).await.then_some(())
    })
    .await;
    let report = bench.audit(rain.id).await;
    assert!(report.balanced, "{:?}", report.differences.first());
    stop.cancel();
    tasks.close();
    tasks.wait().await;
}
