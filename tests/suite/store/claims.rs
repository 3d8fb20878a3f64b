//! Leases, retries, burials: settlers that die, come late, or choke on one claim.

use hongbao::rain::{Cents, Claim, Packet, RainId, UserId, Window};
use hongbao::store::StoreError;
use hongbao::store::bucket::{Bucket, DeadLetter};
use hongbao::store::grab;
use hongbao::store::keys::Tag;
use hongbao::store::script;
use redis::Value;

use crate::support::redis::{Redis, store};

const NOW: i64 = 1_000_000;
const DEATHS_MAX: u32 = 5;

fn packet(index: u32) -> Packet {
    Packet {
        id: RainId::new(5).unwrap().packet(index),
        cents: Cents(i64::from(index) + 1),
    }
}

/// An open bucket in which `winners` users have won.
async fn bucket_with_claims(redis: &Redis, winners: u32) -> Bucket {
    let tag = Tag {
        rain: RainId::new(5).unwrap(),
        bucket: 0,
        salt: 0,
    };
    let bucket = store(&[redis]).await.bucket(tag, "mark");
    let packets: Vec<Packet> = (0..winners).map(packet).collect();
    assert_eq!(bucket.load(0, &packets).await.unwrap(), Some(1));
    let window = Window {
        opens_at_ms: Some(0),
        duration_ms: i64::MAX / 4,
    };
    bucket.set_gate(1, false, &window, 1).await.unwrap();
    let users: Vec<String> = (0..winners).map(|n| format!("u{n}")).collect();
    for batch in users.chunks(256) {
        bucket.grab(batch.iter().map(String::as_str)).await.unwrap();
    }
    bucket
}

async fn lease(bucket: &Bucket, now: i64, most: usize) -> Vec<(String, u32)> {
    let lease = bucket
        .lease(Some(now), 1_000, most, DEATHS_MAX)
        .await
        .unwrap();
    lease
        .claims
        .iter()
        .map(|leased| (leased.claim.user.to_string(), leased.attempts))
        .collect()
}

#[tokio::test]
async fn a_dead_settlers_claims_are_leased_again_when_the_lease_is_over() {
    let redis = Redis::fit().await;
    let bucket = bucket_with_claims(&redis, 3).await;
    assert_eq!(lease(&bucket, NOW, 10).await.len(), 3);
    assert!(
        lease(&bucket, NOW + 999, 10).await.is_empty(),
        "the lease is still held"
    );
    let again = lease(&bucket, NOW + 1_000, 10).await;
    assert_eq!(again.len(), 3);
    assert!(
        again.iter().all(|(_, attempts)| *attempts == 1),
        "{again:?}"
    );
}

#[tokio::test]
async fn the_oldest_claim_is_leased_first() {
    let redis = Redis::fit().await;
    let bucket = bucket_with_claims(&redis, 3).await;
    assert_eq!(lease(&bucket, NOW, 1).await[0].0, "u0");
    assert_eq!(lease(&bucket, NOW, 1).await[0].0, "u1");
}

#[tokio::test]
async fn a_late_settler_may_ack_but_neither_retry_nor_bury() {
    let redis = Redis::fit().await;
    let bucket = bucket_with_claims(&redis, 1).await;
    let first = bucket.lease(Some(NOW), 1_000, 1, DEATHS_MAX).await.unwrap();
    let second = bucket
        .lease(Some(NOW + 1_000), 1_000, 1, DEATHS_MAX)
        .await
        .unwrap();
    let claim = first.claims[0].claim.clone();
    assert_ne!(first.deadline_ms, second.deadline_ms);
    assert_eq!(
        bucket
            .retry(
                first.deadline_ms,
                true,
                Some(NOW),
                &[(claim.clone(), 0, "late".into())]
            )
            .await
            .unwrap(),
        0
    );
    assert_eq!(
        bucket
            .bury(
                first.deadline_ms,
                Some(NOW),
                &[(claim.clone(), "late".into())]
            )
            .await
            .unwrap(),
        0
    );
    assert_eq!(bucket.census().await.unwrap().leased, 1);
    assert_eq!(
        bucket.ack(std::slice::from_ref(&claim)).await.unwrap(),
        1,
        "its credit has committed"
    );
    assert_eq!(
        bucket
            .retry(
                second.deadline_ms,
                true,
                Some(NOW),
                &[(claim, 0, "late".into())]
            )
            .await
            .unwrap(),
        0
    );
    assert_eq!(bucket.census().await.unwrap().unsettled(), 0);
}

