//! The trust of the admin API: keys, signatures, writes that happen once, the log of who did what.

/// The OpenAPI page against real answers.
mod contract;
/// Who knocked, who was let in, and what is left of it.
mod door;
/// What one client may cost.
mod limits;
/// Writes by their idempotency key.
mod once;
/// Requests that are wrong in every way.
mod wrong;

use hongbao::admin::caller::Role;
use hongbao::admin::signing::{BOOTSTRAP, Credential};
use hongbao::client::admin::{AdminClient, AdminError, IssuedKey, NewKey};
use hongbao::rain::Cents;

use crate::support::eventually;
use crate::support::redis::Redis;
use crate::support::server::{Server, hongbao, new_rain};
use crate::support::signed::Signed;

async fn key(server: &Server, name: &str, roles: &[Role]) -> IssuedKey {
    let new = NewKey {
        name: name.into(),
        roles: roles.to_vec(),
        expires_at_ms: None,
    };
    server.admin().create_key(&new, None).await.unwrap()
}

fn client(server: &Server, credential: &str) -> AdminClient {
    AdminClient::new(&server.admin_url(), credential).unwrap()
}

fn refused(error: AdminError) -> (u16, String) {
    match error {
        AdminError::Problem { status, title, .. } => (status, title),
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn a_key_does_what_its_roles_allow_until_it_is_revoked() {
    let server = Server::start(&["store.managed_nodes=1"]);
    let issued = key(&server, "dashboard", &[Role::Viewer]).await;
    let viewer = client(&server, &issued.credential);
    assert!(viewer.rains().await.unwrap().is_empty());
    let denied = refused(viewer.create_sponsor("acme").await.unwrap_err());
    assert_eq!(denied, (403, "the key may not do this".into()));
    assert_eq!(refused(viewer.keys(None).await.unwrap_err()).0, 403);
    let log = viewer.log(None, None, 10).await.unwrap().log;
    assert_eq!(
        log.len(),
        2,
        "the denied write is there, the denied read is not"
    );
    assert_eq!(
        (
            log[0].operation.as_str(),
            log[0].status,
            log[0].caller.as_str()
        ),
        ("create_sponsor", 403, issued.key.id.as_str())
    );
    assert!(
        log[0]
            .outcome
            .starts_with("refused: the key may not do this")
    );

    let admin = server.admin();
    let listed = admin.keys(None).await.unwrap().keys;
    let names: Vec<&str> = listed.iter().map(|key| key.name.as_str()).collect();
    assert_eq!(names, ["API key file", "dashboard"]);
    assert!(listed[1].last_used_at_ms.is_some());
    admin.revoke_key(&issued.key.id).await.unwrap();
    let gone = refused(viewer.rains().await.unwrap_err());
    assert_eq!(gone, (401, "the key is revoked".into()));
}

#[tokio::test]
async fn a_rotated_key_has_two_secrets_for_a_while() {
    let server = Server::start(&["store.managed_nodes=1"]);
    let admin = server.admin();
    let first = key(&server, "ops", &[Role::Operator]).await;
    let second = admin.rotate_key(&first.key.id, None).await.unwrap();
    assert_ne!(first.credential, second.credential);
    for credential in [&first.credential, &second.credential] {
        client(&server, credential).rains().await.unwrap();
    }
    let third = admin.rotate_key(&first.key.id, Some(0)).await.unwrap();
    assert_eq!(third.key.generation, 3);
    for old in [&first.credential, &second.credential] {
        let wrong = refused(client(&server, old).rains().await.unwrap_err());
        assert_eq!(wrong, (401, "the signature does not match".into()));
    }
    client(&server, &third.credential).rains().await.unwrap();
}

#[tokio::test]
async fn what_lies_in_sql_lets_nobody_sign() {
    let server = Server::start(&["store.managed_nodes=1"]);
    let asked = Signed::post(
        "/v1/keys",
        &server.api_key(),
        r#"{"name":"ops","roles":["operator"]}"#,
    );
    let made = asked.send(&server).await;
    assert_eq!(made.status, 201, "{}", made.text);
    let credential = Credential::read(made.json["credential"].as_str().unwrap());
    // The repeat is told the same, although it was not kept.
    let again = Signed {
        nonce: hongbao::admin::signing::random_text(),
        ..asked
    };
    assert_eq!(again.send(&server).await.json, made.json);
    let dir = server.dir.clone();
    server.stop().await;
    for entry in std::fs::read_dir(dir.path().join("data")).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            let bytes = std::fs::read(&path).unwrap();
            let found = bytes
                .windows(credential.secret.len())
                .any(|part| part == credential.secret.as_bytes());
            assert!(!found, "{} holds the secret", path.display());
        }
    }
}

