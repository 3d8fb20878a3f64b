//! Who knocked, who was let in, and what is left of it: counts, lines of the log, sessions, clocks.

use std::process::Command;

use reqwest::StatusCode;
use serde_json::json;

use super::*;

async fn requests(server: &Server, result: &str) -> f64 {
    let name = format!("hongbao_admin_requests_total{{result=\"{result}\"}}");
    server.metric(&name).await
}

#[tokio::test]
async fn whoever_is_let_in_or_not_is_counted_by_the_reason() {
    let server = Server::start(&["store.managed_nodes=1"]);
    let issued = key(&server, "viewer", &[Role::Viewer]).await;
    let before = requests(&server, "accepted").await;
    let read = || Signed::get("/v1/rains", &issued.credential);
    let accepted = read();
    assert_eq!(accepted.send(&server).await.status, 200);
    assert_eq!(accepted.send(&server).await.status, 401, "replayed");
    let mut late = read();
    late.time_ms -= 6_000;
    assert_eq!(late.send(&server).await.status, 401);
    let forged = Signed::get("/v1/rains", "k0.0123456789abcdef0123456789abcdef");
    assert_eq!(forged.send(&server).await.status, 401);
    let url = format!("{}/v1/rains", server.admin_url());
    assert_eq!(reqwest::get(&url).await.unwrap().status(), 401);
    assert_eq!(
        Signed::get("/v1/keys", &issued.credential)
            .send(&server)
            .await
            .status,
        403
    );
    let old = reqwest::Client::new().get(&url);
    let old = old.header("cookie", "hongbao_console=00").send().await;
    assert_eq!(old.unwrap().status(), 401);
    for (result, count) in [
        ("accepted", before + 1.0),
        ("replayed", 1.0),
        ("clock", 1.0),
        ("signature", 1.0),
        ("unsigned", 1.0),
        ("not_allowed", 1.0),
        ("session", 1.0),
        ("key_revoked", 0.0),
    ] {
        assert_eq!(requests(&server, result).await, count, "{result}");
    }
    server.admin().revoke_key(&issued.key.id).await.unwrap();
    assert_eq!(read().send(&server).await.title(), "the key is revoked");
    assert_eq!(requests(&server, "key_revoked").await, 1.0);
}

async fn log_in(server: &Server, key: &str, secret: &str) -> reqwest::Response {
    let request = reqwest::Client::new().post(format!("{}/console/login", server.admin_url()));
    let request = request.header("content-type", "application/json");
    let body = json!({ "key": key, "secret": secret }).to_string();
    request.body(body).send().await.unwrap()
}

/// The cookie that a login gave, as a browser sends it, and the token for writes.
async fn session(answer: reqwest::Response) -> (String, String) {
    let cookie = answer.headers()["set-cookie"].to_str().unwrap();
    let cookie = cookie.split(';').next().unwrap().to_owned();
    let who: serde_json::Value = serde_json::from_str(&answer.text().await.unwrap()).unwrap();
    (cookie, who["csrf"].as_str().unwrap().to_owned())
}

async fn log_out(server: &Server, (cookie, csrf): &(String, String)) -> StatusCode {
    let url = format!("{}/console/logout", server.admin_url());
    let request = reqwest::Client::new().post(url);
    let request = request
        .header("cookie", cookie)
        .header("hongbao-csrf", csrf);
    request.send().await.unwrap().status()
}

/// `GET /console/session`: who is logged in.
async fn who(server: &Server, (cookie, _): &(String, String)) -> StatusCode {
    let url = format!("{}/console/session", server.admin_url());
    let request = reqwest::Client::new().get(url).header("cookie", cookie);
    request.send().await.unwrap().status()
}

