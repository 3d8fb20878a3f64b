//! The thin layer under the ledger: one way to say a statement to either store.
//!
//! Statements are written once. Both stores read `$1`, `ON CONFLICT`, `RETURNING` and row values alike; where they differ
//! (arrays, locks, catalogues) the caller hands over one text for each.

use std::future::Future;
use std::io;
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgPool, PgRow};
use sqlx::sqlite::{SqlitePool, SqliteRow};
use sqlx::{Postgres, Row as _, Sqlite};

use super::error::LedgerError;

/// No answer to one statement for this long means that the store is away. Above every limit that the store sets itself
/// (`STATEMENT_MS_MAX`, `BUSY_MS_MAX`), so a store that works always answers first, and with a better reason.
const CALL_MS_MAX: u64 = 15_000;
/// The same for the audit's readers, which scan whole journals.
const AUDIT_MS_MAX: u64 = 600_000;

#[derive(Clone)]
pub(super) enum Db {
    Sqlite {
        /// One connection: SQLite has one writer at a time, and waiting here costs less than its lock.
        writer: SqlitePool,
        readers: SqlitePool,
    },
    Postgres(PgPool),
}

/// A value bound to `$n`.
#[derive(Clone, Debug)]
pub(super) enum Value {
    I64(Option<i64>),
    Text(Option<String>),
    Blob(Vec<u8>),
    /// An array in PostgreSQL, the text of a JSON array in SQLite (for `json_each`).
    I64s(Vec<i64>),
    Texts(Vec<String>),
}

impl From<i64> for Value {
    fn from(value: i64) -> Value {
        Value::I64(Some(value))
    }
}

impl From<Option<i64>> for Value {
    fn from(value: Option<i64>) -> Value {
        Value::I64(value)
    }
}

impl From<String> for Value {
    fn from(value: String) -> Value {
        Value::Text(Some(value))
    }
}

impl From<&str> for Value {
    fn from(value: &str) -> Value {
        Value::Text(Some(value.to_owned()))
    }
}

impl From<Option<String>> for Value {
    fn from(value: Option<String>) -> Value {
        Value::Text(value)
    }
}

pub(super) struct Row {
    row: AnyRow,
    doing: &'static str,
}

enum AnyRow {
    Sqlite(SqliteRow),
    Postgres(PgRow),
}

macro_rules! getter {
    ($name:ident, $type:ty) => {
        pub(super) fn $name(&self, column: usize) -> Result<$type, LedgerError> {
            match &self.row {
                AnyRow::Sqlite(row) => row.try_get(column),
                AnyRow::Postgres(row) => row.try_get(column),
            }
            .map_err(|e| LedgerError::from_driver(self.doing, e))
        }
    };
}

impl Row {
    getter!(i64, i64);
    getter!(text, String);
    getter!(blob, Vec<u8>);
    getter!(i64_or_null, Option<i64>);
    getter!(text_or_null, Option<String>);

    /// A value that reads as text but makes no sense to this program.
    pub(super) fn broken(
        &self,
        fault: impl std::error::Error + Send + Sync + 'static,
    ) -> LedgerError {
        LedgerError::from_driver(self.doing, sqlx::Error::Decode(Box::new(fault)))
    }

    /// Text in one of our own forms (an id, a state, an account name).
    pub(super) fn parse<T>(&self, column: usize) -> Result<T, LedgerError>
    where
        T: std::str::FromStr<Err: std::error::Error + Send + Sync + 'static>,
    {
        self.text(column)?.parse().map_err(|e| self.broken(e))
    }
}

enum AnyConn {
    Sqlite(PoolConnection<Sqlite>),
    Postgres(PoolConnection<Postgres>),
}

/// A connection out of its pool. It goes back only when its last statement has been answered and no transaction is open: one that was
/// dropped in the middle, by an error or a cancelled task, is closed, and the store takes back what was not committed.
struct Conn {
    conn: AnyConn,
    doing: &'static str,
    call_ms_max: u64,
    reusable: bool,
}

