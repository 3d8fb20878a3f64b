//! The real process dies, as by `kill -9`, before and after each step that moves money or state; it is started again, the rain goes on
//! to its end, and everybody must have been paid exactly what they were told. `make test-crash` prints the verdicts.

#[path = "suite/support/mod.rs"]
#[allow(dead_code, reason = "shared with the suite, which uses the rest")]
mod support;

use std::collections::BTreeSet;

use futures_util::StreamExt;
use hongbao::client::admin::{AdminClient, AdminError, NewRain, NewTopUp, NewWebhook};
use hongbao::client::schedules::NewSchedule;
use hongbao::crash::POINTS;
use hongbao::rain::{Cents, PacketId, RainId, State, Times};
use hongbao::wire::client_frame::Request;
use hongbao::wire::server_frame::Message;
use hongbao::wire::{Inbox, Outcome, Ping};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use support::crowd::{Crowd, Told, crowd, messages_are_right};
use support::eventually;
use support::receiver::Receiver;
use support::server::{Server, new_rain};
use support::wire::Raw;

/// Servers at the same time, each with a node of its own.
const AT_ONCE: usize = 3;
const PACKETS: u32 = 60;
const TOTAL: i64 = 60_000;
/// Added while people tap where a top-up is to crash; three chunks. Elsewhere the buckets run empty, so that packets are moved.
const MORE_PACKETS: u32 = 2_500;
const MORE_TOTAL: i64 = 250_000;

/// A server that may die once; then it is started again, without the crash point.
struct Mortal {
    point: &'static str,
    server: Option<Server>,
    deaths: u32,
}

impl Mortal {
    fn start(point: &'static str) -> Mortal {
        let mut settings = vec![
            "store.managed_nodes=1",
            "settle.lease_ms=5000",
            "settle.retry_base_ms=10",
            // Who starts again waits until the lease of the dead steward runs out.
            "steward.lease_ms=1500",
            "steward.lease_renew_ms=200",
            "steward.lease_margin_ms=200",
            // What a dead process was sending is sent again.
            "webhooks.timeout_ms=700",
            "webhooks.hold_ms=1500",
            "webhooks.first_retry_ms=50",
        ];
        if needs_dead_letters(point) {
            // Nobody has an account, so every claim is buried.
            settings.push("ledger.create_user_accounts=false");
        }
        Mortal {
            point,
            server: Some(Server::start_crashing(&settings, point)),
            deaths: 0,
        }
    }

    fn server(&mut self) -> &mut Server {
        if self.server.as_mut().unwrap().has_died() {
            self.deaths += 1;
            self.server = self.server.take().map(Server::restart);
        }
        self.server.as_mut().unwrap()
    }

    /// Repeats a request until the server, perhaps the next one, has carried it out.
    async fn until<T>(
        &mut self,
        what: &str,
        mut ask: impl AsyncFnMut(&AdminClient) -> Result<Option<T>, AdminError>,
    ) -> T {
        eventually(what, async || {
            let admin = self.server().admin();
            ask(&admin).await.ok().flatten()
        })
        .await
    }
}

fn needs_dead_letters(point: &str) -> bool {
    let of_the_dead = ["bury", "dead", "requeue", "discard"];
    of_the_dead.iter().any(|start| point.starts_with(start))
}

fn tops_up(point: &str) -> bool {
    point.starts_with("top_up")
}

/// What the sponsor has for the rain.
fn money(point: &str) -> i64 {
    if tops_up(point) {
        TOTAL + MORE_TOTAL
    } else {
        TOTAL
    }
}

/// Asked for until it is answered, and loaded to the last packet.
async fn top_up(mortal: &mut Mortal, id: RainId) {
    let more = NewTopUp {
        packets: MORE_PACKETS,
        total_cents: Cents(MORE_TOTAL),
        rule: None,
        min_cents: None,
        max_cents: None,
        key: "more".into(),
    };
    let asked = mortal.until("the top-up", async |admin: &AdminClient| {
        admin.top_up_rain(id, &more).await.map(Some)
    });
    assert_eq!(asked.await.top_up, 1);
    mortal
        .until("the top-up to be loaded", async |admin: &AdminClient| {
            let loaded = admin.rain(id).await?.loaded_packets;
            Ok((loaded == Some(PACKETS + MORE_PACKETS)).then_some(()))
        })
        .await;
}

