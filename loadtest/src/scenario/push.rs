use std::time::Duration;

use hongbao::paint::thousands;

use super::args::PushArgs;
use super::{Field, admin_client, finish, generator};
use crate::LoadError;
use crate::record::{Record, Verdict};
use crate::swarm::dialect::{Ask, Who};
use crate::swarm::tally::Tally;

/// How long one push may take to reach everybody.
const PUSH_MAX: Duration = Duration::from_secs(30);
/// What is still on its way to somebody: Watching, RainAnnounced, the end of the rain before.
const CALM: Duration = Duration::from_secs(2);

/// Opens rains in a room that everybody watches. A latency is from the gateway's sending RainOpened (by its clock, which must be ours) to its being
/// read, with one thread reading for all.
pub async fn push(args: PushArgs) -> Result<Verdict, LoadError> {
    let connect = &args.connect;
    let mut field = Field::new(&connect.target, &connect.output)?;
    field.room.clone_from(&args.room);
    let admin = admin_client(&args.admin)?;
    let mut dialect = field.dialect(Who::Own, Ask::Ping)?;
    dialect.room = field.room();
    let mut swarm = field.swarm(dialect, connect.within)?;
    let connected = field.connect(&mut swarm, connect.sessions, connect.rate, connect.within)?;
    let ready = swarm.ready();
    let mut all = Tally::new(0);
    let (mut heard, mut seconds) = (0, 0.0);
    for time in 0..args.times {
        let opening = match args.follow {
            true => None,
            false => {
                let name = format!("p{time}");
                let rain = field.ready_rain(&admin, &args.admin, &name, 1).await?;
                swarm.listen(CALM, |_| false).map_err(generator("listen"))?;
                // Opened by another thread: this one must be listening by then.
                let opener = admin.clone();
                Some((
                    rain,
                    tokio::spawn(async move { opener.open_rain(rain).await }),
                ))
            }
        };
        let patience = match args.follow {
            true => args.admin.patience,
            false => PUSH_MAX,
        };
        let told = swarm
            .listen(patience, |tally| tally.push_lags.len() >= ready as u64)
            .map_err(generator("listen"))?;
        heard += told.push_lags.len();
        seconds += told.seconds();
        let _ = all.push_lags.add(&told.push_lags); // the same bounds, so it fits
        if let Some((rain, opening)) = opening {
            let opened = opening.await.expect("it does not panic");
            opened.map_err(|source| LoadError::Admin {
                doing: "open the rain",
                source,
            })?;
            let closed = admin.close_rain(rain).await;
            closed.map_err(|source| LoadError::Admin {
                doing: "close the rain",
                source,
            })?;
        }
        if crate::interrupt::is_set() {
            break;
        }
    }
    let lags = std::mem::replace(&mut all.push_lags, crate::meter::histogram_us());
    let title = format!(
        "RainOpened to {} sessions, {} times",
        thousands(ready as u64),
        args.times
    );
    let mut record = Record::new("push", &title, field.seed, all).with_latencies(lags);
    record.sessions = ready;
    record.seconds = seconds;
    record.planned = ready as u64 * u64::from(args.times);
    record.answered = heard;
    record.per_second = heard as f64 / seconds.max(1e-9);
    record.failed = connected.failed;
    let (planned, wanted) = (record.planned, connect.sessions as usize);
    record.check("every session came up", ready == wanted, || {
        format!("{ready} of {wanted} did")
    });
    record.check("everybody heard of every opening", heard == planned, || {
        format!("{heard} of {planned} pushes came")
    });
    finish(record, &connect.output)
}
