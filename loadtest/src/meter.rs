use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use hdrhistogram::Histogram;
use hongbao::client::{Attempt, outcome_name};
use hongbao::wire::Outcome;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use crate::record::Mark;
use crate::swarm::tally::Slot;

/// Outcome codes are below 50; one that is not is counted under the last.
const CODES: usize = 64;
/// Sessions record into their own part, so that threads rarely wait for each other.
const SHARDS: usize = 16;
/// Grabs are counted in slots of 100 ms.
const SLOT_MS: u64 = 100;
/// Slots are made when somebody counts there: ten minutes at once, for a week; what comes later is counted in the last.
const SLOTS_AT_ONCE: usize = 6_000;
const STRETCHES: usize = 7 * 24 * 6;
const SLOTS_PER_SECOND: usize = 10;
/// Longest latency that is told apart, µs.
const LATENCY_MAX_US: u64 = 120_000_000;
/// A tap that was sent this much after its planned instant counts as late, and from that instant. What is less is the timer's own grain.
const LATE: Duration = Duration::from_millis(5);

/// Counts and latencies of a run, written by every session.
pub struct Meter {
    began: Instant,
    outcomes: [AtomicU64; CODES],
    unanswered: AtomicU64,
    /// By the time of the reply.
    slots: Slots,
    shards: Vec<Mutex<Histogram<u64>>>,
    total: Mutex<Histogram<u64>>,
    /// Since somebody looked.
    recent: Mutex<Histogram<u64>>,
    /// Since the last slot ended.
    slot: Mutex<Histogram<u64>>,
    planned: AtomicU64,
    late: AtomicU64,
    series: Mutex<Series>,
    /// Sessions that are ready.
    pub gathered: AtomicU64,
    pub winners: AtomicU64,
    /// Sessions that have tapped their last.
    pub decided: AtomicU64,
    /// Connections that were lost and made again.
    pub reconnects: AtomicU64,
    /// People who left for good before they had an answer.
    pub left: AtomicU64,
}

/// Counters by time, which grow with the run.
struct Slots(Vec<OnceLock<Box<[AtomicU32]>>>);

impl Slots {
    fn new() -> Slots {
        Slots((0..STRETCHES).map(|_| OnceLock::new()).collect())
    }

    fn count(&self, slot: usize) {
        let none = || (0..SLOTS_AT_ONCE).map(|_| AtomicU32::new(0)).collect();
        let stretch = self.0[slot / SLOTS_AT_ONCE].get_or_init(none);
        stretch[slot % SLOTS_AT_ONCE].fetch_add(1, Relaxed);
    }

    fn counted(&self, slot: usize) -> u64 {
        let stretch = self.0[slot / SLOTS_AT_ONCE].get();
        stretch.map_or(0, |slots| slots[slot % SLOTS_AT_ONCE].load(Relaxed).into())
    }
}

