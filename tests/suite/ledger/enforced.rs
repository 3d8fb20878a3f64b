use super::{Store, claim, on_both_stores};

on_both_stores!(
    the_database_refuses_what_would_break_the_books,
    a_journal_row_written_by_hand_moves_its_money,
);

async fn refused(store: &Store, sql: &str) {
    if let Ok(rows) = store.sql(sql).await {
        assert_eq!(rows, 0, "the database let this through: {sql}");
    }
    store.assert_books_agree().await;
}

async fn the_database_refuses_what_would_break_the_books(store: Store) {
    let rain = store.rain(1_000).await;
    store.credit(&[claim(&rain, 0, 300, "anna")]).await;
    let discarded = claim(&rain, 1, 50, "ghost");
    store.ledger.discard(&discarded, "gone", 1).await.unwrap();
    let before = store.ledger.accounts("", None, 100).await.unwrap();
    let credit = |packet: u64, cents: i64| {
        format!(
            "INTO credits (packet_id, user_id, cents, at_ms) VALUES ({packet}, 'bo', {cents}, 1)"
        )
    };
    let entry = |from: &str, to: &str, cents: i64| {
        format!(
            "INTO entries (key, kind, from_account, to_account, cents, at_ms)
             VALUES ('by hand', 'gift', '{from}', '{to}', {cents}, 1)"
        )
    };
    let fresh = rain.id.packet(7).get();
    let mut statements: Vec<String> = [
        // Balances without a journal row.
        "UPDATE accounts SET balance_cents = balance_cents + 1 WHERE name = 'user:anna'",
        "UPDATE accounts SET balance_cents = -1 WHERE name = 'user:anna'",
        "UPDATE accounts SET name = 'user:bo' WHERE name = 'user:anna'",
        "INSERT INTO accounts (name, balance_cents) VALUES ('user:bo', 5)",
        "DELETE FROM accounts WHERE name = 'user:anna'",
        // Journals that are rewritten.
        "UPDATE credits SET cents = 1",
        "UPDATE credits SET user_id = 'bo'",
        "DELETE FROM credits",
        "UPDATE entries SET cents = 1",
        "DELETE FROM entries",
        "DELETE FROM rains",
    ]
    .map(str::to_owned)
    .into();
    // Rows that would make money, lose it, or overdraw an account.
    let rows = [
        credit(fresh, 651), // the escrow holds 650
        credit(fresh, 0),
        credit(fresh, -5),
        credit(999 << 32, 5),                    // no such rain
        credit(rain.id.packet(0).get(), 300),    // paid to anna
        credit(discarded.packet.id.get(), 50),   // given back to the sponsor
        entry("user:anna", "sponsor:acme", 301), // she has 300
        entry("user:anna", "user:nobody", 1),
        entry("user:nobody", "user:anna", 1),
        entry("user:anna", "user:anna", 1),
        entry("deposits", "user:anna", 0),
        entry("deposits", "user:anna", -5),
    ];
    statements.extend(rows.iter().map(|row| format!("INSERT {row}")));
    if store.is_sqlite() {
        // Leniency that SQLite hands down into triggers.
        for lenient in ["OR REPLACE", "OR IGNORE", "OR FAIL", "OR ROLLBACK"] {
            statements.extend(rows.iter().map(|row| format!("INSERT {lenient} {row}")));
            statements.push(format!("UPDATE {lenient} credits SET cents = 1"));
            statements.push(format!(
                "UPDATE {lenient} accounts SET balance_cents = 5 WHERE name = 'user:anna'"
            ));
        }
        statements.push("INSERT OR REPLACE INTO accounts (name) VALUES ('user:anna')".into());
        statements.push(
            "INSERT OR REPLACE INTO entries (id, key, kind, from_account, to_account, cents, at_ms)
             SELECT id, key, kind, from_account, to_account, 1, at_ms FROM entries"
                .into(),
        );
    } else {
        for table in ["accounts", "credits", "entries", "rains"] {
            statements.push(format!("TRUNCATE {table}"));
        }
        statements.push(format!(
            "INSERT {} ON CONFLICT (packet_id) DO UPDATE SET user_id = 'bo'",
            rows[4]
        ));
    }
    for sql in &statements {
        refused(&store, sql).await;
    }
    assert_eq!(store.ledger.accounts("", None, 100).await.unwrap(), before);
}

async fn a_journal_row_written_by_hand_moves_its_money(store: Store) {
    let rain = store.rain(1_000).await;
    let first = rain.id.packet(0).get();
    let sql = format!(
        "INSERT INTO credits (packet_id, user_id, cents, at_ms)
         VALUES ({first}, 'anna', 100, 1), ({}, 'bo', 20, 1), ({}, 'anna', 3, 1)",
        first + 1,
        first + 2
    );
    assert_eq!(store.sql(&sql).await.unwrap(), 3);
    let sql = "INSERT INTO entries (key, kind, from_account, to_account, cents, at_ms)
               VALUES ('a', 'gift', 'user:anna', 'user:bo', 50, 1), ('b', 'gift', 'user:bo', 'sponsor:acme', 60, 1)";
    assert_eq!(store.sql(sql).await.unwrap(), 2);
    assert_eq!(
        store.balance(&format!("escrow:{}", rain.id)).await,
        Some(877)
    );
    assert_eq!(store.balance("user:anna").await, Some(53));
    assert_eq!(store.balance("user:bo").await, Some(10));
    store.assert_books_agree().await;
}
