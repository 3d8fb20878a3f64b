//! A record as lines of text, within 80 columns where names allow it.

use hongbao::paint::{Paint, thousands};

use crate::bound::Threshold;
use crate::knee::Trial;
use crate::rain::checks::Check;
use crate::record::{Latency, Record};

/// Lists are broken before this column.
const WIDTH: usize = 78;

/// Labelled lines.
pub struct Rows {
    pub paint: Paint,
    pub text: String,
}

impl Rows {
    pub fn row(&mut self, label: &str, text: &str) {
        let label = self.paint.dim(&format!("{label:<12}"));
        self.text += &format!("  {label}{text}\n");
    }

    /// As many on a line as fit.
    pub fn list(&mut self, label: &str, items: &[(String, String)]) {
        let mut lines: Vec<(usize, String)> = vec![];
        for (name, value) in items {
            let width = name.chars().count() + 1 + value.chars().count();
            let item = format!("{name} {}", self.paint.bold(value));
            match lines.last_mut() {
                Some((used, line)) if 14 + *used + 3 + width <= WIDTH => {
                    *used += 3 + width;
                    *line += &format!("   {item}");
                }
                _ => lines.push((width, item)),
            }
        }
        for (place, (_, line)) in lines.iter().enumerate() {
            self.row(if place == 0 { label } else { "" }, line);
        }
    }

    pub fn thresholds(&mut self, thresholds: &[Threshold]) {
        for threshold in thresholds {
            let text = format!("{}: measured {}", threshold.bound, measured(threshold));
            let text = match threshold.kept {
                true => self.paint.green(&format!("✓ {text}")),
                false => self.paint.red(&format!("✗ {text}")),
            };
            self.row("bound", &text);
        }
    }

    pub fn checks(&mut self, checks: &[Check]) {
        let failed: Vec<&Check> = checks.iter().filter(|check| !check.ok).collect();
        let all = checks.len();
        if all > 0 && failed.is_empty() {
            let text = match all {
                1 => format!("{} ✓", checks[0].name),
                all => format!("all {all} hold"),
            };
            self.row("checks", &self.paint.green(&text));
        } else if all > 0 {
            let text = format!("{} of {all} failed", failed.len());
            self.row("checks", &self.paint.red(&text));
        }
        for check in failed {
            let cross = self.paint.red("✗");
            self.text += &format!("  {cross} {}: {}\n", check.name, check.detail);
        }
    }
}

/// `1 session`, `2,000 sessions`.
pub fn of(count: u64, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{} {what}{plural}", thousands(count))
}

/// With as many digits as a person reads.
pub fn ms(ms: f64) -> String {
    match ms {
        ms if ms >= 1_000.0 => format!("{:.2} s", ms / 1_000.0),
        ms if ms >= 100.0 => format!("{ms:.0} ms"),
        ms if ms >= 10.0 => format!("{ms:.1} ms"),
        _ => format!("{ms:.2} ms"),
    }
}

/// In the unit of what is bounded.
pub fn measured(threshold: &Threshold) -> String {
    match threshold.metric.quantile() {
        Some(_) => ms(threshold.measured),
        None => number(threshold.measured),
    }
}

/// A count, or a figure with a fraction.
pub fn number(value: f64) -> String {
    match value {
        value if value.fract() == 0.0 || value >= 1_000.0 => thousands(value.round() as u64),
        value => format!("{value:.2}"),
    }
}

pub fn latency(latency: &Latency, paint: Paint) -> String {
    let ms = |value: f64| paint.bold(&ms(value));
    format!(
        "p50 {}   p90 {}   p99 {}   p99.9 {}   max {}",
        ms(latency.p50),
        ms(latency.p90),
        ms(latency.p99),
        ms(latency.p999),
        ms(latency.max)
    )
}

