//! The command line: all that the API does, output that nobody reads, what people read.

use std::collections::BTreeSet;
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};

use axum::http::{Method, StatusCode, Uri};
use hongbao::admin::routes;
use hongbao::client::admin::{AdminClient, NewRain};
use hongbao::rain::Cents;

use crate::support::eventually;
use crate::support::server::{Server, hongbao, new_rain};

/// Routes without a command, each with its reason.
const WITHOUT_COMMAND: [(&str, &str); 1] = [(
    "list_winners",
    "`hongbao winners` prints the whole list; the pages of it are for programs, and the client library reads them",
)];

/// A command for every other route.
const COMMANDS: &[&str] = &[
    "account list",
    "account create acme",
    "account show sponsor:acme",
    "account statement sponsor:acme",
    "account deposit acme 1.00 --key d",
    "rain list",
    "rain create --sponsor acme --room quiz --total 1.00 --packets 1",
    "rain preview --total 1.00 --packets 1",
    "rain show 1",
    "rain announce 1",
    "rain open 1",
    "rain pause 1",
    "rain resume 1",
    "rain top-up 1 --total 1.00 --packets 1 --key t",
    "rain close 1",
    "rain watch 1",
    "audit 1",
    "repair 1",
    "winners 1 --csv",
    "winners 1 --ndjson",
    "template list",
    "template create nightly --sponsor acme --room quiz --total 1.00 --packets 1",
    "template show nightly",
    "template update nightly --sponsor acme --room quiz --total 1.00 --packets 1",
    "template delete nightly",
    "template rain nightly",
    "schedule list",
    "schedule create nightly --daily 20:00",
    "schedule show 1",
    "schedule end 1",
    "pipeline",
    "nodes",
    "dead list",
    "dead requeue --all",
    "dead show 4294967296",
    "dead requeue 4294967296",
    "dead discard 4294967296 --reason why",
    "keys list",
    "keys create ops --role viewer",
    "keys show k1",
    "keys rotate k1",
    "keys revoke k1",
    "webhooks list",
    "webhooks create https://events.example/",
    "webhooks show w1",
    "webhooks update w1 --disable",
    "webhooks rotate w1",
    "webhooks delete w1",
    "webhooks test w1",
    "webhooks deliveries",
    "webhooks resend --failed",
    "webhooks delivery 1",
    "webhooks resend 1",
    "log",
];

fn fits(pattern: &str, path: &str) -> bool {
    let (wanted, given): (Vec<&str>, Vec<&str>) =
        (pattern.split('/').collect(), path.split('/').collect());
    wanted.len() == given.len()
        && wanted
            .iter()
            .zip(&given)
            .all(|(wanted, given)| wanted.starts_with('{') || wanted == given)
}

/// The operation that a request would have been.
fn operation(method: &Method, path: &str) -> &'static str {
    let routes = routes::all().into_iter().map(|(route, _)| route);
    let mut fitting: Vec<_> = routes
        .filter(|route| route.method == method.as_str() && fits(route.path, path))
        .collect();
    // Of /v1/rains/preview and /v1/rains/{id} it is the one with fewer parameters.
    fitting.sort_by_key(|route| route.path.matches('{').count());
    let found = fitting.first();
    found.unwrap_or_else(|| panic!("{method} {path}")).operation
}

#[tokio::test(flavor = "multi_thread")]
async fn every_route_has_a_command() {
    let asked: Arc<Mutex<BTreeSet<&'static str>>> = Arc::default();
    let seen = asked.clone();
    let app = axum::Router::new().fallback(async move |method: Method, uri: Uri| {
        seen.lock().unwrap().insert(operation(&method, uri.path()));
        StatusCode::NOT_FOUND
    });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let serving = tokio::spawn(async move { axum::serve(listener, app).await });
    for command in COMMANDS {
        let before = std::mem::take(&mut *asked.lock().unwrap());
        let mut program = hongbao();
        let output = program
            .args(command.split(' '))
            .args(["--yes", "--admin", &url])
            .env("HONGBAO_API_KEY", "key")
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{command}: {errors}");
        let mut asked = asked.lock().unwrap();
        assert_eq!(asked.len(), 1, "{command} asks one thing: {asked:?}");
        asked.extend(before);
    }
    serving.abort();
    let asked = asked.lock().unwrap();
    for (route, _) in routes::all() {
        let name = route.operation;
        let excepted = WITHOUT_COMMAND.iter().any(|(without, _)| *without == name);
        assert_ne!(asked.contains(name), excepted, "{name}: {COMMANDS:?}");
    }
}

fn cli(server: &Server) -> Command {
    let mut command = hongbao();
    command.arg("--data-dir").arg(server.data_dir());
    command
}

fn run(server: &Server, line: &str) -> Output {
    cli(server).args(line.split(' ')).output().unwrap()
}

