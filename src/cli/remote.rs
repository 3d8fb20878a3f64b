//! Audits, repairs; and how every command finds its server.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;

use hongbao::client::admin::AdminClient;
use hongbao::config::Settings;
use hongbao::rain::RainId;
use hongbao::serve::Addresses;

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
    /// Move money without asking: for scripts
    #[arg(long)]
    yes: bool,
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
        let client = AdminClient::new(&url, &key)?;
        if self.yes {
            return Ok(client);
        }
        Ok(client.asking(ask))
    }
}

/// Has a person type yes to what moves money. Without a terminal nobody can.
fn ask(what: &str) -> bool {
    if !std::io::stdin().is_terminal() {
        eprintln!("hongbao: the request {what}; a script says so with --yes");
        return false;
    }
    eprint!("The request {what}.\nType yes to do it: ");
    let mut answer = String::new();
    let read = std::io::stdin().read_line(&mut answer);
    read.is_ok() && answer.trim() == "yes"
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

/// Exit code 0 if it balances, 1 if not.
pub async fn audit(
    settings: &Settings,
    rain: RainId,
    flags: &ServerFlags,
) -> anyhow::Result<ExitCode> {
    let audit = flags.connect(settings)?.audit(rain).await?;
    if flags.json {
        say!("{}", serde_json::to_string_pretty(&audit)?);
    } else {
        say!("funded    {:>16}", audit.funded_cents);
        say!("pool      {:>16}", audit.pool_cents);
        say!("claims    {:>16}", audit.claims_cents);
        say!(
            "credited  {:>16}  in {} credits",
            audit.credited_cents,
            audit.credited_count
        );
        say!("refunded  {:>16}", audit.refunded_cents);
        say!("in motion {:>13} claims", audit.in_motion);
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
            say!(
                "{}{packet}{user}{cents}: {}",
                difference.kind,
                difference.detail
            );
        }
        say!(
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
        say!("{}", serde_json::to_string_pretty(&repair)?);
    } else if let Some(repair) = &repair {
        say!("buckets           {:?}", repair.buckets);
        say!("wins restored     {}", repair.wins_restored);
        say!(
            "packets removed   {} (won, yet in a pool)",
            repair.packets_removed
        );
        say!(
            "packets returned  {} (were nowhere)",
            repair.packets_returned
        );
        say!("not restored      {}", repair.not_restored_total);
        for win in &repair.not_restored {
            say!(
                "packet {} of user {}: {}",
                win.packet_id,
                win.user,
                win.reason
            );
        }
    } else {
        say!("nothing to repair: every bucket is held by the process that loaded or repaired it");
    }
    let whole = repair.is_none_or(|repair| repair.not_restored_total == 0);
    Ok(ExitCode::from(u8::from(!whole)))
}
