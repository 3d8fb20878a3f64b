//! A company's own balance system, which misbehaves on command: every packet is paid once, on both sides, whatever it does.

/// The company is away, slow, or talks nonsense: nothing is lost, nobody is blamed, and it is not asked too often.
mod outages;

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use axum::http::HeaderMap;
use hongbao::config;
use hongbao::ledger::{Balance, Endpoint, EndpointSettings, Refusal, Verdict};
use hongbao::post::Trust;
use hongbao::rain::{Claim, Rain};
use hongbao::store::bucket::Census;

use crate::support::bench::{Bench, Settlers};
use crate::support::company::{Company, Fault, SECRET, balance, reference};
use crate::support::eventually;

/// Settlers at work, with short back-offs.
fn impatient(bench: &Bench, balance: Balance, workers: usize, attempts_max: u32) -> Settlers {
    let settings = config::Settle {
        workers,
        attempts_max,
        retry_base: Duration::from_millis(10),
        retry_max: Duration::from_millis(20),
        ..bench.settle().clone()
    };
    Settlers::paying_by(bench, &settings, balance)
}

async fn census(bench: &Bench, rain: &Rain) -> Census {
    let mut sum = Census::default();
    for bucket in bench.buckets(rain) {
        sum = sum.plus(bucket.census().await.unwrap());
    }
    sum
}

/// Settles what there is; returns the census then.
async fn settled(bench: &Bench, rain: &Rain, balance: Balance, workers: usize) -> Census {
    let settlers = impatient(bench, balance, workers, 10);
    let after = eventually("no claim on its way", async || {
        let census = census(bench, rain).await;
        (census.unsettled() == 0).then_some(census)
    })
    .await;
    settlers.stop().await;
    after
}

/// Dead letters: packet and reason.
async fn dead(bench: &Bench, rain: &Rain) -> HashMap<String, String> {
    let mut letters = HashMap::new();
    for bucket in bench.buckets(rain) {
        let (cursor, page) = bucket.dead_scan(0).await.unwrap();
        assert_eq!(cursor, 0);
        letters.extend(page.into_iter().map(|letter| {
            let letter = letter.unwrap();
            (letter.claim.packet.id.to_string(), letter.reason)
        }));
    }
    letters
}

/// Our credits in the form of the company's payments.
async fn credited(bench: &Bench, rain: &Rain) -> Vec<(String, String, i64)> {
    let credits = bench.ledger.credits_after(rain.id, None, 100_000).await;
    let line = |credit: &hongbao::ledger::Credit| {
        let (packet, user) = (credit.packet, credit.user.to_string());
        (packet.id.to_string(), user, packet.cents.0)
    };
    credits.unwrap().iter().map(line).collect()
}

/// Both books hold the same `count` payments, and the audit finds nothing wrong.
async fn assert_agreed(bench: &Bench, company: &Company, rain: &Rain, count: usize) {
    let (ours, theirs) = (credited(bench, rain).await, company.paid().await);
    assert_eq!(ours, theirs);
    assert_eq!(ours.len(), count);
    assert_balanced(bench, rain).await;
}

async fn assert_balanced(bench: &Bench, rain: &Rain) {
    let report = bench.audit(rain.id).await;
    assert!(report.balanced, "{:?}", report.differences);
    assert!(bench.ledger.books().await.unwrap().agree());
}

/// A claim of packet number `index` of the rain, with its own amount.
fn claim(rain: &Rain, index: u32, user: &str) -> Claim {
    let cents = rain.parts.amounts().unwrap()[index as usize];
    format!("{}:{}:{user}", rain.id.packet(index), cents.0)
        .parse()
        .unwrap()
}