/// What is still to be done after the claims of this rain have all been buried.
async fn raise_the_dead(mortal: &mut Mortal, id: RainId) -> Vec<PacketId> {
    let buried = async |admin: &AdminClient| {
        let live = admin.rain(id).await?.live;
        Ok(live.filter(|live| live.dead > 0 && live.claims_moving() == 0))
    };
    mortal.until("every claim to be buried", buried).await;
    if mortal.point.starts_with("dead") {
        // The steward looks at the letters once a second, and at its start: it is to die before it is started anew.
        eventually("the server to die", async || {
            mortal.server();
            (mortal.deaths > 0).then_some(())
        })
        .await;
    }
    let first = mortal.until("the dead letters", async |admin: &AdminClient| {
        let page = admin
            .dead_letters(Some(id), Some("unknown_account"), None, 1)
            .await?;
        Ok(page.dead_letters.first().map(|letter| letter.packet_id))
    });
    let first = first.await;
    // Repeated until it is carried out whole: a crash after the money went back leaves the letter to be asked for again.
    mortal
        .until("the discard", async |admin: &AdminClient| {
            match admin.discard(first, "a test").await {
                Err(AdminError::Problem { status: 404, .. }) => Ok(Some(())),
                other => other.map(|_| Some(())),
            }
        })
        .await;
    // From here on users have accounts, and everything that is requeued is paid.
    mortal.server();
    let point = (mortal.deaths == 0).then_some(mortal.point);
    let accounts = &["ledger.create_user_accounts=true"];
    mortal.server = mortal
        .server
        .take()
        .map(|server| server.restart_crashing(accounts, point));
    mortal
        .until(
            "the dead letters to be gone",
            async |admin: &AdminClient| {
                admin.requeue(None, Some(id), None).await?;
                let live = admin.rain(id).await?.live;
                Ok(live.filter(|live| live.dead == 0).map(|_| ()))
            },
        )
        .await;
    vec![first]
}

/// While the ledger is locked by somebody else for longer than its patience, claims go back to the delay queue.
async fn lock_the_ledger(mortal: &mut Mortal, id: RainId) {
    use sqlx::{Connection, Executor};
    let path = mortal.server().data_dir().join("ledger.sqlite");
    let mut lock = sqlx::SqliteConnection::connect(&format!("sqlite:{}", path.display()))
        .await
        .unwrap();
    lock.execute("BEGIN IMMEDIATE").await.unwrap();
    eventually("a claim to be given back", async || {
        // The dead are raised when the ledger is free again: a start needs it.
        let server = mortal.server.as_mut().unwrap();
        if server.has_died() {
            return Some(());
        }
        let live = server.admin().rain(id).await.ok()?.live?;
        (live.retrying > 0).then_some(())
    })
    .await;
    lock.execute("ROLLBACK").await.unwrap();
    lock.close().await.unwrap();
}

fn needs_a_node_that_forgets(point: &str) -> bool {
    point.starts_with("restore") || point.starts_with("repair")
}

/// When all wins are paid, the node dies and comes back empty.
async fn forget_the_node(mortal: &mut Mortal, id: RainId) {
    let settled = async |admin: &AdminClient| {
        let live = admin.rain(id).await?.live;
        Ok(live.filter(|live| live.claims_moving() == 0))
    };
    mortal.until("the claims to be settled", settled).await;
    let node = mortal
        .server()
        .data_dir()
        .join("node-0")
        .canonicalize()
        .unwrap();
    let url = format!("redis+unix://{}/redis.sock", node.display());
    let client = redis::Client::open(url).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let info: String = redis::cmd("INFO")
        .arg("server")
        .query_async(&mut connection)
        .await
        .unwrap();
    let pid = info
        .lines()
        .find_map(|line| line.strip_prefix("process_id:")?.trim().parse().ok())
        .unwrap();
    std::fs::rename(node.join("appendonlydir"), node.join("gone")).unwrap();
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(pid),
        nix::sys::signal::Signal::SIGKILL,
    )
    .unwrap();
    eventually("the server to die", async || {
        mortal.server();
        (mortal.deaths > 0).then_some(())
    })
    .await;
}

