//! The steward moves every rain through its life: load, open, close, refund, finish.
//!
//! It holds no state that matters: each round reads the records, does the next step of each rain, and may die anywhere. Every step is idempotent, so two
//! stewards at work on one rain waste time and nothing else.

/// The next step of one rain.
mod advance;
/// Every packet in exactly one place, every winner with exactly one credit.
pub mod audit;
/// Packets to where people tap in vain.
mod balance;
/// Amounts into pools, chunk by chunk.
mod load;
/// What is left goes back to the sponsor.
mod refund;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config;
use crate::ledger::{Ledger, LedgerError};
use crate::rain::{Rain, RainId};
use crate::store::{Store, StoreError};

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
#[derive(Clone, Copy, Default)]
struct Applied {
    /// The version that gates and snapshot show, and since when.
    version: Option<(i64, Instant)>,
    /// No audit before this.
    audit_after: Option<Instant>,
}

/// A rain that has a task at work; dropped with it, however it ends.
struct Busy {
    rain: RainId,
    all: Arc<Mutex<HashSet<RainId>>>,
}

impl Busy {
    fn begin(rain: RainId, all: &Arc<Mutex<HashSet<RainId>>>) -> Option<Busy> {
        let begun = all.lock().expect("no panic under this lock").insert(rain);
        begun.then(|| Busy {
            rain,
            all: all.clone(),
        })
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.all
            .lock()
            .expect("no panic under this lock")
            .remove(&self.rain);
    }
}

pub struct Steward {
    settings: config::Steward,
    store: Arc<Store>,
    ledger: Ledger,
    applied: Mutex<HashMap<RainId, Applied>>,
}

/// Starts the steward's rounds. They end when `stop` is cancelled, within one step.
pub fn start(steward: Arc<Steward>, tasks: &TaskTracker, stop: &CancellationToken) {
    let (tracker, stop) = (tasks.clone(), stop.clone());
    tasks.spawn(async move {
        stop.run_until_cancelled(steward.run(tracker, stop.clone()))
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
        }
    }

    /// One task for each rain that has something to do, so that loading a big one delays no other.
    async fn run(self: Arc<Self>, tasks: TaskTracker, stop: CancellationToken) {
        let at_work: Arc<Mutex<HashSet<RainId>>> = Arc::default();
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
                    tokio::time::sleep(Duration::from_millis(500)).await;
                    continue;
                }
            };
            self.forget_finished(&rains);
            for rain in rains {
                // No place: its task from an earlier round is still at work.
                let Some(busy) = Busy::begin(rain.id, &at_work) else {
                    continue;
                };
                let (steward, stop) = (self.clone(), stop.clone());
                tasks.spawn(async move {
                    stop.run_until_cancelled(steward.step(rain)).await;
                    drop(busy);
                });
            }
        }
    }

    /// One step, and a rest if it failed.
    async fn step(&self, rain: Rain) {
        let id = rain.id;
        match self.advance(rain).await {
            Ok(()) => {}
            Err(StewardError::Store(error)) => {
                tracing::warn!(rain = %id, %error, "a step waits for its node");
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            Err(error) => {
                tracing::error!(rain = %id, error = &error as &dyn std::error::Error, "a step could not be taken");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }

    fn applied(&self, rain: RainId) -> Applied {
        self.applied
            .lock()
            .expect("no panic under this lock")
            .get(&rain)
            .copied()
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
