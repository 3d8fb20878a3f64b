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
use super::problem::Problem;
use super::routes::Route;
use super::signing::random_text;
use super::write::{self, IdempotencyKey};

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
    let mut response = match admit(admin, route, request, &request_id).await {
        Err(problem) => problem.into_response(),
        Ok(admitted) => match route.access {
            Access::Write if !admitted.is_rehearsal() => {
                match confirm::confirmed(&admitted).await {
                    Ok(()) => write::run(admitted, next).await,
                    Err(problem) => problem.into_response(),
                }
            }
            Access::Write | Access::Read => next.run(admitted.into_request()).await,
        },
    };
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
    let signed = Signed::read(&parts.headers)?;
    let body = read_body(&admin, body);
    let (caller, body) =
        auth::authenticate(&admin, &parts.method, &parts.uri, &signed, body).await?;
    let admitted = Admitted {
        admin,
        route,
        caller,
        request_id: request_id.to_owned(),
        idempotency_key: signed.idempotency_key,
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
    let title = "the key may not do this";
    if access == Access::Write {
        write::log_refused(&admitted, 403, &format!("{title}: {detail}")).await?;
    }
    Err(Problem::new(403, title, detail))
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
async fn read_body(admin: &Admin, body: Body) -> Result<Bytes, Problem> {
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