#[tokio::test]
async fn a_claim_that_kills_its_settlers_is_buried_and_its_neighbours_are_not() {
    let redis = Redis::fit().await;
    let bucket = bucket_with_claims(&redis, 20).await;
    let poison = "u7";
    let (mut now, mut credited, mut rounds) = (NOW, vec![], 0);
    loop {
        let lease = bucket
            .lease(Some(now), 1_000, 500, DEATHS_MAX)
            .await
            .unwrap();
        let census = bucket.census().await.unwrap();
        if lease.claims.is_empty() && census.unsettled() == 0 {
            break;
        }
        rounds += 1;
        assert!(rounds < 100, "the poison is never buried: {census:?}");
        if lease
            .claims
            .iter()
            .any(|leased| leased.claim.user.as_str() == poison)
        {
            now += 1_000; // the settler dies with everything that it holds
            continue;
        }
        let claims: Vec<Claim> = lease
            .claims
            .into_iter()
            .map(|leased| leased.claim)
            .collect();
        bucket.ack(&claims).await.unwrap();
        credited.extend(claims);
        now += 1;
    }
    assert_eq!(credited.len(), 19);
    let letters = letters(&bucket).await;
    assert_eq!(letters.len(), 1);
    assert_eq!(letters[0].claim.user.as_str(), poison);
    assert!(
        letters[0]
            .reason
            .contains("settlers_died: its settlers died 5 times"),
        "{}",
        letters[0].reason
    );
}

#[tokio::test]
async fn attempts_and_their_reason_outlive_a_crash_and_reach_the_dead_letter() {
    let redis = Redis::fit().await;
    let bucket = bucket_with_claims(&redis, 1).await;
    let mut now = NOW;
    for attempt in 0..3 {
        let lease = bucket.lease(Some(now), 1_000, 1, DEATHS_MAX).await.unwrap();
        assert_eq!(lease.claims[0].attempts, attempt);
        let claim = lease.claims[0].claim.clone();
        bucket
            .retry(
                lease.deadline_ms,
                true,
                Some(now),
                &[(claim, 10, "balance\nsystem away".into())],
            )
            .await
            .unwrap();
        assert!(lease_is_empty(&bucket, now + 9).await, "not due yet");
        now += 10;
    }
    let lease = bucket.lease(Some(now), 1_000, 1, DEATHS_MAX).await.unwrap();
    let claim = lease.claims[0].claim.clone();
    // An outage is no attempt.
    bucket
        .retry(
            lease.deadline_ms,
            false,
            Some(now),
            &[(claim.clone(), 0, "outage".into())],
        )
        .await
        .unwrap();
    let lease = bucket.lease(Some(now), 1_000, 1, DEATHS_MAX).await.unwrap();
    assert_eq!(lease.claims[0].attempts, 3);
    bucket
        .bury(
            lease.deadline_ms,
            Some(now),
            &[(claim.clone(), "no\taccount".into())],
        )
        .await
        .unwrap();
    let letters = letters(&bucket).await;
    assert_eq!(letters[0].claim, claim);
    assert_eq!(
        (
            letters[0].at_ms,
            letters[0].attempts,
            letters[0].reason.as_str()
        ),
        (now, 4, "no account")
    );
}

async fn lease_is_empty(bucket: &Bucket, now: i64) -> bool {
    lease(bucket, now, 10).await.is_empty()
}

#[tokio::test]
async fn a_node_that_forgot_the_scripts_is_taught_them_again() {
    let redis = Redis::fit().await;
    let bucket = bucket_with_claims(&redis, 2).await;
    for _ in 0..3 {
        redis.call(&["SCRIPT", "FLUSH"]).await;
        lease(&bucket, NOW, 1).await;
        let claims = [Claim {
            packet: packet(0),
            user: UserId::new("u0").unwrap(),
        }];
        redis.call(&["SCRIPT", "FLUSH"]).await;
        bucket.ack(&claims).await.unwrap();
    }
    assert_eq!(bucket.census().await.unwrap().leased, 1);
}

