//! The report as one page that needs nothing from outside: charts are drawn here, as SVG.

use std::fmt::Write as _;

use crate::record::Record;
use hongbao::paint::thousands;

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 260.0;
/// Room for the labels of the axes.
const LEFT: f64 = 64.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 34.0;
const GRID_LINES: usize = 4;

const STYLE: &str = "
:root{--ink:#1d1d1f;--dim:#6e6e73;--line:#e3e3e6;--red:#c8102e;--gold:#c98a00;--blue:#2563ab;--green:#2e7d4f;--card:#fff;--page:#f6f4f1}
@media(prefers-color-scheme:dark){:root{--ink:#f0eeea;--dim:#a09c95;--line:#3a3834;--red:#ff6b6b;--gold:#f0b849;--blue:#74aef0;--green:#6cc492;--card:#242220;--page:#191816}}
*{box-sizing:border-box}body{margin:0;padding:32px 16px 64px;background:var(--page);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:900px;margin:auto}h1{font-size:26px;margin:0 0 2px;letter-spacing:-.01em}h2{font-size:16px;margin:0 0 10px}
.sub{color:var(--dim);margin:0 0 22px}section{background:var(--card);border:1px solid var(--line);border-radius:12px;padding:18px 20px;margin:0 0 16px}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(130px,1fr));gap:12px;padding:0;background:none;border:0}
.tile{background:var(--card);border:1px solid var(--line);border-radius:12px;padding:12px 16px}.tile b{display:block;font-size:22px;font-variant-numeric:tabular-nums}
.tile span{color:var(--dim);font-size:13px}svg{width:100%;height:auto;display:block}svg text{fill:var(--dim);font:12px system-ui,sans-serif}
.key{display:flex;flex-wrap:wrap;gap:16px;color:var(--dim);font-size:13px;margin:6px 0 0}.key i{display:inline-block;width:18px;height:3px;border-radius:2px;margin:0 6px 3px 0;vertical-align:middle}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}td,th{text-align:left;padding:5px 12px 5px 0;border-bottom:1px solid var(--line);vertical-align:top}tr:last-child td{border:0}
td.n{text-align:right}.good{color:var(--green)}.bad{color:var(--red);font-weight:600}.verdict{font-size:17px;margin:0 0 20px}
";

/// The whole page.
pub fn page(record: &Record) -> String {
    let mut out = String::new();
    let title = escape(&record.title);
    let _ = write!(
        out,
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>\
         <title>{title}</title><style>{STYLE}</style><main><h1>{title}</h1><p class=sub>hongbao-load {}, seed {}, {} sessions, {:.1} s</p>",
        record.scenario,
        record.seed,
        thousands(record.sessions as u64),
        record.seconds
    );
    verdict(&mut out, record);
    tiles(&mut out, record);
    if !record.series.is_empty() {
        let x: Vec<f64> = record.series.iter().map(|slot| slot.at_s).collect();
        let line = |name, colour, of: fn(&crate::swarm::tally::Slot) -> f64| Line {
            name,
            colour,
            points: x
                .iter()
                .copied()
                .zip(record.series.iter().map(of))
                .collect(),
        };
        let slot_s = x
            .get(1)
            .map_or(record.seconds.max(1.0), |second| second - x[0]);
        let per_second = |line: Line| Line {
            points: line.points.iter().map(|(x, y)| (*x, y / slot_s)).collect(),
            ..line
        };
        let latency = [
            line("p50", "--blue", |slot| slot.p50_ms),
            line("p99", "--gold", |slot| slot.p99_ms),
            line("max", "--red", |slot| slot.max_ms),
        ];
        chart(
            &mut out,
            "Latency over time, ms",
            "seconds",
            &latency,
            &seconds_label,
        );
        let rates = [
            per_second(line("planned", "--gold", |slot| slot.planned as f64)),
            per_second(line("answered", "--green", |slot| slot.answered as f64)),
        ];
        chart(
            &mut out,
            "Rate, a second",
            "seconds",
            &rates,
            &seconds_label,
        );
    }
    if !record.curve.is_empty() {
        // Each step to the right halves the part that is slower.
        let points = record.curve.iter().enumerate();
        let points = points.map(|(at, point)| (at as f64, point.ms)).collect();
        let line = Line {
            name: "latency",
            colour: "--blue",
            points,
        };
        let curve = &record.curve;
        let label = |x: f64| {
            let quantile = curve[(x.round() as usize).min(curve.len() - 1)].quantile;
            let digits = (x / 3.3).floor().max(0.0) as usize;
            format!("{:.digits$} %", quantile * 100.0)
        };
        chart(
            &mut out,
            "Percentiles, ms",
            "share of requests that are faster",
            &[line],
            &label,
        );
    }
    outcomes(&mut out, record);
    rows(&mut out, record);
    out.push_str("</main></html>\n");
    out
}

