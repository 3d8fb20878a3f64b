use std::path::PathBuf;
use std::time::Duration;

use clap::builder::TypedValueParser as _;
use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use hongbao::rain::split::{Rule, Tier};
use hongbao::rain::{Cents, Durability, RainId};

use crate::scenario::args as scenario;

/// Load generator of hongbao.
#[derive(Debug, Parser)]
#[command(
    name = "hongbao-load",
    version,
    after_help = "Exit codes: 0 the audit balances and every check holds, 1 it does not, 2 wrong arguments, 3 the run could not be carried out, 4 a --bound (or a goal of bench) does not hold."
)]
pub struct Args {
    #[command(subcommand)]
    pub scenario: Scenario,
}

#[derive(Debug, Subcommand)]
pub enum Scenario {
    /// A whole rain: fund it, gather people, open it, tap, settle, close, audit, and check every promise that a client can see.
    #[command(args_override_self = true)]
    // a script's defaults come first, what is added to it wins
    Rain(RainArgs),
    /// Winning grabs by plan (open loop, with a ramp), or as fast as they are answered; the ledger is checked afterwards.
    #[command(args_override_self = true)]
    Grabs(scenario::GrabsArgs),
    /// A storm of connections.
    #[command(args_override_self = true)]
    Connect(scenario::ConnectArgs),
    /// Hold sessions that only send heartbeats.
    #[command(args_override_self = true)]
    Idle(scenario::IdleArgs),
    /// How soon everybody hears that a rain has opened.
    #[command(args_override_self = true)]
    Push(scenario::PushArgs),
    /// How fast wins become credits.
    #[command(args_override_self = true)]
    Settle(scenario::SettleArgs),
    /// Find the knee: the highest rate with p99 under a bound.
    #[command(args_override_self = true)]
    Sweep(scenario::SweepArgs),
    /// Honest sessions among slow lorises, slow readers and garbage.
    #[command(args_override_self = true)]
    Hostile(scenario::HostileArgs),
    /// Add up the HDR logs of several generators.
    #[command(args_override_self = true)]
    Merge(scenario::MergeArgs),
    /// The benchmarks, each a ratio against a baseline of the same run: starts servers of its own on loopback.
    Bench(BenchArgs),
    /// A bare echo server, which the benchmarks compare with.
    #[command(hide = true)]
    Echo,
}

#[derive(Debug, Clone, ClapArgs)]
pub struct BenchArgs {
    /// B1 to B9; all of them if none is named.
    pub names: Vec<String>,
    /// Every side is measured so often, in turn with the others; the median of the rounds' ratios counts.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u8).range(1..=99).map(usize::from))]
    pub rounds: usize,
    /// How long one round of one side takes.
    #[arg(long, default_value = "1s", value_parser = duration)]
    pub length: Duration,
    /// Sessions of B9; fewer if this process may not open so many descriptors (ulimit -n).
    #[arg(long, default_value_t = 50_000, value_parser = clap::value_parser!(u32).range(1..=400_000))]
    pub idle_sessions: u32,
    /// Write machine, table and raw figures as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// The server under test; by default the program `hongbao` beside this one.
    #[arg(long, value_name = "FILE")]
    pub hongbao: Option<PathBuf>,
    /// No progress, only the table.
    #[arg(long, short)]
    pub quiet: bool,
}

/// How the rain is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Opens {
    /// By a call when everybody is there and the countdown is over.
    Api,
    /// By its opening time: the rain is created when everybody is there, and nobody has to be awake when it opens.
    Time,
}

#[derive(Debug, Clone, ClapArgs)]
pub struct RainArgs {
    /// Address of a gateway, host:port; may be repeated.
    #[arg(long = "gateway", required = true, value_name = "ADDR")]
    pub gateways: Vec<String>,
    /// Address of the admin API, like http://127.0.0.1:7080
    #[arg(long, value_name = "URL", env = "HONGBAO_ADMIN_URL")]
    pub admin: String,
    /// File with the admin API key (else the environment variable HONGBAO_API_KEY)
    #[arg(long, value_name = "FILE")]
    pub api_key_file: Option<PathBuf>,
    /// The admin API key itself.
    #[arg(long, env = "HONGBAO_API_KEY", hide_env_values = true, hide = true)]
    pub api_key: Option<String>,
    /// File with the secret that session tokens are signed with (HS256), as hex text.
    #[arg(long, value_name = "FILE")]
    pub token_secret_file: PathBuf,
    /// The name under which the gateway knows that secret.
    #[arg(long, default_value = "default", value_name = "KID")]
    pub token_kid: String,

    /// People with one session each.
    #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub sessions: u32,
    /// Red packets in the rain.
    #[arg(long, default_value_t = 3_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub packets: u32,
    /// What they are worth together.
    #[arg(long, default_value = "10000.00", value_name = "AMOUNT")]
    pub total: Cents,
    /// even, double_mean, line_cut, or a prize table like tiers:1x888.00,100x8.88
    #[arg(long, default_value = "double_mean", value_parser = rule)]
    pub rule: Rule,
    /// Smallest packet.
    #[arg(long, value_name = "AMOUNT")]
    pub min: Option<Cents>,
    /// Largest packet.
    #[arg(long, value_name = "AMOUNT")]
    pub max: Option<Cents>,
    /// How long the rain falls: 30s, 1500ms, 2m.
    #[arg(long, default_value = "30s", value_parser = duration)]
    pub duration: Duration,
    /// memory, fsync or replicas:N; the server's default if not given.
    #[arg(long)]
    pub durability: Option<Durability>,
    /// Buckets of the rain; the server's default if not given.
    #[arg(long)]
    pub buckets: Option<u32>,
    /// Who pays.
    #[arg(long, default_value = "demo")]
    pub sponsor: String,
    #[arg(long, value_enum, default_value_t = Opens::Api)]
    pub opens: Opens,
    /// From everybody being there to the opening.
    #[arg(long, default_value = "3s", value_parser = duration)]
    pub countdown: Duration,

