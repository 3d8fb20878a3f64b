//! Nodes that come back as another process, with less than they had, or with nothing.

/// Rains that are over.
mod closed;

use std::collections::{HashMap, HashSet};

use hongbao::rain::{PacketId, Rain, State, UserId};
use hongbao::steward::audit::{self, Kind};
use hongbao::steward::repair::{Repair, Report};
use hongbao::store::bucket_of;
use hongbao::store::grab::{Answer, Gate, Grabbed};
use redis::Value;

use crate::support::bench::{Bench, give};
use crate::support::eventually;

/// Taps once for each user; who won what, and the gates that were met.
async fn tap(
    bench: &Bench,
    rain: &Rain,
    users: &[String],
) -> (HashMap<String, PacketId>, HashSet<String>) {
    let (mut wins, mut gates) = (HashMap::new(), HashSet::new());
    let buckets = bench.buckets(rain);
    for user in users {
        let bucket = &buckets[bucket_of(rain.id, user, buckets.len())];
        let Ok(Value::BulkString(reply)) = bucket.grab([user.as_str()].into_iter()).await else {
            gates.insert("away".to_owned());
            continue;
        };
        let reply = String::from_utf8(reply).unwrap();
        let mut answer = Answer::read(&reply).unwrap();
        gates.insert(format!("{:?}", answer.gate));
        if let Some(Some(Grabbed::Won(packet) | Grabbed::AlreadyWon(packet))) = answer.next() {
            wins.insert(user.clone(), packet.id);
        }
    }
    (wins, gates)
}

fn users(prefix: &str, count: u32) -> Vec<String> {
    (0..count).map(|n| format!("{prefix}-{n}")).collect()
}

/// Users of one bucket.
fn users_of(rain: &Rain, bucket: usize, buckets: usize, prefix: &str, count: usize) -> Vec<String> {
    (0u32..)
        .map(|n| format!("{prefix}-{n}"))
        .filter(|user| bucket_of(rain.id, user, buckets) == bucket)
        .take(count)
        .collect()
}

async fn settle_all(bench: &Bench, rain: &Rain) {
    bench
        .settling(eventually("all claims to settle", async || {
            let mut unsettled = 0;
            for bucket in bench.buckets(rain) {
                unsettled += bucket.census().await.unwrap().unsettled();
            }
            (unsettled == 0).then_some(())
        }))
        .await;
}

async fn repair(bench: &Bench, rain: &Rain) -> Report {
    let rain = bench.rain(rain.id).await;
    let report = eventually("the repair", async || {
        match bench.steward.repair(&rain).await {
            Ok(Repair::Done(report)) => Some(report),
            _ => None,
        }
    })
    .await;
    bench.advance(rain.id).await.unwrap();
    report
}

async fn close(bench: &Bench, rain: &Rain) {
    let now = hongbao::clock::now_ms();
    bench.ledger.close_rain(rain.id, now).await.unwrap();
}

/// What the audit says when the steward has brought a closed rain to its end.
async fn finished(bench: &Bench, rain: &Rain) -> audit::Report {
    eventually("the end", async || {
        (bench.advance(rain.id).await == Ok(State::Finished)).then_some(())
    })
    .await;
    let audit = bench.audit(rain.id).await;
    assert!(audit.balanced, "{:?}", audit.differences);
    audit
}

/// Everybody in the ledger once, with the packet that they were told.
async fn assert_paid(bench: &Bench, rain: &Rain, told: &HashMap<String, PacketId>) {
    let credits = bench
        .ledger
        .credits_after(rain.id, None, 100_000)
        .await
        .unwrap();
    let paid: HashMap<String, PacketId> = credits
        .iter()
        .map(|credit| (credit.user.to_string(), credit.packet.id))
        .collect();
    assert_eq!(paid.len(), credits.len(), "nobody is paid twice");
    for (user, packet) in told {
        assert_eq!(paid.get(user), Some(packet), "{user}");
    }
}

