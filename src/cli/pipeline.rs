//! `hongbao pipeline`: how claims flow.

use std::process::ExitCode;

use clap::Args;

use hongbao::client::admin::PipelineSeen;
use hongbao::config::Settings;

use super::remote::ServerFlags;

#[derive(Args)]
pub struct PipelineFlags {
    #[command(flatten)]
    server: ServerFlags,
}

/// Exit code 0 if all numbers are there, 1 if somebody did not answer.
pub async fn pipeline(settings: &Settings, flags: PipelineFlags) -> anyhow::Result<ExitCode> {
    let seen = flags.server.connect(settings)?.pipeline().await?;
    if flags.server.json {
        say!("{}", serde_json::to_string_pretty(&seen)?);
    } else {
        print(&seen);
    }
    Ok(ExitCode::from(u8::from(!seen.problems.is_empty())))
}

fn print(seen: &PipelineSeen) {
    say!(
        "claims    {} waiting, {} leased, {} retrying, {} dead",
        seen.claims_waiting,
        seen.leased,
        seen.retrying,
        seen.dead
    );
    say!("oldest    {:.1} s", seen.oldest_seconds);
    say!("credits   {:.1} a second", seen.credits_per_second);
    for rain in &seen.rains {
        say!(
            "rain      {} {}: {} packets in pools, {} winners, {} waiting, {} leased, {} retrying, {} dead",
            rain.rain_id,
            rain.state,
            rain.pool,
            rain.winners,
            rain.claims_waiting,
            rain.leased,
            rain.retrying,
            rain.dead
        );
    }
    for suspect in &seen.suspects {
        say!(
            "suspect   bucket {} of rain {} on {}: nothing is given there until it has been compared with the ledger",
            suspect.bucket,
            suspect.rain_id,
            suspect.node
        );
    }
    for problem in &seen.problems {
        say!("problem   {problem}");
    }
}
