//! What came of a run of the generator, for people and for machines. The JSON's field names are these; a test pins them.

use std::time::SystemTime;

use hdrhistogram::Histogram;
use hongbao::client::outcome_name;
use serde::{Deserialize, Serialize};

use crate::bound::{Bound, Threshold};
use crate::knee::Trial;
use crate::machine::Machine;
use crate::meter::histogram_us;
use crate::rain::checks::Check;
use crate::swarm::tally::{Slot, Tally, quantile_ms};

/// Changes when a field changes its meaning.
pub const VERSION: u32 = 1;
/// Points of the percentile curve: four for each halving of the part above it.
const CURVE_STEPS: i32 = 4;
const CURVE_HALVINGS: i32 = 20;

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Latency {
    pub mean: f64,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
}

impl Latency {
    pub fn of(histogram: &Histogram<u64>) -> Latency {
        let at = |quantile| quantile_ms(histogram, quantile);
        Latency {
            mean: histogram.mean() / 1_000.0,
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: at(1.0),
        }
    }
}

/// A point of the percentile curve.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Point {
    pub quantile: f64,
    pub ms: f64,
}

/// Something that happened, seconds from the start.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Mark {
    pub at_s: f64,
    pub what: &'static str,
}

/// A count by name; in JSON a map.
pub type Counts = Vec<(String, u64)>;

#[derive(Clone, Debug, Serialize)]
pub struct Record {
    pub version: u32,
    pub scenario: &'static str,
    pub title: String,
    pub seed: u64,
    /// As it was typed, without secrets.
    pub command: String,
    pub machine: Machine,
    pub sessions: usize,
    pub seconds: f64,
    /// Requests, or connections, that were due.
    pub planned: u64,
    pub sent: u64,
    pub answered: u64,
    pub per_second: f64,
    /// Arrivals that found no connection free.
    pub dropped: u64,
    /// Sent more than 5 ms after their instant.
    pub late: u64,
    pub unanswered: u64,
    /// Connections that never became ready.
    pub failed: u64,
    /// Connections that ended although nobody asked them to.
    pub lost: u64,
    #[serde(serialize_with = "as_map")]
    pub outcomes: Counts,
    pub latency_ms: Latency,
    pub curve: Vec<Point>,
    pub series: Vec<Slot>,
    pub marks: Vec<Mark>,
    /// Of `sweep`.
    pub trials: Vec<Trial>,
    pub knee: Option<f64>,
    /// Of `sweep`: the bound that makes the knee, ms.
    pub p99_max: Option<f64>,
    /// Why the search for the knee went no further.
    pub stopped: Option<String>,
    /// More figures, by name.
    #[serde(serialize_with = "as_map")]
    pub figures: Vec<(String, f64)>,
    pub checks: Vec<Check>,
    pub thresholds: Vec<Threshold>,
    /// Examples of what went wrong.
    pub faults: Vec<String>,
    /// More for people to read, with its name.
    #[serde(skip)]
    pub facts: Vec<(&'static str, String)>,
    /// When the run and its first slot began; `None` when it is not known.
    #[serde(skip)]
    pub began: Option<SystemTime>,
    /// For the log of this generator, to be merged with those of others.
    #[serde(skip)]
    pub histogram: Histogram<u64>,
}

pub fn as_map<S: serde::Serializer, V: Serialize>(
    pairs: &[(String, V)],
    to: S,
) -> Result<S::Ok, S::Error> {
    to.collect_map(pairs.iter().map(|(name, value)| (name, value)))
}

/// What the whole came to: the exit code says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Good,
    /// A promise was broken.
    Broken,
    /// Everything is right, and something is slower than it was to be.
    BeyondThreshold,
}

/// What a log says of its run beside the latencies, so that several can be merged.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Totals {
    pub scenario: String,
    pub seed: u64,
    pub sessions: usize,
    pub planned: u64,
    pub sent: u64,
    pub answered: u64,
    pub dropped: u64,
    pub late: u64,
    pub unanswered: u64,
    pub failed: u64,
    pub lost: u64,
    pub outcomes: Counts,
    /// Every check, and what was wrong; empty when it holds.
    pub checks: Vec<(String, String)>,
}

