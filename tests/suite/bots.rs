//! What stands between a script and a packet.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use axum::{Json, Router};
use bytes::Bytes;
use hongbao::client::admin::NewRain;
use hongbao::client::{Client, Login, Settings};
use hongbao::rain::{Cents, RainId, State};
use hongbao::wire::client_frame::Request;
use hongbao::wire::server_frame::Message;
use hongbao::wire::{Grab, GrabResult, Outcome, RainOpened};

use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;

use crate::support::eventually;
use crate::support::server::{Server, new_rain};
use crate::support::wire::{Raw, final_outcome};

/// A rain of acme with these changes.
pub async fn rain_like(server: &Server, new: &NewRain) -> RainId {
    let admin = server.admin();
    admin.create_sponsor("acme").await.unwrap();
    admin.deposit("acme", Cents(1_000_000), "d").await.unwrap();
    let rain = admin.create_rain(new).await.unwrap().id;
    server.until(rain, |rain| rain.state == State::Ready).await;
    rain
}

pub async fn grab_with(raw: &mut Raw, rain: RainId, key: &[u8]) -> GrabResult {
    let grab = Grab {
        rain_id: rain.get(),
        key: Bytes::copy_from_slice(key),
        ..Grab::default()
    };
    match raw.ask(Request::Grab(grab)).await {
        Message::GrabResult(result) => result,
        other => panic!("{other:?}"),
    }
}

pub async fn opened(raw: &mut Raw) -> RainOpened {
    loop {
        if let Some(Message::RainOpened(opened)) = raw.receive().await.unwrap().message {
            return opened;
        }
    }
}

#[tokio::test]
async fn who_taps_before_the_opening_too_often_cools_down_past_it_and_others_do_not() {
    let server = Server::start(&[
        "gateway.early_taps_max=3",
        "gateway.early_cool_down_ms=2000",
        "gateway.retry_after_ms=20",
    ]);
    let rain = rain_like(&server, &new_rain(100, 10_000)).await;
    let mut bot = Raw::user(&server, "bot").await;
    let mut anna = Raw::user(&server, "anna").await;
    for _ in 0..4 {
        assert_eq!(bot.grab(rain.get()).await.outcome(), Outcome::NotOpen);
    }
    for _ in 0..3 {
        assert_eq!(anna.grab(rain.get()).await.outcome(), Outcome::NotOpen);
    }
    let last = Instant::now();
    let cooling = bot.grab(rain.get()).await;
    assert_eq!(cooling.outcome(), Outcome::CoolingDown);
    assert!(
        (500..=2_100).contains(&cooling.retry_after_ms),
        "{cooling:?}"
    );
    server.admin().open_rain(rain).await.unwrap();
    assert_eq!(
        final_outcome(&mut anna, rain.get()).await.outcome(),
        Outcome::Won
    );
    // Neither the opening nor another connection helps, and tapping after it does not harm.
    let mut again = Raw::user(&server, "bot").await;
    for raw in [&mut bot, &mut again] {
        let cooling = raw.grab(rain.get()).await;
        assert_eq!(cooling.outcome(), Outcome::CoolingDown);
        assert!(cooling.retry_after_ms <= 2_100);
    }
    assert_eq!(
        final_outcome(&mut again, rain.get()).await.outcome(),
        Outcome::Won
    );
    assert!(
        last.elapsed() >= Duration::from_millis(1_990),
        "{:?}",
        last.elapsed()
    );
    assert!(
        server
            .metrics()
            .await
            .contains("hongbao_cooled_down_total 1\n")
    );
}

/// Nobody knows when the rain opens: the waits that NOT_OPEN named were so short that a client which obeyed them was cooled down.
#[tokio::test]
async fn who_waits_as_long_as_it_is_told_to_never_cools_down() {
    let server = Server::start(&[
        "gateway.early_taps_max=4",
        "gateway.early_window_ms=2000",
        "gateway.retry_after_ms=20",
    ]);
    let rain = rain_like(&server, &new_rain(100, 10_000)).await;
    let mut anna = Raw::user(&server, "anna").await;
    let told = anna.grab(rain.get()).await;
    assert_eq!(told.outcome(), Outcome::NotOpen);
    // Four in two seconds are allowed.
    assert!((500..=600).contains(&told.retry_after_ms), "{told:?}");
}

