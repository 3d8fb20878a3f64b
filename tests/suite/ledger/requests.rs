//! Writes by their idempotency key, keys of the admin API, the log: on both stores.

use hongbao::ledger::{Begun, End, Write};

use super::{Store, on_both_stores};

on_both_stores!(
    a_request_whose_holder_died_is_taken_over_and_answered_once,
    what_nobody_ended_is_logged_as_unknown_and_old_answers_are_forgotten,
    a_good_key_is_known_however_many_were_revoked_since,
    a_line_of_the_log_and_a_key_are_there_for_good,
);

fn write(path: &str) -> Write {
    Write {
        request_id: "r1".into(),
        caller: "k1".into(),
        caller_name: "anna".into(),
        method: "POST".into(),
        path: path.into(),
        operation: "open_rain".into(),
        target: "rain:7".into(),
        before: Some("{}".into()),
    }
}

fn done(answer: &str) -> End {
    End {
        at_ms: 9,
        status: 200,
        outcome: "done".into(),
        after: Some(answer.into()),
        answer: Some(answer.into()),
    }
}

async fn a_request_whose_holder_died_is_taken_over_and_answered_once(store: Store) {
    let (ledger, ours, theirs) = (&store.ledger, write("/a"), write("/b"));
    let begin = async |holder: &str, now_ms| {
        let begun = ledger.begin_request("key", "print", holder, &ours, now_ms, 100);
        begun.await.unwrap()
    };
    assert_eq!(begin("first", 1_000).await, Begun::Ours);
    assert_eq!(begin("second", 1_100).await, Begun::AtWork);
    ledger.hold_request("key", "first", 1_200).await.unwrap();
    assert_eq!(begin("second", 1_150).await, Begun::AtWork);
    assert_eq!(begin("second", 1_201).await, Begun::Ours, "it ran out");
    assert_eq!(begin("third", 1_250).await, Begun::AtWork);
    // The first wakes up: its answer does not count, and is in the log all the same.
    let end = async |holder: &str, answer: &str| {
        let end = done(answer);
        ledger.end_request("key", holder, &write("/a"), &end).await
    };
    end("first", "\"late\"").await.unwrap();
    end("second", "\"right\"").await.unwrap();
    let answered = Begun::Answered {
        status: 200,
        answer: "\"right\"".into(),
    };
    assert_eq!(begin("third", 1_260).await, answered);
    let other = ledger.begin_request("key", "other", "x", &theirs, 1_260, 100);
    assert_eq!(other.await.unwrap(), Begun::Different);
    assert_eq!(ledger.log_lines(None, None, 10).await.unwrap().len(), 2);
}

async fn what_nobody_ended_is_logged_as_unknown_and_old_answers_are_forgotten(store: Store) {
    let (ledger, ours) = (&store.ledger, write("/a"));
    let begin = async |key: &str, now_ms| {
        let begun = ledger.begin_request(key, "print", key, &ours, now_ms, 100);
        begun.await.unwrap()
    };
    begin("died", 1_000).await;
    begin("done", 1_000).await;
    let end = done("1");
    let ended = ledger.end_request("done", "done", &ours, &end);
    ended.await.unwrap();
    assert_eq!(ledger.sweep_requests(1_050, 1_050, 500).await.unwrap(), 0);
    assert_eq!(ledger.sweep_requests(2_000, 1_101, 500).await.unwrap(), 1);
    let log = ledger.log_lines(Some("rain:7"), None, 10).await.unwrap();
    assert_eq!((log.len(), log[0].status, log[0].at_ms), (2, 0, 2_000));
    assert!(log[0].outcome.starts_with("unknown"));
    assert_eq!(log[0].write, write("/a"));
    assert!(matches!(begin("done", 2_000).await, Begun::Answered { .. }));
    assert_eq!(ledger.sweep_requests(3_000, 0, 1_001).await.unwrap(), 0);
    assert_eq!(begin("done", 3_000).await, Begun::Ours);
}

async fn a_good_key_is_known_however_many_were_revoked_since(store: Store) {
    let ledger = &store.ledger;
    let revoked = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2100)
        INSERT INTO api_keys (id, name, roles, generation, secret_hash, created_at_ms, revoked_at_ms)
        SELECT 'r' || i, 'x', 'viewer', 1, 'h', 1000 + i, 5000 FROM n";
    store.sql(revoked).await.unwrap();
    let good = "INSERT INTO api_keys (id, name, roles, generation, secret_hash, created_at_ms) VALUES ('old', 'x', 'viewer', 1, 'h', 1)";
    store.sql(good).await.unwrap();
    let known = ledger.known_api_keys(6_000, 0).await.unwrap();
    assert_eq!(known[0].id, "old");
    assert!(known.len() <= 2_000);
}

async fn a_line_of_the_log_and_a_key_are_there_for_good(store: Store) {
    let ledger = &store.ledger;
    ledger.log_alone(&write("/a"), &done("1")).await.unwrap();
    let key = hongbao::ledger::ApiKey {
        id: "k1".into(),
        name: "anna".into(),
        roles: "viewer".into(),
        generation: 1,
        secret_hash: "h".into(),
        overlap_until_ms: 0,
        created_at_ms: 5,
        expires_at_ms: None,
        revoked_at_ms: None,
        last_used_at_ms: None,
    };
    assert_eq!(ledger.create_api_key(&key).await.unwrap(), key);
    let other = hongbao::ledger::ApiKey {
        name: "ben".into(),
        ..key.clone()
    };
    assert_eq!(ledger.create_api_key(&other).await.unwrap(), key);
    ledger.revoke_api_key("k1", 7).await.unwrap();
    let again = ledger.revoke_api_key("k1", 8).await.unwrap();
    assert_eq!(again.revoked_at_ms, Some(7));
    for sql in [
        "UPDATE log SET outcome = 'done'",
        "DELETE FROM log",
        "UPDATE api_keys SET revoked_at_ms = NULL",
        "DELETE FROM api_keys",
    ] {
        assert!(store.sql(sql).await.is_err(), "{sql}");
    }
    assert_eq!(ledger.log_lines(None, None, 10).await.unwrap().len(), 1);
}