/// Two admin processes on one PostgreSQL and one Redis, with the same secrets.
async fn two_admins() -> (Redis, Server, Server) {
    let redis = Redis::fit().await;
    let ledger = format!("ledger.url={}", crate::support::postgres::database().await);
    let nodes = format!("store.nodes=[\"{}\"]", redis.url());
    let shared = ["store.topology=nodes", &nodes, &ledger];
    let one = Server::start(&shared);
    let file =
        |setting: &str, name: &str| format!("{setting}={}", one.data_dir().join(name).display());
    let secrets = [
        file("admin.api_key_file", "api-key"),
        file("admin.key_secret_file", "key-secret"),
        "server.roles=[\"admin\"]".into(),
    ];
    let mut settings = shared.to_vec();
    settings.extend(secrets.iter().map(String::as_str));
    let two = Server::start(&settings);
    (redis, one, two)
}

#[tokio::test]
async fn a_nonce_works_once_and_a_revocation_at_once_on_all_admin_processes() {
    let (_redis, one, two) = two_admins().await;
    let issued = key(&one, "ops", &[Role::Operator]).await;
    let request = Signed::get("/v1/rains", &issued.credential);
    let other = client(&two, &issued.credential);
    // The other process looks at the keys twice a second.
    eventually("the new key", async || other.rains().await.ok()).await;
    assert_eq!(request.send(&two).await.status, 200);
    let replay = request.send(&one).await;
    assert_eq!(
        (replay.status, replay.title()),
        (401, "the nonce was used before")
    );
    let begun = std::time::Instant::now();
    one.admin().revoke_key(&issued.key.id).await.unwrap();
    let gone = eventually("the revocation", async || other.rains().await.err()).await;
    assert_eq!(refused(gone), (401, "the key is revoked".into()));
    let late = begun.elapsed();
    assert!(
        late.as_millis() < 2_000,
        "{late:?}: half a second, on a busy machine"
    );
}

#[tokio::test]
async fn without_the_node_of_the_nonces_reads_are_answered_and_nothing_is_written() {
    let mut redis = Redis::fit().await;
    let nodes = format!("store.nodes=[\"{}\"]", redis.url());
    let server = Server::start(&["store.topology=nodes", &nodes]);
    let admin = server.admin();
    admin.create_sponsor("acme").await.unwrap();
    redis.kill();
    let read = Signed::get("/v1/accounts", &server.api_key());
    assert_eq!(read.send(&server).await.status, 200);
    assert_eq!(
        read.send(&server).await.title(),
        "the nonce was used before"
    );
    let body = r#"{"cents":500}"#;
    let write = Signed::post("/v1/accounts/acme/deposits", &server.api_key(), body);
    let answer = write.send(&server).await;
    assert_eq!(
        (answer.status, answer.title()),
        (503, "the nonce cannot be checked")
    );
    let account = admin.account("sponsor:acme").await.unwrap();
    assert_eq!(account.balance_cents, Cents(0));
}

#[tokio::test]
async fn a_clock_that_is_wrong_is_told_what_the_servers_says() {
    let server = Server::start(&["store.managed_nodes=1"]);
    for (off, side) in [(-6_000, "behind"), (6_500, "ahead of")] {
        let mut request = Signed::get("/v1/rains", &server.api_key());
        request.time_ms += off;
        let answer = request.send(&server).await;
        assert_eq!(
            (answer.status, answer.title()),
            (401, "the request's time is off")
        );
        let detail = answer.json["detail"].as_str().unwrap();
        assert!(detail.contains(side), "{detail}");
        let server_time = answer.json["server_time_ms"].as_i64().unwrap();
        assert!((server_time - hongbao::clock::now_ms()).abs() < 5_000);
    }
}

