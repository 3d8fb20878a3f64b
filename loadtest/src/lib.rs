//! hongbao-load: people in the rain, thousands of them, and whether every promise made to them was kept.
//!
//! Read in this order: what the command line says, how a person taps, how thousands of connections are kept cheap, how a whole rain goes and what is
//! checked after it, the other scenarios, and what is written of a run.

/// The command line.
pub mod args;
/// The benchmarks.
pub mod bench;
/// Bounds on the command line.
mod bound;
/// The command line as it was typed.
mod command;
/// Logs of latencies.
mod hdr;
/// The report as a page.
mod html;
/// How a person behaves, from a seed.
mod human;
/// Ctrl-C.
mod interrupt;
/// The highest rate that keeps a bound.
mod knee;
/// Descriptors.
mod limits;
/// What the figures were taken on.
mod machine;
/// Counts and latencies while it runs.
mod meter;
/// Files and the summary.
mod output;
/// The scenario `rain`: a whole life of a rain, seen from outside.
pub mod rain;
/// A rain for a measurement.
mod rains;
/// What came of a scenario.
pub mod record;
/// What came of it, for people and for machines.
pub mod report;
/// The scenarios besides `rain`.
pub mod scenario;
/// What a person sees while it runs.
mod show;
/// Where sessions come from.
mod sources;
/// A record as text.
mod summary;
/// Connections by the thousand, cheaply.
pub mod swarm;
/// Session tokens.
mod tokens;

use std::path::PathBuf;

pub use record::Verdict;

use args::{Args, Scenario};
use hongbao::client::ClientError;
use hongbao::client::admin::AdminError;

/// Why a run could not be carried out. That promises were broken is no error but a result.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("{0}")]
    Usage(String),
    #[error("cannot read {}: {source}", path.display())]
    Unreadable {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("cannot write {}: {source}", path.display())]
    Unwritable {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("could not {doing}: {source}")]
    Admin {
        doing: &'static str,
        source: AdminError,
    },
    #[error("waited {waited_s} s for {what}: {seen}")]
    TimedOut {
        what: &'static str,
        waited_s: u64,
        /// How far it got.
        seen: String,
    },
    #[error("user {user} cannot get a session: {source}")]
    Session { user: String, source: ClientError },
    /// Benchmarks that have no result.
    #[error("{0}")]
    Bench(String),
    #[error("the generator cannot {doing}: {source}")]
    Generator {
        doing: &'static str,
        source: std::io::Error,
    },
    #[error("{ready} of {wanted} sessions came up: {faults}")]
    Sessions {
        ready: usize,
        wanted: usize,
        faults: String,
    },
    #[error("interrupted")]
    Interrupted,
}

impl LoadError {
    /// Something to change on the command line: also a key, a rain or a wish that the server does not know or take.
    pub fn is_usage(&self) -> bool {
        match self {
            LoadError::Usage(_) | LoadError::Unreadable { .. } => true,
            LoadError::Admin { source, .. } => matches!(
                source,
                AdminError::Problem {
                    status: 401 | 403 | 404 | 422,
                    ..
                }
            ),
            LoadError::Unwritable { .. }
            | LoadError::TimedOut { .. }
            | LoadError::Session { .. }
            | LoadError::Bench(_)
            | LoadError::Generator { .. }
            | LoadError::Sessions { .. }
            | LoadError::Interrupted => false,
        }
    }
}

/// Carries out what the command line says.
pub async fn run(args: Args) -> Result<Verdict, LoadError> {
    match args.scenario {
        Scenario::Rain(args) => rain::run(args).await,
        Scenario::Grabs(args) => scenario::grabs(args).await,
        Scenario::Connect(args) => scenario::connect(args),
        Scenario::Idle(args) => scenario::idle(args),
        Scenario::Push(args) => scenario::push(args).await,
        Scenario::Settle(args) => scenario::settle(args).await,
        Scenario::Sweep(args) => scenario::sweep(args).await,
        Scenario::Hostile(args) => scenario::hostile(args).await,
        Scenario::Merge(args) => scenario::merge(args),
        Scenario::Bench(args) => bench::run(args).await,
        Scenario::Echo => match bench::echo::serve() {
            Ok(()) => Ok(Verdict::Good),
            Err(error) => Err(LoadError::Bench(format!("the echo server: {error}"))),
        },
    }
}

fn write_file(path: &std::path::Path, bytes: &[u8]) -> Result<(), LoadError> {
    std::fs::write(path, bytes).map_err(|source| LoadError::Unwritable {
        path: path.to_owned(),
        source,
    })
}
