use crate::rain::{Cents, Packet, PacketId, RainId, UserId};

use super::accounts::AccountName;
use super::error::LedgerError;
use super::rains::sql_rain;
use super::{Ledger, page_rows};

/// Differences that one report names: a broken ledger has either a few or all of them.
const DIFFERENCES_MAX: i64 = 1_000;

/// What the ledger knows about a rain's money, all at one instant. Of a rain in order,
/// `funded = credited + refunded + discarded + escrow_balance`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RainTotals {
    pub funded: Cents,
    pub credited: Cents,
    pub credited_count: u64,
    pub refunded: Cents,
    pub discarded: Cents,
    pub discarded_count: u64,
    pub escrow_balance: Cents,
}

/// A packet that has been paid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credit {
    pub packet: Packet,
    pub user: UserId,
    /// ms since 1970.
    pub at_ms: i64,
}

/// Whether the books agree with themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Books {
    /// Over all accounts. Zero, or money has appeared (above) or vanished (below).
    pub sum: Cents,
    /// Accounts other than `deposits` below zero. None.
    pub negative: Vec<Overdrawn>,
    /// Accounts whose balance is not what the journals say. None.
    pub differences: Vec<Difference>,
}

impl Books {
    pub fn agree(&self) -> bool {
        self.sum == Cents::ZERO && self.negative.is_empty() && self.differences.is_empty()
    }
}

/// Names in a report on broken books are plain text: what broke them may have made a name that is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overdrawn {
    pub account: String,
    pub balance: Cents,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    pub account: String,
    /// The sum of the account's journal rows.
    pub journal: Cents,
    pub balance: Cents,
}

const TOTALS: &str = "
    SELECT (SELECT CAST(COALESCE(SUM(cents), 0) AS BIGINT) FROM entries WHERE rain_id = $1 AND to_account = $2),
           (SELECT CAST(COALESCE(SUM(cents), 0) AS BIGINT) FROM credits WHERE packet_id BETWEEN $3 AND $4),
           (SELECT COUNT(*) FROM credits WHERE packet_id BETWEEN $3 AND $4),
           (SELECT CAST(COALESCE(SUM(cents), 0) AS BIGINT) FROM entries WHERE rain_id = $1 AND kind = 'refund'),
           (SELECT CAST(COALESCE(SUM(cents), 0) AS BIGINT) FROM entries WHERE rain_id = $1 AND kind = 'discard'),
           (SELECT COUNT(*) FROM entries WHERE rain_id = $1 AND kind = 'discard'),
           (SELECT balance_cents FROM accounts WHERE name = $2)";

const DIFFERENCES: &str = "
    SELECT account, CAST(SUM(journal) AS BIGINT), CAST(SUM(balance) AS BIGINT) FROM (
        SELECT 'user:' || user_id AS account, cents AS journal, CAST(0 AS BIGINT) AS balance FROM credits
        UNION ALL
        SELECT 'escrow:' || (packet_id >> 32), -SUM(cents), 0 FROM credits GROUP BY packet_id >> 32
        UNION ALL
        SELECT to_account, cents, 0 FROM entries
        UNION ALL
        SELECT from_account, -cents, 0 FROM entries
        UNION ALL
        SELECT name, 0, balance_cents FROM accounts
    ) AS side
    GROUP BY account
    HAVING SUM(journal) <> SUM(balance)
    ORDER BY account
    LIMIT $1";

impl Ledger {
    pub async fn rain_totals(&self, id: RainId) -> Result<RainTotals, LedgerError> {
        let mut tx = self.db.begin_audit("adding up a rain").await?;
        let escrow = AccountName::Escrow(id).to_string();
        let (first, last) = packets_of(id);
        let values = vec![
            sql_rain(id).into(),
            escrow.into(),
            first.into(),
            last.into(),
        ];
        let row = tx
            .row(TOTALS, values)
            .await?
            .ok_or(LedgerError::NoRain(id))?;
        tx.roll_back().await;
        Ok(RainTotals {
            funded: Cents(row.i64(0)?),
            credited: Cents(row.i64(1)?),
            credited_count: row.i64(2)? as u64,
            refunded: Cents(row.i64(3)?),
            discarded: Cents(row.i64(4)?),
            discarded_count: row.i64(5)? as u64,
            escrow_balance: row
                .i64_or_null(6)?
                .map(Cents)
                .ok_or(LedgerError::NoRain(id))?,
        })
    }

