//! A rain before it is paid for, while it falls, and when it is over, as an operator sees it.

use std::process::{Command, Stdio};

use hongbao::admin::caller::Role;
use hongbao::client::admin::{AdminClient, AdminError, NewKey, NewRain};
use hongbao::client::live::{LiveEvent, LiveNumbers, LiveStream};
use hongbao::client::rains::ListFormat;
use hongbao::rain::{Cents, RainId, State};
use sqlx::Connection;

use crate::support::PATIENCE;
use crate::support::crowd::crowd;
use crate::support::server::{Server, hongbao, new_rain};

fn problem(error: AdminError) -> (u16, String) {
    match error {
        AdminError::Problem { status, detail, .. } => (status, detail),
        other => panic!("{other}"),
    }
}

fn cli(server: &Server) -> Command {
    let mut command = hongbao();
    command.arg("--data-dir").arg(server.data_dir());
    command
}

/// What it printed, after a success.
fn printed(server: &Server, args: &[&str]) -> String {
    let output = cli(server).args(args).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{args:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test]
async fn a_preview_shows_a_split_that_no_rain_has_and_stores_nothing() {
    let server = Server::start(&["store.managed_nodes=1"]);
    let admin = server.admin();
    let rain = NewRain {
        max_cents: Some(Cents(900)),
        ..new_rain(2_000, 600_000)
    };
    let preview = admin.preview(&rain).await.unwrap();
    let summary = &preview.summary;
    assert!(preview.exact);
    assert_eq!((summary.packets, summary.sum), (2_000, Cents(600_000)));
    assert!(summary.smallest >= Cents(1) && summary.largest <= Cents(900));
    assert!(summary.smallest < summary.median && summary.median < summary.largest);
    assert!(summary.histogram.len() <= 20);
    let shown: u32 = summary.histogram.iter().map(|bar| bar.packets).sum();
    assert_eq!(shown, 2_000);
    // Another seed each time, so not that of any rain.
    let again = admin.preview(&rain).await.unwrap();
    assert_ne!(again.summary.histogram, summary.histogram);
    // A sponsor is not even asked for, and nothing is left behind.
    assert!(admin.rains().await.unwrap().is_empty());
    let (status, detail) = problem(admin.preview(&new_rain(10, 9)).await.unwrap_err());
    assert_eq!(status, 422);
    assert!(detail.contains("10 packets of at least 0.01"), "{detail}");

    let large = new_rain(100_000_000, 30_000_000_000);
    let large = admin.preview(&large).await.unwrap();
    assert!(!large.exact);
    assert_eq!(large.summary.looked_at, 1_000_000);

    let args = ["rain", "preview", "--total", "100.00"];
    let drawn = printed(&server, &[&args[..], &["--packets", "100"]].concat());
    assert!(
        drawn.starts_with("packets   100 worth 100.00\namounts   smallest 0."),
        "{drawn}"
    );
    assert!(drawn.contains('█'), "{drawn}");
    let json = printed(
        &server,
        &[&args[..], &["--packets", "100", "--json"]].concat(),
    );
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["sum_cents"], 10_000);
}

