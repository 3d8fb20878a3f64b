//! Webhooks: other people's servers that are told what happens. `proto/webhooks.md` is the contract.

/// What an address may be.
mod address;
/// Sends what is due, and sends it again.
pub mod courier;
/// The log of deliveries, and sending again by hand.
pub mod deliveries;
/// How a delivery is signed.
pub mod signature;

use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};

use super::auth::hash_of;
use super::overlap::{self, Overlap};
use super::problem::Problem;
use super::write::IdempotencyKey;
use super::{Admin, Shared};
use crate::clock::now_ms;
use crate::ledger::{self, EventKind, Rotation, WebhookChange};

/// A webhook as it is shown: never its secret.
#[derive(Serialize)]
pub struct Webhook {
    id: String,
    url: String,
    /// Like `rain.opened`.
    events: Vec<&'static str>,
    enabled: bool,
    /// Counts the rotations of its secret, from 1.
    generation: u32,
    created_at_ms: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    deleted_at_ms: Option<i64>,
    /// Until then deliveries are signed with the secret before as well.
    #[serde(skip_serializing_if = "Option::is_none")]
    old_secret_until_ms: Option<i64>,
}

impl From<ledger::Webhook> for Webhook {
    fn from(webhook: ledger::Webhook) -> Webhook {
        let old_secret_until_ms = Some(webhook.overlap_until_ms).filter(|until| *until > now_ms());
        Webhook {
            id: webhook.id,
            url: webhook.url,
            events: webhook.events.iter().map(|kind| kind.as_str()).collect(),
            enabled: webhook.enabled,
            generation: webhook.generation,
            created_at_ms: webhook.created_at_ms,
            deleted_at_ms: webhook.deleted_at_ms,
            old_secret_until_ms,
        }
    }
}

/// A webhook with what its receiver checks signatures with. Shown to whoever asked for it, and kept nowhere.
#[derive(Serialize)]
pub struct Issued {
    #[serde(flatten)]
    webhook: Webhook,
    /// Its characters are the HMAC's key, as they stand.
    secret: String,
}

/// The name of [`Issued::secret`] in JSON.
pub const SECRET: &str = "secret";

impl Issued {
    fn new(admin: &Admin, webhook: ledger::Webhook) -> Issued {
        let secret = admin.gate.webhook_secret(&webhook.id, webhook.generation);
        Issued {
            webhook: webhook.into(),
            secret,
        }
    }
}

#[derive(Serialize)]
pub struct Webhooks {
    webhooks: Vec<Webhook>,
}

/// All that are not deleted, by id: they are [`ledger::WEBHOOKS_MAX`] at most.
pub async fn list(State(admin): Shared) -> Result<Json<Webhooks>, Problem> {
    let webhooks = admin.ledger.webhooks().await?;
    let webhooks = webhooks.into_iter().map(Webhook::from).collect();
    Ok(Json(Webhooks { webhooks }))
}

pub async fn show(State(admin): Shared, Path(id): Path<String>) -> Result<Json<Webhook>, Problem> {
    Ok(Json(admin.ledger.webhook(&id).await?.into()))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewWebhook {
    url: String,
    /// Without it: all.
    events: Option<Vec<String>>,
    /// Without it: true.
    enabled: Option<bool>,
}

pub async fn create(
    State(admin): Shared,
    IdempotencyKey(request_key): IdempotencyKey,
    body: Result<Json<NewWebhook>, JsonRejection>,
) -> Result<(StatusCode, Json<Issued>), Problem> {
    let Json(new) = body?;
    let url = checked(&admin, &new.url)?;
    let events = match new.events {
        Some(events) => kinds(&events)?,
        None => EventKind::ALL.to_vec(),
    };
    let id = admin.gate.webhook_id_for(&request_key);
    let webhook = ledger::Webhook {
        secret_hash: hash_of(&admin.gate.webhook_secret(&id, 1)),
        url,
        events,
        enabled: new.enabled.unwrap_or(true),
        generation: 1,
        overlap_until_ms: 0,
        created_at_ms: now_ms(),
        deleted_at_ms: None,
        id,
    };
    let made = admin.ledger.create_webhook(&webhook).await?;
    if (&made.url, &made.events) != (&webhook.url, &webhook.events) {
        let detail = format!(
            "Idempotency-Key \"{request_key}\" made webhook {} before",
            made.id
        );
        let title = "the key was used for something else";
        return Err(Problem::new(409, title, detail));
    }
    Ok((StatusCode::CREATED, Json(Issued::new(&admin, made))))
}

/// What is to be different.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Change {
    url: Option<String>,
    events: Option<Vec<String>>,
    /// A webhook that is not gets no new deliveries; what is pending waits until it is again.
    enabled: Option<bool>,
}

