use crate::rain::{Cents, RainId, StepError, TopUpError};

/// Why the ledger did not do what it was asked to.
///
/// For whoever calls it there are two kinds: an outage (`is_outage`), where the same call will work later and may be repeated as it
/// is, and everything else, where it will not. Nothing is half done in either kind. Only of an outage it is unknown whether the work
/// was committed, which is why every change has a key and may be repeated.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    #[error(
        "ledger url {shown:?} is not sqlite:<path of a file> or postgres://user:password@host:port/database"
    )]
    Url {
        /// Without the password.
        shown: String,
    },
    #[error("cannot open the ledger at {shown}")]
    Open {
        shown: String,
        #[source]
        source: sqlx::Error,
    },
    #[error("cannot bring the tables of the ledger at {shown} to this program's version")]
    Migrate {
        shown: String,
        #[source]
        source: sqlx::migrate::MigrateError,
    },

    /// Away, restarting, locked by others for too long, out of disk: do the same again later.
    #[error("the ledger is unavailable while {doing}; try again later")]
    Unavailable {
        doing: &'static str,
        #[source]
        source: sqlx::Error,
    },
    /// A constraint or trigger of the database said no, and no other variant explains it.
    #[error("the ledger's database refused {doing}")]
    Refused {
        doing: &'static str,
        #[source]
        source: sqlx::Error,
    },
    /// Tables or rows are not as this program left them.
    #[error("the ledger's database gave no usable answer while {doing}")]
    Broken {
        doing: &'static str,
        #[source]
        source: sqlx::Error,
    },

    #[error("{what} of {cents} must be above zero")]
    NotPositive { what: &'static str, cents: Cents },
    #[error("{claims} claims in one batch exceed {max}: send smaller batches")]
    BatchTooLarge { claims: usize, max: usize },
    #[error(
        "sponsor name {0:?} must be 1 to {max} characters from A-Z a-z 0-9 . _ @ : + = / -",
        max = super::SPONSOR_NAME_BYTES_MAX
    )]
    SponsorName(String),
    #[error("key {0:?} must be 1 to {max} printable ASCII characters", max = super::KEY_BYTES_MAX)]
    Key(String),
    #[error(
        "account name {0:?} is not deposits, sponsor:<name>, escrow:<rain id> or user:<user id>"
    )]
    AccountName(String),
    #[error("place {0:?} in a statement is not one that an earlier page ended with")]
    Cursor(String),

    #[error("sponsor {0} has no account: open it and deposit money first")]
    NoSponsor(String),
    #[error(
        "sponsor {sponsor} has {balance}, which does not pay for {what} of {needed}: deposit more first"
    )]
    SponsorTooPoor {
        sponsor: String,
        balance: Cents,
        what: &'static str,
        needed: Cents,
    },
    #[error("rain {0} does not exist")]
    NoRain(RainId),
    #[error("key {0} does not exist")]
    NoApiKey(String),
    #[error("{max} keys are in use: revoke one first", max = super::API_KEYS_MAX)]
    ApiKeys,
    #[error("webhook {0} does not exist")]
    NoWebhook(String),
    #[error("there are {max} webhooks: delete one first", max = super::WEBHOOKS_MAX)]
    Webhooks,
    #[error("delivery {0} does not exist")]
    NoDelivery(i64),
    #[error("rain {rain}: {source}")]
    Step {
        rain: RainId,
        #[source]
        source: StepError,
    },
    #[error("escrow of rain {rain} holds {balance}, less than the {needed} that were to leave it")]
    EscrowTooPoor {
        rain: RainId,
        balance: Cents,
        needed: Cents,
    },
    #[error("key {key:?} made rain {rain} from another request: use a new key for a new rain")]
    RequestKeyReused { key: String, rain: RainId },
    #[error("rain {rain}: {source}")]
    TopUp {
        rain: RainId,
        #[source]
        source: TopUpError,
    },
    #[error("template {0} does not exist")]
    NoTemplate(String),
    #[error("template {0} exists with another rain: update it, or choose another name")]
    TemplateExists(String),
    #[error("template {name} is used by schedule {schedule}: end the schedule first")]
    TemplateInUse { name: String, schedule: i64 },
    #[error("schedule {0} does not exist")]
    NoSchedule(i64),
    #[error(
        "key {key:?} made schedule {schedule} from another request: use a new key for a new schedule"
    )]
    ScheduleKeyReused { key: String, schedule: i64 },
    #[error("rain {rain} closed at {closes_at_ms} ms: it cannot be topped up any more")]
    Over { rain: RainId, closes_at_ms: i64 },
    #[error(
        "key {key:?} made top-up {number} of rain {rain} from another request: use a new key for a new top-up"
    )]
    TopUpKeyReused {
        key: String,
        rain: RainId,
        number: u32,
    },
}