/// A run cut into slots of equal length, for charts.
#[derive(Default)]
struct Series {
    began: Option<Instant>,
    done: Vec<Slot>,
    /// Of all slots so far.
    planned: u64,
    late: u64,
    marks: Vec<Mark>,
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
            slots: Slots::new(),
            shards,
            total: Mutex::new(histogram_us()),
            recent: Mutex::new(histogram_us()),
            slot: Mutex::new(histogram_us()),
            planned: AtomicU64::new(0),
            late: AtomicU64::new(0),
            series: Mutex::default(),
            gathered: AtomicU64::new(0),
            winners: AtomicU64::new(0),
            decided: AtomicU64::new(0),
            reconnects: AtomicU64::new(0),
            left: AtomicU64::new(0),
        }
    }

    /// The generator has come to a tap that was due at this instant. If that is late, it could not keep up.
    pub fn planned(&self, due: Instant) {
        self.planned.fetch_add(1, Relaxed);
        self.late.fetch_add((due.elapsed() >= LATE).into(), Relaxed);
    }

    /// One grab of session `number`, which was due at this instant. Whatever kept it from being sent is a part of its latency: a generator that
    /// could not keep up, or a connection that had to be made again.
    pub fn record(&self, number: u32, attempt: &Attempt<'_>, due: Instant) {
        let Ok(reply) = attempt.result else {
            self.unanswered.fetch_add(1, Relaxed);
            return;
        };
        let code = (reply.code.max(0) as usize).min(CODES - 1);
        self.outcomes[code].fetch_add(1, Relaxed);
        self.slots.count(self.slot_now());
        let waited = attempt.sent.saturating_duration_since(due);
        let waited = if waited < LATE {
            Duration::ZERO
        } else {
            waited
        };
        let us = (waited + attempt.elapsed).as_micros() as u64;
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
        let slots = now.saturating_sub(SLOTS_PER_SECOND)..now;
        slots.map(|slot| self.slots.counted(slot)).sum()
    }

    pub fn rate(&self) -> Rate {
        let slots: Vec<u64> = (0..=self.slot_now())
            .map(|slot| self.slots.counted(slot))
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
        self.collect();
        let mut recent = lock(&self.recent);
        let spread = spread_ms(&recent);
        recent.reset();
        spread
    }

    /// Latencies of the whole run.
    pub fn latencies(&self) -> Histogram<u64> {
        self.collect();
        lock(&self.total).clone()
    }

    pub fn taps_planned(&self) -> u64 {
        self.planned.load(Relaxed)
    }

    pub fn taps_late(&self) -> u64 {
        self.late.load(Relaxed)
    }

    /// Brings together what the shards have.
    fn collect(&self) {
        let mut new = histogram_us();
        for shard in &self.shards {
            let mut shard = lock(shard);
            if !shard.is_empty() {
                let _ = new.add(&*shard); // the same bounds, so it fits
                shard.reset();
            }
        }
        let _ = lock(&self.total).add(&new);
        let _ = lock(&self.recent).add(&new);
        let _ = lock(&self.slot).add(&new);
    }

    // ---- the run, cut into slots ----

    /// Cuts the run into slots of this length, from now on, until it is aborted.
    pub async fn keep_series(&self, slot: Duration) {
        let began = Instant::now();
        lock(&self.series).began = Some(began);
        let mut ticks = interval_at(began + slot, slot);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst); // slots begin at equal distances, also when this task was late
        loop {
            ticks.tick().await;
            self.close_slot(slot);
        }
    }

    fn close_slot(&self, length: Duration) {
        self.collect();
        let latencies = std::mem::replace(&mut *lock(&self.slot), histogram_us());
        let mut series = lock(&self.series);
        let (planned, late) = (self.taps_planned(), self.taps_late());
        let slot = Slot {
            planned: planned - series.planned,
            late: late - series.late,
            answered: latencies.len(),
            ..Slot::default()
        };
        (series.planned, series.late) = (planned, late);
        let at_s = series.done.len() as f64 * length.as_secs_f64();
        series.done.push(slot.closed(at_s, &latencies));
    }

    /// Something happened just now that a chart should show.
    pub fn mark(&self, what: &'static str) {
        let mut series = lock(&self.series);
        if let Some(began) = series.began {
            let at_s = began.elapsed().as_secs_f64();
            series.marks.push(Mark { at_s, what });
        }
    }

    /// The slots and what happened in them; the last one may be shorter.
    pub fn series(&self, slot: Duration) -> (Vec<Slot>, Vec<Mark>) {
        self.close_slot(slot);
        let series = lock(&self.series);
        (series.done.clone(), series.marks.clone())
    }

    fn slot_now(&self) -> usize {
        let slot = self.began.elapsed().as_millis() as u64 / SLOT_MS;
        (slot as usize).min(STRETCHES * SLOTS_AT_ONCE - 1)
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
        record_due(meter, code, elapsed_ms, Instant::now());
    }

    fn record_due(meter: &Meter, code: i32, elapsed_ms: u64, due: Instant) {
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
            due,
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

    #[tokio::test(start_paused = true)]
    async fn replies_are_told_apart_by_second_in_a_long_run_too() {
        let meter = Meter::new();
        tokio::time::advance(Duration::from_secs(3_590)).await;
        for _ in 0..20 {
            record(&meter, 20, 5);
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!((meter.last_second(), meter.rate().peak), (1, 1));
        assert_eq!(meter.rate().over, Duration::from_millis(19_100));
        tokio::time::advance(Duration::from_secs(30 * 24 * 3_600)).await;
        record(&meter, 20, 5);
        assert_eq!(meter.outcomes(), [("MISSED".to_owned(), 21)]);
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
            Instant::now(),
        );
        let latency = spread_ms(&meter.latencies());
        assert!((9.99..10.01).contains(&latency.p50), "{latency:?}");
        assert!((1_990.0..2_010.0).contains(&latency.max), "{latency:?}");
        assert_eq!(
            spread_ms(&meter.latencies()),
            latency,
            "reading changes nothing"
        );
        assert_eq!(meter.unanswered(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_tap_that_is_sent_late_counts_from_its_planned_instant() {
        let meter = Meter::new();
        let due = Instant::now();
        tokio::time::advance(Duration::from_millis(4)).await;
        meter.planned(due);
        assert_eq!(meter.taps_late(), 0, "the timer's own grain");
        record_due(&meter, 20, 10, due);
        tokio::time::advance(Duration::from_millis(60)).await;
        meter.planned(due);
        assert_eq!((meter.taps_planned(), meter.taps_late()), (2, 1));
        record_due(&meter, 20, 10, due);
        let latency = spread_ms(&meter.latencies());
        assert!((9.99..10.01).contains(&latency.p50), "{latency:?}");
        assert!((73.9..74.1).contains(&latency.max), "{latency:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_run_is_cut_into_slots_of_equal_length() {
        let meter = std::sync::Arc::new(Meter::new());
        let slot = Duration::from_millis(200);
        let keeper = tokio::spawn({
            let meter = meter.clone();
            async move { meter.keep_series(slot).await }
        });
        tokio::time::sleep(Duration::from_millis(50)).await; // of paused time
        meter.planned(Instant::now());
        record(&meter, 10, 30);
        meter.mark("opened");
        tokio::time::sleep(Duration::from_millis(400)).await; // of paused time
        record(&meter, 20, 5);
        keeper.abort();
        let (slots, marks) = meter.series(slot);
        let answered: Vec<u64> = slots.iter().map(|slot| slot.answered).collect();
        assert_eq!(answered, [1, 0, 1]);
        assert_eq!((slots[0].planned, slots[1].planned), (1, 0));
        assert!((29.9..30.1).contains(&slots[0].p99_ms));
        assert_eq!((marks[0].what, marks[0].at_s), ("opened", 0.05));
    }
}