#[tokio::test]
async fn nothing_is_given_after_a_restart_until_the_bucket_is_compared_and_then_it_goes_on() {
    let mut bench = Bench::new(2).await;
    let rain = bench.open(400, 40_000).await;
    let (mut told, _) = tap(&bench, &rain, &users("early", 100)).await;
    bench.nodes[1].restart().await;
    let late = users("late", 100);
    let (by_now, gates) = tap(&bench, &rain, &late).await;
    assert!(
        gates.contains("Suspect") || gates.contains("away"),
        "{gates:?}"
    );
    assert!(gates.contains("Open"), "the other node goes on: {gates:?}");
    told.extend(by_now);
    let (again, gates) = tap(&bench, &rain, &users("early", 100)).await;
    assert!(gates.contains("Suspect"), "{gates:?}");
    assert!(
        again
            .iter()
            .all(|(user, packet)| told.get(user) == Some(packet))
            && again.len() == 100,
        "who has won is told so all the while"
    );

    // The steward finds it by itself, and waits for settlers to finish before it reads the ledger.
    eventually("the steward to repair it", async || {
        let _ = bench.advance(rain.id).await;
        let (wins, gates) = tap(&bench, &rain, &late).await;
        told.extend(wins);
        (gates.len() == 1 && gates.contains("Open")).then_some(())
    })
    .await;
    settle_all(&bench, &rain).await;
    let report = bench.audit(rain.id).await;
    assert!(report.balanced, "{:?}", report.differences);
    assert_eq!(told.len(), 200, "nobody has lost anything");
    assert_paid(&bench, &rain, &told).await;
}

#[tokio::test]
async fn a_node_that_lost_its_last_seconds_gets_back_the_wins_that_were_paid() {
    let mut bench = Bench::new(2).await;
    let rain = bench.open(400, 40_000).await;
    let (mut told, _) = tap(&bench, &rain, &users("early", 50)).await;
    settle_all(&bench, &rain).await;
    let before = bench.nodes[1].aof_len();
    let (paid, _) = tap(&bench, &rain, &users("paid", 100)).await;
    settle_all(&bench, &rain).await;
    let (unpaid, _) = tap(&bench, &rain, &users("unpaid", 60)).await;
    bench.nodes[1].roll_back(before).await;

    let report = repair(&bench, &rain).await;
    let on_node_1 = |users: &HashMap<String, PacketId>| {
        users
            .keys()
            .filter(|user| bucket_of(rain.id, user, 2) == 1)
            .count() as u64
    };
    assert_eq!(report.buckets, [1]);
    assert_eq!(report.wins_restored, on_node_1(&paid));
    assert_eq!(report.packets_removed, on_node_1(&paid));
    assert_eq!((report.packets_returned, report.not_restored_total), (0, 0));

    // Messages that the node had forgotten are there again, others not twice.
    for user in paid.keys() {
        let user = UserId::new(user).unwrap();
        let inbox = bench.store.read_inbox(&user, 0, 10).await.unwrap();
        assert_eq!(inbox.messages.len(), 1, "{user}");
    }
    // Who was paid keeps the packet. Who was not has lost it, and may win another.
    let (again, gates) = tap(&bench, &rain, &users("paid", 100)).await;
    assert_eq!(
        (again, gates),
        (paid.clone(), HashSet::from(["Open".to_owned()]))
    );
    told.extend(paid);
    told.extend(
        unpaid
            .into_iter()
            .filter(|(user, _)| bucket_of(rain.id, user, 2) == 0),
    );
    let (rest, _) = tap(&bench, &rain, &users("unpaid", 60)).await;
    told.extend(rest);
    settle_all(&bench, &rain).await;
    let (more, _) = tap(&bench, &rain, &users("more", 400)).await;
    told.extend(more);
    settle_all(&bench, &rain).await;
    let report = bench.audit(rain.id).await;
    assert!(report.balanced, "{:?}", report.differences);
    assert_eq!(report.dead_count, 0, "no packet was paid twice");
    assert_paid(&bench, &rain, &told).await;
}

