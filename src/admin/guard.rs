//! What every request under `/v1` passes: who asks, whether they may, and for a write the rest in `write`.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{FromRequestParts, RawPathParams, Request, State};
use axum::http::HeaderValue;
use axum::http::request::Parts;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http_body_util::{BodyExt, LengthLimitError, Limited};

use super::Admin;
use super::auth::{self, Signed};
use super::caller::{Access, Caller};
use super::confirm;
use super::console::session;
use super::problem::Problem;
use super::refusal::Refusal;
use super::routes::Route;
use super::signing::{self, random_text};
use super::write::{self, IdempotencyKey};
use crate::trace::Span;

/// Names a request in its answer and in the log.
pub const REQUEST_ID: &str = "hongbao-request-id";

/// A request whose author is known and may do it.
pub struct Admitted {
    pub admin: Arc<Admin>,
    pub route: Route,
    pub caller: Caller,
    pub request_id: String,
    /// Empty if there was none.
    pub idempotency_key: String,
    /// The first parameter of the path, decoded; empty if there is none.
    pub parameter: String,
    pub parts: Parts,
    pub body: Bytes,
}

pub async fn guard(
    State((admin, route)): State<(Arc<Admin>, Route)>,
    request: Request,
    next: Next,
) -> Response {
    let request_id = random_text();
    let mut span = Span::begin("admin.request");
    span.note("http.request.method", route.method);
    span.note("http.route", route.path);
    span.note("hongbao.operation", route.operation);
    span.note("hongbao.request_id", request_id.as_str());
    let admitted = admit(admin, route, request, &request_id).await;
    let label = admitted
        .as_ref()
        .map_or_else(Problem::label, |_| "accepted");
    crate::metrics::get().admin_request(label);
    let mut response = match admitted {
        Err(problem) => problem.into_response(),
        Ok(admitted) => match route.access {
            Access::Write if !admitted.is_rehearsal() => {
                match confirm::confirmed(&admitted).await {
                    Ok(()) => write::run(admitted, next).await,
                    // What was done is answered as then, without the token that it was done with.
                    Err(problem) => match write::known(&admitted).await {
                        Ok(known) => known.unwrap_or_else(|| problem.into_response()),
                        Err(problem) => problem.into_response(),
                    },
                }
            }
            Access::Write | Access::Read => next.run(admitted.into_request()).await,
        },
    };
    span.note(
        "http.response.status_code",
        i64::from(response.status().as_u16()),
    );
    if response.status().is_server_error() {
        span.failed("the server's fault");
    }
    let id = HeaderValue::from_str(&request_id).expect("hex digits");
    response.headers_mut().insert(REQUEST_ID, id);
    response
}

async fn admit(
    admin: Arc<Admin>,
    route: Route,
    request: Request,
    request_id: &str,
) -> Result<Admitted, Problem> {
    let (mut parts, body) = request.into_parts();
    let params = RawPathParams::from_request_parts(&mut parts, &())
        .await
        .map_err(|error| Problem::not_found(error.body_text()))?;
    let parameter = params.iter().next().map(|(_, value)| value.to_owned());
    let body = read_body(&admin, body);
    let (caller, body, idempotency_key) = match session::Cookie::read(&parts.headers) {
        Some(cookie) if !parts.headers.contains_key(signing::KEY) => {
            let caller = session::authenticate(&admin, &parts, &cookie).await?;
            let key = session::idempotency_key(&parts.headers);
            (caller, body.await?, key)
        }
        _ => {
            let signed = Signed::read(&parts.headers)?;
            let (method, uri) = (&parts.method, &parts.uri);
            let (caller, body) = auth::authenticate(&admin, method, uri, &signed, body).await?;
            (caller, body, signed.idempotency_key)
        }
    };
    let admitted = Admitted {
        admin,
        route,
        caller,
        request_id: request_id.to_owned(),
        idempotency_key,
        parameter: parameter.unwrap_or_default(),
        parts,
        body,
    };
    let (module, access) = (route.module, route.access);
    if admitted.caller.may(module, access) {
        return Ok(admitted);
    }
    let caller = &admitted.caller;
    let detail = format!(
        "this needs the permission {}:{}, and key {} has {}",
        module.as_str(),
        access.as_str(),
        caller.id,
        caller.permissions().join(", ")
    );
    let problem = Problem::refused(Refusal::NotAllowed, detail);
    if access == Access::Write {
        write::log_refused(&admitted, 403, &problem.text()).await?;
    }
    Err(problem)
}

impl Admitted {
    /// A write that is only played through: nothing happens, so nothing is kept or logged.
    fn is_rehearsal(&self) -> bool {
        self.route.rehearses && self.parts.uri.query() == Some("dry_run=true")
    }

    /// For the handler, which finds the caller and the idempotency key in its extensions.
    pub fn into_request(self) -> Request {
        let mut request = Request::from_parts(self.parts, Body::from(self.body));
        let extensions = request.extensions_mut();
        extensions.insert(self.caller);
        extensions.insert(IdempotencyKey(self.idempotency_key));
        request
    }
}

/// The whole body, bounded in size and time: it has to be there before its author is known, since the signature covers it.
pub async fn read_body(admin: &Admin, body: Body) -> Result<Bytes, Problem> {
    let (most, patience) = (admin.settings.body_max, admin.settings.body_timeout);
    let whole = Limited::new(body, most).collect();
    match tokio::time::timeout(patience, whole).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            let detail = format!("a body of more than {most} bytes is not read");
            Err(Problem::new(413, "the body is too large", detail))
        }
        Ok(Err(error)) => Err(Problem::new(400, "the body broke off", error.to_string())),
        Err(_) => Err(too_slow(patience)),
    }
}

fn too_slow(patience: Duration) -> Problem {
    let detail = format!("it was not there after {} ms", patience.as_millis());
    Problem::new(408, "the body came too slowly", detail)
}
