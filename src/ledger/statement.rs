use std::fmt;
use std::str::FromStr;

use crate::rain::{Cents, PacketId, RainId};

use super::accounts::AccountName;
use super::books::packets_of;
use super::db::Row;
use super::entry::Kind;
use super::error::LedgerError;
use super::rains::rain_id;
use super::{Ledger, page_rows};

/// One movement of an account's money.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Hand it back as `after` to continue below this line.
    pub cursor: Cursor,
    pub at_ms: i64,
    pub kind: Kind,
    /// Above zero: came in. Below: went out.
    pub cents: Cents,
    /// Where it came from or went to.
    pub other: AccountName,
    pub rain: Option<RainId>,
    pub packet: Option<PacketId>,
    /// For people: the reason of a discard, for example.
    pub note: Option<String>,
}

/// A line's place in a statement, as text `at_ms.journal.id`. Lines are ordered by it, so those of the same millisecond are too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cursor {
    at_ms: i64,
    /// 0: credits, 1: entries.
    journal: i64,
    id: i64,
}

/// Above every line.
const TOP: Cursor = Cursor {
    at_ms: i64::MAX,
    journal: i64::MAX,
    id: i64::MAX,
};

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.at_ms, self.journal, self.id)
    }
}

impl FromStr for Cursor {
    type Err = LedgerError;
    fn from_str(text: &str) -> Result<Cursor, LedgerError> {
        let mut parts = text.splitn(3, '.').map(|part| part.parse().ok());
        let mut cursor = || {
            let (at_ms, journal, id) = (parts.next()??, parts.next()??, parts.next()??);
            Some(Cursor { at_ms, journal, id })
        };
        cursor().ok_or_else(|| LedgerError::Cursor(text.chars().take(100).collect()))
    }
}

// Each of the four parts is one index range; those that cannot hold a line of this kind of account get an empty one. A page of an
// escrow sorts all its credits (measured: 0.4 s for a million). In SQLite a user's credits are found by a scan (0.1 s for a million;
// the migration says why).
const STATEMENT: &str = "
    SELECT at_ms, journal, id, kind, cents, other, rain_id, packet_id, note FROM (
        SELECT at_ms, CAST(1 AS BIGINT) AS journal, id, kind, cents, from_account AS other, rain_id, packet_id, note
        FROM entries WHERE to_account = $1
        UNION ALL
        SELECT at_ms, CAST(1 AS BIGINT), id, kind, -cents, to_account, rain_id, packet_id, note
        FROM entries WHERE from_account = $1
        UNION ALL
        SELECT at_ms, CAST(0 AS BIGINT), packet_id, 'credit', cents, 'escrow:' || (packet_id >> 32), packet_id >> 32, packet_id, NULL
        FROM credits WHERE user_id = $2
        UNION ALL
        SELECT at_ms, CAST(0 AS BIGINT), packet_id, 'credit', -cents, 'user:' || user_id, packet_id >> 32, packet_id, NULL
        FROM credits WHERE packet_id BETWEEN $3 AND $4
    ) AS line
    WHERE (at_ms, journal, id) < ($5, $6, $7)
    ORDER BY at_ms DESC, journal DESC, id DESC
    LIMIT $8";

impl Ledger {
    /// The lines of an account, newest first; `after` is the cursor of the last line of the page before.
    pub async fn statement(
        &self,
        account: &AccountName,
        after: Option<Cursor>,
        limit: u32,
    ) -> Result<Vec<Line>, LedgerError> {
        let (user, first_packet, last_packet) = match account {
            AccountName::User(user) => (user.as_str(), 1, 0),
            AccountName::Escrow(rain) => {
                let (first, last) = packets_of(*rain);
                ("", first, last)
            }
            AccountName::Sponsor(_) | AccountName::Deposits => ("", 1, 0),
        };
        let after = after.unwrap_or(TOP);
        let values = vec![
            account.to_string().into(),
            user.into(),
            first_packet.into(),
            last_packet.into(),
            after.at_ms.into(),
            after.journal.into(),
            after.id.into(),
            page_rows(limit).into(),
        ];
        let rows = self
            .db
            .rows("reading a statement", STATEMENT, values)
            .await?;
        rows.iter().map(read_line).collect()
    }
}

fn read_line(row: &Row) -> Result<Line, LedgerError> {
    let cursor = Cursor {
        at_ms: row.i64(0)?,
        journal: row.i64(1)?,
        id: row.i64(2)?,
    };
    let packet = row
        .i64_or_null(7)?
        .map(|id| PacketId::new(id as u64))
        .transpose();
    Ok(Line {
        cursor,
        at_ms: cursor.at_ms,
        kind: row.parse(3)?,
        cents: Cents(row.i64(4)?),
        other: row.parse(5)?,
        rain: row.i64_or_null(6)?.map(|_| rain_id(row, 6)).transpose()?,
        packet: packet.map_err(|e| row.broken(e))?,
        note: row.text_or_null(8)?,
    })
}
