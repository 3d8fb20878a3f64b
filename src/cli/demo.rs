//! `hongbao demo`: a server on a data directory of its own, and the load generator against it. Nothing is left running or lying about.

use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};

use anyhow::Context;
use clap::Args;

use hongbao::config::{Settings, Sources};
use hongbao::serve::{self, Running};

#[derive(Args)]
pub struct DemoFlags {
    /// People who tap
    #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(1..=9_000))]
    sessions: u32,
    /// Red packets
    #[arg(long, default_value_t = 3_000, value_parser = clap::value_parser!(u32).range(1..))]
    packets: u32,
    /// What they are worth together
    #[arg(long, default_value = "10000.00")]
    total: hongbao::rain::Cents,
    /// Redis nodes
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=16))]
    nodes: u8,
    /// Write the report as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a report with charts, one file that needs nothing from outside
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Leave the system up afterwards, until Ctrl-C, and print its addresses
    #[arg(long)]
    keep: bool,
    /// No progress, only the summary
    #[arg(long, short)]
    quiet: bool,
}

/// Exit code 0 when the audit balances and every check held, 1 when not.
pub fn run(flags: &DemoFlags) -> anyhow::Result<ExitCode> {
    let load = load_generator()?;
    let dir = tempfile::Builder::new()
        .prefix("hongbao-demo-")
        .tempdir()
        .context("cannot make a temporary folder")?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let settings = settings(dir.path(), flags)?;
        let metrics = hongbao::metrics::install()?;
        let running = serve::start(&settings, Some(metrics)).await.context("the demo's server does not start")?;
        let outcome = tokio::select! {
            outcome = rain(&load, &settings, &running, flags) => outcome,
            signal = super::wait_for_signal() => signal.map(|()| ExitCode::from(1)).map_err(Into::into),
        };
        if flags.keep && outcome.is_ok() {
            keep(&settings, &running).await?;
        }
        running.stop().await;
        outcome
    })
}

fn settings(dir: &Path, flags: &DemoFlags) -> anyhow::Result<Settings> {
    let nodes = format!("store.managed_nodes={}", flags.nodes);
    let sources = Sources::default()
        .flag("demo", "server.data_dir", Some(dir.display().to_string()))
        .flags([
            "gateway.listen=127.0.0.1:0",
            "admin.listen=127.0.0.1:0",
            &nodes,
        ]);
    Ok(Settings::read(sources)?.0)
}

/// It is built beside this program.
fn load_generator() -> anyhow::Result<PathBuf> {
    let here = std::env::current_exe().context("cannot tell where this program lies")?;
    let load = here.with_file_name("hongbao-load");
    anyhow::ensure!(
        load.is_file(),
        "{} is missing: build it with `cargo build --release --workspace`, or run `make demo`",
        load.display()
    );
    Ok(load)
}

async fn rain(
    load: &Path,
    settings: &Settings,
    running: &Running,
    flags: &DemoFlags,
) -> anyhow::Result<ExitCode> {
    let addresses = &running.addresses;
    let (Some(gateway), Some(admin)) = (addresses.gateway, addresses.admin) else {
        anyhow::bail!("the demo's server has no gateway or no admin API");
    };
    let mut command = tokio::process::Command::new(load);
    command
        .arg("rain")
        .args([
            "--gateway",
            &gateway.to_string(),
            "--admin",
            &format!("http://{admin}"),
        ])
        .arg("--api-key-file")
        .arg(&settings.admin.api_key_file)
        .arg("--token-secret-file")
        .arg(&settings.tokens.secret_file)
        .args([
            "--sessions",
            &flags.sessions.to_string(),
            "--packets",
            &flags.packets.to_string(),
        ])
        .args(["--total", &flags.total.to_string(), "--duration", "30s"])
        .args([
            "--heading",
            &format!("red-packet rain on {} Redis nodes", flags.nodes),
        ])
        .stdin(Stdio::null())
        .kill_on_drop(true);
    if let Some(json) = &flags.json {
        command.arg("--json").arg(json);
    }
    if let Some(html) = &flags.html {
        command.arg("--html").arg(html);
    }
    if flags.quiet {
        command.arg("--quiet");
    }
    let status = command
        .status()
        .await
        .with_context(|| format!("cannot run {}", load.display()))?;
    Ok(ExitCode::from(status.code().map_or(1, |code| code as u8)))
}

async fn keep(settings: &Settings, running: &Running) -> anyhow::Result<()> {
    eprintln!();
    eprintln!("The system stays up until Ctrl-C. Another terminal can use it:");
    if let (Some(gateway), Some(admin)) = (running.addresses.gateway, running.addresses.admin) {
        eprintln!("  gateway   {gateway}");
        eprintln!("  admin     http://{admin}");
    }
    for node in &running.addresses.nodes {
        eprintln!("  node      {node}");
    }
    eprintln!("  ledger    {}", running.addresses.ledger);
    eprintln!(
        "  for example: hongbao --data-dir {} rain list",
        settings.data_dir.display()
    );
    super::wait_for_signal().await?;
    Ok(())
}
