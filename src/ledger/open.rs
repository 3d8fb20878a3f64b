use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::str::FromStr;
use std::time::{Duration, Instant};

use sqlx::migrate::{MigrateError, Migrator};
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{ConnectOptions, Connection};

use super::LedgerSettings;
use super::db::Db;
use super::error::LedgerError;

static SQLITE_TABLES: Migrator = sqlx::migrate!("src/ledger/migrations/sqlite");
static POSTGRES_TABLES: Migrator = sqlx::migrate!("src/ledger/migrations/postgres");

/// How long a call waits for a connection, making one included.
const CONNECT_MS_MAX: u64 = 5_000;
/// How long SQLite waits for another process's write lock.
const BUSY_MS_MAX: u64 = 5_000;
/// Before asking again where SQLite does not wait.
const BUSY_AGAIN: Duration = Duration::from_millis(10);
/// Users come in no order, so almost every credit of a batch changes a page of its own, and the next batch the same ones again. Small
/// pages make that 1 KiB of log for a credit instead of 4 (measured at 400,000 users: 66,000 credits/s instead of 49,000), and folding
/// the log into the file after 64 MiB instead of 4 writes each page once for many batches (measured: twice the rate).
const PAGE_BYTES: u32 = 1_024;
const WAL_BYTES: u32 = 64 << 20;
/// PostgreSQL ends a statement that takes longer (a batch of 2,000 credits takes about 40 ms) …
const STATEMENT_MS_MAX: u64 = 10_000;
/// … or waits longer for a lock …
const LOCK_MS_MAX: u64 = 5_000;
/// … and a transaction whose process has stopped in the middle, so that its locks do not outlive it for long.
const IDLE_IN_TRANSACTION_MS_MAX: u64 = 20_000;

pub(super) async fn open(url: &str, settings: &LedgerSettings) -> Result<Db, LedgerError> {
    if let Some(path) = url.strip_prefix("sqlite:") {
        let path = path.strip_prefix("//").unwrap_or(path); // sqlite:///var/lib/… is how others write it
        // Each connection would have a memory of its own.
        if path.is_empty() || path == ":memory:" {
            return Err(LedgerError::Url {
                shown: url.to_owned(),
            });
        }
        return open_sqlite(Path::new(path), url, settings).await;
    }
    if url.starts_with("postgres://") || url.starts_with("postgresql://") {
        return open_postgres(url, settings).await;
    }
    Err(LedgerError::Url {
        shown: without_password(url),
    })
}

/// The database at `url` as it is, for people: nothing is made or changed there.
pub async fn look(url: &str) -> Result<String, LedgerError> {
    let opening = |source| LedgerError::Open {
        shown: without_password(url),
        source,
    };
    let limit = Duration::from_millis(CONNECT_MS_MAX);
    let late = |_| opening(sqlx::Error::PoolTimedOut);
    if let Some(path) = url.strip_prefix("sqlite:") {
        let path = Path::new(path.strip_prefix("//").unwrap_or(path));
        if !path.exists() {
            return Ok("SQLite, made at the first start".into());
        }
        let options = SqliteConnectOptions::new().filename(path).read_only(true);
        let look = async {
            let mut connection = options.connect().await?;
            let version: String = sqlx::query_scalar("SELECT sqlite_version()")
                .fetch_one(&mut connection)
                .await?;
            Ok(format!("SQLite {version}"))
        };
        return tokio::time::timeout(limit, look)
            .await
            .map_err(late)?
            .map_err(opening);
    }
    let options = PgConnectOptions::from_str(url).map_err(opening)?;
    let look = async {
        let mut connection = options.connect().await?;
        let version: String = sqlx::query_scalar("SHOW server_version")
            .fetch_one(&mut connection)
            .await?;
        let durable: String = sqlx::query_scalar("SHOW fsync")
            .fetch_one(&mut connection)
            .await?;
        Ok(format!("PostgreSQL {version}, fsync {durable}"))
    };
    tokio::time::timeout(limit, look)
        .await
        .map_err(late)?
        .map_err(opening)
}

async fn open_sqlite(path: &Path, url: &str, settings: &LedgerSettings) -> Result<Db, LedgerError> {
    let shown = url.to_owned();
    create_private(path).map_err(|e| LedgerError::Open {
        shown: shown.clone(),
        source: sqlx::Error::Io(e),
    })?;
    let options = SqliteConnectOptions::new()
        .filename(path)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full) // a commit is on disk before it is answered: a claim is acknowledged on its word
        .foreign_keys(true)
        .busy_timeout(Duration::from_millis(BUSY_MS_MAX))
        .page_size(PAGE_BYTES)
        .disable_statement_logging();

    let pool = || {
        SqlitePoolOptions::new()
            .acquire_timeout(Duration::from_millis(CONNECT_MS_MAX))
            .test_before_acquire(false) // the "server" is this process
            .idle_timeout(None)
            .max_lifetime(None)
    };
    let opening = |source| LedgerError::Open {
        shown: shown.clone(),
        source,
    };
    let for_writing = options
        .clone()
        .pragma("cache_size", "-65536") // KiB: the pages of a million users' balances
        .pragma("wal_autocheckpoint", (WAL_BYTES / PAGE_BYTES).to_string())
        .pragma("temp_store", "MEMORY"); // what a statement would have to take back, 4 KiB per page touched
    let writer = connect_in_turn(pool().max_connections(1), for_writing)
        .await
        .map_err(opening)?;
    migrate_sqlite(&writer)
        .await
        .map_err(|source| LedgerError::Migrate {
            shown: shown.clone(),
            source,
        })?;
    let readers = pool()
        .max_connections(settings.sqlite_readers.max(1))
        .connect_with(options.pragma("query_only", "ON"))
        .await
        .map_err(opening)?;
    Ok(Db::Sqlite { writer, readers })
}

