use std::path::Path;

use hongbao::paint::thousands;

use super::args::IdleArgs;
use super::{Field, finish, generator};
use crate::LoadError;
use crate::bench::process::memory_bytes;
use crate::record::{Record, Verdict};
use crate::swarm::dialect::{Ask, Who};
use crate::swarm::plan::Plan;

/// Holds sessions that only send their heartbeats. A latency is that of a Ping.
pub fn idle(args: IdleArgs) -> Result<Verdict, LoadError> {
    let connect = &args.connect;
    if let Some(pid) = args.pid
        && !Path::new(&format!("/proc/{pid}")).exists()
    {
        return Err(LoadError::Usage(format!(
            "--pid {pid}: there is no such process on this machine"
        )));
    }
    let field = Field::new(&connect.target, &connect.output)?;
    let mut swarm = field.swarm(field.dialect(Who::Own, Ask::Ping)?, args.length)?;
    let before = args.pid.map(memory_bytes);
    let connected = field.connect(&mut swarm, connect.sessions, connect.rate, connect.within)?;
    let ready = swarm.ready();
    if ready == 0 {
        return Err(LoadError::Sessions {
            ready,
            wanted: connect.sessions as usize,
            faults: connected.faults.join("; "),
        });
    }
    let held = args.pid.map(memory_bytes);
    // In turn, so that each session's comes once in a heartbeat.
    let rate = ready as f64 / args.heartbeat.as_secs_f64();
    let plan = Plan::new(rate, args.length, std::time::Duration::ZERO, None);
    let tally = swarm.open_loop(plan, 1);
    let tally = tally.map_err(generator("hold the sessions"))?;
    let title = format!(
        "{} idle sessions for {:.0} s, a heartbeat every {:.0} s",
        thousands(ready as u64),
        args.length.as_secs_f64(),
        args.heartbeat.as_secs_f64()
    );
    let mut record = Record::new("idle", &title, field.seed, tally);
    record.sessions = ready;
    record.failed = connected.failed;
    record.figure("connects a second", connected.per_second());
    if let (Some(before), Some(held)) = (before, held) {
        let each = held.saturating_sub(before) as f64 / ready as f64;
        record.figure("KiB a session", each / 1_024.0);
        record.figure("MiB in all", held as f64 / 1_048_576.0);
    }
    let (wanted, left) = (connect.sessions as usize, swarm.ready());
    record.check("every session came up", ready == wanted, || {
        format!("{ready} of {wanted} did")
    });
    record.check("every session was held", left == ready, || {
        format!("{left} of {ready} are left")
    });
    let (due, answered) = (record.planned, record.answered);
    let (unanswered, dropped) = (record.unanswered, record.dropped);
    record.check(
        "every heartbeat was answered",
        due > 0 && answered == due,
        || match due {
            0 => "none was due: --length is too short for it".to_owned(),
            due => format!(
                "{answered} of {due} were; {unanswered} were not, and {dropped} could not be sent"
            ),
        },
    );
    finish(record, &connect.output)
}
