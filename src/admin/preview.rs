//! What a split looks like, before anybody pays for it.
//!
//! The amounts of a preview come from a seed of its own, which is thrown away: they are alike the rain's, and tell nothing about them.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use serde::Serialize;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::Shared;
use super::asked::{self, NewRain};
use super::problem::Problem;
use crate::rain::split::Summary;

/// Previews computed at once: each keeps a core busy for up to two seconds, and rains may be falling.
const AT_ONCE: usize = 1;
/// How long a preview waits for its turn.
const PATIENCE: Duration = Duration::from_secs(3);

/// Turns of previews.
pub struct Previews(Arc<Semaphore>);

impl Default for Previews {
    fn default() -> Previews {
        Previews(Arc::new(Semaphore::new(AT_ONCE)))
    }
}

#[derive(Serialize)]
pub struct Preview {
    /// Whether every packet was looked at.
    exact: bool,
    #[serde(flatten)]
    summary: Summary,
}

/// Takes what a creation takes; rule, total, packets and bounds are looked at, the rest is not.
pub async fn preview(
    State(admin): Shared,
    body: Result<Json<NewRain>, JsonRejection>,
) -> Result<Json<Preview>, Problem> {
    let Json(new) = body?;
    let split = new.split();
    split.check()?;
    let seed = asked::fresh_seed()?;
    let turn = timeout(PATIENCE, admin.previews.0.clone().acquire_owned());
    let Ok(Ok(turn)) = turn.await else {
        let detail = "other previews are being computed: try again in a few seconds";
        return Err(Problem::new(503, "too many previews", detail));
    };
    let looking = tokio::task::spawn_blocking(move || {
        let _turn = turn; // as long as it computes, whether or not somebody still waits
        split.summary(&seed)
    });
    let summary = looking
        .await
        .map_err(|error| Problem::new(500, "the preview failed", error.to_string()))??;
    let exact = summary.looked_at == summary.packets;
    Ok(Json(Preview { exact, summary }))
}