pub async fn change(
    State(admin): Shared,
    Path(id): Path<String>,
    body: Result<Json<Change>, JsonRejection>,
) -> Result<Json<Webhook>, Problem> {
    let Json(change) = body?;
    let change = WebhookChange {
        url: change.url.map(|url| checked(&admin, &url)).transpose()?,
        events: change.events.map(|events| kinds(&events)).transpose()?,
        enabled: change.enabled,
    };
    existing(&admin, &id).await?;
    Ok(Json(
        admin.ledger.change_webhook(&id, &change).await?.into(),
    ))
}

/// A new secret; for a while deliveries carry a signature by the one before, too.
pub async fn rotate(
    State(admin): Shared,
    Path(id): Path<String>,
    IdempotencyKey(request_key): IdempotencyKey,
    body: Result<Json<Overlap>, JsonRejection>,
) -> Result<Json<Issued>, Problem> {
    let overlap_until_ms = overlap::until_ms(body)?;
    let webhook = existing(&admin, &id).await?;
    let generation = webhook.generation + 1;
    let rotation = Rotation {
        generation,
        secret_hash: &hash_of(&admin.gate.webhook_secret(&id, generation)),
        overlap_until_ms,
        request_key: &request_key,
    };
    let webhook = admin.ledger.rotate_webhook(&id, &rotation).await?;
    Ok(Json(Issued::new(&admin, webhook)))
}

/// For good. What is pending for it has failed, and is not sent.
pub async fn delete(
    State(admin): Shared,
    Path(id): Path<String>,
) -> Result<Json<Webhook>, Problem> {
    let webhook = admin.ledger.delete_webhook(&id, now_ms()).await?;
    Ok(Json(webhook.into()))
}

/// Sends `webhook.test`, as soon as a courier finds it.
pub async fn test(
    State(admin): Shared,
    Path(id): Path<String>,
    IdempotencyKey(request_key): IdempotencyKey,
) -> Result<(StatusCode, Json<deliveries::Delivery>), Problem> {
    let webhook = existing(&admin, &id).await?;
    if !webhook.enabled {
        let detail =
            format!("webhook {id} is disabled, and nothing is sent to it: enable it first");
        return Err(Problem::new(409, "the webhook is disabled", detail));
    }
    let name = admin.gate.test_name_for(&request_key);
    let delivery = admin.ledger.test_webhook(&id, &name, now_ms()).await?;
    let delivery = admin.ledger.delivery(delivery).await?;
    Ok((StatusCode::ACCEPTED, Json(delivery.into())))
}

/// One that is not deleted.
async fn existing(admin: &Admin, id: &str) -> Result<ledger::Webhook, Problem> {
    let webhook = admin.ledger.webhook(id).await?;
    match webhook.deleted_at_ms {
        None => Ok(webhook),
        Some(at) => {
            let detail = format!("webhook {id} was deleted at {at} ms: create a new one");
            Err(Problem::new(409, "the webhook is deleted", detail))
        }
    }
}

fn checked(admin: &Admin, url: &str) -> Result<String, Problem> {
    let url = url.trim();
    match address::checked(url, admin.webhooks.allow_http) {
        Ok(_) => Ok(url.to_owned()),
        Err(problem) => Err(Problem::bad(problem.to_string())),
    }
}

fn kinds(names: &[String]) -> Result<Vec<EventKind>, Problem> {
    let kinds: Result<Vec<EventKind>, _> = names.iter().map(|name| name.parse()).collect();
    let mut kinds =
        kinds.map_err(|error: ledger::EventKindError| Problem::bad(error.to_string()))?;
    kinds.sort();
    kinds.dedup();
    if kinds.is_empty() {
        return Err(Problem::bad(
            "events must name at least one; leave it out for all",
        ));
    }
    Ok(kinds)
}