/// The rain of a schedule's only opening, and no other.
async fn scheduled(mortal: &mut Mortal, new: &NewRain) -> RainId {
    let rain = NewRain {
        key: None,
        ..new.clone()
    };
    let made = mortal.until("the template", async |admin: &AdminClient| {
        admin
            .create_template("nightly", &json!(rain))
            .await
            .map(Some)
    });
    made.await;
    let plan = NewSchedule {
        template: "nightly".into(),
        overrides: json!({}),
        times: Times::Once(vec![hongbao::clock::now_ms() + 600_000]),
        ahead_ms: Some(3_600_000),
        key: Some("tonight".into()),
    };
    let schedule = mortal.until("the schedule", async |admin: &AdminClient| {
        admin.create_schedule(&plan).await.map(Some)
    });
    let schedule = schedule.await.id;
    mortal
        .until("its rain", async |admin: &AdminClient| {
            let shown = admin.schedule(schedule).await?;
            let rain = shown.openings.first().and_then(|opening| opening.rain_id);
            // The point has been passed, and somebody has looked again since.
            let rains = admin.rains().await?;
            assert!(rains.len() <= 1, "{rains:?}");
            Ok(rain.filter(|_| shown.ended))
        })
        .await
}

async fn rain_to_its_end(mortal: &mut Mortal, point: &str) -> Result<(), String> {
    // Buckets that run empty one after the other, so that there is something to transfer.
    let new = NewRain {
        key: Some("tonight".into()),
        buckets: Some(4),
        ..new_rain(PACKETS, TOTAL)
    };
    mortal
        .until("the sponsor", async |admin: &AdminClient| {
            admin.create_sponsor("acme").await.map(Some)
        })
        .await;
    mortal
        .until("the deposit", async |admin: &AdminClient| {
            let money = Cents(money(point));
            admin.deposit("acme", money, "d").await.map(Some)
        })
        .await;
    let receiver = Receiver::start().await;
    let hook = NewWebhook {
        url: receiver.url(),
        events: None,
    };
    mortal
        .until("the webhook", async |admin: &AdminClient| {
            admin.create_webhook(&hook, Some("hook")).await.map(Some)
        })
        .await;
    let id = if point.starts_with("opening") {
        scheduled(mortal, &new).await
    } else {
        let made = mortal.until("the rain", async |admin: &AdminClient| {
            admin.create_rain(&new).await.map(Some)
        });
        made.await.id
    };
    mortal
        .until("the rain to be ready", async |admin: &AdminClient| {
            Ok(admin
                .rain(id)
                .await
                .ok()
                .filter(|rain| rain.state >= State::Ready))
        })
        .await;
    mortal
        .until("the opening", async |admin: &AdminClient| {
            admin.open_rain(id).await.map(Some)
        })
        .await;
    if point.starts_with("retry") {
        let people = tap(mortal, id);
        lock_the_ledger(mortal, id).await;
        end(mortal, id, people, &[]).await?;
        return everything_was_told(mortal, id, &receiver).await;
    }
    let people = tap(mortal, id);
    if tops_up(point) {
        top_up(mortal, id).await;
    }
    let told = keep_alive(mortal, people).await;
    if needs_a_node_that_forgets(point) {
        forget_the_node(mortal, id).await;
    }
    let discarded = if needs_dead_letters(point) {
        raise_the_dead(mortal, id).await
    } else {
        vec![]
    };
    check(mortal, id, told, &discarded).await?;
    everything_was_told(mortal, id, &receiver).await
}

