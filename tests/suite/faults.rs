//! Stores that go away, fill up, forget; settlers that freeze. After each the audit runs.

use std::path::Path;
use std::process::Command;

use hongbao::rain::Rain;

use crate::support::bench::{Bench, Settlers};
use crate::support::crowd::{assert_paid, crowd};
use crate::support::eventually;
use crate::support::postgres::{self, Private};
use crate::support::redis::Redis;
use crate::support::server::Server;

async fn assert_all_credited(bench: &Bench, rain: &Rain, wins: u64) {
    eventually("every claim to be credited", async || {
        let totals = bench.ledger.rain_totals(rain.id).await.ok()?;
        (totals.credited_count == wins).then_some(())
    })
    .await;
    eventually("every claim to be acked", async || {
        let report = bench.audit(rain.id).await;
        assert!(report.balanced, "{:?}", report.differences.first());
        (report.in_motion == 0 && report.dead_count == 0).then_some(())
    })
    .await;
    assert!(bench.ledger.books().await.unwrap().agree());
}

#[tokio::test]
async fn postgres_that_is_killed_and_restarted_during_settlement_pays_everyone_once() {
    let mut postgres = Private::start();
    let bench = Bench::with_ledger(2, &postgres.url(), tempfile::tempdir().unwrap()).await;
    let rain = bench.open(6_000, 600_000).await;
    bench.grab(&rain, "user", 5_000).await;
    let settlers = Settlers::start(&bench);
    for credited in [1, 2_500] {
        eventually("some credits", async || {
            let totals = bench.ledger.rain_totals(rain.id).await.ok()?;
            (totals.credited_count >= credited).then_some(())
        })
        .await;
        postgres.kill();
        postgres.restart();
    }
    assert_all_credited(&bench, &rain, 5_000).await;
    settlers.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn scripts_that_are_flushed_in_a_loop_are_no_error_to_anyone() {
    let server = Server::start(&["store.managed_nodes=2"]);
    let rain = server.open_rain(300, 60_000).await;
    let people = crowd(&server, rain, 320);
    let flushing = async {
        loop {
            for node in &server.addresses.nodes {
                let client = redis::Client::open(format!("redis+unix://{node}")).unwrap();
                let mut connection = client.get_multiplexed_async_connection().await.unwrap();
                let _: String = redis::cmd("SCRIPT")
                    .arg("FLUSH")
                    .query_async(&mut connection)
                    .await
                    .unwrap();
            }
        }
    };
    let told = tokio::select! {
        told = people.end() => told,
        () = flushing => unreachable!(),
    };
    assert_paid(&server, rain, &told).await;
    assert!(!server.log().contains("ERROR"), "{}", server.log());
}

/// Settlers in processes of their own, so that one can be frozen.
fn settler(nodes: &[&Redis], ledger: &str) -> Server {
    let urls: Vec<String> = nodes.iter().map(|node| node.url()).collect();
    let (urls, ledger) = (
        format!("store.nodes={urls:?}"),
        format!("ledger.url={ledger}"),
    );
    let roles = "server.roles=[\"settle\"]";
    Server::start(&[
        "store.topology=nodes",
        &urls,
        &ledger,
        roles,
        "settle.lease_ms=5000",
        "settle.batch_max=50",
    ])
}

#[tokio::test]
async fn a_settler_that_freezes_past_its_lease_and_wakes_up_again_pays_nobody_twice() {
    let database = postgres::database().await;
    let bench = Bench::with_ledger(1, &database, tempfile::tempdir().unwrap()).await;
    let rain = bench.open(3_000, 300_000).await;
    bench.grab(&rain, "user", 3_000).await;
    let nodes: Vec<&Redis> = bench.nodes.iter().collect();
    let frozen = settler(&nodes, &database);
    let signal = |signal: nix::sys::signal::Signal| {
        nix::sys::signal::kill(
            nix::unistd::Pid::from_raw(frozen.addresses.pid as i32),
            signal,
        )
        .unwrap();
    };
    // Frozen at some moment between a lease and its ack.
    eventually("a settler that holds a lease", async || {
        signal(nix::sys::signal::Signal::SIGSTOP);
        let leased = bench.buckets(&rain)[0].census().await.unwrap().leased;
        if leased == 0 {
            signal(nix::sys::signal::Signal::SIGCONT);
        }
        (leased > 0).then_some(())
    })
    .await;
    let awake = settler(&nodes, &database);
    assert_all_credited(&bench, &rain, 3_000).await;
    signal(nix::sys::signal::Signal::SIGCONT);
    // The late one carries on with what it held, and finds it done.
    assert!(frozen.stop().await.success());
    assert!(awake.stop().await.success());
    assert_all_credited(&bench, &rain, 3_000).await;
}

/// A small tmpfs, unmounted with the test.
struct SmallDisk<'a>(&'a Path);

impl Drop for SmallDisk<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.0).status();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_under_sqlite_delays_credits_and_loses_none() {
    let dir = tempfile::tempdir().unwrap();
    if std::os::unix::fs::MetadataExt::uid(&dir.path().metadata().unwrap()) != 0 {
        println!("passed over: only root can mount a small disk");
        return;
    }
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=6m", "tmpfs"])
        .arg(dir.path())
        .status()
        .unwrap();
    assert!(mounted.success(), "a tmpfs cannot be mounted here");
    let _disk = SmallDisk(dir.path());
    let ledger = format!(
        "ledger.url=sqlite:{}",
        dir.path().join("ledger.sqlite").display()
    );
    let server = Server::start(&["store.managed_nodes=1", &ledger]);
    let rain = server.open_rain(4_000, 400_000).await;
    // Whatever space is left is taken.
    let ballast = dir.path().join("ballast");
    fill(&ballast);
    let people = crowd(&server, rain, 2_000);
    let told = people.end().await;
    assert!(told.len() > 1_000, "grabs do not need the ledger");
    eventually("the settler to notice", async || {
        server
            .log()
            .contains("is away; claims wait in Redis")
            .then_some(())
    })
    .await;
    std::fs::remove_file(&ballast).unwrap();
    server.until_settled(rain).await;
    assert_paid(&server, rain, &told).await;
}

fn fill(path: &Path) {
    use std::io::Write;
    let mut file = std::fs::File::create(path).unwrap();
    while file.write_all(&[0; 4_096]).is_ok() {}
}

#[tokio::test(flavor = "multi_thread")]
async fn a_whole_rain_on_postgres_ends_balanced() {
    let database = postgres::database().await;
    let server = Server::start(&[&format!("ledger.url={database}")]);
    let rain = server.open_rain(300, 100_000).await;
    let told = crowd(&server, rain, 400).end().await;
    assert_paid(&server, rain, &told).await;
}
