use hongbao::ledger::{Ledger, LedgerError, LedgerSettings, ToppedUp};
use hongbao::rain::split::{Rule, Seed, Split, Tier};
use hongbao::rain::{Cents, Part, Rain, State, Step, TopUp};

use super::{SEED, Store, new_rain, on_both_stores};

on_both_stores!(
    a_top_up_is_a_further_part_and_its_money_is_in_the_escrow,
    a_top_up_is_made_once_per_key_whatever_becomes_of_the_rain,
    a_key_belongs_to_one_request_for_one_rain,
    the_same_top_up_at_once_is_made_once,
    different_top_ups_at_once_get_numbers_of_their_own,
    a_sponsor_who_can_pay_once_tops_up_once,
    what_cannot_be_topped_up_is_refused_with_the_reason_and_takes_nothing,
    a_close_and_a_top_up_at_once_come_one_after_the_other,
    a_rain_is_never_recorded_as_sold_out_by_somebody_who_missed_a_top_up,
    parts_are_recorded_as_loaded_in_their_order,
    rains_with_top_ups_are_listed_whole,
    the_database_keeps_a_top_up_as_it_was_made,
    a_ledger_of_the_first_release_keeps_its_rains,
);

/// Packets of a cent each, more or less.
fn packets(packets: u32) -> TopUp {
    TopUp {
        packets,
        total: Cents(i64::from(packets) * 10),
        rule: None,
        min: None,
        max: None,
    }
}

async fn top_up(
    ledger: &Ledger,
    rain: &Rain,
    asked: TopUp,
    key: &str,
) -> Result<ToppedUp, LedgerError> {
    ledger.top_up(rain.id, &asked, Seed([9; 32]), 40, key).await
}

async fn a_top_up_is_a_further_part_and_its_money_is_in_the_escrow(store: Store) {
    let rain = store.rain(1_000).await;
    store.sponsor("acme", 700).await;
    let line_cut = TopUp {
        packets: 7,
        total: Cents(600),
        rule: Some(Rule::LineCut),
        min: Some(Cents(2)),
        max: None,
    };
    let made = top_up(&store.ledger, &rain, line_cut, "more")
        .await
        .unwrap();
    assert_eq!((made.number, made.rain.version), (1, rain.version + 1));
    let expected = Part {
        split: Split {
            rule: Rule::LineCut,
            total: Cents(600),
            packets: 7,
            min: Cents(2),
            max: Cents(1_000), // the rain's own
        },
        seed: Seed([9; 32]),
        loaded: false,
    };
    assert_eq!(made.rain.parts.first(), rain.parts.first());
    assert_eq!(made.rain.parts.top_ups(), [expected]);
    assert_eq!(made.rain.parts.packets(), 17);
    assert_eq!(store.ledger.rain(rain.id).await.unwrap(), made.rain);
    assert_eq!(
        made.rain.fingerprint(),
        rain.fingerprint(),
        "its buckets stay its own"
    );

    let second = top_up(&store.ledger, &rain, packets(10), "yet more")
        .await
        .unwrap();
    assert_eq!((second.number, second.rain.parts.packets()), (2, 27));
    assert_eq!(store.balance("sponsor:acme").await, Some(0));
    let escrow = format!("escrow:{}", rain.id);
    assert_eq!(store.balance(&escrow).await, Some(1_700));
    let totals = store.ledger.rain_totals(rain.id).await.unwrap();
    assert_eq!(totals.funded, Cents(1_700));
    for number in [1, 2] {
        let sql = format!(
            "DELETE FROM entries WHERE key = 'fund:{}:{number}' AND kind = 'fund'",
            rain.id
        );
        assert!(
            store.sql(&sql).await.is_err(),
            "there is such an entry, and it stays"
        );
    }
    store.assert_books_agree().await;
}

