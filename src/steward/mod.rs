//! The steward moves every rain through its life: load, open, close, refund, finish.
//!
//! It holds no state that matters: each round reads the records, does the next step of each rain, and may die anywhere. Every step is idempotent, so two
//! stewards at work on one rain waste time and nothing else; a lease by rain spares them that.

/// The next step of one rain.
mod advance;
/// Every packet in exactly one place, every winner with exactly one credit.
pub mod audit;
/// Packets to where people tap in vain.
mod balance;
/// Dead letters, told to webhooks.
pub mod dead;
/// Amounts into pools, chunk by chunk.
mod load;
/// What is left goes back to the sponsor.
mod refund;
/// A node that came back as another process, or empty.
pub mod repair;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config;
use crate::jitter::Jitter;
use crate::ledger::{Ledger, LedgerError};
use crate::rain::{Rain, RainId};
use crate::store::fenced::{FencedLeases, Wait};
use crate::store::{Store, StoreError, keys};

#[derive(Debug, thiserror::Error)]
pub enum StewardError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    #[error("rain {rain}: {problem}")]
    Rain { rain: RainId, problem: String },
}

/// What a steward remembers of a rain to spare itself work. Losing it costs only that work.
#[derive(Clone, Default)]
struct Applied {
    /// The version that gates and snapshot show, and since when.
    version: Option<(i64, Instant)>,
    /// No audit before this.
    audit_after: Option<Instant>,
    suspicion: Option<repair::Suspicion>,
    /// Nodes that were said to be too weak for the rain's durability.
    weak_nodes: usize,
    /// After the close it was looked whether the last packet had gone.
    counted_after_close: bool,
    /// When the gateways were told how many packets are left.
    progress_at: Option<Instant>,
}

pub struct Steward {
    settings: config::Steward,
    store: Arc<Store>,
    ledger: Ledger,
    applied: Mutex<HashMap<RainId, Applied>>,
    jitter: Jitter,
}

/// Starts the steward's rounds. They end when `stop` is cancelled, within one step; then the leases are released.
pub fn start(steward: Arc<Steward>, tasks: &TaskTracker, stop: &CancellationToken) {
    let (tracker, stop) = (tasks.clone(), stop.clone());
    let (teller, told) = (steward.clone(), stop.clone());
    crate::task::spawn(tasks, "steward.dead", async move {
        told.run_until_cancelled(teller.tell_of_the_dead()).await;
    });
    let terms = steward.settings.lease;
    let leases = FencedLeases::new(steward.store.clone(), terms, tasks, &stop);
    crate::task::spawn(tasks, "steward", async move {
        stop.run_until_cancelled(steward.run(leases, tracker, stop.clone()))
            .await;
    });
}

impl Steward {
    /// One that takes steps when it is asked to; [`start`] makes it do rounds by itself.
    pub fn new(settings: &config::Steward, store: Arc<Store>, ledger: Ledger) -> Steward {
        Steward {
            settings: settings.clone(),
            store,
            ledger,
            applied: Mutex::default(),
            jitter: Jitter::default(),
        }
    }

    /// One task for each rain that has something to do, so that loading a big one delays no other. Each round hands it the rain's record.
    async fn run(
        self: Arc<Self>,
        leases: FencedLeases,
        tasks: TaskTracker,
        stop: CancellationToken,
    ) {
        let leases = Arc::new(leases);
        let mut tended: HashMap<RainId, watch::Sender<Rain>> = HashMap::new();
        let mut round = tokio::time::interval(self.settings.interval);
        round.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            round.tick().await;
            let rains = match self.ledger.unfinished_rains().await {
                Ok(rains) => rains,
                Err(error) => {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "rains cannot be listed; the steward waits"
                    );
                    crate::metrics::get().step_failed("list");
                    tokio::time::sleep(Duration::from_millis(500)).await;
                    continue;
                }
            };
            self.forget_finished(&rains);
            // Without records a rain's task ends. One that is gone before its rain is started again.
            tended.retain(|id, records| {
                !records.is_closed() && rains.iter().any(|rain| rain.id == *id)
            });
            for rain in rains {
                let id = rain.id;
                if let Some(records) = tended.get(&id) {
                    records.send_replace(rain);
                    continue;
                }
                let (records, mut of_rain) = watch::channel(rain);
                of_rain.mark_changed();
                tended.insert(id, records);
                let (steward, leases, stop) = (self.clone(), leases.clone(), stop.clone());
                crate::task::spawn(&tasks, "steward.rain", async move {
                    stop.run_until_cancelled(steward.tend(id, &leases, of_rain))
                        .await;
                });
            }
        }
    }

    /// Waits until no other steward is at work on the rain, then takes a step each round, until there are no more rounds or the lease is lost.
    ///
    /// The lease spares work, no more. While its node is away the rain is worth more than work done twice, and goes on without it. Its
    /// fencing number is not passed on, since what a late steward does is refused or changes nothing anyway: the rain's version guards
    /// record, gates and snapshot, a closed gate stays closed, chunks are numbered, transfers, credits and the refund have ids.
    async fn tend(&self, id: RainId, leases: &FencedLeases, mut records: watch::Receiver<Rain>) {
        let name = keys::rain_lease(id);
        let mut warned = false;
        loop {
            let lease = match leases.acquire(&name, Wait::ForEver).await {
                Ok(Some(lease)) => lease,
                // Nobody gives up who waits for ever; should that change, the next round begins anew.
                Ok(None) => return,
                Err(error) => {
                    if !std::mem::replace(&mut warned, true) {
                        tracing::warn!(rain = %id, %error, "no lease can be had: the rain goes on without");
                    }
                    if !self.next_step(&mut records).await {
                        return;
                    }
                    continue;
                }
            };
            warned = false;
            tracing::debug!(rain = %id, fence = %lease.fence(), "at work on a rain");
            let work = async { while self.next_step(&mut records).await {} };
            if lease.lost().run_until_cancelled(work).await.is_some() {
                return;
            }
        }
    }

    /// A step by the record of the next round; `false` if there is none any more.
    async fn next_step(&self, records: &mut watch::Receiver<Rain>) -> bool {
        let listed = records.changed().await.is_ok();
        if listed {
            let rain = records.borrow_and_update().clone();
            self.step(rain).await;
        }
        listed
    }

    /// One step, and a rest if it failed.
    async fn step(&self, rain: Rain) {
        let id = rain.id;
        match self.advance(rain).await {
            Ok(()) => {}
            Err(StewardError::Store(error)) => {
                tracing::warn!(rain = %id, %error, "a step waits for its node");
                crate::metrics::get().step_failed("node");
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            Err(error) => {
                tracing::error!(rain = %id, error = &error as &dyn std::error::Error, "a step could not be taken");
                crate::metrics::get().step_failed("other");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }

    fn applied(&self, rain: RainId) -> Applied {
        self.applied
            .lock()
            .expect("no panic under this lock")
            .get(&rain)
            .cloned()
            .unwrap_or_default()
    }

    fn remember(&self, rain: RainId, change: impl FnOnce(&mut Applied)) {
        change(
            self.applied
                .lock()
                .expect("no panic under this lock")
                .entry(rain)
                .or_default(),
        );
    }

    fn forget_finished(&self, unfinished: &[Rain]) {
        let mut applied = self.applied.lock().expect("no panic under this lock");
        applied.retain(|id, _| unfinished.iter().any(|rain| rain.id == *id));
    }
}