/// Each fact is one event, and the receiver has each event, perhaps twice.
async fn everything_was_told(
    mortal: &mut Mortal,
    id: RainId,
    receiver: &Receiver,
) -> Result<(), String> {
    let delivered = mortal.until("every delivery", async |admin: &AdminClient| {
        let page = admin.deliveries(None, None, None, 1_000).await?;
        let all = page.deliveries.iter().all(|one| one.state == "delivered");
        Ok(all.then_some(page.deliveries))
    });
    let told: Vec<String> = delivered
        .await
        .into_iter()
        .map(|one| one.event_id)
        .collect();
    let count = |start: &str| told.iter().filter(|id| id.starts_with(start)).count();
    let once = ["opened", "closed", "refunded"].map(|word| count(&format!("{word}:{id}")));
    if once != [1, 1, 1] {
        return Err(format!("not once each: {told:?}"));
    }
    let (point, sold_out) = (mortal.point, count(&format!("sold_out:{id}:")));
    let right = match sold_out {
        // With packets that were added nobody came for, it may have been sold out before; a node that forgets brings packets back.
        0 => tops_up(point),
        1 => true,
        _ => needs_a_node_that_forgets(point),
    };
    if !right {
        return Err(format!("sold out {sold_out} times: {told:?}"));
    }
    let packets: BTreeSet<&str> = told
        .iter()
        .filter_map(|id| id.strip_prefix("dead:")?.split(':').next())
        .collect();
    let buried = if needs_dead_letters(point) {
        PACKETS as usize
    } else {
        0
    };
    if (packets.len(), count("dead:")) != (buried, buried) {
        return Err(format!(
            "{} packets in {} events of dead claims, not {buried}",
            packets.len(),
            count("dead:")
        ));
    }
    let (told, received) = (
        BTreeSet::from_iter(told),
        BTreeSet::from_iter(receiver.ids()),
    );
    if told != received {
        return Err(format!("{received:?} were received of {told:?}"));
    }
    Ok(())
}

fn tap(mortal: &mut Mortal, id: RainId) -> Crowd {
    // As many people as packets, but not in each bucket: the last packets have to be moved to them.
    crowd(mortal.server(), id, PACKETS)
}

/// Restarts the server when it dies, until everybody knows their outcome.
async fn keep_alive(mortal: &mut Mortal, people: Crowd) -> Told {
    let mut ending = std::pin::pin!(people.end());
    loop {
        tokio::select! {
            told = &mut ending => return told,
            () = tokio::time::sleep(std::time::Duration::from_millis(10)) => { mortal.server(); } // nobody tells us of a death
        }
    }
}

async fn end(
    mortal: &mut Mortal,
    id: RainId,
    people: Crowd,
    discarded: &[PacketId],
) -> Result<(), String> {
    let told = keep_alive(mortal, people).await;
    check(mortal, id, told, discarded).await
}

async fn check(
    mortal: &mut Mortal,
    id: RainId,
    told: Told,
    discarded: &[PacketId],
) -> Result<(), String> {
    mortal
        .until("the claims to be settled", async |admin: &AdminClient| {
            let live = admin.rain(id).await?.live;
            Ok(live.filter(|live| live.claims_moving() == 0))
        })
        .await;
    mortal
        .until("the close", async |admin: &AdminClient| {
            admin.close_rain(id).await.map(Some)
        })
        .await;
    mortal
        .until("the finish", async |admin: &AdminClient| {
            Ok(admin
                .rain(id)
                .await
                .ok()
                .filter(|rain| rain.state == State::Finished))
        })
        .await;
    let audit = mortal
        .until("the audit", async |admin: &AdminClient| {
            admin.audit(id).await.map(Some)
        })
        .await;
    if !audit.balanced {
        return Err(format!("UNBALANCED: {:?}", audit.differences));
    }
    let winners = mortal
        .until("the winners", async |admin: &AdminClient| {
            admin.all_winners(id).await.map(Some)
        })
        .await;
    let paid: Told = winners
        .iter()
        .map(|winner| {
            (
                winner.user.to_string(),
                (winner.packet_id.get(), winner.cents.0),
            )
        })
        .collect();
    for (user, win) in &told {
        let given_back = discarded.iter().any(|packet| packet.get() == win.0);
        if !given_back && paid.get(user) != Some(win) {
            return Err(format!(
                "{user} was told {win:?} and paid {:?}",
                paid.get(user)
            ));
        }
    }
    if paid.len() + discarded.len() != told.len() {
        return Err(format!(
            "{} were told, {} paid, {} discarded",
            told.len(),
            paid.len(),
            discarded.len()
        ));
    }
    // A node that comes back empty has lost its inboxes, too.
    if !needs_a_node_that_forgets(mortal.point) {
        messages_are_right(mortal.server(), paid.iter()).await?;
    }
    let sponsor = mortal.until("the sponsor's balance", async |admin: &AdminClient| {
        admin.account("sponsor:acme").await.map(Some)
    });
    let back = sponsor.await.balance_cents.0;
    let credited: i64 = paid.values().map(|(_, cents)| cents).sum();
    let funded = money(mortal.point);
    if back + credited != funded {
        return Err(format!(
            "{credited} credited and {back} given back are not {funded}"
        ));
    }
    Ok(())
}

