use hongbao::paint::thousands;

use super::chart::{Axis, Chart, Line, Style, Tick};
use super::figure;
use crate::bound::Metric;
use crate::record::Record;
use crate::summary::ms;
use crate::swarm::tally::Slot;

/// Above this ratio of the slowest to the usual, nothing of the usual would be seen on an even axis.
const RATIO_MAX: f64 = 15.0;
/// On a logarithmic axis there is no nothing, ms.
const LEAST_MS: f64 = 0.001;

pub fn write(out: &mut String, record: &Record) {
    if record.trials.len() > 1 {
        sweep_latency(record).draw(out);
        sweep_rate(record).draw(out);
    }
    if record.series.len() > 1 {
        latency(record).draw(out);
        rate(record).draw(out);
    }
    if record.curve.len() > 1 {
        percentiles(record).draw(out);
    }
}

/// What the charts over time are about: of a search, the best rate alone.
fn note(record: &Record) -> String {
    match record.knee {
        Some(knee) => format!("at the knee, {} a second", thousands(knee.round() as u64)),
        None => String::new(),
    }
}

// ---- axes ----

fn axis_ms(values: impl Iterator<Item = f64> + Clone, usual: f64) -> Axis {
    let most = values.clone().fold(0.0, f64::max).max(LEAST_MS);
    let least = values
        .filter(|value| *value > 0.0)
        .fold(f64::INFINITY, f64::min);
    match least.is_finite() && most > usual.max(least) * RATIO_MAX {
        true => Axis::logarithmic(least.max(LEAST_MS), most, figure_ms),
        false => Axis::from_zero(most, figure_ms),
    }
}

fn figure_ms(value: f64) -> String {
    match value {
        value if value >= 1_000.0 => thousands(value as u64),
        value => format!("{}", (value * 1_000.0).round() / 1_000.0),
    }
}

fn rate_text(value: f64) -> String {
    match value {
        value if value >= 10.0 || value == 0.0 => thousands(value.round() as u64),
        value => format!("{}", (value * 100.0).round() / 100.0),
    }
}

/// In seconds, and beyond some minutes in those.
fn time_text(value: f64) -> String {
    let value = (value * 100.0).round() / 100.0;
    match value {
        value if value >= 120.0 && value % 60.0 == 0.0 => format!("{} min", value / 60.0),
        value => format!("{value} s"),
    }
}

/// The bounds of these metrics, as the axis has them.
fn bounds(record: &Record, wanted: fn(Metric) -> bool) -> Vec<(f64, String)> {
    let wanted = record.thresholds.iter().filter(|one| wanted(one.metric));
    wanted
        .map(|one| (one.value, bound_text(&one.bound)))
        .collect()
}

/// As people write it.
fn bound_text(bound: &str) -> String {
    super::escape(&bound.replace("<=", " ≤ ").replace(">=", " ≥ "))
}

// ---- over time ----

/// How long each slot is: to the next, and the last as long as the one before it.
fn lengths(series: &[Slot]) -> Vec<f64> {
    let mut lengths: Vec<f64> = series
        .windows(2)
        .map(|two| (two[1].at_s - two[0].at_s).max(1e-3))
        .collect();
    lengths.push(lengths.last().copied().unwrap_or(1.0));
    lengths
}

/// At the middle of each slot.
fn over_time(series: &[Slot], of: impl Fn(&Slot, f64) -> Option<f64>) -> Vec<(f64, f64)> {
    let slots = series.iter().zip(lengths(series));
    slots
        .filter_map(|(slot, length)| Some((slot.at_s + length / 2.0, of(slot, length)?)))
        .collect()
}

fn time_axis(series: &[Slot]) -> Axis {
    let last = series.last().map_or(0.0, |slot| slot.at_s);
    let length = lengths(series).last().copied().unwrap_or(1.0);
    Axis::between(0.0, last + length, time_text)
}

fn explained(series: &[Slot]) -> Vec<(f64, f64, String)> {
    let slots = series.iter().zip(lengths(series));
    slots
        .map(|(slot, length)| {
            let text = format!(
                "{} to {}: planned {}, answered {}, dropped {}, late {}; p50 {}, p99 {}, max {}",
                time_text(slot.at_s),
                time_text(slot.at_s + length),
                thousands(slot.planned),
                thousands(slot.answered),
                thousands(slot.dropped),
                thousands(slot.late),
                ms(slot.p50_ms),
                ms(slot.p99_ms),
                ms(slot.max_ms)
            );
            (slot.at_s, slot.at_s + length, text)
        })
        .collect()
}

