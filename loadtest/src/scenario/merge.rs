use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use hdrhistogram::Histogram;

use super::args::MergeArgs;
use super::finish;
use crate::LoadError;
use crate::hdr::{self, Log};
use crate::meter::histogram_us;
use crate::rain::checks::Check;
use crate::record::{Record, Totals, Verdict};
use crate::swarm::tally::Slot;

/// Slots of the whole.
const SLOT: Duration = Duration::from_secs(1);
/// A chart has at most so many of them: logs of different days are no one run.
const SLOTS_MAX: usize = 86_400;

/// Several generators of one run as one. Percentiles cannot be averaged; histograms can be added up, and counts too. A check that failed anywhere fails
/// here.
pub fn merge(args: MergeArgs) -> Result<Verdict, LoadError> {
    crate::output::prepare(&args.output)?;
    let mut logs = vec![];
    for path in &args.files {
        let bytes = std::fs::read(path).map_err(|source| LoadError::Unreadable {
            path: path.clone(),
            source,
        })?;
        let fault = || LoadError::Usage(format!("{} is no HDR log", path.display()));
        logs.push((path.as_path(), hdr::read(&bytes).ok_or_else(fault)?));
    }
    let scenario = one_scenario(&logs)?;
    let what = scenario.map_or_else(String::new, |name| format!(" of \"{name}\""));
    let title = match logs.len() {
        1 => format!("1 generator{what}"),
        count => format!("{count} generators{what} as one"),
    };
    let first = logs.iter().find_map(|(_, log)| log.totals.as_ref());
    let seed = first.map_or(0, |totals| totals.seed);
    let mut record = over_time(&logs, Record::empty("merge", &title, seed));
    for (path, log) in &logs {
        match &log.totals {
            Some(totals) => add(&mut record, path, totals),
            None => {
                let answered = log.intervals.iter().map(|(_, _, one)| one.len());
                record.planned += answered.sum::<u64>();
                let path = path.display();
                let fault = format!("{path} tells no counts, only latencies");
                record.faults.push(fault);
            }
        }
    }
    let seeds: Vec<String> = logs
        .iter()
        .filter_map(|(_, log)| log.totals.as_ref())
        .map(|totals| totals.seed.to_string())
        .collect();
    record.facts.push(("seeds", seeds.join(", ")));
    finish(record, &args.output)
}

/// # Errors
/// Logs of different scenarios: a connect and a grab have nothing in common.
fn one_scenario<'a>(logs: &'a [(&Path, Log)]) -> Result<Option<&'a str>, LoadError> {
    let mut first: Option<(&Path, &str)> = None;
    for (path, log) in logs {
        let Some(totals) = &log.totals else { continue };
        match first {
            None => first = Some((path, &totals.scenario)),
            Some((_, scenario)) if scenario == totals.scenario => {}
            Some((one, scenario)) => {
                return Err(LoadError::Usage(format!(
                    "{} is a log of \"{scenario}\" and {} one of \"{}\": only generators of one run can be merged",
                    one.display(),
                    path.display(),
                    totals.scenario
                )));
            }
        }
    }
    Ok(first.map(|(_, scenario)| scenario))
}

/// All latencies, and as they were in each second.
fn over_time(logs: &[(&Path, Log)], mut record: Record) -> Record {
    let intervals = || logs.iter().flat_map(|(_, log)| &log.intervals);
    let began = intervals().map(|(begin, _, _)| *begin).min();
    let began = began.unwrap_or_default();
    let mut all = histogram_us();
    let mut ends = Duration::ZERO;
    let mut slots: BTreeMap<usize, Histogram<u64>> = BTreeMap::new();
    for (begin, length, histogram) in intervals() {
        let _ = all.add(histogram); // it grows if it has to
        let at = begin.saturating_sub(began);
        ends = ends.max(at + *length);
        let slot = (at.as_millis() / SLOT.as_millis()) as usize;
        let _ = slots
            .entry(slot)
            .or_insert_with(histogram_us)
            .add(histogram);
    }
    record.seconds = ends.as_secs_f64();
    record.answered = all.len();
    record.planned = 0;
    record.per_second = all.len() as f64 / record.seconds.max(1e-9);
    record.began = Some(UNIX_EPOCH + began).filter(|_| !began.is_zero());
    // How much was planned in each second stands in no log: a slot says only what was answered.
    // One slot is the whole run of a generator that keeps no series.
    let last = slots.keys().next_back().copied().unwrap_or(0);
    if last < SLOTS_MAX && slots.len() > 1 {
        for number in 0..=last {
            let none = histogram_us();
            let histogram = slots.get(&number).unwrap_or(&none);
            let slot = Slot {
                answered: histogram.len(),
                ..Slot::default()
            };
            let at_s = number as f64 * SLOT.as_secs_f64();
            record.series.push(slot.closed(at_s, histogram));
        }
    }
    record.with_latencies(all)
}

fn add(record: &mut Record, path: &Path, totals: &Totals) {
    record.sessions += totals.sessions;
    record.planned += totals.planned;
    record.sent += totals.sent;
    record.dropped += totals.dropped;
    record.late += totals.late;
    record.unanswered += totals.unanswered;
    record.failed += totals.failed;
    record.lost += totals.lost;
    for (name, count) in &totals.outcomes {
        match record.outcomes.iter_mut().find(|(known, _)| known == name) {
            Some((_, sum)) => *sum += count,
            None => record.outcomes.push((name.clone(), *count)),
        }
    }
    for (name, wrong) in &totals.checks {
        let detail = match wrong.is_empty() {
            true => String::new(),
            false => format!("{}: {wrong}", path.display()),
        };
        match record.checks.iter_mut().find(|check| check.name == *name) {
            Some(check) => {
                check.ok &= wrong.is_empty();
                check.detail += &detail;
            }
            None => record.checks.push(Check {
                name: name.clone().into(),
                ok: wrong.is_empty(),
                detail,
            }),
        }
    }
}