async fn verdict(point: &'static str) -> (&'static str, Result<(), String>) {
    let mut mortal = Mortal::start(point);
    let ended = rain_to_its_end(&mut mortal, point).await;
    let log = mortal.server().log();
    let died = log.contains(&format!("crash point {point}\n"));
    let outcome = match (died, mortal.deaths) {
        (true, 1) => ended,
        _ => ended.and(Err(format!(
            "the point was passed {died}, the server died {} times",
            mortal.deaths
        ))),
    };
    (point, outcome)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_at_any_point_costs_nobody_anything() {
    let wanted = std::env::var("HONGBAO_CRASH_POINTS").unwrap_or_default();
    let points = POINTS
        .iter()
        .copied()
        .filter(|point| point.starts_with(&wanted));
    let mut verdicts: Vec<_> = futures_util::stream::iter(points)
        .map(verdict)
        .buffered(AT_ONCE)
        .collect()
        .await;
    verdicts.sort_by_key(|(point, _)| POINTS.iter().position(|known| known == point));
    println!("{:<20} verdict", "crash point");
    for (point, outcome) in &verdicts {
        println!(
            "{point:<20} {}",
            outcome.as_ref().err().map_or(
                "balanced, everybody paid what they were told",
                String::as_str
            )
        );
    }
    assert!(verdicts.iter().all(|(_, outcome)| outcome.is_ok()));
}

async fn panics(server: &Server, task: &str) -> f64 {
    server
        .metric(&format!("hongbao_panics_total{{task=\"{task}\"}}"))
        .await
}

async fn is_alive(raw: &mut Raw) -> bool {
    matches!(raw.ask(Request::Ping(Ping {})).await, Message::Pong(_))
}

#[tokio::test]
async fn a_panic_in_a_session_ends_that_session_and_no_other() {
    let server = Server::start_with_bug(&["store.managed_nodes=1"], "session:3");
    let mut anna = Raw::user(&server, "anna").await;
    let mut ben = Raw::user(&server, "ben").await;
    anna.send(Request::Ping(Ping {})).await;
    assert!(anna.dropped().await);
    assert!(is_alive(&mut ben).await);
    assert_eq!(panics(&server, "session").await, 1.0);
    assert_eq!(server.metric("hongbao_sessions").await, 1.0);
    assert!(server.log().contains("panic: a bug at session"));
    // Her place and her rate are free again.
    assert!(is_alive(&mut Raw::user(&server, "anna").await).await);
}

#[tokio::test]
async fn a_panic_in_a_lane_costs_its_grabs_a_repeat_and_the_lane_goes_on() {
    let server = Server::start_with_bug(&["store.managed_nodes=1"], "lane:1");
    let rain = server.open_rain(10, 1_000).await;
    let mut anna = Raw::user(&server, "anna").await;
    assert_eq!(anna.grab(rain.get()).await.outcome(), Outcome::Retry);
    assert_eq!(anna.grab(rain.get()).await.outcome(), Outcome::AlreadyWon);
    assert_eq!(panics(&server, "lane").await, 1.0);
    assert!(server.stop().await.success(), "nothing is left in flight");
}

#[tokio::test]
async fn a_panic_between_two_batches_leaves_nobody_without_a_lane() {
    let server = Server::start_with_bug(&["store.managed_nodes=1"], "lane_take:1");
    let rain = server.open_rain(10, 1_000).await;
    let mut anna = Raw::user(&server, "anna").await;
    assert_eq!(anna.grab(rain.get()).await.outcome(), Outcome::Won);
    assert_eq!(panics(&server, "lane").await, 1.0);
    assert!(server.stop().await.success(), "nothing is left in flight");
}

#[tokio::test]
async fn a_panic_between_two_sessions_of_a_worker_ends_neither() {
    let server = Server::start_with_bug(&["store.managed_nodes=1"], "worker:1");
    let mut anna = Raw::user(&server, "anna").await;
    anna.watch("quiz").await;
    let rain = server.ready_rain(10, 1_000).await; // its announcement is the push that fails
    eventually("the panic", async || {
        (panics(&server, "worker").await == 1.0).then_some(())
    })
    .await;
    server.admin().open_rain(rain).await.unwrap();
    while !matches!(
        anna.receive().await.unwrap().message,
        Some(Message::RainOpened(_))
    ) {}
    let mut ben = Raw::user(&server, "ben").await;
    assert_eq!(ben.grab(rain.get()).await.outcome(), Outcome::Won);
}

#[tokio::test]
async fn a_panic_while_an_inbox_is_read_is_an_inbox_that_cannot_be_read_now() {
    // With one request in flight at most, a place that is not given back shows at once.
    let settings = ["store.managed_nodes=1", "gateway.in_flight_max=1"];
    let server = Server::start_with_bug(&settings, "inbox:1");
    let mut anna = Raw::user(&server, "anna").await;
    let mut pages = vec![];
    for _ in 0..2 {
        match anna.ask(Request::Inbox(Inbox::default())).await {
            Message::InboxPage(page) => pages.push(page),
            other => panic!("{other:?}"),
        }
    }
    assert!(
        pages[0].more && pages[0].retry_after_ms > 0,
        "{:?}",
        pages[0]
    );
    assert!(!pages[1].more, "{:?}", pages[1]);
    assert_eq!(panics(&server, "inbox").await, 1.0);
    assert!(server.stop().await.success(), "nothing is left in flight");
}

#[tokio::test]
async fn a_panic_while_a_rain_is_looked_up_costs_the_grab_a_repeat() {
    let settings = ["store.managed_nodes=1", "gateway.in_flight_max=1"];
    let server = Server::start_with_bug(&settings, "look_up:1");
    let mut anna = Raw::user(&server, "anna").await;
    let unknown = anna.grab(4_000).await;
    assert_eq!(unknown.outcome(), Outcome::Retry);
    assert!(unknown.retry_after_ms > 0);
    assert_eq!(anna.grab(4_000).await.outcome(), Outcome::NoSuchRain);
    assert_eq!(panics(&server, "look_up").await, 1.0);
    assert!(server.stop().await.success(), "nothing is left in flight");
}

/// A risk service that lets everybody win; its address.
async fn lenient_risk_service() -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("risk.url=http://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (mut socket, _) = listener.accept().await.unwrap();
            let mut asked = bytes::BytesMut::new();
            // One user in each question here, and the question ends with it.
            while !asked.ends_with(b"]}") && socket.read_buf(&mut asked).await.unwrap_or(0) > 0 {}
            let verdicts = r#"{"verdicts":["allow"]}"#;
            let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n";
            let answer = format!("{head}content-length: {}\r\n\r\n{verdicts}", verdicts.len());
            let _ = socket.write_all(answer.as_bytes()).await;
        }
    });
    url
}

/// The user was taken for one who is being asked about, and was told CHECKING for ever; and nobody was left to ask.
#[tokio::test]
async fn a_panic_while_a_user_is_asked_about_costs_the_grab_a_repeat_and_the_user_is_asked_about_again()
 {
    let url = lenient_risk_service().await;
    let settings = [
        "store.managed_nodes=1",
        "gateway.in_flight_max=1",
        "gateway.retry_after_ms=20",
        "risk.fail=closed",
        "risk.concurrency_max=1",
        "risk.pause_ms=1",
        &url,
    ];
    for (place, told) in [("risk", Outcome::Retry), ("risk_desk", Outcome::Checking)] {
        let server = Server::start_with_bug(&settings, &format!("{place}:1"));
        let rain = server.open_rain(10, 1_000).await.get();
        let mut anna = Raw::user(&server, "anna").await;
        assert_eq!(anna.grab(rain).await.outcome(), told, "{place}");
        let again = support::wire::final_outcome(&mut anna, rain).await;
        assert_eq!(again.outcome(), Outcome::Won, "{place}");
        assert_eq!(panics(&server, place).await, 1.0);
        assert!(server.stop().await.success(), "nothing is left in flight");
    }
}