#[tokio::test]
async fn a_node_that_comes_back_empty_is_filled_from_the_ledger_and_never_taken_for_sold_out() {
    let mut bench = Bench::new(3).await;
    let rain = bench.open(600, 60_000).await;
    let (paid, _) = tap(&bench, &rain, &users("paid", 150)).await;
    settle_all(&bench, &rain).await;
    let (unpaid, _) = tap(&bench, &rain, &users("unpaid", 60)).await;
    bench.nodes[2].restart_empty().await;
    let lost = unpaid
        .keys()
        .filter(|user| bucket_of(rain.id, user, 3) == 2)
        .count() as u64;
    let kept = paid
        .keys()
        .filter(|user| bucket_of(rain.id, user, 3) == 2)
        .count() as u64;

    let (nobody, gates) = tap(&bench, &rain, &users_of(&rain, 2, 3, "new", 5)).await;
    assert!(nobody.is_empty() && !gates.contains("Open"), "{gates:?}");
    let report = repair(&bench, &rain).await;
    assert_eq!(
        (report.buckets.as_slice(), report.wins_restored),
        (&[2][..], kept)
    );
    assert_eq!(
        report.packets_returned,
        200 - kept,
        "{lost} of them had been won"
    );
    assert!(!bench.rain(rain.id).await.sold_out);
    let (again, _) = tap(&bench, &rain, &users("paid", 150)).await;
    assert_eq!(again, paid);

    // The rain goes on to its end.
    for round in 0..30 {
        tap(&bench, &rain, &users(&format!("more-{round}"), 60)).await;
        let _ = bench.advance(rain.id).await;
        if bench.rain(rain.id).await.sold_out {
            break;
        }
    }
    assert!(bench.rain(rain.id).await.sold_out);
    settle_all(&bench, &rain).await;
    let report = bench.audit(rain.id).await;
    assert!(report.balanced, "{:?}", report.differences);
    assert_eq!((report.credited_count, report.dead_count), (600, 0));
    assert_paid(&bench, &rain, &paid).await;
}

/// Sends everything from bucket 0 to bucket 1 in transfers of 20; ends at the named step of the last.
async fn transfer(bench: &Bench, rain: &Rain, count: usize) {
    let buckets = bench.buckets(rain);
    for n in 0..count {
        let moved = give(&buckets, 0, &format!("t{n}"), 1, 20).await.unwrap();
        buckets[1].take(&moved).await.unwrap();
        buckets[0].given(&moved).await.unwrap();
    }
}

#[tokio::test]
async fn packets_that_a_node_forgot_to_have_given_are_not_there_twice() {
    let mut bench = Bench::new(2).await;
    let rain = bench.open(200, 20_000).await;
    let before = bench.nodes[0].aof_len();
    transfer(&bench, &rain, 3).await;
    // Some of what was given has been won and paid at the other bucket by now.
    let (told, _) = tap(&bench, &rain, &users_of(&rain, 1, 2, "u", 120)).await;
    assert_eq!(told.len(), 120);
    settle_all(&bench, &rain).await;
    bench.nodes[0].roll_back(before).await;
    let report = repair(&bench, &rain).await;
    assert_eq!((report.packets_removed, report.packets_returned), (60, 0));
    let audit = bench.audit(rain.id).await;
    assert!(audit.balanced, "{:?}", audit.differences);
    assert_paid(&bench, &rain, &told).await;
}

#[tokio::test]
async fn packets_that_a_node_forgot_to_have_taken_are_not_lost() {
    let mut bench = Bench::new(2).await;
    let rain = bench.open(200, 20_000).await;
    let before = bench.nodes[1].aof_len();
    transfer(&bench, &rain, 3).await;
    let (told, _) = tap(&bench, &rain, &users_of(&rain, 1, 2, "u", 130)).await;
    settle_all(&bench, &rain).await;
    bench.nodes[1].roll_back(before).await;
    let report = repair(&bench, &rain).await;
    // 100 packets lay in its pool before; 60 had come; 130 of the 160 were won and paid.
    assert_eq!(report.wins_restored, 130);
    let audit = bench.audit(rain.id).await;
    assert!(audit.balanced, "{:?}", audit.differences);
    assert_eq!(audit.pool_count, 70);
    assert_paid(&bench, &rain, &told).await;
}

