//! A write, once however often it is sent, and in the log.
//!
//! 1. *begin*: the idempotency key is held in SQL, with who does what, and how its target is before. A key that was used is answered
//!    from there.
//! 2. The handler runs. The hold is renewed while it does; the client may hang up, the write goes on.
//! 3. *end*: the answer is kept and the line of the log written, in one transaction.
//!
//! Only what was done (2xx) is kept. A refusal changed nothing, and the same request may be right a moment later (after a deposit, say),
//! so its key is free again. A crash between 1 and 3 leaves a hold that runs out: the repeat does the work again, and everything
//! beneath finds what was done by keys of its own.

use std::time::Duration;

use axum::body::Body;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http_body_util::BodyExt;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::caller::Module;
use super::guard::Admitted;
use super::problem::Problem;
use super::routes::{Route, Target};
use super::{Admin, keys, signing, webhooks};
use crate::clock::now_ms;
use crate::ledger::{AccountName, Begun, End, KEY_BYTES_MAX, Write};
use crate::task;

/// How long a write is held by its request unless it renews that: what a repeat waits after a crash.
const HOLD_MS: i64 = 3_000;
const RENEW: Duration = Duration::from_millis(1_000);
/// Answers are kept that long.
const ANSWERS_KEPT_MS: i64 = 48 * 3_600_000;
/// A write that nobody holds for that long is logged as unknown.
const ABANDONED_MS: i64 = 60_000;
const SWEEP: Duration = Duration::from_secs(60);
/// Of an answer in the log.
const SHOWN_MAX: usize = 64 << 10;

/// Characters of a path in the log: that of every real target is shorter.
const PATH_MAX: usize = 256;

/// The title of the problem that asks for patience.
pub const AT_WORK: &str = "the request is at work";
/// Set to `true` on an answer that was given before.
const REPLAYED: &str = "idempotency-replayed";

/// The caller's own name for a write, for handlers whose work beneath is keyed by it.
#[derive(Clone)]
pub struct IdempotencyKey(pub String);

impl<S: Sync> FromRequestParts<S> for IdempotencyKey {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<IdempotencyKey, Problem> {
        let key = parts.extensions.get::<IdempotencyKey>().cloned();
        key.ok_or_else(|| {
            Problem::new(
                500,
                "no idempotency key",
                "this route is not in the table as a write",
            )
        })
    }
}

/// In a task of its own: whoever hangs up does not stop it half-way.
pub async fn run(admitted: Admitted, next: Next) -> Response {
    let running = tokio::spawn(task::contained("admin.write", async move {
        let answer = attempt(admitted, next).await;
        answer.unwrap_or_else(Problem::into_response)
    }));
    match running.await {
        Ok(Ok(response)) => response,
        Ok(Err(_)) | Err(_) => {
            let detail =
                "whether it was done is not known; repeat it with the same Idempotency-Key";
            Problem::new(500, "the request failed", detail).into_response()
        }
    }
}

async fn attempt(admitted: Admitted, next: Next) -> Result<Response, Problem> {
    let admin = admitted.admin.clone();
    let (key, holder) = (
        checked(&admitted.idempotency_key)?.to_owned(),
        admitted.request_id.clone(),
    );
    let before = snapshot(&admin, admitted.route.target, &admitted.parameter).await;
    let mut write = record_of(&admitted, before);
    let begun = admin
        .ledger
        .begin_request(
            &key,
            &fingerprint(&admitted),
            &holder,
            &write,
            now_ms(),
            HOLD_MS,
        )
        .await?;
    if let Some(response) = not_ours(&admitted, begun)? {
        return Ok(response);
    }
    crate::crash::point("write.begun");
    let route = admitted.route;
    let request = admitted.into_request();
    let response = held(&admin, &key, &holder, next.run(request)).await;
    crate::crash::point("write.done");
    let (head, body) = response.into_parts();
    let body = match body.collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) => return Err(Problem::new(500, "no answer", error.to_string())),
    };
    let end = end_of(head.status, &body, &route);
    if let Some(made) = end
        .answer
        .as_deref()
        .and_then(|answer| made(&route, answer))
    {
        write.target = made;
    }
    if let Err(error) = admin.ledger.end_request(&key, &holder, &write, &end).await {
        // It is done; a repeat finds so, and the sweep logs it.
        tracing::warn!(%error, request = holder, "the end of a write cannot be recorded yet");
    }
    Ok(Response::from_parts(head, Body::from(body)))
}

