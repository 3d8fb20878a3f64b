use std::fmt;
use std::str::FromStr;

use crate::rain::{Cents, PacketId, RainId};

use super::accounts::AccountName;
use super::db::Tx;
use super::error::LedgerError;

/// What a line in a journal is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// deposits → sponsor
    Deposit,
    /// sponsor → escrow
    Fund,
    /// escrow → user
    Credit,
    /// escrow → sponsor: what nobody won
    Refund,
    /// escrow → sponsor: a claim that was won and cannot be credited
    Discard,
}

impl Kind {
    pub const ALL: [Kind; 5] = [
        Kind::Deposit,
        Kind::Fund,
        Kind::Credit,
        Kind::Refund,
        Kind::Discard,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Deposit => "deposit",
            Kind::Fund => "fund",
            Kind::Credit => "credit",
            Kind::Refund => "refund",
            Kind::Discard => "discard",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is not a kind of entry: deposit, fund, credit, refund or discard")]
pub struct ParseKindError(String);

impl FromStr for Kind {
    type Err = ParseKindError;
    fn from_str(text: &str) -> Result<Kind, ParseKindError> {
        let found = Kind::ALL.into_iter().find(|kind| kind.as_str() == text);
        found.ok_or_else(|| ParseKindError(text.to_owned()))
    }
}

/// The answer to a change that has a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Booking {
    Done,
    /// It was done before, exactly so.
    Existed,
    /// The key was used before for something else, named here. Nothing was changed.
    Different {
        from: AccountName,
        to: AccountName,
        cents: Cents,
    },
}

/// A row to be written to the journal of entries.
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) kind: Kind,
    pub(super) from: AccountName,
    pub(super) to: AccountName,
    pub(super) cents: Cents,
    pub(super) rain: Option<RainId>,
    /// Of a discard.
    pub(super) packet: Option<PacketId>,
    pub(super) at_ms: i64,
    pub(super) note: Option<String>,
}

/// What the journal holds under a key.
pub(super) struct Earlier {
    pub(super) from: AccountName,
    pub(super) to: AccountName,
    pub(super) cents: Cents,
}

impl Earlier {
    pub(super) fn compared_with(self, entry: &Entry) -> Booking {
        let Earlier { from, to, cents } = self;
        if from == entry.from && to == entry.to && cents == entry.cents {
            Booking::Existed
        } else {
            Booking::Different { from, to, cents }
        }
    }
}

pub(super) enum Recorded {
    New,
    Earlier(Earlier),
}

impl Tx {
    /// Writes the row, and by it moves the money, unless the journal has its key. A refusal by the database (no such account, too
    /// little money) is `Refused`; the transaction is then over, and the caller finds out why.
    pub(super) async fn record(&mut self, entry: &Entry) -> Result<Recorded, LedgerError> {
        let sql = "INSERT INTO entries (key, kind, from_account, to_account, cents, rain_id, packet_id, at_ms, note)
                   VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
                   ON CONFLICT (key) DO NOTHING";
        let values = vec![
            entry.key.as_str().into(),
            entry.kind.as_str().into(),
            entry.from.to_string().into(),
            entry.to.to_string().into(),
            entry.cents.0.into(),
            entry.rain.map(|rain| i64::from(rain.get())).into(),
            entry.packet.map(sql_packet).into(),
            entry.at_ms.into(),
            entry.note.clone().into(),
        ];
        if self.execute(sql, values).await? == 1 {
            return Ok(Recorded::New);
        }
        let earlier = self.earlier(&entry.key).await?;
        earlier.map(Recorded::Earlier).ok_or(LedgerError::Broken {
            doing: "reading an entry that was there",
            source: sqlx::Error::RowNotFound,
        })
    }

    pub(super) async fn earlier(&mut self, key: &str) -> Result<Option<Earlier>, LedgerError> {
        let sql = "SELECT from_account, to_account, cents FROM entries WHERE key = $1";
        let Some(row) = self.row(sql, vec![key.into()]).await? else {
            return Ok(None);
        };
        Ok(Some(Earlier {
            from: row.parse(0)?,
            to: row.parse(1)?,
            cents: Cents(row.i64(2)?),
        }))
    }
}

/// A rain's largest packet id is below 2⁶³ (`RainId::MAX`), so it is a positive BIGINT.
pub(super) fn sql_packet(packet: PacketId) -> i64 {
    packet.get() as i64
}