#[tokio::test]
async fn the_log_says_who_did_what_with_before_and_after() {
    let server = Server::start(&["store.managed_nodes=1"]);
    let rain = server.ready_rain(10, 1_000).await;
    let issued = key(&server, "anna", &[Role::Operator]).await;
    let anna = client(&server, &issued.credential);
    anna.open_rain(rain).await.unwrap();
    anna.open_rain(hongbao::rain::RainId::new(99).unwrap())
        .await
        .unwrap_err();
    let target = format!("rain:{rain}");
    let opened = anna.log(Some(&target), None, 10).await.unwrap().log;
    assert_eq!(opened.len(), 2, "its creation is about it, too");
    assert_eq!(opened[1].operation, "create_rain");
    let line = &opened[0];
    assert_eq!(
        (line.caller.as_str(), line.caller_name.as_str()),
        (issued.key.id.as_str(), "anna")
    );
    assert_eq!(
        (line.method.as_str(), line.operation.as_str(), line.status),
        ("POST", "open_rain", 200)
    );
    assert_eq!(line.outcome, "done");
    assert_eq!(line.before.as_ref().unwrap()["state"], "ready");
    assert_eq!(line.after.as_ref().unwrap()["state"], "open");
    // By pages of two: sponsor, deposit, rain, key, open, refused open.
    let (mut operations, mut cursor) = (vec![], None);
    loop {
        let page = anna.log(None, cursor.as_deref(), 2).await.unwrap();
        assert!(page.log.len() <= 2);
        operations.extend(
            page.log
                .into_iter()
                .map(|line| (line.operation, line.caller)),
        );
        // What is added meanwhile moves nothing.
        anna.open_rain(rain).await.unwrap();
        match page.next_cursor {
            Some(next) => cursor = Some(next),
            None => break,
        }
    }
    let names: Vec<&str> = operations.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        names,
        [
            "open_rain",
            "open_rain",
            "create_key",
            "create_rain",
            "deposit",
            "create_sponsor"
        ]
    );
    assert_eq!(operations[2].1, BOOTSTRAP);
}

#[tokio::test]
async fn the_command_line_makes_turns_and_ends_keys() {
    let server = Server::start(&["store.managed_nodes=1"]);
    let cli = |key: Option<&str>, args: &[&str]| {
        let mut command = hongbao();
        command.arg("--data-dir").arg(server.data_dir()).args(args);
        command.env_remove("HONGBAO_API_KEY");
        key.inspect(|key| {
            command.env("HONGBAO_API_KEY", key);
        });
        let output = command.output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (
            output.status.code(),
            text(output.stdout),
            text(output.stderr),
        )
    };
    let (code, credential, _) = cli(None, &["keys", "create", "ops", "--role", "operator"]);
    assert_eq!(code, Some(0));
    let credential = credential.trim();
    let (code, out, _) = cli(Some(credential), &["rain", "list", "--json"]);
    assert_eq!((code, out.trim()), (Some(0), "[]"));
    let (code, _, error) = cli(Some(credential), &["keys", "list"]);
    assert_eq!(code, Some(1));
    assert!(error.contains("the key may not do this (403)"), "{error}");
    let (id, _) = credential.split_once('.').unwrap();
    let (code, turned, _) = cli(None, &["keys", "rotate", id, "--overlap", "0", "--json"]);
    assert_eq!(code, Some(0));
    let turned: serde_json::Value = serde_json::from_str(&turned).unwrap();
    assert_eq!(turned["generation"], 2);
    assert_eq!(cli(Some(credential), &["rain", "list"]).0, Some(1));
    assert_eq!(cli(None, &["keys", "revoke", id]).0, Some(0));
    let (_, list, _) = cli(None, &["keys", "list"]);
    assert!(list.contains("revoked") && list.contains("ops"), "{list}");
    let (_, log, _) = cli(None, &["log", "--target", &format!("key:{id}")]);
    let operations: Vec<bool> = ["revoke_key", "rotate_key"]
        .iter()
        .map(|name| log.contains(name))
        .collect();
    assert_eq!(operations, [true, true], "{log}");
    assert!(!log.contains(turned["credential"].as_str().unwrap()));
    for wrong in [
        &["keys", "create", "x"][..],
        &["keys", "create", "x", "--role", "king"],
    ] {
        assert_eq!(cli(None, wrong).0, Some(2), "{wrong:?}");
    }
}