/// The second session was open before the first one had to cool down.
#[tokio::test]
async fn a_user_cools_down_on_every_session_at_once() {
    let server = Server::start(&["gateway.early_taps_max=3"]);
    let rain = rain_like(&server, &new_rain(100, 10_000)).await;
    let mut sessions = [
        Raw::user(&server, "bot").await,
        Raw::user(&server, "bot").await,
    ];
    for _ in 0..4 {
        let result = sessions[0].grab(rain.get()).await;
        assert_eq!(result.outcome(), Outcome::NotOpen);
    }
    let result = sessions[1].grab(rain.get()).await;
    assert_eq!(result.outcome(), Outcome::CoolingDown);
}

#[tokio::test]
async fn a_rains_key_is_first_told_when_it_opens_and_without_it_nobody_wins() {
    let server = Server::start(&[]);
    let new = NewRain {
        key_required: true,
        opens_at_ms: Some(hongbao::clock::now_ms() + 1_500),
        duration_ms: Some(600_000),
        ..new_rain(100, 10_000)
    };
    let rain = rain_like(&server, &new).await;
    let mut anna = Raw::user(&server, "anna").await;
    anna.watch("quiz").await;
    let mut ben = Raw::user(&server, "ben").await;
    assert_eq!(
        grab_with(&mut ben, rain, &[0; 16]).await.outcome(),
        Outcome::NotOpen
    );

    // All bytes that anybody is sent before the opening.
    let mut heard = vec![];
    let opened = loop {
        let frame = anna.receive().await.unwrap();
        match frame.message.clone().unwrap() {
            Message::RainOpened(opened) => break opened,
            _ => heard.extend_from_slice(&hongbao::wire::frame::encode(&frame)),
        }
    };
    let key = opened.key.to_vec();
    assert_eq!(key.len(), 16);
    assert!(!heard.is_empty() && !heard.windows(16).any(|window| window == key));
    // Neither do operators see it.
    let shown = server.admin().rain(rain).await.unwrap();
    assert!(!format!("{shown:?}").contains(&hex::encode(&key)));
    assert!(!server.log().contains(&hex::encode(&key)));

    let mut wrong = key.clone();
    wrong[15] ^= 1;
    for bad in [&[][..], &wrong, &key[..15]] {
        // On a session of its own each: one may ask so once in a while.
        let mut guessing = Raw::user(&server, "ben").await;
        let refused = grab_with(&mut guessing, rain, bad).await;
        assert_eq!(refused.outcome(), Outcome::WrongKey, "{bad:?}");
    }
    // The gates open by the nodes' clocks.
    let won = loop {
        let result = grab_with(&mut anna, rain, &key).await;
        if result.outcome() != Outcome::NotOpen {
            break result;
        }
    };
    assert_eq!(won.outcome(), Outcome::Won);
    // Whoever comes late is told when watching.
    ben.watch("quiz").await;
    assert_eq!(self::opened(&mut ben).await.key.to_vec(), key);
    assert_eq!(
        grab_with(&mut ben, rain, &key).await.outcome(),
        Outcome::Won
    );

    // The client library sends it along by itself.
    let settings = Arc::new(Settings::new(vec![server.gateway().to_string()]));
    let login = Login::with_token(server.token("cleo"));
    let (client, mut events) = Client::connect(settings, login).await.unwrap();
    client.watch("quiz").await.unwrap();
    while !matches!(
        events.next().await,
        Some(hongbao::client::Event::RainOpened(_))
    ) {}
    assert!(client.grab(rain).await.unwrap().packet.is_some());

    // Another rain has another key.
    let other = NewRain {
        key_required: true,
        ..new_rain(100, 10_000)
    };
    let other = rain_like(&server, &other).await;
    server.admin().open_rain(other).await.unwrap();
    let told = self::opened(&mut anna).await;
    assert_eq!(told.rain_id, other.get());
    assert_ne!(told.key.to_vec(), key);

    // After the close everyone may learn what was won, and nobody can win.
    server.admin().close_rain(rain).await.unwrap();
    let mut later = Raw::user(&server, "anna").await;
    let mut dora = Raw::user(&server, "dora").await;
    let same = later.grab(rain.get()).await;
    assert_eq!(
        (same.outcome(), same.packet_id),
        (Outcome::AlreadyWon, won.packet_id)
    );
    let over = loop {
        let result = final_outcome(&mut dora, rain.get()).await;
        if result.outcome() != Outcome::WrongKey {
            break result;
        }
    };
    assert_eq!(over.outcome(), Outcome::Closed);
}

