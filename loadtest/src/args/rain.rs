use std::time::Duration;

use clap::{Args, ValueEnum, value_parser};
use hongbao::rain::split::Rule;
use hongbao::rain::{Cents, RainId};

use super::values::{duration, range, rule};
use crate::human::Crowd;
use crate::scenario::args::{AdminTarget, Output, Target};

/// How the rain is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Opens {
    /// By a call when everybody is there and the countdown is over.
    Api,
    /// By its opening time: the rain is created when everybody is there, and nobody has to be awake when it opens.
    Time,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "The rain")]
pub struct RainArgs {
    /// Red packets in the rain, 1 or more.
    #[arg(long, default_value_t = 3_000, value_parser = value_parser!(u32).range(1..), value_name = "COUNT")]
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
    #[arg(long, default_value = "30s", value_parser = duration, value_name = "TIME")]
    pub duration: Duration,
    /// Who pays.
    #[arg(long, default_value = "demo", value_name = "NAME")]
    pub sponsor: String,
    /// Who opens it.
    #[arg(long, value_enum, default_value_t = Opens::Api)]
    pub opens: Opens,
    /// From everybody being there to the opening.
    #[arg(long, default_value = "3s", value_parser = duration, value_name = "TIME")]
    pub countdown: Duration,
    /// Join this rain instead of creating one.
    #[arg(long, value_name = "ID", conflicts_with_all = ["packets", "total", "rule", "min", "max", "sponsor", "opens", "durability", "buckets"])]
    pub rain: Option<RainId>,
    /// With --rain: wait for others to open it, and do not close it.
    #[arg(long, requires = "rain")]
    pub hands_off: bool,
    /// Title of the rain, of the display and of the report.
    #[arg(long, default_value = "red-packet rain", value_name = "TEXT")]
    pub heading: String,
    /// The longest time for everything; by default the countdown, the rain's duration and 5 minutes.
    #[arg(long, value_parser = duration, value_name = "TIME")]
    pub deadline: Option<Duration>,
    #[command(flatten)]
    pub people: PeopleArgs,
    #[command(flatten)]
    pub target: Target,
    #[command(flatten)]
    pub admin: AdminTarget,
    #[command(flatten)]
    pub output: Output,
}

/// What the people do. Who is what, and when each of them taps, follows from the seed.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "The people")]
pub struct PeopleArgs {
    /// People with one session each, 1 to 1,000,000.
    #[arg(long, default_value_t = 5_000, value_parser = value_parser!(u32).range(1..=1_000_000), value_name = "COUNT")]
    pub sessions: u32,
    /// New sessions a second, 1 to 100,000.
    #[arg(long, default_value_t = 2_500, value_parser = value_parser!(u32).range(1..=100_000), value_name = "RATE")]
    pub connect_rate: u32,
    /// What people are like on the whole; each of the options below says otherwise for one trait.
    #[arg(long, value_enum, default_value_t = Crowd::Quiz)]
    pub crowd: Crowd,
    /// The burst at the opening: half of those who are not late tap for the first time within this time after it.
    #[arg(long, value_parser = duration, value_name = "TIME")]
    pub reaction: Option<Duration>,
    /// Of 100 people, how many are late comers: they notice the rain only in the course of its first half.
    #[arg(long, value_parser = value_parser!(u8).range(0..=100), value_name = "PERCENT")]
    pub late: Option<u8>,
    /// Of 100 people, how many cannot wait and tap before the opening.
    #[arg(long, value_parser = value_parser!(u8).range(0..=100), value_name = "PERCENT")]
    pub eager: Option<u8>,
    /// Repeated taps: how long somebody who missed waits before tapping again, evenly between the two.
    #[arg(long, value_parser = range, value_name = "TIME..TIME")]
    pub tap_again: Option<(Duration, Duration)>,
    /// Of 100 people, how many tap once more after their outcome is final.
    #[arg(long, value_parser = value_parser!(u8).range(0..=100), value_name = "PERCENT")]
    pub doubting: Option<u8>,
    /// Of 100 people, how many lose their connection just when they tap for the first time, and come back.
    #[arg(long, value_parser = value_parser!(u8).range(0..=100), value_name = "PERCENT")]
    pub reconnecting: Option<u8>,
    /// Of 100 people, how many leave with their first tap on its way, and do not come back: what they won must be on their accounts all the same.
    #[arg(long, value_parser = value_parser!(u8).range(0..=100), value_name = "PERCENT")]
    pub leaving: Option<u8>,
}
