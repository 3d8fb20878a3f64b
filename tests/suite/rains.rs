//! Whole rains, with crashes in the middle.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use hongbao::client::admin::{Audit, Winner};
use hongbao::client::{BackoffBounds, Client, Login, Settings};
use hongbao::rain::{RainId, State};
use hongbao::wire::client_frame::Request;
use hongbao::wire::inbox_message::Contents;
use hongbao::wire::server_frame::Message;
use hongbao::wire::{Inbox, Outcome};
use tokio::sync::{Mutex, Notify};

use crate::support::server::Server;
use crate::support::wire::Raw;
use crate::support::{PATIENCE, eventually};

/// What the people of a rain were told: user → packet and cents.
type Told = HashMap<String, (u64, i64)>;

struct Crowd {
    told: Arc<Mutex<Told>>,
    /// Told at every win.
    won: Arc<Notify>,
    people: Vec<tokio::task::JoinHandle<Outcome>>,
}

/// `count` people who tap until their outcome is final, through lost connections and unknown results.
fn crowd(server: &Server, rain: RainId, count: u32) -> Crowd {
    let (told, won) = (Arc::new(Mutex::new(Told::new())), Arc::new(Notify::new()));
    let settings = Settings {
        reconnect: BackoffBounds {
            first_ms: 10,
            max_ms: 200,
        },
        ..Settings::new(vec![server.gateway().to_string()])
    };
    let settings = Arc::new(settings);
    let people = (0..count).map(|n| {
        let user = format!("user-{n}");
        let login = Login::with_token(server.token(&user));
        let (settings, told, won) = (settings.clone(), told.clone(), won.clone());
        tokio::spawn(async move {
            let (client, _events, driver) = Client::open(settings, login);
            let tapping = async {
                loop {
                    let reply = client
                        .grab(rain)
                        .await
                        .expect("the client goes on until it knows");
                    match (reply.known(), reply.packet) {
                        (Some(outcome), Some(packet)) => {
                            told.lock()
                                .await
                                .insert(user.clone(), (packet.id.get(), packet.cents.0));
                            won.notify_waiters();
                            return outcome;
                        }
                        (Some(outcome @ (Outcome::SoldOut | Outcome::Closed)), None) => {
                            return outcome;
                        }
                        (Some(Outcome::Missed), None) => tapping_pause().await,
                        other => panic!("{other:?}"),
                    }
                }
            };
            tokio::select! {
                outcome = tapping => outcome,
                _ = driver.run() => panic!("the session ended"),
            }
        })
    });
    let people = people.collect();
    Crowd { told, won, people }
}

/// Between two taps of one person.
async fn tapping_pause() {
    tokio::time::sleep(Duration::from_millis(20)).await; // people tap at some pace
}

impl Crowd {
    async fn until_won(&self, count: usize) {
        let enough = async {
            loop {
                let won = self.won.notified();
                if self.told.lock().await.len() >= count {
                    return;
                }
                won.await;
            }
        };
        tokio::time::timeout(PATIENCE, enough)
            .await
            .expect("nobody wins any more");
    }

    /// Everybody knows their outcome.
    async fn end(self) -> Told {
        for person in self.people {
            tokio::time::timeout(PATIENCE, person)
                .await
                .expect("somebody never learned the outcome")
                .unwrap();
        }
        Arc::into_inner(self.told).unwrap().into_inner()
    }
}

/// Settles and closes the rain and checks that everyone was paid exactly what they were told.
async fn assert_paid(server: &Server, rain: RainId, told: &Told) -> Audit {
    let admin = server.admin();
    server.until_settled(rain).await;
    eventually("the rain to be closed", async || {
        admin.close_rain(rain).await.ok()
    })
    .await;
    server
        .until(rain, |rain| rain.state >= State::Refunded)
        .await;
    let audit = eventually("an audit", async || admin.audit(rain).await.ok()).await;
    assert!(audit.balanced, "{audit:?}");
    assert_eq!(
        audit.funded_cents.0,
        audit.credited_cents.0 + audit.refunded_cents.0
    );
    let winners: Vec<Winner> = admin.all_winners(rain).await.unwrap();
    let paid: Told = winners
        .into_iter()
        .map(|winner| {
            (
                winner.user.to_string(),
                (winner.packet_id.get(), winner.cents.0),
            )
        })
        .collect();
    for (user, win) in told {
        assert_eq!(
            paid.get(user),
            Some(win),
            "{user} was told of a win that was not paid so"
        );
    }
    assert_eq!(paid.len(), told.len(), "everybody who was paid was told");
    // One message for each credit, whatever died on the way. Some stand for all.
    for (user, win) in told.iter().take(30) {
        let mut session = Raw::user(server, user).await;
        let Message::InboxPage(page) = session.ask(Request::Inbox(Inbox::default())).await else {
            panic!("no inbox")
        };
        let messages: Vec<_> = page
            .messages
            .into_iter()
            .map(|message| message.contents)
            .collect();
        let [Some(Contents::PacketCredited(credited))] = &messages[..] else {
            panic!("{user}: {messages:?}")
        };
        assert_eq!((credited.packet_id, credited.cents), *win);
    }
    audit
}

