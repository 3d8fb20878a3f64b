//! The command line. It speaks to the admin API like everybody else.
//!
//! Its exit codes stand in [`manual::EXIT_CODES`].

/// Lines on standard output.
#[macro_use]
mod out;

/// Sponsors, deposits, balances, statements.
mod accounts;
/// Claims that wait for a person.
mod dead;
/// A whole rain, shown.
mod demo;
/// What is wrong here, and what to do.
mod doctor;
/// Keys of the admin API, and the log of who did what.
mod keys;
/// Completions and the man page.
mod manual;
/// When something happens, for people.
mod moment;
/// Ledger and nodes as the server sees them.
mod nodes;
/// How claims flow.
mod pipeline;
/// What a rain would be.
mod preview;
/// Rains: create, show, top up, close and the rest.
mod rains;
/// Audits, repairs; how every command finds its server.
mod remote;
/// Rains by name, and when they open.
mod schedules;
/// A rain as it falls.
mod watch;
/// Other people's servers that are told what happens.
mod webhooks;
/// Who has been paid.
mod winners;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::{Args, CommandFactory, Parser, Subcommand};

use hongbao::config::{Settings, Sources};
use hongbao::gateway::token;
use hongbao::rain::UserId;
use hongbao::{log, metrics, serve, service, trace};

/// A red-packet rain engine: every packet to exactly one person, every cent exactly once.
#[derive(Parser)]
#[command(version, max_term_width = 120, after_help = manual::EXIT_CODES)]
struct Cli {
    #[command(flatten)]
    settings: SettingsFlags,
    #[command(subcommand)]
    command: Command,
}

