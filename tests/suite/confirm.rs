//! What moves money is asked for twice.

use std::process::{Output, Stdio};

use hongbao::client::admin::{AdminClient, AdminError};
use hongbao::rain::Cents;
use serde_json::json;

use crate::support::server::{Server, hongbao, new_rain};
use crate::support::signed::{Answer, Signed};

const ON: [&str; 3] = [
    "store.managed_nodes=1",
    "admin.confirm=true",
    "admin.confirm_above_cents=5000",
];

fn deposit(server: &Server, cents: i64, key: &str) -> Signed {
    let path = "/v1/accounts/acme/deposits";
    let mut request = Signed::new("POST", path, &server.api_key());
    request.body = json!({ "cents": cents }).to_string();
    request.idempotency_key = key.into();
    request
}

/// The same request with a token; a nonce works once.
fn confirming(request: &Signed, token: &str) -> Signed {
    let mut again = Signed::new(request.method, &request.path, "");
    again.credential = request.credential.clone();
    again.body = request.body.clone();
    again.idempotency_key = request.idempotency_key.clone();
    again.instead.push(("Hongbao-Confirm", token.into()));
    again
}

fn token(answer: &Answer) -> String {
    assert_eq!(answer.status, 428, "{}", answer.text);
    answer.json["confirm"].as_str().unwrap().to_owned()
}

async fn balance(admin: &AdminClient) -> Cents {
    admin.account("sponsor:acme").await.unwrap().balance_cents
}

#[tokio::test]
async fn a_token_confirms_one_request_of_one_caller_to_the_byte() {
    let server = Server::start(&ON);
    let admin = server.admin();
    admin.create_sponsor("acme").await.unwrap();
    let asked = deposit(&server, 700, "bank-1");
    let answer = asked.send(&server).await;
    assert_eq!(answer.json["what"], "records 7.00 paid in by sponsor acme");
    assert_eq!(answer.json["cents"], 700);
    let token = token(&answer);
    assert_eq!(balance(&admin).await, Cents::ZERO, "nothing happened yet");
    let other = |change: fn(&mut Signed)| {
        let mut request = confirming(&asked, &token);
        change(&mut request);
        request
    };
    let wrong = [
        other(|request| request.body = json!({ "cents": 7_000 }).to_string()),
        other(|request| request.idempotency_key = "bank-2".into()),
        other(|request| request.path = "/v1/accounts/other/deposits".into()),
        other(|request| request.instead = vec![("Hongbao-Confirm", "0.00".into())]),
        other(|request| request.instead[0].1 = format!("9{}", request.instead[0].1)),
    ];
    for request in wrong {
        let answer = request.send(&server).await;
        assert_eq!(answer.status, 428, "{}", answer.text);
        assert!(answer.text.contains("too old, or of another request"));
    }
    assert_eq!(balance(&admin).await, Cents::ZERO);
    // Twice with the token is once.
    for _ in 0..2 {
        let answer = confirming(&asked, &token).send(&server).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
    }
    assert_eq!(balance(&admin).await, Cents(700));
    // The library confirms what its program asks for, unless it is told to ask.
    admin.deposit("acme", Cents(20_000), "d").await.unwrap();
    let asking = server.admin().asking(|what| !what.contains("paid in"));
    match asking.deposit("acme", Cents(1), "e").await.unwrap_err() {
        AdminError::Unconfirmed { what, .. } => assert!(what.contains("0.01"), "{what}"),
        other => panic!("{other}"),
    }
    assert_eq!(balance(&admin).await, Cents(20_700));
}

/// A schedule reads its template at every opening, and nobody is there to be asked then.
#[tokio::test]
async fn a_template_is_changed_to_a_large_amount_only_when_that_is_confirmed() {
    let server = Server::start(&ON);
    let admin = server.admin();
    admin.create_sponsor("acme").await.unwrap();
    let created = admin
        .create_template("nightly", &json!(new_rain(10, 5_000)))
        .await;
    created.unwrap();
    let change = |cents: i64, name: &str| {
        let path = "/v1/templates/nightly/update";
        let body = json!({ "rain": new_rain(10, cents) }).to_string();
        Signed::post(path, &server.api_key(), body).keyed(name)
    };
    let small = change(4_000, "small").send(&server).await;
    assert_eq!(small.status, 200, "{}", small.text);
    let asked = change(2_000_000, "large");
    let answer = asked.send(&server).await;
    let token = token(&answer);
    let what = answer.json["what"].as_str().unwrap();
    assert!(
        what.contains("20000.00") || what.contains("20,000.00"),
        "{what}"
    );
    assert!(what.contains("schedules"), "{what}");
    let kept = admin.template("nightly").await.unwrap();
    assert_eq!(kept.rain["total_cents"], 4_000);
    let done = confirming(&asked, &token).send(&server).await;
    assert_eq!(done.status, 200, "{}", done.text);
}

