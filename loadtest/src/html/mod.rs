//! The report as one page that needs nothing from outside: charts are drawn here.

/// Axes, lines, labels.
mod chart;
/// Charts of a record.
mod charts;
/// Tables of a record.
mod tables;

use std::fmt::Write as _;

use hongbao::paint::thousands;

use crate::record::{Record, Verdict};
use crate::summary::{measured, ms, number, of};

const STYLE: &str = include_str!("style.css");

/// The whole page.
pub fn page(record: &Record) -> String {
    let mut out = String::new();
    let (verdict, _) = verdict_line(record);
    let _ = write!(
        out,
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width,initial-scale=1'><title>{} {}: {}</title><style>{STYLE}</style><main>",
        mark(record),
        record.scenario,
        escape(&record.title)
    );
    let _ = write!(
        out,
        "<p class=eyebrow>hongbao-load {} · {}</p><h1>{}</h1><p class=sub>{}</p>",
        record.scenario,
        utc(record.machine.at_ms),
        escape(&record.title),
        what(record)
    );
    verdict_box(&mut out, record, &verdict);
    tiles(&mut out, record);
    charts::write(&mut out, record);
    tables::write(&mut out, record);
    out.push_str("</main></html>\n");
    out
}

fn what(record: &Record) -> String {
    let mut what = of(record.sessions as u64, "session");
    if record.seconds > 0.0 {
        let _ = write!(what, " · {:.1} s", record.seconds);
    }
    let _ = write!(what, " · seed {}", record.seed);
    what
}

fn mark(record: &Record) -> &'static str {
    match record.verdict() {
        Verdict::Good => "✓",
        Verdict::Broken | Verdict::BeyondThreshold => "✗",
    }
}

/// What it came to, in one sentence and a class of the style sheet.
fn verdict_line(record: &Record) -> (String, &'static str) {
    let (checks, bounds) = (record.checks.len(), record.thresholds.len());
    let all = |count: usize, what: &str| match count {
        1 => format!("1 {what}"),
        count => format!("all {count} {what}s"),
    };
    let failed = record.checks.iter().filter(|check| !check.ok).count();
    let broken = record.thresholds.iter().filter(|one| !one.kept).count();
    match record.verdict() {
        Verdict::Broken => (format!("{failed} of {checks} checks failed"), "bad"),
        Verdict::BeyondThreshold => {
            let text = match checks {
                0 => format!("{broken} of {bounds} bounds not kept"),
                checks => format!(
                    "{broken} of {bounds} bounds not kept; {} held",
                    all(checks, "check")
                ),
            };
            (text, "beyond")
        }
        Verdict::Good => {
            let held = match (checks, bounds) {
                (0, 0) => "Nothing was to be checked".to_owned(),
                (checks, 0) => format!("{} held", all(checks, "check")),
                (0, bounds) => format!("{} kept", all(bounds, "bound")),
                (checks, bounds) => format!(
                    "{} held, {} kept",
                    all(checks, "check"),
                    all(bounds, "bound")
                ),
            };
            let mut letters = held.chars();
            let first = letters.next().map(|first| first.to_uppercase().to_string());
            (first.unwrap_or_default() + letters.as_str(), "good")
        }
    }
}

fn verdict_box(out: &mut String, record: &Record, verdict: &str) {
    let (_, class) = verdict_line(record);
    let _ = write!(
        out,
        "<div class='verdict {class}'><i class=is></i>{verdict}"
    );
    let broken = record.thresholds.iter().filter(|one| !one.kept);
    let broken = broken.map(|one| format!("{}: measured {}", escape(&one.bound), measured(one)));
    let failed = record.checks.iter().filter(|check| !check.ok);
    let failed = failed.map(|check| format!("{}: {}", check.name, escape(&check.detail)));
    let wrong: Vec<String> = failed.chain(broken).collect();
    if !wrong.is_empty() {
        let _ = write!(out, "<ul><li>{}</ul>", wrong.join("<li>"));
    }
    out.push_str("</div>");
}

