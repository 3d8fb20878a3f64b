//! What a failover costs at each level of durability, measured: people tap while a primary is cut off from its replica and from the
//! sentinels, is killed, and is replaced. `make test-failover` prints the table.
//!
//! A partition here leaves the gateway on the side of the old primary: the worst place for it.

#[path = "suite/support/mod.rs"]
#[allow(dead_code, reason = "shared with the suite, which uses the rest")]
mod support;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hongbao::client::admin::{Difference, NewRain};
use hongbao::rain::{Cents, Durability, RainId, State};
use hongbao::store::bucket_of;
use hongbao::wire::Outcome;
use sqlx::{Connection, Executor, SqliteConnection};

use support::door::Door;
use support::eventually;
use support::proxy::{Cut, Proxy};
use support::redis::{FIT, Redis, flags};
use support::sentinels::{Sentinels, replica_of};
use support::server::{Server, new_rain};
use support::wire::Raw;

const PACKETS: u32 = 60_000;
/// Who tap at the same time, each as one user after the other.
const TAPPERS: usize = 24;
/// Between the end of one user and the next of a tapper: the machine has other things to do, too.
const PACE: Duration = Duration::from_millis(5);
/// How long the old primary goes on without its replica before it is killed.
const PARTITION: Duration = Duration::from_secs(1);
/// Tapping before the fault, and after its end.
const CALM: Duration = Duration::from_secs(2);

/// One user's taps: the last of them has its outcome.
struct Tapped {
    user: String,
    /// Packet and cents, of a winner.
    won: Option<(u64, i64)>,
    /// When the answer to a tap was RETRY or PAUSED.
    unsure: Vec<Instant>,
    /// When the last tap was sent, and how long its answer took.
    at: Instant,
    took: Duration,
}

/// People who tap, each until they know their outcome, and are followed by the next.
struct Load {
    stop: Arc<AtomicBool>,
    tapped: Arc<Mutex<Vec<Tapped>>>,
    tappers: Vec<tokio::task::JoinHandle<()>>,
}

impl Load {
    /// Names that `wanted` refuses are passed over.
    fn start(
        server: &Arc<Server>,
        rain: RainId,
        tappers: usize,
        wanted: impl Fn(&str) -> bool + Clone + Send + 'static,
    ) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let tapped: Arc<Mutex<Vec<Tapped>>> = Arc::default();
        let next = Arc::new(AtomicU32::new(0));
        let tap = || {
            let (server, stop, tapped) = (server.clone(), stop.clone(), Arc::clone(&tapped));
            let (next, wanted) = (next.clone(), wanted.clone());
            tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    let user = format!("user-{}", next.fetch_add(1, Ordering::Relaxed));
                    if wanted(&user) {
                        let outcome = tap(&server, rain, user).await;
                        tapped.lock().unwrap().push(outcome);
                        tokio::time::sleep(PACE).await; // people come one after the other
                    }
                }
            })
        };
        let tappers = (0..tappers).map(|_| tap()).collect();
        Load {
            stop,
            tapped,
            tappers,
        }
    }

    fn count(&self) -> usize {
        self.tapped.lock().unwrap().len()
    }

    /// Everybody who has begun learns their outcome.
    async fn end(self) -> Vec<Tapped> {
        self.stop.store(true, Ordering::Relaxed);
        for tapper in self.tappers {
            tapper.await.unwrap();
        }
        Arc::into_inner(self.tapped).unwrap().into_inner().unwrap()
    }
}

