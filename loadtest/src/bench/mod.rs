//! The benchmarks, each a ratio against a baseline that is measured in the same run, in turn with it: A, B, A, B. On a machine that is shared, or
//! hot, a figure alone says little; what stays is how two ways of doing the same compare.

/// The classic approach, called by redis-benchmark.
mod classic;
/// B8.
mod cpu;
/// A bare server.
pub mod echo;
/// B1, B2, B4, B5.
mod grabs;
/// B9.
mod idle;
/// B6.
mod latency;
/// B3.
mod local;
/// A PostgreSQL server of our own.
mod postgres;
/// Children.
pub mod process;
/// Redis.
mod redis;
/// hongbao serve.
mod server;
/// B7.
mod settle;
/// The table and the JSON.
mod table;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hongbao::client::admin::AdminError;
use hongbao::rain::RainId;
use hongbao::wire::Outcome;
use tempfile::TempDir;

use crate::LoadError;
use crate::args::BenchArgs;
use crate::interrupt;
use crate::machine::Machine;
use crate::record::Verdict;
use crate::swarm::dialect::{Ask, Dialect, Gateway, Who};
use crate::swarm::tally::Tally;
use crate::swarm::{Closed, Ramp, Swarm};
use server::Server;
use table::{Row, Table};

/// Why a benchmark has no result.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    #[error("cannot {doing}: {source}")]
    Io {
        doing: &'static str,
        source: io::Error,
    },
    #[error(transparent)]
    Admin(#[from] AdminError),
    #[error("{0}")]
    Load(String),
    #[error("{0}")]
    Odd(String),
    #[error("interrupted")]
    Interrupted,
}

impl BenchError {
    fn io(doing: &'static str) -> impl Fn(io::Error) -> BenchError {
        move |source| BenchError::Io { doing, source }
    }
}

impl From<LoadError> for BenchError {
    fn from(error: LoadError) -> BenchError {
        BenchError::Load(error.to_string())
    }
}

/// What all benchmarks of a run share.
pub struct Setup {
    /// The server under test.
    hongbao: PathBuf,
    rounds: usize,
    length: Duration,
    quiet: bool,
}

impl Setup {
    fn folder(&self) -> Result<TempDir, BenchError> {
        let folder = tempfile::Builder::new().prefix("hongbao-bench-").tempdir();
        folder.map_err(BenchError::io("make a temporary folder"))
    }

    fn tell(&self, what: &str) {
        if !self.quiet {
            eprintln!("  {what}");
        }
    }

    /// A warm-up before each measured stretch.
    fn warm_up(&self) -> Duration {
        self.length / 8
    }

