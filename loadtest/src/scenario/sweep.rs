use std::time::Duration;

use hongbao::wire::Outcome;

use super::args::SweepArgs;
use super::grabs::hold_against;
use super::{Field, finish, generator};
use crate::knee::{Search, Trial};
use crate::record::{Record, Verdict};
use crate::swarm::IN_FLIGHT_MAX;
use crate::swarm::dialect::{Ask, Who};
use crate::swarm::plan::Plan;
use crate::swarm::tally::Tally;
use crate::{LoadError, rains};

/// Trials at most: 1.5^30 is a factor of 190,000 between the first rate and the last.
const TRIALS_MAX: f64 = 30.0;

/// Looks for the knee, with winning grabs of fresh users.
pub async fn sweep(args: SweepArgs) -> Result<Verdict, LoadError> {
    if !(args.from > 0.0 && args.to >= args.from && args.to <= args.from * 1.5f64.powf(TRIALS_MAX))
    {
        return Err(LoadError::Usage(
            "--from must be above 0, and --to at least that".to_owned(),
        ));
    }
    let field = Field::new(&args.target, &args.output)?;
    let admin = field.admin(&args.admin)?;
    let mut swarm = field.swarm(field.dialect(Who::Fresh, Ask::Ping)?)?;
    field.connect_all(&mut swarm, args.sessions)?;
    let mut number = 0;
    let mut best: Option<Tally> = None;
    let mut audits = vec![];
    // Each rate has a rain of its own, with enough packets, so that every grab can win.
    let (mut knee, mut trials) = (0.0, vec![]);
    let mut search = Search::new(args.from, args.to, args.halvings);
    while let Some(rate) = search.next() {
        number += 1;
        let packets = (rate * args.length.as_secs_f64() * 1.3) as u32 + 1_000;
        let rain = field
            .ready_rain(&admin, &args.admin, &format!("w{number}"), packets)
            .await?;
        rains::open(&admin, rain, args.admin.patience).await?;
        swarm.dialect.ask(Ask::Grab(Some(rain)));
        let plan = Plan::new(rate, args.length, Duration::ZERO, Some(field.seed + number));
        let tally = swarm.open_loop(plan, IN_FLIGHT_MAX);
        let tally = tally.map_err(generator("run the generator"))?;
        let trial = Trial {
            rate,
            reached: tally.answered as f64 / args.length.as_secs_f64(),
            p50_ms: tally.quantile_ms(0.5),
            p99_ms: tally.quantile_ms(0.99),
            dropped: tally.dropped,
            unanswered: tally.unanswered,
            late: tally.late,
            good: false,
        }
        .judge(args.p99_max);
        search.tried(trial);
        let won = tally.outcome(Outcome::Won as i32);
        audits.push((
            rains::close_and_audit(&admin, rain, args.admin.patience).await?,
            won,
        ));
        if trial.good && rate > knee {
            knee = rate;
            best = Some(tally);
        }
        trials.push(trial);
        if crate::interrupt::is_set() {
            break;
        }
    }
    let title = format!("the knee at p99 ≤ {} ms", args.p99_max);
    // The charts are those of the highest rate that was good.
    let mut record = Record::new(
        "sweep",
        &title,
        field.seed,
        best.unwrap_or_else(|| Tally::new(0)),
    );
    record.sessions = args.sessions as usize;
    record.knee = Some(knee);
    record.trials = trials;
    for (audit, won) in &audits {
        hold_against(&mut record, audit, *won);
    }
    // One line for each promise, not for each rain.
    record.checks.sort_by_key(|check| (check.name, check.ok));
    record.checks.dedup_by_key(|check| check.name);
    finish(record, &args.output)
}
