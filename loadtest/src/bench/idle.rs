//! B9: what idle sessions cost, how fast they come, and how soon all of them hear that a rain has opened.

use std::time::Duration;

use hongbao::rain::Durability;

use super::redis::{Fsync, Redis};
use super::server::Server;
use super::table::{Figures, Goal, Row};
use super::{BenchError, Setup};
use crate::swarm::dialect::{Ask, Gateway, Who};
use crate::swarm::tally::quantile_ms;
use crate::swarm::{Ramp, Swarm};

/// How long a push may take to reach everybody.
const PUSH_MAX: Duration = Duration::from_secs(20);
const ROOM: &str = "b9";

pub async fn b9(setup: &Setup, sessions: u32) -> Result<Vec<Row>, BenchError> {
    setup.tell(&format!("B9: {sessions} idle sessions"));
    let folder = setup.folder()?;
    let redis = Redis::start(folder.path(), Fsync::EverySecond)?;
    let data = folder.path().join("hongbao");
    let (roles, nodes) = ("gateway,steward,admin", [redis.url.clone()]);
    let server = Server::start(&setup.hongbao, &data, roles, &nodes, &[]).await?;
    let rain = server.ready_rain(ROOM, 100, 1, Durability::Memory).await?;
    let mut dialect = Gateway::new(server.signer()?, Who::Own, Ask::Ping, "b9");
    dialect.room = ROOM.to_owned();
    let mut swarm = Swarm::new(dialect).map_err(BenchError::io("start the generator"))?;
    let before = server.process.memory_bytes();
    let ramp = Ramp {
        servers: &[server.gateway()?],
        connections: sessions as usize,
        per_second: 0,
        patience: Duration::from_secs(90),
    };
    let connected = swarm.connect(ramp).map_err(BenchError::io("connect"))?;
    let ready = swarm.ready();
    if ready < sessions as usize {
        let faults = connected.faults.join("; ");
        return Err(BenchError::Odd(format!(
            "{ready} of {sessions} sessions came up: {faults}"
        )));
    }
    let rate = ready as f64 / connected.seconds();
    // Late words of the greeting: Watching, RainAnnounced.
    let quiet = swarm.listen(Duration::from_secs(1), |_| false);
    quiet.map_err(BenchError::io("listen"))?;
    let each = (server.process.memory_bytes().saturating_sub(before)) as f64 / ready as f64;
    // Opened by another thread: this one must be listening by then.
    let admin = server.admin()?;
    let opening = tokio::spawn(async move { admin.open_rain(rain).await });
    let told = swarm
        .listen(PUSH_MAX, |tally| tally.push_lags.len() >= ready as u64)
        .map_err(BenchError::io("listen"))?;
    opening.await.expect("it does not panic")?;
    if told.push_lags.len() < ready as u64 {
        let heard = told.push_lags.len();
        return Err(BenchError::Odd(format!(
            "{heard} of {ready} heard of the opening"
        )));
    }
    let lag_ms = quantile_ms(&told.push_lags, 0.99);
    let row = |what: String, goal: Goal, value: f64, unit: &'static str| {
        let raw = vec![Figures::new("hongbao", unit, vec![value])];
        Row::figure("B9", &what, goal, value, unit, raw)
    };
    Ok(vec![
        row(
            format!("memory of an idle session, at {ready}"),
            Goal::AtMost(4.0),
            each / 1_024.0,
            "KiB",
        ),
        row(
            format!("RainOpened to {ready} sessions, p99"),
            Goal::AtMost(500.0),
            lag_ms,
            "ms",
        ),
        row(
            "authenticated connects".to_owned(),
            Goal::AtLeast(10_000.0),
            rate,
            "/s",
        ),
    ])
}
