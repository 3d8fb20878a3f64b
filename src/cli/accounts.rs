//! `hongbao account`: sponsors, deposits, balances, statements.

use std::process::ExitCode;

use clap::{Args, Subcommand};

use hongbao::client::admin::{Account, AccountsPage, StatementPage};
use hongbao::config::Settings;
use hongbao::rain::Cents;

use super::moment::utc;
use super::remote::ServerFlags;

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
        #[arg(value_parser = paid_in, allow_negative_numbers = true)]
        amount: Cents,
        /// Your own name for this deposit, like a bank reference: the same key deposits once
        #[arg(long)]
        key: String,
        #[command(flatten)]
        server: ServerFlags,
    },
    /// Balances by name: deposits, sponsor:<name>, escrow:<rain> and user:<user>
    List {
        /// Those whose names begin so, like sponsor:
        #[arg(long, default_value = "")]
        prefix: String,
        #[command(flatten)]
        page: PageFlags,
        #[command(flatten)]
        server: ServerFlags,
    },
    /// Balance of deposits, sponsor:<name>, escrow:<rain> or user:<user>
    Show {
        account: String,
        #[command(flatten)]
        server: ServerFlags,
    },
    /// What came into an account and went out of it, newest first
    Statement {
        /// By its whole name, like sponsor:acme
        account: String,
        #[command(flatten)]
        page: PageFlags,
        #[command(flatten)]
        server: ServerFlags,
    },
}

#[derive(Args)]
pub struct PageFlags {
    /// How many
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    limit: u32,
    /// Where to go on, as the page before said
    #[arg(long)]
    cursor: Option<String>,
}

fn paid_in(text: &str) -> Result<Cents, String> {
    let amount: Cents = text
        .parse()
        .map_err(|error: hongbao::rain::ParseCentsError| error.to_string())?;
    if amount > Cents(0) {
        return Ok(amount);
    }
    Err("a deposit must be above zero".into())
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
        AccountCommand::List {
            prefix,
            page,
            server,
        } => {
            let cursor = page.cursor.as_deref();
            let admin = server.connect(settings)?;
            let found = admin.accounts(&prefix, cursor, page.limit).await?;
            return list(&found, server.json);
        }
        AccountCommand::Show { account, server } => (
            server.connect(settings)?.account(&account).await?,
            server.json,
        ),
        AccountCommand::Statement {
            account,
            page,
            server,
        } => {
            let cursor = page.cursor.as_deref();
            let admin = server.connect(settings)?;
            let lines = admin.statement(&account, cursor, page.limit).await?;
            return statement(&lines, server.json);
        }
    };
    if json {
        say!("{}", serde_json::to_string_pretty(&account)?);
    } else {
        say!("{}  {}", account.name, account.balance_cents);
    }
    Ok(ExitCode::SUCCESS)
}

fn list(page: &AccountsPage, json: bool) -> anyhow::Result<ExitCode> {
    if json {
        say!("{}", serde_json::to_string_pretty(page)?);
        return Ok(ExitCode::SUCCESS);
    }
    say!("{:>20}  ACCOUNT", "BALANCE");
    for Account {
        name,
        balance_cents,
    } in &page.accounts
    {
        say!("{balance_cents:>20}  {name}");
    }
    more(page.next_cursor.as_deref());
    Ok(ExitCode::SUCCESS)
}

fn statement(page: &StatementPage, json: bool) -> anyhow::Result<ExitCode> {
    if json {
        say!("{}", serde_json::to_string_pretty(page)?);
        return Ok(ExitCode::SUCCESS);
    }
    say!(
        "{:<24}  {:>20}  {:<10}  {:<24}  NOTE",
        "AT",
        "AMOUNT",
        "KIND",
        "FROM OR TO"
    );
    for line in &page.lines {
        let (at, note) = (utc(line.at_ms), line.note.as_deref().unwrap_or_default());
        let (cents, kind, other) = (line.cents, &line.kind, &line.other);
        let text = format!("{at}  {cents:>20}  {kind:<10}  {other:<24}  {note}");
        say!("{}", text.trim_end());
    }
    more(page.next_cursor.as_deref());
    Ok(ExitCode::SUCCESS)
}

fn more(next_cursor: Option<&str>) {
    if let Some(next) = next_cursor {
        say!("more with --cursor {next}");
    }
}
