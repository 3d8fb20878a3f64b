//! `hongbao rain`.

use std::process::ExitCode;

use clap::{Args, Subcommand};

use hongbao::client::admin::{NewRain, NewTopUp, Rain};
use hongbao::config::Settings;
use hongbao::rain::split::{Rule, Tier};
use hongbao::rain::{Cents, Durability, RainId};

use super::moment::utc;
use super::preview::{self, PreviewFlags, SplitFlags};
use super::remote::ServerFlags;
use super::watch::{self, WatchFlags};

#[derive(Subcommand)]
pub enum RainCommand {
    /// Fund a rain and load its packets
    Create(Box<CreateFlags>),
    /// What a split would look like: smallest, largest, median, a histogram. Nothing is stored, and no rain has these amounts
    Preview(PreviewFlags),
    /// All rains, newest first
    List {
        #[command(flatten)]
        server: ServerFlags,
    },
    /// One rain with its live numbers
    Show {
        rain: RainId,
        #[command(flatten)]
        server: ServerFlags,
    },
    /// Watch it fall: packets left, rates, outcomes, claims, buckets; a line for each look where there is no terminal, or with --json. Ends with the
    /// rain (exit code 0), or when the server stays away (1)
    Watch(WatchFlags),
    /// Tell the room now of a rain that it was to be told of later
    Announce {
        rain: RainId,
        #[command(flatten)]
        server: ServerFlags,
    },
    /// Open it now
    Open {
        rain: RainId,
        #[command(flatten)]
        server: ServerFlags,
    },
    /// Give nothing until it is resumed
    Pause {
        rain: RainId,
        #[command(flatten)]
        server: ServerFlags,
    },
    /// Go on after a pause
    Resume {
        rain: RainId,
        #[command(flatten)]
        server: ServerFlags,
    },
    /// Add packets and money to a rain that is not closed, also while it falls
    TopUp(TopUpFlags),
    /// Close it now and refund what is left
    Close {
        rain: RainId,
        #[command(flatten)]
        server: ServerFlags,
    },
}

/// What a rain and a template have in common.
#[derive(Args)]
pub struct RainFlags {
    /// Who pays
    #[arg(long)]
    sponsor: String,
    /// Where it falls: sessions that watch this room are told
    #[arg(long)]
    room: String,
    #[command(flatten)]
    split: SplitFlags,
    #[arg(long, default_value = "")]
    title: String,
    /// How long it stays open, ms [default: 30000]
    #[arg(long, value_name = "MS")]
    duration_ms: Option<i64>,
    /// How long before its opening the room is told of it, ms [default: as soon as it is created]
    #[arg(long, value_name = "MS")]
    announce_ms: Option<i64>,
    /// memory, fsync or replicas:N
    #[arg(long)]
    durability: Option<Durability>,
    /// Parts of the pool [default: one a node]
    #[arg(long)]
    buckets: Option<u32>,
    /// Grabs must carry a key that phones are told when the rain opens: no bot taps blindly
    #[arg(long)]
    key_required: bool,
    /// After closing time, how long until what is left goes back by itself, ms [default: a day]
    #[arg(long, value_name = "MS")]
    refund_after_ms: Option<i64>,
}

#[derive(Args)]
pub struct CreateFlags {
    #[command(flatten)]
    rain: RainFlags,
    /// Opening time, ms since 1970; without it the rain waits for `hongbao rain open`
    #[arg(long, value_name = "MS")]
    opens_at_ms: Option<i64>,
    /// Your own name for this request: the same key makes one rain
    #[arg(long)]
    key: Option<String>,
    /// Check everything and say what would happen, but let nothing happen
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    server: ServerFlags,
}

#[derive(Args)]
pub struct TopUpFlags {
    rain: RainId,
    /// Money to add, like 10000.00: the rain's sponsor pays
    #[arg(long)]
    total: Cents,
    /// How many packets it becomes (a prize table says it itself)
    #[arg(long, required_unless_present = "tier")]
    packets: Option<u32>,
    /// even, double_mean or line_cut [default: as the rain was created]
    #[arg(long, value_parser = parse_rule)]
    rule: Option<Rule>,
    /// A row of a prize table, COUNTxAMOUNT like 100x8.88; may be repeated, and replaces --rule and --packets
    #[arg(long, value_parser = parse_tier, conflicts_with_all = ["packets", "rule"])]
    tier: Vec<Tier>,
    /// Smallest packet [default: as the rain was created]
    #[arg(long)]
    min: Option<Cents>,
    /// Largest packet [default: as the rain was created]
    #[arg(long)]
    max: Option<Cents>,
    /// Your own name for this request: the same key tops up once
    #[arg(long)]
    key: String,
    #[command(flatten)]
    server: ServerFlags,
}

pub fn parse_rule(text: &str) -> Result<Rule, String> {
    match text {
        "even" => Ok(Rule::Even),
        "double_mean" => Ok(Rule::DoubleMean),
        "line_cut" => Ok(Rule::LineCut),
        _ => Err("must be even, double_mean or line_cut; for a prize table give --tier".into()),
    }
}

pub fn parse_tier(text: &str) -> Result<Tier, String> {
    let fault = || format!("\"{text}\" is not COUNTxAMOUNT, like 100x8.88");
    let (count, cents) = text.split_once('x').ok_or_else(fault)?;
    Ok(Tier {
        count: count.parse().map_err(|_| fault())?,
        cents: cents.parse().map_err(|_| fault())?,
    })
}