#[tokio::test]
async fn a_dry_run_is_refused_like_the_creation_and_takes_nothing() {
    let server = Server::start(&["store.managed_nodes=1"]);
    let admin = server.admin();
    let good = new_rain(10, 1_000);
    let (status, detail) = problem(admin.rehearse_rain(&good).await.unwrap_err());
    assert_eq!(status, 404, "{detail}");
    admin.create_sponsor("acme").await.unwrap();
    admin.deposit("acme", Cents(1_500), "d").await.unwrap();
    for wrong in [
        new_rain(10, 1_501),
        NewRain {
            durability: Some("replicas:2".parse().unwrap()),
            ..good.clone()
        },
        NewRain {
            opens_at_ms: Some(1),
            ..good.clone()
        },
        NewRain {
            key: Some("käse".into()),
            ..good.clone()
        },
    ] {
        let rehearsed = problem(admin.rehearse_rain(&wrong).await.unwrap_err());
        assert_eq!(
            rehearsed,
            problem(admin.create_rain(&wrong).await.unwrap_err())
        );
    }
    let keyed = NewRain {
        key: Some("tonight".into()),
        ..good
    };
    let rehearsal = admin.rehearse_rain(&keyed).await.unwrap();
    assert!(rehearsal.dry_run);
    assert_eq!(rehearsal.existing, None);
    assert_eq!(rehearsal.sponsor_balance_cents, Cents(1_500));
    assert_eq!(rehearsal.sponsor_balance_after_cents, Cents(500));
    assert_eq!(rehearsal.rain["packets"], 10);
    assert!(rehearsal.rain.get("id").is_none(), "it has none yet");
    let balance = admin.account("sponsor:acme").await.unwrap().balance_cents;
    assert_eq!(balance, Cents(1_500));
    assert!(admin.rains().await.unwrap().is_empty());
    let made = admin.create_rain(&keyed).await.unwrap().id;
    let rehearsal = admin.rehearse_rain(&keyed).await.unwrap();
    assert_eq!(rehearsal.existing, Some(made));
    assert_eq!(rehearsal.sponsor_balance_after_cents, Cents(500));

    let told = printed(
        &server,
        &[
            "rain",
            "create",
            "--dry-run",
            "--sponsor",
            "acme",
            "--room",
            "quiz",
            "--total",
            "5.00",
            "--packets",
            "5",
        ],
    );
    assert!(told.contains("nothing was stored"), "{told}");
    assert!(told.contains("acme has 5.00, and 0.00 after it"), "{told}");
    assert_eq!(admin.rains().await.unwrap().len(), 1);
}

/// Credits as the settlers would write them, only quicker: the triggers of the ledger move their money.
async fn credit_everybody(server: &Server, rain: RainId, winners: u32) {
    let file = server.data_dir().join("ledger.sqlite");
    let options = sqlx::sqlite::SqliteConnectOptions::new()
        .filename(file)
        .busy_timeout(PATIENCE);
    let mut ledger = sqlx::SqliteConnection::connect_with(&options)
        .await
        .unwrap();
    let insert = "WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < $2)
                  INSERT INTO credits (packet_id, user_id, cents, at_ms)
                  SELECT $1 + i, CASE i WHEN 0 THEN '=1+1' ELSE 'user-' || i END, 1, 1700000000000 + i FROM n";
    let first = rain.packet(0).get() as i64;
    let query = sqlx::query(insert).bind(first).bind(i64::from(winners));
    assert_eq!(
        query.execute(&mut ledger).await.unwrap().rows_affected(),
        u64::from(winners)
    );
    ledger.close().await.unwrap();
}

/// Half a million rows are 22 MB of CSV and 40 MB of JSON; a server that held a list would grow by more than that.
#[tokio::test(flavor = "multi_thread")]
async fn half_a_million_winners_are_sent_in_bounded_memory() {
    const WINNERS: u32 = 500_000;
    let server = Server::start(&["store.managed_nodes=1"]);
    let rain = server.ready_rain(WINNERS, WINNERS.into()).await;
    let admin = server.admin();
    credit_everybody(&server, rain, WINNERS).await;
    // Every connection to SQLite keeps up to 64 MiB of pages: that is what it may grow by before it is measured.
    let pages = async || {
        let mut list = admin.list_of_winners(rain, ListFormat::Csv).await.unwrap();
        while list.next().await.unwrap().is_some() {}
    };
    tokio::join!(pages(), pages());
    let before_kib = server.resident_kib();
    let mut most_kib = before_kib;
    for (format, head) in [(ListFormat::Csv, 1), (ListFormat::Ndjson, 0)] {
        let mut list = admin.list_of_winners(rain, format).await.unwrap();
        let (mut lines, mut first, mut last) = (0, vec![], vec![]);
        while let Some(piece) = list.next().await.unwrap() {
            lines += piece.iter().filter(|byte| **byte == b'\n').count();
            if first.len() < 200 {
                first.extend_from_slice(&piece);
            }
            last = piece.to_vec();
            most_kib = most_kib.max(server.resident_kib());
        }
        assert_eq!(lines, WINNERS as usize + head);
        let (first, last) = (
            String::from_utf8(first).unwrap(),
            String::from_utf8(last).unwrap(),
        );
        match format {
            ListFormat::Csv => {
                let wanted = "packet_id,user,cents,amount,credited_at_ms\r\n4294967296,'=1+1,1,0.01,1700000000000\r\n";
                assert!(first.starts_with(wanted), "{}", &first[..200]);
                assert!(last.ends_with(",user-499999,1,0.01,1700000499999\r\n"));
            }
            ListFormat::Ndjson => {
                let wanted = r#"{"packet_id":"4294967296","user":"=1+1","cents":1,"credited_at_ms":1700000000000}"#;
                assert_eq!(first.lines().next(), Some(wanted));
            }
        }
    }
    let grown_mib = (most_kib - before_kib) / 1024;
    assert!(grown_mib < 24, "the server grew by {grown_mib} MiB");
    let table = printed(&server, &["winners", &rain.to_string(), "--csv"]);
    assert_eq!(table.lines().count(), WINNERS as usize + 1);
    let (status, _) = problem(
        admin
            .list_of_winners(RainId::new(9).unwrap(), ListFormat::Csv)
            .await
            .err()
            .unwrap(),
    );
    assert_eq!(status, 404);
}

