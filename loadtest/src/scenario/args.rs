use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, value_parser};
use hongbao::rain::Durability;

use crate::args::duration;
use crate::record::Bound;

/// Where the servers are, and what lets us in.
#[derive(Debug, Clone, Args)]
pub struct Target {
    /// Address of a gateway, host:port; may be repeated.
    #[arg(long = "gateway", required = true, value_name = "ADDR")]
    pub gateways: Vec<String>,
    /// File with the secret that session tokens are signed with (HS256), as hex text.
    #[arg(long, value_name = "FILE")]
    pub token_secret_file: PathBuf,
    /// The name under which the gateway knows that secret.
    #[arg(long, default_value = "default", value_name = "KID")]
    pub token_kid: String,
}

/// The admin API, for scenarios that make a rain.
#[derive(Debug, Clone, Args)]
pub struct AdminTarget {
    /// Address of the admin API, like http://127.0.0.1:7701
    #[arg(long, value_name = "URL", env = "HONGBAO_ADMIN_URL")]
    pub admin: String,
    /// File with the admin API key (else the environment variable HONGBAO_API_KEY)
    #[arg(long, value_name = "FILE")]
    pub api_key_file: Option<PathBuf>,
    /// The admin API key itself.
    #[arg(long, env = "HONGBAO_API_KEY", hide_env_values = true, hide = true)]
    pub api_key: Option<String>,
    /// memory, fsync or replicas:N; the server's default if not given.
    #[arg(long)]
    pub durability: Option<Durability>,
    /// Buckets of the rain; the server's default if not given.
    #[arg(long)]
    pub buckets: Option<u32>,
    /// The longest wait for any one thing (a rain being loaded, settlement, the refund).
    #[arg(long, default_value = "120s", value_parser = duration)]
    pub patience: Duration,
}

/// What is made of it.
#[derive(Debug, Clone, Args)]
pub struct Output {
    /// Everything that is left to chance follows from it; drawn and printed if not given.
    #[arg(long)]
    pub seed: Option<u64>,
    /// Write the result as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write the time series as CSV.
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Write a report with charts, one file that needs nothing from outside.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Write the latencies as an HDR log; `merge` adds up those of several generators.
    #[arg(long, value_name = "FILE")]
    pub hdr: Option<PathBuf>,
    /// A bound like p99<=50 (ms), rate>=1000, dropped<=0; may be repeated. Exit code 4 if one does not hold.
    #[arg(long = "bound", value_name = "BOUND")]
    pub bounds: Vec<Bound>,
    /// No progress, only the summary.
    #[arg(long, short)]
    pub quiet: bool,
}

#[derive(Debug, Clone, Args)]
pub struct GrabsArgs {
    #[command(flatten)]
    pub target: Target,
    #[command(flatten)]
    pub admin: AdminTarget,
    #[command(flatten)]
    pub output: Output,
    /// Sessions of trusted servers; every grab is for a fresh user.
    #[arg(long, default_value_t = 200, value_parser = value_parser!(u32).range(1..=100_000))]
    pub sessions: u32,
    /// Grabs a second by plan (open loop).
    #[arg(long, default_value_t = 10_000.0)]
    pub rate: f64,
    /// Closed loop instead: each session keeps so many grabs in flight.
    #[arg(long, value_name = "IN_FLIGHT", value_parser = value_parser!(u32).range(1..=64))]
    pub closed: Option<u32>,
    /// Open loop: at most so many in flight on one session; an arrival that finds no room is dropped and counted.
    #[arg(long, default_value_t = 64, value_parser = value_parser!(u32).range(1..=64))]
    pub in_flight_max: u32,
    /// The rate rises evenly from nothing for so long.
    #[arg(long, default_value = "0s", value_parser = duration_or_zero)]
    pub ramp: Duration,
    /// Arrivals at equal distances instead of at chance.
    #[arg(long)]
    pub even: bool,
    #[arg(long, default_value = "10s", value_parser = duration)]
    pub length: Duration,
    /// Packets of the rain; by default as many as there are grabs, and some.
    #[arg(long, value_parser = value_parser!(u32).range(1..))]
    pub packets: Option<u32>,
}

#[derive(Debug, Clone, Args)]
pub struct ConnectArgs {
    #[command(flatten)]
    pub target: Target,
    #[command(flatten)]
    pub output: Output,
    #[arg(long, default_value_t = 10_000, value_parser = value_parser!(u32).range(1..=1_000_000))]
    pub sessions: u32,
    /// New sessions a second; 0 as fast as they are let in.
    #[arg(long, default_value_t = 0)]
    pub rate: u32,
    /// The longest time for all of them.
    #[arg(long, default_value = "60s", value_parser = duration)]
    pub within: Duration,
}

