//! What an external service says of users, and what happens when it says nothing.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use axum::{Json, Router};
use hongbao::client::admin::NewRain;
use hongbao::rain::{Cents, RainId};
use hongbao::wire::Outcome;
use hongbao::wire::server_frame::Message;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;

use crate::support::eventually;
use crate::support::server::{Server, new_rain};
use crate::support::wire::{Raw, final_outcome};

/// A risk service: judges users by the beginning of their names, and may be told to fail, or never to answer.
struct Desk {
    url: String,
    asked: Arc<Mutex<Vec<String>>>,
    requests: Arc<AtomicUsize>,
    fails: Arc<AtomicBool>,
    hangs: Arc<AtomicBool>,
}

impl Desk {
    async fn start() -> Desk {
        let (asked, fails) = (
            Arc::<Mutex<Vec<String>>>::default(),
            Arc::<AtomicBool>::default(),
        );
        let (requests, hangs) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
        let (seen, failing) = (asked.clone(), fails.clone());
        let (counted, hanging) = (requests.clone(), hangs.clone());
        let judge = move |headers: HeaderMap, Json(question): Json<serde_json::Value>| {
            let (seen, failing) = (seen.clone(), failing.clone());
            let (counted, hanging) = (counted.clone(), hanging.clone());
            async move {
                counted.fetch_add(1, Relaxed);
                if hanging.load(Relaxed) {
                    return std::future::pending().await;
                }
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
        Desk {
            url,
            asked,
            requests,
            fails,
            hangs,
        }
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

/// One after the other, whoever was asked about ahead was waited for; the queue was asked about in the pause, too.
#[tokio::test]
async fn a_service_that_hangs_holds_nobody_up_who_was_asked_about_ahead() {
    for pause_ms in [60_000, 0] {
        let desk = Desk::start().await;
        desk.hangs.store(true, Relaxed);
        let pause = format!("risk.pause_ms={pause_ms}");
        let slow = ["risk.batch_max=1", "risk.concurrency_max=1", &pause];
        let (server, _dir) = desk.server(&slow);
        let rain = server.open_rain(100, 10_000).await;
        let mut room = vec![];
        for n in 0..16 {
            let mut raw = Raw::user(&server, &format!("user-{n}")).await;
            raw.watch("quiz").await;
            room.push(raw);
        }
        eventually("the first request", async || {
            (desk.requests.load(Relaxed) > 0).then_some(())
        })
        .await;
        let begun = Instant::now();
        let last = room.last_mut().unwrap();
        let won = eventually("an outcome", async || {
            let result = last.grab(rain.get()).await;
            (result.outcome() != Outcome::Checking).then_some(result.outcome())
        })
        .await;
        assert_eq!(won, Outcome::Won);
        // Two time-outs of half a second at most; sixteen requests took eight seconds.
        let waited = begun.elapsed();
        assert!(waited < Duration::from_secs(4), "{waited:?}");
        if pause_ms > 0 {
            let mut late = Raw::user(&server, "late").await;
            assert_eq!(late.grab(rain.get()).await.outcome(), Outcome::Won);
            assert_eq!(desk.requests.load(Relaxed), 1, "asked in the pause");
        }
    }
}

/// Only those who came to watch after the announcement were asked about ahead: all others asked together, at the opening.
#[tokio::test]
async fn a_room_that_watches_already_is_asked_about_when_a_rain_is_announced_to_it() {
    let desk = Desk::start().await;
    // Far more people than the queue holds.
    let (server, _dir) = desk.server(&["risk.queue_max=4", "risk.batch_max=2"]);
    let users: Vec<String> = (0..40).map(|n| format!("user-{n}")).collect();
    let mut room = vec![];
    for user in &users {
        let mut raw = Raw::user(&server, user).await;
        raw.watch("quiz").await;
        room.push(raw);
    }
    let all_are_asked = async |times: usize| {
        eventually("everybody to be asked about", async || {
            users
                .iter()
                .all(|user| desk.times(user) == times)
                .then_some(())
        })
        .await;
    };
    // Nobody knows when it opens.
    let rain = server.ready_rain(100, 10_000).await;
    all_are_asked(1).await;
    let announced = NewRain {
        opens_at_ms: Some(hongbao::clock::now_ms() + 600_000),
        announce_ms: Some(598_000),
        ..new_rain(100, 10_000)
    };
    let later = server.ready(&announced).await;
    let told = async |raw: &mut Raw| loop {
        if let Some(Message::RainAnnounced(told)) = raw.receive().await.unwrap().message
            && told.rain_id == later.get()
        {
            return;
        }
    };
    told(&mut room[0]).await;
    all_are_asked(2).await;

    server.admin().open_rain(rain).await.unwrap();
    let first = final_outcome(&mut room[1], rain.get()).await;
    assert_eq!(first.outcome(), Outcome::Won);
    assert_eq!(desk.times("user-1"), 2, "known when the tap came");
}