#[tokio::test]
async fn logins_that_succeed_and_that_fail_stand_in_the_log_and_no_secret_does() {
    let server = Server::start(&["store.managed_nodes=1"]);
    let issued = key(&server, "anna", &[Role::Operator]).await;
    let credential = Credential::read(&issued.credential);
    let target = format!("key:{}", credential.id);
    assert_eq!(
        log_in(&server, &credential.id, "not-the-secret")
            .await
            .status(),
        401
    );
    // In the wrong field: what is nobody's key may be a secret.
    assert_eq!(log_in(&server, &credential.secret, "").await.status(), 401);
    let session = session(log_in(&server, &credential.id, &credential.secret).await).await;
    assert_eq!(log_out(&server, &session).await, 204);
    assert_eq!(
        log_in(&server, "bootstrap", &server.api_key())
            .await
            .status(),
        200
    );

    let lines = server.admin().log(None, None, 10).await.unwrap().log;
    let seen: Vec<_> = lines
        .iter()
        .map(|line| (line.operation.as_str(), line.target.as_str(), line.status))
        .collect();
    assert_eq!(
        seen,
        [
            ("log_in", "key:bootstrap", 200),
            ("log_out", &target, 204),
            ("log_in", &target, 200),
            ("log_in", &target, 401),
            ("create_key", &target, 201),
        ]
    );
    let failed = &lines[3];
    assert_eq!(
        (failed.caller.as_str(), failed.caller_name.as_str()),
        (credential.id.as_str(), "anna")
    );
    assert!(
        failed.outcome.starts_with("refused: the login failed"),
        "{}",
        failed.outcome
    );
    assert_eq!(failed.after.as_ref().unwrap()["address"], "127.0.0.1");
    let all = format!("{lines:?}");
    for secret in ["not-the-secret", &credential.secret, &server.api_key()] {
        assert!(!all.contains(secret), "{secret}");
    }
    for (result, count) in [("succeeded", 2.0), ("failed", 2.0), ("throttled", 0.0)] {
        let name = format!("hongbao_console_logins_total{{result=\"{result}\"}}");
        assert_eq!(server.metric(&name).await, count, "{result}");
    }
    for _ in 0..11 {
        log_in(&server, &credential.id, "guess").await;
    }
    let throttled = server.metric("hongbao_console_logins_total{result=\"throttled\"}");
    assert_eq!(throttled.await, 1.0);
    let guesses = server
        .admin()
        .log(Some(&target), None, 100)
        .await
        .unwrap()
        .log;
    assert_eq!(
        guesses.len(),
        4 + 10,
        "the one that was turned away is only counted"
    );
}

/// The line of a creation used to be about nothing, so that nobody found it by what was made.
#[tokio::test]
async fn the_line_of_a_creation_is_about_what_was_made() {
    let server = Server::start(&["store.managed_nodes=1"]);
    let rain = server.ready_rain(10, 1_000).await;
    let issued = key(&server, "anna", &[Role::Operator]).await;
    let lines = server.admin().log(None, None, 10).await.unwrap().log;
    let about: Vec<_> = lines
        .iter()
        .map(|line| (line.operation.as_str(), line.target.clone()))
        .collect();
    assert_eq!(
        about,
        [
            ("create_key", format!("key:{}", issued.key.id)),
            ("create_rain", format!("rain:{rain}")),
            ("deposit", "account:sponsor:acme".to_owned()),
            ("create_sponsor", "account:sponsor:acme".to_owned()),
        ]
    );
}

#[tokio::test]
async fn the_key_of_the_file_is_among_the_keys_and_is_left_alone() {
    let server = Server::start(&["store.managed_nodes=1"]);
    let issued = key(&server, "anna", &[Role::Viewer]).await;
    let admin = server.admin();
    let keys = admin.keys(None).await.unwrap().keys;
    let ids: Vec<&str> = keys.iter().map(|key| key.id.as_str()).collect();
    assert_eq!(ids, [BOOTSTRAP, &issued.key.id]);
    assert_eq!(
        (keys[0].state.as_str(), &keys[0].roles[..]),
        ("fixed", &[Role::Admin][..])
    );
    let age_ms = hongbao::clock::now_ms() - keys[0].created_at_ms;
    assert!((0..60_000).contains(&age_ms), "{age_ms}");
    // By pages of one.
    let page = async |cursor: &str| {
        let path = format!("/v1/keys?limit=1{cursor}");
        Signed::get(&path, &server.api_key())
            .send(&server)
            .await
            .json
    };
    let first = page("").await;
    assert_eq!(first["keys"][0]["id"], BOOTSTRAP);
    let second = page(&format!(
        "&cursor={}",
        first["next_cursor"].as_str().unwrap()
    ))
    .await;
    assert_eq!(second["keys"][0]["id"], issued.key.id);
    assert!(second["next_cursor"].is_null());
    let left_alone = refused(admin.revoke_key(BOOTSTRAP).await.unwrap_err());
    assert_eq!(left_alone, (409, "the key is a file's".into()));

    let listed = hongbao()
        .arg("--data-dir")
        .arg(server.data_dir())
        .args(["keys", "list"])
        .env_remove("HONGBAO_API_KEY")
        .output()
        .unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let line = listed.lines().find(|line| line.starts_with("bootstrap "));
    assert!(
        line.unwrap().contains("fixed") && line.unwrap().contains("admin"),
        "{listed}"
    );
}

