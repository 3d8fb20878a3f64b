use hongbao::ledger::{AccountName, Booking, Discard, LedgerError, LedgerSettings, Verdict};
use hongbao::rain::split::Seed;
use hongbao::rain::{Cents, Claim, Part, Parts, Rain, RainId, State, Step, StepError, Window};

use super::{SEED, Store, claim, new_rain, on_both_stores, user_id};

on_both_stores!(
    a_rain_reads_back_as_asked_for_with_its_escrow_funded,
    a_sponsor_that_does_not_exist_or_cannot_pay_is_refused_by_name_and_amount,
    two_operators_at_once_on_a_sponsor_that_can_pay_once_make_one_rain,
    a_request_key_makes_one_rain_however_often_it_is_sent,
    a_rain_walks_through_its_states_and_every_step_may_be_repeated,
    a_step_that_the_state_does_not_allow_changes_nothing,
    opening_before_the_time_moves_the_window_and_closing_early_cuts_it,
    steps_at_once_are_taken_once,
    rains_are_listed_newest_first_in_pages,
    finished_rains_are_no_longer_work,
    a_refund_returns_the_rest_once,
    a_refund_of_nothing_takes_the_step_and_writes_no_entry,
    a_refund_needs_a_closed_rain_and_enough_escrow,
    two_refunds_at_once_pay_once,
    a_discard_returns_the_amount_once_and_never_after_a_credit,
    a_discard_and_a_credit_at_once_pay_one_of_the_two,
    totals_add_up,
);

async fn a_rain_reads_back_as_asked_for_with_its_escrow_funded(store: Store) {
    store.sponsor("acme", 1_500).await;
    let new = new_rain("acme", 1_000);
    let made = store
        .ledger
        .create_rain(&new, SEED, 77, None, |id| vec![id.get(), 9])
        .await
        .unwrap();
    let expected = Rain {
        id: made.id,
        title: new.title,
        room: new.room,
        sponsor: new.sponsor,
        parts: Parts::new(Part {
            split: new.split,
            seed: SEED,
            loaded: false,
        }),
        salts: vec![made.id.get(), 9],
        window: new.window,
        durability: new.durability,
        refund_after_ms: new.refund_after_ms,
        key_required: new.key_required,
        announce_at_ms: new.announce_at_ms,
        state: State::Created,
        sold_out: false,
        version: 1,
        created_at_ms: 77,
    };
    assert_eq!(made, expected);
    assert_eq!(store.ledger.rain(made.id).await.unwrap(), expected);
    assert_eq!(store.balance("sponsor:acme").await, Some(500));
    assert_eq!(
        store.balance(&format!("escrow:{}", made.id)).await,
        Some(1_000)
    );
    let unknown = store
        .ledger
        .rain(RainId::new(999).unwrap())
        .await
        .unwrap_err();
    assert_eq!(unknown.to_string(), "rain 999 does not exist");
    store.assert_books_agree().await;
}

async fn a_sponsor_that_does_not_exist_or_cannot_pay_is_refused_by_name_and_amount(store: Store) {
    let create = async |sponsor: &str, total| {
        let made = store
            .ledger
            .create_rain(&new_rain(sponsor, total), SEED, 1, None, |_| vec![])
            .await;
        made.unwrap_err().to_string()
    };
    assert_eq!(
        create("nobody", 1_000).await,
        "sponsor nobody has no account: open it and deposit money first"
    );
    store.sponsor("acme", 99_999).await;
    assert_eq!(
        create("acme", 100_000).await,
        "sponsor acme has 999.99, which does not pay for a rain of 1000.00: deposit more first"
    );
    assert!(create("two words", 1_000).await.contains("\"two words\""));
    assert_eq!(
        create("acme", 0).await,
        "total of a rain of 0.00 must be above zero"
    );
    assert!(
        store.ledger.rains(None, 10).await.unwrap().is_empty(),
        "nothing of them is left"
    );
    assert_eq!(
        store.ledger.accounts("escrow:", None, 10).await.unwrap(),
        []
    );
}