    /// Join this rain instead of creating one.
    #[arg(long, value_name = "ID")]
    pub rain: Option<RainId>,
    /// With --rain: wait for others to open it, and do not close it.
    #[arg(long, requires = "rain")]
    pub hands_off: bool,

    /// Everything that is left to chance follows from it; drawn and printed if not given.
    #[arg(long)]
    pub seed: Option<u64>,
    /// New sessions per second.
    #[arg(long, default_value_t = 2_500, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub connect_rate: u32,
    /// Loopback addresses (127.0.0.2 and up) that sessions connect from; 0 chooses by their number.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=250))]
    pub source_addresses: u32,
    /// Half of the people tap for the first time within this time after the opening.
    #[arg(long, default_value = "2s", value_parser = duration)]
    pub reaction: Duration,
    /// Of 100 people, how many look away and lose their connection just when they tap.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u8).range(0..=100), value_name = "PERCENT")]
    pub reconnecting: u8,
    /// Of 100 people, how many tap once more after their outcome is final.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u8).range(0..=100), value_name = "PERCENT")]
    pub doubting: u8,
    /// Of 100 people, how many cannot wait and tap before the opening.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(0..=100), value_name = "PERCENT")]
    pub eager: u8,

    /// The longest wait for any one thing (readiness, everybody connected, settlement, the refund).
    #[arg(long, default_value = "60s", value_parser = duration)]
    pub patience: Duration,
    /// The longest time for everything; by default the rain's duration and 5 minutes.
    #[arg(long, value_parser = duration)]
    pub deadline: Option<Duration>,

    /// Write the report as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Title of the rain, and of the display.
    #[arg(long, default_value = "red-packet rain")]
    pub heading: String,
    /// No progress, only the summary.
    #[arg(long, short)]
    pub quiet: bool,
}

fn rule(text: &str) -> Result<Rule, String> {
    match text {
        "even" => return Ok(Rule::Even),
        "double_mean" => return Ok(Rule::DoubleMean),
        "line_cut" => return Ok(Rule::LineCut),
        _ => {}
    }
    let fault = || {
        format!(
            "\"{text}\" is not even, double_mean, line_cut or a prize table like tiers:1x888.00,100x8.88"
        )
    };
    let rows = text.strip_prefix("tiers:").ok_or_else(fault)?.split(',');
    let row = |row: &str| {
        let (count, amount) = row.split_once('x')?;
        Some(Tier {
            count: count.trim().parse().ok().filter(|count| *count > 0)?,
            cents: amount.trim().parse().ok()?,
        })
    };
    let rows: Option<Vec<Tier>> = rows.map(row).collect();
    rows.map(Rule::Tiers).ok_or_else(fault)
}

/// `30s`, `1500ms`, `2m`, and `30` for seconds.
pub fn duration(text: &str) -> Result<Duration, String> {
    let fault = || {
        format!(
            "\"{text}\" is not a time like 30s, 1500ms or 2m, of at least 1 ms and at most 24 hours"
        )
    };
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit_ms = match &text[digits.len()..] {
        "ms" => 1,
        "s" | "" => 1_000,
        "m" => 60_000,
        _ => return Err(fault()),
    };
    let count: u64 = digits.parse().map_err(|_| fault())?;
    count
        .checked_mul(unit_ms)
        .filter(|ms| (1..=86_400_000).contains(ms))
        .map(Duration::from_millis)
        .ok_or_else(fault)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(more: &[&str]) -> Result<RainArgs, clap::Error> {
        let least = [
            "hongbao-load",
            "rain",
            "--gateway",
            "127.0.0.1:7000",
            "--admin",
            "http://127.0.0.1:7080",
            "--token-secret-file",
            "secret",
        ];
        let args = Args::try_parse_from(least.iter().chain(more))?;
        match args.scenario {
            Scenario::Rain(args) => Ok(args),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_defaults_are_those_of_the_demo() {
        let args = parse(&[]).unwrap();
        assert_eq!((args.sessions, args.packets), (5_000, 3_000));
        assert_eq!(args.total, Cents(1_000_000));
        assert_eq!(args.rule, Rule::DoubleMean);
    }

    #[test]
    fn times_and_rules_read_as_people_write_them() {
        let args = parse(&["--duration", "1500ms", "--rule", "tiers:1x888.00,100x8.88"]).unwrap();
        assert_eq!(args.duration, Duration::from_millis(1_500));
        let tier = |count, cents| Tier {
            count,
            cents: Cents(cents),
        };
        assert_eq!(
            args.rule,
            Rule::Tiers(vec![tier(1, 88_800), tier(100, 888)])
        );
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(duration("7"), Ok(Duration::from_secs(7)));
    }

    #[test]
    fn wrong_arguments_are_refused_with_the_exit_code_2() {
        for wrong in [
            &["--sessions", "0"][..],
            &["--total", "1.234"],
            &["--duration", "0s"],
            &["--duration", "soon"],
            &["--rule", "tiers:0x1.00"],
            &["--rule", "lucky"],
            &["--hands-off"],
            &["--reconnecting", "101"],
            &["--unknown"],
        ] {
            let error = parse(wrong).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{wrong:?}");
        }
    }
}
