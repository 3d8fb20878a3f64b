//! Leases by name: who may work at something for a limited time. A settler's lease on claims is another thing: see [`super::bucket::Lease`].
//!
//! [`FencedLeases::acquire`] gets one, [`FencedLease`] is one that is held, and each held one has a watchdog:
//!
//! 1. The watchdog renews the lease until the [`FencedLease`] is dropped; then it releases it, which wakes those who wait, and ends.
//! 2. When it cannot renew the lease in time it tells the holder by [`FencedLease::lost`], `margin` before the node would give the lease
//!    to anybody else, and ends.
//!
//! A process that is frozen learns of its loss only when it wakes up. Therefore a lease spares work and guards nothing by itself: what is
//! done under it must be idempotent, or refuse a [`Fence`] below the highest one seen.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use redis::Value;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use super::bucket::{or_node_clock, text};
use super::listen::Heard;
use super::{Store, StoreError, keys, script};
use crate::config::LeaseTerms;
use crate::jitter::Jitter;

/// How long the last fencing number of a name is kept. Afterwards the node's clock alone keeps numbers rising.
const FENCE_KEPT: Duration = Duration::from_secs(7 * 86_400);

/// A number that rises with every holder of a lease: whoever has seen a higher one refuses a lower one as stale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(pub u64);

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What to do while somebody else holds a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    GiveUpAtOnce,
    UpTo(Duration),
    ForEver,
}

/// What `acquire` found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Held(Fence),
    Taken {
        /// Who has it.
        by: String,
        /// Until it runs out unless it is renewed; `None`: it never does.
        left: Option<Duration>,
    },
}

/// The verbs of one name, each one call.
#[derive(Clone)]
pub struct NamedLease {
    store: Arc<Store>,
    name: String,
    key: String,
    fence_key: String,
}

impl NamedLease {
    pub fn new(store: Arc<Store>, name: &str) -> NamedLease {
        let [key, fence_key] = keys::lease(name);
        NamedLease {
            store,
            name: name.to_owned(),
            key,
            fence_key,
        }
    }

    /// Takes the lease if nobody has it. `holder` is another text for each try, without blanks. `now_ms` is the node's clock unless a test
    /// says otherwise.
    pub async fn acquire(
        &self,
        holder: &str,
        length: Duration,
        now_ms: Option<i64>,
    ) -> Result<Answer, StoreError> {
        let mut call = script::ACQUIRE.call(&[&self.key, &self.fence_key]);
        call.arg(holder)
            .arg(length.as_millis() as u64)
            .arg(FENCE_KEPT.as_millis() as u64)
            .arg(or_node_clock(now_ms));
        let reply = self
            .store
            .route_of(&self.key)
            .run(&script::ACQUIRE, |_| call.clone())
            .await?;
        parse_answer(&reply).ok_or_else(|| script::ACQUIRE.misread(&reply))
    }

    /// Whether the lease was still the holder's, and lasts `length` from now on.
    pub async fn renew(&self, holder: &str, length: Duration) -> Result<bool, StoreError> {
        let mut call = script::RENEW.call(&[&self.key]);
        call.arg(holder).arg(length.as_millis() as u64);
        self.yes_or_no(&script::RENEW, &call).await
    }

    /// Whether the lease was still the holder's, and is free now.
    pub async fn release(&self, holder: &str) -> Result<bool, StoreError> {
        let mut call = script::RELEASE.call(&[&self.key]);
        call.arg(holder).arg(keys::LEASE_CHANNEL).arg(&self.name);
        self.yes_or_no(&script::RELEASE, &call).await
    }

    async fn yes_or_no(
        &self,
        script: &script::Script,
        call: &redis::Cmd,
    ) -> Result<bool, StoreError> {
        let route = self.store.route_of(&self.key);
        match route.run(script, |_| call.clone()).await? {
            Value::Int(1) => Ok(true),
            Value::Int(0) => Ok(false),
            reply => Err(script.misread(&reply)),
        }
    }

    fn probe_interval(&self) -> Duration {
        self.store.nodes.reach.probe_interval
    }
}

