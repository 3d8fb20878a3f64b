//! Who is logged in to the console, on all admin processes.

use super::Ledger;
use super::db::Row;
use super::error::LedgerError;

/// Sessions of one key: another ends the oldest. With 1,000 keys the table stays below 20,100 rows.
pub const CONSOLE_SESSIONS_PER_KEY: u32 = 20;

/// A session of the console.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsoleSession {
    /// SHA-256 of the cookie, hex.
    pub hash: String,
    pub key_id: String,
    /// SHA-256 of the secret that logged in, hex.
    pub secret_hash: String,
    pub created_at_ms: i64,
    /// When somebody last did something with it.
    pub seen_at_ms: i64,
}

impl ConsoleSession {
    fn read(row: &Row) -> Result<ConsoleSession, LedgerError> {
        Ok(ConsoleSession {
            hash: row.text(0)?,
            key_id: row.text(1)?,
            secret_hash: row.text(2)?,
            created_at_ms: row.i64(3)?,
            seen_at_ms: row.i64(4)?,
        })
    }
}

impl Ledger {
    /// Begins a session, and forgets those that began before `begun_since_ms` or were last seen before `seen_since_ms`.
    pub async fn begin_console_session(
        &self,
        session: &ConsoleSession,
        begun_since_ms: i64,
        seen_since_ms: i64,
    ) -> Result<(), LedgerError> {
        let mut tx = self.db.begin("beginning a session").await?;
        let old = "DELETE FROM console_sessions WHERE created_at_ms < $1 OR seen_at_ms < $2";
        tx.execute(old, vec![begun_since_ms.into(), seen_since_ms.into()])
            .await?;
        let beyond = "DELETE FROM console_sessions WHERE key_id = $1 AND hash NOT IN (
                          SELECT hash FROM console_sessions WHERE key_id = $1 ORDER BY created_at_ms DESC, hash LIMIT $2)";
        let others = i64::from(CONSOLE_SESSIONS_PER_KEY) - 1;
        tx.execute(beyond, vec![session.key_id.as_str().into(), others.into()])
            .await?;
        let insert = "INSERT INTO console_sessions (hash, key_id, secret_hash, created_at_ms, seen_at_ms) VALUES ($1, $2, $3, $4, $5)";
        let values = vec![
            session.hash.as_str().into(),
            session.key_id.as_str().into(),
            session.secret_hash.as_str().into(),
            session.created_at_ms.into(),
            session.seen_at_ms.into(),
        ];
        tx.execute(insert, values).await?;
        tx.commit().await
    }

    /// Whether its time is over is for the caller to say.
    pub async fn console_session(&self, hash: &str) -> Result<Option<ConsoleSession>, LedgerError> {
        let sql = "SELECT hash, key_id, secret_hash, created_at_ms, seen_at_ms FROM console_sessions WHERE hash = $1";
        let row = self.db.row("reading a session", sql, vec![hash.into()]);
        row.await?.as_ref().map(ConsoleSession::read).transpose()
    }

    /// Somebody did something with it.
    pub async fn console_session_seen(&self, hash: &str, at_ms: i64) -> Result<(), LedgerError> {
        let sql = "UPDATE console_sessions SET seen_at_ms = $2 WHERE hash = $1 AND seen_at_ms < $2";
        let values = vec![hash.into(), at_ms.into()];
        self.db.write("noting a session", sql, values).await?;
        Ok(())
    }

    /// Ends a session; one that has ended stays so.
    pub async fn end_console_session(&self, hash: &str) -> Result<(), LedgerError> {
        let sql = "DELETE FROM console_sessions WHERE hash = $1";
        let values = vec![hash.into()];
        self.db.write("ending a session", sql, values).await?;
        Ok(())
    }
}
