//! Keys of this API: list, show, create, rotate, revoke.

use std::time::UNIX_EPOCH;

use axum::Json;
use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};

use super::auth::{bootstrap_caller, hash_of};
use super::caller::{Caller, Role};
use super::overlap::{self, Overlap};
use super::page::{self, Limits};
use super::problem::Problem;
use super::signing::{BOOTSTRAP, Credential};
use super::write::IdempotencyKey;
use super::{Admin, Shared};
use crate::clock::now_ms;
use crate::ledger::{ApiKey, Rotation};

const NAME_MAX: usize = 64;

/// A key as it is shown: never its secret.
#[derive(Serialize)]
pub struct Key {
    id: String,
    name: String,
    roles: Vec<Role>,
    /// What the roles allow, like `rains:write`; who may write may read.
    permissions: Vec<String>,
    state: Standing,
    /// Counts the rotations, from 1.
    generation: u32,
    created_at_ms: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at_ms: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    revoked_at_ms: Option<i64>,
    /// To the minute.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_used_at_ms: Option<i64>,
    /// The secret before the last rotation is good until then.
    #[serde(skip_serializing_if = "Option::is_none")]
    old_secret_until_ms: Option<i64>,
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Standing {
    Active,
    Expired,
    Revoked,
    /// The key `bootstrap`: what holds it is a file, which is not rotated or revoked from here.
    Fixed,
}

impl Key {
    /// The key `bootstrap`, which is no record: its secret stands in `admin.api_key_file`, and it is as old as that.
    fn bootstrap(admin: &Admin) -> Key {
        let caller = bootstrap_caller();
        let file = std::fs::metadata(&admin.settings.api_key_file);
        let made = file.and_then(|file| file.modified()).ok();
        let made = made.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        Key {
            permissions: caller.permissions(),
            id: caller.id,
            name: caller.name,
            roles: caller.roles,
            state: Standing::Fixed,
            generation: 1,
            created_at_ms: made.map_or(0, |since| since.as_millis() as i64),
            expires_at_ms: None,
            revoked_at_ms: None,
            last_used_at_ms: None,
            old_secret_until_ms: None,
        }
    }
}

/// What is done to a key is not done to the one of the file.
fn not_bootstrap(id: &str) -> Result<(), Problem> {
    if id != BOOTSTRAP {
        return Ok(());
    }
    let detail = "its secret stands in admin.api_key_file: put another one there (or none, and one is made) and restart";
    Err(Problem::new(409, "the key is a file's", detail))
}

impl From<ApiKey> for Key {
    fn from(key: ApiKey) -> Key {
        let now = now_ms();
        let caller = Caller {
            roles: key
                .roles
                .split(',')
                .filter_map(|role| role.parse().ok())
                .collect(),
            id: key.id,
            name: key.name,
        };
        let state = match (key.revoked_at_ms, key.expires_at_ms) {
            (Some(_), _) => Standing::Revoked,
            (None, Some(at)) if at <= now => Standing::Expired,
            (None, _) => Standing::Active,
        };
        Key {
            permissions: caller.permissions(),
            id: caller.id,
            name: caller.name,
            roles: caller.roles,
            state,
            generation: key.generation,
            created_at_ms: key.created_at_ms,
            expires_at_ms: key.expires_at_ms,
            revoked_at_ms: key.revoked_at_ms,
            last_used_at_ms: key.last_used_at_ms,
            old_secret_until_ms: Some(key.overlap_until_ms).filter(|until| *until > now),
        }
    }
}

/// A key with the text that its holder signs with. Shown to whoever asked for it, and kept nowhere.
#[derive(Serialize)]
pub struct Issued {
    #[serde(flatten)]
    key: Key,
    /// `<id>.<secret>`
    credential: String,
}

/// The name of [`Issued::credential`] in JSON.
pub const CREDENTIAL: &str = "credential";

impl Issued {
    fn new(admin: &Admin, key: ApiKey) -> Issued {
        let credential = credential(admin, &key.id, key.generation);
        Issued {
            key: key.into(),
            credential,
        }
    }
}

pub fn credential(admin: &Admin, id: &str, generation: u32) -> String {
    let secret = admin.gate.secret(id, generation);
    let id = id.to_owned();
    Credential { id, secret }.to_text()
}

#[derive(Serialize)]
pub struct Keys {
    keys: Vec<Key>,
    next_cursor: Option<String>,
}

/// By id; those that are revoked too.
pub async fn list(
    State(admin): Shared,
    page: Result<Query<Limits>, QueryRejection>,
) -> Result<Json<Keys>, Problem> {
    let Query(page) = page?;
    let (limit, after) = (page.limit(100, 1_000)?, page.place("key")?);
    let after: String = after.unwrap_or_default();
    let recorded = admin.ledger.api_keys(&after, limit + 1).await?;
    // By its id it stands before all others, whose ids begin with a k.
    let bootstrap = (after.as_str() < BOOTSTRAP).then(|| Key::bootstrap(&admin));
    let keys = bootstrap
        .into_iter()
        .chain(recorded.into_iter().map(Key::from));
    let (keys, next_cursor) = page::cut(keys.collect(), limit, |key: &Key| {
        page::cursor("key", &key.id)
    });
    Ok(Json(Keys { keys, next_cursor }))
}

pub async fn show(State(admin): Shared, Path(id): Path<String>) -> Result<Json<Key>, Problem> {
    if id == BOOTSTRAP {
        return Ok(Json(Key::bootstrap(&admin)));
    }
    Ok(Json(admin.ledger.api_key(&id).await?.into()))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewKey {
    name: String,
    roles: Vec<Role>,
    /// ms since 1970; without it the key is good until it is revoked.
    expires_at_ms: Option<i64>,
}

pub async fn create(
    State(admin): Shared,
    IdempotencyKey(request_key): IdempotencyKey,
    body: Result<Json<NewKey>, JsonRejection>,
) -> Result<(StatusCode, Json<Issued>), Problem> {
    let Json(mut new) = body?;
    let name = new.name.trim();
    if name.is_empty() || name.chars().count() > NAME_MAX || name.chars().any(char::is_control) {
        let detail = format!("name must be one line of 1 to {NAME_MAX} characters");
        return Err(Problem::bad(detail));
    }
    new.roles.sort();
    new.roles.dedup();
    if new.roles.is_empty() {
        let detail = "roles must name at least one of viewer, operator, finance, admin";
        return Err(Problem::bad(detail));
    }
    let now = now_ms();
    if let Some(at) = new.expires_at_ms.filter(|at| *at <= now) {
        return Err(Problem::bad(format!("expires_at_ms {at} is past")));
    }
    let id = admin.gate.id_for(&request_key);
    let roles: Vec<&str> = new.roles.iter().map(|role| role.as_str()).collect();
    let key = ApiKey {
        secret_hash: hash_of(&admin.gate.secret(&id, 1)),
        name: name.to_owned(),
        roles: roles.join(","),
        generation: 1,
        overlap_until_ms: 0,
        created_at_ms: now,
        expires_at_ms: new.expires_at_ms,
        revoked_at_ms: None,
        last_used_at_ms: None,
        id,
    };
    let made = admin.ledger.create_api_key(&key).await?;
    if (&made.name, &made.roles, made.expires_at_ms) != (&key.name, &key.roles, key.expires_at_ms) {
        let detail = format!(
            "Idempotency-Key \"{request_key}\" made key {} before",
            made.id
        );
        return Err(Problem::new(
            409,
            "the key was used for something else",
            detail,
        ));
    }
    admin.gate.forget_keys().await;
    Ok((StatusCode::CREATED, Json(Issued::new(&admin, made))))
}

/// A new secret; the one before it is good for a while, so that nothing stands still while the new one is brought everywhere.
pub async fn rotate(
    State(admin): Shared,
    Path(id): Path<String>,
    IdempotencyKey(request_key): IdempotencyKey,
    body: Result<Json<Overlap>, JsonRejection>,
) -> Result<Json<Issued>, Problem> {
    let overlap_until_ms = overlap::until_ms(body)?;
    not_bootstrap(&id)?;
    let key = admin.ledger.api_key(&id).await?;
    if let Some(at) = key.revoked_at_ms {
        let detail = format!("key {id} was revoked at {at} ms: create a new one");
        return Err(Problem::new(409, "the key is revoked", detail));
    }
    let generation = key.generation + 1;
    let rotation = Rotation {
        generation,
        secret_hash: &hash_of(&admin.gate.secret(&id, generation)),
        overlap_until_ms,
        request_key: &request_key,
    };
    let key = admin.ledger.rotate_api_key(&id, &rotation).await?;
    admin.gate.forget_keys().await;
    Ok(Json(Issued::new(&admin, key)))
}

/// For good, and within a second on every admin process.
pub async fn revoke(State(admin): Shared, Path(id): Path<String>) -> Result<Json<Key>, Problem> {
    not_bootstrap(&id)?;
    let key = admin.ledger.revoke_api_key(&id, now_ms()).await?;
    admin.gate.forget_keys().await;
    Ok(Json(key.into()))
}