/// Of several processes that open a new file at once, one makes it a file with a log. SQLite waits for any lock but the one for that, so this does.
async fn connect_in_turn(
    pool: SqlitePoolOptions,
    options: SqliteConnectOptions,
) -> sqlx::Result<SqlitePool> {
    let deadline = Instant::now() + Duration::from_millis(BUSY_MS_MAX);
    loop {
        match pool.clone().connect_with(options.clone()).await {
            Err(error) if is_busy(&error) && Instant::now() < deadline => {
                tokio::time::sleep(BUSY_AGAIN).await;
            }
            done => return done,
        }
    }
}

/// SQLITE_BUSY, or one of its extended codes.
fn is_busy(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code());
    let code: Option<i32> = code.and_then(|code| code.parse().ok());
    code.is_some_and(|code| code & 0xff == 5)
}

/// The file holds money and seeds: only its owner may read it. SQLite gives the same mode to the files beside it.
fn create_private(path: &Path) -> io::Result<()> {
    let made = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path);
    match made {
        Ok(_) => Ok(()),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(e) => Err(e),
    }
}

/// Two processes may start at once, and for SQLite the migrator takes no lock of its own: it runs inside one transaction that does.
async fn migrate_sqlite(writer: &SqlitePool) -> Result<(), MigrateError> {
    let mut conn = writer.acquire().await?;
    let mut tx = conn.begin_with("BEGIN IMMEDIATE").await?;
    SQLITE_TABLES.run_direct(None, &mut *tx, false).await?;
    Ok(tx.commit().await?)
}

async fn open_postgres(url: &str, settings: &LedgerSettings) -> Result<Db, LedgerError> {
    let shown = without_password(url);
    let options = PgConnectOptions::from_str(url)
        .map_err(|_| LedgerError::Url {
            shown: shown.clone(),
        })? // its own text may quote the password
        .application_name("hongbao")
        .options([
            ("statement_timeout", STATEMENT_MS_MAX.to_string()),
            ("lock_timeout", LOCK_MS_MAX.to_string()),
            (
                "idle_in_transaction_session_timeout",
                IDLE_IN_TRANSACTION_MS_MAX.to_string(),
            ),
        ])
        .disable_statement_logging();
    let pool = PgPoolOptions::new()
        .acquire_timeout(Duration::from_millis(CONNECT_MS_MAX))
        .max_connections(settings.postgres_connections.max(1))
        .after_connect(|conn, _| {
            Box::pin(async move {
                // A claim is acknowledged on the word of a commit. A server that answers before the disk does is overruled; stricter
                // settings (remote_apply) stay.
                sqlx::raw_sql(
                    "SELECT set_config('synchronous_commit', 'on', false)
                     WHERE current_setting('synchronous_commit') IN ('off', 'local')",
                )
                .execute(conn)
                .await
                .map(drop)
            })
        })
        .connect_with(options)
        .await
        .map_err(|source| LedgerError::Open {
            shown: shown.clone(),
            source,
        })?;
    migrate_postgres(&pool)
        .await
        .map_err(|source| LedgerError::Migrate { shown, source })?;
    Ok(Db::Postgres(pool))
}

async fn migrate_postgres(pool: &PgPool) -> Result<(), MigrateError> {
    // A connection of its own, closed afterwards: building an index on a large table may take longer than a statement should, and
    // the migrator's lock belongs to the connection.
    let mut conn = pool.acquire().await?.detach();
    sqlx::raw_sql("SET statement_timeout = 0; SET lock_timeout = 0")
        .execute(&mut conn)
        .await?;
    POSTGRES_TABLES.run_direct(None, &mut conn, false).await?;
    conn.close().await?;

    let fsync: (String,) = sqlx::query_as("SHOW fsync").fetch_one(pool).await?;
    if fsync.0 == "off" {
        tracing::warn!(
            "postgresql runs with fsync = off: after a power loss, money that was paid may be gone from the ledger"
        );
    }
    Ok(())
}

/// For texts that people read: everything between the scheme and the last @ of the authority is left out.
pub fn without_password(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else {
        return url
            .split_once(':')
            .map_or(url.to_owned(), |(scheme, _)| format!("{scheme}:…"));
    };
    let rest = rest.split('?').next().unwrap_or_default(); // ?password=… is allowed as well
    match rest.rsplit_once('@') {
        Some((_, server)) => format!("{scheme}://…@{server}"),
        None => format!("{scheme}://{rest}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_never_reaches_a_text() {
        for (url, shown) in [
            (
                "postgres://anna:se@cret@db:5432/hongbao?password=x",
                "postgres://…@db:5432/hongbao",
            ),
            (
                "postgres:///hongbao?host=/run/postgresql",
                "postgres:///hongbao",
            ),
            ("mysql://u:secret@h/d", "mysql://…@h/d"),
            ("host:secret", "host:…"),
            ("nonsense", "nonsense"),
        ] {
            assert_eq!(without_password(url), shown);
        }
    }
}
