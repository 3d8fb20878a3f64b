//! How long the secret before a rotation stays good beside the new one, of keys and of webhooks alike.

use axum::Json;
use axum::extract::rejection::JsonRejection;
use serde::Deserialize;

use super::problem::Problem;
use crate::clock::now_ms;

/// Unless it is told: a day to bring the new one everywhere.
const DEFAULT_MS: i64 = 86_400_000;
const MAX_MS: i64 = 30 * 86_400_000;

/// A rotation as it is asked for.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Overlap {
    /// 0 ends the old secret at once.
    overlap_ms: Option<i64>,
}

/// When the old secret's time is over if it is rotated now, ms since 1970.
pub fn until_ms(body: Result<Json<Overlap>, JsonRejection>) -> Result<i64, Problem> {
    let Json(Overlap { overlap_ms }) = body?;
    let overlap_ms = overlap_ms.unwrap_or(DEFAULT_MS);
    if !(0..=MAX_MS).contains(&overlap_ms) {
        let detail = format!("overlap_ms {overlap_ms} must be from 0 to {MAX_MS}");
        return Err(Problem::bad(detail));
    }
    Ok(now_ms() + overlap_ms)
}