#[derive(Args)]
struct SettingsFlags {
    /// Settings file (TOML). The environment (HONGBAO_SECTION__KEY) and flags win over it
    #[arg(long, global = true, value_name = "FILE", env = "HONGBAO_CONFIG")]
    config: Option<PathBuf>,
    /// Where ledger, secrets and managed nodes live [default: hongbao-data]
    #[arg(long, global = true, value_name = "DIR")]
    data_dir: Option<String>,
    /// One setting, like gateway.listen=0.0.0.0:7700; may be repeated
    #[arg(long, global = true, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

#[derive(Subcommand)]
enum Command {
    /// Run the server: all roles, or some of them
    Serve {
        /// Roles of this process, like gateway or settle,steward [default: all]
        #[arg(long, value_delimiter = ',')]
        roles: Vec<String>,
    },
    /// Preview, create, list, show, watch, announce, open, pause, resume, top up and close rains
    #[command(subcommand)]
    Rain(rains::RainCommand),
    /// Rains by name: create, update, list, show and delete them, create rains from them
    #[command(subcommand)]
    Template(schedules::TemplateCommand),
    /// Templates with opening times: their rains are created ahead of each
    #[command(subcommand)]
    Schedule(schedules::ScheduleCommand),
    /// Sponsors' deposits, balances and statements
    #[command(subcommand)]
    Account(accounts::AccountCommand),
    /// Claims that wait for a person: list, show, requeue, discard
    #[command(subcommand)]
    Dead(dead::DeadCommand),
    /// Keys of the admin API: list, show, create, rotate, revoke
    #[command(subcommand)]
    Keys(keys::KeysCommand),
    /// Servers that are told what happens: list, create, update, rotate, delete, test; deliveries, and sending them again
    #[command(subcommand)]
    Webhooks(webhooks::WebhooksCommand),
    /// Who did what through the admin API, newest first
    Log(keys::LogFlags),
    /// Find every packet of a rain in exactly one place, every winner with exactly one credit
    Audit {
        rain: hongbao::rain::RainId,
        #[command(flatten)]
        server: remote::ServerFlags,
    },
    /// Compare what a restarted, promoted or emptied node holds of a rain with the ledger, and put back what it lost
    Repair {
        rain: hongbao::rain::RainId,
        /// Compare every bucket, not only those whose node came back; nothing is given in the rain until that is done
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        server: remote::ServerFlags,
    },
    /// Everybody who has been paid, by packet: a table, or a JSON object a line
    Winners(winners::WinnersFlags),
    /// Ledger and nodes as the server sees them: whether they answer and how fast, slots, memory
    Nodes(nodes::NodesFlags),
    /// How claims flow: how many wait, are leased or dead, how fast credits go, which buckets are suspect
    Pipeline(pipeline::PipelineFlags),
    /// Look at nodes, ledger and machine, and say what is wrong and what to do
    Doctor {
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Make a session token for a user, with the secret in the data directory
    Token {
        user: UserId,
        /// How long it is valid, seconds
        #[arg(long, default_value_t = 3_600, value_parser = clap::value_parser!(u64).range(1..=31_536_000))]
        lifetime: u64,
        /// For a trusted server that grabs for many users over one connection; USER is its own name
        #[arg(long)]
        edge: bool,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Show the effective settings and where each comes from, or every fault in them
    CheckConfig {
        /// As JSON: a list of lines
        #[arg(long)]
        json: bool,
    },
    /// Run a whole rain on real Redis nodes and show the result
    Demo(demo::DemoFlags),
    /// Completions of this command line for a shell: hongbao completions bash > /etc/bash_completion.d/hongbao
    Completions { shell: manual::ShellName },
    /// The man page: hongbao man | man -l -
    Man,
}

pub fn run() -> ExitCode {
    let cli = Cli::parse();
    let outcome = match cli.command {
        Command::Serve { roles } => with_settings(&cli.settings, Some(roles), serve_command),
        Command::CheckConfig { json } => check_config(&cli.settings, json),
        Command::Token {
            user,
            lifetime,
            edge,
            json,
        } => with_settings(&cli.settings, None, |settings| {
            let token = token_of(&settings, &user, lifetime, edge)?;
            if json {
                say!("{}", serde_json::json!({ "token": token }));
            } else {
                say!("{token}");
            }
            Ok(ExitCode::SUCCESS)
        }),
        Command::Rain(command) => with_settings(&cli.settings, None, |settings| {
            in_runtime(rains::rain(&settings, command))
        }),
        Command::Template(command) => with_settings(&cli.settings, None, |settings| {
            in_runtime(schedules::template(&settings, command))
        }),
        Command::Schedule(command) => with_settings(&cli.settings, None, |settings| {
            in_runtime(schedules::schedule(&settings, command))
        }),
        Command::Account(command) => with_settings(&cli.settings, None, |settings| {
            in_runtime(accounts::account(&settings, command))
        }),
        Command::Keys(command) => with_settings(&cli.settings, None, |settings| {
            in_runtime(keys::keys(&settings, command))
        }),
        Command::Webhooks(command) => with_settings(&cli.settings, None, |settings| {
            in_runtime(webhooks::webhooks(&settings, command))
        }),
        Command::Log(flags) => with_settings(&cli.settings, None, |settings| {
            in_runtime(keys::log(&settings, flags))
        }),
        Command::Audit { rain, server } => with_settings(&cli.settings, None, |settings| {
            in_runtime(remote::audit(&settings, rain, &server))
        }),
        Command::Repair { rain, all, server } => with_settings(&cli.settings, None, |settings| {
            in_runtime(remote::repair(&settings, rain, all, &server))
        }),
        Command::Winners(flags) => with_settings(&cli.settings, None, |settings| {
            in_runtime(winners::winners(&settings, flags))
        }),
        Command::Nodes(flags) => with_settings(&cli.settings, None, |settings| {
            in_runtime(nodes::nodes(&settings, flags))
        }),
        Command::Pipeline(flags) => with_settings(&cli.settings, None, |settings| {
            in_runtime(pipeline::pipeline(&settings, flags))
        }),
        Command::Doctor { json } => with_settings(&cli.settings, None, |settings| {
            in_runtime(doctor::doctor(settings, json))
        }),
        Command::Dead(command) => with_settings(&cli.settings, None, |settings| {
            in_runtime(dead::dead(&settings, command))
        }),
        Command::Demo(flags) => demo::run(&flags),
        Command::Completions { shell } => manual::completions(Cli::command(), shell),
        Command::Man => manual::man(Cli::command()),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("hongbao: {error:#}");
        ExitCode::from(1)
    })
}

fn read_settings(
    flags: &SettingsFlags,
    roles: Option<Vec<String>>,
) -> Result<(Settings, Vec<String>), hongbao::config::Faults> {
    let mut sources = Sources::default();
    if let Some(file) = &flags.config {
        sources = sources.file(file);
    }
    let roles = roles
        .filter(|roles| !roles.is_empty())
        .map(|roles| format!("{roles:?}"));
    let sources = sources
        .environment(std::env::vars())
        .flags(flags.set.iter().map(String::as_str))
        .flag("--data-dir", "server.data_dir", flags.data_dir.clone())
        .flag("--roles", "server.roles", roles);
    Settings::read(sources)
}

fn with_settings(
    flags: &SettingsFlags,
    roles: Option<Vec<String>>,
    run: impl FnOnce(Settings) -> anyhow::Result<ExitCode>,
) -> anyhow::Result<ExitCode> {
    match read_settings(flags, roles) {
        Ok((settings, _)) => run(settings),
        Err(faults) => {
            eprintln!("hongbao: {faults}");
            Ok(ExitCode::from(2))
        }
    }
}

fn in_runtime<F: Future<Output = anyhow::Result<ExitCode>>>(run: F) -> anyhow::Result<ExitCode> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?
        .block_on(run)
}

fn check_config(flags: &SettingsFlags, json: bool) -> anyhow::Result<ExitCode> {
    match read_settings(flags, None) {
        Ok((_, shown)) => {
            if json {
                say!("{}", serde_json::to_string_pretty(&shown)?);
            } else {
                shown.iter().for_each(|line| say!("{line}"));
            }
            Ok(ExitCode::SUCCESS)
        }
        Err(faults) => {
            eprintln!("hongbao: {faults}");
            Ok(ExitCode::from(2))
        }
    }
}

fn token_of(
    settings: &Settings,
    user: &UserId,
    lifetime: u64,
    edge: bool,
) -> anyhow::Result<String> {
    if let Some(file) = &settings.tokens.keys_file {
        anyhow::bail!(
            "tokens.keys_file is {}: your login service makes the tokens",
            file.display()
        );
    }
    let path = &settings.tokens.secret_file;
    let text = std::fs::read_to_string(path).map_err(|error| {
        anyhow::anyhow!(
            "cannot read the token secret {}: {error}; `hongbao serve` makes it at its first start",
            path.display()
        )
    })?;
    let secret = hex::decode(text.trim())
        .map_err(|_| anyhow::anyhow!("{} does not hold hex text", path.display()))?;
    let scope = if edge { token::EDGE_SCOPE } else { "" };
    let lifetime = Duration::from_secs(lifetime);
    Ok(token::issue_scoped(
        user,
        scope,
        &settings.tokens.kid,
        &secret,
        lifetime,
    ))
}

fn serve_command(settings: Settings) -> anyhow::Result<ExitCode> {
    let metrics = metrics::install()?;
    log::start(&settings.log);
    log_panics();
    let serving = async move {
        trace::start(&settings.trace).context("trace.ca_file")?;
        let running = serve::start(&settings, Some(metrics)).await?;
        announce(&settings, &running);
        service::ready(&roles(&settings));
        tokio::spawn(service::keep_alive());
        wait_for_signal().await?;
        service::stopping();
        tracing::info!("stopping: sessions are sent away, grabs in flight finish");
        tokio::select! {
            () = running.stop() => trace::stop().await,
            // Whoever asks twice means it: no last word to anybody. Nodes of ours end with this process.
            signal = wait_for_signal() => {
                signal?;
                tracing::warn!(at_work = ?hongbao::task::at_work(), "second signal: stopping at once");
                std::process::exit(1);
            }
        }
        Ok(ExitCode::SUCCESS)
    };
    tokio::runtime::Builder::new_multi_thread()
        .thread_name("hongbao-roles")
        .enable_all()
        .build()?
        .block_on(serving)
}

/// A panic is logged like everything else, with the thread and the place.
fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic
            .location()
            .map(ToString::to_string)
            .unwrap_or_default();
        let what = panic
            .payload_as_str()
            .unwrap_or("something that is no text");
        let backtrace = std::backtrace::Backtrace::capture();
        let thread = std::thread::current().name().unwrap_or_default().to_owned();
        tracing::error!(thread, place, %backtrace, "panic: {what}");
    }));
}

/// For `systemctl status`.
fn roles(settings: &Settings) -> String {
    let roles: Vec<&str> = settings.roles.iter().map(|role| role.as_str()).collect();
    format!("serving: {}", roles.join(", "))
}

fn announce(settings: &Settings, running: &serve::Running) {
    if let Some(key) = &running.new_api_key {
        let path = settings.admin.api_key_file.display();
        // Under a service manager standard output is a journal, which keeps it and shows it to others.
        match std::io::stdout().is_terminal() {
            true => println!("API key (shown this once; it stands in {path}): {key}"),
            false => println!("API key  in {path}"),
        }
    }
    let addresses = &running.addresses;
    if let Some(address) = addresses.gateway {
        println!("gateway  {address}");
    }
    if let Some(address) = addresses.admin {
        println!("admin    http://{address}");
    }
    for node in &addresses.nodes {
        println!("node     {node}");
    }
    if addresses.admin.is_none() {
        println!("probes   http://{}", addresses.probes);
    }
    println!("ledger   {}", addresses.ledger);
    println!("ready");
}

async fn wait_for_signal() -> std::io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut terminate, mut interrupt) = (
        signal(SignalKind::terminate())?,
        signal(SignalKind::interrupt())?,
    );
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}
