use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, value_parser};
use hongbao::rain::Durability;

use crate::args::values::{duration, duration_or_zero, factor, milliseconds, rate, seed};
use crate::bound::Bound;
use crate::sources::SOURCES_MAX;

/// Where the servers are, and what lets us in.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "The gateways")]
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
    /// Loopback addresses (127.0.0.2 and up) that the sessions come from in turn, 0 to 250; 0 takes one more for each 2,000 sessions (200 in `rain`).
    #[arg(long, default_value_t = 0, value_parser = value_parser!(u32).range(0..=i64::from(SOURCES_MAX)), value_name = "COUNT")]
    pub source_addresses: u32,
}

/// The admin API, for scenarios that make a rain.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "The admin API")]
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
    #[arg(long, value_name = "LEVEL")]
    pub durability: Option<Durability>,
    /// Buckets of the rain; the server's default if not given.
    #[arg(long, value_parser = value_parser!(u32).range(1..), value_name = "COUNT")]
    pub buckets: Option<u32>,
    /// The longest wait for any one thing (a rain being loaded, everybody connected, settlement, the refund).
    #[arg(long, default_value = "120s", value_parser = duration, value_name = "TIME")]
    pub patience: Duration,
}

/// What is made of it.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Output")]
pub struct Output {
    /// Names of users, arrivals, everything that is left to chance follows from it; drawn and printed if not given.
    #[arg(long, value_parser = seed, allow_negative_numbers = true, value_name = "NUMBER")]
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
    /// A bound like p99<=50; may be repeated. Exit code 4 if one does not hold. Latencies in ms: p50, p90, p99, p99.9, max; answers a second: rate,
    /// knee; counts: dropped, late, unanswered, failed, lost.
    #[arg(long = "bound", value_name = "BOUND")]
    pub bounds: Vec<Bound>,
    /// No progress, only the summary.
    #[arg(long, short)]
    pub quiet: bool,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "The load")]
pub struct GrabsArgs {
    /// Sessions of trusted servers, 1 to 100,000; every grab is for a fresh user.
    #[arg(long, default_value_t = 200, value_parser = value_parser!(u32).range(1..=100_000), value_name = "COUNT")]
    pub sessions: u32,
    /// Open loop: grabs a second by plan, whether the earlier ones were answered or not; above 0, at most 10,000,000.
    #[arg(long, default_value = "10000", value_parser = rate, allow_negative_numbers = true)]
    pub rate: f64,
    /// Closed loop instead: each session keeps so many grabs in flight, 1 to 64, and sends the next when one is answered.
    #[arg(long, value_name = "IN_FLIGHT", value_parser = value_parser!(u32).range(1..=64), conflicts_with_all = ["rate", "ramp", "even", "in_flight_max"])]
    pub closed: Option<u32>,
    /// Open loop: at most so many in flight on one session, 1 to 64; an arrival that finds no room is dropped and counted.
    #[arg(long, default_value_t = 64, value_parser = value_parser!(u32).range(1..=64), value_name = "COUNT")]
    pub in_flight_max: u32,
    /// Open loop: the rate rises evenly from nothing for so long, at most --length.
    #[arg(long, default_value = "0s", value_parser = duration_or_zero, value_name = "TIME")]
    pub ramp: Duration,
    /// Open loop: arrivals at equal distances instead of at chance.
    #[arg(long)]
    pub even: bool,
    /// How long grabs are sent: 30s, 1500ms, 2m.
    #[arg(long, default_value = "10s", value_parser = duration, value_name = "TIME")]
    pub length: Duration,
    /// Packets of the rain; by default a fifth more than there are grabs by plan, or 1,000,000 in a closed loop.
    #[arg(long, value_parser = value_parser!(u32).range(1..), value_name = "COUNT")]
    pub packets: Option<u32>,
    #[command(flatten)]
    pub target: Target,
    #[command(flatten)]
    pub admin: AdminTarget,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "The load")]
pub struct ConnectArgs {
    /// Sessions, 1 to 1,000,000, each of a user of its own.
    #[arg(long, default_value_t = 10_000, value_parser = value_parser!(u32).range(1..=1_000_000), value_name = "COUNT")]
    pub sessions: u32,
    /// New sessions a second; 0 as fast as they are let in.
    #[arg(long, default_value_t = 0, value_parser = value_parser!(u32).range(0..=1_000_000))]
    pub rate: u32,
    /// The longest time for all of them to be let in.
    #[arg(long, default_value = "60s", value_parser = duration, value_name = "TIME")]
    pub within: Duration,
    #[command(flatten)]
    pub target: Target,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "The load")]
pub struct IdleArgs {
    /// How long they are held.
    #[arg(long, default_value = "30s", value_parser = duration, value_name = "TIME")]
    pub length: Duration,
    /// Every session sends a Ping so often.
    #[arg(long, default_value = "10s", value_parser = duration, value_name = "TIME")]
    pub heartbeat: Duration,
    /// Process of the gateway, on this machine: its memory is told, in all and for each session.
    #[arg(long, value_name = "PID", value_parser = value_parser!(u32).range(1..))]
    pub pid: Option<u32>,
    #[command(flatten)]
    pub connect: ConnectArgs,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "The load")]
