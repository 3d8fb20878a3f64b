//! B1, B2, B4, B5: winning grabs, a fresh user for each, against the classic script called directly and against a bare echo server.

use std::cell::RefCell;

use hongbao::rain::Durability;
use hongbao::wire::Outcome;
use tempfile::TempDir;

use super::classic::Classic;
use super::redis::{Fsync, Redis};
use super::server::Server;
use super::table::{Figures, Goal, Row};
use super::{BenchError, Setup, Side, closed_round, connected, echo, edge_swarm};
use crate::swarm::dialect::{Echo, Gateway, Who};
use crate::swarm::{Closed, Swarm};

/// No round wins more; so many packets are loaded for each.
const ROUND_WINS_MAX: u32 = 400_000;

pub async fn b1_b2(setup: &Setup, sessions: usize) -> Result<Vec<Row>, BenchError> {
    setup.tell(&format!("B1, B2: {sessions} sessions, one in flight each"));
    let folder = setup.folder()?;
    let mut ours = Ours::start(setup, &folder, sessions, Fsync::EverySecond).await?;
    let theirs = RefCell::new(Theirs::start(&folder, Fsync::EverySecond)?);
    let (_echo, address) = echo::start(folder.path())?;
    let mut echo = connected(Echo::new(Who::Fresh), address, sessions)?;
    let closed = closed(setup, 1);
    let seconds = setup.length.as_secs_f64();
    let mut sides: [Side; 3] = [
        Box::new(|| closed_round(&mut ours.swarm, closed, Some(Outcome::Won))),
        Box::new(|| theirs.borrow_mut().round(sessions, 1, seconds)),
        Box::new(|| closed_round(&mut echo, closed, None)),
    ];
    let figures = setup.alternate(&mut sides)?;
    drop(sides);
    let side = |name: &str, at: usize| Figures::new(name, "/s", figures[at].clone());
    let hongbao = side("hongbao", 0);
    let classic = side("classic script, redis-benchmark", 1);
    let echo = side("bare tokio echo", 2);
    let (classic_goal, echo_goal) = match sessions {
        ..=200 => (2.0, 0.8),
        _ => (1.5, 0.9),
    };
    let what = format!("winning grabs, {sessions} sessions, 1 in flight");
    Ok(vec![
        Row::ratio(
            "B1",
            &what,
            Goal::AtLeast(classic_goal),
            hongbao.clone(),
            classic,
        ),
        Row::ratio("B2", &what, Goal::AtLeast(echo_goal), hongbao, echo),
    ])
}

pub async fn b4(setup: &Setup) -> Result<Vec<Row>, BenchError> {
    setup.tell("B4: the same on disk before the answer");
    let what = "durable winning grabs (fsync), 200 sessions, 1 in flight";
    against_classic(setup, "B4", what, Fsync::Always, 1, 2.0).await
}

pub async fn b5(setup: &Setup) -> Result<Vec<Row>, BenchError> {
    setup.tell("B5: 16 in flight");
    let what = "winning grabs, 200 sessions, 16 in flight";
    against_classic(setup, "B5", what, Fsync::EverySecond, 16, 4.0).await
}

async fn against_classic(
    setup: &Setup,
    name: &str,
    what: &str,
    fsync: Fsync,
    in_flight: u32,
    goal: f64,
) -> Result<Vec<Row>, BenchError> {
    let sessions = 200;
    let folder = setup.folder()?;
    let mut ours = Ours::start(setup, &folder, sessions, fsync).await?;
    let mut theirs = Theirs::start(&folder, fsync)?;
    let closed = closed(setup, in_flight);
    let seconds = setup.length.as_secs_f64();
    let mut sides: [Side; 2] = [
        Box::new(|| closed_round(&mut ours.swarm, closed, Some(Outcome::Won))),
        Box::new(|| theirs.round(sessions, in_flight, seconds)),
    ];
    let figures = setup.alternate(&mut sides)?;
    drop(sides);
    let baseline = match in_flight {
        1 => "classic script, redis-benchmark".to_owned(),
        deep => format!("classic script, redis-benchmark -P {deep}"),
    };
    let hongbao = Figures::new("hongbao", "/s", figures[0].clone());
    let classic = Figures::new(&baseline, "/s", figures[1].clone());
    Ok(vec![Row::ratio(
        name,
        what,
        Goal::AtLeast(goal),
        hongbao,
        classic,
    )])
}

fn closed(setup: &Setup, in_flight: u32) -> Closed {
    Closed {
        in_flight,
        warm_up: setup.warm_up(),
        length: setup.length,
        requests_max: ROUND_WINS_MAX.into(),
    }
}

/// A gateway on one node, an open rain in it, and sessions.
struct Ours {
    swarm: Swarm<Gateway>,
    _server: Server,
    _redis: Redis,
}

impl Ours {
    async fn start(
        setup: &Setup,
        folder: &TempDir,
        sessions: usize,
        fsync: Fsync,
    ) -> Result<Ours, BenchError> {
        let dir = folder.path().join("ours");
        std::fs::create_dir_all(&dir).map_err(BenchError::io("make a folder"))?;
        let redis = Redis::start(&dir, fsync)?;
        // Without settlers: their work is B7, and on other machines in production.
        let roles = "gateway,steward,admin";
        let nodes = [redis.url.clone()];
        let data = folder.path().join("hongbao");
        let server = Server::start(&setup.hongbao, &data, roles, &nodes, &[]).await?;
        let durability = match fsync {
            Fsync::EverySecond => Durability::Memory,
            Fsync::Always => Durability::Fsync,
        };
        let packets = ROUND_WINS_MAX * setup.rounds as u32;
        let rain = server.open_rain("b1", packets, 1, durability).await?;
        Ok(Ours {
            swarm: edge_swarm(&server, rain, sessions, "b1")?,
            _server: server,
            _redis: redis,
        })
    }
}

/// A Redis of its own, with the same settings, and the classic script in it.
struct Theirs {
    redis: Redis,
    classic: Classic,
}

impl Theirs {
    fn start(folder: &TempDir, fsync: Fsync) -> Result<Theirs, BenchError> {
        let dir = folder.path().join("theirs");
        std::fs::create_dir_all(&dir).map_err(BenchError::io("make a folder"))?;
        let mut redis = Redis::start(&dir, fsync)?;
        let classic = Classic::new(&mut redis)?;
        Ok(Theirs { redis, classic })
    }

    fn round(&mut self, clients: usize, pipeline: u32, seconds: f64) -> Result<f64, BenchError> {
        self.classic
            .round(&mut self.redis, clients, pipeline, seconds)
    }
}