#[tokio::test]
async fn a_key_of_the_wrong_type_stops_a_script_before_its_first_write() {
    let redis = Redis::fit().await;
    let names = [
        "gate", "pool", "winners", "claims", "leased", "retry", "attempts", "dead",
    ];
    for spoiled in names {
        redis.call(&["FLUSHALL"]).await;
        let bucket = bucket_with_claims(&redis, 2).await;
        bucket.lease(Some(NOW), 1_000, 1, DEATHS_MAX).await.unwrap();
        let key = format!("hb:{{{}}}:{spoiled}", bucket.tag);
        redis.call(&["DEL", &key]).await;
        redis.call(&["SET", &key, "spoiled"]).await;
        let before = contents(&redis, &bucket).await;
        let k = &bucket.keys;
        let run_id = bucket
            .standing()
            .await
            .map_or(String::new(), |standing| standing.run_id);
        let calls = [
            grab::call(
                k,
                &run_id,
                false,
                ["new", "newer"].into_iter(),
                [(0, grab::Doubt::Hold)].into_iter(),
            ),
            with(
                script::LOAD.call(&[&k.gate, &k.pool]),
                &["1", "mark", &run_id, "21474836489:5"],
            ),
            with(
                script::LEASE.call(&[&k.claims, &k.leased, &k.retry, &k.attempts, &k.dead]),
                &["2000000", "1000", "10", "1"],
            ),
            with(
                script::RETRY.call(&[&k.leased, &k.retry, &k.attempts]),
                &["1001000", "1", "1000000", "21474836480:1:u0", "5", "e"],
            ),
            with(
                script::BURY.call(&[&k.leased, &k.attempts, &k.dead]),
                &["1001000", "7", "21474836480:1:u0", "r"],
            ),
            with(
                script::ACK.call(&[&k.leased, &k.retry, &k.attempts, &k.dead]),
                &["21474836480:1:u0"],
            ),
            with(
                script::CLOSE.call(&[&k.gate, &k.pool, &k.winners]),
                &["mark", &run_id],
            ),
        ];
        for call in calls {
            if bucket
                .route
                .run(&script::GRAB, |_| call.clone())
                .await
                .is_err()
            {
                assert_eq!(
                    contents(&redis, &bucket).await,
                    before,
                    "a write came before the error; spoiled: {spoiled}"
                );
            } else {
                // The script does not use that key: start over for the next one.
                redis.call(&["FLUSHALL"]).await;
                let bucket = bucket_with_claims(&redis, 2).await;
                bucket.lease(Some(NOW), 1_000, 1, DEATHS_MAX).await.unwrap();
                redis.call(&["DEL", &key]).await;
                redis.call(&["SET", &key, "spoiled"]).await;
            }
        }
    }
}

fn with(mut call: redis::Cmd, args: &[&str]) -> redis::Cmd {
    args.iter().for_each(|arg| {
        call.arg(*arg);
    });
    call
}

/// Every key of the bucket as DUMP shows it.
async fn contents(redis: &Redis, bucket: &Bucket) -> Vec<Value> {
    let mut dumps = vec![];
    for key in bucket.keys.all() {
        dumps.push(redis.call(&["DUMP", key]).await);
    }
    dumps
}

async fn letters(bucket: &Bucket) -> Vec<DeadLetter> {
    let (_, letters) = bucket.dead_scan(0).await.unwrap();
    letters.into_iter().map(Result::unwrap).collect()
}

/// It used to stop every lease of the bucket, and to have its neighbours buried for dead settlers.
#[tokio::test]
async fn a_claim_that_nobody_can_read_is_buried_alone() {
    let redis = Redis::fit().await;
    let bucket = bucket_with_claims(&redis, 3).await;
    redis.call(&["RPUSH", &bucket.keys.claims, "garbage"]).await;
    assert_eq!(
        lease(&bucket, NOW, 10).await.len(),
        3,
        "the garbage is passed over"
    );
    let again = bucket
        .lease(Some(NOW + 1_000), 1_000, 10, DEATHS_MAX)
        .await
        .unwrap();
    assert_eq!((again.claims.len(), again.buried), (3, 1));
    let (_, dead) = bucket.dead_scan(0).await.unwrap();
    assert!(
        dead[0].as_ref().unwrap_err().contains("garbage"),
        "{dead:?}"
    );
}

