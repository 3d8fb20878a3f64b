//! Leases by name: one holder, numbers that rise, waits that end.

/// Stewards that leave a rain to whoever holds its lease.
mod stewards;

use std::sync::Arc;
use std::time::{Duration, Instant};

use hongbao::config::{LeaseTerms, Settings, Sources};
use hongbao::rain::Durability;
use hongbao::store::fenced::{Answer, Fence, FencedLeases, NamedLease, Wait};
use hongbao::store::{Store, keys};
use redis::Value;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::support::eventually;
use crate::support::redis::{Redis, store};

/// Longer than any test: what is got before its end was not got by waiting for it.
const LONG: LeaseTerms = LeaseTerms {
    length: Duration::from_secs(600),
    renew_interval: Duration::from_secs(200),
    margin: Duration::from_secs(1),
};

const SECOND: Duration = Duration::from_secs(1);

/// Everything that one process has, but in this one.
struct Contender {
    leases: FencedLeases,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Contender {
    fn new(store: Arc<Store>, terms: LeaseTerms) -> Contender {
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        Contender {
            leases: FencedLeases::new(store, terms, &tasks, &stop),
            tasks,
            stop,
        }
    }

    async fn on(node: &Redis, terms: LeaseTerms) -> Contender {
        Contender::new(Arc::new(store(&[node]).await), terms)
    }

    async fn end(self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

fn text(reply: Value) -> Option<String> {
    match reply {
        Value::BulkString(bytes) => Some(String::from_utf8(bytes).unwrap()),
        Value::Nil => None,
        other => panic!("{other:?}"),
    }
}

/// The text of a lease that is held.
async fn held(node: &Redis, name: &str) -> Option<String> {
    text(node.call(&["GET", &keys::lease(name)[0]]).await)
}

/// Fencing number and process of a lease that is held.
async fn holder(node: &Redis, name: &str) -> Option<(u64, u32)> {
    let held = held(node, name).await?;
    let (fence, holder) = held.split_once(' ').unwrap();
    let (pid, _) = holder.split_once('-').unwrap();
    Some((fence.parse().unwrap(), pid.parse().unwrap()))
}

/// How many scripts a node has been asked to run.
async fn scripts_run(node: &Redis) -> u64 {
    let client = redis::Client::open(node.url()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let stats: String = redis::cmd("INFO")
        .arg("commandstats")
        .query_async(&mut connection)
        .await
        .unwrap();
    let calls = stats
        .split("cmdstat_evalsha:calls=")
        .nth(1)
        .and_then(|rest| rest.split(',').next());
    calls.map_or(0, |calls| calls.parse().unwrap())
}

#[tokio::test]
async fn of_two_contenders_one_gets_the_lease_and_the_other_is_told_at_once() {
    let node = Redis::fit().await;
    let (anna, bert) = (
        Contender::on(&node, LONG).await,
        Contender::on(&node, LONG).await,
    );
    let mut fences = vec![];
    for _ in 0..20 {
        let both = tokio::join!(
            anna.leases.acquire("job", Wait::GiveUpAtOnce),
            bert.leases.acquire("job", Wait::GiveUpAtOnce)
        );
        let mut got = [both.0.unwrap(), both.1.unwrap()].into_iter().flatten();
        let lease = got.next().expect("one gets it");
        assert!(got.next().is_none(), "two got it");
        let shown = holder(&node, "job").await;
        assert_eq!(shown, Some((lease.fence().0, std::process::id())));
        fences.push(lease.fence());
        assert!(lease.release().await);
        assert_eq!(held(&node, "job").await, None);
    }
    assert!(fences.is_sorted_by(|a, b| a < b), "{fences:?}");
    anna.end().await;
    bert.end().await;
}

#[tokio::test]
async fn a_dropped_lease_is_released_before_the_tasks_end() {
    let node = Redis::fit().await;
    let anna = Contender::on(&node, LONG).await;
    drop(anna.leases.acquire("job", Wait::ForEver).await.unwrap());
    anna.end().await;
    assert_eq!(held(&node, "job").await, None);
}

#[tokio::test]
async fn fencing_numbers_rise_over_expiry_restart_lost_keys_and_a_clock_that_goes_back() {
    let mut node = Redis::fit().await;
    let lease = NamedLease::new(Arc::new(store(&[&node]).await), "job");
    let [key, fence_key] = keys::lease("job");
    let take = async |holder: &str, now_ms: i64| {
        eventually("the node", async || {
            lease.acquire(holder, SECOND * 60, Some(now_ms)).await.ok()
        })
        .await
    };
    assert_eq!(take("a", 5_000).await, Answer::Held(Fence(5_000)));
    assert_eq!(
        take("a", 9_000).await,
        Answer::Held(Fence(5_000)),
        "asked again, since the answer was lost"
    );
    match take("b", 9_000).await {
        Answer::Taken {
            by,
            left: Some(left),
        } => assert!(by == "a" && left <= SECOND * 60, "{by} {left:?}"),
        other => panic!("{other:?}"),
    }
    node.call(&["PEXPIRE", &key, "0"]).await;
    assert_eq!(
        take("b", 4_000).await,
        Answer::Held(Fence(5_001)),
        "the clock went back"
    );
    node.call(&["DEL", &key]).await;
    node.restart().await;
    assert_eq!(
        take("c", 4_000).await,
        Answer::Held(Fence(5_002)),
        "a restart keeps the last number"
    );
    node.call(&["DEL", &key, &fence_key]).await;
    assert_eq!(
        take("d", 6_000).await,
        Answer::Held(Fence(6_000)),
        "the node has forgotten everything"
    );
}

#[tokio::test]
async fn a_late_holder_neither_renews_nor_releases_the_lease_of_the_next() {
    let node = Redis::fit().await;
    let (anna, bert) = (
        Contender::on(&node, LONG).await,
        Contender::on(&node, LONG).await,
    );
    let old = anna.leases.acquire("job", Wait::GiveUpAtOnce).await;
    let old = old.unwrap().unwrap();
    let old_text = held(&node, "job").await.unwrap();
    let [key, _] = keys::lease("job");
    node.call(&["PEXPIRE", &key, "0"]).await;
    let new = bert.leases.acquire("job", Wait::GiveUpAtOnce).await;
    let new = new.unwrap().unwrap();
    assert!(new.fence() > old.fence());
    let shown = held(&node, "job").await;

    let verbs = NamedLease::new(Arc::new(store(&[&node]).await), "job");
    let old_holder = old_text.split_once(' ').unwrap().1;
    assert!(!verbs.renew(old_holder, SECOND).await.unwrap());
    assert!(!old.release().await, "it was not the old one's any more");
    assert_eq!(held(&node, "job").await, shown);
    assert!(new.release().await);
}

#[tokio::test]
async fn a_release_wakes_those_who_wait_and_nobody_polls() {
    let node = Redis::fit().await;
    let (anna, bert) = (
        Contender::on(&node, LONG).await,
        Contender::on(&node, LONG).await,
    );
    // The node knows the scripts from here on, and both listen.
    let first = anna.leases.acquire("job", Wait::ForEver).await.unwrap();
    first.unwrap().release().await;
    eventually("two listeners", async || {
        let counted = node.call(&["PUBSUB", "NUMSUB", keys::LEASE_CHANNEL]).await;
        matches!(&counted, Value::Array(items) if items[1] == Value::Int(2)).then_some(())
    })
    .await;
    let lease = anna.leases.acquire("job", Wait::ForEver).await;
    let lease = lease.unwrap().unwrap();
    let before = scripts_run(&node).await;
    let waiting = bert.leases.acquire("job", Wait::ForEver);
    let releasing = async {
        eventually("the first question", async || {
            (scripts_run(&node).await > before).then_some(())
        })
        .await;
        tokio::time::sleep(SECOND / 2).await; // in this time nothing may happen: that is what is tested
        lease.release().await
    };
    let (got, released) = tokio::join!(waiting, releasing);
    assert!(released && got.unwrap().is_some());
    // The waiter's first question, another if its listener was late, the release, the question after it.
    let asked = scripts_run(&node).await - before;
    assert!((3..=4).contains(&asked), "{asked} calls");
    anna.end().await;
    bert.end().await;
}

#[tokio::test]
async fn a_lease_whose_holder_died_is_taken_when_its_time_is_over_and_nobody_polls() {
    let node = Redis::fit().await;
    let [key, _] = keys::lease("job");
    let anna = Contender::on(&node, LONG).await;
    let began = Instant::now();
    node.call(&["SET", &key, "17 1-dead", "PX", "1500"]).await;
    let lease = anna.leases.acquire("job", Wait::ForEver).await;
    assert!(lease.unwrap().unwrap().fence() > Fence(17));
    assert!(began.elapsed() > SECOND, "{:?}", began.elapsed());
    // A first question that taught the node the script, one when the listener began, one when the time was over, some if that was
    // early by the node's clock.
    let asked = scripts_run(&node).await;
    assert!(asked <= 8, "{asked} calls");
    anna.end().await;
}

#[tokio::test]
async fn who_waits_up_to_a_time_gives_up_then_and_a_renewed_lease_outlives_its_length() {
    let node = Redis::fit().await;
    let terms = LeaseTerms {
        length: SECOND * 2,
        renew_interval: SECOND / 5,
        margin: SECOND / 10,
    };
    let (anna, bert) = (
        Contender::on(&node, terms).await,
        Contender::on(&node, terms).await,
    );
    let lease = anna.leases.acquire("job", Wait::ForEver).await;
    let lease = lease.unwrap().unwrap();
    let began = Instant::now();
    let refused = bert.leases.acquire("job", Wait::UpTo(SECOND * 3)).await;
    assert!(refused.unwrap().is_none());
    assert!((SECOND * 3..SECOND * 20).contains(&began.elapsed()));
    assert!(!lease.lost().is_cancelled());
    assert!(lease.release().await);
    anna.end().await;
    bert.end().await;
}

#[tokio::test]
async fn who_gives_up_before_the_answer_gives_back_what_it_got() {
    let node = Redis::fit().await;
    let anna = Contender::on(&node, LONG).await;
    let first = anna.leases.acquire("job", Wait::ForEver).await.unwrap();
    assert!(first.unwrap().release().await);
    let [_, fence_key] = keys::lease("job");
    let fence = text(node.call(&["GET", &fence_key]).await);
    node.call(&["CLIENT", "PAUSE", "1500", "WRITE"]).await;
    let late = anna.leases.acquire("job", Wait::UpTo(SECOND / 20)).await;
    assert!(late.unwrap().is_none());
    anna.end().await;
    let next = text(node.call(&["GET", &fence_key]).await);
    assert!(next > fence, "the node gave it the lease: {next:?}");
    assert_eq!(held(&node, "job").await, None);
}

/// Forwards bytes to a node until it is cut; then it goes silent, and closes nothing: a partition.
async fn wire_to(node: &Redis) -> (String, CancellationToken) {
    let (cut, target) = (CancellationToken::new(), node.port);
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let token = cut.clone();
    tokio::spawn(async move {
        while let Ok((mut near, _)) = listener.accept().await {
            let cut = token.clone();
            tokio::spawn(async move {
                let mut far = TcpStream::connect(("127.0.0.1", target)).await.unwrap();
                let forward = tokio::io::copy_bidirectional(&mut near, &mut far);
                if cut.run_until_cancelled(forward).await.is_none() {
                    std::future::pending::<()>().await;
                }
            });
        }
    });
    (url, cut)
}

#[tokio::test]
async fn a_holder_that_loses_its_node_is_told_before_anybody_else_gets_the_lease() {
    let node = Redis::fit().await;
    let terms = LeaseTerms {
        length: SECOND * 3,
        renew_interval: SECOND / 5,
        margin: SECOND,
    };
    let (url, cut) = wire_to(&node).await;
    let nodes = format!("store.nodes=[\"{url}\"]");
    let flags = [
        "store.topology=nodes",
        nodes.as_str(),
        "store.call_timeout_ms=300",
        "gateway.replicas_wait_ms=200",
        "store.connect_timeout_ms=300",
        "gateway.replicas_wait_ms=200",
    ];
    let settings = Settings::read(Sources::default().flags(flags)).unwrap().0;
    let behind_wire = Store::open(&settings.store, &settings.data_dir, Durability::Memory).await;
    let anna = Contender::new(Arc::new(behind_wire.unwrap()), terms);
    let bert = Contender::on(&node, terms).await;

    let lease = anna.leases.acquire("job", Wait::ForEver).await;
    let lease = lease.unwrap().unwrap();
    cut.cancel();
    let cut_off = async {
        lease.lost().cancelled().await;
        held(&node, "job").await
    };
    let next = bert.leases.acquire("job", Wait::ForEver);
    let (still_held, next) = tokio::join!(cut_off, async {
        let next = next.await.unwrap().unwrap();
        assert!(
            lease.lost().is_cancelled(),
            "two who think that they have it"
        );
        next
    });
    let fence = still_held.and_then(|held| held.split_once(' ').unwrap().0.parse().ok());
    assert_eq!(
        fence,
        Some(lease.fence().0),
        "told while the node still kept it"
    );
    assert!(next.fence() > lease.fence());
    assert!(!lease.release().await);
    assert!(next.release().await);
}