fn marks(record: &Record) -> Vec<(f64, String)> {
    let marks = record.marks.iter();
    marks
        .map(|mark| (mark.at_s, mark.what.to_owned()))
        .collect()
}

fn latency(record: &Record) -> Chart {
    let series = &record.series;
    let line = |name, colour, of: fn(&Slot) -> f64| Line {
        name,
        colour,
        style: Style::Line,
        // A slot without an answer has no latency.
        points: over_time(series, |slot, _| (slot.answered > 0).then(|| of(slot))),
    };
    let lines = vec![
        line("slowest", "--red", |slot| slot.max_ms),
        line("p99", "--gold", |slot| slot.p99_ms),
        line("p50", "--blue", |slot| slot.p50_ms),
    ];
    let bounds = bounds(record, |metric| metric.quantile().is_some());
    let values = lines.iter().flat_map(|line| &line.points).map(|one| one.1);
    Chart {
        title: "Latency over time",
        note: note(record),
        x: time_axis(series),
        y: axis_ms(values, record.latency_ms.p50),
        x_name: "since the start",
        y_name: "ms",
        lines,
        bounds,
        marks: marks(record),
        notes: vec![],
        explained: explained(series),
    }
}

fn rate(record: &Record) -> Chart {
    let series = &record.series;
    // The last slot is seldom whole, and a rate of a part of it would lie.
    let whole = match series.len() {
        0..=3 => &series[..],
        slots => &series[..slots - 1],
    };
    let a_second =
        |of: fn(&Slot) -> u64| over_time(whole, |slot, length| Some(of(slot) as f64 / length));
    let mut lines = vec![Line {
        name: "answered",
        colour: "--green",
        style: Style::Area,
        points: a_second(|slot| slot.answered),
    }];
    // A merged run does not know its plan by the second.
    if whole.iter().any(|slot| slot.planned > 0) {
        lines.push(Line {
            name: "planned",
            colour: "--gold",
            style: Style::Dashed,
            points: a_second(|slot| slot.planned),
        });
    }
    let more = [
        ("dropped", "--red", a_second(|slot| slot.dropped)),
        ("sent late", "--blue", a_second(|slot| slot.late)),
    ];
    for (name, colour, points) in more {
        if points.iter().any(|(_, value)| *value > 0.0) {
            let style = Style::Bars;
            lines.push(Line {
                name,
                colour,
                style,
                points,
            });
        }
    }
    let most = lines.iter().flat_map(|line| &line.points).map(|one| one.1);
    Chart {
        title: "Rate planned and reached",
        note: note(record),
        x: time_axis(series),
        y: Axis::from_zero(most.fold(0.0, f64::max), rate_text),
        x_name: "since the start",
        y_name: "a second",
        lines,
        bounds: bounds(record, |metric| metric == Metric::Rate),
        marks: marks(record),
        notes: vec![],
        explained: explained(series),
    }
}

// ---- the distribution ----

/// How often the part above a quantile has been halved, with a base of ten: 90 % is 1, 99 % is 2.
fn nines(quantile: f64) -> f64 {
    -(1.0 - quantile).log10()
}

fn percentiles(record: &Record) -> Chart {
    let curve = &record.curve;
    let points: Vec<(f64, f64)> = curve
        .iter()
        .map(|point| (nines(point.quantile), point.ms))
        .collect();
    let last = points.last().map_or(1.0, |point| point.0);
    let named = [
        (0.0, "0 %"),
        (0.5, "50 %"),
        (0.9, "90 %"),
        (0.99, "99 %"),
        (0.999, "99.9 %"),
        (0.9999, "99.99 %"),
        (0.99999, "99.999 %"),
        (0.999999, "99.9999 %"),
    ];
    let ticks = named
        .iter()
        .enumerate()
        .map(|(place, (quantile, text))| Tick {
            at: nines(*quantile),
            text: (*text).to_owned(),
            minor: place == 0 || (place > 3 && place % 2 == 1),
        });
    let ticks = ticks.filter(|tick| tick.at <= last + 1e-9).collect();
    // Each bound at its own percentile; that of the slowest at the end.
    let notes: Vec<(f64, f64, String)> = record
        .thresholds
        .iter()
        .filter_map(|one| {
            let at = nines(one.metric.quantile()?);
            let at = if at.is_finite() { at } else { last };
            (at <= last).then(|| (at, one.value, bound_text(&one.bound)))
        })
        .collect();
    let mut lines = vec![Line {
        name: "latency",
        colour: "--blue",
        style: Style::Line,
        points,
    }];
    let kept: Vec<(f64, f64)> = notes.iter().map(|(at, ms, _)| (*at, *ms)).collect();
    if !kept.is_empty() {
        lines.push(Line {
            name: "bound",
            colour: "--red",
            style: Style::Dots,
            points: kept,
        });
    }
    let values = lines.iter().flat_map(|line| &line.points).map(|one| one.1);
    let y = axis_ms(values, record.latency_ms.p50);
    let explained = curve.windows(2).map(|two| {
        let share = two[1].quantile * 100.0;
        let text = format!("{share:.4} % are at most {}", ms(two[1].ms));
        (nines(two[0].quantile), nines(two[1].quantile), text)
    });
    Chart {
        title: "Percentiles",
        note: "How many are at most so slow. Each step to the right leaves a tenth of the rest."
            .to_owned(),
        x: Axis::with_ticks(0.0, last.max(1e-3), ticks),
        y,
        x_name: "share of all",
        y_name: "ms",
        lines,
        bounds: vec![],
        marks: vec![],
        notes,
        explained: explained.collect(),
    }
}

