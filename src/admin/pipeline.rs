//! The pipeline of numbers: how many claims wait, are leased, retry or are dead, how old the oldest is, how fast credits go.
//!
//! Looked at once a second by every process that serves the admin API; `/metrics` and `GET /v1/pipeline` show the last look.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::State;
use futures_util::{Stream, StreamExt};
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::{Admin, Shared};
use crate::rain::{RainId, State as RainState};
use crate::store::StoreError;
use crate::store::bucket::{Bucket, Census};

const EVERY: Duration = Duration::from_secs(1);
/// Buckets asked at the same time.
const AT_ONCE: usize = 32;

#[derive(Clone, Debug, Default, Serialize)]
pub struct Numbers {
    pub claims_waiting: u64,
    pub leased: u64,
    pub retrying: u64,
    pub dead: u64,
    /// How long the oldest claim has been seen on its way, seconds. A process that has just started knows only of the time since.
    pub oldest_seconds: f64,
    /// Claims settled per second since the look before.
    pub credits_per_second: f64,
    pub rains: Vec<RainNumbers>,
    /// Buckets in which nothing is given until they have been compared with the ledger.
    pub suspects: Vec<Suspect>,
    /// Nodes or ledger that did not answer; their numbers are missing.
    pub problems: Vec<String>,
}

#[derive(Clone, Debug, Serialize)]
pub struct RainNumbers {
    pub rain_id: RainId,
    pub state: RainState,
    #[serde(flatten)]
    pub census: Census,
}

#[derive(Clone, Debug, Serialize)]
pub struct Suspect {
    pub rain_id: RainId,
    pub bucket: usize,
    pub node: String,
}

/// What the looks remember from one to the next.
#[derive(Default)]
struct Memory {
    /// Since when a claim has been the oldest of its kind in its bucket: at most three a bucket.
    first_seen: HashMap<String, Instant>,
    /// Claims settled in all rains at the last look.
    settled: Option<(Instant, HashMap<RainId, u64>)>,
}

#[derive(Default)]
pub struct Pipeline {
    last: Mutex<Numbers>,
}

pub async fn show(State(admin): Shared) -> Json<Numbers> {
    Json(
        admin
            .pipeline
            .last
            .lock()
            .expect("no panic under this lock")
            .clone(),
    )
}

/// Looks until `stop`.
pub async fn watch(admin: Arc<Admin>, stop: CancellationToken) {
    let mut memory = Memory::default();
    let mut look = tokio::time::interval(EVERY);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = look.tick() => {}
        }
        let Some(numbers) = stop.run_until_cancelled(memory.look(&admin)).await else {
            return;
        };
        let metrics = crate::metrics::get();
        metrics.claims_waiting.set(numbers.claims_waiting as f64);
        metrics.claims_in_lease.set(numbers.leased as f64);
        metrics.claims_retrying.set(numbers.retrying as f64);
        metrics.claims_dead.set(numbers.dead as f64);
        metrics.claim_oldest_seconds.set(numbers.oldest_seconds);
        metrics.packets_left.set(
            numbers
                .rains
                .iter()
                .map(|rain| rain.census.pool)
                .sum::<u64>() as f64,
        );
        metrics.pipeline_problems.set(numbers.problems.len() as f64);
        for state in RainState::UNFINISHED {
            let in_state = numbers.rains.iter().filter(|rain| rain.state == state);
            metrics.rains(state, in_state.count());
        }
        *admin
            .pipeline
            .last
            .lock()
            .expect("no panic under this lock") = numbers;
    }
}

impl Memory {
    async fn look(&mut self, admin: &Admin) -> Numbers {
        let mut numbers = Numbers::default();
        let rains = match admin.ledger.unfinished_rains().await {
            Ok(rains) => rains,
            Err(error) => {
                numbers.problems.push(error.to_string());
                return numbers;
            }
        };
        let now = Instant::now();
        let mut seen = HashMap::new();
        let mut settled = HashMap::new();
        for rain in rains.iter().filter(|rain| rain.parts.first().loaded) {
            let buckets = admin.store.buckets(rain);
            let chunks = Some(rain.parts.loaded_chunks());
            let mut looks = looks_at(&buckets, chunks).zip(futures_util::stream::iter(0..));
            let mut census = Census::default();
            while let Some((look, number)) = looks.next().await {
                match look {
                    Ok(look) => {
                        census = census.plus(look.census);
                        if look.suspect {
                            let bucket: &Bucket = &buckets[number];
                            let node = admin.store.node_of(&bucket.tag);
                            numbers.suspects.push(Suspect {
                                rain_id: rain.id,
                                bucket: number,
                                node: admin.store.link(node).name(),
                            });
                        }
                        for claim in look.oldest {
                            let since = self.first_seen.get(&claim).copied().unwrap_or(now);
                            seen.insert(claim, since);
                        }
                    }
                    Err(error) => numbers.problems.push(error.to_string()),
                }
            }
            settled.insert(
                rain.id,
                census
                    .winners
                    .saturating_sub(census.unsettled() + census.dead),
            );
            numbers.claims_waiting += census.claims_waiting;
            numbers.leased += census.leased;
            numbers.retrying += census.retrying;
            numbers.dead += census.dead;
            numbers.rains.push(RainNumbers {
                rain_id: rain.id,
                state: rain.state,
                census,
            });
        }
        let age = |since: &Instant| (now - *since).as_secs_f64();
        numbers.oldest_seconds = seen.values().map(age).fold(0.0, f64::max);
        numbers.credits_per_second = self.rate(now, &settled);
        self.first_seen = seen;
        self.settled = Some((now, settled));
        numbers
    }

    fn rate(&self, now: Instant, settled: &HashMap<RainId, u64>) -> f64 {
        let Some((then, before)) = &self.settled else {
            return 0.0;
        };
        let more = |(rain, count): (&RainId, &u64)| {
            count.saturating_sub(before.get(rain).copied().unwrap_or(*count))
        };
        settled.iter().map(more).sum::<u64>() as f64 / (now - *then).as_secs_f64().max(0.001)
    }
}

/// What is seen of a bucket.
pub(super) struct Look {
    pub census: Census,
    /// Claims: waiting, leased, retrying, the oldest of each.
    pub oldest: Vec<String>,
    pub suspect: bool,
}

/// Looks at buckets of a rain, in their order, [`AT_ONCE`] at the same time. `chunks` is how many the rain has; `None` where nothing has been loaded yet or all of it may have expired: then nothing is suspect.
pub(super) fn looks_at(
    buckets: &[Bucket],
    chunks: Option<u32>,
) -> impl Stream<Item = Result<Look, StoreError>> + Send {
    let looks: Vec<_> = buckets
        .iter()
        .map(|bucket| look_at(bucket, chunks))
        .collect();
    futures_util::stream::iter(looks).buffered(AT_ONCE)
}

async fn look_at(bucket: &Bucket, chunks: Option<u32>) -> Result<Look, StoreError> {
    let (census, oldest) = match bucket.untouched().await? {
        Some(census) => (census, vec![]),
        None => futures_util::try_join!(bucket.census(), bucket.oldest_claims())?,
    };
    Ok(Look {
        census,
        oldest,
        suspect: match chunks {
            Some(chunks) => bucket.is_suspect(chunks).await?,
            None => false,
        },
    })
}