fn verdict(out: &mut String, record: &Record) {
    let failed = record.checks.iter().filter(|check| !check.ok).count();
    let broken = record.thresholds.iter().filter(|one| !one.kept).count();
    let (class, text) = match (failed, broken) {
        (0, 0) => ("good", "✓ Every check and every bound holds.".to_owned()),
        (0, broken) => ("bad", format!("✗ {broken} of the bounds did not hold.")),
        (failed, _) => ("bad", format!("✗ {failed} of the checks failed.")),
    };
    let _ = write!(out, "<p class='verdict {class}'>{text}</p>");
}

fn tiles(out: &mut String, record: &Record) {
    let ms = |ms: f64| format!("{ms:.2} ms");
    let tiles = [
        ("answered", thousands(record.answered)),
        ("a second", thousands(record.per_second.round() as u64)),
        ("p50", ms(record.latency_ms.p50)),
        ("p99", ms(record.latency_ms.p99)),
        ("slowest", ms(record.latency_ms.max)),
        ("dropped", thousands(record.dropped)),
        ("sent late", thousands(record.late)),
    ];
    out.push_str("<section class=tiles>");
    for (name, value) in tiles {
        let _ = write!(
            out,
            "<div class=tile><b>{value}</b><span>{name}</span></div>"
        );
    }
    out.push_str("</section>");
}

struct Line {
    name: &'static str,
    /// A colour of the style sheet.
    colour: &'static str,
    points: Vec<(f64, f64)>,
}

fn chart(out: &mut String, title: &str, axis: &str, lines: &[Line], label: &dyn Fn(f64) -> String) {
    let all = || lines.iter().flat_map(|line| &line.points);
    let x_first = all().map(|point| point.0).fold(f64::INFINITY, f64::min);
    let x_last = all().map(|point| point.0).fold(x_first + 1e-9, f64::max);
    let top = nice(all().map(|point| point.1).fold(0.0, f64::max));
    let place_x = |x: f64| LEFT + (x - x_first) / (x_last - x_first) * (WIDTH - LEFT - RIGHT);
    let place_y = |y: f64| HEIGHT - BOTTOM - y / top * (HEIGHT - TOP - BOTTOM);
    let _ = write!(
        out,
        "<section><h2>{title}</h2><svg viewBox='0 0 {WIDTH} {HEIGHT}' role=img aria-label='{title}'>"
    );
    for n in 0..=GRID_LINES {
        let value = top * n as f64 / GRID_LINES as f64;
        let (y, text) = (place_y(value), figure(value));
        let _ = write!(
            out,
            "<line x1={LEFT} x2={} y1={y:.1} y2={y:.1} stroke='var(--line)'/><text x={} y={:.1} text-anchor=end>{text}</text>",
            WIDTH - RIGHT,
            LEFT - 8.0,
            y + 4.0
        );
    }
    for n in 0..=5 {
        let x = x_first + (x_last - x_first) * f64::from(n) / 5.0;
        let anchor = ["start", "middle", "middle", "middle", "middle", "end"][n as usize];
        let _ = write!(
            out,
            "<text x={:.1} y={} text-anchor={anchor}>{}</text>",
            place_x(x),
            HEIGHT - BOTTOM + 18.0,
            label(x)
        );
    }
    for line in lines {
        let points: Vec<String> = line
            .points
            .iter()
            .map(|(x, y)| format!("{:.1},{:.1}", place_x(*x), place_y(*y)))
            .collect();
        let _ = write!(
            out,
            "<polyline fill=none stroke='var({})' stroke-width=2 stroke-linejoin=round points='{}'/>",
            line.colour,
            points.join(" ")
        );
    }
    out.push_str("</svg><p class=key>");
    for line in lines {
        let _ = write!(
            out,
            "<span><i style='background:var({})'></i>{}</span>",
            line.colour, line.name
        );
    }
    let _ = write!(out, "<span>→ {axis}</span></p></section>");
}

