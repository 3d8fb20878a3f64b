//! Who may have a session, for how long, and how many.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use hongbao::client::{BackoffBounds, Client, ClientError, Event, Login, Settings};
use hongbao::clock::now_ms;
use hongbao::gateway::token;
use hongbao::rain::UserId;
use hongbao::wire::client_frame::Request;
use hongbao::wire::server_frame::Message;
use hongbao::wire::{CloseCode, Outcome, Ping, Refresh};
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde_json::json;
use tempfile::TempDir;

use crate::support::crowd::{assert_paid, crowd};
use crate::support::eventually;
use crate::support::server::Server;
use crate::support::wire::Raw;

/// The key pair of RFC 8037, appendix A: PKCS #8 of the private key, and the public one.
const ED_PRIVATE: &str = "302e020100300506032b657004220420\
                          9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60";
const ED_PUBLIC: &str = "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo";
const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";
/// The same as base64url.
const SECRET_TEXT: &str = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY";

/// A key set file.
struct KeysFile {
    dir: TempDir,
}

impl KeysFile {
    fn new() -> KeysFile {
        let file = KeysFile {
            dir: tempfile::tempdir().unwrap(),
        };
        file.write(&file.all(json!({})));
        file
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("keys.json")
    }

    fn setting(&self) -> String {
        format!("tokens.keys_file={}", self.path().display())
    }

    /// Both keys and what is revoked.
    fn all(&self, revoked: serde_json::Value) -> String {
        let mut set = json!({"keys": [
            {"kid": "ed", "kty": "OKP", "crv": "Ed25519", "x": ED_PUBLIC},
            {"kid": "hs", "kty": "oct", "k": SECRET_TEXT},
        ]});
        let revoked = revoked.as_object().unwrap().clone();
        set.as_object_mut().unwrap().extend(revoked);
        set.to_string()
    }

    fn write(&self, text: &str) {
        let draft = self.dir.path().join("draft");
        std::fs::write(&draft, text).unwrap();
        std::fs::rename(draft, self.path()).unwrap();
    }
}

fn ed_token(user: &str, exp_s: i64) -> String {
    let header = Header {
        kid: Some("ed".into()),
        ..Header::new(Algorithm::EdDSA)
    };
    let payload = json!({"sub": user, "exp": exp_s, "iat": now_ms() / 1_000 - 1});
    let key = EncodingKey::from_ed_der(&hex::decode(ED_PRIVATE).unwrap());
    jsonwebtoken::encode(&header, &payload, &key).unwrap()
}

fn hs_token(user: &str, life: Duration) -> String {
    token::issue(&UserId::new(user).unwrap(), "hs", SECRET, life)
}

fn in_an_hour() -> i64 {
    now_ms() / 1_000 + 3_600
}

fn refusal(answer: Message) -> CloseCode {
    match answer {
        Message::Refused(refused) => refused.code(),
        other => panic!("{other:?}"),
    }
}

async fn welcomed(server: &Server, token: &str) -> Raw {
    let mut raw = Raw::connect(server).await;
    let answer = raw.hello(token).await;
    assert!(matches!(answer, Message::Welcome(_)), "{answer:?}");
    raw
}

#[tokio::test]
async fn keys_come_and_go_without_a_restart_and_a_revoked_one_ends_its_sessions() {
    let keys = KeysFile::new();
    let server = Server::start(&[&keys.setting(), "tokens.keys_poll_ms=10"]);
    let mut anna = welcomed(&server, &ed_token("anna", in_an_hour())).await;
    let mut ben = welcomed(&server, &hs_token("ben", Duration::from_secs(600))).await;
    assert!(!server.data_dir().join("token-secret").exists());

    // A file that cannot be used changes nothing, and says why.
    for broken in ["{\"keys\": [", "{\"keys\": []}"] {
        keys.write(broken);
    }
    eventually("the reason in the log", async || {
        server
            .log()
            .contains("no key that we can use")
            .then_some(())
    })
    .await;
    welcomed(&server, &ed_token("anna", in_an_hour())).await;

    // A key that is gone admits nobody new; its sessions go on.
    keys.write(&json!({"keys": [{"kid": "hs", "kty": "oct", "k": SECRET_TEXT}]}).to_string());
    eventually("the key to be gone", async || {
        let mut raw = Raw::connect(&server).await;
        match raw.hello(&ed_token("anna", in_an_hour())).await {
            Message::Refused(refused) => {
                assert_eq!(refused.code(), CloseCode::TokenInvalid);
                Some(())
            }
            _ => None,
        }
    })
    .await;
    assert!(matches!(
        anna.ask(Request::Ping(Ping {})).await,
        Message::Pong(_)
    ));

    // A revoked key ends its sessions, and nobody else's.
    keys.write(&keys.all(json!({"revoked_keys": ["ed"]})));
    assert_eq!(anna.gone().await.0, CloseCode::TokenRevoked);
    let mut anna = Raw::connect(&server).await;
    let refused = anna.hello(&ed_token("anna", in_an_hour())).await;
    assert_eq!(refusal(refused), CloseCode::TokenRevoked);
    assert!(matches!(
        ben.ask(Request::Ping(Ping {})).await,
        Message::Pong(_)
    ));

    // One user's tokens of until now.
    let mut cleo = welcomed(&server, &hs_token("cleo", Duration::from_secs(600))).await;
    keys.write(&keys.all(json!({"revoked_users": {"ben": now_ms() / 1_000 + 1}})));
    assert_eq!(ben.gone().await.0, CloseCode::TokenRevoked);
    assert!(matches!(
        cleo.ask(Request::Ping(Ping {})).await,
        Message::Pong(_)
    ));
    let metrics = server.metrics().await;
    assert!(metrics.contains("hongbao_token_keys 2\n"), "{metrics}");
    assert!(metrics.contains("hongbao_connections_closed_total{code=\"TOKEN_REVOKED\"} 3\n"));
}