#[tokio::test]
async fn every_win_is_paid_by_the_company_and_recorded_once() {
    let bench = Bench::new(3).await;
    let rain = bench.open(2_000, 200_000).await;
    bench.grab(&rain, "user", 900).await;
    let company = Company::start(|_| Fault::Behave).await;
    let after = settled(&bench, &rain, company.balance(&bench.ledger), 2).await;
    assert_eq!(after.dead, 0);
    assert_agreed(&bench, &company, &rain, 900).await;
    let asked = company.asked();
    assert!(asked.iter().all(|asked| asked.packets.len() <= 100));
    let packets: Vec<&String> = asked.iter().flat_map(|asked| &asked.packets).collect();
    assert_eq!(packets.len(), 900, "each is asked for once");
    assert_eq!(packets.iter().collect::<HashSet<_>>().len(), 900);
}

#[tokio::test]
async fn a_wrong_amount_or_user_in_the_answer_is_a_conflict_for_a_person() {
    let bench = Bench::new(2).await;
    let rain = bench.open(200, 20_000).await;
    bench.grab(&rain, "user", 100).await;
    let company = Company::start(|asked| match asked.number {
        0 => Fault::Edit(|results| {
            let cents = results[0]["amount_cents"].as_i64().unwrap();
            results[0]["amount_cents"] = (cents + 1).into();
            results[1]["user"] = "somebody-else".into();
        }),
        _ => Fault::Behave,
    })
    .await;
    let after = settled(&bench, &rain, company.balance(&bench.ledger), 1).await;
    assert_eq!(after.dead, 2);
    let letters = dead(&bench, &rain).await;
    let spoiled = &company.asked()[0].packets[..2];
    for packet in spoiled {
        assert!(letters[packet].starts_with("conflict: "), "{letters:?}");
    }
    assert!(
        letters[&spoiled[1]].contains("somebody-else"),
        "{letters:?}"
    );
    // What is in doubt is not in our books; everything else is in both.
    let (ours, mut theirs) = (credited(&bench, &rain).await, company.paid().await);
    theirs.retain(|(packet, ..)| !spoiled.contains(packet));
    assert_eq!((ours.len(), ours), (98, theirs));
    assert_balanced(&bench, &rain).await;
}

#[tokio::test]
async fn answers_out_of_order_with_items_left_out_doubled_or_foreign_pay_each_packet_once() {
    let bench = Bench::new(2).await;
    let rain = bench.open(600, 60_000).await;
    bench.grab(&rain, "user", 300).await;
    let company = Company::start(|asked| {
        if asked.number >= 3 {
            return Fault::Behave;
        }
        Fault::Edit(|results| {
            results.reverse();
            results.drain(..10); // ten left out
            let mut again = results[0].clone();
            results.push(again.clone()); // doubled, with the same content
            again["result"] = "rejected".into();
            again["packet_id"] = results[1]["packet_id"].clone();
            results.push(again); // doubled, with another
            let mut foreign = results[2].clone();
            foreign["packet_id"] = "9999999999999".into();
            results.push(foreign);
            results.push(serde_json::json!("nonsense"));
        })
    })
    .await;
    let after = settled(&bench, &rain, company.balance(&bench.ledger), 1).await;
    assert_eq!(after.dead, 0);
    assert_agreed(&bench, &company, &rain, 300).await;
    let again: usize = company
        .asked()
        .iter()
        .map(|asked| asked.packets.len())
        .sum();
    assert_eq!(
        again,
        300 + 3 * 11,
        "only what was left out or in doubt is asked for again"
    );
}

