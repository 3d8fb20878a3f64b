//! One look at a rain: where its packets are, by bucket and node, and how fast they go.

use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use futures_util::StreamExt;
use serde::Serialize;

use super::super::Admin;
use super::super::pipeline::looks_at;
use crate::clock::now_ms;
use crate::ledger::LedgerError;
use crate::rain::{Cents, Rain, RainId, State};
use crate::store::bucket::Census;
use crate::tally::{self, Latencies};

/// What an event of the stream says.
#[derive(Clone, Debug, Serialize)]
pub struct Numbers {
    pub rain_id: RainId,
    /// When the look was taken, ms since 1970.
    pub at_ms: i64,
    pub state: State,
    pub sold_out: bool,
    pub opens_at_ms: Option<i64>,
    pub closes_at_ms: Option<i64>,
    /// With all top-ups.
    pub packets: u32,
    pub total_cents: Cents,
    /// In pools, and as claims, where nodes answered.
    #[serde(flatten)]
    pub census: Census,
    pub credited_count: u64,
    pub credited_cents: Cents,
    /// Since the look before, over all gateways and settlers.
    pub wins_per_second: f64,
    pub credits_per_second: f64,
    /// How long the oldest claim has been seen on its way: 0 when none waits.
    pub settle_lag_seconds: f64,
    pub here: Here,
    pub buckets: Vec<BucketNumbers>,
    /// Nodes by name, those that have buckets of the rain.
    pub nodes: BTreeMap<String, NodeNumbers>,
    /// What could not be counted; its numbers are missing above.
    pub problems: Vec<String>,
}

/// Grabs that the process which tells has answered itself, without other gateways.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Here {
    pub grabs_per_second: f64,
    /// Grabs of this rain by outcome since the process knows it.
    pub outcomes: BTreeMap<&'static str, u64>,
    /// Half of the grabs since the look before that went to Redis took so long, or less; null when there were none.
    pub latency_p50_seconds: Option<f64>,
    /// All of them but one in a hundred.
    pub latency_p99_seconds: Option<f64>,
}

#[derive(Clone, Debug, Serialize)]
pub struct BucketNumbers {
    pub bucket: usize,
    pub node: String,
    /// Whether it could be counted.
    pub counted: bool,
    /// Another process loaded it, or it has lost something: grabs there are answered RETRY until it has been compared with the ledger.
    pub suspect: bool,
    #[serde(flatten)]
    pub census: Census,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct NodeNumbers {
    /// Whether all its buckets could be counted.
    pub up: bool,
    pub buckets: usize,
    #[serde(flatten)]
    pub census: Census,
}

impl Numbers {
    /// Why there will be nothing more to see, if so. A rain that is closed lives on for its refund; its claims are what people wait for.
    pub fn over(&self) -> Option<&'static str> {
        match self.state {
            State::Created | State::Ready | State::Open | State::Paused => None,
            State::Finished => Some("finished"),
            State::Closed | State::Refunded => {
                let settled = self.census.unsettled() == 0 && self.problems.is_empty();
                settled.then_some("settled")
            }
        }
    }
}

/// What one look leaves to the next.
#[derive(Default)]
pub struct Memory {
    before: Option<Before>,
    /// Since when a claim has been the oldest of its kind in its bucket.
    first_seen: HashMap<String, Instant>,
}

struct Before {
    at: Instant,
    won: u64,
    credited: u64,
    grabs: u64,
    latencies: Latencies,
}

impl Memory {
    pub async fn look(&mut self, admin: &Admin, id: RainId) -> Result<Numbers, LedgerError> {
        let rain = admin.ledger.rain(id).await?;
        let totals = admin.ledger.rain_totals(id).await?;
        let mut problems = vec![];
        let (buckets, settle_lag_seconds) = self.count(admin, &rain, &mut problems).await;
        let mut nodes: BTreeMap<String, NodeNumbers> = BTreeMap::new();
        let mut census = Census::default();
        for bucket in &buckets {
            census = census.plus(bucket.census);
            let node = nodes.entry(bucket.node.clone()).or_insert(NodeNumbers {
                up: true,
                ..NodeNumbers::default()
            });
            node.up &= bucket.counted;
            node.buckets += 1;
            node.census = node.census.plus(bucket.census);
        }
        let grabs = tally::of(id);
        let now = Before {
            at: Instant::now(),
            won: census.winners,
            credited: totals.credited_count,
            grabs: grabs.iter().map(|(_, count)| count).sum(),
            latencies: Latencies::of(id),
        };
        let latencies = match &self.before {
            Some(before) => now.latencies.since(&before.latencies),
            None => Latencies::default(),
        };
        let within = |part| latencies.quantile(part).map(|took| took.as_secs_f64());
        let rate = |count: fn(&Before) -> u64| {
            self.before.as_ref().map_or(0.0, |before| {
                let seconds = (now.at - before.at).as_secs_f64().max(0.001);
                count(&now).saturating_sub(count(before)) as f64 / seconds
            })
        };
        let numbers = Numbers {
            rain_id: id,
            at_ms: now_ms(),
            state: rain.state,
            sold_out: rain.sold_out,
            opens_at_ms: rain.window.opens_at_ms,
            closes_at_ms: rain.window.closes_at_ms(),
            packets: rain.parts.packets(),
            total_cents: rain.parts.total(),
            census,
            credited_count: totals.credited_count,
            credited_cents: totals.credited,
            wins_per_second: rate(|look| look.won),
            credits_per_second: rate(|look| look.credited),
            settle_lag_seconds,
            here: Here {
                grabs_per_second: rate(|look| look.grabs),
                outcomes: grabs
                    .iter()
                    .map(|(outcome, count)| (outcome.as_str_name(), *count))
                    .collect(),
                latency_p50_seconds: within(0.5),
                latency_p99_seconds: within(0.99),
            },
            buckets,
            nodes,
            problems,
        };
        // A bucket that does not answer would look like packets that come back.
        if numbers.problems.is_empty() {
            self.before = Some(now);
        }
        Ok(numbers)
    }

    /// Every bucket, and how long the oldest claim has been seen.
    async fn count(
        &mut self,
        admin: &Admin,
        rain: &Rain,
        problems: &mut Vec<String>,
    ) -> (Vec<BucketNumbers>, f64) {
        let buckets = admin.store.buckets(rain);
        let there = rain.parts.first().loaded && rain.state != State::Finished;
        let chunks = there.then(|| rain.parts.loaded_chunks());
        let mut looks =
            looks_at(&buckets, chunks).zip(futures_util::stream::iter(buckets.iter().enumerate()));
        let now = Instant::now();
        let (mut counted, mut seen) = (vec![], HashMap::new());
        while let Some((look, (number, bucket))) = looks.next().await {
            let node = admin.store.link(admin.store.node_of(&bucket.tag)).name();
            let (is_counted, suspect, census) = match look {
                Ok(look) => {
                    for claim in look.oldest {
                        let since = self.first_seen.get(&claim).copied().unwrap_or(now);
                        seen.insert(claim, since);
                    }
                    (true, look.suspect, look.census)
                }
                Err(error) => {
                    problems.push(format!("bucket {number} on {node}: {error}"));
                    (false, false, Census::default())
                }
            };
            counted.push(BucketNumbers {
                bucket: number,
                node,
                counted: is_counted,
                suspect,
                census,
            });
        }
        self.first_seen = seen;
        let age = |since: &Instant| (now - *since).as_secs_f64();
        (
            counted,
            self.first_seen.values().map(age).fold(0.0, f64::max),
        )
    }
}
