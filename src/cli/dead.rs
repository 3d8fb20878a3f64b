//! Claims that wait for a person.

use std::process::ExitCode;

use clap::Subcommand;

use hongbao::client::admin::DeadLetter;
use hongbao::config::Settings;
use hongbao::rain::{PacketId, RainId};

use super::remote::ServerFlags;

#[derive(Subcommand)]
pub enum DeadCommand {
    /// Dead letters by packet id
    List {
        /// Of one rain
        #[arg(long)]
        rain: Option<RainId>,
        /// With one kind of reason, like conflict
        #[arg(long)]
        reason: Option<String>,
        /// Where the page before said that more is
        #[arg(long)]
        cursor: Option<String>,
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000))]
        limit: u32,
        #[command(flatten)]
        server: ServerFlags,
    },
    /// One dead letter
    Show {
        packet: PacketId,
        #[command(flatten)]
        server: ServerFlags,
    },
    /// Have the settlers try again
    Requeue {
        /// One packet; without it, all that --rain and --reason name
        #[arg(required_unless_present = "all")]
        packet: Option<PacketId>,
        #[arg(long, conflicts_with = "packet")]
        all: bool,
        #[arg(long, conflicts_with = "packet")]
        rain: Option<RainId>,
        #[arg(long, conflicts_with = "packet")]
        reason: Option<String>,
        #[command(flatten)]
        server: ServerFlags,
    },
    /// Give the money back to the sponsor, for good
    Discard {
        packet: PacketId,
        /// Why, for finance
        #[arg(long)]
        reason: String,
        #[command(flatten)]
        server: ServerFlags,
    },
}

pub async fn dead(settings: &Settings, command: DeadCommand) -> anyhow::Result<ExitCode> {
    match command {
        DeadCommand::List {
            rain,
            reason,
            cursor,
            limit,
            server,
        } => {
            let page = server
                .connect(settings)?
                .dead_letters(rain, reason.as_deref(), cursor.as_deref(), limit)
                .await?;
            if server.json {
                say!("{}", serde_json::to_string_pretty(&page)?);
            } else {
                list_letters(&page.dead_letters);
                page.unreadable
                    .iter()
                    .for_each(|text| say!("unreadable: {text}"));
                page.next_cursor
                    .iter()
                    .for_each(|next| say!("more with --cursor {next}"));
            }
        }
        DeadCommand::Show { packet, server } => {
            let letter = server.connect(settings)?.dead_letter(packet).await?;
            if server.json {
                say!("{}", serde_json::to_string_pretty(&letter)?);
            } else {
                list_letters(std::slice::from_ref(&letter));
            }
        }
        DeadCommand::Requeue {
            packet,
            rain,
            reason,
            server,
            ..
        } => {
            let requeued = server
                .connect(settings)?
                .requeue(packet, rain, reason.as_deref())
                .await?;
            if server.json {
                say!("{}", serde_json::json!({ "requeued": requeued }));
            } else {
                say!("{requeued} requeued");
            }
        }
        DeadCommand::Discard {
            packet,
            reason,
            server,
        } => {
            let discarded = server.connect(settings)?.discard(packet, &reason).await?;
            if server.json {
                say!("{}", serde_json::to_string_pretty(&discarded)?);
            } else {
                say!("packet {packet}, {}: {}", discarded.cents, discarded.detail);
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn list_letters(letters: &[DeadLetter]) {
    say!(
        "{:>20}  {:>12}  {:<20}  {:>8}  REASON",
        "PACKET",
        "AMOUNT",
        "USER",
        "ATTEMPTS"
    );
    for letter in letters {
        let (packet, cents, user) = (letter.packet_id, letter.cents, &letter.user);
        say!(
            "{packet:>20}  {cents:>12}  {user:<20}  {:>8}  {}",
            letter.attempts,
            letter.reason
        );
    }
}
