//! `hongbao nodes`: ledger and nodes as the server sees them.

use std::process::ExitCode;

use clap::Args;
use hongbao::client::admin::{NodeSeen, NodesSeen};
use hongbao::config::Settings;

use super::remote::ServerFlags;

#[derive(Args)]
pub struct NodesFlags {
    #[command(flatten)]
    server: ServerFlags,
}

/// Exit code 0 if all answer, 1 if not.
pub async fn nodes(settings: &Settings, flags: NodesFlags) -> anyhow::Result<ExitCode> {
    let seen = flags.server.connect(settings)?.nodes().await?;
    if flags.server.json {
        say!("{}", serde_json::to_string_pretty(&seen)?);
    } else {
        print(&seen);
    }
    let all_up = seen.ledger.up && seen.nodes.iter().all(|node| node.up);
    Ok(ExitCode::from(u8::from(!all_up)))
}

fn print(seen: &NodesSeen) {
    let names = seen.nodes.iter().map(|node| node.name.len());
    let width = names.max().unwrap_or_default().max("ledger".len());
    let ledger = &seen.ledger;
    match &ledger.problem {
        None => say!("{:<width$}  up    {}", "ledger", ms(ledger.latency_seconds)),
        Some(problem) => say!("{:<width$}  DOWN  {problem}", "ledger"),
    }
    for node in &seen.nodes {
        say!("{:<width$}  {}", node.name, line(node));
        for check in &node.checks {
            say!("{:<width$}  → {}", "", check.advice);
        }
    }
    if seen.slots_without_owner > 0 {
        say!("{} slots have no node", seen.slots_without_owner);
    }
}

fn line(node: &NodeSeen) -> String {
    if !node.up {
        let problem = node.problem.as_deref().unwrap_or_default();
        return format!("DOWN  {} slots  {problem}", node.slots);
    }
    let memory = match node.memory_max_bytes {
        0 => format!("{} MiB", node.memory_bytes >> 20),
        most => format!("{} of {} MiB", node.memory_bytes >> 20, most >> 20),
    };
    format!(
        "up    {}  {} slots  {memory}  {} commands/s  {} replicas  appendfsync {}  Redis {}",
        ms(node.latency_seconds),
        node.slots,
        node.commands_per_second,
        node.replicas,
        node.appendfsync,
        node.version
    )
}

fn ms(seconds: f64) -> String {
    format!("{:.1} ms", seconds * 1e3)
}