/// What it printed, after a success.
fn printed(server: &Server, line: &str) -> String {
    let output = run(server, line);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{line}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

async fn paid(admin: &AdminClient, cents: i64) {
    admin.create_sponsor("acme").await.unwrap();
    admin.deposit("acme", Cents(cents), "bank").await.unwrap();
}

#[tokio::test]
async fn money_keys_and_pauses_are_shown_to_people_and_to_machines() {
    let server = Server::start(&["store.managed_nodes=1"]);
    let rain = server.open_rain(10, 1_000).await;
    let listed = printed(&server, "account list --prefix sponsor: --limit 1");
    assert!(
        listed.contains("0.00  sponsor:acme") && !listed.contains("escrow"),
        "{listed}"
    );
    // Page by page it is the same as in one piece.
    let whole = server.admin();
    let whole = whole.statement("sponsor:acme", None, 100).await.unwrap();
    assert_eq!(whole.lines.len(), 2, "{whole:?}");
    let first = printed(&server, "account statement sponsor:acme --limit 1 --json");
    let first: serde_json::Value = serde_json::from_str(&first).unwrap();
    let cursor = first["next_cursor"].as_str().unwrap();
    let second = printed(
        &server,
        &format!("account statement sponsor:acme --cursor {cursor}"),
    );
    assert_eq!(second.lines().count(), 2, "{second}");
    assert!(second.contains("10.00") && second.contains('Z'), "{second}");
    let first = printed(&server, "account statement sponsor:acme --limit 1");
    assert!(
        first.ends_with(&format!("more with --cursor {cursor}\n")),
        "{first}"
    );

    let told = printed(&server, &format!("rain pause {rain}"));
    assert!(told.contains("state     paused"), "{told}");
    let told = printed(&server, &format!("rain resume {rain}"));
    assert!(told.contains("state     open"), "{told}");
    assert!(
        told.lines()
            .any(|line| line.starts_with("opens     20") && line.ends_with('Z')),
        "{told}"
    );

    let key = printed(&server, "keys show bootstrap");
    assert!(key.contains("state       fixed"), "{key}");
    let unknown = run(&server, "keys show k0");
    assert_eq!(unknown.status.code(), Some(1));

    let shown = eventually("the rain in the pipeline", async || {
        let shown = printed(&server, "pipeline");
        shown
            .contains(&format!("rain      {rain} open"))
            .then_some(shown)
    })
    .await;
    assert!(shown.starts_with("claims    0 waiting"), "{shown}");
    let json: serde_json::Value =
        serde_json::from_str(&printed(&server, "pipeline --json")).unwrap();
    assert_eq!(json["rains"][0]["pool"], 10);
}

/// `hongbao … | head -1`: the reader has gone before the last line is written.
#[tokio::test]
async fn output_that_nobody_reads_ends_a_command_quietly() {
    let server = Server::start(&["store.managed_nodes=1"]);
    paid(&server.admin(), 100).await;
    for line in [
        "rain list",
        "account list",
        "check-config",
        "man",
        "log --json",
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = cli(&server)
            .args(line.split(' '))
            .stdout(writer)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
            .wait_with_output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), &*errors), (Some(141), ""), "{line}");
    }
}

#[test]
fn a_deposit_below_zero_is_refused_in_plain_words() {
    for amount in ["-5", "-5.00", "0"] {
        let output = hongbao()
            .args(["account", "deposit", "acme", amount, "--key", "d"])
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2));
        assert!(errors.contains("a deposit must be above zero"), "{errors}");
    }
}

/// As the README has it.
#[tokio::test]
async fn a_template_with_an_announcement_makes_a_rain_that_an_operator_opens() {
    let server = Server::start(&["store.managed_nodes=1"]);
    let admin = server.admin();
    paid(&admin, 3_000).await;
    let template = NewRain {
        announce_ms: Some(30_000),
        ..new_rain(10, 1_000)
    };
    let template = serde_json::json!(template);
    admin.create_template("nightly", &template).await.unwrap();
    let line = r#"template rain nightly --with {"room":"final","total_cents":2000} --key final-1"#;
    let made = printed(&server, line);
    assert!(made.contains("room      final"), "{made}");
    assert!(made.contains("when an operator says"), "{made}");
    let line = r#"template rain nightly --with {"announce_ms":5} --key final-2"#;
    let refused = run(&server, line);
    let errors = String::from_utf8_lossy(&refused.stderr);
    assert!(errors.contains("announce_ms needs opens_at_ms"), "{errors}");
}

/// Nodes of our own are other processes after a restart: their buckets are compared, and nobody is called for it.
#[tokio::test]
async fn a_restart_that_loses_nothing_is_no_error() {
    let mut server = Server::start(&["store.managed_nodes=1"]);
    server.open_rain(10, 1_000).await;
    server.terminate();
    server.ended().await;
    server.start_again();
    eventually("the comparison", async || {
        let repairs = server.metric("hongbao_repairs_total").await;
        (repairs > 0.0).then_some(())
    })
    .await;
    let log = server.log();
    assert!(log.contains("nothing was lost"), "{log}");
    assert!(!log.contains("ERROR"), "{log}");
}
