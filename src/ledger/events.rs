//! The outbox: what has happened, written in the transaction of the fact itself, with a delivery for each webhook that wants to know.
//!
//! An event's id says what it is about. What is seen twice, by a steward that starts again or by two at once, is one event.

use std::fmt;
use std::str::FromStr;

use serde_json::{Value, json};

use crate::rain::{Cents, Claim, PacketId, Rain, RainId};

use super::Ledger;
use super::db::Tx;
use super::error::LedgerError;
use super::rains::sql_rain;

/// What a webhook may be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EventKind {
    RainOpened,
    RainSoldOut,
    RainClosed,
    RainRefunded,
    ClaimDead,
    /// A person wants to see whether it arrives. Sent to one webhook, whatever it asks for.
    Test,
}

impl EventKind {
    /// Those that a webhook may ask for.
    pub const ALL: [EventKind; 5] = [
        EventKind::RainOpened,
        EventKind::RainSoldOut,
        EventKind::RainClosed,
        EventKind::RainRefunded,
        EventKind::ClaimDead,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            EventKind::RainOpened => "rain.opened",
            EventKind::RainSoldOut => "rain.sold_out",
            EventKind::RainClosed => "rain.closed",
            EventKind::RainRefunded => "rain.refunded",
            EventKind::ClaimDead => "claim.dead",
            EventKind::Test => "webhook.test",
        }
    }
}

impl fmt::Display for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "event \"{0}\" is not rain.opened, rain.sold_out, rain.closed, rain.refunded or claim.dead"
)]
pub struct EventKindError(String);

impl FromStr for EventKind {
    type Err = EventKindError;
    fn from_str(text: &str) -> Result<EventKind, EventKindError> {
        let found = EventKind::ALL
            .into_iter()
            .find(|kind| kind.as_str() == text);
        found.ok_or_else(|| EventKindError(text.to_owned()))
    }
}

/// A fact, to be told.
#[derive(Clone, Debug)]
pub(super) struct Event {
    id: String,
    kind: EventKind,
    rain: Option<RainId>,
    at_ms: i64,
    data: Value,
}

impl Event {
    /// The rain as it is after the step.
    pub(super) fn opened(rain: &Rain, at_ms: i64) -> Event {
        Event::of_rain(EventKind::RainOpened, "opened", rain, at_ms)
    }

    pub(super) fn closed(rain: &Rain, at_ms: i64) -> Event {
        Event::of_rain(EventKind::RainClosed, "closed", rain, at_ms)
    }

    /// Each time anew: after a top-up a rain may be sold out again, and then has another version.
    pub(super) fn sold_out(rain: &Rain, at_ms: i64) -> Event {
        let mut event = Event::of_rain(EventKind::RainSoldOut, "sold_out", rain, at_ms);
        event.id = format!("{}:{}", event.id, rain.version);
        event
    }

    pub(super) fn refunded(rain: &Rain, refunded: Cents, at_ms: i64) -> Event {
        let mut event = Event::of_rain(EventKind::RainRefunded, "refunded", rain, at_ms);
        event.data["refunded_cents"] = json!(refunded);
        event
    }

    fn dead(letter: &BuriedClaim) -> Event {
        let claim = &letter.claim;
        let data = json!({
            "packet_id": claim.packet.id,
            "user": claim.user,
            "cents": claim.packet.cents,
            "attempts": letter.attempts,
            "reason": letter.reason,
        });
        Event {
            // A claim that is requeued and buried again is news.
            id: format!("dead:{}:{}", letter.field, letter.at_ms),
            kind: EventKind::ClaimDead,
            rain: Some(claim.packet.id.rain()),
            at_ms: letter.at_ms,
            data,
        }
    }

    /// `name` makes it one event, however often it is asked for.
    pub(super) fn test(webhook: &str, name: &str, at_ms: i64) -> Event {
        Event {
            id: format!("test:{webhook}:{name}"),
            kind: EventKind::Test,
            rain: None,
            at_ms,
            data: json!({ "webhook": webhook }),
        }
    }

