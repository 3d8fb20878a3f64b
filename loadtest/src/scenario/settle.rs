use std::time::{Duration, Instant};

use hongbao::paint::thousands;
use hongbao::wire::Outcome;

use super::args::SettleArgs;
use super::grabs::{Told, hold_against};
use super::{Field, admin_client, finish, generator};
use crate::record::{Record, Verdict};
use crate::swarm::Closed;
use crate::swarm::dialect::{Ask, Who};
use crate::{LoadError, rains};

const SESSIONS: u32 = 50;
const IN_FLIGHT: u32 = 16;
/// The winning takes seconds.
const SHORT: Duration = Duration::from_secs(1);
/// The winning may take so long.
const WINNING_MAX: Duration = Duration::from_secs(120);
/// Between two looks at what is left.
const LOOK: Duration = Duration::from_millis(10);

/// Has many packets won as fast as it goes, and watches how long it takes until every win is a credit.
pub async fn settle(args: SettleArgs) -> Result<Verdict, LoadError> {
    let field = Field::new(&args.target, &args.output)?;
    let admin = admin_client(&args.admin)?;
    // Users do not spread evenly over the buckets: a fifth more, and nobody finds one empty.
    let packets = args.packets + args.packets / 5 + 100;
    let rain = field.ready_rain(&admin, &args.admin, "s", packets).await?;
    rains::open(&admin, rain, args.admin.patience).await?;
    let mut swarm = field.swarm(field.dialect(Who::Fresh, Ask::Grab(Some(rain)))?, SHORT)?;
    field.connect_all(&mut swarm, SESSIONS)?;
    let closed = Closed {
        in_flight: IN_FLIGHT,
        warm_up: Duration::ZERO,
        length: WINNING_MAX,
        requests_max: args.packets.into(),
    };
    let began = Instant::now();
    let tally = swarm.closed_loop(closed);
    let tally = tally.map_err(generator("run the generator"))?;
    let (winning, told) = (began.elapsed(), Told::of(&tally));
    let won = tally.outcome(Outcome::Won as i32);
    let behind = rains::unsettled(&admin, rain).await?;
    let deadline = Instant::now() + args.admin.patience;
    while rains::unsettled(&admin, rain).await? > 0 {
        if Instant::now() > deadline || crate::interrupt::is_set() {
            return Err(LoadError::TimedOut {
                what: "settlement",
                waited_s: args.admin.patience.as_secs(),
                seen: format!("{won} were won"),
            });
        }
        tokio::time::sleep(LOOK).await;
    }
    let whole = began.elapsed();
    let title = format!("{} wins, and their credits", thousands(won));
    let mut record = Record::new("settle", &title, field.seed, tally);
    record.sessions = SESSIONS as usize;
    record.figure("wins a second", won as f64 / winning.as_secs_f64());
    record.figure(
        "credits a second, from the first win to the last credit",
        won as f64 / whole.as_secs_f64(),
    );
    record.figure("claims that waited after the last win", behind as f64);
    record.figure(
        "seconds from the last win to the last credit",
        (whole - winning).as_secs_f64(),
    );
    let ending = rains::close_and_audit(&admin, rain, args.admin.patience).await?;
    hold_against(&mut record, &ending, told);
    finish(record, &args.output)
}