#[tokio::test]
async fn a_transfer_that_was_under_way_ends_in_one_place_whichever_side_forgot() {
    for (forgets, taken) in [(0, false), (0, true), (1, false), (1, true)] {
        let mut bench = Bench::new(2).await;
        let rain = bench.open(200, 20_000).await;
        let buckets = bench.buckets(&rain);
        let before = [bench.nodes[0].aof_len(), bench.nodes[1].aof_len()];
        let moved = give(&buckets, 0, "t", 1, 20).await.unwrap();
        if taken {
            buckets[1].take(&moved).await.unwrap();
            tap(&bench, &rain, &users_of(&rain, 1, 2, "u", 110)).await;
            settle_all(&bench, &rain).await;
        }
        bench.nodes[forgets].roll_back(before[forgets]).await;
        repair(&bench, &rain).await;
        // Whoever finds the transfer finishes it.
        bench.advance(rain.id).await.unwrap();
        let audit = bench.audit(rain.id).await;
        let case = format!("bucket {forgets} forgets, taken: {taken}");
        assert!(audit.balanced, "{case}: {:?}", audit.differences);
        assert_eq!(audit.transfer_count, 0, "{case}");
        assert_eq!(audit.pool_count, if taken { 90 } else { 200 }, "{case}");
    }
}

#[tokio::test]
async fn every_node_at_once_may_forget() {
    let mut bench = Bench::new(3).await;
    let rain = bench.open(300, 30_000).await;
    let lens: Vec<u64> = bench.nodes.iter().map(|node| node.aof_len()).collect();
    transfer(&bench, &rain, 2).await;
    let (told, _) = tap(&bench, &rain, &users("u", 90)).await;
    settle_all(&bench, &rain).await;
    for (node, len) in bench.nodes.iter_mut().zip(lens) {
        node.roll_back(len).await;
    }
    let report = repair(&bench, &rain).await;
    assert_eq!((report.buckets.len(), report.wins_restored), (3, 90));
    let audit = bench.audit(rain.id).await;
    assert!(audit.balanced, "{:?}", audit.differences);
    let (again, _) = tap(&bench, &rain, &users("u", 90)).await;
    assert_eq!(again, told);
}

#[tokio::test]
async fn a_closed_rain_is_repaired_before_what_is_left_is_refunded() {
    let mut bench = Bench::new(2).await;
    let rain = bench.open(400, 40_000).await;
    let before = bench.nodes[0].aof_len();
    let (told, _) = tap(&bench, &rain, &users("u", 100)).await;
    settle_all(&bench, &rain).await;
    close(&bench, &rain).await;
    bench.nodes[0].roll_back(before).await;
    bench.nodes[1].restart_empty().await;
    // Nothing that was paid is paid back as well.
    let audit = finished(&bench, &rain).await;
    assert_eq!(audit.credited_count, 100);
    assert_eq!(
        bench.balance("sponsor:acme").await,
        40_000 - audit.credited_cents.0
    );
    assert_paid(&bench, &rain, &told).await;
}

/// The refund used to refuse such a pool for ever.
#[tokio::test]
async fn a_credit_that_was_recorded_after_the_repair_is_found_before_the_refund() {
    let mut bench = Bench::new(2).await;
    let rain = bench.open(400, 40_000).await;
    let before = bench.nodes[0].aof_len();
    let (told, _) = tap(&bench, &rain, &users("u", 100)).await;
    let mut leased = vec![];
    for bucket in bench.buckets(&rain) {
        let lease = bucket.lease(None, 60_000, 500, 9).await.unwrap();
        leased.extend(lease.claims.into_iter().map(|leased| leased.claim));
    }
    assert_eq!(leased.len(), 100);
    bench.nodes[0].roll_back(before).await;
    let report = repair(&bench, &rain).await;
    assert_eq!(report.wins_restored, 0, "nobody knows of them yet");
    // The settler was slow: what it holds is paid now, although the packets lie in a pool again.
    bench.ledger.credit(&leased, 1).await.unwrap();
    for bucket in bench.buckets(&rain) {
        bucket.ack(&leased).await.unwrap();
    }
    close(&bench, &rain).await;
    let audit = finished(&bench, &rain).await;
    assert_eq!(audit.credited_count, 100);
    assert_paid(&bench, &rain, &told).await;
}

