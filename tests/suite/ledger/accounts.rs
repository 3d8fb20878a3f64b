use hongbao::ledger::{Account, Booking, Kind, Ledger, LedgerError, Line};
use hongbao::rain::{Cents, Claim};

use super::{Store, claim, on_both_stores};

on_both_stores!(
    a_deposit_counts_once_per_key,
    a_deposit_needs_a_sponsor_an_amount_and_a_key,
    a_deposit_beyond_the_largest_amount_is_refused,
    accounts_are_listed_by_prefix_in_pages,
    a_statement_tells_every_movement_newest_first,
    a_statement_is_read_in_pages_even_within_one_millisecond,
    credits_are_read_in_pages_by_index,
    the_tables_are_made_once_by_whoever_comes_first,
    books_that_disagree_are_told_apart_by_account,
);

async fn a_deposit_counts_once_per_key(store: Store) {
    store.ledger.open_sponsor("acme").await.unwrap();
    store.ledger.open_sponsor("acme").await.unwrap();
    store.ledger.open_sponsor("zeta").await.unwrap();
    let deposit = async |sponsor, cents| {
        store
            .ledger
            .deposit(sponsor, Cents(cents), "tx 1", 5)
            .await
            .unwrap()
    };
    assert_eq!(deposit("acme", 300).await, Booking::Done);
    assert_eq!(deposit("acme", 300).await, Booking::Existed);
    let first = Booking::Different {
        from: "deposits".parse().unwrap(),
        to: "sponsor:acme".parse().unwrap(),
        cents: Cents(300),
    };
    assert_eq!(deposit("acme", 301).await, first);
    assert_eq!(deposit("zeta", 300).await, first);
    assert_eq!(store.balance("sponsor:acme").await, Some(300));
    assert_eq!(store.balance("sponsor:zeta").await, Some(0));
    assert_eq!(store.balance("deposits").await, Some(-300));
    store.assert_books_agree().await;
}

async fn a_deposit_needs_a_sponsor_an_amount_and_a_key(store: Store) {
    let refused = async |sponsor, cents, key| {
        store
            .ledger
            .deposit(sponsor, Cents(cents), key, 5)
            .await
            .unwrap_err()
            .to_string()
    };
    assert!(
        refused("nobody", 1, "k")
            .await
            .contains("sponsor nobody has no account")
    );
    store.ledger.open_sponsor("acme").await.unwrap();
    assert_eq!(
        refused("acme", 0, "k").await,
        "deposit of 0.00 must be above zero"
    );
    assert_eq!(
        refused("acme", -1, "k").await,
        "deposit of -0.01 must be above zero"
    );
    assert!(refused("acme", 1, "").await.contains("1 to 128 printable"));
    assert!(refused("acme", 1, "a\nb").await.contains("\"a\\nb\""));
    let long = "k".repeat(129);
    assert!(refused("acme", 1, &long).await.contains("1 to 128"));
    assert!(refused("ac me", 1, "k").await.contains("\"ac me\""));
    assert_eq!(store.balance("deposits").await, Some(0));
}

/// SQLite would turn the sum into a floating point number, and lose cents.
async fn a_deposit_beyond_the_largest_amount_is_refused(store: Store) {
    store.sponsor("acme", i64::MAX).await;
    let error = store
        .ledger
        .deposit("acme", Cents(1), "one more", 5)
        .await
        .unwrap_err();
    assert!(
        matches!(error, LedgerError::Refused { .. }) && !error.is_outage(),
        "{error:?}"
    );
    assert_eq!(store.balance("sponsor:acme").await, Some(i64::MAX));
    store.assert_books_agree().await;
}

