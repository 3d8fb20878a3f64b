//! A cookie, and whose it is.
//!
//! The cookie is 32 random bytes; SQL holds its hash, so a session is good on every admin process and nobody gets one from a copy of the
//! database. It ends when nobody does anything for `admin.console_idle_ms`, after `admin.console_session_ms` in any case, by logging out, and
//! with the secret that it began with: when its key is revoked, expires, or is rotated and the overlap is over.

use axum::http::HeaderMap;
use axum::http::header;
use axum::http::request::Parts;
use subtle::ConstantTimeEq;

use super::super::Admin;
use super::super::auth::hash_of;
use super::super::caller::Caller;
use super::super::problem::Problem;
use super::super::refusal::Refusal;
use super::super::signing::IDEMPOTENCY_KEY;
use crate::clock::now_ms;
use crate::ledger::ConsoleSession;

pub const COOKIE: &str = "hongbao_console";
/// Sent with everything but GET: the text that `GET /console/session` gave to the page.
pub const CSRF: &str = "hongbao-csrf";
/// On requests that a page makes by itself: they do not keep a session alive.
const BACKGROUND: &str = "hongbao-background";
/// How exactly it is known when somebody last did something, as a part of the idle time.
const SEEN_PARTS: i64 = 30;

/// What a browser sent.
pub struct Cookie {
    /// SHA-256 of the cookie.
    pub hash: String,
}

impl Cookie {
    pub fn read(headers: &HeaderMap) -> Option<Cookie> {
        let all = headers.get_all(header::COOKIE).iter();
        let texts = all.filter_map(|value| value.to_str().ok());
        let mut pairs = texts.flat_map(|text| text.split(';'));
        let value = pairs.find_map(|pair| pair.trim().strip_prefix(COOKIE)?.strip_prefix('='))?;
        Some(Cookie {
            hash: hash_of(value),
        })
    }
}

/// Random, for a new session: what the browser keeps.
pub fn fresh() -> Result<String, Problem> {
    let mut bytes = [0u8; 32];
    getrandom::fill(&mut bytes)
        .map_err(|error| Problem::new(500, "no random bytes", error.to_string()))?;
    Ok(hex::encode(bytes))
}

/// Whose session this is, with the roles that its key has now. Whatever is not a GET needs the CSRF token.
pub async fn authenticate(
    admin: &Admin,
    parts: &Parts,
    cookie: &Cookie,
) -> Result<Caller, Problem> {
    let headers = &parts.headers;
    let session = find(admin, cookie).await?;
    let gate = &admin.gate;
    let caller = gate
        .still_holds(admin, &session.key_id, &session.secret_hash)
        .await?;
    if !parts.method.is_safe() {
        let given = headers.get(CSRF).map_or(&b""[..], |value| value.as_bytes());
        let wanted = gate.csrf_token(&session.hash);
        if !bool::from(given.ct_eq(wanted.as_bytes())) {
            let detail = format!(
                "a request by cookie that is not a GET needs the header {CSRF}, as GET /console/session gives it"
            );
            return Err(Problem::refused(Refusal::ForeignPage, detail));
        }
    }
    // An EventSource comes back by itself.
    let stream = headers
        .get(header::ACCEPT)
        .is_some_and(|kind| kind == "text/event-stream");
    if !stream && !headers.contains_key(BACKGROUND) {
        seen(admin, &session).await;
    }
    Ok(caller)
}

/// The session, if its time is not over.
async fn find(admin: &Admin, cookie: &Cookie) -> Result<ConsoleSession, Problem> {
    let ended = || Problem::refused(Refusal::Session, "log in again");
    let session = admin.ledger.console_session(&cookie.hash).await?;
    let session = session.ok_or_else(ended)?;
    let (now, settings) = (now_ms(), &admin.settings);
    let within = |since: i64, most: std::time::Duration| now - since < most.as_millis() as i64;
    let alive = within(session.created_at_ms, settings.console_session)
        && within(session.seen_at_ms, settings.console_idle);
    if !alive {
        admin.ledger.end_console_session(&session.hash).await?;
        return Err(ended());
    }
    Ok(session)
}

async fn seen(admin: &Admin, session: &ConsoleSession) {
    let now = now_ms();
    let exactly = admin.settings.console_idle.as_millis() as i64 / SEEN_PARTS;
    if now - session.seen_at_ms < exactly {
        return;
    }
    if let Err(error) = admin.ledger.console_session_seen(&session.hash, now).await {
        // Nobody is refused for that.
        tracing::debug!(%error, "the use of a session cannot be noted");
    }
}

/// Empty if there is none, or more than one, or it is no text: the write refuses that.
pub fn idempotency_key(headers: &HeaderMap) -> String {
    let mut values = headers.get_all(IDEMPOTENCY_KEY).iter();
    let value = values.next().filter(|_| values.next().is_none());
    let text = value.and_then(|value| value.to_str().ok());
    text.unwrap_or_default().to_owned()
}
