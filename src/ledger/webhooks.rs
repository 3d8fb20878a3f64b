//! Webhooks as recorded: whom to tell of what. How a secret is found, and what an address may be, is the admin's business.

use super::Ledger;
use super::db::{Row, Tx};
use super::error::LedgerError;
use super::events::{Event, EventKind};

/// Webhooks that are not deleted. Each may have a few requests under way, so this bounds all of them.
pub const WEBHOOKS_MAX: u32 = 100;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Webhook {
    pub id: String,
    pub url: String,
    pub events: Vec<EventKind>,
    /// If not, nothing is written for it, and what is written waits.
    pub enabled: bool,
    /// Counts the rotations of its secret, from 1.
    pub generation: u32,
    /// SHA-256 of this generation's secret, hex.
    pub secret_hash: String,
    /// Until then it is signed with the generation before as well, ms since 1970.
    pub overlap_until_ms: i64,
    pub created_at_ms: i64,
    pub deleted_at_ms: Option<i64>,
}

/// What is to be different; `None`: as it was.
#[derive(Clone, Debug, Default)]
pub struct WebhookChange {
    pub url: Option<String>,
    pub events: Option<Vec<EventKind>>,
    pub enabled: Option<bool>,
}

macro_rules! select_webhooks {
    ($rest:literal) => {
        concat!(
            "SELECT id, url, events, enabled, generation, secret_hash, overlap_until_ms, created_at_ms, deleted_at_ms FROM webhooks ",
            $rest
        )
    };
}

const ONE: &str = select_webhooks!("WHERE id = $1");

impl Webhook {
    fn read(row: &Row) -> Result<Webhook, LedgerError> {
        Ok(Webhook {
            id: row.text(0)?,
            url: row.text(1)?,
            // A kind that a later version of the program knows is nothing here.
            events: row
                .text(2)?
                .split(',')
                .filter_map(|kind| kind.parse().ok())
                .collect(),
            enabled: row.i64(3)? != 0,
            generation: row.i64(4)? as u32,
            secret_hash: row.text(5)?,
            overlap_until_ms: row.i64(6)?,
            created_at_ms: row.i64(7)?,
            deleted_at_ms: row.i64_or_null(8)?,
        })
    }
}

fn kinds_text(kinds: &[EventKind]) -> String {
    let mut text = String::from(",");
    for kind in kinds {
        text += kind.as_str();
        text.push(',');
    }
    text
}

impl Ledger {
    /// Records a new webhook, or finds the one with its id as it is by now. Refused when there are [`WEBHOOKS_MAX`].
    pub async fn create_webhook(&self, new: &Webhook) -> Result<Webhook, LedgerError> {
        let mut tx = self.db.begin("creating a webhook").await?;
        match tx.create_webhook(new).await {
            Ok(webhook) => tx.commit().await.map(|()| webhook),
            Err(error) => {
                tx.roll_back().await;
                Err(error)
            }
        }
    }

    pub async fn webhook(&self, id: &str) -> Result<Webhook, LedgerError> {
        let row = self
            .db
            .row("reading a webhook", ONE, vec![id.into()])
            .await?;
        row.as_ref()
            .map(Webhook::read)
            .transpose()?
            .ok_or_else(|| LedgerError::NoWebhook(id.to_owned()))
    }

    /// Those that are not deleted, by id; at most [`WEBHOOKS_MAX`].
    pub async fn webhooks(&self) -> Result<Vec<Webhook>, LedgerError> {
        let sql = select_webhooks!("WHERE deleted_at_ms IS NULL ORDER BY id");
        let rows = self.db.rows("listing webhooks", sql, vec![]).await?;
        rows.iter().map(Webhook::read).collect()
    }

    /// Those that may have something to deliver are left as they are: what is pending goes to the address of the moment.
    pub async fn change_webhook(
        &self,
        id: &str,
        change: &WebhookChange,
    ) -> Result<Webhook, LedgerError> {
        let sql = "UPDATE webhooks SET url = COALESCE($2, url), events = COALESCE($3, events), enabled = COALESCE($4, enabled)
                   WHERE id = $1 AND deleted_at_ms IS NULL";
        let values = vec![
            id.into(),
            change.url.clone().into(),
            change.events.as_deref().map(kinds_text).into(),
            change.enabled.map(i64::from).into(),
        ];
        self.db.write("changing a webhook", sql, values).await?;
        self.webhook(id).await
    }