/// What two users were told of is given back once and paid once.
#[tokio::test]
async fn packets_that_were_won_again_before_their_credits_came_hold_up_no_refund() {
    let mut bench = Bench::new(2).await;
    let rain = bench.open(400, 40_000).await;
    let before = bench.nodes[0].aof_len();
    tap(&bench, &rain, &users("u", 100)).await;
    let mut leased = vec![];
    for bucket in bench.buckets(&rain) {
        let lease = bucket.lease(None, 60_000, 500, 9).await.unwrap();
        leased.extend(lease.claims.into_iter().map(|leased| leased.claim));
    }
    assert_eq!(leased.len(), 100);
    bench.nodes[0].roll_back(before).await;
    repair(&bench, &rain).await;
    // Some of the forgotten packets are won by others, some still lie in a pool, when the slow settler's credits are recorded.
    let (again, _) = tap(&bench, &rain, &users("v", 200)).await;
    bench.ledger.credit(&leased, 1).await.unwrap();
    let paid = |packet: &PacketId| leased.iter().any(|claim| claim.packet.id == *packet);
    let twice = again.values().filter(|packet| paid(packet)).count();
    assert!((1..100).contains(&twice), "{twice}");
    for bucket in bench.buckets(&rain) {
        bucket.ack(&leased).await.unwrap();
    }
    close(&bench, &rain).await;
    let refunded = eventually("the refund", async || {
        let state = bench.advance(rain.id).await.ok()?;
        [State::Refunded, State::Finished]
            .contains(&state)
            .then_some(())
    });
    bench.settling(refunded).await;
    settle_all(&bench, &rain).await;
    // Who was told of a packet that another was paid is for a person to see; the money adds up.
    let audit = bench.audit(rain.id).await;
    let told_otherwise = |difference: &audit::Difference| difference.kind == Kind::WrongUser;
    assert!(
        audit.differences.iter().all(told_otherwise),
        "{:?}",
        audit.differences
    );
    assert_eq!(audit.credited_count, 300 - twice as u64);
    let (credited, refunded) = (audit.credited_cents, audit.refunded_cents);
    assert_eq!(credited.checked_add(refunded), Some(audit.funded_cents));
}

#[tokio::test]
async fn a_win_that_cannot_be_put_back_is_named() {
    let mut bench = Bench::new(1).await;
    let rain = bench.open(100, 10_000).await;
    let before = bench.nodes[0].aof_len();
    let (told, _) = tap(&bench, &rain, &users("u", 10)).await;
    settle_all(&bench, &rain).await;
    bench.nodes[0].roll_back(before).await;
    // Somebody wrote into the bucket past all scripts.
    let bucket = bench.buckets(&rain)[0].clone();
    let stolen = told["u-3"].to_string() + ":1";
    bench.nodes[0]
        .call(&["HSET", &bucket.keys.winners, "thief", &stolen])
        .await;
    let report = repair(&bench, &rain).await;
    assert_eq!((report.wins_restored, report.not_restored_total), (9, 1));
    let named = &report.not_restored[0];
    assert_eq!(named.user, UserId::new("u-3").unwrap());
    assert_eq!(named.packet_id, told["u-3"]);
    assert!(named.reason.contains("thief"), "{}", named.reason);
}

#[tokio::test]
async fn two_stewards_that_repair_at_once_repair_once() {
    let mut bench = Bench::new(2).await;
    let rain = bench.open(400, 40_000).await;
    let before = bench.nodes[0].aof_len();
    let (told, _) = tap(&bench, &rain, &users("u", 100)).await;
    settle_all(&bench, &rain).await;
    bench.nodes[0].roll_back(before).await;
    let other = hongbao::steward::Steward::new(
        &bench.settings.steward,
        bench.store.clone(),
        bench.ledger.clone(),
    );
    let bucket = bench.buckets(&rain)[0].clone();
    eventually("the node", async || bucket.standing().await.ok()).await;
    let (mut done, mut over) = (0, false);
    while !over {
        let both = tokio::join!(bench.steward.repair(&rain), other.repair(&rain));
        let both = [both.0.unwrap(), both.1.unwrap()];
        done += both
            .iter()
            .filter(|one| matches!(one, Repair::Done(_)))
            .count();
        over = both.contains(&Repair::Nothing);
    }
    assert_eq!(done, 1);
    let (again, gates) = tap(&bench, &rain, &users("u", 100)).await;
    assert_eq!(
        (again, gates),
        (told, HashSet::from([format!("{:?}", Gate::Open)]))
    );
    let audit = bench.audit(rain.id).await;
    assert!(audit.balanced, "{:?}", audit.differences);
    assert_eq!(audit.pool_count, 300);
}

