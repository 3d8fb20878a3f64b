//! What an operator asks about a rain before, while and after it falls: previews, rehearsals, live numbers, the list of winners.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::admin::{AdminClient, AdminError, NewRain, chain};
use super::live::LiveStream;
use crate::rain::split::Summary;
use crate::rain::{Cents, RainId};

/// What a split looks like. The amounts are not those of any rain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Preview {
    /// Whether every packet was looked at.
    pub exact: bool,
    #[serde(flatten)]
    pub summary: Summary,
}

/// What a creation would do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rehearsal {
    pub dry_run: bool,
    /// The rain that the same key made before.
    pub existing: Option<RainId>,
    pub sponsor_balance_cents: Cents,
    pub sponsor_balance_after_cents: Cents,
    /// As the server would show it.
    pub rain: Value,
}

/// How a whole list of winners is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListFormat {
    Csv,
    Ndjson,
}

/// A list on its way, piece by piece.
pub struct Download {
    response: reqwest::Response,
}

impl Download {
    /// The next piece; `None` at the end of a whole list.
    pub async fn next(&mut self) -> Result<Option<bytes::Bytes>, AdminError> {
        let url = self.response.url().to_string();
        let piece = self.response.chunk().await;
        piece.map_err(|error| AdminError::Unreachable {
            url,
            reason: format!("the list broke off: {}", chain(&error)),
        })
    }
}

impl AdminClient {
    /// Looks at rule, total, packets and bounds only.
    pub async fn preview(&self, rain: &NewRain) -> Result<Preview, AdminError> {
        self.ask(&["rains", "preview"], &[], json!(rain), "").await
    }

    /// Everything that a creation would refuse is refused; nothing is stored.
    pub async fn rehearse_rain(&self, rain: &NewRain) -> Result<Rehearsal, AdminError> {
        let query = [("dry_run", "true".to_owned())];
        let key = rain.key.as_deref().unwrap_or_default();
        self.ask(&["rains"], &query, json!(rain), key).await
    }

    /// The numbers of a rain as they change, until it is over.
    pub async fn live(&self, id: RainId) -> Result<LiveStream, AdminError> {
        let path = ["rains", &id.to_string(), "live"];
        let response = self.stream(&path).await?;
        Ok(LiveStream::new(response))
    }

    /// All credited winners by packet id.
    pub async fn list_of_winners(
        &self,
        id: RainId,
        format: ListFormat,
    ) -> Result<Download, AdminError> {
        let list = match format {
            ListFormat::Csv => "winners.csv",
            ListFormat::Ndjson => "winners.ndjson",
        };
        let path = ["rains", &id.to_string(), list];
        let response = self.stream(&path).await?;
        Ok(Download { response })
    }
}