/// SQL holds them, so it does not matter whom a load balancer asks.
#[tokio::test]
async fn a_session_is_good_on_all_admin_processes_and_ends_on_all() {
    let (_redis, one, two) = two_admins().await;
    let first = session(log_in(&one, "bootstrap", &one.api_key()).await).await;
    let second = session(log_in(&two, "bootstrap", &one.api_key()).await).await;
    for server in [&one, &two] {
        assert_eq!(who(server, &first).await, 200);
        assert_eq!(who(server, &second).await, 200);
    }
    // A write at the other process, with the token that this one gave.
    let write = reqwest::Client::new().post(format!("{}/v1/accounts", two.admin_url()));
    let write = write
        .header("cookie", &first.0)
        .header("hongbao-csrf", &first.1)
        .header("idempotency-key", "acme")
        .header("content-type", "application/json")
        .body(r#"{"sponsor":"acme"}"#);
    assert_eq!(write.send().await.unwrap().status(), 201);
    assert_eq!(log_out(&two, &first).await, 204);
    for server in [&one, &two] {
        assert_eq!(who(server, &first).await, 401);
        assert_eq!(who(server, &second).await, 200, "another session goes on");
    }
    let lines = one
        .admin()
        .log(Some("key:bootstrap"), None, 10)
        .await
        .unwrap()
        .log;
    let operations: Vec<&str> = lines.iter().map(|line| line.operation.as_str()).collect();
    assert_eq!(operations, ["log_out", "log_in", "log_in"]);
}

/// In front of the C library: for the program that is loaded with it the wall clock is off by this much, as on a machine without NTP.
const WRONG_CLOCK: &str = r#"
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, clock, now);
    if (!failed && clock == CLOCK_REALTIME) now->tv_sec += atoi(getenv("CLOCK_OFF_S"));
    return failed;
}
"#;

#[tokio::test]
async fn a_command_on_a_machine_with_a_wrong_clock_says_how_far_off_it_is_and_what_to_do() {
    let server = Server::start(&["store.managed_nodes=1"]);
    let dir = tempfile::tempdir().unwrap();
    let (source, library) = (dir.path().join("clock.c"), dir.path().join("clock.so"));
    std::fs::write(&source, WRONG_CLOCK).unwrap();
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .args([&library, &source])
        .status();
    assert!(compiled.unwrap().success());
    let list = |off_s: i64| {
        let output = hongbao()
            .arg("--data-dir")
            .arg(server.data_dir())
            .args(["rain", "list"])
            .env_remove("HONGBAO_API_KEY")
            .env("LD_PRELOAD", &library)
            .env("CLOCK_OFF_S", off_s.to_string())
            .output()
            .unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    assert_eq!(list(0).0, Some(0));
    for (off_s, side) in [(-90, "behind"), (3_600, "ahead of")] {
        let (code, error) = list(off_s);
        assert_eq!(code, Some(1), "{error}");
        assert!(error.contains("the request's time is off (401)"), "{error}");
        let said = error
            .split(&format!(" ms {side} the server's clock"))
            .next()
            .unwrap();
        let said: i64 = said.rsplit(' ').next().unwrap().parse().unwrap();
        // The request was on its way for a moment.
        assert!((said - off_s.abs() * 1_000).abs() < 5_000, "{error}");
        assert!(
            error.contains("set the clock of the machine that signs"),
            "{error}"
        );
    }
}
