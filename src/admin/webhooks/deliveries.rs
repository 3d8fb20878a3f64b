//! The log of deliveries, and sending again by hand.

use axum::Json;
use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::super::page;
use super::super::problem::Problem;
use super::super::{Admin, Shared};
use crate::clock::now_ms;
use crate::ledger::{self, DeliveryState};

/// One event to one webhook.
#[derive(Serialize)]
pub struct Delivery {
    id: i64,
    webhook: String,
    /// What the receiver tells repeats by.
    event_id: String,
    /// Like `rain.opened`.
    event: String,
    event_at_ms: i64,
    /// `pending`, `delivered` or `failed`.
    state: &'static str,
    /// Tries of all time.
    attempts: u32,
    /// While it is pending: not before then.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_at_ms: Option<i64>,
    /// In its state since then; pending: since it was made, or sent again by hand.
    since_ms: i64,
}

impl From<ledger::Delivery> for Delivery {
    fn from(delivery: ledger::Delivery) -> Delivery {
        let pending = delivery.state == DeliveryState::Pending;
        Delivery {
            id: delivery.id,
            webhook: delivery.webhook,
            event_id: delivery.event,
            event: delivery.kind,
            event_at_ms: delivery.event_at_ms,
            state: delivery.state.as_str(),
            attempts: delivery.attempts,
            next_at_ms: Some(delivery.due_ms).filter(|_| pending),
            since_ms: delivery.since_ms,
        }
    }
}

/// One try.
#[derive(Serialize)]
pub struct Attempt {
    number: u32,
    at_ms: i64,
    took_ms: i64,
    /// HTTP status, if there was an answer.
    status: Option<u16>,
    /// Why it does not count as delivered.
    error: Option<String>,
}

/// A delivery with what was sent, and how it went.
#[derive(Serialize)]
pub struct Detail {
    #[serde(flatten)]
    delivery: Delivery,
    body: Value,
    /// The last hundred, oldest first.
    log: Vec<Attempt>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Page {
    state: Option<String>,
    webhook: Option<String>,
    limit: Option<u32>,
    cursor: Option<String>,
}

#[derive(Serialize)]
pub struct Deliveries {
    deliveries: Vec<Delivery>,
    next_cursor: Option<String>,
}

/// Newest first.
pub async fn list(
    State(admin): Shared,
    page: Result<Query<Page>, QueryRejection>,
) -> Result<Json<Deliveries>, Problem> {
    let Query(page) = page?;
    let limit = page::limit(page.limit, 100, 1_000)?;
    let before = page::place(page.cursor.as_deref(), "delivery")?;
    let state = page.state.as_deref().map(str::parse::<DeliveryState>);
    let state = state
        .transpose()
        .map_err(|error| Problem::bad(error.to_string()))?;
    let found = admin
        .ledger
        .deliveries(state, page.webhook.as_deref(), before, limit + 1)
        .await?;
    let (found, next_cursor) = page::cut(found, limit, |last| page::cursor("delivery", last.id));
    Ok(Json(Deliveries {
        deliveries: found.into_iter().map(Delivery::from).collect(),
        next_cursor,
    }))
}

/// A delivery as it is shown in the log of writes.
pub async fn one(admin: &Admin, id: &str) -> Result<Delivery, Problem> {
    Ok(admin.ledger.delivery(number(id)?).await?.into())
}

pub async fn show(State(admin): Shared, Path(id): Path<String>) -> Result<Json<Detail>, Problem> {
    let delivery = admin.ledger.delivery(number(&id)?).await?;
    let attempts = admin.ledger.attempts(delivery.id).await?;
    let log = attempts.into_iter().map(|attempt| Attempt {
        number: attempt.number,
        at_ms: attempt.at_ms,
        took_ms: attempt.took_ms,
        status: attempt.status,
        error: attempt.error,
    });
    Ok(Json(Detail {
        log: log.collect(),
        body: serde_json::from_str(&delivery.body).unwrap_or_default(),
        delivery: delivery.into(),
    }))
}

fn number(id: &str) -> Result<i64, Problem> {
    let shown: String = id.chars().take(40).collect();
    id.parse()
        .map_err(|_| Problem::not_found(format!("delivery \"{shown}\" does not exist")))
}

/// Whatever its state: a receiver that has it tells by the event's id.
pub async fn resend(
    State(admin): Shared,
    Path(id): Path<String>,
) -> Result<Json<Delivery>, Problem> {
    let id = number(&id)?;
    let delivery = admin.ledger.delivery(id).await?;
    super::existing(&admin, &delivery.webhook).await?;
    Ok(Json(admin.ledger.resend(id, now_ms()).await?.into()))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Which {
    /// Without it: of all.
    webhook: Option<String>,
}

#[derive(Serialize)]
pub struct Resent {
    resent: u64,
}

/// All that have failed.
pub async fn resend_failed(
    State(admin): Shared,
    body: Result<Json<Which>, JsonRejection>,
) -> Result<Json<Resent>, Problem> {
    let Json(Which { webhook }) = body?;
    if let Some(id) = &webhook {
        super::existing(&admin, id).await?;
    }
    let resent = admin
        .ledger
        .resend_failed(webhook.as_deref(), now_ms())
        .await?;
    Ok(Json(Resent { resent }))
}