pub async fn rain(settings: &Settings, command: RainCommand) -> anyhow::Result<ExitCode> {
    match command {
        RainCommand::Create(flags) => {
            let server = flags.server.connect(settings)?;
            let (json, dry_run) = (flags.server.json, flags.dry_run);
            let new = NewRain {
                opens_at_ms: flags.opens_at_ms,
                key: flags.key,
                ..flags.rain.rain()
            };
            if dry_run {
                preview::show_rehearsal(&server.rehearse_rain(&new).await?, json)?;
            } else {
                show_rain(&server.create_rain(&new).await?, json)?;
            }
        }
        RainCommand::Preview(flags) => return preview::preview(settings, flags).await,
        RainCommand::Watch(flags) => return watch::watch(settings, flags).await,
        RainCommand::List { server } => {
            let rains = server.connect(settings)?.rains().await?;
            if server.json {
                say!("{}", serde_json::to_string_pretty(&rains)?);
            } else {
                list_rains(&rains);
            }
        }
        RainCommand::Show { rain, server } => {
            show_rain(&server.connect(settings)?.rain(rain).await?, server.json)?
        }
        RainCommand::Announce { rain, server } => show_rain(
            &server.connect(settings)?.announce_rain(rain).await?,
            server.json,
        )?,
        RainCommand::Open { rain, server } => show_rain(
            &server.connect(settings)?.open_rain(rain).await?,
            server.json,
        )?,
        RainCommand::Pause { rain, server } => show_rain(
            &server.connect(settings)?.pause_rain(rain).await?,
            server.json,
        )?,
        RainCommand::Resume { rain, server } => show_rain(
            &server.connect(settings)?.resume_rain(rain).await?,
            server.json,
        )?,
        RainCommand::TopUp(flags) => {
            let (rain, json) = (flags.rain, flags.server.json);
            let server = flags.server.connect(settings)?;
            let done = server.top_up_rain(rain, &new_top_up(flags)).await?;
            if json {
                say!("{}", serde_json::to_string_pretty(&done)?);
            } else {
                say!("top-up    {}", done.top_up);
                show_rain(&done.rain, false)?;
            }
        }
        RainCommand::Close { rain, server } => show_rain(
            &server.connect(settings)?.close_rain(rain).await?,
            server.json,
        )?,
    }
    Ok(ExitCode::SUCCESS)
}

/// A prize table says how many packets it has.
pub fn packets_of(packets: Option<u32>, tiers: &[Tier]) -> u32 {
    if tiers.is_empty() {
        return packets.unwrap_or_default();
    }
    tiers
        .iter()
        .fold(0u32, |sum, tier| sum.saturating_add(tier.count))
}

fn new_top_up(flags: TopUpFlags) -> NewTopUp {
    NewTopUp {
        packets: packets_of(flags.packets, &flags.tier),
        total_cents: flags.total,
        rule: if flags.tier.is_empty() {
            flags.rule
        } else {
            Some(Rule::Tiers(flags.tier))
        },
        min_cents: flags.min,
        max_cents: flags.max,
        key: flags.key,
    }
}

impl RainFlags {
    pub fn rain(self) -> NewRain {
        NewRain {
            title: self.title,
            room: self.room,
            sponsor: self.sponsor,
            duration_ms: self.duration_ms,
            announce_ms: self.announce_ms,
            durability: self.durability,
            buckets: self.buckets,
            refund_after_ms: self.refund_after_ms,
            key_required: self.key_required,
            ..self.split.rain()
        }
    }
}

fn list_rains(rains: &[Rain]) {
    say!(
        "{:>10}  {:<9}  {:>10}  {:>16}  {:<16}  TITLE",
        "RAIN",
        "STATE",
        "PACKETS",
        "TOTAL",
        "ROOM"
    );
    for rain in rains {
        let packets = rain
            .packets
            .map(|packets| packets.to_string())
            .unwrap_or_default();
        let total = rain
            .total_cents
            .map(|total| total.to_string())
            .unwrap_or_default();
        say!(
            "{:>10}  {:<9}  {packets:>10}  {total:>16}  {:<16}  {}",
            rain.id,
            rain.state,
            rain.room,
            rain.title
        );
    }
}

pub fn show_rain(rain: &Rain, json: bool) -> anyhow::Result<()> {
    if json {
        say!("{}", serde_json::to_string_pretty(rain)?);
        return Ok(());
    }
    let moment = |at: Option<i64>, unknown: &str| at.map_or_else(|| unknown.to_owned(), utc);
    say!("rain      {}", rain.id);
    say!("state     {}", rain.state);
    say!("room      {}", rain.room);
    say!(
        "packets   {} worth {}",
        rain.packets.unwrap_or_default(),
        rain.total_cents.unwrap_or_default()
    );
    for top_up in &rain.top_ups {
        let on_its_way = if top_up.loaded { "" } else { ", being loaded" };
        say!(
            "          of them {} worth {} by top-up {}{on_its_way}",
            top_up.packets,
            top_up.total_cents,
            top_up.number
        );
    }
    say!(
        "opens     {}",
        moment(rain.opens_at_ms, "when an operator says")
    );
    say!(
        "closes    {}",
        moment(rain.closes_at_ms, "its duration after the opening")
    );
    if let Some(live) = &rain.live {
        say!("pool      {} packets", live.pool);
        say!(
            "claims    {} waiting, {} leased, {} retrying, {} dead",
            live.claims_waiting,
            live.leased,
            live.retrying,
            live.dead
        );
        say!(
            "credited  {} packets worth {}",
            live.credited_count,
            live.credited_cents
        );
    }
    Ok(())
}
