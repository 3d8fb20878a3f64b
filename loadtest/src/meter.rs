use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use hdrhistogram::Histogram;
use hongbao::client::{Attempt, outcome_name};
use hongbao::wire::Outcome;
use tokio::time::Instant;

/// Outcome codes are below 50; one that is not is counted under the last.
const CODES: usize = 64;
/// Sessions record into their own part, so that threads rarely wait for each other.
const SHARDS: usize = 16;
/// Grabs are counted in slots of 100 ms, for ten minutes; what comes later is counted in the last.
const SLOT_MS: u64 = 100;
const SLOTS: usize = 6_000;
const SLOTS_PER_SECOND: usize = 10;
/// Longest latency that is told apart, µs.
const LATENCY_MAX_US: u64 = 120_000_000;

/// Counts and latencies of a run, written by every session.
pub struct Meter {
    began: Instant,
    outcomes: [AtomicU64; CODES],
    unanswered: AtomicU64,
    /// By the time of the reply.
    slots: Vec<AtomicU32>,
    shards: Vec<Mutex<Histogram<u64>>>,
    total: Mutex<Histogram<u64>>,
    /// Sessions that are ready.
    pub gathered: AtomicU64,
    pub winners: AtomicU64,
    /// Sessions that have tapped their last.
    pub decided: AtomicU64,
    /// Connections that were lost and made again.
    pub reconnects: AtomicU64,
}

/// Three figures of a distribution, ms.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize)]
pub struct Spread {
    pub p50: f64,
    pub p99: f64,
    pub max: f64,
}

/// How many grabs a second.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Rate {
    /// From the first reply to the last.
    pub mean: f64,
    /// In the busiest second.
    pub peak: u64,
    pub over: Duration,
}

impl Meter {
    pub fn new() -> Meter {
        let shards = (0..SHARDS).map(|_| Mutex::new(histogram_us())).collect();
        Meter {
            began: Instant::now(),
            outcomes: [const { AtomicU64::new(0) }; CODES],
            unanswered: AtomicU64::new(0),
            slots: (0..SLOTS).map(|_| AtomicU32::new(0)).collect(),
            shards,
            total: Mutex::new(histogram_us()),
            gathered: AtomicU64::new(0),
            winners: AtomicU64::new(0),
            decided: AtomicU64::new(0),
            reconnects: AtomicU64::new(0),
        }
    }

    /// One grab of session `number`.
    pub fn record(&self, number: u32, attempt: &Attempt<'_>) {
        let Ok(reply) = attempt.result else {
            self.unanswered.fetch_add(1, Relaxed);
            return;
        };
        let code = (reply.code.max(0) as usize).min(CODES - 1);
        self.outcomes[code].fetch_add(1, Relaxed);
        self.slots[self.slot_now()].fetch_add(1, Relaxed);
        let us = attempt.elapsed.as_micros() as u64;
        lock(&self.shards[number as usize % SHARDS]).saturating_record(us);
    }

    pub fn count(&self, outcome: Outcome) -> u64 {
        self.outcomes[outcome as usize].load(Relaxed)
    }

    /// Names and counts of the outcomes that occurred, in the order of their codes.
    pub fn outcomes(&self) -> Vec<(String, u64)> {
        let counted = self.outcomes.iter().enumerate();
        counted
            .map(|(code, count)| (code, count.load(Relaxed)))
            .filter(|(_, count)| *count > 0)
            .map(|(code, count)| (outcome_name(code as i32).into_owned(), count))
            .collect()
    }

    /// Grabs whose reply never came.
    pub fn unanswered(&self) -> u64 {
        self.unanswered.load(Relaxed)
    }

    /// Replies in the last full second.
    pub fn last_second(&self) -> u64 {
        let now = self.slot_now();
        let slots = &self.slots[now.saturating_sub(SLOTS_PER_SECOND)..now];
        slots.iter().map(|slot| u64::from(slot.load(Relaxed))).sum()
    }

