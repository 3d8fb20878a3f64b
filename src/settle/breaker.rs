//! The breaker: while the balance system is away claims stay where they are cheapest, in their lists, and no attempt is burnt.
//!
//! ```text
//!            an outage                 the wait is over
//!   closed ─────────────▶ open ─────────────────────────▶ half-open: one settler, one small batch
//!     ▲                     ▲                                │   │
//!     │                     └──────── an outage, wait longer ┘   │
//!     └──────────────────────────────────────────── it worked ───┘
//! ```
//!
//! All settlers of a process share one.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::jitter::Jitter;
use crate::metrics;

/// Claims of the first batch that finds out whether the balance system is back; the next ones are half as large each, down to a single
/// claim. If it is a claim that the other side chokes on, the others are soon in a batch without it.
const PROBE_CLAIMS: usize = 16;
/// The first wait, which doubles with each probe that fails …
const WAIT_MIN: Duration = Duration::from_millis(500);
/// … up to here: an endpoint that is away sees a dozen requests a minute from each process.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// How soon the other settlers look again while one probes.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// The balance system, or the ledger behind it, is away. With the reason.
#[derive(Debug)]
pub struct Outage(pub String);

#[derive(Default)]
pub struct Breaker {
    state: Mutex<State>,
    jitter: Jitter,
}

#[derive(Clone, Copy, Default)]
enum State {
    #[default]
    Closed,
    Open {
        failures: u32,
        until: Instant,
        probing: bool,
    },
}

pub enum Turn {
    Work(Permit),
    Wait(Duration),
}

/// To settle one batch. Dropped unused, as when there are no claims, it changes nothing.
pub struct Permit {
    breaker: Arc<Breaker>,
    /// Failures before this probe.
    probe: Option<u32>,
}

impl Breaker {
    pub fn turn(self: &Arc<Breaker>) -> Turn {
        let permit = |probe| {
            Turn::Work(Permit {
                breaker: self.clone(),
                probe,
            })
        };
        let mut state = self.lock();
        match &mut *state {
            State::Closed => permit(None),
            State::Open { probing: true, .. } => Turn::Wait(LOOK_AGAIN),
            State::Open {
                failures,
                until,
                probing,
            } => {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    *probing = true;
                    permit(Some(*failures))
                } else {
                    Turn::Wait(left)
                }
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self, failures: u32) -> State {
        let wait = self.jitter.back_off(failures - 1, WAIT_MIN, WAIT_MAX);
        State::Open {
            failures,
            until: Instant::now() + wait,
            probing: false,
        }
    }
}

impl Permit {
    /// How many claims may be tried.
    pub fn claims_max(&self, batch_max: usize) -> usize {
        match self.probe {
            Some(failures) => batch_max.min((PROBE_CLAIMS >> (failures - 1).min(31)).max(1)),
            None => batch_max,
        }
    }

    pub fn is_probe(&self) -> bool {
        self.probe.is_some()
    }

    /// How long the claims of this probe rest at least if it fails: until after the next one, which is to be made with others.
    pub fn rest(&self) -> Option<Duration> {
        let failures = self.probe?.min(20);
        Some(WAIT_MIN.saturating_mul(1 << failures).min(WAIT_MAX))
    }

    /// Somebody else found the balance system away since this was given.
    pub fn is_overtaken(&self) -> bool {
        self.probe.is_none() && matches!(*self.breaker.lock(), State::Open { .. })
    }

    /// The balance system answered.
    pub fn worked(self) {
        // A batch that was under way when the outage began proves nothing about now.
        if self.probe.is_some() {
            *self.breaker.lock() = State::Closed;
            metrics::get().balance_away.set(0.0);
            tracing::info!("the balance system is back");
        }
    }

    pub fn failed(self, outage: &Outage) {
        let mut state = self.breaker.lock();
        match *state {
            State::Closed => {
                tracing::warn!(
                    reason = outage.0,
                    "the balance system is away; claims wait in Redis"
                );
                metrics::get().balance_away.set(1.0);
                *state = self.breaker.open(1);
            }
            State::Open { failures, .. } if self.probe.is_some() => {
                tracing::debug!(reason = outage.0, "the balance system is still away");
                *state = self.breaker.open(failures.saturating_add(1));
            }
            // Under way when another one failed: one outage, counted once.
            State::Open { .. } => {}
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.probe.is_some()
            && let State::Open { probing, .. } = &mut *self.breaker.lock()
        {
            *probing = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outage() -> Outage {
        Outage("away".into())
    }

    fn work(breaker: &Arc<Breaker>) -> Permit {
        match breaker.turn() {
            Turn::Work(permit) => permit,
            Turn::Wait(wait) => panic!("wait {wait:?}"),
        }
    }

    fn wait(breaker: &Arc<Breaker>) -> Duration {
        match breaker.turn() {
            Turn::Wait(wait) => wait,
            Turn::Work(_) => panic!("the breaker is not open"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_small_batch_at_a_time_finds_out_whether_it_is_back() {
        let breaker = Arc::new(Breaker::default());
        let (first, second) = (work(&breaker), work(&breaker));
        assert_eq!(first.claims_max(2_000), 2_000);
        first.failed(&outage());
        assert!(second.is_overtaken());
        // The waits double from half a second to five, each shortened by up to half.
        let mut late = Some(second);
        let waits = [500, 1_000, 2_000, 4_000, 5_000, 5_000];
        for (whole_ms, claims) in waits.into_iter().zip([16, 8, 4, 2, 1, 1]) {
            let left = wait(&breaker);
            let range = whole_ms / 2..=whole_ms;
            assert!(
                range.contains(&(left.as_millis() as u64)),
                "{left:?} in {range:?}"
            );
            // Those that were under way neither lengthen the outage nor end it.
            if let Some(late) = late.take() {
                late.failed(&outage());
            }
            tokio::time::advance(left).await;
            let probe = work(&breaker);
            assert_eq!(probe.claims_max(2_000), claims);
            assert_eq!(wait(&breaker), LOOK_AGAIN, "one probe at a time");
            let rest = probe.rest().unwrap();
            probe.failed(&outage());
            assert!(rest >= wait(&breaker), "the next probe is made with others");
        }
        tokio::time::advance(wait(&breaker)).await;
        drop(work(&breaker)); // no claims: the next one tries
        work(&breaker).worked();
        let (one, two) = (work(&breaker), work(&breaker));
        assert!(!one.is_probe() && !two.is_probe());
    }

    #[tokio::test(start_paused = true)]
    async fn a_success_from_before_the_outage_does_not_end_it() {
        let breaker = Arc::new(Breaker::default());
        let (fails, works) = (work(&breaker), work(&breaker));
        fails.failed(&outage());
        works.worked();
        wait(&breaker);
    }
}