async fn two_operators_at_once_on_a_sponsor_that_can_pay_once_make_one_rain(store: Store) {
    let other = store.opened_again(LedgerSettings::default()).await;
    for round in 0..10 {
        let sponsor = format!("s{round}");
        store.sponsor(&sponsor, 1_500).await;
        let new = new_rain(&sponsor, 1_000);
        let (ours, theirs) = tokio::join!(
            store.ledger.create_rain(&new, SEED, 1, None, |_| vec![]),
            other.create_rain(&new, SEED, 1, None, |_| vec![]),
        );
        let refused = match (ours, theirs) {
            (Ok(_), Err(refused)) | (Err(refused), Ok(_)) => refused,
            both => panic!("{both:?}"),
        };
        assert!(
            matches!(
                refused,
                LedgerError::SponsorTooPoor {
                    balance: Cents(500),
                    ..
                }
            ),
            "{refused}"
        );
        assert_eq!(
            store.balance(&format!("sponsor:{sponsor}")).await,
            Some(500)
        );
    }
    store.assert_books_agree().await;
}

async fn a_request_key_makes_one_rain_however_often_it_is_sent(store: Store) {
    store.sponsor("acme", 5_000).await;
    let new = new_rain("acme", 1_000);
    let create = |new, seed| {
        store
            .ledger
            .create_rain(new, Seed([seed; 32]), 1, Some("tonight"), |_| vec![1])
    };
    let (first, second) = tokio::join!(create(&new, 1), create(&new, 2));
    let (first, second) = (first.unwrap(), second.unwrap());
    assert_eq!(first, second);

    // Opened early, its window is no longer the one that was asked for. The request still is.
    store.ledger.step(first.id, Step::Load).await.unwrap();
    store.ledger.open_rain(first.id, 5).await.unwrap();
    assert_eq!(create(&new, 3).await.unwrap().id, first.id);

    let error = create(&new_rain("acme", 1_001), 1).await.unwrap_err();
    assert!(
        matches!(&error, LedgerError::RequestKeyReused { key, rain } if key == "tonight" && *rain == first.id)
    );
    assert_eq!(store.balance("sponsor:acme").await, Some(4_000));
    store.assert_books_agree().await;
}

async fn a_rain_walks_through_its_states_and_every_step_may_be_repeated(store: Store) {
    let rain = store.rain(1_000).await;
    let steps = [
        (Step::Load, State::Ready),
        (Step::Open, State::Open),
        (Step::Pause, State::Paused),
        (Step::Resume, State::Open),
        (Step::Close, State::Closed),
    ];
    for (version, (step, state)) in (2..).zip(steps) {
        let stepped = store.ledger.step(rain.id, step).await.unwrap();
        assert_eq!((stepped.state, stepped.version), (state, version));
        let again = store.ledger.step(rain.id, step).await.unwrap();
        assert_eq!(again, stepped, "{step} twice");
        assert_eq!(store.ledger.rain(rain.id).await.unwrap(), stepped);
    }
    assert!(
        store.ledger.step(rain.id, Step::Refund).await.is_err(),
        "that would be a refund without its money"
    );
}

async fn a_step_that_the_state_does_not_allow_changes_nothing(store: Store) {
    let rain = store.rain(1_000).await;
    let error = store.ledger.step(rain.id, Step::Pause).await.unwrap_err();
    let LedgerError::Step { source, .. } = &error else {
        panic!("{error}")
    };
    assert_eq!(
        *source,
        StepError {
            state: State::Created,
            step: Step::Pause
        }
    );
    assert_eq!(
        error.to_string(),
        format!("rain {}: a rain that is created cannot be paused", rain.id)
    );
    assert_eq!(store.ledger.rain(rain.id).await.unwrap(), rain);
    let unknown = RainId::new(999).unwrap();
    assert!(
        matches!(store.ledger.step(unknown, Step::Load).await, Err(LedgerError::NoRain(id)) if id == unknown)
    );
}

async fn opening_before_the_time_moves_the_window_and_closing_early_cuts_it(store: Store) {
    store.sponsor("acme", 10_000).await;
    let window = |opens_at_ms, duration_ms| Window {
        opens_at_ms,
        duration_ms,
    };
    for (planned, opened_at, opened, closed_at, closed) in [
        (
            None,
            500,
            window(Some(500), 30_000),
            10_500,
            window(Some(500), 10_000),
        ),
        (
            Some(1_000),
            500,
            window(Some(500), 30_000),
            40_000,
            window(Some(500), 30_000),
        ),
        // Noticed late: the gate opened by its own clock, at the planned time.
        (
            Some(1_000),
            1_003,
            window(Some(1_000), 30_000),
            1_001,
            window(Some(1_000), 1),
        ),
    ] {
        let mut new = new_rain("acme", 1_000);
        new.window.opens_at_ms = planned;
        let rain = store
            .ledger
            .create_rain(&new, SEED, 1, None, |_| vec![])
            .await
            .unwrap();
        store.ledger.step(rain.id, Step::Load).await.unwrap();
        assert_eq!(
            store
                .ledger
                .open_rain(rain.id, opened_at)
                .await
                .unwrap()
                .window,
            opened
        );
        assert_eq!(
            store
                .ledger
                .open_rain(rain.id, opened_at + 1)
                .await
                .unwrap()
                .window,
            opened,
            "twice"
        );
        assert_eq!(
            store
                .ledger
                .close_rain(rain.id, closed_at)
                .await
                .unwrap()
                .window,
            closed
        );
    }
    let never_opened = store.rain(1_000).await;
    assert_eq!(
        store
            .ledger
            .close_rain(never_opened.id, 9)
            .await
            .unwrap()
            .window,
        never_opened.window
    );
}

