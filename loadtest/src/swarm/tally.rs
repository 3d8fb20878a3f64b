use std::time::SystemTime;

use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Serializer, V2Serializer};

use crate::meter::histogram_us;

/// Outcome codes are below 50; one that is not is counted under the last.
const CODES: usize = 64;
/// A request that was sent this much after its planned instant counts as late: the generator could not keep up, ns.
pub const LATE: u64 = 5_000_000;
/// Of what went wrong, so many examples are kept.
const FAULTS_MAX: usize = 5;

/// One stretch of a run, for charts.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct Slot {
    /// Where it begins, seconds from the start.
    pub at_s: f64,
    pub planned: u64,
    pub answered: u64,
    pub dropped: u64,
    pub late: u64,
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub max_ms: f64,
    /// All of them, as they stand in an HDR log.
    #[serde(skip)]
    pub hdr: Vec<u8>,
}

/// Cuts a run into slots.
struct Series {
    length: u64,
    current: Slot,
    begins: u64,
    latencies: Histogram<u64>,
    done: Vec<Slot>,
    /// Somebody hears of some slots as of one.
    line: Slot,
    line_latencies: Histogram<u64>,
    slots_a_line: usize,
    line_slots: usize,
    told_slots: usize,
    told: Box<dyn FnMut(&Slot)>,
}

/// What was counted in a run. Times are ns since the swarm began.
pub struct Tally {
    start: u64,
    end: Option<u64>,
    /// When the start was, by the clock on the wall.
    pub began: SystemTime,
    /// When the last answer came; 0 when none did.
    last_answer: u64,
    pub sent: u64,
    /// All of them, also those of the warm-up and after the end.
    pub answered: u64,
    /// Answered between start and end.
    pub counted: u64,
    outcomes: [u64; CODES],
    /// From the planned instant, µs.
    pub latencies: Histogram<u64>,
    /// Of pushes, from the gateway's sending, µs.
    pub push_lags: Histogram<u64>,
    /// Arrivals that found no connection free.
    pub dropped: u64,
    /// Sent more than [`LATE`] after their instant.
    pub late: u64,
    pub unanswered: u64,
    /// Connections that never became ready.
    pub failed: u64,
    /// Connections that ended although nobody asked them to.
    pub lost: u64,
    /// Pushes that are not asked about.
    pub asides: u64,
    pub faults: Vec<String>,
    series: Option<Series>,
}

impl Tally {
    pub fn new(start: u64) -> Tally {
        Tally {
            start,
            end: None,
            began: SystemTime::now(),
            last_answer: 0,
            sent: 0,
            answered: 0,
            counted: 0,
            outcomes: [0; CODES],
            latencies: histogram_us(),
            push_lags: histogram_us(),
            dropped: 0,
            late: 0,
            unanswered: 0,
            failed: 0,
            lost: 0,
            asides: 0,
            faults: vec![],
            series: None,
        }
    }

    /// Keeps slots of `length_ms` too, and tells of each `slots_a_line` of them as of one when they are over.
    pub fn with_series(
        mut self,
        length_ms: u64,
        slots_a_line: usize,
        told: Box<dyn FnMut(&Slot)>,
    ) -> Tally {
        self.series = Some(Series {
            length: length_ms * 1_000_000,
            current: Slot::default(),
            begins: self.start,
            latencies: histogram_us(),
            done: vec![],
            line: Slot::default(),
            line_latencies: histogram_us(),
            slots_a_line,
            line_slots: 0,
            told_slots: 0,
            told,
        });
        self
    }

    pub fn planned(&mut self, due: u64, now: u64) {
        let late = now - due > LATE;
        self.late += u64::from(late);
        if let Some(series) = &mut self.series {
            series.roll(now);
            series.current.planned += 1;
            series.current.late += u64::from(late);
        }
    }

    pub fn dropped(&mut self, _due: u64) {
        self.dropped += 1;
        if let Some(series) = &mut self.series {
            series.current.dropped += 1;
        }
    }

    pub fn record(&mut self, due: u64, now: u64, code: u8) {
        self.answered += 1;
        self.last_answer = now;
        self.outcomes[usize::from(code).min(CODES - 1)] += 1;
        if now < self.start {
            return;
        }
        self.counted += u64::from(self.end.is_none_or(|end| now < end));
        let us = now.saturating_sub(due) / 1_000;
        self.latencies.saturating_record(us.max(1));
        if let Some(series) = &mut self.series {
            series.roll(now);
            series.current.answered += 1;
            series.latencies.saturating_record(us.max(1));
        }
    }

    pub fn push(&mut self, lag_ms: u64) {
        self.push_lags
            .saturating_record(lag_ms.saturating_mul(1_000).max(1));
    }

    pub fn fault(&mut self, problem: String) {
        if self.faults.len() < FAULTS_MAX {
            self.faults.push(problem);
        }
    }

    /// What is answered from now on is no part of the rate.
    pub fn end(&mut self, now: u64) {
        self.end = Some(now);
    }

    pub fn seconds(&self) -> f64 {
        let end = self.end.unwrap_or(self.start);
        end.saturating_sub(self.start) as f64 / 1e9
    }

    pub fn seconds_to_last_answer(&self) -> f64 {
        self.last_answer.saturating_sub(self.start) as f64 / 1e9
    }