/// The answer to a write that is not this request's to do.
fn not_ours(admitted: &Admitted, begun: Begun) -> Result<Option<Response>, Problem> {
    let key = &admitted.idempotency_key;
    match begun {
        Begun::Ours => Ok(None),
        Begun::Answered { status, answer } => Ok(Some(replayed(admitted, status, answer))),
        Begun::AtWork => {
            let detail = format!(
                "the request with Idempotency-Key \"{key}\" is at work: repeat it in a moment"
            );
            let problem = Problem::new(409, AT_WORK, detail);
            Err(problem.retry_after(Duration::from_secs(1)))
        }
        Begun::Different => {
            let detail = format!(
                "Idempotency-Key \"{key}\" came with another request: use a new one for each"
            );
            let title = "the key was used for something else";
            Err(Problem::new(409, title, detail))
        }
    }
}

/// The answer to a write whose idempotency key was used before, without beginning anything; `None` for a new one.
pub async fn known(admitted: &Admitted) -> Result<Option<Response>, Problem> {
    let key = checked(&admitted.idempotency_key)?;
    let ledger = &admitted.admin.ledger;
    let found = ledger
        .begun_request(key, &fingerprint(admitted), now_ms())
        .await?;
    not_ours(admitted, found.unwrap_or(Begun::Ours))
}

fn checked(key: &str) -> Result<&str, Problem> {
    let printable = key.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    if key.is_empty() || key.len() > KEY_BYTES_MAX || !printable {
        let detail = format!(
            "every write needs a header {}: your own name for it, 1 to {KEY_BYTES_MAX} printable ASCII characters",
            signing::IDEMPOTENCY_KEY
        );
        return Err(Problem::new(400, "no idempotency key", detail));
    }
    Ok(key)
}

fn fingerprint(admitted: &Admitted) -> String {
    let mut hash = Sha256::new();
    let uri = &admitted.parts.uri;
    for part in [
        admitted.parts.method.as_str(),
        uri.path(),
        uri.query().unwrap_or_default(),
    ] {
        hash.update(part);
        hash.update("\n");
    }
    hash.update(&admitted.body);
    hex::encode(hash.finalize())
}

/// Says every second that the write is still at work.
async fn held(
    admin: &Admin,
    key: &str,
    holder: &str,
    work: impl Future<Output = Response>,
) -> Response {
    let mut work = std::pin::pin!(work);
    loop {
        match tokio::time::timeout(RENEW, work.as_mut()).await {
            Ok(response) => return response,
            Err(_) => {
                let held = admin.ledger.hold_request(key, holder, now_ms() + HOLD_MS);
                // Not in time: a repeat may begin beside us, and finds what we have done.
                let _ = tokio::time::timeout(RENEW, held).await;
            }
        }
    }
}

fn end_of(status: StatusCode, body: &[u8], route: &Route) -> End {
    let text = String::from_utf8_lossy(body).into_owned();
    let kept = match route.gives_credential {
        false => text,
        true => without_secret(&text, route.module),
    };
    let done = status.is_success();
    let problem: Value = serde_json::from_str(&kept).unwrap_or_default();
    let word = |name: &str| problem[name].as_str().unwrap_or_default().to_owned();
    let outcome = match status.as_u16() {
        _ if done => "done".to_owned(),
        400..500 => format!("refused: {}: {}", word("title"), word("detail")),
        _ => format!("failed: {}: {}", word("title"), word("detail")),
    };
    End {
        at_ms: now_ms(),
        status: status.as_u16(),
        outcome,
        after: Some(kept.clone()).filter(|text| done && text.len() <= SHOWN_MAX),
        answer: Some(kept).filter(|_| done),
    }
}

/// Under which name the answers of a module hold a secret.
fn secret_name(module: Module) -> &'static str {
    match module {
        Module::Webhooks => webhooks::SECRET,
        _ => keys::CREDENTIAL,
    }
}

/// An answer as it is kept.
fn without_secret(answer: &str, module: Module) -> String {
    let mut answer: Value = serde_json::from_str(answer).unwrap_or_default();
    if let Some(fields) = answer.as_object_mut() {
        fields.remove(secret_name(module));
    }
    answer.to_string()
}

/// An answer that was kept, as it was given: the secret follows from id and generation.
fn with_secret(answer: &str, module: Module, admin: &Admin) -> String {
    let mut answer: Value = serde_json::from_str(answer).unwrap_or_default();
    let id = answer["id"].as_str().map(str::to_owned);
    let generation = answer["generation"].as_u64().map(|n| n as u32);
    if let (Some(id), Some(generation)) = (id, generation) {
        let secret = match module {
            Module::Webhooks => admin.gate.webhook_secret(&id, generation),
            _ => keys::credential(admin, &id, generation),
        };
        answer[secret_name(module)] = secret.into();
    }
    answer.to_string()
}

fn replayed(admitted: &Admitted, status: u16, answer: String) -> Response {
    let route = &admitted.route;
    let answer = match route.gives_credential {
        false => answer,
        true => with_secret(&answer, route.module, &admitted.admin),
    };
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
    let mut response = (status, answer).into_response();
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    headers.insert(REPLAYED, HeaderValue::from_static("true"));
    response
}