impl Drop for Conn {
    fn drop(&mut self) {
        if !self.reusable {
            match &mut self.conn {
                AnyConn::Sqlite(conn) => conn.close_on_drop(),
                AnyConn::Postgres(conn) => conn.close_on_drop(),
            }
        }
    }
}

macro_rules! bound {
    ($sql:expr, $values:expr, $array:ident => $bound_array:expr) => {{
        let mut query = sqlx::query($sql);
        for value in $values {
            query = match value {
                Value::I64(value) => query.bind(value),
                Value::Text(value) => query.bind(value),
                Value::Blob(value) => query.bind(value),
                Value::I64s($array) => query.bind($bound_array),
                Value::Texts($array) => query.bind($bound_array),
            };
        }
        query
    }};
}

impl Conn {
    async fn rows(
        &mut self,
        sql: &'static str,
        values: Vec<Value>,
    ) -> Result<Vec<Row>, LedgerError> {
        let doing = self.doing;
        let row = |row| Row { row, doing };
        let rows = match &mut self.conn {
            AnyConn::Sqlite(conn) => {
                let query = bound!(sql, values, array => json(&array)).fetch_all(&mut **conn);
                let rows = bounded(self.call_ms_max, query).await;
                rows.map(|rows| rows.into_iter().map(AnyRow::Sqlite).map(row).collect())
            }
            AnyConn::Postgres(conn) => {
                let query = bound!(sql, values, array => array).fetch_all(&mut **conn);
                let rows = bounded(self.call_ms_max, query).await;
                rows.map(|rows| rows.into_iter().map(AnyRow::Postgres).map(row).collect())
            }
        };
        rows.map_err(|e| LedgerError::from_driver(doing, e))
    }

    async fn execute(&mut self, sql: &'static str, values: Vec<Value>) -> Result<u64, LedgerError> {
        let done = match &mut self.conn {
            AnyConn::Sqlite(conn) => {
                let query = bound!(sql, values, array => json(&array)).execute(&mut **conn);
                bounded(self.call_ms_max, query)
                    .await
                    .map(|done| done.rows_affected())
            }
            AnyConn::Postgres(conn) => {
                let query = bound!(sql, values, array => array).execute(&mut **conn);
                bounded(self.call_ms_max, query)
                    .await
                    .map(|done| done.rows_affected())
            }
        };
        done.map_err(|e| LedgerError::from_driver(self.doing, e))
    }

    /// BEGIN, COMMIT and ROLLBACK, which no store prepares.
    async fn control(
        &mut self,
        sqlite: &'static str,
        postgres: &'static str,
    ) -> Result<(), LedgerError> {
        let done = match &mut self.conn {
            AnyConn::Sqlite(conn) => {
                let query = sqlx::raw_sql(sqlite).execute(&mut **conn);
                bounded(self.call_ms_max, query).await.map(drop)
            }
            AnyConn::Postgres(conn) => {
                let query = sqlx::raw_sql(postgres).execute(&mut **conn);
                bounded(self.call_ms_max, query).await.map(drop)
            }
        };
        done.map_err(|e| LedgerError::from_driver(self.doing, e))
    }
}

fn json<T: serde::Serialize>(array: &[T]) -> String {
    serde_json::to_string(array).expect("numbers and text are always JSON")
}

