//! `hongbao winners`: the whole list, as it arrives.

use std::process::ExitCode;

use clap::Args;

use hongbao::client::rains::ListFormat;
use hongbao::config::Settings;
use hongbao::rain::RainId;

use super::out;
use super::remote::ServerFlags;

#[derive(Args)]
pub struct WinnersFlags {
    rain: RainId,
    /// A table with a head line (default). A user id that a spreadsheet would take for a formula has an apostrophe before it
    #[arg(long, conflicts_with_all = ["ndjson", "json"])]
    csv: bool,
    /// A JSON object a line; --json means the same
    #[arg(long)]
    ndjson: bool,
    #[command(flatten)]
    server: ServerFlags,
}

/// Exit code 1 when the list broke off: what was printed is not the whole.
pub async fn winners(settings: &Settings, flags: WinnersFlags) -> anyhow::Result<ExitCode> {
    let format = if flags.ndjson || flags.server.json {
        ListFormat::Ndjson
    } else {
        ListFormat::Csv
    };
    let server = flags.server.connect(settings)?;
    let mut list = server.list_of_winners(flags.rain, format).await?;
    while let Some(piece) = list.next().await? {
        out::piece(&piece);
    }
    Ok(ExitCode::SUCCESS)
}
