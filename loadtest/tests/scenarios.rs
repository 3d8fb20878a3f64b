//! The scenarios against a real server, in this process, on a Redis of its own.

use std::path::Path;

use clap::Parser;
use hongbao::config::{Settings, Sources};
use hongbao::serve::{self, Running};
use hongbao_load::args::Args;
use hongbao_load::{LoadError, Verdict};
use serde_json::Value;
use tempfile::TempDir;

struct Server {
    dir: TempDir,
    running: Running,
}

impl Server {
    async fn start() -> Server {
        // The path of a node's socket has to fit into 107 bytes.
        let dir = tempfile::Builder::new()
            .prefix("hl-")
            .tempdir_in("/tmp")
            .unwrap();
        let sources = Sources::default()
            .flag(
                "test",
                "server.data_dir",
                Some(dir.path().display().to_string()),
            )
            .flags([
                "gateway.listen=127.0.0.1:0",
                "admin.listen=127.0.0.1:0",
                "store.managed_nodes=1",
            ]);
        let settings = Settings::read(sources).unwrap().0;
        let running = serve::start(&settings, None).await.unwrap();
        Server { dir, running }
    }

    fn file(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    /// Runs a scenario; its verdict and what it wrote.
    async fn run(&self, scenario: &str, more: &[&str]) -> Result<(Verdict, Value), LoadError> {
        let addresses = &self.running.addresses;
        let mut words = vec!["hongbao-load".to_owned(), scenario.to_owned()];
        let mut add = |name: &str, value: String| words.extend([name.to_owned(), value]);
        add("--gateway", addresses.gateway.unwrap().to_string());
        add("--token-secret-file", self.file("token-secret"));
        if ["grabs", "push", "rain", "settle", "sweep"].contains(&scenario) {
            add("--admin", format!("http://{}", addresses.admin.unwrap()));
            add("--api-key-file", self.file("api-key"));
        }
        for kind in ["json", "csv", "html", "hdr"] {
            add(&format!("--{kind}"), self.file(&format!("out.{kind}")));
        }
        words.push("--quiet".to_owned());
        words.extend(more.iter().map(|word| (*word).to_owned()));
        let verdict = hongbao_load::run(Args::parse_from(words)).await?;
        let json = std::fs::read(self.file("out.json")).unwrap();
        Ok((verdict, serde_json::from_slice(&json).unwrap()))
    }

    async fn good(&self, scenario: &str, more: &[&str]) -> Value {
        let (verdict, record) = self.run(scenario, more).await.unwrap();
        assert_eq!(verdict, Verdict::Good, "{record:#}");
        record
    }

    async fn stop(self) {
        self.running.stop().await;
    }
}

/// Adds up the logs of several generators.
async fn merge(server: &Server, logs: &[&str]) -> Result<(Verdict, Value), LoadError> {
    let merged = server.file("merged.json");
    let mut words = vec!["hongbao-load", "merge", "--quiet", "--json", &merged];
    words.extend(logs);
    let verdict = hongbao_load::run(Args::parse_from(words)).await?;
    let json = std::fs::read(&merged).unwrap();
    Ok((verdict, serde_json::from_slice(&json).unwrap()))
}

fn count(record: &Value, name: &str) -> u64 {
    record[name].as_u64().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn grabs_by_plan_win_are_credited_and_written_down_in_every_form() {
    let server = Server::start().await;
    let flags = [
        "--rate",
        "500",
        "--length",
        "2s",
        "--ramp",
        "1s",
        "--sessions",
        "10",
        "--seed",
        "5",
    ];
    let record = server.good("grabs", &flags).await;
    // 250 in the ramp and 500 after it, with a standard deviation of 27.
    let planned = count(&record, "planned");
    assert!((600..900).contains(&planned), "{planned}");
    assert_eq!(record["outcomes"]["WON"], planned);
    assert_eq!(count(&record, "answered"), planned);
    assert_eq!(record["seed"], 5);

    let csv = std::fs::read_to_string(server.file("out.csv")).unwrap();
    let answered: u64 = csv
        .lines()
        .skip(1)
        .map(|line| line.split(',').nth(2).unwrap().parse::<u64>().unwrap())
        .sum();
    assert_eq!(answered, planned);
    let html = std::fs::read_to_string(server.file("out.html")).unwrap();
    assert!(html.contains("<svg") && html.contains("All 6 checks held"));

    // Two generators as one: twice the answers, the same percentiles, the same checks.
    let hdr = server.file("out.hdr");
    let (verdict, merged) = merge(&server, &[&hdr, &hdr]).await.unwrap();
    assert_eq!(verdict, Verdict::Good);
    assert_eq!(count(&merged, "answered"), 2 * planned);
    assert_eq!(count(&merged, "planned"), 2 * planned);
    assert_eq!(merged["outcomes"]["WON"], 2 * planned);
    assert_eq!(merged["latency_ms"]["p99"], record["latency_ms"]["p99"]);
    assert_eq!(merged["checks"], record["checks"]);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_loop_and_a_bound_that_does_not_hold() {
    let server = Server::start().await;
    let flags = [
        "--closed",
        "2",
        "--length",
        "1s",
        "--sessions",
        "5",
        "--packets",
        "20000",
    ];
    let beyond = ["--bound", "p50<=0.0001", "--bound", "rate>=1"];
    let (verdict, record) = server
        .run("grabs", &[&flags[..], &beyond].concat())
        .await
        .unwrap();
    assert_eq!(verdict, Verdict::BeyondThreshold, "{record:#}");
    let kept: Vec<&Value> = record["thresholds"].as_array().unwrap().iter().collect();
    assert_eq!(
        (&kept[0]["kept"], &kept[1]["kept"]),
        (&false.into(), &true.into())
    );
    assert!(count(&record, "answered") > 10);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_come_in_a_storm_are_held_and_hear_of_openings() {
    let server = Server::start().await;
    let record = server.good("connect", &["--sessions", "300"]).await;
    assert_eq!(record["outcomes"]["Welcome"], 300);
    assert!(record["latency_ms"]["max"].as_f64().unwrap() > 0.0);

    let flags = ["--sessions", "50", "--rate", "1000"];
    let record = server.good("connect", &flags).await;
    let planned = record["series"].as_array().unwrap().iter();
    let planned: u64 = planned.map(|slot| count(slot, "planned")).sum();
    assert_eq!((planned, count(&record, "sent")), (50, 50));
    // Whom the time left out was never sent.
    let flags = ["--sessions", "50", "--rate", "10", "--within", "250ms"];
    let (verdict, record) = server.run("connect", &flags).await.unwrap();
    assert_eq!(verdict, Verdict::Broken);
    assert!(count(&record, "sent") < 50, "{record:#}");

    let pid = std::process::id().to_string();
    let flags = [
        "--sessions",
        "100",
        "--length",
        "1s",
        "--heartbeat",
        "500ms",
        "--pid",
        &pid,
    ];
    let record = server.good("idle", &flags).await;
    // 100 sessions, each twice a second.
    let pings = count(&record, "answered");
    assert!((190..=200).contains(&pings), "{pings}");
    let checks = record["checks"].as_array().unwrap();
    let held = |check: &Value| check["name"] == "every heartbeat was answered";
    assert!(checks.iter().any(held), "{record:#}");
    assert!(record["figures"]["KiB a session"].is_number());

    let record = server
        .good("push", &["--sessions", "100", "--times", "2"])
        .await;
    assert_eq!(count(&record, "answered"), 200);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn wins_become_credits_and_a_sweep_finds_a_knee() {
    let server = Server::start().await;
    let record = server.good("settle", &["--packets", "2000"]).await;
    assert_eq!(record["outcomes"]["WON"], 2_000);
    let flags = [
        "--from",
        "100",
        "--to",
        "150",
        "--length",
        "500ms",
        "--sessions",
        "10",
        "--p99-max",
        "1000",
    ];
    let record = server.good("sweep", &flags).await;
    assert_eq!(record["knee"], 150.0);
    // Two rates, and the higher one twice more.
    assert_eq!(record["trials"].as_array().unwrap().len(), 2 + 2);
    let stopped = record["stopped"].as_str().unwrap();
    assert!(
        stopped.contains("--to 150 a second was reached"),
        "{stopped}"
    );
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_clients_cost_the_honest_no_session() {
    let server = Server::start().await;
    let decoy = server.running.addresses.gateway.unwrap().to_string();
    let flags = [
        "--decoy",
        &decoy,
        "--sessions",
        "20",
        "--rate",
        "200",
        "--slow-loris",
        "10",
        "--slow-readers",
        "10",
        "--garbage",
        "10",
        "--length",
        "1s",
        "--rounds",
        "1",
        "--factor-max",
        "1000",
        "--program",
        env!("CARGO_BIN_EXE_hongbao-load"),
    ];
    let record = server.good("hostile", &flags).await;
    let figure = |name: &str| record["figures"][name].as_f64().unwrap();
    assert!(figure("hostile connections") >= 20.0);
    assert!(figure("with the others at another gateway, ms") > 0.0);
    assert_eq!(count(&record, "lost"), 0);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_cannot_begin_says_why() {
    let server = Server::start().await;
    let no_secret = server
        .run("connect", &["--token-secret-file", "/nowhere"])
        .await;
    assert!(no_secret.err().unwrap().is_usage());
    let secret = server.file("other-secret");
    std::fs::write(Path::new(&secret), "ab".repeat(32)).unwrap();
    let refused = server
        .run("grabs", &["--token-secret-file", &secret, "--length", "1s"])
        .await;
    let refused = refused.err().unwrap().to_string();
    assert!(refused.contains("0 of 200 sessions came up"), "{refused}");
    server.stop().await;
}

/// What a rain has, the other scenarios have, and the other way round.
#[tokio::test(flavor = "multi_thread")]
async fn a_rain_is_written_down_in_every_form_and_merged_with_another() {
    let server = Server::start().await;
    let flags = [
        "--sessions",
        "40",
        "--packets",
        "20",
        "--total",
        "88.00",
        "--countdown",
        "100ms",
        "--duration",
        "3s",
        "--crowd",
        "burst",
        "--leaving",
        "50",
        "--tap-again",
        "20ms..50ms",
        "--source-addresses",
        "3",
        "--seed",
        "11",
    ];
    let bound = ["--bound", "p99<=0.0001"];
    let (verdict, rain) = server
        .run("rain", &[&flags[..], &bound].concat())
        .await
        .unwrap();
    assert_eq!(verdict, Verdict::BeyondThreshold, "{rain:#}");
    assert_eq!(rain["scenario"], "rain");
    assert!(count(&rain, "left") > 0, "{rain:#}");
    let answered = count(&rain, "answered");
    let in_slots: u64 = rain["series"]
        .as_array()
        .unwrap()
        .iter()
        .map(|slot| count(slot, "answered"))
        .sum();
    assert_eq!(in_slots, answered);
    assert_eq!(rain["marks"][0]["what"], "opened");
    let csv = std::fs::read_to_string(server.file("out.csv")).unwrap();
    assert_eq!(
        csv.lines().count(),
        1 + rain["series"].as_array().unwrap().len()
    );
    let html = std::fs::read_to_string(server.file("out.html")).unwrap();
    assert!(html.contains("Latency over time") && html.contains("funded 88.00"));

    let rain_log = server.file("rain.hdr");
    std::fs::copy(server.file("out.hdr"), &rain_log).unwrap();
    let (verdict, merged) = merge(&server, &[&rain_log, &rain_log]).await.unwrap();
    assert_eq!(
        verdict,
        Verdict::Good,
        "the bound was not asked of the whole"
    );
    assert_eq!(count(&merged, "answered"), 2 * answered);
    assert_eq!(merged["latency_ms"]["p99"], rain["latency_ms"]["p99"]);
    assert_eq!(merged["checks"].as_array().unwrap().len(), 12);

    server.good("connect", &["--sessions", "10"]).await;
    let other = merge(&server, &[&rain_log, &server.file("out.hdr")]).await;
    let other = other.err().unwrap().to_string();
    assert!(
        other.contains("a log of \"rain\"") && other.contains("one of \"connect\""),
        "{other}"
    );
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_seed_has_the_same_plan_and_the_same_users() {
    use hongbao::client::admin::AdminClient;
    let server = Server::start().await;
    let mut runs = vec![];
    for (rain, seed) in [(1u32, "77"), (2, "77"), (3, "78")] {
        let flags = [
            "--rate",
            "300",
            "--length",
            "1s",
            "--sessions",
            "5",
            "--seed",
            seed,
        ];
        let record = server.good("grabs", &flags).await;
        let key = std::fs::read_to_string(server.file("api-key")).unwrap();
        let url = format!("http://{}", server.running.addresses.admin.unwrap());
        let api = AdminClient::new(&url, key.trim()).unwrap();
        let winners = api.all_winners(rain.try_into().unwrap()).await.unwrap();
        let mut users: Vec<String> = winners
            .into_iter()
            .map(|winner| winner.user.to_string())
            .collect();
        users.sort_unstable();
        runs.push((count(&record, "planned"), users));
    }
    assert!(runs[0].1.len() > 200);
    assert_eq!(runs[0], runs[1]);
    assert_ne!(runs[0].1, runs[2].1);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_written_is_said_before_the_run() {
    let server = Server::start().await;
    for (flags, wanted) in [
        (
            &["--html", "/nowhere/page.html"][..],
            "--html /nowhere/page.html cannot be written",
        ),
        (
            &["--csv", &server.file("one"), "--hdr", &server.file("one")],
            "are both to be written",
        ),
        (
            &["--gateway", "nowhere"],
            "\"nowhere\" is no gateway address",
        ),
        (
            &["--gateway", "10.0.0.1:1", "--source-addresses", "3"],
            "only on loopback",
        ),
    ] {
        let error = server.run("connect", flags).await.err().unwrap();
        assert!(error.is_usage());
        assert!(error.to_string().contains(wanted), "{error}");
    }
    for (scenario, flags, wanted) in [
        (
            "grabs",
            &["--ramp", "9s", "--length", "5s"][..],
            "--ramp 9 s is longer than --length 5 s",
        ),
        (
            "grabs",
            &["--rate", "10000000", "--length", "10m"],
            "more than the 100,000,000",
        ),
        (
            "hostile",
            &["--decoy", "nowhere"],
            "\"nowhere\" is no gateway address",
        ),
        (
            "sweep",
            &["--from", "9000", "--to", "8000"],
            "--to 8000 is below --from 9000",
        ),
        (
            "sweep",
            &["--to", "9000000", "--length", "1m"],
            "--to 9000000",
        ),
        (
            "idle",
            &["--pid", "4194304"],
            "--pid 4194304: there is no such process",
        ),
        ("push", &["--admin", "not a url"], "--admin not a url"),
    ] {
        let error = server.run(scenario, flags).await.err().unwrap();
        assert!(error.is_usage(), "{error}");
        assert!(error.to_string().contains(wanted), "{error}");
    }
    server.stop().await;
}
