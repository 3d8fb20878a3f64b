use std::time::Duration;

use hongbao::paint::thousands;

use super::args::ConnectArgs;
use super::{Field, finish};
use crate::LoadError;
use crate::record::{Record, Verdict};
use crate::swarm::dialect::{Ask, Who};

/// A storm: sessions as fast as they are let in, or at a rate. A latency is from the first packet to the Welcome; at a rate, from the
/// instant at which the connection was due.
pub fn connect(args: ConnectArgs) -> Result<Verdict, LoadError> {
    let field = Field::new(&args.target, &args.output)?;
    let mut swarm = field.swarm(field.dialect(Who::Own, Ask::Ping)?, expected(&args))?;
    let tally = field.connect(&mut swarm, args.sessions, args.rate, args.within)?;
    let title = match args.rate {
        0 => format!(
            "{} connections, as fast as they are let in",
            thousands(args.sessions.into())
        ),
        rate => format!(
            "{} connections, {} a second",
            thousands(args.sessions.into()),
            thousands(rate.into())
        ),
    };
    let mut record = Record::new("connect", &title, field.seed, tally);
    let ready = swarm.ready();
    record.sessions = ready;
    record.planned = args.sessions.into();
    // Every answer is a Welcome.
    record.outcomes = vec![("Welcome".to_owned(), record.answered)];
    record.check(
        "every session came up",
        ready == args.sessions as usize,
        || format!("{ready} of {} did", args.sessions),
    );
    finish(record, &args.output)
}

/// How long it takes about, if nothing goes wrong.
fn expected(args: &ConnectArgs) -> Duration {
    const FAST: u32 = 10_000; // a second, when nobody holds them back
    let rate = if args.rate == 0 { FAST } else { args.rate };
    Duration::from_secs((args.sessions / rate).into()).min(args.within)
}