/// The next look, or the last word.
async fn next_look(stream: &mut LiveStream) -> Result<LiveNumbers, String> {
    let event = tokio::time::timeout(PATIENCE, stream.next()).await;
    match event.expect("a look").unwrap() {
        Some(LiveEvent::Numbers { numbers, .. }) => Ok(*numbers),
        Some(LiveEvent::Problem(detail)) => panic!("{detail}"),
        Some(LiveEvent::End(reason)) => Err(reason),
        None => panic!("the stream ended without a last word"),
    }
}

/// Why the stream ends, after the looks that are still to come.
async fn last_word(stream: &mut LiveStream) -> String {
    loop {
        if let Err(reason) = next_look(stream).await {
            return reason;
        }
    }
}

async fn until(stream: &mut LiveStream, wanted: impl Fn(&LiveNumbers) -> bool) -> LiveNumbers {
    loop {
        let numbers = next_look(stream).await.expect("the rain goes on");
        if wanted(&numbers) {
            return numbers;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rain_is_seen_falling_until_every_claim_is_settled() {
    let server = Server::start(&["store.managed_nodes=2", "admin.live_interval_ms=50"]);
    let rain = server.ready_rain(300, 100_000).await;
    let admin = server.admin();
    let mut stream = admin.live(rain).await.unwrap();
    let before = until(&mut stream, |numbers| numbers.counts.pool == 300).await;
    assert_eq!((before.state, before.counts.winners), (State::Ready, 0));
    assert_eq!(before.buckets.len(), 2, "one a node");
    admin.open_rain(rain).await.unwrap();
    let told = crowd(&server, rain, 100).end().await;
    let won = told.len() as u64;
    let settled = until(&mut stream, |numbers| numbers.credited_count == won).await;
    assert_eq!(settled.counts.winners, won);
    assert_eq!(settled.counts.pool, 300 - won);
    assert_eq!(settled.here.outcomes["WON"], won, "{:?}", settled.here);
    let by_bucket: u64 = settled
        .buckets
        .iter()
        .map(|bucket| bucket.counts.winners)
        .sum();
    assert_eq!(by_bucket, won);
    admin.close_rain(rain).await.unwrap();
    let end = last_word(&mut stream).await;
    assert!(end == "settled" || end == "finished", "{end}");
    assert_eq!(stream.next().await.unwrap(), None, "nothing comes after it");
    // Whoever comes later is told how it ended.
    let mut late = admin.live(rain).await.unwrap();
    let numbers = next_look(&mut late).await.unwrap();
    assert!(numbers.state.is_closed());
    next_look(&mut late).await.unwrap_err();
}

#[tokio::test(flavor = "multi_thread")]
async fn all_who_watch_a_rain_share_one_look_and_a_draining_server_says_so() {
    let mut server = Server::start(&[
        "store.managed_nodes=1",
        "admin.live_interval_ms=50",
        "admin.live_streams_max=2",
    ]);
    let rain = server.ready_rain(10, 1_000).await;
    let admin = server.admin();
    let mut first = admin.live(rain).await.unwrap();
    let seen = next_look(&mut first).await.unwrap().at_ms;
    let mut second = admin.live(rain).await.unwrap();
    let (status, detail) = problem(admin.live(rain).await.err().unwrap());
    assert_eq!(status, 503);
    assert!(detail.contains("admin.live_streams_max"), "{detail}");
    // The instants of the looks are the same: there is one, not one for each.
    let (mut of_first, mut of_second) = (vec![seen], vec![]);
    for _ in 0..5 {
        of_first.push(next_look(&mut first).await.unwrap().at_ms);
        of_second.push(next_look(&mut second).await.unwrap().at_ms);
    }
    let shared = of_second.iter().filter(|at| of_first.contains(at)).count();
    assert!(shared >= 4, "{of_first:?} {of_second:?}");
    // A place is free again when somebody leaves.
    drop(second);
    let mut third =
        crate::support::eventually("a place", async || admin.live(rain).await.ok()).await;
    next_look(&mut third).await.unwrap();
    server.terminate();
    assert_eq!(last_word(&mut first).await, "draining");
    assert_eq!(last_word(&mut third).await, "draining");
    assert!(server.ended().await.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_watches_a_rain_to_its_end() {
    let server = Server::start(&["store.managed_nodes=1", "admin.live_interval_ms=50"]);
    let rain = server.open_rain(50, 5_000).await;
    let watch = |json: bool| {
        let mut command = cli(&server);
        command.args(["rain", "watch", &rain.to_string()]);
        if json {
            command.arg("--json");
        }
        command.stdout(Stdio::piped()).spawn().unwrap()
    };
    let (plain, json) = (watch(false), watch(true));
    let won = crowd(&server, rain, 30).end().await.len();
    server.until_settled(rain).await;
    server.admin().close_rain(rain).await.unwrap();
    let ended = async |child: std::process::Child| {
        let waiting = tokio::task::spawn_blocking(|| child.wait_with_output().unwrap());
        let output = tokio::time::timeout(PATIENCE, waiting)
            .await
            .unwrap()
            .unwrap();
        assert_eq!(output.status.code(), Some(0));
        String::from_utf8(output.stdout).unwrap()
    };
    let plain = ended(plain).await;
    let last = plain.lines().last().unwrap();
    assert!(last.contains(&format!("credited {won} worth")), "{last}");
    assert!(
        !plain.contains('\x1b'),
        "no colours where there is no terminal"
    );
    let json = ended(json).await;
    for line in json.lines() {
        let look: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(look["rain_id"], rain.get());
    }
    let nowhere = cli(&server)
        .args(["rain", "watch", "999"])
        .output()
        .unwrap();
    assert_eq!(nowhere.status.code(), Some(1));
}

#[test]
fn the_manual_knows_every_command_and_each_of_them_speaks_json() {
    let printed = |args: &[&str]| {
        let output = hongbao().args(args).output().unwrap();
        assert!(output.status.success(), "{args:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let manual = printed(&["man"]);
    let (start, commands) = manual.split_once(".SH \"HONGBAO").unwrap();
    assert!(start.contains("\\-\\-data\\-dir"), "{start}");
    let commands: Vec<&str> = commands.split(".SH \"HONGBAO").collect();
    assert!(commands.len() > 30, "{} commands", commands.len());
    for command in commands {
        let name = command.split('"').next().unwrap().trim();
        // They run until they are told to stop, or print what is for other programs already.
        if ["SERVE", "DEMO", "COMPLETIONS", "MAN"].contains(&name) {
            continue;
        }
        assert!(command.contains("\\-\\-json"), "{name} has no --json");
    }
    assert!(manual.contains("Exit codes:"));
    assert!(printed(&["--help"]).contains("Exit codes:"));
    for shell in ["bash", "zsh", "fish"] {
        let completions = printed(&["completions", shell]);
        assert!(completions.contains("preview"), "{shell}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_ends_with_its_key() {
    let server = Server::start(&["store.managed_nodes=1", "admin.live_interval_ms=50"]);
    let rain = server.ready_rain(10, 1_000).await;
    let admin = server.admin();
    let new = NewKey {
        name: "guest".into(),
        roles: vec![Role::Viewer],
        expires_at_ms: None,
    };
    let key = admin.create_key(&new, None).await.unwrap();
    let guest = AdminClient::new(&server.admin_url(), &key.credential).unwrap();
    let mut theirs = guest.live(rain).await.unwrap();
    let mut ours = admin.live(rain).await.unwrap();
    next_look(&mut theirs).await.unwrap();
    admin.revoke_key(&key.key.id).await.unwrap();
    let over = async { while let Ok(Some(_)) = theirs.next().await {} };
    let over = tokio::time::timeout(PATIENCE, over).await;
    over.expect("a revoked key watches on");
    let (status, _) = problem(guest.live(rain).await.err().unwrap());
    assert_eq!(status, 401);
    next_look(&mut ours).await.unwrap();
}
