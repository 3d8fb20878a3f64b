use hongbao::ledger::{Ledger, Verdict};
use hongbao::rain::Claim;
use sqlx::{Connection, Executor, SqliteConnection};

use super::{Store, claim};

fn assert_outage<T: std::fmt::Debug>(result: Result<T, hongbao::ledger::LedgerError>) {
    let error = result.unwrap_err();
    assert!(error.is_outage(), "{error}: {error:?}");
}

#[tokio::test]
async fn a_postgres_that_went_away_is_an_outage_and_the_same_call_works_when_it_is_back() {
    let store = Store::postgres().await;
    let rain = store.rain(1_000).await;
    let claims: Vec<Claim> = (0..5)
        .map(|i| claim(&rain, i, 7, &format!("u{i}")))
        .collect();
    let (server, database) = store.url.rsplit_once('/').unwrap();
    let admin = Store {
        url: format!("{server}/postgres"),
        ledger: store.ledger.clone(),
        _folder: None,
    };
    let allow = |allowed| format!("ALTER DATABASE {database} ALLOW_CONNECTIONS {allowed}");
    let end = format!(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{database}'"
    );

    admin.sql(&allow(false)).await.unwrap();
    admin.sql(&end).await.unwrap();
    assert_outage(store.ledger.credit(&claims, 1).await);
    assert_outage(store.ledger.ping().await);
    assert_outage(store.ledger.refund(rain.id, rain.parts.total(), 1).await);
    admin.sql(&allow(true)).await.unwrap();
    assert_eq!(store.credit(&claims).await, vec![Verdict::Credited; 5]);

    // Connections that ended while nobody used them are no outage at all.
    admin.sql(&end).await.unwrap();
    assert_eq!(store.credit(&claims).await, vec![Verdict::Existed; 5]);
    store.assert_books_agree().await;
}

#[tokio::test]
async fn a_sqlite_locked_by_another_process_for_too_long_is_an_outage() {
    let store = Store::sqlite().await;
    let rain = store.rain(1_000).await;
    let claims = [claim(&rain, 0, 7, "anna")];
    let mut other = SqliteConnection::connect(&store.url).await.unwrap();
    other.execute("BEGIN IMMEDIATE").await.unwrap();
    assert_outage(store.ledger.credit(&claims, 1).await); // after the five seconds of its patience
    store.ledger.rain(rain.id).await.unwrap(); // readers do not wait for writers
    other.execute("ROLLBACK").await.unwrap();
    assert_eq!(store.credit(&claims).await, [Verdict::Credited]);
}

#[tokio::test]
async fn a_closed_ledger_is_an_outage_not_a_refusal() {
    let store = Store::sqlite().await;
    let rain = store.rain(1_000).await;
    store.ledger.close().await;
    assert_outage(store.ledger.credit(&[claim(&rain, 0, 7, "anna")], 1).await);
    let again = Ledger::open(&store.url).await.unwrap();
    let verdicts = again
        .credit(&[claim(&rain, 0, 7, "anna")], 1)
        .await
        .unwrap();
    assert_eq!(verdicts, [Verdict::Credited]);
}