    /// Answers a second, from start to end.
    pub fn per_second(&self) -> f64 {
        if self.counted == 0 {
            return 0.0;
        }
        self.counted as f64 / self.seconds()
    }

    pub fn outcome(&self, code: i32) -> u64 {
        self.outcomes.get(code as usize).copied().unwrap_or(0)
    }

    /// Codes that occurred, with their counts.
    pub fn outcomes(&self) -> impl Iterator<Item = (i32, u64)> {
        let counted = self.outcomes.iter().enumerate();
        counted
            .filter(|(_, count)| **count > 0)
            .map(|(code, count)| (code as i32, *count))
    }

    pub fn quantile_ms(&self, quantile: f64) -> f64 {
        quantile_ms(&self.latencies, quantile)
    }

    /// The slots, the last one too.
    pub fn slots(&mut self) -> Vec<Slot> {
        let Some(series) = &mut self.series else {
            return vec![];
        };
        if series.current.planned + series.current.answered > 0 {
            series.close();
        }
        series.tell_line();
        series.done.clone()
    }
}

impl Series {
    fn roll(&mut self, now: u64) {
        while now >= self.begins + self.length {
            self.close();
        }
    }

    fn close(&mut self) {
        let at_s = self.done.len() as f64 * self.length as f64 / 1e9;
        let slot = std::mem::take(&mut self.current).closed(at_s, &self.latencies);
        self.tell(&slot);
        self.done.push(slot);
        self.latencies.reset();
        self.begins += self.length;
    }

    fn tell(&mut self, slot: &Slot) {
        self.line.planned += slot.planned;
        self.line.answered += slot.answered;
        self.line.dropped += slot.dropped;
        self.line.late += slot.late;
        let _ = self.line_latencies.add(&self.latencies); // the same bounds, so it fits
        self.line_slots += 1;
        if self.line_slots == self.slots_a_line {
            self.tell_line();
        }
    }

    /// What has been gathered since the last line, if anything.
    fn tell_line(&mut self) {
        if self.line_slots > 0 {
            self.told_slots += self.line_slots;
            let first = self.told_slots - self.line_slots;
            let at_s = first as f64 * self.length as f64 / 1e9;
            let line = std::mem::take(&mut self.line).with_latencies(at_s, &self.line_latencies);
            (self.told)(&line);
            self.line_latencies.reset();
            self.line_slots = 0;
        }
    }
}

impl Slot {
    fn with_latencies(mut self, at_s: f64, latencies: &Histogram<u64>) -> Slot {
        self.at_s = at_s;
        self.p50_ms = quantile_ms(latencies, 0.5);
        self.p99_ms = quantile_ms(latencies, 0.99);
        self.max_ms = quantile_ms(latencies, 1.0);
        self
    }

    /// The slot is over, and these are its latencies (µs).
    pub fn closed(self, at_s: f64, latencies: &Histogram<u64>) -> Slot {
        let mut slot = self.with_latencies(at_s, latencies);
        V2Serializer::new()
            .serialize(latencies, &mut slot.hdr)
            .expect("memory does not fail");
        slot
    }
}

/// 0 when nothing was recorded.
pub fn quantile_ms(latencies: &Histogram<u64>, quantile: f64) -> f64 {
    if latencies.is_empty() {
        return 0.0;
    }
    // A quantile names the upper end of its class, which may lie above the largest value.
    let us = latencies.value_at_quantile(quantile).min(latencies.max());
    us as f64 / 1_000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_latency_counts_from_the_planned_instant() {
        let mut tally = Tally::new(0);
        tally.planned(0, 40 * MS);
        tally.record(0, 50 * MS, 10);
        assert!((49.9..50.1).contains(&tally.quantile_ms(0.5)));
        assert_eq!((tally.late, tally.outcome(10)), (1, 1));
    }

    #[test]
    fn only_what_is_answered_between_start_and_end_makes_the_rate() {
        let mut tally = Tally::new(1_000 * MS);
        tally.record(0, 500 * MS, 10);
        tally.record(900 * MS, 1_500 * MS, 10);
        tally.end(2_000 * MS);
        tally.record(1_900 * MS, 2_001 * MS, 10);
        assert_eq!((tally.answered, tally.counted), (3, 1));
        assert_eq!(tally.per_second(), 1.0);
    }

    #[test]
    fn slots_hold_what_happened_in_them() {
        let told = std::rc::Rc::new(std::cell::Cell::new(0));
        let count = told.clone();
        let tell = Box::new(move |line: &Slot| count.set(count.get() * 10 + line.answered));
        let mut tally = Tally::new(0).with_series(100, 2, tell);
        for at in [10, 20, 110, 350] {
            tally.planned(at * MS, at * MS);
            tally.record(at * MS, (at + 5) * MS, 10);
        }
        assert_eq!(told.get(), 3, "one line, of the first two slots");
        let slots = tally.slots();
        assert_eq!(told.get(), 31);
        let answered: Vec<u64> = slots.iter().map(|slot| slot.answered).collect();
        assert_eq!(answered, [2, 1, 0, 1]);
        assert_eq!(slots[3].at_s, 0.3);
        assert!((4.9..5.1).contains(&slots[0].p99_ms));
        assert_eq!(slots[2].p99_ms, 0.0);
    }
}
