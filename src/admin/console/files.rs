//! The files of the console, embedded, as they are sent.

use std::sync::LazyLock;

use axum::extract::Path;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};

use super::super::problem::Problem;

/// Scripts, styles and requests from here and nowhere else, nothing inline, in no frame; no text becomes markup.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const JS: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

struct File {
    name: &'static str,
    kind: &'static str,
    text: &'static str,
    /// SHA-256 of the text in quotes.
    tag: LazyLock<String, fn() -> String>,
}

macro_rules! files {
    ($($name:literal $kind:ident,)*) => {
        [$(File {
            name: $name,
            kind: $kind,
            text: include_str!(concat!("files/", $name)),
            tag: LazyLock::new(|| tag(include_str!(concat!("files/", $name)))),
        },)*]
    };
}

static FILES: [File; FILES_COUNT] = files![
    "index.html" HTML,
    "icon.svg" SVG,
    "base.css" CSS,
    "parts.css" CSS,
    "main.js" JS,
    "api.js" JS,
    "dom.js" JS,
    "format.js" JS,
    "parts.js" JS,
    "charts.js" JS,
    "login.js" JS,
    "rains.js" JS,
    "rainform.js" JS,
    "create.js" JS,
    "rain.js" JS,
    "live.js" JS,
    "audit.js" JS,
    "templates.js" JS,
    "schedules.js" JS,
    "dead.js" JS,
    "accounts.js" JS,
    "health.js" JS,
    "nodes.js" JS,
    "webhooks.js" JS,
    "deliveries.js" JS,
    "keys.js" JS,
    "log.js" JS,
];
const FILES_COUNT: usize = 27;

fn tag(text: &str) -> String {
    format!("\"{}\"", hex::encode(&Sha256::digest(text)[..16]))
}

pub async fn index(headers: HeaderMap) -> Response {
    send(&FILES[0], &headers)
}

pub async fn file(Path(name): Path<String>, headers: HeaderMap) -> Response {
    match FILES.iter().find(|file| file.name == name) {
        Some(file) => send(file, &headers),
        None => {
            let detail = format!("the console has no file \"{name}\"");
            Problem::not_found(detail).into_response()
        }
    }
}

/// Asked for anew each time, and not sent again while it is the same: another version of the program is seen at once.
fn send(file: &File, headers: &HeaderMap) -> Response {
    let tag = file.tag.as_str();
    let known = headers.get(header::IF_NONE_MATCH);
    let known = known.and_then(|tags| tags.to_str().ok());
    let fresh = known.is_some_and(|tags| tags.split(',').any(|known| known.trim() == tag));
    let head = [
        (header::ETAG, tag),
        (header::CACHE_CONTROL, "no-cache"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CONTENT_TYPE, file.kind),
    ];
    match fresh {
        true => (StatusCode::NOT_MODIFIED, head).into_response(),
        false => (head, file.text).into_response(),
    }
}