async fn accounts_are_listed_by_prefix_in_pages(store: Store) {
    let rain = store.rain(1_000).await;
    let users = ["a", "ab", "abc", "b", "Z"];
    let claims: Vec<Claim> = (0..)
        .zip(users)
        .map(|(i, user)| claim(&rain, i, 1, user))
        .collect();
    store.credit(&claims).await;
    let names = |accounts: &[Account]| {
        accounts
            .iter()
            .map(|a| a.name.to_string())
            .collect::<Vec<_>>()
    };

    let all = store.ledger.accounts("", None, 100).await.unwrap();
    let escrow = format!("escrow:{}", rain.id);
    assert_eq!(
        names(&all),
        [
            "deposits",
            &escrow,
            "sponsor:acme",
            "user:Z",
            "user:a",
            "user:ab",
            "user:abc",
            "user:b"
        ]
    );
    let ab = store.ledger.accounts("user:ab", None, 100).await.unwrap();
    assert_eq!(names(&ab), ["user:ab", "user:abc"]);
    let first = store.ledger.accounts("user:", None, 3).await.unwrap();
    let rest = store
        .ledger
        .accounts("user:", Some(&first[2].name), 3)
        .await
        .unwrap();
    assert_eq!(names(&first), ["user:Z", "user:a", "user:ab"]);
    assert_eq!(names(&rest), ["user:abc", "user:b"]);
}

async fn a_statement_tells_every_movement_newest_first(store: Store) {
    let rain = store.rain(1_000).await; // deposit at 1, fund at 2
    store.credit(&[claim(&rain, 4, 300, "anna")]).await; // at 10
    store
        .ledger
        .discard(&claim(&rain, 5, 20, "ghost"), "no such person", 11)
        .await
        .unwrap();
    store.ledger.close_rain(rain.id, 12).await.unwrap();
    store.ledger.refund(rain.id, Cents(680), 13).await.unwrap();

    let lines = async |account: &str| {
        store
            .ledger
            .statement(&account.parse().unwrap(), None, 100)
            .await
            .unwrap()
    };
    let short = |lines: &[Line]| -> Vec<(i64, Kind, i64, String)> {
        lines
            .iter()
            .map(|l| (l.at_ms, l.kind, l.cents.0, l.other.to_string()))
            .collect()
    };
    let escrow = format!("escrow:{}", rain.id);
    let acme = || "sponsor:acme".to_owned();
    let lines_of_escrow = lines(&escrow).await;
    assert_eq!(
        short(&lines_of_escrow),
        [
            (13, Kind::Refund, -680, acme()),
            (11, Kind::Discard, -20, acme()),
            (10, Kind::Credit, -300, "user:anna".into()),
            (2, Kind::Fund, 1_000, acme()),
        ]
    );
    assert_eq!(
        lines_of_escrow[1].note.as_deref(),
        Some("ghost: no such person")
    );
    assert_eq!(lines_of_escrow[1].packet, Some(rain.id.packet(5)));
    assert!(
        lines_of_escrow
            .iter()
            .all(|line| line.rain == Some(rain.id))
    );
    assert_eq!(
        short(&lines("user:anna").await),
        [(10, Kind::Credit, 300, escrow.clone())]
    );
    assert_eq!(
        short(&lines("sponsor:acme").await),
        [
            (13, Kind::Refund, 680, escrow.clone()),
            (11, Kind::Discard, 20, escrow.clone()),
            (2, Kind::Fund, -1_000, escrow),
            (1, Kind::Deposit, 1_000, "deposits".into()),
        ]
    );
    assert_eq!(
        short(&lines("deposits").await),
        [(1, Kind::Deposit, -1_000, acme())]
    );
    assert_eq!(lines("user:nobody").await, []);
}

async fn a_statement_is_read_in_pages_even_within_one_millisecond(store: Store) {
    let rain = store.rain(1_000).await;
    let claims: Vec<Claim> = (0..25).map(|i| claim(&rain, i, 1, "anna")).collect();
    store.credit(&claims).await; // all at 10
    for account in ["user:anna".to_owned(), format!("escrow:{}", rain.id)] {
        let account = account.parse().unwrap();
        let whole = store.ledger.statement(&account, None, 100).await.unwrap();
        let (mut pages, mut after) = (Vec::new(), None);
        loop {
            let page = store.ledger.statement(&account, after, 7).await.unwrap();
            let Some(last) = page.last() else { break };
            after = Some(last.cursor.to_string().parse().unwrap()); // through text, as a client keeps it
            pages.extend(page);
        }
        assert_eq!(pages, whole, "{account}");
        assert!(whole.len() >= 25);
    }
}