fn tiles(out: &mut String, record: &Record) {
    let latency = &record.latency_ms;
    let mut tiles = vec![];
    if let Some(knee) = record.knee {
        tiles.push(("knee, a second", thousands(knee.round() as u64), ""));
    }
    tiles.extend([
        ("answered", thousands(record.answered), ""),
        ("a second", thousands(record.per_second.round() as u64), ""),
    ]);
    if record.answered > 0 {
        tiles.extend([
            ("p50", ms(latency.p50), ""),
            ("p99", ms(latency.p99), ""),
            ("p99.9", ms(latency.p999), ""),
            ("slowest", ms(latency.max), ""),
        ]);
    }
    for (name, count) in [
        ("dropped", record.dropped),
        ("sent late", record.late),
        ("unanswered", record.unanswered),
        ("failed to connect", record.failed),
        ("connections lost", record.lost),
    ] {
        if count > 0 {
            tiles.push((name, thousands(count), "bad"));
        }
    }
    out.push_str("<div class=tiles>");
    for (name, value, class) in tiles {
        let _ = write!(
            out,
            "<div class=tile><b class='{class}'>{value}</b><span>{name}</span></div>"
        );
    }
    out.push_str("</div>");
}

/// `2026-11-21 23:05 UTC`, by the civil calendar.
fn utc(at_ms: i64) -> String {
    let (days, minutes) = (
        at_ms.div_euclid(86_400_000),
        at_ms.rem_euclid(86_400_000) / 60_000,
    );
    // Days are counted from 1 March of the year 0, where leap days come last.
    let day = days + 719_468;
    let era = day.div_euclid(146_097);
    let of_era = day.rem_euclid(146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let shifted = (5 * of_year + 2) / 153;
    let date = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 {
        shifted + 3
    } else {
        shifted - 9
    };
    let year = year + era * 400 + i64::from(month <= 2);
    format!(
        "{year}-{month:02}-{date:02} {:02}:{:02} UTC",
        minutes / 60,
        minutes % 60
    )
}

fn figure(value: f64) -> String {
    number(value)
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('\'', "&#39;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::knee::Trial;
    use crate::record::Mark;
    use crate::record::tests::record;

    fn whole() -> Record {
        let mut record = record();
        record.title = "<b>taps</b>".to_owned();
        let bounds = ["p99<=20", "max<=5"];
        record.judge(&bounds.map(|text| text.parse().unwrap()));
        let (at_s, what) = (1.5, "opened");
        record.marks.push(Mark { at_s, what });
        record
    }

    #[test]
    fn the_page_stands_alone_and_shows_everything() {
        let record = whole();
        let page = page(&record);
        for outside in ["http", "src=", "<script", "@import", "url(", "<b>taps"] {
            assert!(!page.contains(outside), "{outside}");
        }
        for part in [
            "Latency over time",
            "Rate planned and reached",
            "Percentiles",
            "Outcomes",
            "WON",
            "opened",
            "1 of 2 bounds not kept; 1 check held",
            "p99&lt;=20",
            "seed 42",
            &escape(&record.command),
            &record.machine.model,
        ] {
            assert!(page.contains(part), "{part}");
        }
        assert_eq!(page.matches("NaN").count() + page.matches("inf").count(), 0);
    }

    /// A run that was over before anything came back, of one point, of a search.
    #[test]
    fn a_page_of_little_or_nothing_is_whole_too() {
        let mut nothing = Record::empty("grabs", "nothing", 1);
        assert!(page(&nothing).contains("Nothing was to be checked"));
        nothing.series.push(crate::swarm::tally::Slot::default());
        nothing.check("everything came", false, || "<nothing> came".to_owned());
        let text = page(&nothing);
        assert!(text.contains("1 of 1 checks failed") && text.contains("&lt;nothing&gt; came"));
        let mut sweep = whole();
        let trial = |rate: f64, good| Trial {
            good,
            why: if good {
                vec![]
            } else {
                vec!["p99 above 10 ms".into()]
            },
            ..Trial::of(
                rate,
                std::time::Duration::from_secs(1),
                &crate::swarm::tally::Tally::new(0),
            )
        };
        sweep.trials = vec![trial(100.0, true), trial(150.0, false)];
        (sweep.knee, sweep.p99_max) = (Some(100.0), Some(10.0));
        sweep.stopped = Some("150 a second failed".to_owned());
        let text = page(&sweep) + &page(&nothing);
        assert!(text.contains("p99 above 10 ms") && text.contains("Rates tried"));
        assert_eq!(
            text.matches("NaN").count() + text.matches(":inf").count(),
            0
        );
    }

    #[test]
    fn days_are_those_of_the_calendar() {
        assert_eq!(utc(0), "1970-01-01 00:00 UTC");
        // date -u -d @951782400, and @1795302300.
        assert_eq!(utc(951_782_400_000), "2000-02-29 00:00 UTC");
        assert_eq!(utc(1_795_302_300_000), "2026-11-21 23:05 UTC");
    }
}
