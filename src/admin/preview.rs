//! What a split looks like, before anybody pays for it.
//!
//! The amounts of a preview come from a seed of its own, which is thrown away: they are alike the rain's, and tell nothing about them.

use axum::Json;
use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use serde::Serialize;

use super::Shared;
use super::asked::{self, NewRain};
use super::problem::Problem;
use crate::rain::split::Summary;

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
    let turn = admin.previews.wait().await?;
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
