//! The admin HTTP API: what operators, finance and the command line speak to.

/// Sponsors, deposits, balances.
mod accounts;
/// A rain as it is asked for, and whether it can be had.
mod asked;
/// Who signed a request, and whether it is the first time.
pub mod auth;
/// Who asks, and what that allows.
pub mod caller;
/// What moves money is asked for twice.
pub mod confirm;
/// What operators see in a browser, and how they log in to it.
mod console;
/// Claims that wait for a person.
mod dead_letters;
/// What every request passes: who asks, whether they may.
mod guard;
/// Keys of this API.
mod keys;
/// The numbers of a falling rain as they change.
mod live;
/// Who did what.
mod log;
/// Ledger and nodes, one by one.
pub mod nodes;
/// The OpenAPI page.
pub mod openapi;
/// The rains of schedules, ahead of their openings.
pub mod openings;
/// How long an old secret stays good beside a new one.
mod overlap;
/// Pages of lists.
mod page;
/// A connection whose other end takes nothing.
mod patient;
/// How claims flow.
pub mod pipeline;
/// What a split looks like before it is paid for.
mod preview;
/// Errors as problem+json.
mod problem;
/// Create, list, show, open, top up, close, audit.
mod rains;
/// Why somebody is not let in.
mod refusal;
/// The table of the API: every route with its permission.
pub mod routes;
/// Templates with opening times.
mod schedules;
/// Accept loop with a connection cap and a header time-out.
mod server;
/// How requests are signed.
pub mod signing;
/// Rains by name.
mod templates;
/// Dear requests, a few at once.
mod turns;
/// Other people's servers that are told what happens.
pub mod webhooks;
/// Who has been paid, as pages, CSV, NDJSON.
mod winners;
/// A write, once however often it is sent, and in the log.
pub mod write;

use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, State};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config;
use crate::ledger::Ledger;
use crate::steward::Steward;
use crate::store::Store;
pub use console::Logins;
pub use live::Live;
use problem::Problem;
pub use server::{ListenError, Server};
pub use turns::Turns;

/// What every request may use.
pub struct Admin {
    pub settings: config::Admin,
    pub webhooks: config::Webhooks,
    /// Defaults of new rains.
    pub defaults: config::Steward,
    pub gate: auth::Gate,
    pub store: Arc<Store>,
    pub ledger: Ledger,
    pub steward: Arc<Steward>,
    pub metrics: Option<PrometheusHandle>,
    /// Cancelled when a drain begins: from then on the process is not ready.
    pub draining: CancellationToken,
    pub pipeline: pipeline::Pipeline,
    pub previews: Turns,
    pub audits: Turns,
    pub live: Live,
    pub nodes: nodes::Look,
    /// Of this process.
    pub roles: Vec<&'static str>,
    pub logins: Logins,
    /// Where work that outlives a request is registered.
    pub tasks: TaskTracker,
}

pub type Shared = State<Arc<Admin>>;

/// Everything under `/v1` as the table has it, each route behind its guard.
pub fn router(admin: Arc<Admin>) -> Router {
    let mut api = Router::new();
    for (route, handler) in routes::all() {
        let guard = middleware::from_fn_with_state((admin.clone(), route), guard::guard);
        api = api.route(route.path, handler.route_layer(guard));
    }
    let api = api
        .route("/openapi.json", get(openapi_page))
        .method_not_allowed_fallback(other_method);
    // The guard has read the body, within its own limit.
    let api = api
        .layer(DefaultBodyLimit::disable())
        .with_state(admin.clone());
    let console = console::router().with_state(admin.clone());
    probes(admin).merge(api).merge(console)
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
        .method_not_allowed_fallback(other_method)
        .with_state(admin)
}

/// Only the routes that a router has when this is set are answered so.
async fn other_method() -> Problem {
    Problem::new(405, "method not allowed", "this path takes another method")
}

/// Without a key: it is in the repository too.
async fn openapi_page() -> impl IntoResponse {
    let kind = "application/json; charset=utf-8";
    ([(axum::http::header::CONTENT_TYPE, kind)], openapi::page())
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
