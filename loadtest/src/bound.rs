use serde::Serialize;

use crate::record::Record;

/// What a bound is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
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

    /// Of a latency: where it stands in the percentile curve.
    pub fn quantile(self) -> Option<f64> {
        match self {
            Metric::P50 => Some(0.5),
            Metric::P90 => Some(0.9),
            Metric::P99 => Some(0.99),
            Metric::P999 => Some(0.999),
            Metric::Max => Some(1.0),
            Metric::Rate
            | Metric::Dropped
            | Metric::Late
            | Metric::Unanswered
            | Metric::Failed
            | Metric::Lost
            | Metric::Knee => None,
        }
    }
}

/// A bound as it stands on the command line, like `p99<=50`.
#[derive(Clone, Debug, PartialEq)]
pub struct Bound {
    text: String,
    metric: Metric,
    at_most: bool,
    value: f64,
}

/// What came of a bound.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Threshold {
    pub bound: String,
    pub measured: f64,
    pub kept: bool,
    #[serde(skip)]
    pub metric: Metric,
    #[serde(skip)]
    pub value: f64,
}

impl Bound {
    pub fn judge(&self, record: &Record) -> Threshold {
        let measured = self.metric.of(record);
        // A latency of nothing keeps no bound.
        let measurable = self.metric.quantile().is_none() || !record.histogram.is_empty();
        let within = match self.at_most {
            true => measured <= self.value,
            false => measured >= self.value,
        };
        Threshold {
            bound: self.text.clone(),
            measured,
            kept: measurable && within,
            metric: self.metric,
            value: self.value,
        }
    }
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
        let value: Option<f64> = value.trim().parse().ok();
        let value = value.filter(|value| value.is_finite() && *value >= 0.0);
        Ok(Bound {
            text: text.to_owned(),
            metric,
            at_most,
            value: value.ok_or_else(fault)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Verdict;
    use crate::record::tests::record;

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
        for wrong in ["p99", "p98<=5", "p99<5", "p99<=fast", "p99<=nan", "max<=-1"] {
            assert!(wrong.parse::<Bound>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_run_without_an_answer_keeps_no_bound_of_latency() {
        let mut record = Record::empty("grabs", "nothing", 1);
        record.judge(&["p99<=5".parse().unwrap(), "dropped<=0".parse().unwrap()]);
        let kept: Vec<bool> = record.thresholds.iter().map(|one| one.kept).collect();
        assert_eq!(kept, [false, true]);
    }
}