async fn tap(server: &Server, rain: RainId, user: String) -> Tapped {
    let mut session = Raw::user(server, &user).await;
    let mut unsure = vec![];
    loop {
        let at = Instant::now();
        let result = session.grab(rain.get()).await;
        let took = at.elapsed();
        match result.outcome() {
            Outcome::Won | Outcome::AlreadyWon => {
                return Tapped {
                    user,
                    won: Some((result.packet_id, result.cents)),
                    unsure,
                    at,
                    took,
                };
            }
            Outcome::Retry | Outcome::Paused => {
                unsure.push(at);
                let wait = Duration::from_millis(u64::from(result.retry_after_ms));
                tokio::time::sleep(wait).await; // the protocol asks for it
            }
            other => panic!("{other:?}"),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// kill -9 of every node; they start again on their files.
    Restart,
    /// kill -9 of the primary; its replica takes its place.
    Killed,
    /// The primary is cut off from its replica and the sentinels, not from its clients; after a while it is killed, and its replica takes
    /// its place.
    CutOff,
}

impl Fault {
    fn name(self) -> &'static str {
        match self {
            Fault::Restart => "kill -9 of all, restart",
            Fault::Killed => "kill -9, promotion",
            Fault::CutOff => "1 s cut off, kill -9, promotion",
        }
    }
}

struct Case {
    level: Durability,
    fault: Fault,
    /// Whether wins are credited as they come. If not, the balance system is away until the fault is over: then nobody but Redis knows of
    /// them.
    settled: bool,
}

#[derive(Debug)]
struct Row {
    told: usize,
    missing: usize,
    told_twice: usize,
    paid_twice: usize,
    buried: usize,
    retry: Duration,
    differences: Vec<Difference>,
}

/// A primary behind a proxy, its replica, sentinels.
struct Nodes {
    sentinels: Sentinels,
    proxy: Proxy,
}

impl Nodes {
    async fn start(fsync: bool) -> Nodes {
        let door: Arc<Door> = Arc::default();
        let fsync = ["--appendfsync", if fsync { "always" } else { "everysec" }];
        let arguments: Vec<&str> = FIT.iter().chain(&fsync).copied().collect();
        let primary = Redis::start_behind(&door, &arguments).await;
        let proxy = Proxy::start(primary.port).await;
        let replica = replica_of(&door, proxy.port, &fsync).await;
        let ports = [proxy.port];
        let doors = [door.clone(), door];
        let sentinels = Sentinels::watch(doors, vec![primary], vec![replica], &ports).await;
        Nodes { sentinels, proxy }
    }

    async fn suffer(&mut self, fault: Fault) {
        let nodes = &mut self.sentinels;
        match fault {
            Fault::Restart => {
                nodes.primaries[0].kill();
                nodes.replicas[0].kill();
                nodes.primaries[0].restart().await;
                nodes.replicas[0].restart().await;
                return;
            }
            Fault::Killed => nodes.primaries[0].kill(),
            Fault::CutOff => {
                self.proxy.cut(Cut::Servers);
                tokio::time::sleep(PARTITION).await; // what is measured
                nodes.primaries[0].kill();
                self.proxy.cut(Cut::Nothing);
            }
        }
        nodes.until_switched(0, nodes.replicas[0].port).await;
        // It comes back, still taking itself for the primary, and is made the replica of its successor.
        nodes.primaries[0].restart().await;
    }
}

/// Nobody else writes into the ledger until the lock is dropped.
async fn lock_ledger(server: &Server) -> SqliteConnection {
    let path = server.data_dir().join("ledger.sqlite");
    let mut lock = SqliteConnection::connect(&format!("sqlite:{}", path.display()))
        .await
        .unwrap();
    lock.execute("BEGIN IMMEDIATE").await.unwrap();
    lock
}

async fn open(server: &Server, durability: Durability) -> RainId {
    let (admin, total) = (server.admin(), i64::from(PACKETS) * 100);
    admin.create_sponsor("acme").await.unwrap();
    admin.deposit("acme", Cents(total), "d").await.unwrap();
    let new = NewRain {
        durability: Some(durability),
        ..new_rain(PACKETS, total)
    };
    let rain = admin.create_rain(&new).await.unwrap().id;
    server.until(rain, |rain| rain.state == State::Ready).await;
    admin.open_rain(rain).await.unwrap();
    server.until(rain, |rain| rain.state == State::Open).await;
    rain
}

async fn measure(case: &Case) -> Row {
    let mut nodes = Nodes::start(case.level == Durability::Fsync).await;
    let flags = nodes.sentinels.flags();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let server = Arc::new(Server::start(&flags));
    let rain = open(&server, case.level).await;
    let lock = match case.settled {
        true => None,
        false => Some(lock_ledger(&server).await),
    };
    let load = Load::start(&server, rain, TAPPERS, |_| true);
    tokio::time::sleep(CALM).await; // what is measured
    nodes.suffer(case.fault).await;
    // A repair compares with the ledger, so it needs one.
    if let Some(mut lock) = lock {
        lock.execute("ROLLBACK").await.unwrap();
        lock.close().await.unwrap();
    }
    eventually("a repair", async || {
        server.log().contains("repaired").then_some(())
    })
    .await;
    let before = load.count();
    eventually("wins after the fault", async || {
        (load.count() > before + TAPPERS).then_some(())
    })
    .await;
    tokio::time::sleep(CALM).await; // what is measured
    let tapped = load.end().await;
    judge(&server, rain, &tapped).await
}

/// Settles and closes the rain, and compares what people were told with what became of it.
async fn judge(server: &Server, rain: RainId, tapped: &[Tapped]) -> Row {
    server.until_settled(rain).await;
    let admin = server.admin();
    eventually("the rain to be closed", async || {
        admin.close_rain(rain).await.ok()
    })
    .await;
    server
        .until(rain, |rain| rain.state >= State::Refunded)
        .await;
    let audit = eventually("an audit", async || admin.audit(rain).await.ok()).await;
    let winners = admin.all_winners(rain).await.unwrap();
    let paid: HashSet<(String, u64)> = winners
        .iter()
        .map(|winner| (winner.user.to_string(), winner.packet_id.get()))
        .collect();
    let packets: HashSet<u64> = paid.iter().map(|(_, packet)| *packet).collect();
    let letters = admin
        .dead_letters(Some(rain), None, None, 1_000)
        .await
        .unwrap();
    let mut told_to: HashMap<u64, u32> = HashMap::new();
    let mut missing = 0;
    for tapped in tapped {
        let Some((packet, _)) = tapped.won else {
            continue;
        };
        *told_to.entry(packet).or_default() += 1;
        missing += usize::from(!paid.contains(&(tapped.user.clone(), packet)));
    }
    let unsure = tapped
        .iter()
        .flat_map(|tapped| tapped.unsure.iter().copied());
    let retry = match (unsure.clone().min(), unsure.max()) {
        (Some(first), Some(last)) => last - first,
        _ => Duration::ZERO,
    };
    Row {
        told: tapped.iter().filter(|tapped| tapped.won.is_some()).count(),
        missing,
        told_twice: told_to.values().filter(|times| **times > 1).count(),
        paid_twice: paid.len() - packets.len(),
        buried: letters.dead_letters.len(),
        retry,
        differences: audit.differences,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_failover_costs() {
    use Fault::{CutOff, Killed, Restart};
    let wanted = std::env::var("HONGBAO_FAILOVER").unwrap_or_default();
    let replicas = Durability::Replicas(1);
    let cases = [
        (Durability::Memory, Restart, true),
        (Durability::Memory, Killed, true),
        (Durability::Memory, CutOff, true),
        (Durability::Memory, CutOff, false),
        (Durability::Fsync, Restart, true),
        (Durability::Fsync, Restart, false),
        (Durability::Fsync, CutOff, false),
        (replicas, Killed, true),
        (replicas, CutOff, false),
    ];
    println!(
        "{:<11} {:<32} {:<9} {:>6} {:>8} {:>11} {:>11} {:>7} {:>7}  audit",
        "level",
        "fault",
        "settlers",
        "told",
        "missing",
        "told twice",
        "paid twice",
        "buried",
        "RETRY"
    );
    for (level, fault, settled) in cases {
        let case = Case {
            level,
            fault,
            settled,
        };
        if !format!("{level} {}", fault.name()).contains(&wanted) {
            continue;
        }
        let row = measure(&case).await;
        println!(
            "{:<11} {:<32} {:<9} {:>6} {:>8} {:>11} {:>11} {:>7} {:>5.1} s  {}",
            level.to_string(),
            fault.name(),
            if settled { "at work" } else { "away" },
            row.told,
            row.missing,
            row.told_twice,
            row.paid_twice,
            row.buried,
            row.retry.as_secs_f64(),
            if row.differences.is_empty() {
                "balanced"
            } else {
                "UNBALANCED"
            }
        );
        assert!(row.told > 500, "too few taps to tell anything: {row:?}");
        assert_eq!(row.paid_twice, 0, "{row:?}");
        let must_keep = match (level, fault) {
            (Durability::Memory, _) => false,
            (Durability::Fsync, fault) => fault == Restart,
            (Durability::Replicas(_), fault) => fault != Restart,
        };
        // A packet that two were told of, each by a credit or a claim, is named until a person has decided.
        let excused = !must_keep && row.buried > 0;
        assert!(excused || row.differences.is_empty(), "{row:?}");
        assert!(
            !must_keep || (row.missing, row.told_twice) == (0, 0),
            "{row:?}"
        );
    }
}

/// The slowest of a hundred, ms.
fn p99_ms(mut took: Vec<Duration>) -> f64 {
    took.sort();
    took[took.len() * 99 / 100].as_secs_f64() * 1_000.0
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_away_slows_nobody_elses_taps() {
    let nodes = [Redis::fit().await, Redis::fit().await, Redis::fit().await];
    let settings = flags(&nodes.each_ref());
    let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
    let server = Arc::new(Server::start(&settings));
    let rain = open(&server, Durability::Memory).await;
    let home = move |user: &str| bucket_of(rain, user, 3);
    let theirs = Load::start(&server, rain, 8, move |user| home(user) == 2);
    let others = Load::start(&server, rain, 16, move |user| home(user) != 2);
    tokio::time::sleep(Duration::from_secs(4)).await; // what is measured
    let gone = Instant::now();
    nodes[2].stop();
    tokio::time::sleep(Duration::from_secs(5)).await; // what is measured
    nodes[2].go_on();
    let back = Instant::now();
    let tapped = others.end().await;
    let (mut usual, mut away) = (vec![], vec![]);
    for tapped in &tapped {
        if tapped.at < gone {
            usual.push(tapped.took);
        } else if tapped.at < back {
            away.push(tapped.took);
        }
    }
    let counts = [usual.len(), away.len()];
    let [usual, away] = [usual, away].map(p99_ms);
    println!(
        "one of three nodes away for 5 s: p99 of the other nodes' users {usual:.1} ms before ({} taps), {away:.1} ms meanwhile ({} taps), \
         {:.2} times",
        counts[0],
        counts[1],
        away / usual
    );
    let mut all = theirs.end().await;
    all.extend(tapped);
    let row = judge(&server, rain, &all).await;
    assert_eq!((row.missing, row.told_twice), (0, 0));
    assert!(row.differences.is_empty(), "{row:?}");
}