impl LedgerError {
    /// The same call may be repeated, and will work when the database is back.
    pub fn is_outage(&self) -> bool {
        use LedgerError::*;
        match self {
            Unavailable { .. } => true,
            // Opening is tried by a person or a supervisor, who see the reason.
            Url { .. } | Open { .. } | Migrate { .. } => false,
            Refused { .. } | Broken { .. } => false,
            NotPositive { .. } | BatchTooLarge { .. } | SponsorName(_) | Key(_) => false,
            AccountName(_) | Cursor(_) => false,
            NoSponsor(_) | SponsorTooPoor { .. } | NoRain(_) | Step { .. } => false,
            NoApiKey(_) | ApiKeys => false,
            NoWebhook(_) | Webhooks | NoDelivery(_) => false,
            EscrowTooPoor { .. } | RequestKeyReused { .. } => false,
            TopUp { .. } | Over { .. } | TopUpKeyReused { .. } => false,
            NoTemplate(_) | TemplateExists(_) | TemplateInUse { .. } => false,
            NoSchedule(_) | ScheduleKeyReused { .. } => false,
        }
    }

    /// What the driver said, sorted by what the caller can do about it.
    pub(super) fn from_driver(doing: &'static str, source: sqlx::Error) -> LedgerError {
        match kind(&source) {
            Kind::Outage => LedgerError::Unavailable { doing, source },
            Kind::Constraint => LedgerError::Refused { doing, source },
            Kind::Broken => LedgerError::Broken { doing, source },
        }
    }
}

enum Kind {
    Outage,
    Constraint,
    Broken,
}

fn kind(error: &sqlx::Error) -> Kind {
    match error {
        sqlx::Error::Database(error) => {
            let code = error.code().unwrap_or_default();
            if error.try_downcast_ref::<sqlx::postgres::PgDatabaseError>().is_some() {
                postgres_kind(&code)
            } else {
                sqlite_kind(code.parse().unwrap_or(0))
            }
        }
        sqlx::Error::Io(_)
        | sqlx::Error::Tls(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::WorkerCrashed
        | sqlx::Error::BeginFailed
        // Half an answer from a server that is going down.
        | sqlx::Error::Protocol(_) => Kind::Outage,
        // The enum is open; what is left is about queries and types, which are ours.
        _ => Kind::Broken,
    }
}

/// PostgreSQL, "Appendix A: error codes". The first two characters are the class.
fn postgres_kind(code: &str) -> Kind {
    match code {
        "25006" => Kind::Outage, // read-only: a standby, or a primary that has just lost its role
        "22003" => Kind::Constraint, // a balance beyond BIGINT
        "22021" => Kind::Constraint, // a character that the database's encoding cannot hold
        _ => match code.get(..2).unwrap_or_default() {
            // connection, authorisation (a rotated password), rollback by deadlock, resources (disk, memory, connections),
            // not in the right state (a lock not available in time, a database that takes no connections), operator intervention
            // (shutdown, statement timeout), system error, configuration file
            "08" | "28" | "40" | "53" | "55" | "57" | "58" | "F0" => Kind::Outage,
            "23" | "P0" => Kind::Constraint, // integrity constraints, our triggers among them
            _ => Kind::Broken,
        },
    }
}

/// SQLite, "Result and error codes". The low byte of an extended code is its primary code.
fn sqlite_kind(code: i32) -> Kind {
    match code & 0xff {
        5 | 6 | 15 => Kind::Outage,      // busy, locked, lock protocol
        7 | 13 => Kind::Outage,          // memory, disk full
        8 | 9 | 10 | 14 => Kind::Outage, // read-only, interrupted, I/O error, cannot open
        19 => Kind::Constraint,          // CHECK, UNIQUE, type, RAISE in a trigger
        _ => Kind::Broken,
    }
}
