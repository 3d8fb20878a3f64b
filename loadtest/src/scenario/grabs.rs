use hongbao::client::admin::Audit;
use hongbao::wire::Outcome;

use super::args::GrabsArgs;
use super::{Field, finish, generator};
use crate::record::{Record, Verdict};
use crate::swarm::Closed;
use crate::swarm::dialect::{Ask, Who};
use crate::swarm::plan::Plan;
use crate::{LoadError, rains};

/// A closed loop's rain has so many packets unless told otherwise.
const CLOSED_PACKETS: u32 = 1_000_000;

/// Winning grabs, a fresh user for each; then the ledger and the audit are asked whether each win was credited once.
pub async fn grabs(args: GrabsArgs) -> Result<Verdict, LoadError> {
    if !(args.rate > 0.0 && args.rate <= 10_000_000.0) {
        return Err(LoadError::Usage(
            "--rate must be above 0 and at most ten million".to_owned(),
        ));
    }
    let field = Field::new(&args.target, &args.output)?;
    let admin = field.admin(&args.admin)?;
    let chance = (!args.even).then_some(field.seed);
    let plan = Plan::new(args.rate, args.length, args.ramp, chance);
    let enough = match args.closed {
        Some(_) => CLOSED_PACKETS,
        // A fifth more: neither arrivals nor users spread evenly.
        None => (plan.expected() * 1.2) as u32 + 1_000,
    };
    let packets = args.packets.unwrap_or(enough);
    let rain = field.ready_rain(&admin, &args.admin, "g", packets).await?;
    rains::open(&admin, rain, args.admin.patience).await?;
    let mut swarm = field.swarm(field.dialect(Who::Fresh, Ask::Grab(Some(rain)))?)?;
    field.connect_all(&mut swarm, args.sessions)?;
    let (title, tally) = match args.closed {
        Some(in_flight) => {
            let closed = Closed {
                in_flight,
                warm_up: std::time::Duration::ZERO,
                length: args.length,
                requests_max: u64::MAX,
            };
            let title = format!(
                "grabs, {} sessions with {in_flight} in flight",
                args.sessions
            );
            (title, swarm.closed_loop(closed))
        }
        None => {
            let title = format!("grabs, {:.0} a second by plan", args.rate);
            (title, swarm.open_loop(plan, args.in_flight_max))
        }
    };
    let tally = tally.map_err(generator("run the generator"))?;
    let won = tally.outcome(Outcome::Won as i32);
    let mut record = Record::new("grabs", &title, field.seed, tally);
    record.sessions = args.sessions as usize;
    field.tell("waiting for settlement, the refund and the audit");
    let audit = rains::close_and_audit(&admin, rain, args.admin.patience).await?;
    hold_against(&mut record, &audit, won);
    finish(record, &args.output)
}

/// Checks what was told against what is on the accounts.
pub fn hold_against(record: &mut Record, audit: &Audit, won: u64) {
    let (credited, unanswered) = (audit.credited_count, record.unanswered);
    // A grab whose answer never came may have won.
    let fits = credited >= won && credited <= won + unanswered;
    record.check("every win that was told was credited once", fits, || {
        format!("{won} were told, {unanswered} have no answer, {credited} were credited")
    });
    let differences = audit.differences.len();
    record.check("the audit is balanced", audit.balanced, || {
        format!("{differences} differences")
    });
    let (lost, faults) = (record.lost, record.faults.join("; "));
    record.check("no connection was lost", lost == 0, || {
        format!("{lost} were: {faults}")
    });
}
