//! Deliveries: one event to one webhook. Whoever sends one *holds* it for a while, so that two processes do not both send it; a process
//! that dies in between leaves a hold that runs out, and the delivery is sent again.

use std::fmt;
use std::str::FromStr;

use super::db::Row;
use super::error::LedgerError;
use super::{Ledger, page_rows};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeliveryState {
    /// It will be sent, or sent again.
    Pending,
    Delivered,
    /// It was tried as often as it should be. Kept until a person sends it again.
    Failed,
}

impl DeliveryState {
    pub const ALL: [DeliveryState; 3] = [
        DeliveryState::Pending,
        DeliveryState::Delivered,
        DeliveryState::Failed,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            DeliveryState::Pending => "pending",
            DeliveryState::Delivered => "delivered",
            DeliveryState::Failed => "failed",
        }
    }
}

impl fmt::Display for DeliveryState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("state \"{0}\" is not pending, delivered or failed")]
pub struct DeliveryStateError(String);

impl FromStr for DeliveryState {
    type Err = DeliveryStateError;
    fn from_str(text: &str) -> Result<DeliveryState, DeliveryStateError> {
        let found = DeliveryState::ALL
            .into_iter()
            .find(|state| state.as_str() == text);
        found.ok_or_else(|| DeliveryStateError(text.to_owned()))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    pub id: i64,
    pub webhook: String,
    pub event: String,
    /// Like `rain.opened`.
    pub kind: String,
    /// When it happened, ms since 1970.
    pub event_at_ms: i64,
    /// JSON, as it is sent.
    pub body: String,
    pub state: DeliveryState,
    /// Since it was made, or sent again by hand.
    pub tries: u32,
    pub attempts: u32,
    /// While it is pending: when it is sent next.
    pub due_ms: i64,
    /// Pending, delivered or failed since then.
    pub since_ms: i64,
}

/// One try.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// From 1.
    pub number: u32,
    pub at_ms: i64,
    pub took_ms: i64,
    /// Of the answer, if there was one.
    pub status: Option<u16>,
    /// Why it does not count as delivered.
    pub error: Option<String>,
}

/// What becomes of a delivery after a try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    Delivered,
    Again { due_ms: i64 },
    Failed,
}

/// How the outbox does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Deliveries to webhooks that are enabled.
    pub pending: u64,
    /// Since when the oldest of them waits, ms since 1970.
    pub oldest_ms: Option<i64>,
}

/// Attempts of one delivery that are shown: the last.
const ATTEMPTS_SHOWN_MAX: i64 = 100;

macro_rules! select_deliveries {
    ($rest:literal) => {
        concat!(
            "SELECT d.id, d.webhook_id, d.event_id, e.kind, e.at_ms, e.body, d.state, d.tries, d.attempts, d.due_ms, d.since_ms
             FROM deliveries AS d JOIN events AS e ON e.id = d.event_id ",
            $rest
        )
    };
}

impl Delivery {
    fn read(row: &Row) -> Result<Delivery, LedgerError> {
        Ok(Delivery {
            id: row.i64(0)?,
            webhook: row.text(1)?,
            event: row.text(2)?,
            kind: row.text(3)?,
            event_at_ms: row.i64(4)?,
            body: row.text(5)?,
            state: row.parse(6)?,
            tries: row.i64(7)? as u32,
            attempts: row.i64(8)? as u32,
            due_ms: row.i64(9)?,
            since_ms: row.i64(10)?,
        })
    }
}

