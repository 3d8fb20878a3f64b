//! Log in, log out, who is logged in.

use std::net::IpAddr;
use std::time::Instant;

use axum::Json;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::super::caller::{Caller, Role};
use super::super::guard::read_body;
use super::super::problem::Problem;
use super::super::server::Peer;
use super::super::signing::{Credential, random_text};
use super::super::{Admin, Shared};
use super::session::{self, COOKIE, Cookie};
use super::throttle;
use crate::clock::now_ms;
use crate::ledger::{ConsoleSession, End, Write};
use crate::metrics;

/// Who is logged in, and what pages need to write in their name.
#[derive(Serialize)]
pub struct Who {
    id: String,
    name: String,
    roles: Vec<Role>,
    /// Like `rains:write`; who may write may read.
    permissions: Vec<String>,
    /// What stands before an amount.
    currency: String,
    csrf: String,
}

impl Who {
    fn new(admin: &Admin, caller: Caller, session_hash: &str) -> Who {
        Who {
            permissions: caller.permissions(),
            csrf: admin.gate.csrf_token(session_hash),
            currency: admin.settings.currency.clone(),
            id: caller.id,
            name: caller.name,
            roles: caller.roles,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Login {
    /// Id of the key; may be empty when the secret is a whole key, `<id>.<secret>`, or that of the key `bootstrap`.
    #[serde(default)]
    key: String,
    secret: String,
}

impl Login {
    /// People paste what they were given.
    fn credential(&self) -> Credential {
        let (key, secret) = (self.key.trim(), self.secret.trim());
        let given = Credential::read(secret);
        match key {
            "" => given,
            key if secret.contains('.') && given.id == key => given,
            key => Credential {
                id: key.to_owned(),
                secret: secret.to_owned(),
            },
        }
    }
}

pub async fn log_in(State(admin): Shared, request: Request) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    let login = read(&admin, &parts, body).await?;
    let given = login.credential();
    let peer = parts.extensions.get::<Peer>();
    let Peer(address) = peer.ok_or_else(|| {
        let detail = "the connection does not say where it comes from";
        Problem::new(500, "no address", detail)
    })?;
    if given.id.len() > throttle::KEY_MAX {
        metrics::get().console_login("failed");
        return Err(nobody());
    }
    let begun = admin.logins.begin(&given.id, *address, Instant::now());
    begun.inspect_err(|_| metrics::get().console_login("throttled"))?;
    let holder = admin.gate.holder(&admin, &given.id, &given.secret).await;
    let holder = holder.and_then(|holder| holder.ok_or_else(nobody));
    let (caller, secret_hash) = match holder {
        Ok(holder) => holder,
        Err(problem) => {
            metrics::get().console_login("failed");
            tracing::info!(%address, "a login to the console failed");
            // A text that is no key's name may be a secret in the wrong field, and strangers have many: neither is kept.
            if let Some(named) = admin.gate.named(&admin, &given.id).await? {
                record(&admin, "log_in", &named, Some(*address), Err(&problem)).await?;
            }
            return Err(problem);
        }
    };
    admin.logins.succeeded(&given.id, *address);
    let text = session::fresh()?;
    let now = now_ms();
    let session = ConsoleSession {
        hash: super::super::auth::hash_of(&text),
        key_id: caller.id.clone(),
        secret_hash,
        created_at_ms: now,
        seen_at_ms: now,
    };
    let (most, idle) = (
        admin.settings.console_session,
        admin.settings.console_idle.as_millis() as i64,
    );
    let begun_since = now - most.as_millis() as i64;
    admin
        .ledger
        .begin_console_session(&session, begun_since, now - idle)
        .await?;
    record(&admin, "log_in", &caller, Some(*address), Ok(200)).await?;
    metrics::get().console_login("succeeded");
    let cookie = cookie(&parts.headers, &text, most.as_secs().max(1));
    let who = Who::new(&admin, caller, &session.hash);
    Ok((StatusCode::OK, cookie, Json(who)).into_response())
}

fn nobody() -> Problem {
    let detail = "there is no such key, or its secret is another";
    Problem::new(401, "the login failed", detail)
}

/// A line of the log. Failed logins of keys that there are: 10 a minute of each at most, in each process.
async fn record(
    admin: &Admin,
    operation: &str,
    key: &Caller,
    address: Option<IpAddr>,
    how: Result<u16, &Problem>,
) -> Result<(), Problem> {
    let path = match address {
        Some(_) => "/console/login",
        None => "/console/logout",
    };
    let write = Write {
        request_id: random_text(),
        caller: key.id.clone(),
        caller_name: key.name.clone(),
        method: "POST".into(),
        path: path.into(),
        operation: operation.into(),
        target: format!("key:{}", key.id),
        before: None,
    };
    let (status, outcome) = match how {
        Ok(status) => (status, "done".to_owned()),
        Err(problem) => (problem.status(), format!("refused: {}", problem.text())),
    };
    let end = End {
        at_ms: now_ms(),
        status,
        outcome,
        after: address.map(|address| json!({ "address": address }).to_string()),
        answer: None,
    };
    Ok(admin.ledger.log_alone(&write, &end).await?)
}

/// JSON only: a form of another site cannot send that.
async fn read(admin: &Admin, parts: &Parts, body: Body) -> Result<Login, Problem> {
    let kind = parts.headers.get(header::CONTENT_TYPE);
    let json = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/json"));
    if !json {
        let detail = "send the header Content-Type: application/json";
        return Err(Problem::new(415, "the body is not JSON", detail));
    }
    let body = read_body(admin, body).await?;
    // What is wrong is not repeated: it may be the secret.
    serde_json::from_slice(&body)
        .map_err(|_| Problem::bad("a login is a JSON object with key and secret, two texts"))
}

/// `Secure` where the browser came by TLS, which ends before us: whoever ends it says so with X-Forwarded-Proto.
fn cookie(
    headers: &HeaderMap,
    value: &str,
    max_age_s: u64,
) -> [(header::HeaderName, HeaderValue); 2] {
    let forwarded = headers.get("x-forwarded-proto");
    let secure = match forwarded.is_some_and(|scheme| scheme == "https") {
        true => "; Secure",
        false => "",
    };
    let text =
        format!("{COOKIE}={value}; Path=/; HttpOnly; SameSite=Strict; Max-Age={max_age_s}{secure}");
    let text = HeaderValue::from_str(&text).expect("hex digits and plain words");
    let no_store = HeaderValue::from_static("no-store");
    [
        (header::SET_COOKIE, text),
        (header::CACHE_CONTROL, no_store),
    ]
}

pub async fn log_out(State(admin): Shared, request: Request) -> Result<Response, Problem> {
    let (parts, _) = request.into_parts();
    if let Some(sent) = Cookie::read(&parts.headers) {
        let caller = session::authenticate(&admin, &parts, &sent).await?;
        admin.ledger.end_console_session(&sent.hash).await?;
        record(&admin, "log_out", &caller, None, Ok(204)).await?;
    }
    let gone = cookie(&parts.headers, "", 0);
    Ok((StatusCode::NO_CONTENT, gone).into_response())
}

pub async fn who(State(admin): Shared, request: Request) -> Result<Response, Problem> {
    let (parts, _) = request.into_parts();
    let cookie = Cookie::read(&parts.headers)
        .ok_or_else(|| Problem::new(401, "nobody is logged in", "log in first"))?;
    let caller = session::authenticate(&admin, &parts, &cookie).await?;
    let no_store = [(header::CACHE_CONTROL, "no-store")];
    Ok((no_store, Json(Who::new(&admin, caller, &cookie.hash))).into_response())
}