    /// A repeat with the same `request_key` finds the rotation done.
    pub async fn rotate_webhook(
        &self,
        id: &str,
        rotation: &super::Rotation<'_>,
    ) -> Result<Webhook, LedgerError> {
        let sql = "UPDATE webhooks SET generation = $2, secret_hash = $3, overlap_until_ms = $4, rotation_key = $5
                   WHERE id = $1 AND generation = $2 - 1 AND rotation_key <> $5 AND deleted_at_ms IS NULL";
        let doing = "rotating a webhook's secret";
        self.db.write(doing, sql, rotation.values(id)).await?;
        self.webhook(id).await
    }

    /// For good. What is pending for it has failed.
    pub async fn delete_webhook(&self, id: &str, at_ms: i64) -> Result<Webhook, LedgerError> {
        let mut tx = self.db.begin("deleting a webhook").await?;
        let sql = "UPDATE webhooks SET deleted_at_ms = $2 WHERE id = $1 AND deleted_at_ms IS NULL";
        tx.execute(sql, vec![id.into(), at_ms.into()]).await?;
        let sql =
            "UPDATE deliveries SET state = 'failed', since_ms = $2, holder = '', held_until_ms = 0
                   WHERE webhook_id = $1 AND state = 'pending'";
        tx.execute(sql, vec![id.into(), at_ms.into()]).await?;
        tx.commit().await?;
        self.webhook(id).await
    }

    /// Writes a test event for one webhook; `name` makes a repeat find it. Returns the delivery's id.
    pub async fn test_webhook(&self, id: &str, name: &str, at_ms: i64) -> Result<i64, LedgerError> {
        let event = Event::test(id, name, at_ms);
        let mut tx = self.db.begin("testing a webhook").await?;
        if tx.write_event(&event).await? {
            let sql = "INSERT INTO deliveries (event_id, webhook_id, state, due_ms, since_ms) VALUES ($1, $2, 'pending', $3, $3)";
            let values = vec![event.id().into(), id.into(), at_ms.into()];
            tx.execute(sql, values).await?;
        }
        let sql = "SELECT id FROM deliveries WHERE event_id = $1 AND webhook_id = $2";
        let row = tx.row(sql, vec![event.id().into(), id.into()]).await?;
        let delivery = row.map(|row| row.i64(0)).transpose()?;
        tx.commit().await?;
        delivery.ok_or_else(|| LedgerError::NoWebhook(id.to_owned()))
    }
}

impl Tx {
    async fn create_webhook(&mut self, new: &Webhook) -> Result<Webhook, LedgerError> {
        if let Some(row) = self.row(ONE, vec![new.id.as_str().into()]).await? {
            return Webhook::read(&row);
        }
        let sql = "SELECT COUNT(*) FROM webhooks WHERE deleted_at_ms IS NULL";
        let row = self.row(sql, vec![]).await?;
        let in_use = row.as_ref().map_or(Ok(0), |row| row.i64(0))?;
        if in_use >= i64::from(WEBHOOKS_MAX) {
            return Err(LedgerError::Webhooks);
        }
        let sql = "INSERT INTO webhooks (id, url, events, enabled, generation, secret_hash, created_at_ms)
                   VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (id) DO NOTHING";
        let values = vec![
            new.id.as_str().into(),
            new.url.as_str().into(),
            kinds_text(&new.events).into(),
            i64::from(new.enabled).into(),
            i64::from(new.generation).into(),
            new.secret_hash.as_str().into(),
            new.created_at_ms.into(),
        ];
        self.execute(sql, values).await?;
        let row = self.row(ONE, vec![new.id.as_str().into()]).await?;
        row.as_ref()
            .map(Webhook::read)
            .transpose()?
            .ok_or_else(|| LedgerError::NoWebhook(new.id.clone()))
    }
}
