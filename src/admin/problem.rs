//! Errors as problem+json (RFC 9457): a title that says what, a detail that names the thing and the value.

use std::time::Duration;

use axum::extract::rejection::{JsonRejection, PathRejection, QueryRejection};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::refusal::Refusal;
use crate::ledger::LedgerError;
use crate::rain::split::SplitError;
use crate::steward::StewardError;
use crate::store::StoreError;

#[derive(Debug)]
pub struct Problem {
    status: StatusCode,
    title: &'static str,
    detail: String,
    /// Set where somebody is not let in.
    refusal: Option<Refusal>,
    /// When to try again.
    retry_after: Option<Duration>,
    /// More that a program may want to read.
    more: serde_json::Map<String, serde_json::Value>,
}

impl Problem {
    pub fn new(status: u16, title: &'static str, detail: impl Into<String>) -> Problem {
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        Problem {
            status,
            title,
            detail: detail.into(),
            refusal: None,
            retry_after: None,
            more: Default::default(),
        }
    }

    /// Somebody is not let in.
    pub fn refused(refusal: Refusal, detail: impl Into<String>) -> Problem {
        let mut problem = Problem::new(refusal.status(), refusal.title(), detail);
        problem.refusal = Some(refusal);
        problem
    }

    /// As what a request counts that came to this before it was let in.
    pub fn label(&self) -> &'static str {
        match self.refusal {
            Some(refusal) => refusal.label(),
            None if self.status.is_server_error() => "unavailable",
            None => "unfit",
        }
    }

    /// With a member of its own.
    pub fn with(mut self, name: &str, value: serde_json::Value) -> Problem {
        self.more.insert(name.to_owned(), value);
        self
    }

    /// Says when it is worth another try, in whole seconds upwards.
    pub fn retry_after(mut self, wait: Duration) -> Problem {
        self.retry_after = Some(wait);
        self
    }

    pub fn bad(detail: impl Into<String>) -> Problem {
        Problem::new(422, "the request cannot work", detail)
    }

    pub fn status(&self) -> u16 {
        self.status.as_u16()
    }

    /// In one line.
    pub fn text(&self) -> String {
        format!("{}: {}", self.title, self.detail)
    }

    pub fn not_found(detail: impl Into<String>) -> Problem {
        Problem::new(404, "not found", detail)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        if self.status.is_server_error() {
            tracing::warn!(
                status = self.status.as_u16(),
                detail = self.detail,
                "an admin request failed"
            );
        }
        let mut body = json!({
            "type": "about:blank",
            "title": self.title,
            "status": self.status.as_u16(),
            "detail": self.detail,
        });
        for (name, value) in self.more {
            body[name] = value;
        }
        let kind = [(header::CONTENT_TYPE, "application/problem+json")];
        let mut response = (self.status, kind, body.to_string()).into_response();
        if let Some(wait) = self.retry_after {
            let seconds = wait.as_millis().div_ceil(1_000).max(1) as u64;
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, seconds.into());
        }
        response
    }
}

/// An error and its causes in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.contains(&next) {
            text = format!("{text}: {next}");
        }
        cause = error.source();
    }
    text
}

impl From<LedgerError> for Problem {
    fn from(error: LedgerError) -> Problem {
        use LedgerError::*;
        let text = chain(&error);
        match error {
            Unavailable { .. } => Problem::new(503, "the ledger is unavailable", text),
            Url { .. } | Open { .. } | Migrate { .. } | Refused { .. } | Broken { .. } => {
                Problem::new(500, "the ledger failed", text)
            }
            NoRain(_) | NoSponsor(_) | NoApiKey(_) | NoTemplate(_) | NoSchedule(_)
            | NoWebhook(_) | NoDelivery(_) => Problem::not_found(text),
            ApiKeys => Problem::new(409, "too many keys", text),
            Webhooks => Problem::new(409, "too many webhooks", text),
            SponsorTooPoor { .. } | EscrowTooPoor { .. } => {
                Problem::new(409, "not enough money", text)
            }
            Step { .. } | Over { .. } => {
                Problem::new(409, "the rain's state does not allow it", text)
            }
            RequestKeyReused { .. } | TopUpKeyReused { .. } | ScheduleKeyReused { .. } => {
                Problem::new(409, "the key was used for something else", text)
            }
            TemplateExists(_) | TemplateInUse { .. } => {
                Problem::new(409, "the template is in the way", text)
            }
            NotPositive { .. }
            | TopUp { .. }
            | BatchTooLarge { .. }
            | SponsorName(_)
            | Key(_)
            | AccountName(_)
            | Cursor(_) => Problem::bad(text),
        }
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Problem {
        Problem::new(503, "a Redis node failed", error.to_string())
    }
}

impl From<StewardError> for Problem {
    fn from(error: StewardError) -> Problem {
        match error {
            StewardError::Store(error) => error.into(),
            StewardError::Ledger(error) => error.into(),
            StewardError::Rain { .. } => {
                Problem::new(500, "the rain needs a look", error.to_string())
            }
        }
    }
}

impl From<SplitError> for Problem {
    fn from(error: SplitError) -> Problem {
        Problem::bad(error.to_string())
    }
}

impl From<JsonRejection> for Problem {
    fn from(rejection: JsonRejection) -> Problem {
        match rejection.status() {
            StatusCode::PAYLOAD_TOO_LARGE => {
                Problem::new(413, "the body is too large", rejection.body_text())
            }
            StatusCode::UNSUPPORTED_MEDIA_TYPE => Problem::new(
                415,
                "the body is not JSON",
                "send the header Content-Type: application/json",
            ),
            _ => Problem::bad(rejection.body_text()),
        }
    }
}

impl From<PathRejection> for Problem {
    fn from(rejection: PathRejection) -> Problem {
        Problem::not_found(rejection.body_text())
    }
}

impl From<QueryRejection> for Problem {
    fn from(rejection: QueryRejection) -> Problem {
        Problem::bad(rejection.body_text())
    }
}