async fn a_top_up_is_made_once_per_key_whatever_becomes_of_the_rain(store: Store) {
    let rain = store.rain(1_000).await;
    store.sponsor("acme", 500).await;
    let first = top_up(&store.ledger, &rain, packets(10), "k")
        .await
        .unwrap();
    let again = top_up(&store.ledger, &rain, packets(10), "k")
        .await
        .unwrap();
    assert_eq!(again, first);
    store.ledger.close_rain(rain.id, 50).await.unwrap();
    let late = store
        .ledger
        .top_up(rain.id, &packets(10), Seed([1; 32]), 99_999_999, "k")
        .await
        .unwrap();
    assert_eq!((late.number, late.rain.state), (1, State::Closed));
    assert_eq!(late.rain.parts, first.rain.parts, "the first seed stays");
    assert_eq!(store.balance("sponsor:acme").await, Some(400));
    store.assert_books_agree().await;
}

async fn a_key_belongs_to_one_request_for_one_rain(store: Store) {
    let (rain, other) = (store.rain(1_000).await, store.rain(1_000).await);
    store.sponsor("acme", 500).await;
    top_up(&store.ledger, &rain, packets(10), "k")
        .await
        .unwrap();
    let more = TopUp {
        total: Cents(101),
        ..packets(10)
    };
    for (rain, asked) in [(&rain, more), (&other, packets(10))] {
        let refused = top_up(&store.ledger, rain, asked, "k").await.unwrap_err();
        let first = rain.id.get().min(other.id.get() - 1);
        assert_eq!(
            refused.to_string(),
            format!(
                "key \"k\" made top-up 1 of rain {first} from another request: use a new key for a new top-up"
            )
        );
    }
    assert_eq!(store.ledger.rain(other.id).await.unwrap(), other);
    assert_eq!(store.balance("sponsor:acme").await, Some(400));
    for key in ["", "tab\t", &"x".repeat(129)] {
        let refused = top_up(&store.ledger, &rain, packets(1), key).await;
        assert!(matches!(refused, Err(LedgerError::Key(_))), "{key:?}");
    }
}

async fn the_same_top_up_at_once_is_made_once(store: Store) {
    let others = [
        store.opened_again(LedgerSettings::default()).await,
        store.opened_again(LedgerSettings::default()).await,
    ];
    let rain = store.rain(1_000).await;
    store.sponsor("acme", 1_000).await;
    for round in 0..10 {
        let key = format!("round {round}");
        let (a, b, c) = tokio::join!(
            top_up(&store.ledger, &rain, packets(10), &key),
            top_up(&others[0], &rain, packets(10), &key),
            top_up(&others[1], &rain, packets(10), &key),
        );
        for made in [a, b, c] {
            assert_eq!(made.unwrap().number, round + 1);
        }
    }
    assert_eq!(store.balance("sponsor:acme").await, Some(0));
    let rain = store.ledger.rain(rain.id).await.unwrap();
    assert_eq!(rain.parts.packets(), 110);
    store.assert_books_agree().await;
}

async fn different_top_ups_at_once_get_numbers_of_their_own(store: Store) {
    let other = store.opened_again(LedgerSettings::default()).await;
    let rain = store.rain(1_000).await;
    store.sponsor("acme", 2_000).await;
    let mut numbers = vec![];
    for round in 0..10 {
        let (ours, theirs) = (format!("ours {round}"), format!("theirs {round}"));
        let (a, b) = tokio::join!(
            top_up(&store.ledger, &rain, packets(7), &ours),
            top_up(&other, &rain, packets(3), &theirs),
        );
        numbers.extend([a.unwrap().number, b.unwrap().number]);
    }
    numbers.sort_unstable();
    assert_eq!(numbers, (1..=20).collect::<Vec<u32>>());
    assert_eq!(store.balance("sponsor:acme").await, Some(1_000));
    let rain = store.ledger.rain(rain.id).await.unwrap();
    assert_eq!((rain.parts.packets(), rain.version), (110, 21));
    store.assert_books_agree().await;
}

async fn a_sponsor_who_can_pay_once_tops_up_once(store: Store) {
    let other = store.opened_again(LedgerSettings::default()).await;
    let (one, two) = (store.rain(1_000).await, store.rain(1_000).await);
    store.sponsor("acme", 150).await;
    let made = tokio::join!(
        top_up(&store.ledger, &one, packets(10), "one"),
        top_up(&other, &two, packets(10), "two"),
    );
    let refused = match made {
        (Ok(_), Err(refused)) | (Err(refused), Ok(_)) => refused,
        both => panic!("{both:?}"),
    };
    assert_eq!(
        refused.to_string(),
        "sponsor acme has 0.50, which does not pay for a top-up of 1.00: deposit more first"
    );
    assert_eq!(store.balance("sponsor:acme").await, Some(50));
    store.assert_books_agree().await;
}

