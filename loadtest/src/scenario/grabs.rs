use std::time::Duration;

use hongbao::paint::thousands;
use hongbao::wire::Outcome;

use super::args::GrabsArgs;
use super::{Field, admin_client, finish, generator};
use crate::rains::Ending;
use crate::record::{Record, Verdict};
use crate::summary::of;
use crate::swarm::Closed;
use crate::swarm::dialect::{Ask, Who};
use crate::swarm::plan::Plan;
use crate::swarm::tally::Tally;
use crate::{LoadError, rains};

/// A closed loop's rain has so many packets unless told otherwise.
const CLOSED_PACKETS: u32 = 1_000_000;
/// A rain has at most this many packets.
const PACKETS_MAX: f64 = 100_000_000.0;
/// Of an audit's differences, so many are named.
const DIFFERENCES_MAX: usize = 5;

/// Winning grabs, a fresh user for each; then the ledger and the audit are asked whether each win was credited once.
pub async fn grabs(args: GrabsArgs) -> Result<Verdict, LoadError> {
    if args.ramp > args.length {
        let (ramp, length) = (args.ramp.as_secs_f64(), args.length.as_secs_f64());
        return Err(LoadError::Usage(format!(
            "--ramp {ramp} s is longer than --length {length} s"
        )));
    }
    let field = Field::new(&args.target, &args.output)?;
    let admin = admin_client(&args.admin)?;
    let chance = (!args.even).then_some(field.seed);
    let plan = Plan::new(args.rate, args.length, args.ramp, chance);
    let packets = packets(&args, &plan)?;
    let rain = field.ready_rain(&admin, &args.admin, "g", packets).await?;
    rains::open(&admin, rain, args.admin.patience).await?;
    let dialect = field.dialect(Who::Fresh, Ask::Grab(Some(rain)))?;
    let mut swarm = field.swarm(dialect, args.length)?;
    field.connect_all(&mut swarm, args.sessions)?;
    let tally = match args.closed {
        Some(in_flight) => swarm.closed_loop(Closed {
            in_flight,
            warm_up: Duration::ZERO,
            length: args.length,
            requests_max: u64::MAX,
        }),
        None => swarm.open_loop(plan, args.in_flight_max),
    };
    let tally = tally.map_err(generator("run the generator"))?;
    let told = Told::of(&tally);
    let by_plan = args.packets.is_none() && args.closed.is_none();
    let enough = by_plan || enough_for(tally.sent as f64) <= f64::from(packets);
    let mut record = Record::new("grabs", &title(&args), field.seed, tally);
    record.sessions = args.sessions as usize;
    field.tell("waiting for settlement, the refund and the audit");
    let ending = rains::close_and_audit(&admin, rain, args.admin.patience).await?;
    hold_against(&mut record, &ending, told);
    if enough {
        every_grab_won(&mut record, told);
    }
    finish(record, &args.output)
}

fn packets(args: &GrabsArgs, plan: &Plan) -> Result<u32, LoadError> {
    let enough = match (args.packets, args.closed) {
        (Some(packets), _) => packets.into(),
        (None, Some(_)) => CLOSED_PACKETS.into(),
        (None, None) => enough_for(plan.expected()),
    };
    if enough > PACKETS_MAX {
        return Err(LoadError::Usage(format!(
            "{} packets are more than the 100,000,000 that a rain may have: a lower --rate, a shorter --length, or --packets",
            thousands(enough as u64)
        )));
    }
    Ok(enough as u32)
}

/// Packets with which every one of so many grabs can win. A fifth more: neither arrivals nor users spread evenly.
fn enough_for(grabs: f64) -> f64 {
    grabs * 1.2 + 1_000.0
}

fn title(args: &GrabsArgs) -> String {
    let sessions = of(args.sessions.into(), "session");
    let length = args.length.as_secs_f64();
    match args.closed {
        Some(in_flight) => {
            format!("winning grabs for {length} s, {sessions} with {in_flight} in flight each")
        }
        None => format!(
            "{} winning grabs a second by plan for {length} s, over {sessions}",
            thousands(args.rate.round() as u64)
        ),
    }
}

/// What the clients of one rain were told.
#[derive(Clone, Copy, Debug)]
pub struct Told {
    won: u64,
    /// Grabs that may have won: their answer never came, or it was RETRY, and nobody asked again.
    unknown: u64,
}

impl Told {
    pub fn of(tally: &Tally) -> Told {
        Told {
            won: tally.outcome(Outcome::Won as i32),
            unknown: tally.unanswered + tally.outcome(Outcome::Retry as i32),
        }
    }
}

/// For a rain that has a packet for each.
fn every_grab_won(record: &mut Record, told: Told) {
    let refused = record.answered - told.won;
    let outcomes: Vec<String> = record
        .outcomes
        .iter()
        .map(|(name, count)| format!("{name} {}", thousands(*count)))
        .collect();
    record.check("every grab won", refused == 0, || {
        let refused = thousands(refused);
        format!("{refused} did not: {}", outcomes.join(", "))
    });
}

/// Checks what was told against what is on the accounts.
pub fn hold_against(record: &mut Record, ending: &Ending, told: Told) {
    let Ending { audit, stuck } = ending;
    record.check("the rain was closed and refunded", stuck.is_none(), || {
        stuck.clone().unwrap_or_default()
    });
    let (credited, Told { won, unknown }) = (audit.credited_count, told);
    let fits = (won..=won + unknown).contains(&credited);
    record.check("every win that was told was credited once", fits, || {
        format!(
            "{won} were told, {unknown} were answered RETRY or not at all, {credited} were credited"
        )
    });
    let spent = audit.credited_cents.checked_add(audit.refunded_cents);
    record.check(
        "funded is credited and refunded, to the cent",
        spent == Some(audit.funded_cents),
        || {
            let (funded, credited) = (audit.funded_cents, audit.credited_cents);
            let left = audit.refunded_cents;
            format!("funded {funded}, credited {credited}, refunded {left}")
        },
    );
    let moving = audit.in_motion;
    record.check(
        "the audit is balanced",
        audit.balanced && moving == 0,
        || {
            let count = audit.differences.len();
            let few = audit.differences.iter().take(DIFFERENCES_MAX);
            let few: Vec<String> = few.map(crate::report::line).collect();
            format!(
                "{count} difference{}, {moving} packets in motion: {}",
                if count == 1 { "" } else { "s" },
                few.join("; ")
            )
        },
    );
    let (lost, faults) = (record.lost, record.faults.join("; "));
    record.check("no connection was lost", lost == 0, || {
        format!("{lost} were: {faults}")
    });
}
