//! B6: latency at half the highest rate that keeps its bound, against Redis alone at the same rate with the same script.

use std::time::Duration;

use hongbao::rain::Durability;
use hongbao::wire::Outcome;

use super::redis::{Fsync, Redis};
use super::server::Server;
use super::table::{Figures, Goal, Row};
use super::{BenchError, Setup, Side, all_are, connected, edge_swarm};
use crate::knee::{Search, Trial};
use crate::swarm::Swarm;
use crate::swarm::dialect::Dialect;
use crate::swarm::plan::Plan;
use crate::swarm::resp;

const SCRIPT: &str = include_str!("../../../src/store/grab.lua");
const SESSIONS: usize = 200;
const IN_FLIGHT_MAX: u32 = 64;
/// The knee is the highest rate with a p99 below this.
const BOUND_MS: f64 = 10.0;
const FIRST_RATE: f64 = 20_000.0;
const HIGHEST_RATE: f64 = 400_000.0;
const HALVINGS: u32 = 2;
const TRIAL: Duration = Duration::from_millis(700);
/// Of the search and of all rounds.
const PACKETS: u32 = 3_000_000;

pub async fn b6(setup: &Setup) -> Result<Vec<Row>, BenchError> {
    setup.tell("B6: latency at half the knee");
    let folder = setup.folder()?;
    let (ours_dir, theirs_dir) = (folder.path().join("ours"), folder.path().join("theirs"));
    for dir in [&ours_dir, &theirs_dir] {
        std::fs::create_dir_all(dir).map_err(BenchError::io("make a folder"))?;
    }
    let redis = Redis::start(&ours_dir, Fsync::EverySecond)?;
    let data = folder.path().join("hongbao");
    let (roles, nodes) = ("gateway,steward,admin", [redis.url.clone()]);
    let server = Server::start(&setup.hongbao, &data, roles, &nodes, &[]).await?;
    let rain = server
        .open_rain("b6", PACKETS, 1, Durability::Memory)
        .await?;
    let mut ours = edge_swarm(&server, rain, SESSIONS, "b6")?;

    let mut search = Search::new(FIRST_RATE, HIGHEST_RATE, HALVINGS, 0);
    while let Some(rate) = search.next() {
        search.tried(offer(&mut ours, rate)?);
    }
    let knee = search.knee();
    if knee == 0.0 {
        return Err(BenchError::Odd(format!(
            "no rate keeps p99 ≤ {BOUND_MS} ms"
        )));
    }
    let rate = knee / 2.0;

    let mut theirs = Redis::start(&theirs_dir, Fsync::EverySecond)?;
    let mut direct = direct(&mut theirs, rate, setup)?;
    let mut sides: [Side; 2] = [
        Box::new(|| round(&mut ours, rate, setup)),
        Box::new(|| round(&mut direct, rate, setup)),
    ];
    let figures = setup.alternate(&mut sides)?;
    drop(sides);
    let what = format!("p99 at half the knee, {rate:.0} grabs/s by plan, 200 sessions");
    let ours = Figures::new("hongbao", "ms", figures[0].clone());
    let baseline = Figures::new(
        "Redis alone, same script and rate",
        "ms",
        figures[1].clone(),
    );
    let mut row = Row::ratio("B6", &what, Goal::AtMost(3.0), ours, baseline);
    row.raw
        .push(Figures::new("knee (p99 ≤ 10 ms)", "/s", vec![knee]));
    Ok(vec![row])
}

/// Whether the rate keeps the bound.
fn offer<D: Dialect>(swarm: &mut Swarm<D>, rate: f64) -> Result<bool, BenchError> {
    let plan = Plan::new(rate, TRIAL, Duration::ZERO, Some(rate as u64));
    let tally = swarm.open_loop(plan, IN_FLIGHT_MAX);
    let tally = tally.map_err(BenchError::io("run the generator"))?;
    all_are(&tally, Some(Outcome::Won))?;
    Ok(Trial::of(rate, TRIAL, &tally).judge(BOUND_MS).good)
}

/// p99 from the planned instant, ms.
fn round<D: Dialect>(swarm: &mut Swarm<D>, rate: f64, setup: &Setup) -> Result<f64, BenchError> {
    let plan = Plan::new(rate, setup.length, Duration::ZERO, Some(7));
    let tally = swarm.open_loop(plan, IN_FLIGHT_MAX);
    let tally = tally.map_err(BenchError::io("run the generator"))?;
    all_are(&tally, Some(Outcome::Won))?;
    Ok(tally.quantile_ms(0.99))
}

/// Connections to Redis that call the gateway's own script, one user a call, on a bucket that is made by hand.
fn direct(redis: &mut Redis, rate: f64, setup: &Setup) -> Result<Swarm<resp::Redis>, BenchError> {
    let script = redis.text(&["SCRIPT", "LOAD", SCRIPT])?;
    let gate = "hb:{1.0.0}:gate";
    redis.call(&[
        "HSET",
        gate,
        "state",
        "ready",
        "opens_at_ms",
        "1",
        "closes_at_ms",
        "9000000000000",
        "epoch",
        "1",
        "run_id",
        "here",
    ])?;
    let packets = rate * setup.length.as_secs_f64() * (setup.rounds + 1) as f64;
    redis.fill("hb:{1.0.0}:pool", packets as u32, |n| {
        format!("{}:{}", (1u64 << 32) + u64::from(n), n % 1_000 + 1)
    })?;
    let command = [
        "EVALSHA",
        &script,
        "5",
        gate,
        "hb:{1.0.0}:pool",
        "hb:{1.0.0}:winners",
        "hb:{1.0.0}:claims",
        "hb:{1.0.0}:dead",
        "here",
        "0",
    ];
    connected(resp::Redis::new(&command), redis.address, SESSIONS)
}