async fn what_cannot_be_topped_up_is_refused_with_the_reason_and_takes_nothing(store: Store) {
    store.sponsor("acme", 100_000).await;
    let create = async |rule: Rule| {
        let mut new = new_rain("acme", 1_000);
        new.split.rule = rule;
        let made = store.ledger.create_rain(&new, SEED, 2, None, |_| vec![1]);
        made.await.unwrap()
    };
    let (rain, closed) = (create(Rule::Even).await, create(Rule::Even).await);
    let table = create(Rule::Tiers(vec![Tier {
        count: 10,
        cents: Cents(100),
    }]))
    .await;
    let past = create(Rule::Even).await;
    store.ledger.step(past.id, Step::Load).await.unwrap();
    store.ledger.open_rain(past.id, 5).await.unwrap(); // closes 30,000 ms later
    store.ledger.close_rain(closed.id, 1).await.unwrap();
    let before = store.balance("sponsor:acme").await;
    let with = |packets, total| TopUp {
        total: Cents(total),
        ..super::top_ups::packets(packets)
    };
    for (rain, at_ms, asked, reason) in [
        (
            &rain,
            40,
            with(0, 100),
            "packets is 0: it must be from 1 to 100000000",
        ),
        (
            &rain,
            40,
            with(1, 0),
            "total is 0.00: it must be from 0.01 to",
        ),
        (
            &rain,
            40,
            with(11, 10),
            "total is 0.10: 11 packets of at least 0.01 (min) each take at least 0.11",
        ),
        (
            &rain,
            40,
            with(2, 2_001),
            "2 packets of at most 10.00 (max) each hold at most 20.00",
        ),
        (
            &rain,
            40,
            with(99_999_991, 99_999_991),
            "packets is 99999991: the rain has 10, and may have at most 100000000 in all",
        ),
        (&rain, 40, with(5, -5), "total is -0.05"),
        (
            &rain,
            40,
            with(100_000, 100_001),
            "sponsor acme has 960.00, which does not pay for a top-up of 1000.01",
        ),
        (
            &table,
            40,
            with(1, 1),
            "the rain was created with a prize table",
        ),
        (
            &closed,
            40,
            with(1, 1),
            "a rain that is closed cannot be topped up",
        ),
        (
            &past,
            30_005,
            with(1, 1),
            "closed at 30005 ms: it cannot be topped up any more",
        ),
    ] {
        let known = store.ledger.rain(rain.id).await.unwrap();
        let refused = store
            .ledger
            .top_up(rain.id, &asked, SEED, at_ms, "k")
            .await
            .unwrap_err()
            .to_string();
        assert!(refused.contains(reason), "{refused}\nis not\n{reason}");
        assert_eq!(store.ledger.rain(rain.id).await.unwrap(), known);
    }
    // One millisecond earlier it was still open.
    let last = with(1, 1);
    let last = store.ledger.top_up(past.id, &last, SEED, 30_004, "k");
    last.await.unwrap();
    assert_eq!(
        store.balance("sponsor:acme").await,
        before.map(|cents| cents - 1)
    );

    let own_table = TopUp {
        rule: Some(Rule::Tiers(vec![Tier {
            count: 3,
            cents: Cents(5),
        }])),
        ..with(3, 15)
    };
    top_up(&store.ledger, &table, own_table.clone(), "own")
        .await
        .unwrap();
    let wrong_sum = TopUp {
        total: Cents(16),
        ..own_table
    };
    let refused = top_up(&store.ledger, &table, wrong_sum, "sum")
        .await
        .unwrap_err();
    assert!(refused.to_string().contains("add up to 0.15"), "{refused}");

    store
        .ledger
        .refund(closed.id, Cents(1_000), 6)
        .await
        .unwrap();
    let refused = top_up(&store.ledger, &closed, with(1, 1), "x")
        .await
        .unwrap_err();
    assert!(refused.to_string().contains("is refunded"), "{refused}");
    store.assert_books_agree().await;
}