fn parse_answer(reply: &Value) -> Option<Answer> {
    let Value::Array(items) = reply else {
        return None;
    };
    match &items[..] {
        [Value::Int(1), fence] => Some(Answer::Held(Fence(text(fence)?.parse().ok()?))),
        [Value::Int(0), Value::Int(left_ms), by] => Some(Answer::Taken {
            by: text(by)?.to_owned(),
            left: u64::try_from(*left_ms).ok().map(Duration::from_millis),
        }),
        _ => None,
    }
}

/// Those of this process who wait for a lease, by its name. One that nobody waits for any more goes at the next [`Waiting::join`].
#[derive(Default)]
struct Waiting(Mutex<HashMap<String, Weak<Notify>>>);

impl Waiting {
    fn join(&self, name: &str) -> Arc<Notify> {
        let mut waiting = self.0.lock().expect("no panic under this lock");
        if let Some(free) = waiting.get(name).and_then(Weak::upgrade) {
            return free;
        }
        waiting.retain(|_, free| free.strong_count() > 0);
        let free = Arc::new(Notify::new());
        waiting.insert(name.to_owned(), Arc::downgrade(&free));
        free
    }

    fn wake(&self, name: &str) {
        let waiting = self.0.lock().expect("no panic under this lock");
        if let Some(free) = waiting.get(name).and_then(Weak::upgrade) {
            free.notify_waiters();
        }
    }

    fn wake_all(&self) {
        let waiting = self.0.lock().expect("no panic under this lock");
        let all = waiting.values().filter_map(Weak::upgrade);
        all.for_each(|free| free.notify_waiters());
    }
}

/// Gets leases for this process. One listener a node, however many wait.
pub struct FencedLeases {
    store: Arc<Store>,
    terms: LeaseTerms,
    waiting: Arc<Waiting>,
    tasks: TaskTracker,
    jitter: Jitter,
}

impl FencedLeases {
    /// The listeners end when `stop` is cancelled; a watchdog ends with its lease. All of them are among `tasks`.
    pub fn new(
        store: Arc<Store>,
        terms: LeaseTerms,
        tasks: &TaskTracker,
        stop: &CancellationToken,
    ) -> FencedLeases {
        let waiting: Arc<Waiting> = Arc::default();
        let heard = waiting.clone();
        let hear = move |said: Heard| match said {
            // Whoever began to wait before this may have missed a release. What is not heard while a node is away is found when the lease's
            // time is over.
            Heard::Listening => heard.wake_all(),
            Heard::Message(name) => heard.wake(name),
        };
        store.listen_with(keys::LEASE_CHANNEL, hear, tasks, stop.clone());
        FencedLeases {
            store,
            terms,
            waiting,
            tasks: tasks.clone(),
            jitter: Jitter::default(),
        }
    }

    /// The lease, or `None` when somebody else had it for as long as we were willing to wait. A node that is away is an error,
    /// not a holder to wait for: whoever wants the lease knows what that is worth.
    pub async fn acquire(&self, name: &str, wait: Wait) -> Result<Option<FencedLease>, StoreError> {
        let mut seeker = Seeker {
            lease: NamedLease::new(self.store.clone(), name),
            // For people who look at the key: the process, and a number that tells its tries apart.
            holder: format!("{}-{:016x}", std::process::id(), self.jitter.next_u64()),
            terms: self.terms,
            tasks: self.tasks.clone(),
            unanswered: false,
        };
        match wait {
            Wait::GiveUpAtOnce => match seeker.ask().await? {
                (Answer::Held(fence), asked) => Ok(Some(seeker.hold(fence, asked))),
                (Answer::Taken { .. }, _) => Ok(None),
            },
            Wait::UpTo(limit) => {
                match tokio::time::timeout(limit, seeker.seek(&self.waiting)).await {
                    Ok(found) => found.map(|(fence, asked)| Some(seeker.hold(fence, asked))),
                    Err(_) => Ok(None),
                }
            }
            Wait::ForEver => {
                let (fence, asked) = seeker.seek(&self.waiting).await?;
                Ok(Some(seeker.hold(fence, asked)))
            }
        }
    }
}

/// Somebody who wants a lease. One that goes while the answer to its question is not known gives back what it may have got.
struct Seeker {
    lease: NamedLease,
    holder: String,
    terms: LeaseTerms,
    tasks: TaskTracker,
    unanswered: bool,
}

