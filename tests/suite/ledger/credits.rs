use hongbao::ledger::{CREDIT_BATCH_MAX, Discard, LedgerError, LedgerSettings, Refusal, Verdict};
use hongbao::rain::{Cents, Claim, RainId};

use super::{Store, claim, on_both_stores, user_id};

on_both_stores!(
    a_new_claim_moves_its_amount_from_escrow_to_user,
    a_claim_sent_again_is_found_and_pays_nothing,
    a_packet_paid_to_another_user_or_with_another_amount_is_a_conflict,
    a_claim_of_a_rain_that_does_not_exist_is_refused,
    a_claim_without_an_amount_is_refused,
    an_unknown_user_is_refused_where_accounts_are_opened_beforehand,
    a_batch_with_one_bad_claim_credits_the_rest,
    many_bad_claims_among_good_ones_are_each_found,
    a_packet_twice_in_a_batch_is_paid_once,
    a_discarded_packet_is_never_credited,
    the_same_batch_by_two_settlers_at_once_pays_each_claim_once,
    opposite_orders_at_once_do_not_lock_each_other_up,
    a_batch_beyond_the_limit_is_refused_whole,
    an_empty_batch_is_answered,
);

async fn a_new_claim_moves_its_amount_from_escrow_to_user(store: Store) {
    let rain = store.rain(1_000).await;
    let verdicts = store
        .credit(&[claim(&rain, 0, 300, "anna"), claim(&rain, 1, 200, "bo")])
        .await;
    assert_eq!(verdicts, [Verdict::Credited, Verdict::Credited]);
    assert_eq!(
        store.balance(&format!("escrow:{}", rain.id)).await,
        Some(500)
    );
    assert_eq!(store.balance("user:anna").await, Some(300));
    assert_eq!(store.balance("user:bo").await, Some(200));
    store.assert_books_agree().await;
}

async fn a_claim_sent_again_is_found_and_pays_nothing(store: Store) {
    let rain = store.rain(1_000).await;
    let (first, second) = (claim(&rain, 0, 300, "anna"), claim(&rain, 1, 200, "bo"));
    store.credit(std::slice::from_ref(&first)).await;
    assert_eq!(
        store.credit(&[second.clone(), first.clone()]).await,
        [Verdict::Credited, Verdict::Existed]
    );
    assert_eq!(
        store.credit(&[second, first]).await,
        [Verdict::Existed, Verdict::Existed]
    );
    assert_eq!(store.balance("user:anna").await, Some(300));
    assert_eq!(store.balance("user:bo").await, Some(200));
    store.assert_books_agree().await;
}

async fn a_packet_paid_to_another_user_or_with_another_amount_is_a_conflict(store: Store) {
    let rain = store.rain(1_000).await;
    store.credit(&[claim(&rain, 0, 300, "anna")]).await;
    let conflict = Verdict::Conflict {
        user: user_id("anna"),
        cents: Cents(300),
    };
    let verdicts = store.credit(&[claim(&rain, 0, 300, "bo")]).await;
    assert_eq!(verdicts, std::slice::from_ref(&conflict));
    let verdicts = store
        .credit(&[claim(&rain, 1, 1, "cy"), claim(&rain, 0, 301, "anna")])
        .await;
    assert_eq!(verdicts, [Verdict::Credited, conflict]);
    assert_eq!(
        store.balance("user:bo").await,
        None,
        "a refused credit opens no account"
    );
    store.assert_books_agree().await;
}

async fn a_claim_of_a_rain_that_does_not_exist_is_refused(store: Store) {
    let rain = store.rain(1_000).await;
    let mut stray = claim(&rain, 0, 300, "anna");
    stray.packet.id = RainId::new(999).unwrap().packet(0);
    let verdicts = store.credit(&[stray, claim(&rain, 0, 300, "anna")]).await;
    assert_eq!(
        verdicts,
        [Verdict::Refused(Refusal::UnknownRain), Verdict::Credited]
    );
}

async fn a_claim_without_an_amount_is_refused(store: Store) {
    let rain = store.rain(1_000).await;
    let verdicts = store
        .credit(&[
            claim(&rain, 0, 0, "anna"),
            claim(&rain, 1, -300, "bo"),
            claim(&rain, 2, 5, "cy"),
        ])
        .await;
    let refused = Verdict::Refused(Refusal::NotMoney);
    assert_eq!(verdicts, [refused.clone(), refused, Verdict::Credited]);
    store.assert_books_agree().await;
}

async fn an_unknown_user_is_refused_where_accounts_are_opened_beforehand(store: Store) {
    let rain = store.rain(1_000).await;
    let settings = LedgerSettings {
        create_user_accounts: false,
        ..LedgerSettings::default()
    };
    let strict = store.opened_again(settings).await;
    strict.open_user(&user_id("anna")).await.unwrap();
    let claims = [claim(&rain, 0, 300, "anna"), claim(&rain, 1, 200, "bo")];
    let verdicts = strict.credit(&claims, 10).await.unwrap();
    assert_eq!(verdicts, [Verdict::Credited, Verdict::UnknownAccount]);
    assert_eq!(store.balance("user:bo").await, None);

    strict.open_user(&user_id("bo")).await.unwrap();
    let verdicts = strict.credit(&claims, 10).await.unwrap();
    assert_eq!(verdicts, [Verdict::Existed, Verdict::Credited]);
    store.assert_books_agree().await;
}