#[tokio::test]
async fn a_claim_that_has_to_wait_is_tried_again_and_given_to_a_person_in_the_end() {
    let bench = Bench::new(1).await;
    let rain = bench.open(10, 1_000).await;
    bench.grab(&rain, "user", 10).await;
    let company = Company::start(|asked| match asked.number {
        // The first packet of the first two answers has to wait …
        0 | 1 => Fault::Edit(|results| {
            let packet = results[0]["packet_id"].clone();
            results[0] = serde_json::json!({"packet_id": packet, "result": "retry", "reason": "account locked"});
        }),
        _ => Fault::Behave,
    })
    .await;
    let after = settled(&bench, &rain, company.balance(&bench.ledger), 1).await;
    assert_eq!(after.dead, 0);
    assert_agreed(&bench, &company, &rain, 10).await;
    let asked = company.asked();
    let first = asked[0].packets[0].clone();
    assert_eq!(asked.len(), 3);
    assert_eq!(
        (&asked[1].packets, &asked[2].packets),
        (&vec![first.clone()], &vec![first])
    );

    // … and here always.
    let rain = bench.open(3, 300).await;
    bench.grab(&rain, "user", 3).await;
    let company = Company::start(|_| {
        Fault::Edit(|results| {
            for result in results {
                let packet = result["packet_id"].clone();
                *result = serde_json::json!({"packet_id": packet, "result": "retry", "reason": "account locked"});
            }
        })
    })
    .await;
    let settlers = impatient(&bench, company.balance(&bench.ledger), 1, 4);
    eventually("dead letters", async || {
        (census(&bench, &rain).await.dead == 3).then_some(())
    })
    .await;
    settlers.stop().await;
    let asked: usize = company
        .asked()
        .iter()
        .map(|asked| asked.packets.len())
        .sum();
    assert_eq!(asked, 3 * 4, "as often as settle.attempts_max says");
    let expected = "attempts_used_up: last error: balance system: account locked";
    for reason in dead(&bench, &rain).await.values() {
        assert_eq!(reason, expected);
    }
    assert_balanced(&bench, &rain).await;
}

#[tokio::test]
async fn a_rejected_claim_goes_to_a_person_and_the_others_are_paid() {
    let bench = Bench::new(2).await;
    let rain = bench.open(400, 40_000).await;
    bench.grab(&rain, "user", 200).await;
    let company = Company::start(|_| Fault::Behave).await;
    company.close_account("user-17").await;
    let after = settled(&bench, &rain, company.balance(&bench.ledger), 2).await;
    assert_eq!(after.dead, 1);
    let letters = dead(&bench, &rain).await;
    let reason = "rejected: the account is closed, or the amount is not above zero";
    assert_eq!(letters.values().collect::<Vec<_>>(), [reason]);
    assert_agreed(&bench, &company, &rain, 199).await;
}