async fn steps_at_once_are_taken_once(store: Store) {
    let rain = store.rain(1_000).await;
    let other = store.opened_again(LedgerSettings::default()).await;
    let (a, b, c) = tokio::join!(
        store.ledger.step(rain.id, Step::Load),
        other.step(rain.id, Step::Load),
        store.ledger.step(rain.id, Step::Load),
    );
    for loaded in [a, b, c] {
        assert_eq!(loaded.unwrap().version, 2);
    }
}

async fn rains_are_listed_newest_first_in_pages(store: Store) {
    let mut made = Vec::new();
    for _ in 0..5 {
        made.push(store.rain(10).await);
    }
    made.reverse();
    let first = store.ledger.rains(None, 2).await.unwrap();
    let second = store.ledger.rains(Some(first[1].id), 2).await.unwrap();
    let last = store.ledger.rains(Some(second[1].id), 2).await.unwrap();
    assert_eq!([first, second, last].concat(), made);
}

async fn finished_rains_are_no_longer_work(store: Store) {
    let (done, open) = (store.rain(10).await, store.rain(10).await);
    store.ledger.close_rain(done.id, 1).await.unwrap();
    store.ledger.refund(done.id, Cents(10), 2).await.unwrap();
    store.ledger.step(done.id, Step::Finish).await.unwrap();
    assert_eq!(store.ledger.unfinished_rains().await.unwrap(), [open]);
}

async fn a_refund_returns_the_rest_once(store: Store) {
    let rain = store.rain(1_000).await;
    store.credit(&[claim(&rain, 0, 300, "anna")]).await;
    store.ledger.close_rain(rain.id, 1).await.unwrap();
    let refund = async |cents| store.ledger.refund(rain.id, Cents(cents), 5).await.unwrap();
    assert_eq!(refund(600).await, Booking::Done); // 100 are still on their way to users
    assert_eq!(refund(600).await, Booking::Existed);
    let first = Booking::Different {
        from: AccountName::Escrow(rain.id),
        to: AccountName::sponsor("acme").unwrap(),
        cents: Cents(600),
    };
    assert_eq!(refund(700).await, first);
    assert_eq!(refund(0).await, first);
    assert_eq!(store.balance("sponsor:acme").await, Some(600));
    assert_eq!(
        store.ledger.rain(rain.id).await.unwrap().state,
        State::Refunded
    );
    store.ledger.step(rain.id, Step::Finish).await.unwrap();
    assert_eq!(refund(600).await, Booking::Existed);
    store.assert_books_agree().await;
}

async fn a_refund_of_nothing_takes_the_step_and_writes_no_entry(store: Store) {
    let rain = store.rain(1_000).await;
    store.ledger.close_rain(rain.id, 1).await.unwrap();
    let refund = async |cents| store.ledger.refund(rain.id, Cents(cents), 5).await.unwrap();
    assert_eq!(refund(0).await, Booking::Done);
    assert_eq!(refund(0).await, Booking::Existed);
    assert!(matches!(
        refund(1_000).await,
        Booking::Different {
            cents: Cents(0),
            ..
        }
    ));
    assert_eq!(
        store.ledger.rain(rain.id).await.unwrap().state,
        State::Refunded
    );
    assert_eq!(
        store.balance(&format!("escrow:{}", rain.id)).await,
        Some(1_000)
    );
    assert!(store.ledger.refund(rain.id, Cents(-1), 5).await.is_err());
}

