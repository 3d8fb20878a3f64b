use std::fmt::Write as _;

use hongbao::client::admin::{Audit, Difference};
use hongbao::rain::{Cents, RainId};
use serde::Serialize;

use crate::meter::Spread;
use crate::record::{Record, Verdict};
use crate::summary::{Rows, latency, ms};
use hongbao::paint::{Paint, thousands};

/// Of an audit's differences, so many are printed; the JSON has all of them.
const DIFFERENCES_MAX: usize = 50;

/// What came of a rain: what comes of every scenario, and more. The field names are those of the JSON.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    #[serde(flatten)]
    pub record: Record,
    pub rain_id: RainId,
    pub rule: String,
    pub packets: u32,
    pub buckets: Option<u32>,
    /// Connections that were lost, most of them on purpose, and made again.
    pub reconnects: u64,
    /// People who left for good before they had an answer.
    pub left: u64,
    /// Sent; each has an outcome or is among the unanswered.
    pub grabs: u64,
    /// From a WON being seen to its credit.
    pub settle_lag_ms: Spread,
    /// From the gateway's sending RainOpened to its being seen.
    pub opening_lag_ms: Spread,
    /// From the moment when as many people had tapped as there were packets to the last win.
    pub last_packet_lag_ms: Option<u64>,
    pub grabs_per_second: f64,
    pub grabs_per_second_peak: u64,
    pub grabbing_seconds: f64,
    pub funded_cents: Cents,
    pub credited_cents: Cents,
    pub credited_count: u64,
    pub refunded_cents: Cents,
    /// Largest packet that was won.
    pub largest_cents: Option<Cents>,
    pub audit: Audit,
}

impl Report {
    pub fn verdict(&self) -> Verdict {
        match self.audit.balanced {
            true => self.record.verdict(),
            false => Verdict::Broken,
        }
    }

    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("a report is plain data") + "\n"
    }

    /// Aligned text. Its last line is the audit's verdict.
    pub fn summary(&self, paint: Paint) -> String {
        let mut rows = Rows {
            paint,
            text: String::new(),
        };
        self.write_figures(&mut rows);
        rows.thresholds(&self.record.thresholds);
        rows.checks(&self.record.checks);
        self.write_verdict(&mut rows.text);
        rows.text
    }

    fn write_figures(&self, rows: &mut Rows) {
        let (record, paint) = (&self.record, rows.paint);
        rows.row(
            "grabs",
            &format!(
                "{} in {:.1} s: {} a second, {} in the busiest",
                thousands(self.grabs),
                self.grabbing_seconds,
                thousands(self.grabs_per_second.round() as u64),
                thousands(self.grabs_per_second_peak),
            ),
        );
        let mut outcomes: Vec<(String, String)> = record
            .outcomes
            .iter()
            .map(|(name, count)| (name.clone(), thousands(*count)))
            .collect();
        for (name, count) in [("reply lost", record.unanswered), ("left", self.left)] {
            outcomes.extend((count > 0).then(|| (name.to_owned(), thousands(count))));
        }
        rows.list("outcomes", &outcomes);
        rows.row("latency", &latency(&record.latency_ms, paint));
        if record.late > 0 {
            let late = paint.bold(&thousands(record.late));
            let text = format!("{late} taps were sent late: the generator could not keep up");
            rows.row("late", &text);
        }
        rows.row(
            "opening",
            &format!("seen after {}", spread(self.opening_lag_ms, paint)),
        );
        if let Some(ms) = self.last_packet_lag_ms {
            let text = format!("won {ms} ms after as many had tapped as there were packets");
            rows.row("last packet", &text);
        }
        rows.row("settle lag", &spread(self.settle_lag_ms, paint));
        rows.row("ledger", &self.ledger(paint));
        if let Some(largest) = self.largest_cents {
            rows.row("largest", &format!("{} in one packet", money(largest)));
        }
    }

    /// For the page.
    pub fn facts(&self) -> Vec<(&'static str, String)> {
        let plain = Paint::PLAIN;
        let buckets = match self.buckets {
            Some(buckets) => format!(" in {buckets} buckets"),
            None => String::new(),
        };
        let mut facts = vec![
            (
                "Rain",
                format!(
                    "number {}, {} packets{buckets}, split by {}",
                    self.rain_id,
                    thousands(self.packets.into()),
                    self.rule
                ),
            ),
            ("Ledger", self.ledger(plain)),
            ("Opening seen after", spread(self.opening_lag_ms, plain)),
            ("From win to credit", spread(self.settle_lag_ms, plain)),
            (
                "Busiest second",
                format!("{} grabs", thousands(self.grabs_per_second_peak)),
            ),
            ("Connections made again", thousands(self.reconnects)),
        ];
        if let Some(ms) = self.last_packet_lag_ms {
            let text = format!("won {ms} ms after as many had tapped as there were packets");
            facts.push(("Last packet", text));
        }
        if self.left > 0 {
            facts.push(("Left without an answer", thousands(self.left)));
        }
        if let Some(largest) = self.largest_cents {
            facts.push(("Largest packet", money(largest)));
        }
        facts
    }

    /// Where the money is. A live rain has some in its pool and in claims. What is refunded still lies in the pool, where nobody can take it any
    /// more: it counts once.
    fn ledger(&self, paint: Paint) -> String {
        let audit = &self.audit;
        let pool = match audit.refunded_cents {
            Cents::ZERO => audit.pool_cents,
            _ => Cents::ZERO,
        };
        let mut places = vec![
            format!(
                "credited {} ({} packets)",
                paint.bold(&money(self.credited_cents)),
                thousands(self.credited_count)
            ),
            format!("refunded {}", paint.bold(&money(self.refunded_cents))),
        ];
        for (place, cents) in [("pool", pool), ("claims", audit.claims_cents)] {
            if cents != Cents::ZERO {
                places.push(format!("{place} {}", paint.bold(&money(cents))));
            }
        }
        let parts = [
            audit.credited_cents,
            audit.refunded_cents,
            pool,
            audit.claims_cents,
        ];
        let agrees = parts.into_iter().sum::<Cents>() == audit.funded_cents;
        let sign = if agrees { "=" } else { "≠" };
        let funded = paint.bold(&money(self.funded_cents));
        format!("funded {funded} {sign} {}", places.join(" + "))
    }

    fn write_verdict(&self, out: &mut String) {
        let differences = &self.audit.differences;
        if !differences.is_empty() {
            let _ = writeln!(out, "  differences");
        }
        for difference in differences.iter().take(DIFFERENCES_MAX) {
            let _ = writeln!(out, "    {}", line(difference));
        }
        if let Some(more) = differences.len().checked_sub(DIFFERENCES_MAX + 1) {
            let _ = writeln!(out, "    and {} more", more + 1);
        }
        // Exactly these words, without colour: programs read this line.
        out.push_str(match self.audit.balanced {
            true => "audit: balanced\n",
            false => "audit: UNBALANCED\n",
        });
    }
}