/// A risk service: judges users by the beginning of their names, and may be told to fail.
struct Desk {
    url: String,
    asked: Arc<Mutex<Vec<String>>>,
    fails: Arc<AtomicBool>,
}

impl Desk {
    async fn start() -> Desk {
        let (asked, fails) = (
            Arc::<Mutex<Vec<String>>>::default(),
            Arc::<AtomicBool>::default(),
        );
        let (seen, failing) = (asked.clone(), fails.clone());
        let judge = move |headers: HeaderMap, Json(question): Json<serde_json::Value>| {
            let (seen, failing) = (seen.clone(), failing.clone());
            async move {
                assert_eq!(headers["authorization"], "Bearer sesame");
                assert!(question["rain_id"].as_u64().unwrap() > 0);
                let users = question["users"].as_array().unwrap();
                let users: Vec<&str> = users.iter().map(|user| user.as_str().unwrap()).collect();
                seen.lock()
                    .unwrap()
                    .extend(users.iter().map(|user| (*user).to_owned()));
                let verdict = |user: &&str| match user.split('-').next() {
                    Some("bad") => "deny",
                    Some("odd") => "hold",
                    _ => "allow",
                };
                let verdicts: Vec<&str> = users.iter().map(verdict).collect();
                match failing.load(Relaxed) {
                    false => Ok(Json(serde_json::json!({ "verdicts": verdicts }))),
                    true => Err(StatusCode::INTERNAL_SERVER_ERROR),
                }
            }
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/risk", listener.local_addr().unwrap());
        let app = Router::new().route("/risk", post(judge));
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let service = TowerToHyperService::new(app.clone());
                let serve = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
                tokio::spawn(serve);
            }
        });
        Desk { url, asked, fails }
    }

    fn times(&self, user: &str) -> usize {
        let asked = self.asked.lock().unwrap();
        asked.iter().filter(|name| *name == user).count()
    }

    /// A server that asks it.
    fn server(&self, settings: &[&str]) -> (Server, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let token = dir.path().join("token");
        std::fs::write(&token, "sesame\n").unwrap();
        let (url, token) = (
            format!("risk.url={}", self.url),
            format!("risk.token_file={}", token.display()),
        );
        let mut all = vec![url.as_str(), token.as_str(), "gateway.retry_after_ms=20"];
        all.extend(settings);
        (Server::start(&all), dir)
    }
}