async fn bounded<T>(
    ms_max: u64,
    call: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, sqlx::Error> {
    match tokio::time::timeout(Duration::from_millis(ms_max), call).await {
        Ok(answer) => answer,
        Err(_) => Err(sqlx::Error::Io(io::Error::new(
            io::ErrorKind::TimedOut,
            format!("no answer within {ms_max} ms"),
        ))),
    }
}

/// A transaction. Dropped without a commit, it has done nothing.
pub(super) struct Tx(Conn);

impl Tx {
    pub(super) async fn rows(
        &mut self,
        sql: &'static str,
        values: Vec<Value>,
    ) -> Result<Vec<Row>, LedgerError> {
        self.0.rows(sql, values).await
    }

    pub(super) async fn row(
        &mut self,
        sql: &'static str,
        values: Vec<Value>,
    ) -> Result<Option<Row>, LedgerError> {
        Ok(self.0.rows(sql, values).await?.pop())
    }

    /// The number of rows written.
    pub(super) async fn execute(
        &mut self,
        sql: &'static str,
        values: Vec<Value>,
    ) -> Result<u64, LedgerError> {
        self.0.execute(sql, values).await
    }

    pub(super) async fn commit(mut self) -> Result<(), LedgerError> {
        self.0.control("COMMIT", "COMMIT").await?;
        self.0.reusable = true;
        Ok(())
    }

    /// The orderly end of a transaction that was refused: its connection stays in the pool.
    pub(super) async fn roll_back(mut self) {
        // An error closes the connection, which rolls back as well.
        self.0.reusable = self.0.control("ROLLBACK", "ROLLBACK").await.is_ok();
    }
}

impl Db {
    /// Which of two texts this store understands.
    pub(super) fn dialect<T>(&self, sqlite: T, postgres: T) -> T {
        match self {
            Db::Sqlite { .. } => sqlite,
            Db::Postgres(_) => postgres,
        }
    }

    /// A transaction that writes. `doing` completes "the ledger is unavailable while …".
    pub(super) async fn begin(&self, doing: &'static str) -> Result<Tx, LedgerError> {
        let mut conn = self.connection(doing, true, CALL_MS_MAX).await?;
        // IMMEDIATE takes the write lock here, where waiting is safe; a lock taken later could not be waited for.
        conn.control("BEGIN IMMEDIATE", "BEGIN").await?;
        Ok(Tx(conn))
    }

    /// One statement that writes, in a transaction of its own. Returns how many rows it changed.
    pub(super) async fn write(
        &self,
        doing: &'static str,
        sql: &'static str,
        values: Vec<Value>,
    ) -> Result<u64, LedgerError> {
        let mut tx = self.begin(doing).await?;
        let changed = tx.execute(sql, values).await?;
        tx.commit().await?;
        Ok(changed)
    }

    /// A read-only transaction in which all statements see the same instant, with time for scans.
    pub(super) async fn begin_audit(&self, doing: &'static str) -> Result<Tx, LedgerError> {
        let mut conn = self.connection(doing, false, AUDIT_MS_MAX).await?;
        conn.control(
            "BEGIN",
            "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL statement_timeout = '590s'",
        )
        .await?;
        Ok(Tx(conn))
    }

    /// One statement that reads, outside any transaction.
    pub(super) async fn rows(
        &self,
        doing: &'static str,
        sql: &'static str,
        values: Vec<Value>,
    ) -> Result<Vec<Row>, LedgerError> {
        let mut conn = self.connection(doing, false, CALL_MS_MAX).await?;
        let rows = conn.rows(sql, values).await?;
        conn.reusable = true;
        Ok(rows)
    }

    pub(super) async fn row(
        &self,
        doing: &'static str,
        sql: &'static str,
        values: Vec<Value>,
    ) -> Result<Option<Row>, LedgerError> {
        Ok(self.rows(doing, sql, values).await?.pop())
    }

    async fn connection(
        &self,
        doing: &'static str,
        writes: bool,
        call_ms_max: u64,
    ) -> Result<Conn, LedgerError> {
        let conn = match self {
            Db::Sqlite { writer, .. } if writes => writer.acquire().await.map(AnyConn::Sqlite),
            Db::Sqlite { readers, .. } => readers.acquire().await.map(AnyConn::Sqlite),
            Db::Postgres(pool) => pool.acquire().await.map(AnyConn::Postgres),
        };
        Ok(Conn {
            conn: conn.map_err(|e| LedgerError::from_driver(doing, e))?,
            doing,
            call_ms_max,
            reusable: false,
        })
    }

    pub(super) async fn close(&self) {
        match self {
            Db::Sqlite { writer, readers } => {
                readers.close().await;
                writer.close().await; // the last to go folds the write-ahead log into the file
            }
            Db::Postgres(pool) => pool.close().await,
        }
    }
}
