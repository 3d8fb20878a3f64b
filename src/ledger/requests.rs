//! Writes of the admin API by their idempotency key, and the log of who did what.
//!
//! A write is *begun* (a row that its request holds for a few seconds, and renews while it works), then *ended* in one transaction with
//! its line in the log. A process that dies in between leaves a row whose hold runs out: a repeat takes it over and does the work
//! again, which finds what was done, since everything beneath has keys of its own; if nobody repeats it, the row is swept into the log as
//! *unknown*. So no write is without a line.

use super::db::{Row, Tx};
use super::error::LedgerError;
use super::{Ledger, page_rows};

/// A write as it begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// Of the request, in answers and log lines.
    pub request_id: String,
    /// Id and name of the key that asks.
    pub caller: String,
    pub caller_name: String,
    pub method: String,
    pub path: String,
    /// The name of the route.
    pub operation: String,
    /// Like `rain:7`, or empty.
    pub target: String,
    /// JSON: the target before.
    pub before: Option<String>,
}

/// What `begin_request` found under an idempotency key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Begun {
    /// It is ours to do.
    Ours,
    /// It was done: the answer.
    Answered { status: u16, answer: String },
    /// Another request is at work on it.
    AtWork,
    /// The key was used for another request, done or at work.
    Different,
}

/// How a write ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    pub at_ms: i64,
    pub status: u16,
    /// `done`, `refused: …`, `failed: …`
    pub outcome: String,
    /// JSON for the log.
    pub after: Option<String>,
    /// Kept for repeats of the request; `None`: nothing was done, and the key is free again.
    pub answer: Option<String>,
}

/// A line of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    pub id: i64,
    pub at_ms: i64,
    pub write: Write,
    /// 0 when nobody knows how it ended.
    pub status: u16,
    pub outcome: String,
    pub after: Option<String>,
}

impl Ledger {
    /// Begins the write with this idempotency key, unless it was begun before. `holder` is another text for each try.
    pub async fn begin_request(
        &self,
        key: &str,
        fingerprint: &str,
        holder: &str,
        write: &Write,
        now_ms: i64,
        hold_ms: i64,
    ) -> Result<Begun, LedgerError> {
        let mut tx = self.db.begin("beginning a request").await?;
        let begun = tx
            .begin_request(key, fingerprint, (holder, now_ms + hold_ms), write, now_ms)
            .await?;
        tx.commit().await?;
        Ok(begun)
    }

    /// What [`Ledger::begin_request`] would find, which begins nothing; `None` where it would be the caller's to do.
    pub async fn begun_request(
        &self,
        key: &str,
        fingerprint: &str,
        now_ms: i64,
    ) -> Result<Option<Begun>, LedgerError> {
        let what = "looking for a request";
        let row = self.db.row(what, REQUEST, vec![key.into()]).await?;
        row.map_or(Ok(None), |row| begun(&row, fingerprint, now_ms))
    }

    /// Says that the holder is still at work.
    pub async fn hold_request(
        &self,
        key: &str,
        holder: &str,
        until_ms: i64,
    ) -> Result<(), LedgerError> {
        let sql = "UPDATE requests SET held_until_ms = $3 WHERE key = $1 AND holder = $2 AND status IS NULL";
        let values = vec![key.into(), holder.into(), until_ms.into()];
        self.db.write("holding a request", sql, values).await?;
        Ok(())
    }

    /// Ends a write and logs it, both or neither. If another request has taken the key over, only the log is written.
    pub async fn end_request(
        &self,
        key: &str,
        holder: &str,
        write: &Write,
        end: &End,
    ) -> Result<(), LedgerError> {
        let mut tx = self.db.begin("ending a request").await?;
        match &end.answer {
            Some(answer) => {
                let sql = "UPDATE requests SET status = $3, answer = $4 WHERE key = $1 AND holder = $2 AND status IS NULL";
                let values = vec![
                    key.into(),
                    holder.into(),
                    i64::from(end.status).into(),
                    answer.as_str().into(),
                ];
                tx.execute(sql, values).await?;
            }
            None => {
                let sql = "DELETE FROM requests WHERE key = $1 AND holder = $2 AND status IS NULL";
                tx.execute(sql, vec![key.into(), holder.into()]).await?;
            }
        }
        tx.log(write, end).await?;
        tx.commit().await
    }

    /// A line for what was never begun as a write: one that was refused, a login.
    pub async fn log_alone(&self, write: &Write, end: &End) -> Result<(), LedgerError> {
        let mut tx = self.db.begin("writing a line of the log").await?;
        tx.log(write, end).await?;
        tx.commit().await
    }

    /// Logs writes whose process ended before it could say how they did, and forgets answers that are older than `answers_since_ms`.
    /// Returns how many of the first there were.
    pub async fn sweep_requests(
        &self,
        now_ms: i64,
        abandoned_since_ms: i64,
        answers_since_ms: i64,
    ) -> Result<u64, LedgerError> {
        let mut tx = self.db.begin("sweeping requests").await?;
        let sql = "DELETE FROM requests WHERE status IS NULL AND held_until_ms < $1
                   RETURNING request_id, caller, caller_name, method, path, operation, target, before";
        let abandoned = tx.rows(sql, vec![abandoned_since_ms.into()]).await?;
        let end = End {
            at_ms: now_ms,
            status: 0,
            outcome: "unknown: the process ended before it could say".into(),
            after: None,
            answer: None,
        };
        for row in &abandoned {
            tx.log(&read_write(row, 0)?, &end).await?;
        }
        let sql = "DELETE FROM requests WHERE status IS NOT NULL AND created_at_ms < $1";
        tx.execute(sql, vec![answers_since_ms.into()]).await?;
        tx.commit().await?;
        Ok(abandoned.len() as u64)
    }