    fn of_rain(kind: EventKind, word: &str, rain: &Rain, at_ms: i64) -> Event {
        let data = json!({
            "title": rain.title,
            "room": rain.room,
            "sponsor": rain.sponsor,
            "packets": rain.parts.packets(),
            "total_cents": rain.parts.total(),
            "opens_at_ms": rain.window.opens_at_ms,
            "closes_at_ms": rain.window.closes_at_ms(),
        });
        Event {
            id: format!("{word}:{}", rain.id),
            kind,
            rain: Some(rain.id),
            at_ms,
            data,
        }
    }

    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// What is sent, and signed, byte by byte.
    fn body(&self) -> String {
        json!({
            "id": self.id,
            "event": self.kind.as_str(),
            "at_ms": self.at_ms,
            "rain_id": self.rain,
            "data": self.data,
        })
        .to_string()
    }
}

/// A claim among the dead letters, as somebody has found it there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BuriedClaim {
    /// What it lies under: its packet id, or the whole claim if the packet has another letter.
    pub field: String,
    pub claim: Claim,
    /// Since when, ms since 1970.
    pub at_ms: i64,
    pub attempts: u32,
    pub reason: String,
}

impl BuriedClaim {
    pub fn packet(&self) -> PacketId {
        self.claim.packet.id
    }
}

impl Ledger {
    /// Records that these claims are dead, all or none. Those that are recorded already stay as they are.
    pub async fn record_dead(&self, letters: &[BuriedClaim]) -> Result<(), LedgerError> {
        if letters.is_empty() {
            return Ok(());
        }
        let mut tx = self.db.begin("recording dead claims").await?;
        for letter in letters {
            tx.tell(&Event::dead(letter)).await?;
        }
        crate::crash::point("dead.written");
        tx.commit().await
    }

    /// Forgets events that are older than `before_ms`, have no delivery, and whose fact cannot be seen again. Returns how many; at most
    /// `limit`.
    pub async fn prune_events(&self, before_ms: i64, limit: u32) -> Result<u64, LedgerError> {
        let sql = "DELETE FROM events WHERE id IN (
                     SELECT e.id FROM events AS e LEFT JOIN rains AS r ON r.id = e.rain_id
                     WHERE e.at_ms < $1 AND (e.rain_id IS NULL OR r.state = 'finished')
                       AND NOT EXISTS (SELECT 1 FROM deliveries AS d WHERE d.event_id = e.id)
                     LIMIT $2)";
        let values = vec![before_ms.into(), i64::from(limit).into()];
        self.db.write("pruning events", sql, values).await
    }

    /// Ids and kinds of the events of a rain, oldest first.
    pub async fn events_of(&self, rain: RainId) -> Result<Vec<(String, String)>, LedgerError> {
        let sql = "SELECT id, kind FROM events WHERE rain_id = $1 ORDER BY at_ms, id";
        let values = vec![sql_rain(rain).into()];
        let rows = self.db.rows("listing events", sql, values).await?;
        rows.iter()
            .map(|row| Ok((row.text(0)?, row.text(1)?)))
            .collect()
    }
}

impl Tx {
    /// Writes an event, and a delivery for each webhook that asks for its kind. One that is there changes nothing.
    pub(super) async fn tell(&mut self, event: &Event) -> Result<(), LedgerError> {
        if !self.write_event(event).await? {
            return Ok(());
        }
        // No kind is a part of another, and each stands between commas.
        let sql = "INSERT INTO deliveries (event_id, webhook_id, state, due_ms, since_ms)
                   SELECT CAST($1 AS TEXT), id, 'pending', CAST($2 AS BIGINT), CAST($2 AS BIGINT) FROM webhooks
                   WHERE enabled = 1 AND deleted_at_ms IS NULL AND events LIKE '%,' || CAST($3 AS TEXT) || ',%'
                   ORDER BY id";
        let values = vec![
            event.id.as_str().into(),
            event.at_ms.into(),
            event.kind.as_str().into(),
        ];
        self.execute(sql, values).await.map(drop)
    }

    /// Whether it is new.
    pub(super) async fn write_event(&mut self, event: &Event) -> Result<bool, LedgerError> {
        let sql = "INSERT INTO events (id, kind, rain_id, at_ms, body) VALUES ($1, $2, $3, $4, $5)
                   ON CONFLICT (id) DO NOTHING";
        let values = vec![
            event.id.as_str().into(),
            event.kind.as_str().into(),
            event.rain.map(sql_rain).into(),
            event.at_ms.into(),
            event.body().into(),
        ];
        Ok(self.execute(sql, values).await? == 1)
    }
}