/// Whoever lost the answer may have lost the token, too.
#[tokio::test]
async fn what_was_confirmed_is_answered_again_without_a_token() {
    let server = Server::start(&ON);
    let admin = server.admin();
    admin.create_sponsor("acme").await.unwrap();
    let asked = deposit(&server, 700, "bank");
    let token = token(&asked.send(&server).await);
    let first = confirming(&asked, &token).send(&server).await;
    assert_eq!(first.status, 200, "{}", first.text);
    let again = deposit(&server, 700, "bank").send(&server).await;
    assert_eq!((again.status, &again.json), (200, &first.json));
    let other = deposit(&server, 800, "bank").send(&server).await;
    assert_eq!(other.status, 409, "{}", other.text);
    assert_eq!(balance(&admin).await, Cents(700));
}

#[tokio::test]
async fn every_route_that_moves_money_asks_and_small_rains_do_not() {
    let server = Server::start(&ON);
    let admin = server.admin();
    let rain = server.ready_rain(10, 5_000).await;
    admin.deposit("acme", Cents(50_000), "more").await.unwrap();
    admin
        .create_template("big", &json!(new_rain(10, 5_001)))
        .await
        .unwrap();
    let ask = async |path: &str, body: serde_json::Value| {
        let mut request = Signed::new("POST", path, &server.api_key());
        request.body = body.to_string();
        request.send(&server).await
    };
    let small = ask("/v1/rains", json!(new_rain(10, 5_000))).await;
    assert_eq!(small.status, 201, "{}", small.text);
    let close = format!("/v1/rains/{rain}/close");
    let top_up = format!("/v1/rains/{rain}/top-up");
    let schedule = json!({"template": "big", "times": {"once": [32_000_000_000_000i64]}});
    for (path, body, what) in [
        ("/v1/rains", json!(new_rain(10, 5_001)), "takes 50.01"),
        ("/v1/templates/big/rains", json!({}), "takes 50.01"),
        (
            "/v1/schedules",
            schedule,
            "takes 50.01 from the sponsor for each opening",
        ),
        (
            top_up.as_str(),
            json!({"packets": 1, "total_cents": 5}),
            "takes 0.05",
        ),
        (close.as_str(), json!({}), "closes rain 1 now"),
        (
            "/v1/dead-letters/4294967296/discard",
            json!({"reason": "x"}),
            "for good",
        ),
    ] {
        let answer = ask(path, body).await;
        let said = answer.json["what"].as_str().unwrap_or_default();
        assert_eq!(answer.status, 428, "{path}: {}", answer.text);
        assert!(said.contains(what), "{path}: {said}");
    }
    let small = ask("/v1/templates/big/rains", json!({"total_cents": 100})).await;
    assert_eq!(small.status, 201, "{}", small.text);
    let dry = ask("/v1/rains?dry_run=true", json!(new_rain(10, 5_001))).await;
    assert_eq!(dry.status, 200, "{}", dry.text);
    let left = Cents(50_000 - 5_000 - 100);
    assert_eq!(balance(&admin).await, left);
    assert!(admin.close_rain(rain).await.unwrap().state.is_closed());
}

#[tokio::test]
async fn the_command_line_asks_a_person_and_takes_yes_from_a_script() {
    let server = Server::start(&ON);
    server.admin().create_sponsor("acme").await.unwrap();
    let run = |more: &[&str]| -> Output {
        let mut command = hongbao();
        command.arg("--data-dir").arg(server.data_dir());
        command.args(["account", "deposit", "acme", "7.00", "--key", "bank"]);
        command.args(more).stdin(Stdio::null()).output().unwrap()
    };
    let refused = run(&[]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        said.contains("records 7.00 paid in by sponsor acme"),
        "{said}"
    );
    assert!(said.contains("--yes"), "{said}");
    assert_eq!(balance(&server.admin()).await, Cents::ZERO);
    assert!(run(&["--yes"]).status.success());
    assert_eq!(balance(&server.admin()).await, Cents(700));
}
