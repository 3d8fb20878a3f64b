//! Which bucket is looked at next. Every rain gets its turn, so that a big one does not starve a small one; buckets that had nothing are
//! looked at less often.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::ledger::Ledger;
use crate::rain::State;
use crate::store::Store;
use crate::store::bucket::Bucket;
use crate::store::keys::Tag;

/// How often the rains are listed again.
const LIST_EVERY: Duration = Duration::from_millis(250);
/// A rain that is not open gets no new claims: late ones are retries and expired leases.
const QUIET_WAIT: Duration = Duration::from_millis(500);

pub struct Rota {
    store: Arc<Store>,
    ledger: Ledger,
    listed: Option<Instant>,
    rains: Vec<Turn>,
    /// When a bucket that had nothing is looked at again.
    rests: HashMap<Tag, Instant>,
    /// Settlers start at different rains.
    turn: usize,
}

struct Turn {
    buckets: Vec<Bucket>,
    next: usize,
    wait: Duration,
}

impl Rota {
    pub fn new(store: Arc<Store>, ledger: Ledger, number: usize) -> Rota {
        Rota {
            store,
            ledger,
            listed: None,
            rains: vec![],
            rests: HashMap::new(),
            turn: number,
        }
    }

    /// Buckets to lease from: first one bucket of each rain, then the second of those that have one, and so on. Each time another rain begins.
    pub async fn order(&mut self) -> Vec<Bucket> {
        if self.listed.is_none_or(|at| at.elapsed() >= LIST_EVERY) {
            self.list().await;
        }
        let now = Instant::now();
        let count = self.rains.len();
        let deepest = self
            .rains
            .iter()
            .map(|rain| rain.buckets.len())
            .max()
            .unwrap_or(0);
        let mut order = vec![];
        for depth in 0..deepest {
            for step in 0..count {
                let rain = &self.rains[(self.turn + step) % count];
                if depth < rain.buckets.len() {
                    let bucket = &rain.buckets[(rain.next + depth) % rain.buckets.len()];
                    if self
                        .rests
                        .get(&bucket.tag)
                        .is_none_or(|until| *until <= now)
                    {
                        order.push(bucket.clone());
                    }
                }
            }
        }
        self.turn = self.turn.wrapping_add(1);
        for rain in &mut self.rains {
            rain.next = rain.next.wrapping_add(1);
        }
        order
    }

    /// A bucket was looked at; `found` tells whether it had claims. One that had none rests a while, at least `idle_wait`.
    pub fn looked(&mut self, tag: &Tag, found: bool, idle_wait: Duration) {
        if found {
            self.rests.remove(tag);
            return;
        }
        let of_rain = |rain: &&Turn| {
            rain.buckets
                .first()
                .is_some_and(|bucket| bucket.tag.rain == tag.rain)
        };
        let wait = self
            .rains
            .iter()
            .find(of_rain)
            .map_or(QUIET_WAIT, |rain| rain.wait.max(idle_wait));
        self.rests.insert(*tag, Instant::now() + wait);
    }

    async fn list(&mut self) {
        match self.ledger.unfinished_rains().await {
            Ok(rains) => {
                let turn = |rain: &crate::rain::Rain| Turn {
                    buckets: self.store.buckets(rain),
                    next: 0,
                    wait: match rain.state {
                        State::Ready | State::Open | State::Paused => Duration::ZERO,
                        State::Created | State::Closed | State::Refunded | State::Finished => {
                            QUIET_WAIT
                        }
                    },
                };
                let loaded = rains.iter().filter(|rain| rain.state != State::Created);
                self.rains = loaded.map(turn).collect();
                let rains = &self.rains;
                self.rests.retain(|tag, _| {
                    rains
                        .iter()
                        .any(|rain| rain.buckets.iter().any(|b| b.tag == *tag))
                });
                self.listed = Some(Instant::now());
            }
            Err(error) => {
                tracing::debug!(%error, "rains cannot be listed now; those known are settled on")
            }
        }
    }
}