impl Record {
    pub fn new(scenario: &'static str, title: &str, seed: u64, mut tally: Tally) -> Record {
        let series = tally.slots();
        let name = |code: i32| match code {
            0 => "answered".to_owned(),
            code => outcome_name(code).into_owned(),
        };
        Record {
            seconds: tally.seconds(),
            planned: tally.sent + tally.dropped,
            sent: tally.sent,
            answered: tally.answered,
            per_second: tally.per_second(),
            dropped: tally.dropped,
            late: tally.late,
            unanswered: tally.unanswered,
            failed: tally.failed,
            lost: tally.lost,
            outcomes: tally.outcomes().map(|(code, n)| (name(code), n)).collect(),
            series,
            faults: std::mem::take(&mut tally.faults),
            began: Some(tally.began),
            ..Record::empty(scenario, title, seed)
        }
        .with_latencies(tally.latencies)
    }

    pub fn empty(scenario: &'static str, title: &str, seed: u64) -> Record {
        Record {
            version: VERSION,
            scenario,
            title: title.to_owned(),
            seed,
            command: crate::command::line(),
            machine: Machine::here(),
            sessions: 0,
            seconds: 0.0,
            planned: 0,
            sent: 0,
            answered: 0,
            per_second: 0.0,
            dropped: 0,
            late: 0,
            unanswered: 0,
            failed: 0,
            lost: 0,
            outcomes: vec![],
            latency_ms: Latency::default(),
            curve: vec![],
            series: vec![],
            marks: vec![],
            trials: vec![],
            knee: None,
            p99_max: None,
            stopped: None,
            figures: vec![],
            checks: vec![],
            thresholds: vec![],
            faults: vec![],
            facts: vec![],
            began: None,
            histogram: histogram_us(),
        }
    }

    /// In µs.
    pub fn with_latencies(mut self, latencies: Histogram<u64>) -> Record {
        self.latency_ms = Latency::of(&latencies);
        self.curve = curve(&latencies);
        self.histogram = latencies;
        self
    }

    pub fn check(&mut self, name: &'static str, ok: bool, detail: impl FnOnce() -> String) {
        let detail = if ok { String::new() } else { detail() };
        let name = name.into();
        self.checks.push(Check { name, ok, detail });
    }

    pub fn figure(&mut self, name: &str, value: f64) {
        self.figures.push((name.to_owned(), value));
    }

    /// Holds the figures against the bounds of the command line.
    pub fn judge(&mut self, bounds: &[Bound]) {
        self.thresholds = bounds.iter().map(|bound| bound.judge(self)).collect();
    }

    pub fn verdict(&self) -> Verdict {
        if !self.checks.iter().all(|check| check.ok) {
            Verdict::Broken
        } else if !self.thresholds.iter().all(|threshold| threshold.kept) {
            Verdict::BeyondThreshold
        } else {
            Verdict::Good
        }
    }

    pub fn totals(&self) -> Totals {
        let checks = self.checks.iter();
        Totals {
            scenario: self.scenario.to_owned(),
            seed: self.seed,
            sessions: self.sessions,
            planned: self.planned,
            sent: self.sent,
            answered: self.answered,
            dropped: self.dropped,
            late: self.late,
            unanswered: self.unanswered,
            failed: self.failed,
            lost: self.lost,
            outcomes: self.outcomes.clone(),
            checks: checks
                .map(|check| match check.ok {
                    true => (check.name.to_string(), String::new()),
                    // Even a fault without a word is one.
                    false => (check.name.to_string(), format!("failed {}", check.detail)),
                })
                .collect(),
        }
    }

    /// One line a slot.
    pub fn csv(&self) -> String {
        let mut out = String::from("at_s,planned,answered,dropped,late,p50_ms,p99_ms,max_ms\n");
        for slot in &self.series {
            out += &format!(
                "{:.3},{},{},{},{},{:.3},{:.3},{:.3}\n",
                slot.at_s,
                slot.planned,
                slot.answered,
                slot.dropped,
                slot.late,
                slot.p50_ms,
                slot.p99_ms,
                slot.max_ms
            );
        }
        out
    }

    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("a record is plain data") + "\n"
    }
}