/// What the request has made, as the log names it.
fn made(route: &Route, answer: &str) -> Option<String> {
    let answer: Value = serde_json::from_str(answer).ok()?;
    let name = match (&answer["id"], &answer["name"]) {
        (Value::Number(id), _) => id.to_string(),
        (Value::String(id), _) | (_, Value::String(id)) => id.clone(),
        _ => return None,
    };
    Some(target_text(route.makes, &name)).filter(|text| !text.is_empty())
}

/// Like `rain:7`; empty for nothing.
fn target_text(target: Target, name: &str) -> String {
    let kind = match target {
        Target::Nothing => "",
        Target::Rain => "rain",
        Target::Sponsor => "account:sponsor",
        Target::Account => "account",
        Target::Packet => "packet",
        Target::Template => "template",
        Target::Schedule => "schedule",
        Target::Key => "key",
        Target::Webhook => "webhook",
        Target::Delivery => "delivery",
    };
    match kind {
        "" => String::new(),
        kind => {
            let name: String = name.chars().take(KEY_BYTES_MAX).collect();
            format!("{kind}:{name}")
        }
    }
}

fn record_of(admitted: &Admitted, before: Option<Value>) -> Write {
    Write {
        request_id: admitted.request_id.clone(),
        caller: admitted.caller.id.clone(),
        caller_name: admitted.caller.name.clone(),
        method: admitted.parts.method.to_string(),
        path: admitted.parts.uri.path().chars().take(PATH_MAX).collect(),
        operation: admitted.route.operation.to_owned(),
        target: target_text(admitted.route.target, &admitted.parameter),
        before: before.map(|before| before.to_string()),
    }
}

/// The target as it is now; `None` if there is none, or it cannot be read: the write itself finds out which.
async fn snapshot(admin: &Admin, target: Target, parameter: &str) -> Option<Value> {
    let ledger = &admin.ledger;
    let account = async |name: Result<AccountName, _>| {
        let account = ledger.account(&name.ok()?).await.ok()??;
        serde_json::to_value(super::accounts::Account::from(account)).ok()
    };
    match target {
        Target::Nothing => None,
        Target::Rain => {
            let rain = ledger.rain(parameter.parse().ok()?).await.ok()?;
            serde_json::to_value(super::rains::Rain::from(rain)).ok()
        }
        Target::Sponsor => account(AccountName::sponsor(parameter)).await,
        Target::Account => account(parameter.parse()).await,
        Target::Packet => {
            let letter = super::dead_letters::letter(admin, parameter).await;
            serde_json::to_value(letter.ok()?).ok()
        }
        Target::Template => {
            let template = ledger.template(parameter).await.ok()?;
            serde_json::to_value(super::templates::Template::from(template)).ok()
        }
        Target::Schedule => {
            let schedule = ledger.schedule(parameter.parse().ok()?).await.ok()?;
            serde_json::to_value(super::schedules::Schedule::from(schedule)).ok()
        }
        Target::Key => {
            let key = ledger.api_key(parameter).await.ok()?;
            serde_json::to_value(keys::Key::from(key)).ok()
        }
        Target::Webhook => {
            let webhook = ledger.webhook(parameter).await.ok()?;
            serde_json::to_value(webhooks::Webhook::from(webhook)).ok()
        }
        Target::Delivery => {
            let delivery = webhooks::deliveries::one(admin, parameter).await;
            serde_json::to_value(delivery.ok()?).ok()
        }
    }
}

/// A line for a write that was refused before it began.
pub async fn log_refused(admitted: &Admitted, status: u16, why: &str) -> Result<(), Problem> {
    let end = End {
        at_ms: now_ms(),
        status,
        outcome: format!("refused: {why}"),
        after: None,
        answer: None,
    };
    let write = record_of(admitted, None);
    Ok(admitted.admin.ledger.log_alone(&write, &end).await?)
}

/// Logs what was left by processes that died, and forgets old answers, until `stop`.
pub async fn sweep(admin: std::sync::Arc<Admin>, stop: tokio_util::sync::CancellationToken) {
    let mut round = tokio::time::interval(SWEEP);
    round.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = round.tick() => {}
        }
        let now = now_ms();
        let swept = admin
            .ledger
            .sweep_requests(now, now - ABANDONED_MS, now - ANSWERS_KEPT_MS)
            .await;
        match swept {
            Ok(0) => {}
            Ok(unknown) => {
                tracing::warn!(
                    unknown,
                    "writes whose process ended before it could say how they did are in the log"
                );
            }
            Err(error) => tracing::debug!(%error, "old requests cannot be swept"),
        }
    }
}
