/// Those of the scenario `rain`.
mod rain;
/// Values.
pub mod values;

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::TypedValueParser as _;
use clap::{Args as ClapArgs, Parser, Subcommand};

use crate::scenario::args as scenario;
use values::duration;

pub use rain::{Opens, PeopleArgs, RainArgs};

const EXIT_CODES: &str = "Exit codes:
  0  every check and every bound holds
  1  a check failed: a promise was broken, or the audit does not balance
  2  wrong use: an option, a value or a file
  3  the run could not be carried out
  4  every check holds, a --bound (or a goal of bench) does not";

/// Load generator of hongbao: puts load on it, and checks that what its clients were told is true.
#[derive(Debug, Parser)]
#[command(
    name = "hongbao-load",
    version,
    after_help = EXIT_CODES
)]
pub struct Args {
    #[command(subcommand)]
    pub scenario: Scenario,
}

#[derive(Debug, Subcommand)]
pub enum Scenario {
    /// A whole rain with people: fund, create, connect, tap, settle, close, audit, and check every promise that a client can see.
    #[command(args_override_self = true, after_help = EXIT_CODES)]
    // a script's defaults come first, what is added to it wins
    Rain(RainArgs),
    /// Winning grabs by plan (open loop, with a ramp), or as fast as they are answered; the ledger is checked afterwards.
    #[command(args_override_self = true, after_help = EXIT_CODES)]
    Grabs(scenario::GrabsArgs),
    /// A storm of connections: as fast as they are let in, or at a rate.
    #[command(args_override_self = true, after_help = EXIT_CODES)]
    Connect(scenario::ConnectArgs),
    /// Hold sessions that only send heartbeats.
    #[command(args_override_self = true, after_help = EXIT_CODES)]
    Idle(scenario::IdleArgs),
    /// How soon everybody who watches hears that a rain has opened.
    #[command(args_override_self = true, after_help = EXIT_CODES)]
    Push(scenario::PushArgs),
    /// How fast wins become credits: many packets are won at once, and every credit is awaited.
    #[command(args_override_self = true, after_help = EXIT_CODES)]
    Settle(scenario::SettleArgs),
    /// Find the knee: the highest rate of winning grabs whose p99 keeps a bound, again and again.
    #[command(args_override_self = true, after_help = EXIT_CODES)]
    Sweep(scenario::SweepArgs),
    /// Honest sessions among slow lorises, slow readers and garbage.
    #[command(args_override_self = true, after_help = EXIT_CODES)]
    Hostile(scenario::HostileArgs),
    /// Several generators of one run as one: adds up the logs that they wrote with --hdr.
    #[command(args_override_self = true, after_help = EXIT_CODES)]
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

#[cfg(test)]
mod tests {
    use super::*;
    use hongbao::rain::Cents;
    use hongbao::rain::split::Rule;

    const SERVER: [&str; 4] = [
        "--gateway",
        "127.0.0.1:7000",
        "--token-secret-file",
        "secret",
    ];
    const ADMIN: [&str; 2] = ["--admin", "http://127.0.0.1:7080"];

    fn parse(scenario: &str, more: &[&str]) -> Result<Scenario, clap::Error> {
        let mut words = vec!["hongbao-load", scenario];
        words.extend(SERVER);
        words.extend(ADMIN);
        words.extend(more);
        Args::try_parse_from(words).map(|args| args.scenario)
    }

    fn rain(more: &[&str]) -> Result<RainArgs, clap::Error> {
        match parse("rain", more)? {
            Scenario::Rain(args) => Ok(args),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_defaults_are_those_of_the_demo() {
        let args = rain(&[]).unwrap();
        assert_eq!((args.people.sessions, args.packets), (5_000, 3_000));
        assert_eq!(args.total, Cents(1_000_000));
        assert_eq!(args.rule, Rule::DoubleMean);
    }

    #[test]
    fn what_is_given_later_replaces_a_scripts_defaults_and_gateways_add_up() {
        let more = ["--sessions", "7", "--sessions", "8", "--gateway", "[::1]:1"];
        let args = rain(&more).unwrap();
        assert_eq!(args.people.sessions, 8);
        assert_eq!(args.target.gateways.len(), 2);
    }

    /// The option is named in the fault, the exit code is 2.
    #[test]
    fn wrong_arguments_are_refused_with_the_exit_code_2() {
        for (scenario, wrong, named) in [
            ("rain", &["--sessions", "0"][..], "1..=1000000"),
            ("rain", &["--total", "1.234"], "--total"),
            ("rain", &["--duration", "0s"], "at least 1 ms"),
            ("rain", &["--rule", "lucky"], "double_mean"),
            ("rain", &["--hands-off"], "--rain"),
            ("rain", &["--rain", "4", "--packets", "5"], "--packets"),
            ("rain", &["--reconnecting", "101"], "0..=100"),
            ("rain", &["--tap-again", "1s..5ms"], "the shorter one first"),
            ("rain", &["--crowd", "angry"], "stroll"),
            ("rain", &["--source-addresses", "251"], "0..=250"),
            ("rain", &["--bound", "p98<=4"], "p99.9"),
            ("rain", &["--seed", "-1"], "from 0 to 9007199254740991"),
            ("grabs", &["--rate", "-5"], "above 0"),
            ("rain", &["--unknown"], "--unknown"),
            ("grabs", &["--rate", "0"], "above 0"),
            ("grabs", &["--rate", "NaN"], "--rate"),
            ("grabs", &["--closed", "65"], "1..=64"),
            ("grabs", &["--closed", "4", "--rate", "100"], "--rate"),
            ("sweep", &["--p99-max", "0"], "milliseconds above 0"),
            ("sweep", &["--confirm", "10"], "0..=9"),
            ("settle", &["--packets", "0"], "--packets"),
        ] {
            let error = parse(scenario, wrong).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{wrong:?}");
            let text = error.to_string();
            assert!(text.contains(named), "{wrong:?}: {text}");
        }
    }

    /// Whoever asks for help learns what each option does.
    #[test]
    fn every_option_of_every_scenario_is_described() {
        use clap::CommandFactory;
        for scenario in Args::command().get_subcommands() {
            assert!(scenario.get_about().is_some(), "{}", scenario.get_name());
            for option in scenario.get_arguments() {
                let name = option.get_id();
                let described = option.is_hide_set() || option.get_help().is_some();
                assert!(described, "{} {name}", scenario.get_name());
            }
        }
    }
}