impl Record {
    pub fn summary(&self, paint: Paint) -> String {
        let mut rows = Rows {
            paint,
            text: format!("{}, seed {}\n", self.title, self.seed),
        };
        let count = |n: u64| paint.bold(&thousands(n));
        let text = format!(
            "{} of {} in {:.1} s: {} a second",
            count(self.answered),
            thousands(self.planned),
            self.seconds,
            count(self.per_second.round() as u64)
        );
        rows.row("answered", &text);
        let missing = [
            ("dropped", self.dropped),
            ("late", self.late),
            ("unanswered", self.unanswered),
            ("failed", self.failed),
            ("lost", self.lost),
        ];
        rows.list("but", &named(&missing, |n| n > 0));
        let outcomes: Vec<(&str, u64)> = self
            .outcomes
            .iter()
            .map(|(name, n)| (name.as_str(), *n))
            .collect();
        rows.list("outcomes", &named(&outcomes, |_| true));
        if self.answered > 0 {
            rows.row("latency", &latency(&self.latency_ms, paint));
        }
        self.write_trials(&mut rows);
        for (at, (name, value)) in self.figures.iter().enumerate() {
            let label = if at == 0 { "figures" } else { "" };
            rows.row(label, &format!("{name} {}", paint.bold(&number(*value))));
        }
        for (name, text) in &self.facts {
            rows.row(name, text);
        }
        for fault in &self.faults {
            rows.row("fault", fault);
        }
        rows.thresholds(&self.thresholds);
        rows.checks(&self.checks);
        rows.text
    }

    fn write_trials(&self, rows: &mut Rows) {
        let paint = rows.paint;
        if !self.trials.is_empty() {
            rows.row(
                "trials",
                &paint.dim("  offered    reached        p50        p99"),
            );
        }
        for trial in &self.trials {
            rows.row("", &trial_line(trial, paint));
        }
        if let Some(knee) = self.knee {
            let knee = paint.bold(&format!("{} a second", thousands(knee.round() as u64)));
            rows.row("knee", &knee);
        }
        if let Some(why) = &self.stopped {
            rows.row("because", why);
        }
    }
}

/// Offered, reached, latencies, and what was wrong.
pub fn trial_line(trial: &Trial, paint: Paint) -> String {
    let figures = format!(
        "{:>9}  {:>9}  {:>9}  {:>9}",
        thousands(trial.rate.round() as u64),
        thousands(trial.reached.round() as u64),
        ms(trial.p50_ms),
        ms(trial.p99_ms)
    );
    let verdict = match trial.good {
        true => paint.green("✓"),
        false => paint.red(&format!("✗ {}", trial.why.join(", "))),
    };
    format!("{figures}  {verdict}")
}

fn named(counts: &[(&str, u64)], shown: fn(u64) -> bool) -> Vec<(String, String)> {
    let counts = counts.iter().filter(|(_, n)| shown(*n));
    counts
        .map(|(name, n)| ((*name).to_owned(), thousands(*n)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::record;

    #[test]
    fn the_summary_is_this_text() {
        let mut record = record();
        record.figure("credits a second", 1_234.5);
        let bounds = ["p99<=20", "dropped<=0"];
        record.judge(&bounds.map(|text| text.parse().unwrap()));
        record.check("the audit is balanced", false, || "2 differences".into());
        let wanted = "three seconds of taps, seed 42
  answered    3,000 of 3,001 in 3.0 s: 1,000 a second
  but         dropped 1
  outcomes    WON 1,000   MISSED 2,000
  latency     p50 0.70 ms   p90 1.10 ms   p99 1.19 ms   p99.9 30.2 ms   max 30.2 ms
  figures     credits a second 1,235
  bound       ✓ p99<=20: measured 1.19 ms
  bound       ✗ dropped<=0: measured 1
  checks      1 of 2 failed
  ✗ the audit is balanced: 2 differences
";
        assert_eq!(record.summary(Paint::PLAIN), wanted);
    }

    #[test]
    fn numbers_have_the_digits_that_a_person_reads() {
        let read = [0.214, 12.34, 123.4, 1_234.0].map(ms);
        assert_eq!(read, ["0.21 ms", "12.3 ms", "123 ms", "1.23 s"]);
        assert_eq!([5.0, 0.123, 1_234.5].map(number), ["5", "0.12", "1,235"]);
    }
}