// ---- a search ----

fn rates(record: &Record) -> Axis {
    let most = record.trials.iter().map(|trial| trial.rate);
    Axis::between(0.0, most.fold(0.0, f64::max) * 1.04, rate_text)
}

fn by_rate(record: &Record, of: fn(&crate::knee::Trial) -> f64) -> Vec<(f64, f64)> {
    let mut points: Vec<(f64, f64)> = record
        .trials
        .iter()
        .map(|trial| (trial.rate, of(trial)))
        .collect();
    // Of a rate that was tried again, the last time counts.
    points.reverse();
    points.sort_by(|one, two| one.0.total_cmp(&two.0));
    points.dedup_by_key(|point| point.0);
    points
}

fn sweep_latency(record: &Record) -> Chart {
    let dots = |good: bool| {
        let trials = record.trials.iter().filter(move |trial| trial.good == good);
        trials.map(|trial| (trial.rate, trial.p99_ms)).collect()
    };
    let line = |name, colour, style, points| Line {
        name,
        colour,
        style,
        points,
    };
    let lines = vec![
        line(
            "p50",
            "--blue",
            Style::Line,
            by_rate(record, |trial| trial.p50_ms),
        ),
        line(
            "p99 of a trial that held",
            "--green",
            Style::Dots,
            dots(true),
        ),
        line("p99 of one that did not", "--red", Style::Dots, dots(false)),
    ];
    let bound = record.p99_max.unwrap_or(0.0);
    let values = lines.iter().flat_map(|line| &line.points).map(|one| one.1);
    let values: Vec<f64> = values.chain([bound]).collect();
    let usual = record.trials.iter().map(|trial| trial.p50_ms);
    let usual = usual.fold(f64::INFINITY, f64::min);
    Chart {
        title: "Latency by rate",
        note: record
            .stopped
            .as_deref()
            .map(super::escape)
            .unwrap_or_default(),
        x: rates(record),
        y: axis_ms(values.iter().copied(), usual),
        x_name: "offered, a second",
        y_name: "ms",
        lines,
        bounds: vec![(bound, format!("p99 ≤ {} ms", figure(bound)))],
        marks: knee(record),
        notes: vec![],
        explained: vec![],
    }
}

/// None when the search was cut short.
fn knee(record: &Record) -> Vec<(f64, String)> {
    let mark = |knee: f64| (knee, format!("knee {}", thousands(knee.round() as u64)));
    record.knee.map(mark).into_iter().collect()
}

fn sweep_rate(record: &Record) -> Chart {
    let offered = by_rate(record, |trial| trial.rate);
    let lines = vec![
        Line {
            name: "reached",
            colour: "--green",
            style: Style::Line,
            points: by_rate(record, |trial| trial.reached),
        },
        Line {
            name: "offered",
            colour: "--gold",
            style: Style::Dashed,
            points: offered,
        },
    ];
    let most = lines.iter().flat_map(|line| &line.points).map(|one| one.1);
    Chart {
        title: "Rate offered and reached",
        note: String::new(),
        x: rates(record),
        y: Axis::from_zero(most.fold(0.0, f64::max), rate_text),
        x_name: "offered, a second",
        y_name: "a second",
        lines,
        bounds: vec![],
        marks: knee(record),
        notes: vec![],
        explained: vec![],
    }
}