#[tokio::test]
async fn what_was_once_suspect_stays_so_until_it_is_repaired() {
    let mut bench = Bench::new(1).await;
    let rain = bench.open(100, 10_000).await;
    let bucket = bench.buckets(&rain)[0].clone();
    let first = bucket.standing().await.unwrap();
    bench.nodes[0].restart().await;
    let standing = eventually("the node", async || bucket.standing().await.ok()).await;
    assert_eq!(standing.recorded, first.run_id);
    tap(&bench, &rain, &users("u", 1)).await;
    // Even the process that loaded it would have to be compared with the ledger now: others may have changed it meanwhile.
    assert_eq!(bucket.standing().await.unwrap().recorded, "");
    repair(&bench, &rain).await;
    let standing = bucket.standing().await.unwrap();
    assert_eq!(standing.recorded, standing.run_id);
    assert_ne!(standing.incarnation, first.incarnation);
}

#[tokio::test]
async fn a_transfer_to_a_bucket_as_it_was_before_its_repair_ends_where_it_began() {
    let mut bench = Bench::new(2).await;
    let rain = bench.open(200, 20_000).await;
    let buckets = bench.buckets(&rain);
    let old = buckets[1].level().await.unwrap().incarnation;
    let before = bench.nodes[0].aof_len();
    transfer(&bench, &rain, 1).await;
    // The target forgets everything, and what it had taken is put back into its pool.
    bench.nodes[1].restart_empty().await;
    repair(&bench, &rain).await;
    assert_eq!(bench.audit(rain.id).await.pool_count, 200);

    // A steward that had stopped in the middle gives for the bucket as it was.
    let late = buckets[0].give("late", 1, &old, 20).await.unwrap().unwrap();
    assert!(!buckets[1].take(&late).await.unwrap());
    // And the giver forgets that the first transfer had ended.
    bench.nodes[0].roll_back(before).await;
    for _ in 0..3 {
        repair(&bench, &rain).await;
        let _ = bench.advance(rain.id).await;
        if bench.audit(rain.id).await.transfer_count == 0 {
            break;
        }
    }
    let audit = bench.audit(rain.id).await;
    assert!(audit.balanced, "{:?}", audit.differences);
    assert_eq!((audit.pool_count, audit.transfer_count), (200, 0));
}

#[tokio::test]
async fn a_rain_that_was_sold_out_is_so_no_more_when_packets_came_back() {
    let mut bench = Bench::new(1).await;
    let rain = bench.open(50, 5_000).await;
    let (paid, _) = tap(&bench, &rain, &users("paid", 30)).await;
    settle_all(&bench, &rain).await;
    let before = bench.nodes[0].aof_len();
    tap(&bench, &rain, &users("unpaid", 20)).await;
    bench.advance(rain.id).await.unwrap();
    assert!(bench.rain(rain.id).await.sold_out);
    bench.nodes[0].roll_back(before).await;
    let report = repair(&bench, &rain).await;
    assert_eq!(report.wins_restored, 0);
    assert!(
        !bench.rain(rain.id).await.sold_out,
        "20 packets lie in the pool again"
    );
    let (more, _) = tap(&bench, &rain, &users("more", 25)).await;
    assert_eq!(more.len(), 20);
    settle_all(&bench, &rain).await;
    let audit = bench.audit(rain.id).await;
    assert!(audit.balanced, "{:?}", audit.differences);
    assert_paid(&bench, &rain, &paid).await;
    assert_paid(&bench, &rain, &more).await;
}

#[tokio::test]
async fn a_discarded_claim_counts_as_a_turn_even_if_the_node_forgets_it() {
    let mut bench = Bench::new(1).await;
    let rain = bench.open(50, 5_000).await;
    let (told, _) = tap(&bench, &rain, &users("u", 3)).await;
    let bucket = bench.buckets(&rain)[0].clone();
    let lease = bucket.lease(None, 60_000, 10, 3).await.unwrap();
    let given_up = &lease.claims[0].claim;
    bench.ledger.discard(given_up, "a test", 0).await.unwrap();
    bench.nodes[0].restart_empty().await;
    let report = repair(&bench, &rain).await;
    assert_eq!((report.wins_restored, report.packets_returned), (1, 49));
    let (again, _) = tap(&bench, &rain, &[given_up.user.to_string()]).await;
    assert_eq!(again[given_up.user.as_str()], told[given_up.user.as_str()]);
    close(&bench, &rain).await;
    finished(&bench, &rain).await;
    assert_eq!(bench.balance("sponsor:acme").await, 5_000);
}