    /// Runs the sides in turn, `rounds` times; their figures, side by side.
    fn alternate(&self, sides: &mut [Side<'_>]) -> Result<Vec<Vec<f64>>, BenchError> {
        let mut figures = vec![vec![]; sides.len()];
        for _ in 0..self.rounds {
            for (side, figures) in sides.iter_mut().zip(&mut figures) {
                if interrupt::is_set() {
                    return Err(BenchError::Interrupted);
                }
                figures.push(side()?);
            }
        }
        Ok(figures)
    }
}

/// One round of one side.
type Side<'a> = Box<dyn FnMut() -> Result<f64, BenchError> + 'a>;

/// Descriptors beside those of B9's sessions, here and in the gateway.
const SPARE_DESCRIPTORS: u64 = 500;

/// The benchmarks by name.
const NAMES: [&str; 9] = ["B1", "B2", "B3", "B4", "B5", "B6", "B7", "B8", "B9"];

pub async fn run(args: BenchArgs) -> Result<Verdict, LoadError> {
    let chosen = |name: &str| args.names.is_empty() || args.names.iter().any(|one| one == name);
    if let Some(unknown) = args
        .names
        .iter()
        .find(|name| !NAMES.contains(&name.as_str()))
    {
        return Err(LoadError::Usage(format!(
            "there is no benchmark {unknown}: choose from {}",
            NAMES.join(", ")
        )));
    }
    interrupt::watch();
    let descriptors =
        crate::limits::allow_descriptors(u64::from(args.idle_sessions) + SPARE_DESCRIPTORS);
    let idle_sessions = args
        .idle_sessions
        .min(descriptors.saturating_sub(SPARE_DESCRIPTORS) as u32);
    let setup = Setup {
        hongbao: hongbao_program(args.hongbao.as_deref())?,
        rounds: args.rounds,
        length: args.length,
        quiet: args.quiet,
    };
    let mut table = Table::new(Machine::here().with_redis());
    let mut failed = vec![];
    let mut add = |table: &mut Table, name: &str, rows: Result<Vec<Row>, BenchError>| match rows {
        Ok(rows) => {
            for row in rows.into_iter().filter(|row| chosen(&row.name)) {
                setup.tell(&row.line());
                table.rows.push(row);
            }
        }
        Err(error) => failed.push(format!("{name}: {error}")),
    };
    for sessions in [200, 1_000] {
        if chosen("B1") || chosen("B2") {
            add(&mut table, "B1", grabs::b1_b2(&setup, sessions).await);
        }
    }
    if chosen("B3") {
        add(&mut table, "B3", local::b3(&setup).await);
    }
    if chosen("B4") {
        add(&mut table, "B4", grabs::b4(&setup).await);
    }
    if chosen("B5") {
        add(&mut table, "B5", grabs::b5(&setup).await);
    }
    if chosen("B6") {
        add(&mut table, "B6", latency::b6(&setup).await);
    }
    if chosen("B7") {
        add(&mut table, "B7", settle::b7(&setup).await);
    }
    if chosen("B8") {
        add(&mut table, "B8", cpu::b8(&setup).await);
    }
    if chosen("B9") {
        add(&mut table, "B9", idle::b9(&setup, idle_sessions).await);
    }
    table.rows.sort_by(|one, other| one.name.cmp(&other.name));
    print!("{}", table.text());
    if let Some(path) = &args.json {
        crate::write_file(path, table.json().as_bytes())?;
    }
    if failed.is_empty() {
        return Ok(match table.rows.iter().all(|row| row.reached) {
            true => Verdict::Good,
            false => Verdict::BeyondThreshold,
        });
    }
    Err(LoadError::Bench(failed.join("\n")))
}

/// It is built beside this program.
fn hongbao_program(given: Option<&Path>) -> Result<PathBuf, LoadError> {
    let beside = || Some(std::env::current_exe().ok()?.with_file_name("hongbao"));
    let program = given
        .map(Path::to_owned)
        .or_else(beside)
        .unwrap_or_default();
    if program.is_file() {
        return Ok(program);
    }
    Err(LoadError::Usage(format!(
        "{} is missing: run `make bench`, which builds it, or name it with --hongbao",
        program.display()
    )))
}

/// Sessions of trusted servers on `server`, each grab of `rain` for a fresh user.
fn edge_swarm(
    server: &Server,
    rain: RainId,
    sessions: usize,
    prefix: &str,
) -> Result<Swarm<Gateway>, BenchError> {
    let dialect = Gateway::new(server.signer()?, Who::Fresh, Ask::Grab(Some(rain)), prefix);
    connected(dialect, server.gateway()?, sessions)
}

fn connected<D: Dialect>(
    dialect: D,
    server: std::net::SocketAddr,
    connections: usize,
) -> Result<Swarm<D>, BenchError> {
    let mut swarm = Swarm::new(dialect).map_err(BenchError::io("start the generator"))?;
    let ramp = Ramp {
        servers: &[server],
        connections,
        per_second: 0,
        patience: Duration::from_secs(20),
    };
    let tally = swarm.connect(ramp).map_err(BenchError::io("connect"))?;
    if swarm.ready() < connections {
        let faults = tally.faults.join("; ");
        return Err(BenchError::Odd(format!(
            "{} of {connections} connections failed: {faults}",
            tally.failed
        )));
    }
    Ok(swarm)
}

/// Answers a second of a closed loop; an error if any of them is not `outcome`.
fn closed_round<D: Dialect>(
    swarm: &mut Swarm<D>,
    closed: Closed,
    outcome: Option<Outcome>,
) -> Result<f64, BenchError> {
    let tally = swarm.closed_loop(closed);
    let tally = tally.map_err(BenchError::io("run the generator"))?;
    all_are(&tally, outcome)?;
    Ok(tally.per_second())
}

/// `None` is what an echo answers.
fn all_are(tally: &Tally, outcome: Option<Outcome>) -> Result<(), BenchError> {
    let wanted = outcome.map_or(0, |outcome| outcome as i32);
    let other = tally.answered - tally.outcome(wanted);
    if other == 0 && tally.unanswered == 0 && tally.lost == 0 && tally.answered > 0 {
        return Ok(());
    }
    let outcomes: Vec<String> = tally
        .outcomes()
        .map(|(code, count)| format!("{} {count}", hongbao::client::outcome_name(code)))
        .collect();
    Err(BenchError::Odd(format!(
        "not every answer was the expected one: {}; {} unanswered, {} connections lost; {}",
        outcomes.join(", "),
        tally.unanswered,
        tally.lost,
        tally.faults.join("; ")
    )))
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        odd if odd % 2 == 1 => sorted[middle],
        _ => (sorted[middle - 1] + sorted[middle]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::median;

    #[test]
    fn the_median_is_the_middle_or_between_the_two_middles() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(&[]), 0.0);
    }
}