pub struct PushArgs {
    /// Rains that are opened one after the other, 1 to 1,000.
    #[arg(long, default_value_t = 5, value_parser = value_parser!(u32).range(1..=1_000), value_name = "COUNT")]
    pub times: u32,
    /// The room that is watched; one of this run's own if not given.
    #[arg(long, value_name = "NAME")]
    pub room: Option<String>,
    /// Opens nothing: another generator does, in the same room. Several of them hold more sessions than one process may.
    #[arg(long, requires = "room")]
    pub follow: bool,
    #[command(flatten)]
    pub connect: ConnectArgs,
    #[command(flatten)]
    pub admin: AdminTarget,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "The load")]
pub struct SettleArgs {
    /// Packets that are won, and then credited: 1 to 50,000,000.
    #[arg(long, default_value_t = 100_000, value_parser = value_parser!(u32).range(1..=50_000_000), value_name = "COUNT")]
    pub packets: u32,
    #[command(flatten)]
    pub target: Target,
    #[command(flatten)]
    pub admin: AdminTarget,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "The load")]
pub struct SweepArgs {
    /// Sessions of trusted servers, 1 to 100,000; every grab is for a fresh user.
    #[arg(long, default_value_t = 200, value_parser = value_parser!(u32).range(1..=100_000), value_name = "COUNT")]
    pub sessions: u32,
    /// The knee is the highest rate whose p99 is at most this, ms, from the planned instant; above 0, at most 120,000.
    #[arg(long, default_value = "10", value_parser = milliseconds, allow_negative_numbers = true, value_name = "MS")]
    pub p99_max: f64,
    /// The first rate that is tried, grabs a second; each next one is half as much again.
    #[arg(long, default_value = "5000", value_parser = rate, allow_negative_numbers = true, value_name = "RATE")]
    pub from: f64,
    /// The highest rate that is tried, at most 100,000 times --from.
    #[arg(long, default_value = "200000", value_parser = rate, allow_negative_numbers = true, value_name = "RATE")]
    pub to: f64,
    /// How often the gap between the best and the worst rate is halved, 0 to 16.
    #[arg(long, default_value_t = 4, value_parser = value_parser!(u32).range(0..=16), value_name = "COUNT")]
    pub halvings: u32,
    /// How often the knee has to hold once more before it is believed, 0 to 9; a rate that does not is given up for the next lower one.
    #[arg(long, default_value_t = 2, value_parser = value_parser!(u32).range(0..=9), value_name = "COUNT")]
    pub confirm: u32,
    /// How long each rate is offered.
    #[arg(long, default_value = "3s", value_parser = duration, value_name = "TIME")]
    pub length: Duration,
    #[command(flatten)]
    pub target: Target,
    #[command(flatten)]
    pub admin: AdminTarget,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "The load")]
pub struct HostileArgs {
    /// Honest sessions, 1 to 100,000.
    #[arg(long, default_value_t = 1_000, value_parser = value_parser!(u32).range(1..=100_000), value_name = "COUNT")]
    pub sessions: u32,
    /// Requests a second of all honest sessions together, above 0.
    #[arg(long, default_value = "5000", value_parser = rate, allow_negative_numbers = true)]
    pub rate: f64,
    /// Clients that send a frame one byte at a time and never finish, 0 to 20,000.
    #[arg(long, default_value_t = 1_000, value_parser = value_parser!(u32).range(0..=20_000), value_name = "COUNT")]
    pub slow_loris: u32,
    /// Clients that ask and never read, 0 to 20,000.
    #[arg(long, default_value_t = 1_000, value_parser = value_parser!(u32).range(0..=20_000), value_name = "COUNT")]
    pub slow_readers: u32,
    /// Clients that send what is no frame, 0 to 20,000.
    #[arg(long, default_value_t = 1_000, value_parser = value_parser!(u32).range(0..=20_000), value_name = "COUNT")]
    pub garbage: u32,
    /// How long the honest are measured in each round, without the others and with them.
    #[arg(long, default_value = "2s", value_parser = duration, value_name = "TIME")]
    pub length: Duration,
    /// Alone and among the others in turns, so often, 1 to 99; the medians count.
    #[arg(long, default_value_t = 9, value_parser = value_parser!(u32).range(1..=99), value_name = "COUNT")]
    pub rounds: u32,
    /// Another gateway with the same secret, which the hostile clients attack in some rounds: what the honest feel then is what it costs this machine to play them, and the rise counts from there.
    #[arg(long, value_name = "ADDR")]
    pub decoy: Option<String>,
    /// The p99 of the honest may rise to so many times what it is without the others.
    #[arg(long, default_value = "1.5", value_parser = factor, allow_negative_numbers = true, value_name = "FACTOR")]
    pub factor_max: f64,
    /// Only the hostile clients, until standard input ends.
    #[arg(long, hide = true)]
    pub crowd: bool,
    /// This program, if it is not the one that runs.
    #[arg(long, hide = true)]
    pub program: Option<PathBuf>,
    #[command(flatten)]
    pub target: Target,
    #[command(flatten)]
    pub output: Output,
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