async fn a_batch_with_one_bad_claim_credits_the_rest(store: Store) {
    let rich = store.rain(100_000).await;
    let poor = store.rain(50).await;
    let mut claims: Vec<Claim> = (0..999)
        .map(|i| claim(&rich, i, 100, &format!("u{i}")))
        .collect();
    claims.insert(417, claim(&poor, 0, 51, "greedy"));
    let verdicts = store.credit(&claims).await;
    for (i, verdict) in verdicts.iter().enumerate() {
        match i {
            417 => assert_eq!(
                *verdict,
                Verdict::Refused(Refusal::EscrowTooPoor { balance: Cents(50) })
            ),
            _ => assert_eq!(*verdict, Verdict::Credited, "claim {i}"),
        }
    }
    assert_eq!(
        store.balance(&format!("escrow:{}", rich.id)).await,
        Some(100)
    );
    assert_eq!(
        store.balance(&format!("escrow:{}", poor.id)).await,
        Some(50)
    );
    assert_eq!(store.balance("user:greedy").await, None);
    store.assert_books_agree().await;
}

async fn many_bad_claims_among_good_ones_are_each_found(store: Store) {
    let rich = store.rain(100_000).await;
    let poor = store.rain(7).await;
    let bad = |i: u32| i % 16 == 3;
    let claims: Vec<Claim> = (0..200)
        .map(|i| {
            if bad(i) {
                claim(&poor, i, 8, "x")
            } else {
                claim(&rich, i, 1, &format!("u{}", i % 9))
            }
        })
        .collect();
    let verdicts = store.credit(&claims).await;
    for (i, verdict) in (0..).zip(&verdicts) {
        assert_eq!(
            *verdict == Verdict::Credited,
            !bad(i),
            "claim {i}: {verdict:?}"
        );
    }
    store.assert_books_agree().await;
}

async fn a_packet_twice_in_a_batch_is_paid_once(store: Store) {
    let rain = store.rain(1_000).await;
    let verdicts = store
        .credit(&[
            claim(&rain, 0, 300, "anna"),
            claim(&rain, 1, 200, "bo"),
            claim(&rain, 0, 300, "anna"),
            claim(&rain, 0, 300, "bo"),
        ])
        .await;
    let conflict = Verdict::Conflict {
        user: user_id("anna"),
        cents: Cents(300),
    };
    assert_eq!(
        verdicts,
        [
            Verdict::Credited,
            Verdict::Credited,
            Verdict::Existed,
            conflict
        ]
    );
    assert_eq!(store.balance("user:anna").await, Some(300));
    store.assert_books_agree().await;
}

async fn a_discarded_packet_is_never_credited(store: Store) {
    let rain = store.rain(1_000).await;
    let lost = claim(&rain, 0, 300, "anna");
    let discarded = store
        .ledger
        .discard(&lost, "no such person", 9)
        .await
        .unwrap();
    assert_eq!(discarded, Discard::Done);
    let verdicts = store.credit(&[claim(&rain, 1, 5, "bo"), lost]).await;
    assert_eq!(verdicts, [Verdict::Credited, Verdict::Discarded]);
    assert_eq!(store.balance("user:anna").await, None);
    store.assert_books_agree().await;
}

async fn the_same_batch_by_two_settlers_at_once_pays_each_claim_once(store: Store) {
    let rain = store.rain(100_000).await;
    let other = store.opened_again(LedgerSettings::default()).await;
    for round in 0..10 {
        let claims: Vec<Claim> = (0..500)
            .map(|i| claim(&rain, round * 500 + i, 3, &format!("u{}", i % 50)))
            .collect();
        let (ours, theirs) =
            tokio::join!(store.ledger.credit(&claims, 1), other.credit(&claims, 2));
        for (ours, theirs) in ours.unwrap().iter().zip(&theirs.unwrap()) {
            let both = [ours, theirs];
            assert!(
                both.contains(&&Verdict::Credited) && both.contains(&&Verdict::Existed),
                "{both:?}"
            );
        }
    }
    let totals = store.ledger.rain_totals(rain.id).await.unwrap();
    assert_eq!(
        (totals.credited, totals.credited_count),
        (Cents(15_000), 5_000)
    );
    store.assert_books_agree().await;
}

async fn opposite_orders_at_once_do_not_lock_each_other_up(store: Store) {
    let rains = [store.rain(100_000).await, store.rain(100_000).await];
    let batch = |settler: u32, round: u32| -> Vec<Claim> {
        let users = (0..40).map(|i| if settler.is_multiple_of(2) { i } else { 39 - i });
        let at = |i: u32| (round * 4 + settler) * 40 + i;
        users
            .map(|i| {
                claim(
                    &rains[(i + settler) as usize % 2],
                    at(i),
                    1,
                    &format!("u{i}"),
                )
            })
            .collect()
    };
    let settlers = (0..4).map(|settler| {
        let ledger = store.ledger.clone();
        let batches: Vec<_> = (0..25).map(|round| batch(settler, round)).collect();
        tokio::spawn(async move {
            for claims in batches {
                let verdicts = ledger.credit(&claims, 1).await.unwrap(); // a deadlock would be an error
                assert!(
                    verdicts.iter().all(|verdict| *verdict == Verdict::Credited),
                    "{verdicts:?}"
                );
            }
        })
    });
    for settler in settlers.collect::<Vec<_>>() {
        settler.await.unwrap();
    }
    assert_eq!(store.balance("user:u0").await, Some(100));
    store.assert_books_agree().await;
}

async fn a_batch_beyond_the_limit_is_refused_whole(store: Store) {
    let rain = store.rain(10_000).await;
    let claims = vec![claim(&rain, 0, 1, "anna"); CREDIT_BATCH_MAX + 1];
    let error = store.ledger.credit(&claims, 1).await.unwrap_err();
    assert!(
        matches!(
            error,
            LedgerError::BatchTooLarge {
                claims: 2_001,
                max: 2_000
            }
        ),
        "{error}"
    );
}

async fn an_empty_batch_is_answered(store: Store) {
    assert_eq!(store.credit(&[]).await, []);
}