async fn a_close_and_a_top_up_at_once_come_one_after_the_other(store: Store) {
    let other = store.opened_again(LedgerSettings::default()).await;
    let (mut topped_up, mut refused) = (0, 0);
    for round in 0..20 {
        let rain = store.rain(1_000).await;
        let key = format!("money {round}");
        store
            .ledger
            .deposit("acme", Cents(100), &key, 1)
            .await
            .unwrap();
        let (closed, made) = tokio::join!(
            other.close_rain(rain.id, 30),
            top_up(&store.ledger, &rain, packets(10), &key)
        );
        closed.unwrap();
        let rain = store.ledger.rain(rain.id).await.unwrap();
        assert_eq!(rain.state, State::Closed);
        let escrow = store.balance(&format!("escrow:{}", rain.id)).await;
        assert_eq!(
            escrow,
            Some(rain.parts.total().0),
            "funded is what the record says"
        );
        match made {
            Ok(_) => topped_up += 1,
            Err(LedgerError::Step { .. }) => refused += 1,
            Err(other) => panic!("{other}"),
        }
        assert_eq!(rain.parts.total() == Cents(1_100), rain.parts.count() == 2);
    }
    println!("{topped_up} before the close, {refused} after it");
    store.assert_books_agree().await;
}

async fn a_rain_is_never_recorded_as_sold_out_by_somebody_who_missed_a_top_up(store: Store) {
    let rain = store.rain(1_000).await;
    store.sponsor("acme", 300).await;
    let sold_out = async |version| {
        let rain = store
            .ledger
            .set_sold_out_if(rain.id, version, 5)
            .await
            .unwrap();
        (rain.sold_out, rain.version)
    };
    assert_eq!(sold_out(rain.version).await, (true, 2));
    assert_eq!(sold_out(2).await, (true, 2), "twice");
    let made = top_up(&store.ledger, &rain, packets(10), "k")
        .await
        .unwrap();
    assert_eq!((made.rain.sold_out, made.rain.version), (false, 3));
    // A steward that counted before the top-up records it afterwards.
    assert_eq!(sold_out(1).await, (false, 3));
    assert_eq!(sold_out(2).await, (false, 3));
    assert_eq!(sold_out(3).await, (true, 4));
    // A repeat is no second top-up: what is sold out stays so.
    let again = top_up(&store.ledger, &rain, packets(10), "k")
        .await
        .unwrap();
    assert!(again.rain.sold_out);
}

async fn parts_are_recorded_as_loaded_in_their_order(store: Store) {
    let rain = store.rain(1_000).await;
    store.sponsor("acme", 300).await;
    top_up(&store.ledger, &rain, packets(10), "a")
        .await
        .unwrap();
    let other = store.opened_again(LedgerSettings::default()).await;
    let loaded = async |parts| {
        let both = tokio::join!(
            store.ledger.loaded(rain.id, parts),
            other.loaded(rain.id, parts)
        );
        let rain = both.0.unwrap();
        assert_eq!(both.1.unwrap(), rain, "two stewards record it once");
        (rain.state, rain.parts.loaded_packets(), rain.version)
    };
    assert_eq!(loaded(2).await, (State::Ready, 20, 3));
    // One that began before the top-up says less than is known.
    assert_eq!(loaded(1).await, (State::Ready, 20, 3));
    store.ledger.open_rain(rain.id, 5).await.unwrap();
    top_up(&store.ledger, &rain, packets(5), "b").await.unwrap();
    top_up(&store.ledger, &rain, packets(5), "c").await.unwrap();
    assert_eq!(loaded(3).await, (State::Open, 25, 7));
    store.ledger.step(rain.id, Step::Pause).await.unwrap();
    assert_eq!(loaded(4).await, (State::Paused, 30, 9));
    top_up(&store.ledger, &rain, packets(5), "d").await.unwrap();
    let closed = store.ledger.close_rain(rain.id, 50).await.unwrap();
    assert_eq!(loaded(5).await, (State::Closed, 30, closed.version));

    let called_off = store.rain(10).await;
    let closed = store.ledger.close_rain(called_off.id, 1).await.unwrap();
    assert_eq!(store.ledger.loaded(called_off.id, 1).await.unwrap(), closed);
    let refused = store.ledger.step(rain.id, Step::TopUp).await;
    assert!(refused.is_err(), "that would be a top-up without its money");
}