#[tokio::test(flavor = "multi_thread")]
async fn a_whole_rain_ends_balanced_with_every_win_paid() {
    let server = Server::start(&[]);
    let rain = server.open_rain(300, 100_000).await;
    let told = crowd(&server, rain, 400).end().await;
    let audit = assert_paid(&server, rain, &told).await;
    assert_eq!(audit.credited_count as usize, told.len());
    assert!(
        told.len() > 250,
        "{} of 300 packets were won by 400 people",
        told.len()
    );
    server
        .until(rain, |rain| rain.state == State::Finished)
        .await;
    assert!(
        server.admin().audit(rain).await.unwrap().balanced,
        "after the finish, too"
    );
    assert!(!server.log().contains(" ERROR "), "{}", server.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_server_comes_back_and_pays_every_win_that_a_client_saw() {
    let mut server = Server::start(&["settle.lease_ms=5000"]);
    let rain = server.open_rain(400, 100_000).await;
    let crowd = crowd(&server, rain, 500);
    for wins in [60, 160] {
        crowd.until_won(wins).await;
        server.kill();
        server = server.restart();
    }
    let told = crowd.end().await;
    assert_paid(&server, rain, &told).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_dies_in_the_rain_is_started_again_and_loses_nothing() {
    let server = Server::start(&["gateway.retry_after_ms=20", "store.probe_interval_ms=20"]);
    let rain = server.open_rain(400, 100_000).await;
    let crowd = crowd(&server, rain, 500);
    crowd.until_won(100).await;
    let socket = server.data_dir().join("node-1").join("redis.sock");
    kill_process_on(&socket).await;
    let told = crowd.end().await;
    assert_paid(&server, rain, &told).await;
    assert!(
        server
            .log()
            .contains("managed node ended by itself; starting it again"),
        "{}",
        server.log()
    );
}

/// SIGKILL to the redis-server that listens on `socket`.
async fn kill_process_on(socket: &std::path::Path) {
    let client = redis::Client::open(format!("redis+unix://{}", socket.display())).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let info: String = redis::cmd("INFO")
        .arg("server")
        .query_async(&mut connection)
        .await
        .unwrap();
    let pid = info
        .lines()
        .find_map(|line| line.strip_prefix("process_id:"))
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(pid),
        nix::sys::signal::Signal::SIGKILL,
    )
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_load_that_was_killed_goes_on_where_it_stopped() {
    let mut server = Server::start(&[]);
    let admin = server.admin();
    admin.create_sponsor("acme").await.unwrap();
    admin
        .deposit("acme", hongbao::rain::Cents(30_000_000), "d")
        .await
        .unwrap();
    let rain = admin
        .create_rain(&crate::support::server::new_rain(200_000, 30_000_000))
        .await
        .unwrap()
        .id;
    let some = |rain: &hongbao::client::admin::Rain| rain.live.is_some_and(|live| live.pool > 0);
    server.until(rain, some).await;
    server.kill();
    let server = server.restart();
    server.until(rain, |rain| rain.state == State::Ready).await;
    let audit = server.admin().audit(rain).await.unwrap();
    assert!(audit.balanced, "{:?}", audit.differences.first());
    assert_eq!(audit.pool_cents, audit.funded_cents);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_won_goes_back_to_the_sponsor_by_itself() {
    let server = Server::start(&[]);
    let admin = server.admin();
    admin.create_sponsor("acme").await.unwrap();
    admin
        .deposit("acme", hongbao::rain::Cents(10_000), "d")
        .await
        .unwrap();
    let new = hongbao::client::admin::NewRain {
        opens_at_ms: Some(hongbao::clock::now_ms() + 50),
        duration_ms: Some(100),
        refund_after_ms: Some(100),
        ..crate::support::server::new_rain(100, 10_000)
    };
    let rain = admin.create_rain(&new).await.unwrap().id;
    assert_eq!(
        admin.account("sponsor:acme").await.unwrap().balance_cents.0,
        0
    );
    server
        .until(rain, |rain| rain.state == State::Finished)
        .await;
    assert_eq!(
        admin.account("sponsor:acme").await.unwrap().balance_cents.0,
        10_000
    );
    assert_eq!(
        admin
            .account(&format!("escrow:{rain}"))
            .await
            .unwrap()
            .balance_cents
            .0,
        0
    );
}
