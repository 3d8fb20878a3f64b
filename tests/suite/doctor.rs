//! `hongbao doctor` and `hongbao repair`, as an operator uses them.

use std::process::Output;

use hongbao::rain::State;

use crate::support::crowd::crowd;
use crate::support::eventually;
use crate::support::redis::{FIT, Redis};
use crate::support::server::{Server, hongbao};

fn doctor(settings: &[String]) -> (Option<i32>, String) {
    let dir = tempfile::tempdir().unwrap();
    let mut command = hongbao();
    command.arg("--data-dir").arg(dir.path());
    for setting in settings {
        command.args(["--set", setting]);
    }
    let Output { status, stdout, .. } = command.arg("doctor").output().unwrap();
    assert_eq!(
        std::fs::read_dir(dir.path()).unwrap().count(),
        0,
        "it makes nothing"
    );
    (status.code(), String::from_utf8(stdout).unwrap())
}

fn nodes(urls: &[String]) -> Vec<String> {
    vec![
        "store.topology=nodes".into(),
        format!("store.nodes={urls:?}"),
    ]
}

#[tokio::test]
async fn the_doctor_finds_what_would_keep_it_from_starting_and_says_what_to_do() {
    let (fit, evicts) = (
        Redis::fit().await,
        Redis::start(&[&FIT[..2], &["--maxmemory-policy", "allkeys-lru"]].concat()).await,
    );
    let (code, text) = doctor(&nodes(&[fit.url()]));
    assert_eq!(code, Some(0), "{text}");
    assert!(!text.contains("BAD"), "{text}");

    let gone = "redis://127.0.0.1:1".to_owned();
    let (code, text) = doctor(&nodes(&[fit.url(), evicts.url(), gone]));
    assert_eq!(code, Some(1), "{text}");
    let bad: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("BAD"))
        .collect();
    assert_eq!(bad.len(), 1, "{text}");
    assert!(bad[0].contains(&evicts.port.to_string()) && bad[0].contains("allkeys-lru"));
    assert!(text.contains("set it to noeviction"), "{text}");
    assert!(text.contains("warning  127.0.0.1:1"), "{text}");

    let mut settings = nodes(&[fit.url()]);
    settings.push("ledger.url=postgres://nobody:secret@127.0.0.1:1/none".into());
    settings.push("steward.durability=replicas:2".into());
    let (code, text) = doctor(&settings);
    assert_eq!(code, Some(1));
    assert!(text.contains("needs 2: add replicas"), "{text}");
    assert!(
        text.contains("Connection refused") && !text.contains("secret"),
        "{text}"
    );
}

#[tokio::test]
async fn the_doctor_looks_at_the_managed_nodes_of_a_server_at_work() {
    let server = Server::start(&["store.managed_nodes=2"]);
    let output = hongbao()
        .arg("--data-dir")
        .arg(server.data_dir())
        .args(["--set", "store.managed_nodes=2", "doctor", "--json"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0));
    let findings: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let roles = findings
        .as_array()
        .unwrap()
        .iter()
        .filter(|finding| finding["what"] == "role");
    assert_eq!(roles.count(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_dies_in_the_rain_and_comes_back_empty_costs_no_paid_win() {
    let (mut first, second) = (Redis::fit().await, Redis::fit().await);
    let urls = [first.url(), second.url()];
    let server = Server::start(&[
        "store.topology=nodes",
        &format!("store.nodes={urls:?}"),
        "store.probe_interval_ms=20",
    ]);
    let rain = server.open_rain(400, 40_000).await;
    let told = crowd(&server, rain, 200).end().await;
    assert_eq!(told.len(), 200);
    server.until_settled(rain).await;

    let repair = |json: &[&str]| {
        let output = hongbao()
            .args(["repair", &rain.to_string(), "--admin", &server.admin_url()])
            .arg("--api-key-file")
            .arg(server.data_dir().join("api-key"))
            .args(json)
            .output()
            .unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stdout).unwrap(),
        )
    };
    let (code, text) = repair(&[]);
    assert_eq!(
        (code, text.starts_with("nothing to repair")),
        (Some(0), true),
        "{text}"
    );

    first.restart_empty().await;
    // Here or by the steward, whoever is first; then the rain goes on for everyone.
    eventually("the repair", async || {
        let (code, text) = repair(&["--json"]);
        (code == Some(0) && server.log().contains("repaired")).then_some(text)
    })
    .await;
    let late = crowd(&server, rain, 400).end().await;
    assert!(
        told.iter().all(|(user, win)| late.get(user) == Some(win)),
        "the same packets"
    );
    assert_eq!(late.len(), 400);
    let sold_out = server
        .until(rain, |rain| rain.live.is_some_and(|live| live.pool == 0))
        .await;
    assert_eq!(sold_out.state, State::Open);
    server.until_settled(rain).await;
    let audit = server.admin().audit(rain).await.unwrap();
    assert!(audit.balanced, "{audit:?}");
    assert_eq!(audit.credited_cents, audit.funded_cents);
}