fn outcomes(out: &mut String, record: &Record) {
    let most = record.outcomes.iter().map(|(_, n)| *n).max().unwrap_or(0);
    if most == 0 {
        return;
    }
    out.push_str("<section><h2>Outcomes</h2><table>");
    for (name, n) in &record.outcomes {
        let width = (*n as f64 / most as f64 * 100.0).max(0.3);
        let _ = write!(
            out,
            "<tr><td>{}</td><td class=n>{}</td><td style='width:60%'><div style='background:var(--red);opacity:.85;border-radius:3px;height:14px;margin-top:4px;width:{width:.1}%'></div></td></tr>",
            escape(name),
            thousands(*n)
        );
    }
    out.push_str("</table></section>");
}

fn rows(out: &mut String, record: &Record) {
    let mut table = |title: &str, rows: Vec<[String; 2]>| {
        if rows.is_empty() {
            return;
        }
        let _ = write!(out, "<section><h2>{title}</h2><table>");
        for [name, value] in rows {
            let _ = write!(out, "<tr><td>{name}</td><td>{value}</td></tr>");
        }
        out.push_str("</table></section>");
    };
    let trials = record.trials.iter().map(|trial| {
        let (class, word) = verdict_word(trial.good);
        [
            format!("{} a second offered", thousands(trial.rate as u64)),
            format!(
                "{} answered, p50 {:.2} ms, p99 {:.2} ms <span class={class}>{word}</span>",
                thousands(trial.reached as u64),
                trial.p50_ms,
                trial.p99_ms
            ),
        ]
    });
    table("Rates tried", trials.collect());
    let figures = record.figures.iter();
    let figures = figures.map(|(name, value)| [escape(name), format!("{value:.2}")]);
    table("More figures", figures.collect());
    let bounds = record.thresholds.iter().map(|one| {
        let (class, word) = verdict_word(one.kept);
        [
            escape(&one.bound),
            format!("{:.2} <span class={class}>{word}</span>", one.measured),
        ]
    });
    table("Bounds", bounds.collect());
    let checks = record.checks.iter().map(|check| {
        let (class, word) = verdict_word(check.ok);
        [
            escape(check.name),
            format!(
                "<span class={class}>{word}</span> {}",
                escape(&check.detail)
            ),
        ]
    });
    table("Checks", checks.collect());
    let faults = record.faults.iter();
    table(
        "Faults",
        faults.map(|fault| [escape(fault), String::new()]).collect(),
    );
}

fn verdict_word(good: bool) -> (&'static str, &'static str) {
    if good {
        ("good", "holds")
    } else {
        ("bad", "does not hold")
    }
}

fn seconds_label(x: f64) -> String {
    format!("{x:.1} s")
}

/// The next number up that people like on an axis.
fn nice(value: f64) -> f64 {
    if value <= 0.0 {
        return 1.0;
    }
    let size = 10f64.powf(value.log10().floor());
    let steps = [1.0, 1.2, 1.6, 2.0, 2.4, 3.2, 4.0, 5.0, 6.0, 8.0, 10.0];
    let step = steps.into_iter().find(|step| step * size >= value * 0.999);
    step.unwrap_or(10.0) * size
}

fn figure(value: f64) -> String {
    match value {
        value if value >= 10_000.0 => thousands(value as u64),
        value if value >= 10.0 => format!("{value:.0}"),
        value => format!("{value:.2}"),
    }
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

    #[test]
    fn the_page_stands_alone_and_shows_everything() {
        let mut record = crate::record::tests::record();
        record.title = "<b>taps</b>".to_owned();
        let page = page(&record);
        for outside in ["http", "src=", "<script", "@import", "url(", "<b>taps"] {
            assert!(!page.contains(outside), "{outside}");
        }
        assert_eq!(page.matches("<svg").count(), 3);
        for part in [
            "Latency over time",
            "Percentiles",
            "Outcomes",
            "WON",
            "planned",
            "holds",
        ] {
            assert!(page.contains(part), "{part}");
        }
        assert_eq!(page.matches("NaN").count(), 0);
    }

    #[test]
    fn axes_end_at_round_numbers() {
        assert_eq!(nice(0.0), 1.0);
        assert_eq!(nice(9.3), 10.0);
        assert_eq!(nice(1_130.0), 1_200.0);
        assert_eq!(nice(0.021), 0.024);
    }
}