impl Seeker {
    /// The answer, and when it was asked for: the lease began no earlier.
    async fn ask(&mut self) -> Result<(Answer, Instant), StoreError> {
        self.unanswered = true;
        let asked = Instant::now();
        let answer = self
            .lease
            .acquire(&self.holder, self.terms.length, None)
            .await?;
        self.unanswered = false;
        Ok((answer, asked))
    }

    /// Asks when the lease has been released, when its time is over, and never in between.
    async fn seek(&mut self, waiting: &Waiting) -> Result<(Fence, Instant), StoreError> {
        let free = waiting.join(&self.lease.name);
        loop {
            // Before the question: a release between the answer and the wait is heard.
            let released = free.notified();
            let rest = match self.ask().await? {
                (Answer::Held(fence), asked) => return Ok((fence, asked)),
                // A millisecond more, since the node rounds.
                (Answer::Taken { left, .. }, _) => {
                    left.unwrap_or(self.terms.length) + Duration::from_millis(1)
                }
            };
            let _ = tokio::time::timeout(rest, released).await;
        }
    }

    fn hold(&self, fence: Fence, asked: Instant) -> FencedLease {
        let (lost, done) = (CancellationToken::new(), CancellationToken::new());
        let watchdog = Watchdog {
            lease: self.lease.clone(),
            holder: self.holder.clone(),
            terms: self.terms,
            lost: lost.clone(),
        };
        FencedLease {
            fence,
            lost,
            watchdog: self.tasks.spawn(watchdog.run(asked, done.clone())),
            done: done.drop_guard(),
        }
    }
}

impl Drop for Seeker {
    fn drop(&mut self) {
        // Without a runtime the process is ending, and the lease runs out by itself.
        if self.unanswered
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let (lease, holder) = (self.lease.clone(), std::mem::take(&mut self.holder));
            let giving_back = async move { lease.release(&holder).await };
            self.tasks.spawn_on(giving_back, &runtime);
        }
    }
}

/// A lease that is held until it is dropped or [lost](FencedLease::lost).
#[derive(Debug)]
pub struct FencedLease {
    fence: Fence,
    lost: CancellationToken,
    watchdog: JoinHandle<bool>,
    done: DropGuard,
}

impl FencedLease {
    pub fn fence(&self) -> Fence {
        self.fence
    }

    /// Cancelled when the lease could not be renewed in time: the holder stops at once.
    pub fn lost(&self) -> &CancellationToken {
        &self.lost
    }

    /// Releases it now; a lease that is dropped is released soon. Tells whether it was still ours.
    pub async fn release(self) -> bool {
        drop(self.done);
        self.watchdog.await.unwrap_or(false)
    }
}

struct Watchdog {
    lease: NamedLease,
    holder: String,
    terms: LeaseTerms,
    lost: CancellationToken,
}

impl Watchdog {
    /// Whether it ended by releasing the lease.
    async fn run(self, mut since: Instant, done: CancellationToken) -> bool {
        let kept = done.run_until_cancelled(async {
            while let Some(renewed) = self.renew(since).await {
                since = renewed;
            }
        });
        if kept.await.is_some() {
            tracing::warn!(
                lease = self.lease.name,
                "a lease could not be renewed in time"
            );
            self.lost.cancel();
            return false;
        }
        self.lease.release(&self.holder).await.unwrap_or_else(|error| {
            tracing::debug!(lease = self.lease.name, %error, "a lease was not released; it will run out");
            false
        })
    }

    /// Renews a lease that lasts since then, in its time: the instant of the call that did it, or `None` if it is lost.
    async fn renew(&self, since: Instant) -> Option<Instant> {
        let told_at = since + self.terms.length.saturating_sub(self.terms.margin);
        let asking = async {
            tokio::time::sleep_until(since + self.terms.renew_interval).await;
            loop {
                // Before the call: on the node the lease lasts no shorter than from here.
                let asked = Instant::now();
                match self.lease.renew(&self.holder, self.terms.length).await {
                    Ok(true) => return Some(asked),
                    Ok(false) => return None,
                    // Whether it ran or not, asking again does no harm; `told_at` ends it.
                    Err(_) => tokio::time::sleep(self.lease.probe_interval()).await,
                }
            }
        };
        tokio::time::timeout_at(told_at, asking)
            .await
            .ok()
            .flatten()
    }
}
