//! What came of a run of the generator, for people and for machines. The JSON's field names are these; a test pins them.

use std::fmt::Write as _;
use std::path::Path;

use hdrhistogram::Histogram;
use hdrhistogram::serialization::V2Serializer;
use hdrhistogram::serialization::interval_log::{IntervalLogWriterBuilder, Tag};
use hongbao::client::outcome_name;
use serde::Serialize;

use crate::LoadError;
use crate::knee::Trial;
use crate::rain::checks::Check;
use crate::swarm::tally::{Slot, Tally, quantile_ms};
use hongbao::paint::{Paint, thousands};

/// Changes when a field changes its meaning.
pub const VERSION: u32 = 1;
/// Points of the percentile curve: each halves the part above it, as latency is usually drawn.
const CURVE_HALVINGS: i32 = 17;

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

/// A bound from the command line, like `p99<=50`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Threshold {
    pub bound: String,
    pub measured: f64,
    pub kept: bool,
}

#[derive(Clone, Debug, Serialize)]
pub struct Record {
    pub version: u32,
    pub scenario: &'static str,
    pub title: String,
    pub seed: u64,
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
    pub outcomes: Vec<(String, u64)>,
    pub latency_ms: Latency,
    pub curve: Vec<Point>,
    pub series: Vec<Slot>,
    /// Of `sweep`.
    pub trials: Vec<Trial>,
    pub knee: Option<f64>,
    /// More figures, by name.
    #[serde(serialize_with = "as_map")]
    pub figures: Vec<(String, f64)>,
    pub checks: Vec<Check>,
    pub thresholds: Vec<Threshold>,
    /// Examples of what went wrong.
    pub faults: Vec<String>,
    /// For the log of this generator, to be merged with those of others.
    #[serde(skip)]
    pub histogram: Histogram<u64>,
}