#[test]
fn the_reference_refuses_every_signature_but_the_right_one() {
    // Computed by openssl: printf '%s' '1790000000000.{"claims":[]}' | openssl dgst -sha256 -mac HMAC -macopt hexkey:5e…5e
    const SIGNATURE: &str = "v1=e0e66438e5aaa60e54b863dc12110584627743f6d8d4acde144407d89c6bdc87";
    const AT_MS: i64 = 1_790_000_000_000;
    let body = br#"{"claims":[]}"#;
    let verify = |timestamp: &str, signature: &str, body: &[u8], now_ms: i64| {
        let mut headers = HeaderMap::new();
        headers.insert("hongbao-timestamp", timestamp.parse().unwrap());
        headers.insert("hongbao-signature", signature.parse().unwrap());
        reference::verify(&SECRET, &headers, body, now_ms)
    };
    let at = AT_MS.to_string();
    assert_eq!(verify(&at, SIGNATURE, body, AT_MS), Ok(()));
    assert_eq!(verify(&at, SIGNATURE, body, AT_MS + 300_000), Ok(()));
    assert!(
        verify(&at, SIGNATURE, body, AT_MS + 300_001).is_err(),
        "a replay"
    );
    assert!(
        verify(&at, SIGNATURE, body, AT_MS - 300_001).is_err(),
        "a fast clock"
    );
    assert!(
        verify(&at, SIGNATURE, br#"{"claims":[] }"#, AT_MS).is_err(),
        "another body"
    );
    assert!(
        verify("1790000000001", SIGNATURE, body, AT_MS).is_err(),
        "another time"
    );
    let flipped = SIGNATURE.replace(
        &SIGNATURE[3..4],
        if &SIGNATURE[3..4] == "0" { "1" } else { "0" },
    );
    for signature in [&flipped, &SIGNATURE[3..], &SIGNATURE[..65], "v1=", ""] {
        assert!(verify(&at, signature, body, AT_MS).is_err(), "{signature}");
    }
    assert!(reference::verify(&SECRET, &HeaderMap::new(), body, AT_MS).is_err());
}

#[tokio::test]
async fn no_more_requests_are_under_way_than_allowed() {
    let bench = Bench::new(2).await;
    let rain = bench.open(2_400, 240_000).await;
    bench.grab(&rain, "user", 1_200).await;
    // Requests are held in pairs: with less concurrency than allowed, the first of a pair would wait for ever.
    let waiting = std::sync::Mutex::new(None::<tokio::sync::oneshot::Sender<()>>);
    let company = Company::start(move |_| {
        let other = waiting.lock().unwrap().take();
        if let Some(other) = other {
            other.send(()).ok();
            return Fault::Behave;
        }
        let (release, released) = tokio::sync::oneshot::channel();
        *waiting.lock().unwrap() = Some(release);
        Fault::After(released)
    })
    .await;
    let settings = EndpointSettings {
        batch_max: 30,
        concurrency_max: 2,
        ..company.settings()
    };
    // One batch of 1,200 is an even number of requests.
    let claims: Vec<Claim> = credit_claims(&bench, &rain).await;
    let paying = balance(&bench.ledger, settings);
    let (one, two) = claims.split_at(600);
    let both = tokio::join!(paying.credit(one, 1), paying.credit(two, 1));
    let credited = [both.0.unwrap(), both.1.unwrap()].concat();
    assert!(credited.iter().all(|verdict| *verdict == Verdict::Credited));
    let asked = company.asked();
    assert_eq!(asked.len(), 40);
    assert_eq!(asked.iter().map(|asked| asked.in_flight).max(), Some(2));
}

/// The claims that wait, as a settler would lease them.
async fn credit_claims(bench: &Bench, rain: &Rain) -> Vec<Claim> {
    let mut claims = vec![];
    for bucket in bench.buckets(rain) {
        let page = bucket.claims_page(0, 10_000).await.unwrap();
        claims.extend(page.into_iter().map(Result::unwrap));
    }
    claims
}

#[tokio::test]
async fn what_the_ledger_knows_beforehand_is_not_posted() {
    let bench = Bench::new(1).await;
    let rain = bench.open(10, 1_000).await;
    let company = Company::start(|_| Fault::Behave).await;
    let paying = company.balance(&bench.ledger);
    let [paid, discarded, fresh] =
        [(0, "anna"), (1, "bert"), (2, "cleo")].map(|(index, user)| claim(&rain, index, user));
    bench
        .ledger
        .credit(std::slice::from_ref(&paid), 1)
        .await
        .unwrap();
    bench.ledger.discard(&discarded, "a test", 1).await.unwrap();
    let stolen = Claim {
        user: fresh.user.clone(),
        ..paid.clone()
    };
    let foreign: Claim = "4000000000000000000:5:anna".parse().unwrap();
    let claims = [
        paid.clone(),
        discarded,
        stolen,
        foreign,
        fresh.clone(),
        fresh.clone(),
    ];
    let conflict = Verdict::Conflict {
        user: paid.user.clone(),
        cents: paid.packet.cents,
    };
    let verdicts = paying.credit(&claims, 2).await.unwrap();
    assert_eq!(
        verdicts,
        [
            Verdict::Existed,
            Verdict::Discarded,
            conflict,
            Verdict::Refused(Refusal::UnknownRain),
            Verdict::Credited,
            Verdict::Existed, // the same claim twice in a batch
        ]
    );
    let posted: Vec<String> = company
        .asked()
        .into_iter()
        .flat_map(|asked| asked.packets)
        .collect();
    assert_eq!(posted, [fresh.packet.id.to_string()]);
    assert_eq!(paying.credit(&[], 2).await.unwrap(), []);
}

#[tokio::test]
async fn money_that_was_paid_and_cannot_be_recorded_reaches_a_person() {
    let bench = Bench::new(1).await;
    let rain = bench.open(10, 1_000).await;
    let (release, released) = tokio::sync::oneshot::channel();
    let mut released = Some(released);
    let company = Company::start(move |_| Fault::After(released.take().unwrap())).await;
    let paying = company.balance(&bench.ledger);
    let claims = [claim(&rain, 3, "anna")];
    let discarding = async {
        eventually("the request", async || {
            (company.asked().len() == 1).then_some(())
        })
        .await;
        bench.ledger.discard(&claims[0], "a test", 1).await.unwrap();
        release.send(()).unwrap();
    };
    let (verdicts, ()) = tokio::join!(paying.credit(&claims, 2), discarding);
    let lost = Verdict::Unrecorded("its money went back to the sponsor meanwhile".into());
    assert_eq!(verdicts.unwrap(), [lost]);
    assert_eq!(company.paid().await.len(), 1);
}

/// A settler that dies after the other side's commit and before its own.
#[tokio::test]
async fn a_crash_between_the_two_commits_repeats_work_and_not_money() {
    let bench = Bench::new(1).await;
    let rain = bench.open(10, 1_000).await;
    let company = Company::start(|asked| match asked.number {
        0 => Fault::Silent,
        _ => Fault::Behave,
    })
    .await;
    let paying = company.balance(&bench.ledger);
    let claims = [claim(&rain, 3, "anna"), claim(&rain, 4, "bert")];
    tokio::select! {
        _ = paying.credit(&claims, 1) => panic!("there was no answer"),
        () = eventually("the other side's commit", async || (company.paid().await.len() == 2).then_some(())) => {}
    }
    assert_eq!(credited(&bench, &rain).await, []);
    let verdicts = paying.credit(&claims, 2).await.unwrap();
    assert_eq!(verdicts, [Verdict::Credited, Verdict::Credited]);
    assert_eq!(company.paid().await, credited(&bench, &rain).await);
    assert_eq!(bench.balance("user:anna").await, claims[0].packet.cents.0);
}

#[tokio::test]
async fn https_is_spoken_with_whom_the_certificate_file_vouches_for() {
    let bench = Bench::new(1).await;
    let rain = bench.open(10, 1_000).await;
    let company = Company::start(|_| Fault::Behave).await;
    let names = vec!["127.0.0.1".to_owned()];
    let [ours, foreign] =
        [(); 2].map(|()| rcgen::generate_simple_self_signed(names.clone()).unwrap());
    let address = company.listen_tls(&ours).await;
    let dir = tempfile::tempdir().unwrap();
    let paying = |certificate: &rcgen::Certificate| {
        let file = dir.path().join("ca.pem");
        std::fs::write(&file, certificate.pem()).unwrap();
        let settings = EndpointSettings {
            url: format!("https://{address}/hongbao").parse().unwrap(),
            trust: Trust::File(file),
            ..company.settings()
        };
        balance(&bench.ledger, settings)
    };
    let claims = [claim(&rain, 0, "anna")];
    let verdicts = paying(&foreign.cert).credit(&claims, 1).await.unwrap();
    let [Verdict::Unknown(reason)] = &verdicts[..] else {
        panic!("{verdicts:?}")
    };
    assert!(reason.contains("certificate"), "{reason}");
    assert_eq!(company.asked().len(), 0);
    let verdicts = paying(&ours.cert).credit(&claims, 1).await.unwrap();
    assert_eq!(verdicts, [Verdict::Credited]);
    let nobody = EndpointSettings {
        trust: Trust::File(dir.path().join("nowhere")),
        ..company.settings()
    };
    assert!(Endpoint::new(nobody).is_err());
}
