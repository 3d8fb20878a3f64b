//! One contract, two stores: every test here runs on SQLite and on PostgreSQL.

/// Accounts, deposits, statements, opening the store.
mod accounts;
/// claim → credit: every verdict.
mod credits;
/// What the database itself refuses, whoever writes.
mod enforced;
/// A store that is away, locked or restarted, and comes back.
mod outages;
/// The life of a rain, refund and discard.
mod rains;
/// Writes by their idempotency key, keys of the admin API, the log.
mod requests;
/// Templates, schedules, and what became of their openings.
mod schedules;
/// Random operations against a model; calls dropped half way.
mod storm;
/// Packets and money added to a rain that exists.
mod top_ups;
/// The outbox and its deliveries.
mod webhooks;

use hongbao::ledger::{Ledger, LedgerSettings, Verdict};
use hongbao::rain::split::{Rule, Seed, Split};
use hongbao::rain::{Cents, Claim, Durability, NewRain, Packet, Rain, UserId, Window};
use sqlx::Connection;

use crate::support::postgres;

/// Writes each test function, which takes a `Store`, as a test on each store.
macro_rules! on_both_stores {
    ($($test:ident),+ $(,)?) => {
        mod on_sqlite {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $test() {
                    super::$test(crate::ledger::Store::sqlite().await).await;
                }
            )+
        }
        mod on_postgres {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $test() {
                    super::$test(crate::ledger::Store::postgres().await).await;
                }
            )+
        }
    };
}
use on_both_stores;

/// A ledger of its own for one test.
struct Store {
    ledger: Ledger,
    url: String,
    /// Removed with the test.
    _folder: Option<tempfile::TempDir>,
}

impl Store {
    async fn sqlite() -> Store {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", folder.path().join("ledger.db").display());
        Store {
            ledger: Ledger::open(&url).await.unwrap(),
            url,
            _folder: Some(folder),
        }
    }

    async fn postgres() -> Store {
        let url = postgres::database().await;
        Store {
            ledger: Ledger::open(&url).await.unwrap(),
            url,
            _folder: None,
        }
    }

    fn is_sqlite(&self) -> bool {
        self.url.starts_with("sqlite:")
    }

    /// The same store opened by a second process, as far as the store can tell.
    async fn opened_again(&self, settings: LedgerSettings) -> Ledger {
        Ledger::open_with(&self.url, settings).await.unwrap()
    }

    /// SQL as a person with a console would type it: nothing of ours in between.
    async fn sql(&self, sql: &str) -> Result<u64, sqlx::Error> {
        let sql = sqlx::raw_sql(sqlx::AssertSqlSafe(sql.to_owned()));
        if self.is_sqlite() {
            let mut conn = sqlx::SqliteConnection::connect(&self.url).await?;
            Ok(sql.execute(&mut conn).await?.rows_affected())
        } else {
            let mut conn = sqlx::PgConnection::connect(&self.url).await?;
            Ok(sql.execute(&mut conn).await?.rows_affected())
        }
    }

    /// A sponsor with this much money.
    async fn sponsor(&self, name: &str, cents: i64) {
        self.ledger.open_sponsor(name).await.unwrap();
        self.ledger
            .deposit(name, Cents(cents), &format!("first of {name}"), 1)
            .await
            .unwrap();
    }

    /// A rain of the sponsor "acme", who is given the money for it.
    async fn rain(&self, total: i64) -> Rain {
        let rains = self.ledger.rains(None, 1).await.unwrap();
        let key = format!("rain after {:?}", rains.first().map(|rain| rain.id));
        self.ledger.open_sponsor("acme").await.unwrap();
        self.ledger
            .deposit("acme", Cents(total), &key, 1)
            .await
            .unwrap();
        self.ledger
            .create_rain(&new_rain("acme", total), SEED, 2, None, |_| vec![5, 6])
            .await
            .unwrap()
    }

    async fn credit(&self, claims: &[Claim]) -> Vec<Verdict> {
        self.ledger.credit(claims, 10).await.unwrap()
    }

    /// The balance of an account; None if there is none.
    async fn balance(&self, account: &str) -> Option<i64> {
        let account = self
            .ledger
            .account(&account.parse().unwrap())
            .await
            .unwrap();
        account.map(|account| account.balance.0)
    }

    async fn assert_books_agree(&self) {
        let books = self.ledger.books().await.unwrap();
        assert!(books.agree(), "{books:?}");
    }
}

const SEED: Seed = Seed([7; 32]);

fn new_rain(sponsor: &str, total: i64) -> NewRain {
    NewRain {
        title: "Question 5, \"双十一\"".into(),
        room: "quiz-1".into(),
        sponsor: sponsor.into(),
        split: Split {
            rule: Rule::Even,
            total: Cents(total),
            packets: 10,
            min: Cents(1),
            max: Cents(total),
        },
        window: Window {
            opens_at_ms: None,
            duration_ms: 30_000,
        },
        durability: Durability::Replicas(2),
        refund_after_ms: 86_400_000,
        key_required: false,
        announce_at_ms: None,
    }
}

fn claim(rain: &Rain, index: u32, cents: i64, user: &str) -> Claim {
    Claim {
        packet: Packet {
            id: rain.id.packet(index),
            cents: Cents(cents),
        },
        user: user_id(user),
    }
}

fn user_id(user: &str) -> UserId {
    UserId::new(user).unwrap()
}