async fn a_refund_needs_a_closed_rain_and_enough_escrow(store: Store) {
    let rain = store.rain(1_000).await;
    let error = store
        .ledger
        .refund(rain.id, Cents(10), 5)
        .await
        .unwrap_err();
    assert!(matches!(error, LedgerError::Step { .. }), "{error}");
    store.ledger.close_rain(rain.id, 1).await.unwrap();
    let error = store
        .ledger
        .refund(rain.id, Cents(1_001), 5)
        .await
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "escrow of rain {} holds 10.00, less than the 10.01 that were to leave it",
            rain.id
        )
    );
    assert_eq!(
        store.ledger.rain(rain.id).await.unwrap().state,
        State::Closed,
        "the step went back with the money"
    );
    store.assert_books_agree().await;
}

async fn two_refunds_at_once_pay_once(store: Store) {
    let other = store.opened_again(LedgerSettings::default()).await;
    for _ in 0..10 {
        let rain = store.rain(1_000).await;
        store.ledger.close_rain(rain.id, 1).await.unwrap();
        let (a, b) = tokio::join!(
            store.ledger.refund(rain.id, Cents(400), 5),
            other.refund(rain.id, Cents(400), 6)
        );
        let both = [a.unwrap(), b.unwrap()];
        assert!(
            both.contains(&Booking::Done) && both.contains(&Booking::Existed),
            "{both:?}"
        );
        assert_eq!(
            store.balance(&format!("escrow:{}", rain.id)).await,
            Some(600)
        );
    }
    store.assert_books_agree().await;
}

async fn a_discard_returns_the_amount_once_and_never_after_a_credit(store: Store) {
    let rain = store.rain(1_000).await;
    let (lost, paid) = (claim(&rain, 0, 300, "ghost"), claim(&rain, 1, 200, "anna"));
    let discard = async |claim: &Claim| store.ledger.discard(claim, "closed", 5).await;
    assert_eq!(discard(&lost).await.unwrap(), Discard::Done);
    assert_eq!(discard(&lost).await.unwrap(), Discard::Existed);
    let other_amount = claim(&rain, 0, 301, "ghost");
    let other_amount = discard(&other_amount).await.unwrap();
    assert_eq!(other_amount, Discard::Different { cents: Cents(300) });
    assert_eq!(store.balance("sponsor:acme").await, Some(300));

    store.credit(std::slice::from_ref(&paid)).await;
    let credited = Discard::Credited {
        user: user_id("anna"),
        cents: Cents(200),
    };
    assert_eq!(discard(&paid).await.unwrap(), credited);
    let too_much = claim(&rain, 2, 501, "x");
    let error = discard(&too_much).await.unwrap_err();
    assert!(
        matches!(
            error,
            LedgerError::EscrowTooPoor {
                balance: Cents(500),
                ..
            }
        ),
        "{error}"
    );
    store.assert_books_agree().await;
}

async fn a_discard_and_a_credit_at_once_pay_one_of_the_two(store: Store) {
    let rain = store.rain(10_000).await;
    let other = store.opened_again(LedgerSettings::default()).await;
    for index in 0..50 {
        let claim = [claim(&rain, index, 100, "anna")];
        let (credited, discarded) = tokio::join!(
            store.ledger.credit(&claim, 1),
            other.discard(&claim[0], "gone", 2)
        );
        match (&credited.unwrap()[..], discarded.unwrap()) {
            ([Verdict::Credited], Discard::Credited { .. })
            | ([Verdict::Discarded], Discard::Done) => {}
            both => panic!("{both:?}"),
        }
    }
    store.assert_books_agree().await;
}

async fn totals_add_up(store: Store) {
    store.rain(5_000).await; // another rain's money is not counted
    let rain = store.rain(1_000).await;
    store
        .credit(&[claim(&rain, 0, 300, "anna"), claim(&rain, 1, 50, "bo")])
        .await;
    store
        .ledger
        .discard(&claim(&rain, 2, 20, "ghost"), "gone", 5)
        .await
        .unwrap();
    store.ledger.close_rain(rain.id, 1).await.unwrap();
    store.ledger.refund(rain.id, Cents(600), 5).await.unwrap();
    let totals = store.ledger.rain_totals(rain.id).await.unwrap();
    assert_eq!(
        (totals.funded, totals.credited, totals.credited_count),
        (Cents(1_000), Cents(350), 2)
    );
    assert_eq!(
        (totals.refunded, totals.discarded, totals.discarded_count),
        (Cents(600), Cents(20), 1)
    );
    assert_eq!(totals.escrow_balance, Cents(30));
    assert!(
        store
            .ledger
            .rain_totals(RainId::new(999).unwrap())
            .await
            .is_err()
    );
}
