//! Sponsors, deposits, balances.

use axum::Json;
use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};

use super::Shared;
use super::problem::Problem;
use super::write::IdempotencyKey;
use super::{asked, page};
use crate::clock::now_ms;
use crate::ledger::{self, AccountName, Booking};
use crate::rain::split::TOTAL_MAX;
use crate::rain::{Cents, PacketId, RainId};

#[derive(Serialize)]
pub struct Account {
    name: String,
    balance_cents: Cents,
}

impl From<crate::ledger::Account> for Account {
    fn from(account: crate::ledger::Account) -> Account {
        Account {
            name: account.name.to_string(),
            balance_cents: account.balance,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewSponsor {
    sponsor: String,
}

/// Opens a sponsor's account; one that is open stays as it is.
pub async fn create(
    State(admin): Shared,
    body: Result<Json<NewSponsor>, JsonRejection>,
) -> Result<(StatusCode, Json<Account>), Problem> {
    let Json(new) = body?;
    asked::as_path("sponsor", &new.sponsor)?;
    admin.ledger.open_sponsor(&new.sponsor).await?;
    let account = find(&admin, &AccountName::sponsor(&new.sponsor)?).await?;
    Ok((StatusCode::CREATED, Json(account)))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Deposit {
    cents: Cents,
}

pub async fn deposit(
    State(admin): Shared,
    Path(sponsor): Path<String>,
    IdempotencyKey(key): IdempotencyKey,
    body: Result<Json<Deposit>, JsonRejection>,
) -> Result<Json<Account>, Problem> {
    let Json(Deposit { cents }) = body?;
    if cents > TOTAL_MAX {
        return Err(Problem::bad(format!(
            "a deposit of {cents} must be at most {TOTAL_MAX}"
        )));
    }
    match admin
        .ledger
        .deposit(&sponsor, cents, &key, now_ms())
        .await?
    {
        Booking::Done | Booking::Existed => find(&admin, &AccountName::sponsor(&sponsor)?)
            .await
            .map(Json),
        Booking::Different { to, cents, .. } => {
            let detail = format!("key \"{key}\" deposited {cents} to {to} before");
            Err(Problem::new(
                409,
                "the key was used for something else",
                detail,
            ))
        }
    }
}

pub async fn show(
    State(admin): Shared,
    Path(name): Path<String>,
) -> Result<Json<Account>, Problem> {
    find(&admin, &name.parse()?).await.map(Json)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Page {
    #[serde(default)]
    prefix: String,
    limit: Option<u32>,
    cursor: Option<String>,
}

#[derive(Serialize)]
pub struct Accounts {
    accounts: Vec<Account>,
    next_cursor: Option<String>,
}

/// By name.
pub async fn list(
    State(admin): Shared,
    page: Result<Query<Page>, QueryRejection>,
) -> Result<Json<Accounts>, Problem> {
    let Query(page) = page?;
    let limit = page::limit(page.limit, 100, 1_000)?;
    let after: Option<AccountName> = page::place(page.cursor.as_deref(), "account")?;
    let accounts = admin
        .ledger
        .accounts(&page.prefix, after.as_ref(), limit + 1)
        .await?;
    let (accounts, next_cursor) = page::cut(accounts, limit, |account| {
        page::cursor("account", &account.name)
    });
    Ok(Json(Accounts {
        accounts: accounts.into_iter().map(Account::from).collect(),
        next_cursor,
    }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StatementPage {
    limit: Option<u32>,
    cursor: Option<String>,
}

/// One movement of money.
#[derive(Serialize)]
pub struct Line {
    at_ms: i64,
    kind: &'static str,
    /// Above zero: came in. Below: went out.
    cents: Cents,
    /// Where it came from or went to.
    other: String,
    rain_id: Option<RainId>,
    packet_id: Option<PacketId>,
    /// The reason of a discard, for example.
    note: Option<String>,
}

impl From<ledger::Line> for Line {
    fn from(line: ledger::Line) -> Line {
        Line {
            at_ms: line.at_ms,
            kind: line.kind.as_str(),
            cents: line.cents,
            other: line.other.to_string(),
            rain_id: line.rain,
            packet_id: line.packet,
            note: line.note,
        }
    }
}

#[derive(Serialize)]
pub struct Statement {
    lines: Vec<Line>,
    next_cursor: Option<String>,
}

/// Newest first.
pub async fn statement(
    State(admin): Shared,
    Path(name): Path<String>,
    page: Result<Query<StatementPage>, QueryRejection>,
) -> Result<Json<Statement>, Problem> {
    let Query(page) = page?;
    let limit = page::limit(page.limit, 100, 1_000)?;
    let after = page::place(page.cursor.as_deref(), "statement")?;
    let account: AccountName = name.parse()?;
    find(&admin, &account).await?;
    let lines = admin.ledger.statement(&account, after, limit + 1).await?;
    let (lines, next_cursor) =
        page::cut(lines, limit, |line| page::cursor("statement", line.cursor));
    Ok(Json(Statement {
        lines: lines.into_iter().map(Line::from).collect(),
        next_cursor,
    }))
}

async fn find(admin: &super::Admin, name: &AccountName) -> Result<Account, Problem> {
    let account = admin.ledger.account(name).await?;
    account
        .map(Account::from)
        .ok_or_else(|| Problem::not_found(format!("account {name} does not exist")))
}