#[derive(Debug, Clone, Args)]
pub struct IdleArgs {
    #[command(flatten)]
    pub connect: ConnectArgs,
    /// How long they are held.
    #[arg(long, default_value = "30s", value_parser = duration)]
    pub length: Duration,
    /// Every session sends a Ping so often.
    #[arg(long, default_value = "10s", value_parser = duration)]
    pub heartbeat: Duration,
    /// Process of the gateway, on this machine: its memory is told.
    #[arg(long, value_name = "PID")]
    pub pid: Option<u32>,
}

#[derive(Debug, Clone, Args)]
pub struct PushArgs {
    #[command(flatten)]
    pub connect: ConnectArgs,
    #[command(flatten)]
    pub admin: AdminTarget,
    /// Rains that are opened one after the other.
    #[arg(long, default_value_t = 5, value_parser = value_parser!(u32).range(1..=1_000))]
    pub times: u32,
    /// The room that is watched; one of this run's own if not given.
    #[arg(long)]
    pub room: Option<String>,
    /// Opens nothing: another generator does, in the same room. Several of them hold more sessions than one process may.
    #[arg(long, requires = "room")]
    pub follow: bool,
}

#[derive(Debug, Clone, Args)]
pub struct SettleArgs {
    #[command(flatten)]
    pub target: Target,
    #[command(flatten)]
    pub admin: AdminTarget,
    #[command(flatten)]
    pub output: Output,
    /// Packets that are won, and then credited.
    #[arg(long, default_value_t = 100_000, value_parser = value_parser!(u32).range(1..))]
    pub packets: u32,
}

#[derive(Debug, Clone, Args)]
pub struct SweepArgs {
    #[command(flatten)]
    pub target: Target,
    #[command(flatten)]
    pub admin: AdminTarget,
    #[command(flatten)]
    pub output: Output,
    #[arg(long, default_value_t = 200, value_parser = value_parser!(u32).range(1..=100_000))]
    pub sessions: u32,
    /// The knee is the highest rate whose p99 is at most this, ms.
    #[arg(long, default_value_t = 10.0)]
    pub p99_max: f64,
    /// The first rate that is tried, grabs a second.
    #[arg(long, default_value_t = 5_000.0)]
    pub from: f64,
    /// The highest rate that is tried.
    #[arg(long, default_value_t = 200_000.0)]
    pub to: f64,
    /// How often the gap between the best and the worst rate is halved.
    #[arg(long, default_value_t = 4, value_parser = value_parser!(u32).range(0..=16))]
    pub halvings: u32,
    /// How long each rate is offered.
    #[arg(long, default_value = "3s", value_parser = duration)]
    pub length: Duration,
}

#[derive(Debug, Clone, Args)]
pub struct HostileArgs {
    #[command(flatten)]
    pub target: Target,
    #[command(flatten)]
    pub output: Output,
    /// Honest sessions.
    #[arg(long, default_value_t = 1_000, value_parser = value_parser!(u32).range(1..=100_000))]
    pub sessions: u32,
    /// Requests a second of all honest sessions together.
    #[arg(long, default_value_t = 5_000.0)]
    pub rate: f64,
    /// Clients that send a frame one byte at a time and never finish.
    #[arg(long, default_value_t = 1_000, value_parser = value_parser!(u32).range(0..=20_000))]
    pub slow_loris: u32,
    /// Clients that ask and never read.
    #[arg(long, default_value_t = 1_000, value_parser = value_parser!(u32).range(0..=20_000))]
    pub slow_readers: u32,
    /// Clients that send what is no frame.
    #[arg(long, default_value_t = 1_000, value_parser = value_parser!(u32).range(0..=20_000))]
    pub garbage: u32,
    /// How long the honest are measured without the others, and with them.
    #[arg(long, default_value = "10s", value_parser = duration)]
    pub length: Duration,
    /// Alone and among the others in turns, so often; the medians count.
    #[arg(long, default_value_t = 3, value_parser = value_parser!(u32).range(1..=99))]
    pub rounds: u32,
    /// The p99 of the honest may rise by this factor.
    #[arg(long, default_value_t = 1.5)]
    pub factor_max: f64,
    /// Only the hostile clients, until standard input ends.
    #[arg(long, hide = true)]
    pub crowd: bool,
    /// This program, if it is not the one that runs.
    #[arg(long, hide = true)]
    pub program: Option<PathBuf>,
}

impl HostileArgs {
    pub fn hostile(&self) -> u32 {
        self.slow_loris + self.slow_readers + self.garbage
    }
}

#[derive(Debug, Clone, Args)]
pub struct MergeArgs {
    /// HDR logs of several generators of one run.
    #[arg(required = true)]
    pub files: Vec<PathBuf>,
    #[command(flatten)]
    pub output: Output,
}

fn duration_or_zero(text: &str) -> Result<Duration, String> {
    match text {
        "0" | "0s" | "0ms" => Ok(Duration::ZERO),
        text => duration(text),
    }
}
