//! The scenario `rain` against a stand-in of the server that is honest, or lies in one way: each lie must be found.

mod stand_in;

use clap::Parser;
use hongbao_load::LoadError;
use hongbao_load::args::Args;
use serde_json::Value;
use stand_in::{Lie, StandIn};

/// Returns whether all was well, and the report.
async fn rain(lie: Lie, more: &[&str]) -> Result<(bool, Value), LoadError> {
    let server = StandIn::start(lie).await;
    let folder = tempfile::tempdir().unwrap();
    let args = Args::parse_from(server.args(folder.path(), more));
    let good = hongbao_load::run(args).await? == hongbao_load::Verdict::Good;
    let report = std::fs::read(folder.path().join("report.json")).unwrap();
    Ok((good, serde_json::from_slice(&report).unwrap()))
}

fn failed(report: &Value) -> Vec<&str> {
    let checks = report["checks"].as_array().unwrap().iter();
    checks
        .filter(|check| check["ok"] == false)
        .map(|check| check["name"].as_str().unwrap())
        .collect()
}

/// The checks that fail; with packets for everybody, so that a lie has room.
async fn found(lie: Lie) -> Vec<String> {
    let plenty = ["--packets", "200", "--total", "400.00", "--doubting", "50"];
    found_with(lie, &plenty).await
}

async fn found_with(lie: Lie, more: &[&str]) -> Vec<String> {
    let (good, report) = rain(lie, more).await.unwrap();
    assert!(!good, "{report:#}");
    failed(&report).into_iter().map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_honest_rain_is_good_and_its_report_adds_up() {
    let (good, report) = rain(Lie::None, &["--reconnecting", "20"]).await.unwrap();
    assert!(good, "{report:#}");
    let outcomes = report["outcomes"].as_object().unwrap();
    let answered: u64 = outcomes.values().map(|count| count.as_u64().unwrap()).sum();
    let unanswered = report["unanswered"].as_u64().unwrap();
    assert_eq!(report["grabs"].as_u64().unwrap(), answered + unanswered);
    assert_eq!(report["funded_cents"], 8_800);
    assert_eq!(report["credited_cents"], 8_800);
    assert_eq!(report["credited_count"], 40);
    assert_eq!(report["refunded_cents"], 0);
    assert_eq!(report["audit"]["balanced"], true);
    assert!(outcomes["SOLD_OUT"].as_u64().unwrap() >= 20);
    let p50 = report["latency_ms"]["p50"].as_f64().unwrap();
    assert!(p50 > 0.0 && p50 <= report["latency_ms"]["max"].as_f64().unwrap());
    assert!(report["settle_lag_ms"]["max"].as_f64().unwrap() < 1_000.0);
    assert!(report["reconnects"].as_u64().unwrap() > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn more_packets_than_people_end_with_a_refund() {
    let more = ["--packets", "100", "--total", "200.00", "--doubting", "100"];
    let (good, report) = rain(Lie::None, &more).await.unwrap();
    assert!(good, "{report:#}");
    assert_eq!(report["credited_count"], 60);
    assert_eq!(report["refunded_cents"], 8_000);
    assert!(report["outcomes"]["ALREADY_WON"].as_u64().unwrap() >= 60);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_packet_won_by_two_users_is_found() {
    let found = found(Lie::SharedPacket).await;
    assert!(
        found.contains(&"no packet was won twice".to_owned()),
        "{found:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_who_wins_twice_is_found() {
    let found = found(Lie::SecondPacket).await;
    assert!(found.contains(&"no user won twice".to_owned()), "{found:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_win_that_is_told_as_new_twice_is_found() {
    let found = found(Lie::WonAgain).await;
    let names = [
        "a repeated tap got the same answer",
        "WON was told once for each win",
    ];
    assert_eq!(found, names);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_win_that_is_not_credited_is_found() {
    let found = found(Lie::Unpaid).await;
    let name = "every win that was shown is credited, to the cent".to_owned();
    assert!(found.contains(&name), "{found:?}");
    assert!(found.contains(&"the sums agree".to_owned()), "{found:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_credit_of_another_amount_is_found() {
    let found = found(Lie::Shaved).await;
    let name = "every win that was shown is credited, to the cent".to_owned();
    assert!(found.contains(&name), "{found:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn sold_out_told_to_a_winner_is_found() {
    let found = found(Lie::FalseSoldOut).await;
    assert!(
        found.contains(&"SOLD_OUT and CLOSED were true".to_owned()),
        "{found:?}"
    );
    assert!(
        found.contains(&"every credit was shown to its user".to_owned()),
        "{found:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn people_who_are_not_told_of_the_opening_tap_all_the_same_and_it_is_found() {
    let found = found(Lie::SilentOpening).await;
    assert_eq!(found, ["everybody was told that the rain opened"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unbalanced_audit_is_not_good() {
    assert_eq!(found(Lie::Unbalanced).await, ["the audit is balanced"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_tokens_end_the_run_with_the_gateways_reason() {
    let error = rain(Lie::NoEntry, &[]).await.unwrap_err();
    assert!(!error.is_usage());
    let text = error.to_string();
    assert!(
        text.contains("TOKEN_INVALID (the signature is wrong)"),
        "{text}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_api_key_is_reported_in_the_servers_words() {
    let server = StandIn::start(Lie::None).await;
    let folder = tempfile::tempdir().unwrap();
    let args = server.args(folder.path(), &[]);
    std::fs::write(folder.path().join("key"), "another").unwrap();
    let error = hongbao_load::run(Args::parse_from(args)).await.unwrap_err();
    let wanted = "could not create the sponsor's account: wrong API key (401): it is not known";
    assert_eq!(error.to_string(), wanted);
    assert!(error.is_usage());
}