    pub fn rate(&self) -> Rate {
        let slots: Vec<u64> = self
            .slots
            .iter()
            .map(|slot| slot.load(Relaxed).into())
            .collect();
        let (Some(first), Some(last)) = (
            slots.iter().position(|count| *count > 0),
            slots.iter().rposition(|count| *count > 0),
        ) else {
            return Rate::default();
        };
        let busy = &slots[first..=last];
        let over_ms = busy.len() as u64 * SLOT_MS;
        let peak = busy.windows(SLOTS_PER_SECOND.min(busy.len()));
        Rate {
            mean: busy.iter().sum::<u64>() as f64 * 1_000.0 / over_ms as f64,
            peak: peak.map(|second| second.iter().sum()).max().unwrap_or(0),
            over: Duration::from_millis(over_ms),
        }
    }

    /// Latencies since the last call.
    pub fn recent_latency(&self) -> Spread {
        let mut recent = histogram_us();
        for shard in &self.shards {
            let mut shard = lock(shard);
            if !shard.is_empty() {
                let _ = recent.add(&*shard); // the same bounds, so it fits
                shard.reset();
            }
        }
        let _ = lock(&self.total).add(&recent);
        spread_ms(&recent)
    }

    /// Latencies of the whole run.
    pub fn latency(&self) -> Spread {
        self.recent_latency();
        spread_ms(&lock(&self.total))
    }

    fn slot_now(&self) -> usize {
        let slot = self.began.elapsed().as_millis() as u64 / SLOT_MS;
        (slot as usize).min(SLOTS - 1)
    }
}

/// 1 µs to two minutes, three digits.
pub fn histogram_us() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_MAX_US, 3).expect("these bounds are allowed")
}

/// All zero when nothing was recorded.
pub fn spread_ms(histogram: &Histogram<u64>) -> Spread {
    if histogram.is_empty() {
        return Spread::default();
    }
    // A quantile names the upper end of its class, which may lie above the largest value.
    let ms = |us: u64| us.min(histogram.max()) as f64 / 1_000.0;
    Spread {
        p50: ms(histogram.value_at_quantile(0.5)),
        p99: ms(histogram.value_at_quantile(0.99)),
        max: ms(histogram.max()),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().expect("nothing panics while it records")
}

#[cfg(test)]
mod tests {
    use super::*;
    use hongbao::client::{ClientError, GrabReply};
    use hongbao::rain::RainId;

    fn record(meter: &Meter, code: i32, elapsed_ms: u64) {
        let reply = GrabReply {
            code,
            rain: RainId::new(1).unwrap(),
            packet: None,
            retry_after: Duration::ZERO,
        };
        meter.record(
            code as u32,
            &Attempt {
                sent: Instant::now(),
                elapsed: Duration::from_millis(elapsed_ms),
                result: &Ok(reply),
            },
        );
    }

    #[tokio::test(start_paused = true)]
    async fn replies_are_counted_by_outcome_and_by_second() {
        let meter = Meter::new();
        for second in 0..3 {
            for n in 0..10 * (second + 1) {
                record(&meter, if n == 0 { 10 } else { 20 }, 5);
            }
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!(meter.last_second(), 30);
        assert_eq!(
            meter.outcomes(),
            [("WON".to_owned(), 3), ("MISSED".to_owned(), 57)]
        );
        let rate = meter.rate();
        assert_eq!(rate.peak, 30);
        assert_eq!(rate.over, Duration::from_millis(2_100));
    }

    #[tokio::test]
    async fn latencies_of_all_shards_come_together_and_losses_do_not_count() {
        let meter = Meter::new();
        for code in [10, 11, 12, 20] {
            record(&meter, code, 10);
        }
        record(&meter, 13, 2_000);
        meter.record(
            1,
            &Attempt {
                sent: Instant::now(),
                elapsed: Duration::from_secs(60),
                result: &Err(ClientError::ConnectionLost),
            },
        );
        let latency = meter.latency();
        assert!((9.99..10.01).contains(&latency.p50), "{latency:?}");
        assert!((1_990.0..2_010.0).contains(&latency.max), "{latency:?}");
        assert_eq!(meter.latency(), latency, "reading changes nothing");
        assert_eq!(meter.unanswered(), 1);
    }
}