#[tokio::test]
async fn a_user_is_asked_about_once_a_rain_and_the_verdict_decides() {
    let desk = Desk::start().await;
    let (server, _dir) = desk.server(&[]);
    let rain = server.open_rain(100, 10_000).await;
    for user in ["anna", "odd-ben", "bad-cleo"] {
        let wanted = match user {
            "bad-cleo" => Outcome::Barred,
            _ => Outcome::Won,
        };
        let mut raw = Raw::user(&server, user).await;
        let first = final_outcome(&mut raw, rain.get()).await;
        assert_eq!(first.outcome(), wanted, "{user}");
        // On another session, and after the memory of this one.
        let again = Raw::user(&server, user).await.grab(rain.get()).await;
        let repeated = match wanted {
            Outcome::Won => Outcome::AlreadyWon,
            other => other,
        };
        assert_eq!(
            (again.outcome(), again.packet_id),
            (repeated, first.packet_id)
        );
        assert_eq!(desk.times(user), 1, "{user}");
    }
    // Whoever watches is asked about before tapping; an edge session's users are like all others.
    let mut dora = Raw::user(&server, "dora").await;
    dora.watch("quiz").await;
    eventually("dora to be known", async || {
        (desk.times("dora") == 1).then_some(())
    })
    .await;
    let mut edge = Raw::edge(&server, "edge-1").await;
    assert_eq!(
        edge.grab_as(rain.get(), "bad-emil").await.outcome(),
        Outcome::Barred
    );
    assert_eq!(
        edge.grab_as(rain.get(), "fay").await.outcome(),
        Outcome::Won
    );

    // The held win is not paid; a person decides, with the tools that there are.
    server.until_settled(rain).await;
    let admin = server.admin();
    let balance = async |user: &str| {
        admin
            .account(&format!("user:{user}"))
            .await
            .ok()
            .map(|account| account.balance_cents)
    };
    assert!(balance("anna").await.is_some());
    assert_eq!(balance("odd-ben").await, None);
    let mut ben = Raw::user(&server, "odd-ben").await;
    let packet = ben.grab(rain.get()).await;
    let letters = dead(&server, &["list", "--reason", "held"]);
    assert!(
        letters.contains(&packet.packet_id.to_string()) && letters.contains("odd-ben"),
        "{letters}"
    );
    assert!(audit(&server, rain).contains("audit: balanced"));
    dead(&server, &["requeue", &packet.packet_id.to_string()]);
    eventually("the held claim to be paid", async || {
        balance("odd-ben").await
    })
    .await;
    assert_eq!(balance("odd-ben").await, Some(Cents(packet.cents)));
    assert!(audit(&server, rain).contains("audit: balanced"));
    let metrics = server.metrics().await;
    assert!(
        metrics.contains("hongbao_risk_users_total{result=\"deny\"} 2\n"),
        "{metrics}"
    );
}

fn dead(server: &Server, args: &[&str]) -> String {
    command(server, &[&["dead"], args].concat())
}

fn audit(server: &Server, rain: RainId) -> String {
    command(server, &["audit", &rain.to_string()])
}

fn command(server: &Server, args: &[&str]) -> String {
    let output = crate::support::server::hongbao()
        .arg("--data-dir")
        .arg(server.data_dir())
        .args(args)
        .output()
        .unwrap();
    assert!(output.status.success(), "{args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test]
async fn without_an_answer_the_setting_decides_and_nothing_is_remembered() {
    for (fail, wanted) in [("open", Outcome::Won), ("closed", Outcome::Checking)] {
        let desk = Desk::start().await;
        desk.fails.store(true, Relaxed);
        let fail = format!("risk.fail={fail}");
        let (server, _dir) = desk.server(&[&fail, "risk.pause_ms=100"]);
        let rain = server.open_rain(100, 10_000).await;
        let mut anna = Raw::user(&server, "anna").await;
        let result = anna.grab(rain.get()).await;
        assert_eq!(result.outcome(), wanted);
        // In the pause nobody is asked.
        let mut ben = Raw::user(&server, "ben").await;
        assert_eq!(ben.grab(rain.get()).await.outcome(), wanted);
        desk.fails.store(false, Relaxed);
        let mut cleo = Raw::user(&server, "bad-cleo").await;
        let barred = eventually("the service to be asked again", async || {
            let result = cleo.grab(rain.get()).await;
            (result.outcome() != Outcome::Checking).then_some(result.outcome())
        })
        .await;
        // With `open` she may have won before the service was back.
        assert!(
            barred == Outcome::Barred || wanted == Outcome::Won,
            "{barred:?}"
        );
        assert!(final_outcome(&mut anna, rain.get()).await.packet_id > 0);
    }
}