fn as_map<S: serde::Serializer, V: Serialize>(
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

impl Record {
    pub fn new(scenario: &'static str, title: &str, seed: u64, mut tally: Tally) -> Record {
        let series = tally.slots();
        let name = |code: i32| match code {
            0 => "answered".to_owned(),
            code => outcome_name(code).into_owned(),
        };
        Record {
            version: VERSION,
            scenario,
            title: title.to_owned(),
            seed,
            sessions: 0,
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
            latency_ms: Latency::of(&tally.latencies),
            curve: curve(&tally.latencies),
            series,
            trials: vec![],
            knee: None,
            figures: vec![],
            checks: vec![],
            thresholds: vec![],
            faults: tally.faults,
            histogram: tally.latencies,
        }
    }

    pub fn check(&mut self, name: &'static str, ok: bool, detail: impl FnOnce() -> String) {
        let detail = if ok { String::new() } else { detail() };
        self.checks.push(Check { name, ok, detail });
    }

    pub fn figure(&mut self, name: &str, value: f64) {
        self.figures.push((name.to_owned(), value));
    }

    /// Holds the figures against the bounds of the command line.
    pub fn judge(&mut self, bounds: &[Bound]) {
        self.thresholds = bounds
            .iter()
            .map(|bound| {
                let measured = bound.metric.of(self);
                Threshold {
                    bound: bound.text.clone(),
                    measured,
                    kept: if bound.at_most {
                        measured <= bound.value
                    } else {
                        measured >= bound.value
                    },
                }
            })
            .collect();
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

    pub fn summary(&self, paint: Paint) -> String {
        let mut out = format!("{} (seed {})\n", self.title, self.seed);
        let mut row = |label: &str, text: String| {
            let _ = writeln!(out, "  {}{text}", paint.dim(&format!("{label:<12}")));
        };
        let count = |n: u64| paint.bold(&thousands(n));
        row(
            "answered",
            format!(
                "{} of {} in {:.1} s: {} a second",
                count(self.answered),
                thousands(self.planned),
                self.seconds,
                count(self.per_second.round() as u64)
            ),
        );
        let missing = [
            ("dropped", self.dropped),
            ("late", self.late),
            ("unanswered", self.unanswered),
            ("failed", self.failed),
            ("lost", self.lost),
        ];
        let missing: Vec<String> = missing
            .iter()
            .filter(|(_, n)| *n > 0)
            .map(|(name, n)| format!("{name} {}", count(*n)))
            .collect();
        if !missing.is_empty() {
            row("but", missing.join("   "));
        }
        if !self.outcomes.is_empty() {
            let outcomes = self.outcomes.iter();
            let outcomes: Vec<String> = outcomes
                .map(|(name, n)| format!("{name} {}", count(*n)))
                .collect();
            row("outcomes", outcomes.join("   "));
        }
        let ms = |ms: f64| paint.bold(&format!("{ms:.2} ms"));
        let latency = &self.latency_ms;
        row(
            "latency",
            format!(
                "p50 {}   p90 {}   p99 {}   p99.9 {}   max {}",
                ms(latency.p50),
                ms(latency.p90),
                ms(latency.p99),
                ms(latency.p999),
                ms(latency.max)
            ),
        );
        for trial in &self.trials {
            let verdict = if trial.good { "kept" } else { "broken" };
            row(
                "trial",
                format!(
                    "{:>9} a second offered, {:>9} answered, p50 {:.2} ms, p99 {:.2} ms: {verdict}",
                    thousands(trial.rate as u64),
                    thousands(trial.reached as u64),
                    trial.p50_ms,
                    trial.p99_ms
                ),
            );
        }
        if let Some(knee) = self.knee {
            row("knee", format!("{} a second", count(knee as u64)));
        }
        for (at, (name, value)) in self.figures.iter().enumerate() {
            let label = if at == 0 { "figures" } else { "" };
            row(
                label,
                format!("{name} {}", paint.bold(&format!("{value:.2}"))),
            );
        }
        for fault in &self.faults {
            row("fault", fault.clone());
        }
        for threshold in &self.thresholds {
            let (bound, measured) = (&threshold.bound, threshold.measured);
            let text = format!("{bound} (measured {measured:.2})");
            row(
                "threshold",
                match threshold.kept {
                    true => paint.green(&text),
                    false => paint.red(&format!("{text}: not kept")),
                },
            );
        }
        let all = self.checks.len();
        let failed: Vec<&Check> = self.checks.iter().filter(|check| !check.ok).collect();
        if all > 0 && failed.is_empty() {
            row("checks", paint.green(&format!("all {all} hold")));
        }
        for check in failed {
            let text = format!("✗ {}: {}", check.name, check.detail);
            row("checks", paint.red(&text));
        }
        out
    }

    /// One line a slot.
    pub fn csv(&self) -> String {
        let mut out = String::from("at_s,planned,answered,dropped,late,p50_ms,p99_ms,max_ms\n");
        for slot in &self.series {
            let _ = writeln!(
                out,
                "{:.3},{},{},{},{},{:.3},{:.3},{:.3}",
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

    /// The latencies (µs) as a log that other HDR tools read too.
    pub fn hdr_log(&self) -> Vec<u8> {
        let mut out = vec![];
        let mut serializer = V2Serializer::new();
        let mut log = IntervalLogWriterBuilder::new()
            .add_comment("hongbao-load, latencies in microseconds")
            .begin_log_with(&mut out, &mut serializer)
            .expect("memory does not fail");
        let zero = std::time::Duration::ZERO;
        let length = std::time::Duration::from_secs_f64(self.seconds);
        log.write_histogram(&self.histogram, zero, length, Tag::new(self.scenario))
            .expect("memory does not fail");
        drop(log);
        out
    }

    /// Writes what was asked for.
    pub fn write(
        &self,
        json: Option<&Path>,
        csv: Option<&Path>,
        html: Option<&Path>,
        hdr: Option<&Path>,
    ) -> Result<(), LoadError> {
        if let Some(path) = json {
            crate::write_file(path, self.json().as_bytes())?;
        }
        if let Some(path) = csv {
            crate::write_file(path, self.csv().as_bytes())?;
        }
        if let Some(path) = html {
            crate::write_file(path, crate::html::page(self).as_bytes())?;
        }
        if let Some(path) = hdr {
            crate::write_file(path, &self.hdr_log())?;
        }
        Ok(())
    }
}

pub fn curve(histogram: &Histogram<u64>) -> Vec<Point> {
    if histogram.is_empty() {
        return vec![];
    }
    (0..=CURVE_HALVINGS)
        .map(|halving| 1.0 - 0.5_f64.powi(halving))
        .map(|quantile| Point {
            quantile,
            ms: quantile_ms(histogram, quantile),
        })
        .collect()
}

/// What a bound is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Metric {
    P50,
    P90,
    P99,
    P999,
    Max,
    Rate,
    Dropped,
    Late,
    Unanswered,
    Failed,
    Lost,
    Knee,
}

impl Metric {
    const ALL: [(&str, Metric); 12] = [
        ("p50", Metric::P50),
        ("p90", Metric::P90),
        ("p99", Metric::P99),
        ("p99.9", Metric::P999),
        ("max", Metric::Max),
        ("rate", Metric::Rate),
        ("dropped", Metric::Dropped),
        ("late", Metric::Late),
        ("unanswered", Metric::Unanswered),
        ("failed", Metric::Failed),
        ("lost", Metric::Lost),
        ("knee", Metric::Knee),
    ];

    fn of(self, record: &Record) -> f64 {
        match self {
            Metric::P50 => record.latency_ms.p50,
            Metric::P90 => record.latency_ms.p90,
            Metric::P99 => record.latency_ms.p99,
            Metric::P999 => record.latency_ms.p999,
            Metric::Max => record.latency_ms.max,
            Metric::Rate => record.per_second,
            Metric::Dropped => record.dropped as f64,
            Metric::Late => record.late as f64,
            Metric::Unanswered => record.unanswered as f64,
            Metric::Failed => record.failed as f64,
            Metric::Lost => record.lost as f64,
            Metric::Knee => record.knee.unwrap_or(0.0),
        }
    }
}

/// A threshold as it stands on the command line.
#[derive(Clone, Debug, PartialEq)]
pub struct Bound {
    text: String,
    metric: Metric,
    at_most: bool,
    value: f64,
}

impl std::str::FromStr for Bound {
    type Err = String;

    fn from_str(text: &str) -> Result<Bound, String> {
        let fault = || {
            let names: Vec<&str> = Metric::ALL.iter().map(|(name, _)| *name).collect();
            format!(
                "\"{text}\" is no bound like p99<=50 (ms) or rate>=1000; there are {}",
                names.join(", ")
            )
        };
        let (name, value, at_most) = match (text.split_once("<="), text.split_once(">=")) {
            (Some((name, value)), None) => (name, value, true),
            (None, Some((name, value))) => (name, value, false),
            _ => return Err(fault()),
        };
        let metric = Metric::ALL.iter().find(|(known, _)| *known == name.trim());
        let metric = metric.ok_or_else(fault)?.1;
        let value: f64 = value.trim().parse().map_err(|_| fault())?;
        Ok(Bound {
            text: text.to_owned(),
            metric,
            at_most,
            value,
        })
    }
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

    /// Whoever reads the JSON by machine relies on these names.
    #[test]
    fn the_json_has_these_fields() {
        let json: serde_json::Value = serde_json::from_str(&record().json()).unwrap();
        let mut names: Vec<&str> = json
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();
        names.sort_unstable();
        let wanted = [
            "answered",
            "checks",
            "curve",
            "dropped",
            "failed",
            "faults",
            "figures",
            "knee",
            "late",
            "latency_ms",
            "lost",
            "outcomes",
            "per_second",
            "planned",
            "scenario",
            "seconds",
            "seed",
            "sent",
            "series",
            "sessions",
            "thresholds",
            "title",
            "trials",
            "unanswered",
            "version",
        ];
        assert_eq!(names, wanted);
        assert_eq!(json["version"], 1);
        assert_eq!(json["outcomes"]["WON"], 1_000);
        assert_eq!(json["planned"], 3_001);
        let slot = json["series"][0].as_object().unwrap();
        let wanted = [
            "answered", "at_s", "dropped", "late", "max_ms", "p50_ms", "p99_ms", "planned",
        ];
        let mut names: Vec<&str> = slot.keys().map(String::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, wanted);
        for name in ["mean", "p50", "p90", "p99", "p999", "max"] {
            assert!(json["latency_ms"][name].as_f64().unwrap() > 0.0, "{name}");
        }
    }

    #[test]
    fn bounds_are_read_and_held_against_the_figures() {
        let mut record = record();
        let bounds = ["p99<=5", "rate>=900", "p99.9<=5", "dropped<=0"];
        record.judge(&bounds.map(|text| text.parse().unwrap()));
        let kept: Vec<bool> = record.thresholds.iter().map(|one| one.kept).collect();
        assert_eq!(kept, [true, true, false, false]);
        assert_eq!(record.verdict(), Verdict::BeyondThreshold);
        record.check("a promise", false, || "broken".to_owned());
        assert_eq!(record.verdict(), Verdict::Broken);
        for wrong in ["p99", "p98<=5", "p99<5", "p99<=fast"] {
            assert!(wrong.parse::<Bound>().is_err(), "{wrong}");
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
}
