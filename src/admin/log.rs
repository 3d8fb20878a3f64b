//! Who did what.

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Shared;
use super::page;
use super::problem::Problem;
use crate::ledger::LogLine;

/// A write, done or refused.
#[derive(Serialize)]
pub struct Line {
    id: i64,
    at_ms: i64,
    /// As in the answer's header Hongbao-Request-Id.
    request_id: String,
    /// Id of the key that asked, and its name at that time.
    caller: String,
    caller_name: String,
    method: String,
    path: String,
    operation: String,
    /// Like `rain:7`; empty for what is about nothing that was there.
    target: String,
    /// HTTP status; 0 when the process ended before it could say.
    status: u16,
    /// `done`, or `refused`, `failed`, `unknown` and why.
    outcome: String,
    /// The target before.
    before: Option<Value>,
    /// What was answered.
    after: Option<Value>,
}

impl From<LogLine> for Line {
    fn from(line: LogLine) -> Line {
        let json = |text: Option<String>| serde_json::from_str(&text?).ok();
        let write = line.write;
        Line {
            id: line.id,
            at_ms: line.at_ms,
            request_id: write.request_id,
            caller: write.caller,
            caller_name: write.caller_name,
            method: write.method,
            path: write.path,
            operation: write.operation,
            target: write.target,
            status: line.status,
            outcome: line.outcome,
            before: json(write.before),
            after: json(line.after),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Page {
    /// Of one target, like `rain:7`.
    target: Option<String>,
    limit: Option<u32>,
    cursor: Option<String>,
}

#[derive(Serialize)]
pub struct Lines {
    log: Vec<Line>,
    next_cursor: Option<String>,
}

/// Newest first.
pub async fn list(
    State(admin): Shared,
    page: Result<Query<Page>, QueryRejection>,
) -> Result<Json<Lines>, Problem> {
    let Query(page) = page?;
    let limit = page::limit(page.limit, 100, 1_000)?;
    let before = page::place(page.cursor.as_deref(), "log")?;
    let lines = admin
        .ledger
        .log_lines(page.target.as_deref(), before, limit + 1)
        .await?;
    let (lines, next_cursor) = page::cut(lines, limit, |line| page::cursor("log", line.id));
    Ok(Json(Lines {
        log: lines.into_iter().map(Line::from).collect(),
        next_cursor,
    }))
}