async fn credits_are_read_in_pages_by_index(store: Store) {
    let (rain, next) = (store.rain(1_000).await, store.rain(1_000).await);
    let mut claims: Vec<Claim> = [3, 0, 9, 4, u32::MAX]
        .map(|i| claim(&rain, i, 7, &format!("u{i}")))
        .into();
    claims.push(claim(&next, 0, 7, "other"));
    store.credit(&claims).await;
    let read = async |after, limit| -> Vec<(u32, String)> {
        let credits = store
            .ledger
            .credits_after(rain.id, after, limit)
            .await
            .unwrap();
        credits
            .iter()
            .map(|credit| (credit.packet.id.index(), credit.user.to_string()))
            .collect()
    };
    let pair = |i: u32| (i, format!("u{i}"));
    assert_eq!(read(None, 2).await, [pair(0), pair(3)]);
    assert_eq!(read(Some(3), 100).await, [pair(4), pair(9), pair(u32::MAX)]);
    assert_eq!(read(Some(u32::MAX), 100).await, []);
}

async fn the_tables_are_made_once_by_whoever_comes_first(store: Store) {
    store.sponsor("acme", 5).await;
    let fresh = if store.is_sqlite() {
        Store::sqlite().await
    } else {
        Store::postgres().await
    };
    fresh
        .sql("DROP TABLE _sqlx_migrations; DROP TABLE accounts")
        .await
        .unwrap();
    assert!(
        Ledger::open(&fresh.url).await.is_err(),
        "tables of another program are left alone"
    );

    let empty = if store.is_sqlite() {
        format!("{}-new", store.url)
    } else {
        crate::support::postgres::database().await
    };
    let (a, b, c) = tokio::join!(
        Ledger::open(&empty),
        Ledger::open(&empty),
        Ledger::open(&empty)
    );
    for opened in [a, b, c] {
        assert!(opened.unwrap().books().await.unwrap().agree());
    }
    let again = Ledger::open(&store.url).await.unwrap();
    let acme = again
        .account(&"sponsor:acme".parse().unwrap())
        .await
        .unwrap();
    assert_eq!(acme.unwrap().balance, Cents(5));
}

async fn books_that_disagree_are_told_apart_by_account(store: Store) {
    store.sponsor("acme", 500).await;
    // What no statement can do while the triggers stand: a person with every right takes them away first.
    store
        .sql("DROP TRIGGER accounts_change ON accounts")
        .await
        .ok();
    store.sql("DROP TRIGGER accounts_change").await.ok();
    store
        .sql("UPDATE accounts SET balance_cents = 530 WHERE name = 'sponsor:acme'")
        .await
        .unwrap();
    let books = store.ledger.books().await.unwrap();
    assert!(!books.agree());
    assert_eq!((books.sum, books.negative.len()), (Cents(30), 0));
    let [difference] = &books.differences[..] else {
        panic!("{books:?}")
    };
    assert_eq!(difference.account, "sponsor:acme");
    assert_eq!(
        (difference.journal, difference.balance),
        (Cents(500), Cents(530))
    );
}

#[tokio::test]
async fn a_sqlite_ledger_is_readable_by_its_owner_alone() {
    use std::os::unix::fs::PermissionsExt;
    let store = Store::sqlite().await;
    store.sponsor("acme", 5).await;
    for suffix in ["", "-wal", "-shm"] {
        let path = format!("{}{suffix}", store.url.strip_prefix("sqlite:").unwrap());
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{path}");
    }
}

#[tokio::test]
async fn a_url_of_something_else_is_refused_without_its_password() {
    for url in [
        "mysql://anna:secret@db/hongbao",
        "sqlite::memory:",
        "sqlite:",
        "",
        "postgres://anna:secret@db:port/x",
    ] {
        let error = Ledger::open(url).await.err().unwrap();
        assert!(matches!(error, LedgerError::Url { .. }), "{url}: {error}");
        let text = format!("{error:?} {error}");
        assert!(!text.contains("secret"), "{text}");
    }
    let error = Ledger::open("sqlite:/no/such/folder/ledger.db")
        .await
        .err()
        .unwrap();
    assert!(
        error.to_string().contains("/no/such/folder/ledger.db"),
        "{error}"
    );
}