async fn rains_with_top_ups_are_listed_whole(store: Store) {
    store.sponsor("acme", 10_000).await;
    let mut made = vec![];
    for n in 0..4u32 {
        let rain = store.rain(1_000).await;
        for top in 0..n {
            top_up(&store.ledger, &rain, packets(n), &format!("{n}-{top}"))
                .await
                .unwrap();
        }
        made.push(store.ledger.rain(rain.id).await.unwrap());
    }
    assert_eq!(store.ledger.unfinished_rains().await.unwrap(), made);
    made.reverse();
    let first = store.ledger.rains(None, 2).await.unwrap();
    let second = store.ledger.rains(Some(first[1].id), 2).await.unwrap();
    assert_eq!([first, second].concat(), made);
    let counts: Vec<u32> = made.iter().map(|rain| rain.parts.count()).collect();
    assert_eq!(counts, [4, 3, 2, 1]);
}

async fn the_database_keeps_a_top_up_as_it_was_made(store: Store) {
    let rain = store.rain(1_000).await;
    store.sponsor("acme", 300).await;
    top_up(&store.ledger, &rain, packets(10), "k")
        .await
        .unwrap();
    let known = store.ledger.rain(rain.id).await.unwrap();
    let mut statements = vec![
        "UPDATE top_ups SET split = '{}'".to_owned(),
        "UPDATE top_ups SET number = 2".to_owned(),
        "UPDATE top_ups SET request_key = 'other'".to_owned(),
        "UPDATE top_ups SET loaded = 2".to_owned(),
        "DELETE FROM top_ups".to_owned(),
        "DELETE FROM rains".to_owned(),
    ];
    let values = "SELECT rain_id, number, 'other', request, '{}', seed, created_at_ms FROM top_ups";
    let columns = "(rain_id, number, request_key, request, split, seed, created_at_ms)";
    statements.push(format!("INSERT INTO top_ups {columns} {values}"));
    if store.is_sqlite() {
        statements.push(format!("INSERT OR REPLACE INTO top_ups {columns} {values}"));
    } else {
        statements.push("TRUNCATE top_ups".to_owned());
        statements.push("TRUNCATE rains CASCADE".to_owned());
    }
    for sql in statements {
        assert!(store.sql(&sql).await.is_err(), "let through: {sql}");
        assert_eq!(store.ledger.rain(rain.id).await.unwrap(), known, "{sql}");
    }
}

/// As a database that release 0.1 has left: without the tables of later migrations.
async fn a_ledger_of_the_first_release_keeps_its_rains(store: Store) {
    let rain = store.rain(1_000).await;
    let loaded = store.rain(1_000).await;
    store.ledger.step(loaded.id, Step::Load).await.unwrap();
    let rains = store.ledger.unfinished_rains().await.unwrap();
    store
        .sql(
            "DROP TABLE top_ups; DROP TABLE api_keys; DROP TABLE requests; DROP TABLE log; DROP TABLE openings; DROP TABLE schedules;
             DROP TABLE delivery_attempts; DROP TABLE deliveries; DROP TABLE events; DROP TABLE webhooks;
             DROP TABLE templates; DROP TABLE console_sessions; ALTER TABLE rains DROP COLUMN key_required; ALTER TABLE rains DROP COLUMN announce_at_ms;
             DELETE FROM _sqlx_migrations WHERE version > 1",
        )
        .await
        .unwrap();
    let ledger = store.opened_again(LedgerSettings::default()).await;
    assert_eq!(ledger.unfinished_rains().await.unwrap(), rains);
    assert_eq!(rains[1].parts.loaded_packets(), 10);
    store.sponsor("acme", 100).await;
    let made = top_up(&ledger, &rain, packets(10), "k").await.unwrap();
    assert_eq!(made.rain.parts.packets(), 20);
}
