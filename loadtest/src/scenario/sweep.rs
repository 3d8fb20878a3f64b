use std::io::IsTerminal;
use std::time::Duration;

use hongbao::client::admin::AdminClient;
use hongbao::paint::{Paint, thousands};

use super::args::SweepArgs;
use super::grabs::{Told, hold_against};
use super::{Field, admin_client, finish, generator, slot_ms};
use crate::knee::{Search, Trial, stopped};
use crate::rains::Ending;
use crate::record::{Record, Verdict};
use crate::show::pace;
use crate::summary::{of, trial_line};
use crate::swarm::dialect::{Ask, Gateway, Who};
use crate::swarm::plan::Plan;
use crate::swarm::tally::Tally;
use crate::swarm::{IN_FLIGHT_MAX, Swarm};
use crate::{LoadError, interrupt, rains};

/// From the first rate to the highest: 1.5^28 is 85,000.
const TO_FACTOR_MAX: f64 = 100_000.0;
/// A rain has at most this many packets.
const PACKETS_MAX: f64 = 100_000_000.0;

/// Looks for the knee, with winning grabs of fresh users.
pub async fn sweep(args: SweepArgs) -> Result<Verdict, LoadError> {
    check(&args)?;
    let field = Field::new(&args.target, &args.output)?;
    let admin = admin_client(&args.admin)?;
    let mut swarm = field.swarm(field.dialect(Who::Fresh, Ask::Ping)?, args.length)?;
    // A line a trial is enough.
    swarm.with_series(slot_ms(args.length), 1, pace::nobody);
    field.connect_all(&mut swarm, args.sessions)?;
    let paint = Paint::for_terminal(std::io::stderr().is_terminal());
    field.tell("            offered    reached        p50        p99");
    let mut best: Option<(f64, Tally)> = None;
    let (mut endings, mut trials) = (vec![], vec![]);
    let mut search = Search::new(args.from, args.to, args.halvings, args.confirm);
    while let Some(rate) = search.next() {
        let (number, purpose) = (trials.len() as u64 + 1, search.purpose());
        let (tally, ending) = offer(&field, &args, &admin, &mut swarm, (number, rate)).await?;
        if interrupt::is_set() {
            endings.push((ending, Told::of(&tally)));
            break; // half a trial says nothing about its rate
        }
        let trial = Trial::of(rate, args.length, &tally).judge(args.p99_max);
        field.tell(&format!("{purpose:<10}{}", trial_line(&trial, paint)));
        endings.push((ending, Told::of(&tally)));
        search.tried(trial.good);
        if trial.good && best.as_ref().is_none_or(|(highest, _)| rate >= *highest) {
            best = Some((rate, tally));
        } else if search.knee() < best.as_ref().map_or(0.0, |(highest, _)| *highest) {
            best = None; // it did not hold again
        }
        trials.push(trial);
    }
    let sought = format!(
        "p99 ≤ {} ms, over {}",
        args.p99_max,
        of(args.sessions.into(), "session")
    );
    let (knee, stopped) = (search.found(), stopped(&search, &trials, args.to));
    let title = match knee {
        Some(knee) => {
            let knee = thousands(knee.round() as u64);
            format!("{knee} winning grabs a second are the knee: {sought}")
        }
        None => format!("a search for the knee, cut short: {sought}"),
    };
    // The charts over time are those of the knee.
    let tally = best.map_or_else(|| Tally::new(0), |(_, tally)| tally);
    let mut record = Record::new("sweep", &title, field.seed, tally);
    record.sessions = args.sessions as usize;
    record.knee = knee;
    record.stopped = Some(stopped);
    record.trials = trials;
    record.p99_max = Some(args.p99_max);
    for (ending, told) in &endings {
        hold_against(&mut record, ending, *told);
    }
    // One line for each promise, not for each rain: the broken one comes first.
    record
        .checks
        .sort_by_key(|check| (check.name.clone(), check.ok));
    record.checks.dedup_by_key(|check| check.name.clone());
    finish(record, &args.output)
}

fn check(args: &SweepArgs) -> Result<(), LoadError> {
    let (from, to) = (args.from, args.to);
    let fault = if to < from {
        format!("--to {to} is below --from {from}")
    } else if to > from * TO_FACTOR_MAX {
        format!("--to {to} is more than {TO_FACTOR_MAX} times --from {from}")
    } else if packets(to, args.length) > PACKETS_MAX {
        let length = args.length.as_secs_f64();
        format!(
            "--to {to} a second for --length {length} s needs more than the 100,000,000 packets that a rain may have"
        )
    } else {
        return Ok(());
    };
    Err(LoadError::Usage(fault))
}

/// Enough that every grab can win: users do not spread evenly over the buckets.
fn packets(rate: f64, length: Duration) -> f64 {
    rate * length.as_secs_f64() * 1.3 + 1_000.0
}

/// Offers one rate for a while, to a rain of its own.
async fn offer(
    field: &Field,
    args: &SweepArgs,
    admin: &AdminClient,
    swarm: &mut Swarm<Gateway>,
    (number, rate): (u64, f64),
) -> Result<(Tally, Ending), LoadError> {
    let packets = packets(rate, args.length) as u32;
    let rain = field
        .ready_rain(admin, &args.admin, &format!("w{number}"), packets)
        .await?;
    rains::open(admin, rain, args.admin.patience).await?;
    swarm.dialect.ask(Ask::Grab(Some(rain)));
    let plan = Plan::new(rate, args.length, Duration::ZERO, Some(field.seed + number));
    let tally = swarm.open_loop(plan, IN_FLIGHT_MAX);
    let tally = tally.map_err(generator("run the generator"))?;
    let ending = rains::close_and_audit(admin, rain, args.admin.patience).await?;
    Ok((tally, ending))
}