#[tokio::test]
async fn a_start_with_a_broken_key_set_is_refused_with_the_reason() {
    let keys = KeysFile::new();
    keys.write("{}");
    let dir = tempfile::tempdir().unwrap();
    let output = start_without_success(dir.path(), &keys.setting());
    assert!(
        output.contains("tokens.keys_file") && output.contains("missing field `keys`"),
        "{output}"
    );
}

fn start_without_success(dir: &Path, setting: &str) -> String {
    let output = crate::support::server::hongbao()
        .args(["--data-dir"])
        .arg(dir)
        .args([
            "--set",
            setting,
            "--set",
            "gateway.listen=127.0.0.1:0",
            "serve",
        ])
        .output()
        .unwrap();
    assert!(!output.status.success());
    String::from_utf8(output.stderr).unwrap()
}

#[tokio::test]
async fn a_session_ends_with_its_token_unless_it_shows_a_new_one_of_the_same_user() {
    let server = Server::start(&["tokens.leeway_ms=0"]);
    let token = |user: &str, scope: &str, life_ms: u64| {
        let user = UserId::new(user).unwrap();
        let life = Duration::from_millis(life_ms);
        token::issue_scoped(&user, scope, "default", &server.secret(), life)
    };
    let mut late = welcomed(&server, &token("anna", "", 3_000)).await;
    let mut early = welcomed(&server, &token("anna", "", 3_000)).await;
    let refresh = |token: String| Request::Refresh(Refresh { token });
    for (bad, code) in [
        (token("ben", "", 60_000), CloseCode::TokenOtherUser),
        (token("anna", "edge", 60_000), CloseCode::TokenOtherUser),
        ("garbage".to_owned(), CloseCode::TokenInvalid),
    ] {
        assert_eq!(refusal(early.ask(refresh(bad)).await), code);
    }
    let Message::Refreshed(refreshed) = early.ask(refresh(token("anna", "", 60_000))).await else {
        panic!("not refreshed")
    };
    assert!((refreshed.expires_at_ms - now_ms() - 60_000).abs() < 5_000);
    assert_eq!(late.gone().await.0, CloseCode::SessionExpired);
    assert!(matches!(
        early.ask(Request::Ping(Ping {})).await,
        Message::Pong(_)
    ));
    // The fourth bad token is one too many.
    early.send(refresh(String::new())).await;
    assert_eq!(early.gone().await.0, CloseCode::TokenMissing);
}

#[tokio::test]
async fn the_client_library_shows_new_tokens_by_itself_and_ends_when_there_are_none() {
    let server = Server::start(&["tokens.leeway_ms=0"]);
    let rain = server.open_rain(100, 10_000).await;
    let settings = Arc::new(Settings::new(vec![server.gateway().to_string()]));
    let secret = server.secret();
    let asked = Arc::new(AtomicU32::new(0));
    let source = {
        let (secret, asked) = (secret.clone(), asked.clone());
        move || {
            asked.fetch_add(1, Ordering::Relaxed);
            let anna = UserId::new("anna").unwrap();
            token::issue(&anna, "default", &secret, Duration::from_millis(3_000))
        }
    };
    let login = Login {
        token: Arc::new(source),
        ..Login::with_token("")
    };
    let (client, mut events) = Client::connect(settings.clone(), login).await.unwrap();
    // Three lives of a token, on one connection.
    eventually("three tokens", async || {
        (asked.load(Ordering::Relaxed) >= 4).then_some(())
    })
    .await;
    assert_eq!(client.grab(rain).await.unwrap().known(), Some(Outcome::Won));
    assert_eq!(client.stats().sessions, 1);
    assert!(matches!(events.try_next(), Some(Event::Connected { .. })));

    let ben = UserId::new("ben").unwrap();
    let login = Login::with_token(token::issue(
        &ben,
        "default",
        &secret,
        Duration::from_millis(3_000),
    ));
    let (client, mut events) = Client::connect(settings, login).await.unwrap();
    while events.next().await.is_some() {}
    let Err(ClientError::GoAway(refusal)) = client.grab(rain).await else {
        panic!("the session goes on with an old token")
    };
    assert_eq!(refusal.known(), Some(CloseCode::SessionExpired));
}