    /// The credited packets of a rain in the order of their index, from the one after `after` on.
    pub async fn credits_after(
        &self,
        rain: RainId,
        after: Option<u32>,
        limit: u32,
    ) -> Result<Vec<Credit>, LedgerError> {
        let (first, last) = packets_of(rain);
        let from = after.map_or(first, |index| first + i64::from(index) + 1);
        let sql = "SELECT packet_id, cents, user_id, at_ms FROM credits
                   WHERE packet_id >= $1 AND packet_id <= $2 ORDER BY packet_id LIMIT $3";
        let values = vec![from.into(), last.into(), page_rows(limit).into()];
        let rows = self
            .db
            .rows("listing the credits of a rain", sql, values)
            .await?;
        rows.iter()
            .map(|row| {
                let id = PacketId::new(row.i64(0)? as u64).map_err(|e| row.broken(e))?;
                Ok(Credit {
                    packet: Packet {
                        id,
                        cents: Cents(row.i64(1)?),
                    },
                    user: row.parse(2)?,
                    at_ms: row.i64(3)?,
                })
            })
            .collect()
    }

    /// The discarded packets of a rain by packet id, each with the user whose claim it was, as the note begins with.
    pub async fn discarded_claims(
        &self,
        rain: RainId,
    ) -> Result<Vec<(Option<UserId>, Packet)>, LedgerError> {
        let sql = "SELECT packet_id, cents, note FROM entries WHERE rain_id = $1 AND kind = 'discard' ORDER BY packet_id";
        let doing = "listing the discarded claims of a rain";
        let rows = self
            .db
            .rows(doing, sql, vec![sql_rain(rain).into()])
            .await?;
        rows.iter()
            .map(|row| {
                let id = PacketId::new(row.i64(0)? as u64).map_err(|e| row.broken(e))?;
                let cents = Cents(row.i64(1)?);
                let note = row.text_or_null(2)?;
                let user = note.as_deref().and_then(|note| note.split_once(": "));
                let user = user.and_then(|(user, _)| UserId::new(user).ok());
                Ok((user, Packet { id, cents }))
            })
            .collect()
    }

    /// The discarded packets of a rain by packet id.
    pub async fn discarded(&self, rain: RainId) -> Result<Vec<Packet>, LedgerError> {
        let sql = "SELECT packet_id, cents FROM entries WHERE rain_id = $1 AND kind = 'discard' ORDER BY packet_id";
        let rows = self
            .db
            .rows(
                "listing the discards of a rain",
                sql,
                vec![sql_rain(rain).into()],
            )
            .await?;
        rows.iter()
            .map(|row| {
                let id = PacketId::new(row.i64(0)? as u64).map_err(|e| row.broken(e))?;
                Ok(Packet {
                    id,
                    cents: Cents(row.i64(1)?),
                })
            })
            .collect()
    }

    /// Claims of a rain that a person gave up although their packet was paid to another: who would have had which packet.
    pub async fn dropped_claims(
        &self,
        rain: RainId,
    ) -> Result<Vec<(PacketId, UserId)>, LedgerError> {
        let (first, last) = packets_of(rain);
        let sql = "SELECT packet_id, user_id FROM dropped_claims WHERE packet_id BETWEEN $1 AND $2 ORDER BY packet_id, user_id";
        let rows = self
            .db
            .rows(
                "listing dropped claims",
                sql,
                vec![first.into(), last.into()],
            )
            .await?;
        rows.iter()
            .map(|row| {
                let id = PacketId::new(row.i64(0)? as u64).map_err(|e| row.broken(e))?;
                Ok((id, row.parse(1)?))
            })
            .collect()
    }

    /// Adds up everything, at one instant: a scan of both journals, about two seconds per million credits.
    pub async fn books(&self) -> Result<Books, LedgerError> {
        let mut tx = self.db.begin_audit("auditing the books").await?;
        let sql = "SELECT CAST(COALESCE(SUM(balance_cents), 0) AS BIGINT) FROM accounts";
        let sum = match tx.row(sql, vec![]).await? {
            Some(row) => Cents(row.i64(0)?),
            None => Cents::ZERO,
        };
        let sql = "SELECT name, balance_cents FROM accounts
                   WHERE balance_cents < 0 AND name <> 'deposits' ORDER BY name LIMIT $1";
        let negative = tx.rows(sql, vec![DIFFERENCES_MAX.into()]).await?;
        let differences = tx.rows(DIFFERENCES, vec![DIFFERENCES_MAX.into()]).await?;
        tx.roll_back().await;
        let negative = negative.iter().map(|row| {
            Ok(Overdrawn {
                account: row.text(0)?,
                balance: Cents(row.i64(1)?),
            })
        });
        let differences = differences.iter().map(|row| {
            let (journal, balance) = (Cents(row.i64(1)?), Cents(row.i64(2)?));
            Ok(Difference {
                account: row.text(0)?,
                journal,
                balance,
            })
        });
        Ok(Books {
            sum,
            negative: negative.collect::<Result<_, LedgerError>>()?,
            differences: differences.collect::<Result<_, LedgerError>>()?,
        })
    }
}

/// The packet ids that a rain may have, both ends included.
pub(super) fn packets_of(rain: RainId) -> (i64, i64) {
    let first = sql_rain(rain) << 32;
    (first, first + i64::from(u32::MAX))
}