/// A difference as one line.
pub fn line(difference: &Difference) -> String {
    let mut text = difference.kind.clone();
    if let Some(id) = difference.packet_id {
        let _ = write!(text, "  packet {id}");
    }
    if let Some(user) = &difference.user {
        let _ = write!(text, "  user {user}");
    }
    if let Some(cents) = difference.cents {
        let _ = write!(text, "  {}", money(cents));
    }
    if !difference.detail.is_empty() {
        let _ = write!(text, "  {}", difference.detail);
    }
    text
}

/// `10,000.00`
pub fn money(cents: Cents) -> String {
    let text = cents.to_string();
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, "00"));
    let (sign, digits) = match whole.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", whole),
    };
    match digits.parse() {
        Ok(whole) => format!("{sign}{}.{fraction}", thousands(whole)),
        Err(_) => text,
    }
}

fn spread(spread: Spread, paint: Paint) -> String {
    let ms = |value: f64| paint.bold(&ms(value));
    let (p50, p99, max) = (ms(spread.p50), ms(spread.p99), ms(spread.max));
    format!("p50 {p50}   p99 {p99}   max {max}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rain::checks::Check;
    use crate::record::Latency;

    fn report(balanced: bool) -> Report {
        let difference = Difference {
            kind: "packet_missing".into(),
            packet_id: "30064771113".parse().ok(),
            user: Some("anna".into()),
            cents: Some(Cents(888)),
            detail: "in no place".into(),
        };
        let rain_id = RainId::new(7).unwrap();
        let spread = Spread {
            p50: 0.9,
            p99: 41.26,
            max: 1_300.0,
        };
        let record = Record {
            sessions: 5_000,
            outcomes: vec![("WON".into(), 3_000), ("MISSED".into(), 5_131)],
            latency_ms: Latency {
                mean: 1.0,
                p50: 0.9,
                p90: 2.0,
                p99: 41.26,
                p999: 400.0,
                max: 1_300.0,
            },
            checks: vec![Check {
                name: "the audit is balanced".into(),
                ok: balanced,
                detail: if balanced { "" } else { "differences: 1" }.into(),
            }],
            ..Record::empty("rain", "test", 5)
        };
        Report {
            record,
            rain_id,
            rule: "even".into(),
            packets: 3_000,
            buckets: Some(3),
            reconnects: 9,
            left: 0,
            grabs: 8_131,
            settle_lag_ms: spread,
            opening_lag_ms: spread,
            last_packet_lag_ms: Some(35),
            grabs_per_second: 1_310.6,
            grabs_per_second_peak: 4_120,
            grabbing_seconds: 6.2,
            funded_cents: Cents(1_000_000),
            credited_cents: Cents(1_000_000),
            credited_count: 3_000,
            refunded_cents: Cents(0),
            largest_cents: Some(Cents(888)),
            audit: Audit {
                rain_id,
                balanced,
                in_motion: 0,
                funded_cents: Cents(1_000_000),
                pool_cents: Cents(0),
                claims_cents: Cents(0),
                credited_cents: Cents(1_000_000),
                credited_count: 3_000,
                refunded_cents: Cents(0),
                differences: if balanced { vec![] } else { vec![difference] },
            },
        }
    }

    #[test]
    fn the_summary_is_this_text() {
        let wanted = "  grabs       8,131 in 6.2 s: 1,311 a second, 4,120 in the busiest
  outcomes    WON 3,000   MISSED 5,131
  latency     p50 0.90 ms   p90 2.00 ms   p99 41.3 ms   p99.9 400 ms   max 1.30 s
  opening     seen after p50 0.90 ms   p99 41.3 ms   max 1.30 s
  last packet won 35 ms after as many had tapped as there were packets
  settle lag  p50 0.90 ms   p99 41.3 ms   max 1.30 s
  ledger      funded 10,000.00 = credited 10,000.00 (3,000 packets) + refunded 0.00
  largest     8.88 in one packet
  checks      the audit is balanced ✓
audit: balanced
";
        assert_eq!(report(true).summary(Paint::PLAIN), wanted);
        assert_eq!(report(true).verdict(), Verdict::Good);
    }

    #[test]
    fn differences_and_failed_checks_are_named_before_the_verdict() {
        let text = report(false).summary(Paint::PLAIN);
        let end = "  checks      1 of 1 failed
  ✗ the audit is balanced: differences: 1
  differences
    packet_missing  packet 30064771113  user anna  8.88  in no place
audit: UNBALANCED
";
        assert!(text.ends_with(end), "{text}");
        assert_eq!(report(false).verdict(), Verdict::Broken);
    }

    #[test]
    fn money_that_is_elsewhere_is_shown_where_it_is() {
        let mut live = report(true);
        live.audit.credited_cents = Cents(900_000);
        live.credited_cents = Cents(900_000);
        live.audit.pool_cents = Cents(99_999);
        let text = live.ledger(Paint::PLAIN);
        let wanted =
            "funded 10,000.00 ≠ credited 9,000.00 (3,000 packets) + refunded 0.00 + pool 999.99";
        assert_eq!(text, wanted);
        live.audit.claims_cents = Cents(1);
        assert!(live.ledger(Paint::PLAIN).starts_with("funded 10,000.00 = "));
    }

    #[test]
    fn what_was_refunded_is_not_counted_again_where_it_lies() {
        let mut closed = report(true);
        (closed.audit.credited_cents, closed.credited_cents) = (Cents(900_000), Cents(900_000));
        (closed.audit.refunded_cents, closed.refunded_cents) = (Cents(100_000), Cents(100_000));
        closed.audit.pool_cents = Cents(100_000);
        let wanted = "funded 10,000.00 = credited 9,000.00 (3,000 packets) + refunded 1,000.00";
        assert_eq!(closed.ledger(Paint::PLAIN), wanted);
    }

    #[test]
    fn the_json_has_the_promised_fields() {
        let json = serde_json::to_value(report(true)).unwrap();
        assert_eq!(json["scenario"], "rain");
        assert_eq!(json["grabs"], 8_131);
        assert_eq!(json["outcomes"]["MISSED"], 5_131);
        assert_eq!(json["latency_ms"]["p99"], 41.26);
        assert_eq!(json["settle_lag_ms"]["max"], 1_300.0);
        assert_eq!(json["funded_cents"], 1_000_000);
        assert_eq!(json["credited_count"], 3_000);
        assert_eq!(json["audit"]["balanced"], true);
        assert_eq!(json["checks"][0]["ok"], true);
        let bad = serde_json::to_value(report(false)).unwrap();
        assert_eq!(bad["audit"]["differences"][0]["packet_id"], "30064771113");
    }

    #[test]
    fn money_reads_like_money() {
        assert_eq!(money(Cents(123_456_789)), "1,234,567.89");
        assert_eq!(money(Cents(-5)), "-0.05");
    }
}