    /// Lines of the log, newest first, those before line `before`; of one target or all.
    pub async fn log_lines(
        &self,
        target: Option<&str>,
        before: Option<i64>,
        limit: u32,
    ) -> Result<Vec<LogLine>, LedgerError> {
        let of_all = "SELECT request_id, caller, caller_name, method, path, operation, target, before, id, at_ms, status, outcome, after
                      FROM log WHERE id < $1 ORDER BY id DESC LIMIT $2";
        let of_one = "SELECT request_id, caller, caller_name, method, path, operation, target, before, id, at_ms, status, outcome, after
                      FROM log WHERE id < $1 AND target = $3 ORDER BY id DESC LIMIT $2";
        let mut values = vec![before.unwrap_or(i64::MAX).into(), page_rows(limit).into()];
        values.extend(target.map(Into::into));
        let sql = if target.is_some() { of_one } else { of_all };
        let rows = self.db.rows("reading the log", sql, values).await?;
        rows.iter().map(read_line).collect()
    }
}

const REQUEST: &str =
    "SELECT fingerprint, status, answer, held_until_ms, holder FROM requests WHERE key = $1";

/// What a row of [`REQUEST`] says to a request; `None` when nobody holds it any more.
fn begun(row: &Row, fingerprint: &str, now_ms: i64) -> Result<Option<Begun>, LedgerError> {
    if row.text(0)? != fingerprint {
        return Ok(Some(Begun::Different));
    }
    if let Some(status) = row.i64_or_null(1)? {
        let answer = row.text_or_null(2)?.unwrap_or_default();
        return Ok(Some(Begun::Answered {
            status: status as u16,
            answer,
        }));
    }
    Ok((row.i64(3)? >= now_ms).then_some(Begun::AtWork))
}

impl Tx {
    async fn begin_request(
        &mut self,
        key: &str,
        fingerprint: &str,
        (holder, until_ms): (&str, i64),
        write: &Write,
        now_ms: i64,
    ) -> Result<Begun, LedgerError> {
        let sql = "INSERT INTO requests (key, fingerprint, holder, held_until_ms, request_id, caller, caller_name, method, path,
                                         operation, target, before, created_at_ms)
                   VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)
                   ON CONFLICT (key) DO NOTHING";
        let mut values = vec![
            key.into(),
            fingerprint.into(),
            holder.into(),
            until_ms.into(),
        ];
        values.extend(write_values(write));
        values.push(now_ms.into());
        if self.execute(sql, values).await? == 1 {
            return Ok(Begun::Ours);
        }
        let Some(row) = self.row(REQUEST, vec![key.into()]).await? else {
            return Ok(Begun::AtWork); // it has just been given up
        };
        if let Some(begun) = begun(&row, fingerprint, now_ms)? {
            return Ok(begun);
        }
        let sql = "UPDATE requests SET holder = $3, held_until_ms = $4 WHERE key = $1 AND holder = $2 AND status IS NULL";
        let values = vec![
            key.into(),
            row.text(4)?.into(),
            holder.into(),
            until_ms.into(),
        ];
        let taken = self.execute(sql, values).await? == 1;
        Ok(if taken { Begun::Ours } else { Begun::AtWork })
    }

    async fn log(&mut self, write: &Write, end: &End) -> Result<(), LedgerError> {
        let sql = "INSERT INTO log (request_id, caller, caller_name, method, path, operation, target, before, at_ms, status, outcome, after)
                   VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)";
        let mut values = write_values(write);
        values.extend([
            end.at_ms.into(),
            i64::from(end.status).into(),
            end.outcome.as_str().into(),
            end.after.clone().into(),
        ]);
        self.execute(sql, values).await.map(drop)
    }
}

fn write_values(write: &Write) -> Vec<super::db::Value> {
    vec![
        write.request_id.as_str().into(),
        write.caller.as_str().into(),
        write.caller_name.as_str().into(),
        write.method.as_str().into(),
        write.path.as_str().into(),
        write.operation.as_str().into(),
        write.target.as_str().into(),
        write.before.clone().into(),
    ]
}

fn read_write(row: &Row, first: usize) -> Result<Write, LedgerError> {
    Ok(Write {
        request_id: row.text(first)?,
        caller: row.text(first + 1)?,
        caller_name: row.text(first + 2)?,
        method: row.text(first + 3)?,
        path: row.text(first + 4)?,
        operation: row.text(first + 5)?,
        target: row.text(first + 6)?,
        before: row.text_or_null(first + 7)?,
    })
}

fn read_line(row: &Row) -> Result<LogLine, LedgerError> {
    Ok(LogLine {
        write: read_write(row, 0)?,
        id: row.i64(8)?,
        at_ms: row.i64(9)?,
        status: row.i64(10)? as u16,
        outcome: row.text(11)?,
        after: row.text_or_null(12)?,
    })
}
