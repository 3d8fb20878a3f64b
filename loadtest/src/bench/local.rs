//! B3: taps that the gateway answers by itself, against a bare echo server.

use std::time::Duration;

use hongbao::rain::Durability;
use hongbao::wire::Outcome;

use super::redis::{Fsync, Redis};
use super::server::Server;
use super::table::{Figures, Goal, Row};
use super::{BenchError, Setup, Side, all_are, closed_round, connected, echo};
use crate::swarm::dialect::{Ask, Echo, Gateway, Who};
use crate::swarm::{Closed, Swarm};

const SESSIONS: u32 = 200;
/// How long the news that a rain is sold out may take.
const SOLD_OUT_MAX: Duration = Duration::from_secs(10);

pub async fn b3(setup: &Setup) -> Result<Vec<Row>, BenchError> {
    setup.tell("B3: taps that are answered locally");
    let folder = setup.folder()?;
    let redis = Redis::start(folder.path(), Fsync::EverySecond)?;
    let data = folder.path().join("hongbao");
    let (roles, nodes) = ("gateway,steward,admin", [redis.url.clone()]);
    let server = Server::start(&setup.hongbao, &data, roles, &nodes, &[]).await?;
    let mut sold_out = sold_out(&server).await?;
    let mut won = winners(&server).await?;
    let (_echo, address) = echo::start(folder.path())?;
    let mut echo = connected(Echo::new(Who::Own), address, SESSIONS as usize)?;
    let mut rows = vec![];
    for (in_flight, goal) in [(1, 0.9), (16, 0.5)] {
        let closed = Closed {
            in_flight,
            warm_up: setup.warm_up(),
            length: setup.length,
            requests_max: u64::MAX,
        };
        let mut sides: [Side; 3] = [
            Box::new(|| closed_round(&mut sold_out, closed, Some(Outcome::SoldOut))),
            Box::new(|| closed_round(&mut won, closed, Some(Outcome::AlreadyWon))),
            Box::new(|| closed_round(&mut echo, closed, None)),
        ];
        let figures = setup.alternate(&mut sides)?;
        drop(sides);
        let side = |name: &str, at: usize| Figures::new(name, "/s", figures[at].clone());
        for (at, taps) in [(0, "sold-out taps"), (1, "repeated taps")] {
            let what = format!("{taps}, 200 sessions, {in_flight} in flight");
            let (ours, echo) = (side("hongbao", at), side("bare tokio echo", 2));
            rows.push(Row::ratio("B3", &what, Goal::AtLeast(goal), ours, echo));
        }
    }
    Ok(rows)
}

/// Sessions of people who have won.
async fn winners(server: &Server) -> Result<Swarm<Gateway>, BenchError> {
    // They do not spread evenly over buckets; one bucket takes them all.
    let rain = server
        .open_rain("b3w", SESSIONS, 1, Durability::Memory)
        .await?;
    let ask = Ask::Grab(Some(rain));
    let dialect = Gateway::new(server.signer()?, Who::Own, ask, "b3w");
    let mut swarm = connected(dialect, server.gateway()?, SESSIONS as usize)?;
    let tally = swarm.once_each(Duration::from_secs(5));
    let tally = tally.map_err(BenchError::io("run the generator"))?;
    all_are(&tally, Some(Outcome::Won))?;
    Ok(swarm)
}

/// Sessions of people who came too late.
async fn sold_out(server: &Server) -> Result<Swarm<Gateway>, BenchError> {
    let rain = server.open_rain("b3s", 1, 1, Durability::Memory).await?;
    let ask = Ask::Grab(Some(rain));
    let mut first = connected(
        Gateway::new(server.signer()?, Who::Own, ask, "b3first"),
        server.gateway()?,
        2,
    )?;
    // The second one taps an empty pool, which is how the steward learns of it.
    let grab = first.once_each(Duration::from_secs(5));
    grab.map_err(BenchError::io("run the generator"))?;
    let dialect = Gateway::new(server.signer()?, Who::Own, ask, "b3s");
    let mut swarm = connected(dialect, server.gateway()?, SESSIONS as usize)?;
    let deadline = std::time::Instant::now() + SOLD_OUT_MAX;
    loop {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let tally = swarm.once_each(Duration::from_secs(5));
        let tally = tally.map_err(BenchError::io("run the generator"))?;
        let told = all_are(&tally, Some(Outcome::SoldOut));
        if told.is_ok() {
            return Ok(swarm);
        }
        if std::time::Instant::now() > deadline {
            return Err(told.err().unwrap_or(BenchError::Interrupted));
        }
    }
}
