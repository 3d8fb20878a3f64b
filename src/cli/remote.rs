//! Commands that speak to the admin API.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Subcommand};

use hongbao::client::admin::{AdminClient, NewRain, NewTopUp, Rain};
use hongbao::config::Settings;
use hongbao::rain::split::{Rule, Tier};
use hongbao::rain::{Cents, Durability, RainId};
use hongbao::serve::Addresses;

use super::preview::{self, PreviewFlags, SplitFlags};
use super::watch::{self, WatchFlags};

/// Which server, and with what key. Without flags: the one that runs on the data directory, with the key it made.
#[derive(Args)]
pub struct ServerFlags {
    /// Address of the admin API, like http://127.0.0.1:7701
    #[arg(long, value_name = "URL", env = "HONGBAO_ADMIN_URL")]
    admin: Option<String>,
    /// File that holds the key to sign with: <id>.<secret>, or the server's API key
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Print the server's answer as JSON
    #[arg(long)]
    pub json: bool,
}

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
    /// Open it now
    Open {
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

#[derive(Args)]
pub struct CreateFlags {
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
    /// Opening time, ms since 1970; without it the rain waits for `hongbao rain open`
    #[arg(long, value_name = "MS")]
    opens_at_ms: Option<i64>,
    /// How long it stays open, ms [default: 30000]
    #[arg(long, value_name = "MS")]
    duration_ms: Option<i64>,
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

#[derive(Subcommand)]
pub enum AccountCommand {
    /// Open a sponsor's account
    Create {
        sponsor: String,
        #[command(flatten)]
        server: ServerFlags,
    },
    /// Record money that a sponsor has paid in
    Deposit {
        sponsor: String,
        /// Like 10000.00
        amount: Cents,
        /// Your own name for this deposit, like a bank reference: the same key deposits once
        #[arg(long)]
        key: String,
        #[command(flatten)]
        server: ServerFlags,
    },
    /// Balance of deposits, sponsor:<name>, escrow:<rain> or user:<user>
    Show {
        account: String,
        #[command(flatten)]
        server: ServerFlags,
    },
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

impl ServerFlags {
    pub fn connect(&self, settings: &Settings) -> anyhow::Result<AdminClient> {
        let url = match &self.admin {
            Some(url) => url.clone(),
            None => running_admin(settings)?,
        };
        let key = match (std::env::var("HONGBAO_API_KEY"), &self.api_key_file) {
            (Ok(key), None) => key,
            (_, file) => {
                let path = file.as_ref().unwrap_or(&settings.admin.api_key_file);
                std::fs::read_to_string(path).with_context(|| {
                    format!(
                        "cannot read the API key file {}: give --api-key-file or HONGBAO_API_KEY",
                        path.display()
                    )
                })?
            }
        };
        Ok(AdminClient::new(&url, &key)?)
    }
}

/// The server on this data directory knows its address; else the settings do.
fn running_admin(settings: &Settings) -> anyhow::Result<String> {
    let running = Addresses::read(&settings.data_dir)
        .ok()
        .and_then(|running| running.admin);
    let address = running.unwrap_or(settings.admin.listen);
    anyhow::ensure!(
        address.port() != 0,
        "no server runs on data directory {}: start `hongbao serve`, or give --admin",
        settings.data_dir.display()
    );
    Ok(format!("http://{address}"))
}

pub async fn rain(settings: &Settings, command: RainCommand) -> anyhow::Result<ExitCode> {
    match command {
        RainCommand::Create(flags) => {
            let server = flags.server.connect(settings)?;
            let (json, dry_run) = (flags.server.json, flags.dry_run);
            let new = new_rain(*flags);
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
                println!("{}", serde_json::to_string_pretty(&rains)?);
            } else {
                list_rains(&rains);
            }
        }
        RainCommand::Show { rain, server } => {
            show_rain(&server.connect(settings)?.rain(rain).await?, server.json)?
        }
        RainCommand::Open { rain, server } => show_rain(
            &server.connect(settings)?.open_rain(rain).await?,
            server.json,
        )?,
        RainCommand::TopUp(flags) => {
            let (rain, json) = (flags.rain, flags.server.json);
            let server = flags.server.connect(settings)?;
            let done = server.top_up_rain(rain, &new_top_up(flags)).await?;
            if json {
                println!("{}", serde_json::to_string_pretty(&done)?);
            } else {
                println!("top-up    {}", done.top_up);
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

fn new_rain(flags: CreateFlags) -> NewRain {
    NewRain {
        title: flags.title,
        room: flags.room,
        sponsor: flags.sponsor,
        opens_at_ms: flags.opens_at_ms,
        duration_ms: flags.duration_ms,
        durability: flags.durability,
        buckets: flags.buckets,
        refund_after_ms: flags.refund_after_ms,
        key_required: flags.key_required,
        key: flags.key,
        ..flags.split.rain()
    }
}

fn list_rains(rains: &[Rain]) {
    println!(
        "{:>10}  {:<9}  {:>10}  {:>16}  {:<16}  TITLE",
        "RAIN", "STATE", "PACKETS", "TOTAL", "ROOM"
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
        println!(
            "{:>10}  {:<9}  {packets:>10}  {total:>16}  {:<16}  {}",
            rain.id, rain.state, rain.room, rain.title
        );
    }
}

fn show_rain(rain: &Rain, json: bool) -> anyhow::Result<()> {
    if json {
        println!("{}", serde_json::to_string_pretty(rain)?);
        return Ok(());
    }
    let ms = |at: Option<i64>| {
        at.map_or_else(
            || "when an operator says".to_owned(),
            |at| format!("{at} ms"),
        )
    };
    println!("rain      {}", rain.id);
    println!("state     {}", rain.state);
    println!("room      {}", rain.room);
    println!(
        "packets   {} worth {}",
        rain.packets.unwrap_or_default(),
        rain.total_cents.unwrap_or_default()
    );
    for top_up in &rain.top_ups {
        let on_its_way = if top_up.loaded { "" } else { ", being loaded" };
        println!(
            "          of them {} worth {} by top-up {}{on_its_way}",
            top_up.packets, top_up.total_cents, top_up.number
        );
    }
    println!("opens     {}", ms(rain.opens_at_ms));
    println!("closes    {}", ms(rain.closes_at_ms));
    if let Some(live) = &rain.live {
        println!("pool      {} packets", live.pool);
        println!(
            "claims    {} waiting, {} leased, {} retrying, {} dead",
            live.claims_waiting, live.leased, live.retrying, live.dead
        );
        println!(
            "credited  {} packets worth {}",
            live.credited_count, live.credited_cents
        );
    }
    Ok(())
}

pub async fn account(settings: &Settings, command: AccountCommand) -> anyhow::Result<ExitCode> {
    let (account, json) = match command {
        AccountCommand::Create { sponsor, server } => (
            server.connect(settings)?.create_sponsor(&sponsor).await?,
            server.json,
        ),
        AccountCommand::Deposit {
            sponsor,
            amount,
            key,
            server,
        } => {
            let admin = server.connect(settings)?;
            (admin.deposit(&sponsor, amount, &key).await?, server.json)
        }
        AccountCommand::Show { account, server } => (
            server.connect(settings)?.account(&account).await?,
            server.json,
        ),
    };
    if json {
        println!("{}", serde_json::to_string_pretty(&account)?);
    } else {
        println!("{}  {}", account.name, account.balance_cents);
    }
    Ok(ExitCode::SUCCESS)
}

/// Exit code 0 if it balances, 1 if not.
pub async fn audit(
    settings: &Settings,
    rain: RainId,
    flags: &ServerFlags,
) -> anyhow::Result<ExitCode> {
    let audit = flags.connect(settings)?.audit(rain).await?;
    if flags.json {
        println!("{}", serde_json::to_string_pretty(&audit)?);
    } else {
        println!("funded    {:>16}", audit.funded_cents);
        println!("pool      {:>16}", audit.pool_cents);
        println!("claims    {:>16}", audit.claims_cents);
        println!(
            "credited  {:>16}  in {} credits",
            audit.credited_cents, audit.credited_count
        );
        println!("refunded  {:>16}", audit.refunded_cents);
        println!("in motion {:>13} claims", audit.in_motion);
        for difference in &audit.differences {
            let packet = difference
                .packet_id
                .map(|id| format!(" packet {id}"))
                .unwrap_or_default();
            let user = difference
                .user
                .as_ref()
                .map(|user| format!(" user {user}"))
                .unwrap_or_default();
            let cents = difference
                .cents
                .map(|cents| format!(" {cents}"))
                .unwrap_or_default();
            println!(
                "{}{packet}{user}{cents}: {}",
                difference.kind, difference.detail
            );
        }
        println!(
            "audit: {}",
            if audit.balanced {
                "balanced"
            } else {
                "UNBALANCED"
            }
        );
    }
    Ok(if audit.balanced {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(1)
    })
}

/// Exit code 0 if all paid wins stand again, 1 if a person has to look.
pub async fn repair(
    settings: &Settings,
    rain: RainId,
    all: bool,
    flags: &ServerFlags,
) -> anyhow::Result<ExitCode> {
    let repair = flags.connect(settings)?.repair(rain, all).await?;
    if flags.json {
        println!("{}", serde_json::to_string_pretty(&repair)?);
    } else if let Some(repair) = &repair {
        println!("buckets           {:?}", repair.buckets);
        println!("wins restored     {}", repair.wins_restored);
        println!(
            "packets removed   {} (won, yet in a pool)",
            repair.packets_removed
        );
        println!(
            "packets returned  {} (were nowhere)",
            repair.packets_returned
        );
        println!("not restored      {}", repair.not_restored_total);
        for win in &repair.not_restored {
            println!(
                "packet {} of user {}: {}",
                win.packet_id, win.user, win.reason
            );
        }
    } else {
        println!(
            "nothing to repair: every bucket is held by the process that loaded or repaired it"
        );
    }
    let whole = repair.is_none_or(|repair| repair.not_restored_total == 0);
    Ok(ExitCode::from(u8::from(!whole)))
}