impl Ledger {
    /// Ids of the enabled webhooks for which something is to be sent now.
    pub async fn due_webhooks(&self, now_ms: i64) -> Result<Vec<String>, LedgerError> {
        let sql = "SELECT w.id FROM webhooks AS w WHERE w.enabled = 1 AND w.deleted_at_ms IS NULL AND EXISTS (
                     SELECT 1 FROM deliveries AS d
                     WHERE d.webhook_id = w.id AND d.state = 'pending' AND d.due_ms <= $1 AND d.held_until_ms < $1)
                   ORDER BY w.id";
        let rows = self
            .db
            .rows("looking for deliveries", sql, vec![now_ms.into()])
            .await?;
        rows.iter().map(|row| row.text(0)).collect()
    }

    /// Up to `most` deliveries of one webhook that are due, held by `holder` until `until_ms`: nobody else gets them before.
    pub async fn hold_deliveries(
        &self,
        webhook: &str,
        holder: &str,
        now_ms: i64,
        until_ms: i64,
        most: u32,
    ) -> Result<Vec<Delivery>, LedgerError> {
        // Two processes at once: PostgreSQL passes over the rows that the other is taking, SQLite has one writer at a time.
        let hold = self.db.dialect(
            "UPDATE deliveries SET holder = $2, held_until_ms = $4 WHERE id IN (
               SELECT id FROM deliveries WHERE webhook_id = $1 AND state = 'pending' AND due_ms <= $3 AND held_until_ms < $3
               ORDER BY due_ms, id LIMIT $5)
             RETURNING id",
            "UPDATE deliveries SET holder = $2, held_until_ms = $4 WHERE id = ANY (ARRAY(
               SELECT id FROM deliveries WHERE webhook_id = $1 AND state = 'pending' AND due_ms <= $3 AND held_until_ms < $3
               ORDER BY due_ms, id LIMIT $5 FOR UPDATE SKIP LOCKED))
             RETURNING id",
        );
        let mut tx = self.db.begin("taking deliveries").await?;
        let values = vec![
            webhook.into(),
            holder.into(),
            now_ms.into(),
            until_ms.into(),
            i64::from(most).into(),
        ];
        let mut held = vec![];
        for row in tx.rows(hold, values).await? {
            let one = select_deliveries!("WHERE d.id = $1");
            let row = tx.row(one, vec![row.i64(0)?.into()]).await?;
            held.extend(row.as_ref().map(Delivery::read).transpose()?);
        }
        tx.commit().await?;
        held.sort_by_key(|delivery| (delivery.due_ms, delivery.id));
        Ok(held)
    }

    /// Records a try, and what becomes of the delivery if `holder` still holds it; returns whether it does. A try is recorded all the same.
    pub async fn attempted(
        &self,
        delivery: i64,
        holder: &str,
        attempt: &Attempt,
        after: After,
    ) -> Result<bool, LedgerError> {
        let (state, due_ms) = match after {
            After::Delivered => (DeliveryState::Delivered, None),
            After::Again { due_ms } => (DeliveryState::Pending, Some(due_ms)),
            After::Failed => (DeliveryState::Failed, None),
        };
        let mut tx = self.db.begin("recording a delivery").await?;
        let sql = "UPDATE deliveries SET attempts = attempts + 1 WHERE id = $1 RETURNING attempts";
        if let Some(row) = tx.row(sql, vec![delivery.into()]).await? {
            let sql = "INSERT INTO delivery_attempts (delivery_id, number, at_ms, took_ms, status, error) VALUES ($1, $2, $3, $4, $5, $6)";
            let values = vec![
                delivery.into(),
                row.i64(0)?.into(),
                attempt.at_ms.into(),
                attempt.took_ms.into(),
                attempt.status.map(i64::from).into(),
                attempt.error.clone().into(),
            ];
            tx.execute(sql, values).await?;
        }
        let sql = "UPDATE deliveries SET state = $3, tries = tries + 1, due_ms = COALESCE($4, due_ms), holder = '', held_until_ms = 0,
                                         since_ms = CASE WHEN state = $3 THEN since_ms ELSE $5 END
                   WHERE id = $1 AND holder = $2 AND state = 'pending'";
        let values = vec![
            delivery.into(),
            holder.into(),
            state.as_str().into(),
            due_ms.into(),
            (attempt.at_ms + attempt.took_ms).into(),
        ];
        let ours = tx.execute(sql, values).await? == 1;
        tx.commit().await?;
        Ok(ours)
    }

    pub async fn delivery(&self, id: i64) -> Result<Delivery, LedgerError> {
        let sql = select_deliveries!("WHERE d.id = $1");
        let row = self
            .db
            .row("reading a delivery", sql, vec![id.into()])
            .await?;
        row.as_ref()
            .map(Delivery::read)
            .transpose()?
            .ok_or(LedgerError::NoDelivery(id))
    }

    /// The last hundred, oldest first.
    pub async fn attempts(&self, delivery: i64) -> Result<Vec<Attempt>, LedgerError> {
        let sql = "SELECT number, at_ms, took_ms, status, error FROM delivery_attempts WHERE delivery_id = $1
                   ORDER BY number DESC LIMIT $2";
        let values = vec![delivery.into(), ATTEMPTS_SHOWN_MAX.into()];
        let rows = self.db.rows("reading attempts", sql, values).await?;
        let read = |row: &Row| {
            Ok(Attempt {
                number: row.i64(0)? as u32,
                at_ms: row.i64(1)?,
                took_ms: row.i64(2)?,
                status: row.i64_or_null(3)?.map(|status| status as u16),
                error: row.text_or_null(4)?,
            })
        };
        rows.iter().rev().map(read).collect()
    }

    /// Newest first, those before delivery `before`; in one state or all, of one webhook or all.
    pub async fn deliveries(
        &self,
        state: Option<DeliveryState>,
        webhook: Option<&str>,
        before: Option<i64>,
        limit: u32,
    ) -> Result<Vec<Delivery>, LedgerError> {
        let mut values = vec![before.unwrap_or(i64::MAX).into(), page_rows(limit).into()];
        values.extend(state.map(|state| state.as_str().into()));
        values.extend(webhook.map(Into::into));
        let sql = match (state, webhook) {
            (None, None) => select_deliveries!("WHERE d.id < $1 ORDER BY d.id DESC LIMIT $2"),
            (Some(_), None) => {
                select_deliveries!("WHERE d.id < $1 AND d.state = $3 ORDER BY d.id DESC LIMIT $2")
            }
            (None, Some(_)) => select_deliveries!(
                "WHERE d.id < $1 AND d.webhook_id = $3 ORDER BY d.id DESC LIMIT $2"
            ),
            (Some(_), Some(_)) => select_deliveries!(
                "WHERE d.id < $1 AND d.state = $3 AND d.webhook_id = $4 ORDER BY d.id DESC LIMIT $2"
            ),
        };
        let rows = self.db.rows("listing deliveries", sql, values).await?;
        rows.iter().map(Delivery::read).collect()
    }

    /// Has a delivery sent again, now, with all its tries before it.
    pub async fn resend(&self, id: i64, at_ms: i64) -> Result<Delivery, LedgerError> {
        let sql = "UPDATE deliveries SET state = 'pending', tries = 0, due_ms = $2, since_ms = $2, holder = '', held_until_ms = 0
                   WHERE id = $1 AND (state <> 'pending' OR held_until_ms < $2)";
        let values = vec![id.into(), at_ms.into()];
        self.db
            .write("sending a delivery again", sql, values)
            .await?;
        self.delivery(id).await
    }

    /// The same with all that have failed, of one webhook or all, but for those whose webhook is deleted. Returns how many.
    pub async fn resend_failed(
        &self,
        webhook: Option<&str>,
        at_ms: i64,
    ) -> Result<u64, LedgerError> {
        let sql = "UPDATE deliveries SET state = 'pending', tries = 0, due_ms = $1, since_ms = $1
                   WHERE state = 'failed' AND webhook_id = COALESCE($2, webhook_id)
                     AND webhook_id IN (SELECT id FROM webhooks WHERE deleted_at_ms IS NULL)";
        let values = vec![at_ms.into(), webhook.map(str::to_owned).into()];
        let doing = "sending failed deliveries again";
        self.db.write(doing, sql, values).await
    }

    pub async fn backlog(&self) -> Result<Backlog, LedgerError> {
        let sql = "SELECT COUNT(*), MIN(d.since_ms) FROM deliveries AS d JOIN webhooks AS w ON w.id = d.webhook_id
                   WHERE d.state = 'pending' AND w.enabled = 1 AND w.deleted_at_ms IS NULL";
        let row = self.db.row("counting deliveries", sql, vec![]).await?;
        row.map_or(Ok(Backlog::default()), |row| {
            Ok(Backlog {
                pending: row.i64(0)?.unsigned_abs(),
                oldest_ms: row.i64_or_null(1)?,
            })
        })
    }

    /// Forgets deliveries that were delivered before `before_ms`, and those of deleted webhooks that ended before it. Returns how many; at
    /// most `limit`.
    pub async fn prune_deliveries(&self, before_ms: i64, limit: u32) -> Result<u64, LedgerError> {
        let sql = "DELETE FROM deliveries WHERE id IN (
                     SELECT d.id FROM deliveries AS d JOIN webhooks AS w ON w.id = d.webhook_id
                     WHERE d.since_ms < $1 AND (d.state = 'delivered' OR (d.state = 'failed' AND w.deleted_at_ms IS NOT NULL))
                     LIMIT $2)";
        let values = vec![before_ms.into(), i64::from(limit).into()];
        self.db.write("pruning deliveries", sql, values).await
    }
}