#[tokio::test]
async fn a_new_session_of_a_user_closes_the_oldest_on_whatever_worker_it_is() {
    let server = Server::start(&["gateway.sessions_per_user=2", "gateway.workers=3"]);
    let mut ben = Raw::user(&server, "ben").await;
    let mut edges = [
        Raw::edge(&server, "anna").await,
        Raw::edge(&server, "anna").await,
        Raw::edge(&server, "anna").await,
    ];
    let mut sessions = vec![];
    for _ in 0..8 {
        sessions.push(Raw::user(&server, "anna").await);
    }
    let newest = sessions.split_off(6);
    for mut replaced in sessions {
        let (code, reason) = replaced.gone().await;
        assert_eq!(code, CloseCode::Replaced, "{reason}");
    }
    for mut session in newest {
        assert!(matches!(
            session.ask(Request::Ping(Ping {})).await,
            Message::Pong(_)
        ));
    }
    assert!(matches!(
        ben.ask(Request::Ping(Ping {})).await,
        Message::Pong(_)
    ));
    for edge in &mut edges {
        assert!(
            matches!(edge.ask(Request::Ping(Ping {})).await, Message::Pong(_)),
            "a server is no user"
        );
    }
    // Those that went away make room.
    for _ in 0..5 {
        let mut short = Raw::user(&server, "cleo").await;
        assert!(matches!(
            short.ask(Request::Ping(Ping {})).await,
            Message::Pong(_)
        ));
    }
}

/// What a kill -9 in the middle of a rain leaves of the grabs that were on their way.
#[tokio::test(flavor = "multi_thread")]
async fn after_a_kill_9_of_the_gateway_every_client_learns_its_true_outcome() {
    let mut server = Server::start(&[]);
    // Lost replies of won packets are what this is about; a round may have none.
    for round in 0..10 {
        let rain = server.open_rain(1_500, 150_000).await;
        let people = crowd(&server, rain, 60);
        let settings = Settings {
            reconnect: BackoffBounds {
                first_ms: 10,
                max_ms: 200,
            },
            ..Settings::for_edge(vec![server.gateway().to_string()])
        };
        let login = Login::with_token(server.edge_token("edge-1"));
        let (client, _events) = Client::connect(Arc::new(settings), login).await.unwrap();
        let client = Arc::new(client);
        let mut grabs = tokio::task::JoinSet::new();
        for n in 0..2_000 {
            let client = client.clone();
            grabs.spawn(async move {
                let user = UserId::new(&format!("edge-user-{round}-{n}")).unwrap();
                let tapped = async {
                    loop {
                        let reply = client.grab_for(&user, rain).await.unwrap();
                        if reply.known() != Some(Outcome::Missed) {
                            return reply;
                        }
                        tokio::task::yield_now().await;
                    }
                };
                let reply = tapped.await;
                (user, reply)
            });
        }
        let first = grabs.join_next().await.unwrap().unwrap();
        server.kill();
        server = server.restart();
        let mut replies = vec![first];
        while let Some(reply) = grabs.join_next().await {
            replies.push(reply.unwrap());
        }
        let mut told = people.end().await;
        let mut lost = 0;
        for (user, reply) in replies {
            match (reply.known(), reply.packet) {
                (Some(outcome), Some(packet)) => {
                    // Each tapped once: whoever had won already had lost the reply.
                    lost += u32::from(outcome == Outcome::AlreadyWon);
                    told.insert(user.to_string(), (packet.id.get(), packet.cents.0));
                }
                (Some(Outcome::SoldOut), None) => {}
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(
            told.len(),
            1_500,
            "everything was won, and told to whoever won it"
        );
        assert_paid(&server, rain, &told).await;
        if lost > 0 {
            return;
        }
    }
    panic!("no reply was ever lost: this proves nothing");
}