#[tokio::test]
async fn a_bucket_of_another_ledgers_rain_is_refused_by_every_verb_that_owns_it() {
    let redis = Redis::fit().await;
    let mut bucket = bucket_with_claims(&redis, 3).await;
    bucket.fingerprint = "another".into();
    let window = Window {
        opens_at_ms: Some(0),
        duration_ms: 1,
    };
    let text = bucket.load(1, &[packet(7)]).await.unwrap_err().to_string();
    assert!(text.contains("another ledger's rain"), "{text}");
    assert!(matches!(
        bucket.set_gate(1, true, &window, 9).await,
        Err(StoreError::Foreign { .. })
    ));
    assert!(matches!(
        bucket.close(Some(1)).await,
        Err(StoreError::Foreign { .. })
    ));
    bucket.fingerprint = "mark".into();
    let shut = bucket.close(Some(1)).await.unwrap();
    assert_eq!((shut.left, shut.winners, shut.chunks), (0, 3, 1));
}

/// Acks are what frees a full node.
#[tokio::test]
async fn a_full_node_refuses_grabs_but_can_be_emptied_and_closed() {
    let redis = Redis::fit().await;
    let bucket = bucket_with_claims(&redis, 3).await;
    redis.call(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let refused = bucket.grab(["late"].into_iter()).await;
    assert!(
        matches!(&refused, Err(StoreError::Refused { code, .. }) if code == "OOM"),
        "{refused:?}"
    );
    let lease = bucket
        .lease(Some(NOW), 1_000, 10, DEATHS_MAX)
        .await
        .unwrap();
    let claims: Vec<Claim> = lease
        .claims
        .into_iter()
        .map(|leased| leased.claim)
        .collect();
    assert_eq!(bucket.ack(&claims).await.unwrap(), 3);
    assert_eq!(bucket.close(Some(1)).await.unwrap().winners, 3);
}

#[tokio::test]
async fn a_held_win_is_a_dead_letter_from_the_beginning_and_a_denied_user_keeps_an_earlier_win() {
    let redis = Redis::fit().await;
    let bucket = bucket_with_claims(&redis, 1).await;
    let run_id = bucket.standing().await.unwrap().run_id;
    for index in [1, 2, 3, 4] {
        let packet = packet(index).to_string();
        redis.call(&["LPUSH", &bucket.keys.pool, &packet]).await;
    }
    // Who is denied in one grab of two is told what the other one won.
    let users = ["u0", "odd", "bad", "good", "odd", "two", "two"];
    let doubts = [
        (0, grab::Doubt::Deny),
        (1, grab::Doubt::Hold),
        (2, grab::Doubt::Deny),
        (5, grab::Doubt::Deny),
    ];
    let call = |_: &hongbao::store::node::Peer| {
        grab::call(
            &bucket.keys,
            &run_id,
            false,
            users.into_iter(),
            doubts.into_iter(),
        )
    };
    let reply = bucket.route.run(&script::GRAB, call).await.unwrap();
    let Value::BulkString(reply) = reply else {
        panic!("{reply:?}")
    };
    // Rain 5 is 5 × 4294967296 = 21474836480; each packet is worth its index and a cent.
    let reply = String::from_utf8(reply).unwrap();
    let entries: Vec<&str> = reply.split(' ').skip(1).collect();
    let wanted = [
        "A21474836480:1",
        "W21474836481:2",
        "-",
        "W21474836482:3",
        "A21474836481:2",
        "A21474836483:4",
        "W21474836483:4",
    ];
    assert_eq!(entries, wanted);
    let pool = redis.call(&["LLEN", &bucket.keys.pool]).await;
    assert_eq!(pool, Value::Int(1), "nobody took the denied user's packet");

    let letters = letters(&bucket).await;
    assert_eq!(letters.len(), 1);
    let letter = &letters[0];
    assert_eq!(letter.claim.to_string(), "21474836481:2:odd");
    assert_eq!((letter.reason_kind(), letter.attempts), ("held", 0));
    assert!((letter.at_ms - hongbao::clock::now_ms()).abs() < 60_000);
    // No settler ever sees it, until a person has decided.
    let leased =
        |leased: Vec<(String, u32)>| leased.into_iter().map(|(user, _)| user).collect::<Vec<_>>();
    assert_eq!(leased(lease(&bucket, NOW, 10).await), ["u0", "good", "two"]);
    let fields = [letter.field.clone()];
    assert_eq!(bucket.requeue(Some(NOW), &fields).await.unwrap(), 1);
    assert_eq!(leased(lease(&bucket, NOW, 10).await), ["odd"]);
}
