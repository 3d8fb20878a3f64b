//! Keys of the admin API, and the log of who did what.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde::Serialize;

use hongbao::admin::caller::Role;
use hongbao::client::admin::{AdminClient, Key, LogLine, NewKey};
use hongbao::clock::now_ms;
use hongbao::config::Settings;

use super::moment::utc;
use super::remote::ServerFlags;

/// Lines asked for at once.
const PAGE: u32 = 500;

#[derive(Subcommand)]
pub enum KeysCommand {
    /// All keys, those that are revoked too
    List {
        #[command(flatten)]
        server: ServerFlags,
    },
    /// One key: what it may do, until when, when it was last used
    Show {
        id: String,
        #[command(flatten)]
        server: ServerFlags,
    },
    /// Make a key, and print the text that its holder signs with: it is shown this once
    Create {
        /// Whose it is, for people
        name: String,
        /// viewer, operator, finance or admin; may be repeated
        #[arg(long, required = true)]
        role: Vec<Role>,
        /// How long it is good, days [default: until it is revoked]
        #[arg(long, value_name = "DAYS", value_parser = clap::value_parser!(i64).range(1..=36_500))]
        days: Option<i64>,
        /// Your own name for this request: the same key makes one key
        #[arg(long)]
        key: Option<String>,
        #[command(flatten)]
        server: ServerFlags,
    },
    /// Give a key a new secret, and print it; the old one stays good for a while
    Rotate {
        id: String,
        /// How long the old secret stays good, seconds [default: a day]; 0 ends it at once
        #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(i64).range(0..=2_592_000))]
        overlap: Option<i64>,
        #[command(flatten)]
        server: ServerFlags,
    },
    /// End a key, for good and at once
    Revoke {
        id: String,
        #[command(flatten)]
        server: ServerFlags,
    },
}

#[derive(Args)]
pub struct LogFlags {
    /// About one thing, like rain:7, account:sponsor:acme, packet:4294967297 or key:k1f
    #[arg(long)]
    target: Option<String>,
    /// How many lines
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    limit: u32,
    #[command(flatten)]
    server: ServerFlags,
}

fn print_json(answer: &impl Serialize) -> anyhow::Result<()> {
    say!("{}", serde_json::to_string_pretty(answer)?);
    Ok(())
}

pub async fn keys(settings: &Settings, command: KeysCommand) -> anyhow::Result<ExitCode> {
    match command {
        KeysCommand::List { server } => {
            let keys = all_keys(&server.connect(settings)?).await?;
            if server.json {
                print_json(&keys)?;
            } else {
                list_keys(&keys);
            }
        }
        KeysCommand::Show { id, server } => {
            let key = server.connect(settings)?.key(&id).await?;
            if server.json {
                print_json(&key)?;
            } else {
                show_key(&key);
            }
        }
        KeysCommand::Create {
            name,
            role: roles,
            days,
            key,
            server,
        } => {
            let expires_at_ms = days.map(|days| now_ms() + days * 86_400_000);
            let new = NewKey {
                name,
                roles,
                expires_at_ms,
            };
            let admin = server.connect(settings)?;
            let issued = admin.create_key(&new, key.as_deref()).await?;
            if server.json {
                print_json(&issued)?;
            } else {
                say!("{}", issued.credential);
            }
        }
        KeysCommand::Rotate {
            id,
            overlap,
            server,
        } => {
            let overlap_ms = overlap.map(|seconds| seconds * 1_000);
            let issued = server
                .connect(settings)?
                .rotate_key(&id, overlap_ms)
                .await?;
            if server.json {
                print_json(&issued)?;
            } else {
                say!("{}", issued.credential);
            }
        }
        KeysCommand::Revoke { id, server } => {
            let key = server.connect(settings)?.revoke_key(&id).await?;
            if server.json {
                print_json(&key)?;
            } else {
                say!("{id} is revoked");
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn all_keys(admin: &AdminClient) -> anyhow::Result<Vec<Key>> {
    let mut keys = vec![];
    let mut cursor = None;
    loop {
        let page = admin.keys(cursor.as_deref()).await?;
        keys.extend(page.keys);
        match page.next_cursor {
            Some(next) => cursor = Some(next),
            None => return Ok(keys),
        }
    }
}

fn list_keys(keys: &[Key]) {
    say!(
        "{:<17}  {:<8}  {:<24}  {:<24}  NAME",
        "KEY",
        "STATE",
        "ROLES",
        "LAST USED"
    );
    for key in keys {
        let roles: Vec<&str> = key.roles.iter().map(|role| role.as_str()).collect();
        let used = key.last_used_at_ms.map(utc);
        say!(
            "{:<17}  {:<8}  {:<24}  {:<24}  {}",
            key.id,
            key.state,
            roles.join(","),
            used.as_deref().unwrap_or("never"),
            key.name
        );
    }
}

fn show_key(key: &Key) {
    let moment = |at: Option<i64>, none: &str| at.map_or_else(|| none.to_owned(), utc);
    let roles: Vec<&str> = key.roles.iter().map(|role| role.as_str()).collect();
    say!("key         {}", key.id);
    say!("name        {}", key.name);
    say!("state       {}", key.state);
    say!("roles       {}", roles.join(", "));
    say!("may         {}", key.permissions.join(", "));
    say!("generation  {}", key.generation);
    say!("made        {}", utc(key.created_at_ms));
    say!("last used   {}", moment(key.last_used_at_ms, "never"));
    say!("good until  {}", moment(key.expires_at_ms, "it is revoked"));
    if let Some(at) = key.revoked_at_ms {
        say!("revoked     {}", utc(at));
    }
    if let Some(at) = key.old_secret_until_ms {
        say!("old secret  good until {}", utc(at));
    }
}

pub async fn log(settings: &Settings, flags: LogFlags) -> anyhow::Result<ExitCode> {
    let admin = flags.server.connect(settings)?;
    let mut lines: Vec<LogLine> = vec![];
    let mut cursor = None;
    while lines.len() < flags.limit as usize {
        let left = flags.limit - lines.len() as u32;
        let target = flags.target.as_deref();
        let page = admin.log(target, cursor.as_deref(), left.min(PAGE)).await?;
        lines.extend(page.log);
        match page.next_cursor {
            Some(next) => cursor = Some(next),
            None => break,
        }
    }
    if flags.server.json {
        print_json(&lines)?;
        return Ok(ExitCode::SUCCESS);
    }
    for line in lines {
        let who = format!("{} ({})", line.caller, line.caller_name);
        say!(
            "{}  {:<32}  {:<22}  {:<24}  {} {}",
            utc(line.at_ms),
            who,
            line.operation,
            line.target,
            line.status,
            line.outcome
        );
    }
    Ok(ExitCode::SUCCESS)
}
