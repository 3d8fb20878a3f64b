//! The ledger: what a rain is, and where every cent of it lies. The only code that speaks SQL.
//!
//! Double entry (DESIGN.md section 9). Money moves between four kinds of accounts, and only by a row in one of two journals:
//!
//! ```text
//!   deposits ──deposit──▶ sponsor:<name> ──fund──▶ escrow:<rain> ──credit──▶ user:<user>
//!                               ▲                        │
//!                               └── refund, discard ─────┘
//! ```
//!
//! * **Credits** are keyed by packet id, one per packet for ever; **entries** (everything else) by a text that says what they are
//!   for. So every change may be repeated, by anyone, after any crash: the second time it finds the first.
//! * Keys of entries: `deposit:<key>`, `fund:<rain>`, `fund:<rain>:<n>` for top-up *n*, `refund:<rain>`, `discard:<packet>`.
//! * The database enforces the books itself, whoever writes: see the comments in `migrations/`.
//! * Two stores, one behaviour: SQLite in the process, PostgreSQL for production. `tests/suite/ledger.rs` runs on both.
//! * Time is an argument, in ms since 1970: the ledger has no clock.

/// Names of accounts, sponsors, deposits.
mod accounts;
/// Keys of the admin API.
mod api_keys;
/// Who pays a claim: the ledger itself, or a company's own balance system.
mod balance;
/// What an auditor reads: totals, winners, whether the books agree.
mod books;
/// Who is logged in to the console.
mod console_sessions;
/// A rain's record and its money, once for each key; or only played through.
mod create;
/// claim → credit, in batches.
mod credit;
/// Statements to either store, transactions.
mod db;
/// Deliveries of events: held, tried, sent again.
mod deliveries;
/// A row in the journal of entries, written once per key.
mod entry;
/// What can go wrong, and what the caller can do about it.
mod error;
/// The outbox: what has happened, for webhooks.
mod events;
/// The endpoint of a company's balance system: requests, signatures, answers.
mod http_balance;
/// From a URL to an open store with its tables.
mod open;
/// Rains as recorded, and their steps.
mod rains;
/// Writes of the admin API by their idempotency key, and the log of who did what.
mod requests;
/// escrow → sponsor: the refund of a rain, the discard of a claim.
mod returned;
/// Templates, schedules, and what became of their openings.
mod schedules;
/// The lines of one account, from both journals.
mod statement;
/// Packets and money added to a rain that exists; which parts of it are loaded.
mod top_ups;
/// Whom to tell of what.
mod webhooks;

pub use accounts::{Account, AccountName};
pub use api_keys::{API_KEYS_MAX, ApiKey, Rotation};
pub use balance::{Balance, HttpBalance};
pub use books::{Books, Credit, Difference, Overdrawn, RainTotals};
pub use console_sessions::{CONSOLE_SESSIONS_PER_KEY, ConsoleSession};
pub use create::Rehearsed;
pub use credit::{Refusal, Verdict};
pub use deliveries::{After, Attempt, Backlog, Delivery, DeliveryState, DeliveryStateError};
pub use entry::{Booking, Kind};
pub use error::LedgerError;
pub use events::{BuriedClaim, EventKind, EventKindError};
pub use http_balance::{Endpoint, EndpointSettings};
pub use open::{look, without_password};
pub use requests::{Begun, End, LogLine, Write};
pub use returned::Discard;
pub use schedules::{NewSchedule, Noted, Opening, Schedule, Template};
pub use statement::{Cursor, Line};
pub use top_ups::ToppedUp;
pub use webhooks::{WEBHOOKS_MAX, Webhook, WebhookChange};

use db::Db;

/// Claims in one call of `Ledger::credit`, and so in one transaction: beyond this, batches get no faster and locks are held longer.
pub const CREDIT_BATCH_MAX: usize = 2_000;
/// Rows that one page of any listing may hold; a larger limit is read as this. Worst case about 20 MiB of rows in memory.
pub const PAGE_ROWS_MAX: u32 = 100_000;
pub const SPONSOR_NAME_BYTES_MAX: usize = 64;
/// Idempotency keys of callers.
pub const KEY_BYTES_MAX: usize = 128;

/// What the operator may choose about the ledger, apart from where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LedgerSettings {
    /// A user's first credit opens the account. If not, a credit to a user without one (`Ledger::open_user`) is refused.
    pub create_user_accounts: bool,
    /// PostgreSQL connections of this process, 1 or more. Crediting uses one per batch in flight.
    pub postgres_connections: u32,
    /// SQLite connections that read, 1 or more. The one that writes comes on top.
    pub sqlite_readers: u32,
}

impl Default for LedgerSettings {
    fn default() -> LedgerSettings {
        LedgerSettings {
            create_user_accounts: true,
            postgres_connections: 8,
            sqlite_readers: 4,
        }
    }
}

/// The open ledger. Cheap to clone; all clones share the connections.
///
/// Every call may be cancelled at any point: a transaction that was not committed is taken back.
#[derive(Clone)]
pub struct Ledger {
    db: Db,
    settings: LedgerSettings,
}

impl Ledger {
    /// Opens `sqlite:<path of a file>` or `postgres://…`, and brings its tables to this version of the program.
    pub async fn open(url: &str) -> Result<Ledger, LedgerError> {
        Ledger::open_with(url, LedgerSettings::default()).await
    }

    pub async fn open_with(url: &str, settings: LedgerSettings) -> Result<Ledger, LedgerError> {
        let db = open::open(url, &settings).await?;
        Ok(Ledger { db, settings })
    }

    /// Whether the store answers, for readiness checks.
    pub async fn ping(&self) -> Result<(), LedgerError> {
        self.db.rows("answering a ping", "SELECT 1", vec![]).await?;
        Ok(())
    }

    /// Waits for calls under way and closes all connections, those of clones too.
    pub async fn close(&self) {
        self.db.close().await;
    }
}

fn page_rows(limit: u32) -> i64 {
    i64::from(limit.min(PAGE_ROWS_MAX))
}
