//! Which bucket is looked at next. Every rain gets its turn, so that a big one does not starve a small one; buckets that had nothing rest.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::broadcast::{self, error::TryRecvError};

use super::rests::{LIST_EVERY, Pace, Rests, Seen};
use crate::clock::now_ms;
use crate::ledger::Ledger;
use crate::rain::{Rain, RainId, State};
use crate::store::Store;
use crate::store::bucket::Bucket;

pub struct Rota {
    store: Arc<Store>,
    ledger: Ledger,
    /// Rains that have changed.
    news: broadcast::Receiver<RainId>,
    listed: Option<Instant>,
    rains: Vec<Turn>,
    rests: Rests,
    /// Settlers start at different rains.
    turn: usize,
}

struct Turn {
    rain: Rain,
    buckets: Vec<Bucket>,
    next: usize,
}

impl Rota {
    pub fn new(
        store: Arc<Store>,
        ledger: Ledger,
        news: broadcast::Receiver<RainId>,
        number: usize,
    ) -> Rota {
        Rota {
            store,
            ledger,
            news,
            listed: None,
            rains: vec![],
            rests: Rests::default(),
            turn: number,
        }
    }

    /// Buckets to lease from: first one bucket of each rain, then the second of those that have one, and so on. Each time another rain begins.
    pub async fn order(&mut self) -> Vec<Bucket> {
        self.hear();
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
        // By node.
        let mut processes: HashMap<usize, Option<String>> = HashMap::new();
        let mut order = vec![];
        for depth in 0..deepest {
            for step in 0..count {
                let rain = &self.rains[(self.turn + step) % count];
                if depth < rain.buckets.len() {
                    let bucket = &rain.buckets[(rain.next + depth) % rain.buckets.len()];
                    let node = bucket.route.nodes.owner(bucket.route.slot);
                    let process = processes.entry(node).or_insert_with(|| process(bucket));
                    if !self.rests.has(&bucket.tag, process.as_deref(), now) {
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

    /// A bucket was looked at, with `process` at the other end as far as was known before.
    pub fn looked(
        &mut self,
        bucket: &Bucket,
        process: Option<String>,
        seen: Seen,
        idle_wait: Duration,
    ) {
        let of_rain = |turn: &&Turn| turn.rain.id == bucket.tag.rain;
        let rain = self.rains.iter().find(of_rain).map(|turn| &turn.rain);
        let pace = Pace::of(rain, idle_wait, now_ms());
        self.rests
            .looked(bucket.tag, process, seen, pace, Instant::now());
    }

    /// What has changed meanwhile.
    fn hear(&mut self) {
        loop {
            match self.news.try_recv() {
                Ok(rain) => self.rests.wake(|tag| tag.rain == rain),
                Err(TryRecvError::Lagged(_)) => self.rests.wake(|_| true),
                Err(TryRecvError::Empty | TryRecvError::Closed) => return,
            }
            self.listed = None;
        }
    }

    async fn list(&mut self) {
        match self.ledger.unfinished_rains().await {
            Ok(rains) => {
                let loaded = rains.into_iter().filter(|r| r.state != State::Created);
                let listed: Vec<Turn> = loaded
                    .map(|rain| Turn {
                        buckets: self.store.buckets(&rain),
                        rain,
                        next: 0,
                    })
                    .collect();
                let key = |turn: &Turn| (turn.rain.id, turn.rain.version);
                let known: HashSet<(RainId, i64)> = self.rains.iter().map(key).collect();
                let same: HashSet<RainId> = listed
                    .iter()
                    .filter(|turn| known.contains(&key(turn)))
                    .map(|turn| turn.rain.id)
                    .collect();
                // Those that have changed, and those that are gone.
                self.rests.wake(|tag| !same.contains(&tag.rain));
                self.rains = listed;
                self.listed = Some(Instant::now());
            }
            Err(error) => {
                tracing::debug!(%error, "rains cannot be listed now; those known are settled on")
            }
        }
    }
}

/// The one that answers for a bucket now, as far as is known without asking.
pub fn process(bucket: &Bucket) -> Option<String> {
    let peer = bucket.route.link().peer();
    peer.map(|peer| peer.run_id.clone())
}
