//! The admin HTTP API: what operators, finance and the command line speak to.

/// Sponsors, deposits, balances.
mod accounts;
/// A rain as it is asked for, and whether it can be had.
mod asked;
/// Claims that wait for a person.
mod dead_letters;
/// The numbers of a falling rain as they change.
mod live;
/// The rains of schedules, ahead of their openings.
pub mod openings;
/// How claims flow.
pub mod pipeline;
/// What a split looks like before it is paid for.
mod preview;
/// Errors as problem+json.
mod problem;
/// Create, list, show, open, top up, close, audit.
mod rains;
/// Templates with opening times.
mod schedules;
/// Accept loop with a connection cap and a header time-out.
mod server;
/// Rains by name.
mod templates;
/// Who has been paid, as pages, CSV, NDJSON.
mod winners;

use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::header::AUTHORIZATION;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use metrics_exporter_prometheus::PrometheusHandle;
use subtle::ConstantTimeEq;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config;
use crate::ledger::Ledger;
use crate::steward::Steward;
use crate::store::Store;
pub use live::Live;
pub use preview::Previews;
use problem::Problem;
pub use server::{ListenError, Server};

/// What every request may use.
pub struct Admin {
    pub settings: config::Admin,
    /// Defaults of new rains.
    pub defaults: config::Steward,
    pub api_key: String,
    pub store: Arc<Store>,
    pub ledger: Ledger,
    pub steward: Arc<Steward>,
    pub metrics: Option<PrometheusHandle>,
    /// Cancelled when a drain begins: from then on the process is not ready.
    pub draining: CancellationToken,
    pub pipeline: pipeline::Pipeline,
    pub previews: Previews,
    pub live: Live,
    /// Where work that outlives a request is registered.
    pub tasks: TaskTracker,
}

pub type Shared = State<Arc<Admin>>;

/// The routes. Everything under `/v1` needs the API key.
pub fn router(admin: Arc<Admin>) -> Router {
    let v1 = Router::new()
        .route("/accounts", post(accounts::create).get(accounts::list))
        .route("/accounts/{name}", get(accounts::show))
        .route("/accounts/{sponsor}/deposits", post(accounts::deposit))
        .route("/rains", post(rains::create).get(rains::list))
        .route("/rains/preview", post(preview::preview))
        .route("/rains/{id}", get(rains::show))
        .route("/rains/{id}/live", get(live::stream))
        .route("/rains/{id}/announce", post(rains::announce))
        .route("/rains/{id}/open", post(rains::open))
        .route("/rains/{id}/pause", post(rains::pause))
        .route("/rains/{id}/resume", post(rains::resume))
        .route("/rains/{id}/top-up", post(rains::top_up))
        .route("/rains/{id}/close", post(rains::close))
        .route("/rains/{id}/audit", get(rains::audit))
        .route("/rains/{id}/repair", post(rains::repair))
        .route("/rains/{id}/winners", get(winners::list))
        .route("/rains/{id}/winners.csv", get(winners::csv))
        .route("/rains/{id}/winners.ndjson", get(winners::ndjson))
        .route("/templates", post(templates::create).get(templates::list))
        .route("/templates/{name}", get(templates::show))
        .route("/templates/{name}/update", post(templates::update))
        .route("/templates/{name}/delete", post(templates::delete))
        .route("/templates/{name}/rains", post(templates::create_rain))
        .route("/schedules", post(schedules::create).get(schedules::list))
        .route("/schedules/{id}", get(schedules::show))
        .route("/schedules/{id}/end", post(schedules::end))
        .route("/pipeline", get(pipeline::show))
        .route("/dead-letters", get(dead_letters::list))
        .route("/dead-letters/requeue", post(dead_letters::requeue_all))
        .route("/dead-letters/{packet}", get(dead_letters::show))
        .route(
            "/dead-letters/{packet}/requeue",
            post(dead_letters::requeue),
        )
        .route(
            "/dead-letters/{packet}/discard",
            post(dead_letters::discard),
        )
        .layer(middleware::from_fn_with_state(admin.clone(), authorized));
    let limit = DefaultBodyLimit::max(admin.settings.body_max);
    let api = Router::new()
        .nest("/v1", v1)
        .layer(limit)
        .with_state(admin.clone());
    probes(admin).merge(api)
}

/// What machines ask without a key, in every process.
pub fn probes(admin: Arc<Admin>) -> Router {
    Router::new()
        .route("/healthz", get(|| async { "alive\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics_page))
        .fallback(|| async {
            Problem::not_found(
                "there is nothing at this path; the API is under /v1 where the role admin runs",
            )
        })
        .method_not_allowed_fallback(|| async {
            Problem::new(405, "method not allowed", "this path takes another method")
        })
        .with_state(admin)
}

async fn authorized(State(admin): Shared, request: Request, next: Next) -> Response {
    let given = request
        .headers()
        .get(AUTHORIZATION)
        .and_then(|value| value.to_str().ok());
    let key = given
        .and_then(|value| value.strip_prefix("Bearer "))
        .unwrap_or_default();
    if !bool::from(key.as_bytes().ct_eq(admin.api_key.as_bytes())) {
        let detail = match given {
            None => "send the header Authorization: Bearer <API key>",
            Some(_) => "the API key is not the one of this server",
        };
        return Problem::new(401, "not authorized", detail).into_response();
    }
    next.run(request).await
}

/// Ready when SQL and every node answer, and no drain has begun.
async fn ready(State(admin): Shared) -> Response {
    let ledger = admin.ledger.ping().await.map_err(|error| error.to_string());
    let ping = redis::cmd("PING");
    let ping = &ping;
    let nodes = admin.store.links().into_iter().map(|link| async move {
        let answer = link.call(ping).await;
        (
            link.name(),
            answer.map(drop).map_err(|error| error.to_string()),
        )
    });
    let nodes = futures_util::future::join_all(nodes).await;
    let draining = admin.draining.is_cancelled();
    let ready = !draining && ledger.is_ok() && nodes.iter().all(|(_, answer)| answer.is_ok());
    let word = |result: &Result<(), String>| {
        result
            .as_ref()
            .err()
            .cloned()
            .unwrap_or_else(|| "ok".into())
    };
    let nodes: serde_json::Map<_, _> = nodes
        .iter()
        .map(|(name, answer)| (name.clone(), word(answer).into()))
        .collect();
    let body = serde_json::json!({ "ready": ready, "draining": draining, "sql": word(&ledger), "redis": nodes });
    let status = if ready { 200 } else { 503 };
    (
        axum::http::StatusCode::from_u16(status).expect("a valid code"),
        axum::Json(body),
    )
        .into_response()
}

async fn metrics_page(State(admin): Shared) -> Response {
    let Some(handle) = admin.metrics.clone() else {
        return Problem::not_found("this process records no metrics").into_response();
    };
    // It reads files of /proc and writes some hundred lines.
    match tokio::task::spawn_blocking(move || crate::metrics::page(&handle)).await {
        Ok(page) => {
            let version = "text/plain; version=0.0.4; charset=utf-8";
            ([(axum::http::header::CONTENT_TYPE, version)], page).into_response()
        }
        Err(error) => Problem::new(500, "no metrics", error.to_string()).into_response(),
    }
}
