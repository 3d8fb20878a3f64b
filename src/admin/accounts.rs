//! Sponsors, deposits, balances.

use axum::Json;
use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};

use super::Shared;
use super::page;
use super::problem::Problem;
use super::write::IdempotencyKey;
use crate::clock::now_ms;
use crate::ledger::{AccountName, Booking};
use crate::rain::Cents;

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

async fn find(admin: &super::Admin, name: &AccountName) -> Result<Account, Problem> {
    let account = admin.ledger.account(name).await?;
    account
        .map(Account::from)
        .ok_or_else(|| Problem::not_found(format!("account {name} does not exist")))
}
