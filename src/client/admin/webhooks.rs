//! Webhooks and their deliveries.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{AdminClient, AdminError, CALL, LONG_CALL};

/// Whom to tell of what.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NewWebhook {
    pub url: String,
    /// Like `rain.opened`; `None`: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub events: Option<Vec<String>>,
}

/// What is to be different; `None`: as it was.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct WebhookChange {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub events: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
}

/// A webhook, without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Webhook {
    pub id: String,
    pub url: String,
    pub events: Vec<String>,
    pub enabled: bool,
    pub generation: u32,
    pub created_at_ms: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deleted_at_ms: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old_secret_until_ms: Option<i64>,
}

/// A webhook with what its receiver checks signatures with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IssuedWebhook {
    #[serde(flatten)]
    pub webhook: Webhook,
    /// Told once.
    pub secret: String,
}

/// One event to one webhook.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delivery {
    pub id: i64,
    pub webhook: String,
    pub event_id: String,
    pub event: String,
    pub event_at_ms: i64,
    /// pending, delivered or failed
    pub state: String,
    pub attempts: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_at_ms: Option<i64>,
    pub since_ms: i64,
}

/// One try of a delivery.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeliveryAttempt {
    pub number: u32,
    pub at_ms: i64,
    pub took_ms: i64,
    #[serde(default)]
    pub status: Option<u16>,
    #[serde(default)]
    pub error: Option<String>,
}

/// A delivery with what was sent, and how it went.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeliveryDetail {
    #[serde(flatten)]
    pub delivery: Delivery,
    pub body: Value,
    pub log: Vec<DeliveryAttempt>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeliveriesPage {
    pub deliveries: Vec<Delivery>,
    #[serde(default)]
    pub next_cursor: Option<String>,
}

impl AdminClient {
    /// All that are not deleted, by id.
    pub async fn webhooks(&self) -> Result<Vec<Webhook>, AdminError> {
        #[derive(Deserialize)]
        struct Answer {
            webhooks: Vec<Webhook>,
        }
        let answer: Answer = self.get(&["webhooks"], &[]).await?;
        Ok(answer.webhooks)
    }

    pub async fn webhook(&self, id: &str) -> Result<Webhook, AdminError> {
        self.get(&["webhooks", id], &[]).await
    }

    /// `name` is this request's own name: the same one makes one webhook. `None`: one is made up.
    pub async fn create_webhook(
        &self,
        new: &NewWebhook,
        name: Option<&str>,
    ) -> Result<IssuedWebhook, AdminError> {
        self.write(&["webhooks"], json!(new), name, CALL).await
    }

    pub async fn change_webhook(
        &self,
        id: &str,
        change: &WebhookChange,
    ) -> Result<Webhook, AdminError> {
        self.post(&["webhooks", id, "update"], json!(change)).await
    }

    /// A new secret; deliveries are signed with the old one as well for `overlap_ms` more, as long as the server says if `None`.
    pub async fn rotate_webhook(
        &self,
        id: &str,
        overlap_ms: Option<i64>,
    ) -> Result<IssuedWebhook, AdminError> {
        let body = overlap_ms.map_or(json!({}), |ms| json!({ "overlap_ms": ms }));
        self.post(&["webhooks", id, "rotate"], body).await
    }

    pub async fn delete_webhook(&self, id: &str) -> Result<Webhook, AdminError> {
        self.post(&["webhooks", id, "delete"], json!({})).await
    }

    /// Sends `webhook.test`, soon: [`AdminClient::delivery`] says how it went.
    pub async fn test_webhook(&self, id: &str) -> Result<Delivery, AdminError> {
        self.post(&["webhooks", id, "test"], json!({})).await
    }

    /// Newest first, from `cursor` on; in one state (pending, delivered, failed) or all, of one webhook or all. `limit`: 1 to 1000.
    pub async fn deliveries(
        &self,
        state: Option<&str>,
        webhook: Option<&str>,
        cursor: Option<&str>,
        limit: u32,
    ) -> Result<DeliveriesPage, AdminError> {
        let mut query = vec![("limit", limit.to_string())];
        query.extend(state.map(|state| ("state", state.to_owned())));
        query.extend(webhook.map(|webhook| ("webhook", webhook.to_owned())));
        query.extend(cursor.map(|cursor| ("cursor", cursor.to_owned())));
        self.get(&["deliveries"], &query).await
    }

    pub async fn delivery(&self, id: i64) -> Result<DeliveryDetail, AdminError> {
        self.get(&["deliveries", &id.to_string()], &[]).await
    }

    pub async fn resend_delivery(&self, id: i64) -> Result<Delivery, AdminError> {
        self.post(&["deliveries", &id.to_string(), "resend"], json!({}))
            .await
    }

    /// All that have failed, of one webhook or all. Returns how many.
    pub async fn resend_failed(&self, webhook: Option<&str>) -> Result<u64, AdminError> {
        #[derive(Deserialize)]
        struct Answer {
            resent: u64,
        }
        let body = webhook.map_or(json!({}), |webhook| json!({ "webhook": webhook }));
        let path = ["deliveries", "resend"];
        let answer: Answer = self.write(&path, body, None, LONG_CALL).await?;
        Ok(answer.resent)
    }
}