/// As far as there are requests to tell the quantiles apart.
pub fn curve(histogram: &Histogram<u64>) -> Vec<Point> {
    if histogram.is_empty() {
        return vec![];
    }
    let finest = 1.0 / histogram.len() as f64;
    let steps = (0..=CURVE_HALVINGS * CURVE_STEPS)
        .map(|step| 0.5_f64.powf(f64::from(step) / f64::from(CURVE_STEPS)));
    let mut curve: Vec<Point> = steps
        .take_while(|above| *above >= finest * 0.999)
        .map(|above| 1.0 - above)
        .map(|quantile| Point {
            quantile,
            ms: quantile_ms(histogram, quantile),
        })
        .collect();
    let last = 1.0 - finest;
    if curve.last().is_some_and(|point| point.quantile < last) {
        let ms = quantile_ms(histogram, last);
        curve.push(Point { quantile: last, ms });
    }
    curve
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn record() -> Record {
        let told = |_: &Slot| {};
        let mut tally = Tally::new(0).with_series(1_000, 1, Box::new(told));
        for n in 0..3_000u64 {
            let due = n * 1_000_000;
            tally.planned(due, due);
            tally.sent += 1;
            let latency = 200_000 + (n % 100) * 10_000 + if n % 500 == 0 { 30_000_000 } else { 0 };
            tally.record(due, due + latency, if n % 3 == 0 { 10 } else { 20 });
        }
        tally.dropped(5);
        tally.end(3_000_000_000);
        let mut record = Record::new("grabs", "three seconds of taps", 42, tally);
        record.sessions = 200;
        record.check("nothing is lost", true, String::new);
        record
    }

    fn names(json: &serde_json::Value) -> Vec<&str> {
        let mut names: Vec<&str> = json
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();
        names.sort_unstable();
        names
    }

    /// Whoever reads the JSON by machine relies on these names.
    #[test]
    fn the_json_has_these_fields() {
        let json: serde_json::Value = serde_json::from_str(&record().json()).unwrap();
        let wanted = [
            "answered",
            "checks",
            "command",
            "curve",
            "dropped",
            "failed",
            "faults",
            "figures",
            "knee",
            "late",
            "latency_ms",
            "lost",
            "machine",
            "marks",
            "outcomes",
            "p99_max",
            "per_second",
            "planned",
            "scenario",
            "seconds",
            "seed",
            "sent",
            "series",
            "sessions",
            "stopped",
            "thresholds",
            "title",
            "trials",
            "unanswered",
            "version",
        ];
        assert_eq!(names(&json), wanted);
        assert_eq!(json["version"], 1);
        assert_eq!(json["outcomes"]["WON"], 1_000);
        assert_eq!(json["planned"], 3_001);
        let wanted = [
            "answered", "at_s", "dropped", "late", "max_ms", "p50_ms", "p99_ms", "planned",
        ];
        assert_eq!(names(&json["series"][0]), wanted);
        for name in ["mean", "p50", "p90", "p99", "p999", "max"] {
            assert!(json["latency_ms"][name].as_f64().unwrap() > 0.0, "{name}");
        }
    }

    #[test]
    fn the_time_series_has_a_line_for_each_slot() {
        let csv = record().csv();
        let lines: Vec<&str> = csv.lines().collect();
        assert_eq!(
            lines[0],
            "at_s,planned,answered,dropped,late,p50_ms,p99_ms,max_ms"
        );
        assert!(lines[1].starts_with("0.000,1000,"), "{}", lines[1]);
        // The last requests are answered in the fourth second.
        assert_eq!(lines.len(), 1 + 4);
    }

    #[test]
    fn a_curve_goes_no_further_than_there_are_requests() {
        let mut histogram = histogram_us();
        assert_eq!(curve(&histogram), []);
        for us in 1..=10 {
            histogram.record(us * 100).unwrap();
        }
        let curve = curve(&histogram);
        let last = curve.last().unwrap();
        assert_eq!((last.quantile, last.ms), (0.9, 0.9), "a tenth is above it");
        assert!(curve.is_sorted_by(|one, two| one.quantile < two.quantile));
    }
}
