//! The admin API and the command line.

use std::process::Output;

use hongbao::client::admin::{AdminClient, AdminError, NewRain};
use hongbao::rain::Cents;
use hongbao::rain::split::{Rule, Tier};

use crate::support::server::{Server, hongbao, new_rain};
use crate::support::signed::Signed;

fn problem(error: AdminError) -> (u16, String) {
    match error {
        AdminError::Problem { status, detail, .. } => (status, detail),
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn a_rain_whose_numbers_cannot_work_is_refused_with_the_reason() {
    let server = Server::start(&[
        "store.managed_nodes=1",
        "store.managed_appendfsync=everysec",
    ]);
    let admin = server.admin();
    admin.create_sponsor("acme").await.unwrap();
    admin.deposit("acme", Cents(1_000), "d").await.unwrap();
    let good = new_rain(10, 1_000);
    let tiers = Rule::Tiers(vec![
        Tier {
            count: 1,
            cents: Cents(500),
        },
        Tier {
            count: 8,
            cents: Cents(60),
        },
    ]);
    let past = hongbao::clock::now_ms() - 3_600_000;
    for (rain, status, part) in [
        (
            NewRain {
                packets: 0,
                ..good.clone()
            },
            422,
            "0",
        ),
        (
            NewRain {
                packets: 1_001,
                ..good.clone()
            },
            422,
            "1001",
        ),
        (
            NewRain {
                min_cents: Some(Cents(101)),
                ..good.clone()
            },
            422,
            "1.01",
        ),
        (
            NewRain {
                max_cents: Some(Cents(99)),
                ..good.clone()
            },
            422,
            "0.99",
        ),
        (
            NewRain {
                total_cents: Cents(-5),
                ..good.clone()
            },
            422,
            "-0.05",
        ),
        (
            NewRain {
                rule: tiers,
                ..good.clone()
            },
            422,
            "9",
        ),
        (
            NewRain {
                total_cents: Cents(1_001),
                ..good.clone()
            },
            409,
            "10.00, which does not pay for a rain of 10.01",
        ),
        (
            NewRain {
                sponsor: "nobody".into(),
                ..good.clone()
            },
            404,
            "sponsor nobody has no account",
        ),
        (
            NewRain {
                room: "two words".into(),
                ..good.clone()
            },
            422,
            "room \"two words\"",
        ),
        (
            NewRain {
                duration_ms: Some(0),
                ..good.clone()
            },
            422,
            "duration of 0 ms",
        ),
        (
            NewRain {
                opens_at_ms: Some(past),
                ..good.clone()
            },
            422,
            "which is past",
        ),
        (
            NewRain {
                buckets: Some(11),
                ..good.clone()
            },
            422,
            "buckets 11 must be from 1 to 10",
        ),
        (
            NewRain {
                durability: Some("fsync".parse().unwrap()),
                ..good.clone()
            },
            422,
            "appendfsync always",
        ),
    ] {
        let (refused, detail) = problem(admin.create_rain(&rain).await.unwrap_err());
        assert_eq!(refused, status, "{detail}");
        assert!(
            detail.contains(part),
            "\"{detail}\" does not say \"{part}\""
        );
    }
    // Closing before opening can only be said with both times.
    let closing_first = serde_json::json!({"room":"quiz","sponsor":"acme","rule":"even","total_cents":1000,"packets":10,
        "opens_at_ms": 4_000_000_000_000i64, "closes_at_ms": 3_999_999_999_999i64});
    let (status, body) = post(
        &server,
        "/v1/rains",
        &server.api_key(),
        closing_first.to_string(),
    )
    .await;
    assert_eq!(status, 422);
    assert!(body.contains("must be after opens_at_ms"), "{body}");
    assert_eq!(
        admin.account("sponsor:acme").await.unwrap().balance_cents,
        Cents(1_000),
        "nothing was taken"
    );
    assert!(admin.rains().await.unwrap().is_empty());
}

async fn post(server: &Server, path: &str, key: &str, body: String) -> (u16, String) {
    let answer = Signed::post(path, key, body).send(server).await;
    (answer.status, answer.text)
}

#[tokio::test]
async fn wrong_requests_are_problems_with_a_name() {
    let server = Server::start(&[
        "store.managed_nodes=1",
        "admin.body_max_bytes=2048",
        "admin.header_timeout_ms=200",
    ]);
    let wrong_key = AdminClient::new(&server.admin_url(), "guessed").unwrap();
    assert_eq!(problem(wrong_key.rains().await.unwrap_err()).0, 401);
    let key = server.api_key();
    let with = |field: &str| {
        format!(
            r#"{{"sponsor":"acme","room":"r","rule":"even","total_cents":9,"packets":9,{field}}}"#
        )
    };
    for (path, body, status) in [
        ("/v1/rains", "{".to_owned(), 422),
        ("/v1/rains", r#"{"rooom":"quiz"}"#.to_owned(), 422),
        (
            "/v1/rains",
            format!(r#"{{"title":"{}"}}"#, "x".repeat(4_000)),
            413,
        ),
        ("/v1/rains/0/open", "{}".to_owned(), 404),
        ("/v1/rains/99/open", "{}".to_owned(), 404),
        ("/v1/rains/abc/close", "{}".to_owned(), 404),
        ("/v1/nothing", "{}".to_owned(), 404),
        (
            "/v1/accounts/nobody/deposits",
            r#"{"cents":5}"#.to_owned(),
            404,
        ),
        (
            "/v1/accounts/nobody/deposits",
            r#"{"cents":-5}"#.to_owned(),
            422,
        ),
        (
            "/v1/accounts/nobody/deposits",
            format!(r#"{{"cents":{}}}"#, i64::MAX),
            422,
        ),
        ("/v1/accounts", r#"{"sponsor":".."}"#.to_owned(), 422),
        (
            "/v1/templates",
            r#"{"name":".","rain":{"room":"r","rule":"even","total_cents":9,"packets":9}}"#
                .to_owned(),
            422,
        ),
        (
            "/v1/rains",
            with(r#""opens_at_ms":9223372036854775807"#),
            422,
        ),
        (
            "/v1/rains",
            with(r#""opens_at_ms":-9223372036854775808,"closes_at_ms":9"#),
            422,
        ),
        (
            "/v1/rains",
            with(r#""refund_after_ms":9223372036854775807"#),
            422,
        ),
    ] {
        let (answered, text) = post(&server, path, &key, body).await;
        assert_eq!(answered, status, "{path}: {text}");
        let problem: serde_json::Value = serde_json::from_str(&text).expect("problem+json");
        assert_eq!(problem["status"], status);
        assert!(
            problem["detail"]
                .as_str()
                .is_some_and(|detail| !detail.is_empty()),
            "{text}"
        );
    }
    // A client that never finishes its headers is cut off.
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut slow = tokio::net::TcpStream::connect(server.addresses.admin.unwrap())
        .await
        .unwrap();
    slow.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n")
        .await
        .unwrap();
    let mut rest = vec![];
    let read = tokio::time::timeout(crate::support::PATIENCE, slow.read_to_end(&mut rest)).await;
    assert!(read.is_ok(), "a slow client was kept");
}

#[tokio::test]
async fn a_deposit_and_a_rain_happen_once_per_key() {
    let server = Server::start(&["store.managed_nodes=1"]);
    let admin = server.admin();
    admin.create_sponsor("acme").await.unwrap();
    for _ in 0..2 {
        assert_eq!(
            admin
                .deposit("acme", Cents(5_000), "bank-1")
                .await
                .unwrap()
                .balance_cents,
            Cents(5_000)
        );
    }
    assert_eq!(
        problem(
            admin
                .deposit("acme", Cents(6_000), "bank-1")
                .await
                .unwrap_err()
        )
        .0,
        409
    );
    let keyed = NewRain {
        key: Some("tonight".into()),
        ..new_rain(10, 1_000)
    };
    let first = admin.create_rain(&keyed).await.unwrap().id;
    assert_eq!(admin.create_rain(&keyed).await.unwrap().id, first);
    let other = NewRain {
        packets: 11,
        ..keyed
    };
    assert_eq!(problem(admin.create_rain(&other).await.unwrap_err()).0, 409);
    assert_eq!(
        admin.account("sponsor:acme").await.unwrap().balance_cents,
        Cents(4_000)
    );
}

#[tokio::test]
async fn a_paused_rain_gives_nothing_until_it_is_resumed() {
    use hongbao::wire::Outcome;
    let server = Server::start(&["store.managed_nodes=1"]);
    let rain = server.open_rain(10, 1_000).await;
    let mut anna = crate::support::wire::Raw::user(&server, "anna").await;
    let (status, body) = post(
        &server,
        &format!("/v1/rains/{rain}/pause"),
        &server.api_key(),
        "{}".into(),
    )
    .await;
    assert_eq!(status, 200, "{body}");
    assert_eq!(anna.grab(rain.get()).await.outcome(), Outcome::Paused);
    let (status, body) = post(
        &server,
        &format!("/v1/rains/{rain}/resume"),
        &server.api_key(),
        "{}".into(),
    )
    .await;
    assert_eq!(status, 200, "{body}");
    assert_eq!(anna.grab(rain.get()).await.outcome(), Outcome::Won);
}

fn cli(server: &Server, args: &[&str]) -> Output {
    hongbao()
        .arg("--data-dir")
        .arg(server.data_dir())
        .args(args)
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[tokio::test]
async fn the_command_line_prepares_a_rain_and_tells_how_it_went() {
    let server = Server::start(&["store.managed_nodes=1"]);
    for args in [
        &["account", "create", "acme"][..],
        &["account", "deposit", "acme", "100.00", "--key", "d"],
        &[
            "rain",
            "create",
            "--sponsor",
            "acme",
            "--room",
            "quiz",
            "--tier",
            "1x10.00",
            "--tier",
            "9x1.00",
            "--total",
            "19.00",
        ],
        &["rain", "list"],
        &["rain", "show", "1", "--json"],
        &["token", "anna"],
        &["check-config"],
    ] {
        let output = cli(&server, args);
        assert!(
            output.status.success(),
            "{args:?}: {}",
            text(&output.stderr)
        );
        assert!(!output.stdout.is_empty(), "{args:?}");
    }
    server
        .until(hongbao::rain::RainId::new(1).unwrap(), |rain| {
            rain.state == hongbao::rain::State::Ready
        })
        .await;
    let audit = cli(&server, &["audit", "1"]);
    assert!(
        text(&audit.stdout).ends_with("audit: balanced\n"),
        "{}",
        text(&audit.stdout)
    );
    for args in [&["rain", "open", "1"][..], &["rain", "close", "1"]] {
        assert!(cli(&server, args).status.success(), "{args:?}");
    }
    let twice = cli(&server, &["rain", "open", "1"]);
    assert_eq!(twice.status.code(), Some(1));
    assert!(
        text(&twice.stderr).contains("cannot be opened"),
        "{}",
        text(&twice.stderr)
    );
}

#[test]
fn wrong_use_and_wrong_settings_exit_with_2_and_name_every_fault() {
    for args in [
        &["rain", "open", "0"][..],
        &["account", "deposit", "acme", "1.234", "--key", "k"],
        &["frobnicate"],
    ] {
        let output = hongbao().args(args).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}");
    }
    let flags = [
        "--set",
        "gateway.lissen=1",
        "--set",
        "store.managed_nodes=0",
        "check-config",
    ];
    let output = hongbao()
        .args(flags)
        .env("HONGBAO_SETTLE__WORKERS", "many")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let text = text(&output.stderr);
    for part in [
        "3 faults",
        "did you mean gateway.listen?",
        "0 is not a number from 1 to 64",
        "environment HONGBAO_SETTLE__WORKERS",
    ] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn a_data_directory_serves_one_process() {
    let server = Server::start(&["store.managed_nodes=1"]);
    let output = cli(
        &server,
        &[
            "--set",
            "gateway.listen=127.0.0.1:0",
            "--set",
            "admin.listen=127.0.0.1:0",
            "serve",
        ],
    );
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stderr).contains("is used by another hongbao process"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn secrets_are_for_their_owner_only() {
    use std::os::unix::fs::PermissionsExt;
    let server = Server::start(&["store.managed_nodes=1"]);
    for name in ["token-secret", "api-key", "ledger.sqlite"] {
        let mode = std::fs::metadata(server.data_dir().join(name))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    let mode = std::fs::metadata(server.data_dir())
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o700);
}
