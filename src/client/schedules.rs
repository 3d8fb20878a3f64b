//! Templates and schedules of the admin API.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::admin::{AdminClient, AdminError, CALL, Rain};
use crate::rain::{RainId, Times};

/// A rain by name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Template {
    pub name: String,
    /// As a creation takes it, without times.
    pub rain: Value,
}

/// A template with opening times, as an operator asks for it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NewSchedule {
    pub template: String,
    /// A JSON object: fields that take the place of the template's.
    pub overrides: Value,
    pub times: Times,
    /// How long before its opening a rain is created; without it the server's default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ahead_ms: Option<i64>,
    /// The caller's own name for this request: the same key makes one schedule. `None`: one is made up.
    #[serde(skip)]
    pub key: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Schedule {
    pub id: i64,
    pub template: String,
    #[serde(default)]
    pub overrides: Value,
    pub times: Times,
    pub ahead_ms: i64,
    pub ended: bool,
    #[serde(default)]
    pub next_openings_ms: Vec<i64>,
    /// Only where one schedule was asked for; the latest first.
    #[serde(default)]
    pub openings: Vec<Opening>,
}

/// What became of an opening.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opening {
    pub opens_at_ms: i64,
    /// created, failed or missed.
    pub state: String,
    pub rain_id: Option<RainId>,
    pub problem: Option<String>,
}

impl AdminClient {
    pub async fn create_template(&self, name: &str, rain: &Value) -> Result<Template, AdminError> {
        let body = json!({ "name": name, "rain": rain });
        self.post(&["templates"], body).await
    }

    pub async fn update_template(&self, name: &str, rain: &Value) -> Result<Template, AdminError> {
        let body = json!({ "rain": rain });
        self.post(&["templates", name, "update"], body).await
    }

    pub async fn delete_template(&self, name: &str) -> Result<(), AdminError> {
        let _: Value = self.post(&["templates", name, "delete"], json!({})).await?;
        Ok(())
    }

    pub async fn template(&self, name: &str) -> Result<Template, AdminError> {
        self.get(&["templates", name], &[]).await
    }

    pub async fn templates(&self) -> Result<Vec<Template>, AdminError> {
        #[derive(Deserialize)]
        struct Page {
            templates: Vec<Template>,
        }
        let page: Page = self.get(&["templates"], &most()).await?;
        Ok(page.templates)
    }

    /// Creates a rain; `overrides` is a JSON object, `key` this request's own name: the same one makes one rain. `None`: one is made up.
    pub async fn rain_from_template(
        &self,
        name: &str,
        overrides: &Value,
        key: Option<&str>,
    ) -> Result<Rain, AdminError> {
        let path = ["templates", name, "rains"];
        self.write(&path, overrides.clone(), key, CALL).await
    }

    pub async fn create_schedule(&self, new: &NewSchedule) -> Result<Schedule, AdminError> {
        let key = new.key.as_deref();
        self.write(&["schedules"], json!(new), key, CALL).await
    }

    /// With what became of its openings.
    pub async fn schedule(&self, id: i64) -> Result<Schedule, AdminError> {
        self.get(&["schedules", &id.to_string()], &[]).await
    }

    pub async fn schedules(&self) -> Result<Vec<Schedule>, AdminError> {
        #[derive(Deserialize)]
        struct Page {
            schedules: Vec<Schedule>,
        }
        let page: Page = self.get(&["schedules"], &most()).await?;
        Ok(page.schedules)
    }

    /// No other rain follows from it.
    pub async fn end_schedule(&self, id: i64) -> Result<Schedule, AdminError> {
        self.post(&["schedules", &id.to_string(), "end"], json!({}))
            .await
    }

    /// Tells the room now of a rain that it was to be told of later.
    pub async fn announce_rain(&self, id: RainId) -> Result<Rain, AdminError> {
        self.post(&["rains", &id.to_string(), "announce"], json!({}))
            .await
    }
}

fn most() -> [(&'static str, String); 1] {
    [("limit", "1000".to_owned())]
}
