use std::fmt::Write as _;

use hongbao::paint::thousands;

use super::{escape, figure, utc};
use crate::record::Record;
use crate::summary::{measured, ms};

pub fn write(out: &mut String, record: &Record) {
    outcomes(out, record);
    trials(out, record);
    figures(out, record);
    verdicts(out, record);
    let faults = record.faults.iter();
    let faults: Vec<[String; 2]> = faults.map(|fault| [escape(fault), String::new()]).collect();
    table(out, "Faults", &faults);
    how(out, record);
}

/// Names and values.
fn table(out: &mut String, title: &str, rows: &[[String; 2]]) {
    if rows.is_empty() {
        return;
    }
    let _ = write!(out, "<section><h2>{title}</h2><table>");
    for [name, value] in rows {
        let _ = write!(out, "<tr><td class=name>{name}<td>{value}");
    }
    out.push_str("</table></section>");
}

/// What an outcome is to whoever gets it.
fn colour(outcome: &str) -> &'static str {
    match outcome {
        "WON" | "ALREADY_WON" | "answered" | "Welcome" => "--green",
        "SOLD_OUT" | "CLOSED" | "MISSED" | "NOT_OPEN" | "PAUSED" => "--grey",
        "BUSY" | "RETRY" => "--gold",
        _ => "--red",
    }
}

fn outcomes(out: &mut String, record: &Record) {
    let all: u64 = record.outcomes.iter().map(|(_, n)| *n).sum();
    let most = record.outcomes.iter().map(|(_, n)| *n).max().unwrap_or(0);
    if most == 0 {
        return;
    }
    out.push_str("<section><h2>Outcomes</h2><table>");
    for (name, n) in &record.outcomes {
        let width = *n as f64 / most as f64 * 100.0;
        let share = *n as f64 / all as f64 * 100.0;
        let _ = write!(
            out,
            "<tr><td>{}<td class=n>{}<td class=n>{share:.1} %<td class=bar><div style='background:var({});width:{width:.1}%'></div>",
            escape(name),
            thousands(*n),
            colour(name)
        );
    }
    out.push_str("</table></section>");
}

fn trials(out: &mut String, record: &Record) {
    if record.trials.is_empty() {
        return;
    }
    out.push_str("<section><h2>Rates tried</h2><div class=scroll><table><tr><th class=n>offered/s<th class=n>reached/s<th class=n>p50<th class=n>p99<th class=n>dropped<th class=n>sent late<th>");
    for trial in &record.trials {
        let (class, text) = match trial.good {
            true => ("good", "held".to_owned()),
            false => ("bad", trial.why.join(", ")),
        };
        let _ = write!(
            out,
            "<tr><td class=n>{}<td class=n>{}<td class=n>{}<td class=n>{}<td class=n>{}<td class=n>{}<td class={class}>{}",
            thousands(trial.rate.round() as u64),
            thousands(trial.reached.round() as u64),
            ms(trial.p50_ms),
            ms(trial.p99_ms),
            thousands(trial.dropped),
            thousands(trial.late),
            escape(&text)
        );
    }
    out.push_str("</table></div></section>");
}

fn figures(out: &mut String, record: &Record) {
    let latency = &record.latency_ms;
    let mut rows = vec![[
        "Answered of planned".to_owned(),
        format!(
            "{} of {}",
            thousands(record.answered),
            thousands(record.planned)
        ),
    ]];
    if record.answered > 0 {
        rows.push([
            "Latency".to_owned(),
            format!(
                "mean {}, p50 {}, p90 {}, p99 {}, p99.9 {}, slowest {}",
                ms(latency.mean),
                ms(latency.p50),
                ms(latency.p90),
                ms(latency.p99),
                ms(latency.p999),
                ms(latency.max)
            ),
        ]);
    }
    for (name, count) in [
        ("Dropped: no session had room", record.dropped),
        ("Sent more than 5 ms late", record.late),
        ("Without an answer", record.unanswered),
        ("Failed to connect", record.failed),
        ("Connections lost", record.lost),
    ] {
        rows.push([name.to_owned(), thousands(count)]);
    }
    let more = record.figures.iter();
    rows.extend(more.map(|(name, value)| [escape(name), figure(*value)]));
    let facts = record.facts.iter();
    rows.extend(facts.map(|(name, text)| [escape(name), escape(text)]));
    table(out, "Figures", &rows);
}

fn verdicts(out: &mut String, record: &Record) {
    let word = |good: bool, right: &str, wrong: &str| match good {
        true => format!("<span class=good><i class=is></i>{right}</span>"),
        false => format!("<span class=bad><i class=is></i>{wrong}</span>"),
    };
    let bounds: Vec<[String; 2]> = record
        .thresholds
        .iter()
        .map(|one| {
            let word = word(one.kept, "kept", "not kept");
            [
                escape(&one.bound),
                format!("{word}, measured {}", measured(one)),
            ]
        })
        .collect();
    table(out, "Bounds", &bounds);
    let checks: Vec<[String; 2]> = record
        .checks
        .iter()
        .map(|check| {
            let word = word(check.ok, "holds", "failed");
            [
                escape(&check.name),
                format!("{word} {}", escape(&check.detail)),
            ]
        })
        .collect();
    table(out, "Checks", &checks);
}

fn how(out: &mut String, record: &Record) {
    let machine = &record.machine;
    let rows = [
        [
            "Command".to_owned(),
            format!("<code>{}</code>", escape(&record.command)),
        ],
        [
            "Seed".to_owned(),
            format!("{}: the same seed has the same plan and the same users", record.seed),
        ],
        [
            "Generator's machine".to_owned(),
            format!(
                "{} processors ({}), {} MiB of memory, Linux {}, load {:.1} at the end",
                machine.processors,
                escape(&machine.model),
                thousands(machine.memory_mib),
                escape(&machine.kernel),
                machine.load_before
            ),
        ],
        [
            "Written".to_owned(),
            format!(
                "{} by hongbao-load {}",
                utc(machine.at_ms),
                env!("CARGO_PKG_VERSION")
            ),
        ],
        [
            "How latency is measured".to_owned(),
            "from the instant at which a request was planned to be sent, whether it could be or not".to_owned(),
        ],
    ];
    table(out, "How it was run", &rows);
}
