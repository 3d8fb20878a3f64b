//! The console: files for a browser, and sessions for its users. All it shows comes from the same `/v1` that signed requests use.

/// Files, as they are sent.
mod files;
/// Log in, log out, who is logged in.
mod login;
/// A cookie, and whose it is.
pub mod session;
/// How often somebody may guess.
mod throttle;

use std::sync::Arc;

use axum::Router;
use axum::routing::{get, post};

use super::Admin;
pub use throttle::Logins;

pub fn router() -> Router<Arc<Admin>> {
    Router::new()
        .route("/", get(files::index))
        .route("/console/{file}", get(files::file))
        .route("/console/session", get(login::who))
        .route("/console/login", post(login::log_in))
        .route("/console/logout", post(login::log_out))
}
