//! Claims that wait for a person.

use std::time::Instant;

use hongbao::client::admin::{AdminClient, AdminError};
use hongbao::rain::{Claim, PacketId, RainId, State, UserId};
use hongbao::store::bucket::Bucket;
use hongbao::store::dead::{Filter, list, page};

use crate::support::bench::Bench;
use crate::support::eventually;
use crate::support::server::{Server, hongbao};
use crate::support::wire::{Raw, final_outcome};

/// A server whose users have no accounts, so that every claim of the rain is buried.
async fn buried(users: u32) -> (Server, RainId) {
    let server = Server::start(&["store.managed_nodes=2", "ledger.create_user_accounts=false"]);
    let rain = server.open_rain(100, 10_000).await;
    for n in 0..users {
        final_outcome(
            &mut Raw::user(&server, &format!("user-{n}")).await,
            rain.get(),
        )
        .await;
    }
    server
        .until(rain, |rain| {
            rain.live.is_some_and(|live| live.dead == u64::from(users))
        })
        .await;
    (server, rain)
}

/// Takes every letter that the filter accepts back into the delay queue. Returns how many.
async fn requeue_all(bucket: &Bucket, filter: &Filter) -> u64 {
    let (mut taken, mut cursor) = (0, Some(0));
    while let Some(at) = cursor {
        let (next, letters) = page(bucket, filter, at).await.unwrap();
        let fields: Vec<String> = letters.into_iter().map(|letter| letter.field).collect();
        taken += bucket.requeue(None, &fields).await.unwrap();
        cursor = next;
    }
    taken
}

async fn all(admin: &AdminClient, rain: RainId) -> Vec<PacketId> {
    let page = admin
        .dead_letters(Some(rain), None, None, 1_000)
        .await
        .unwrap();
    page.dead_letters
        .iter()
        .map(|letter| letter.packet_id)
        .collect()
}

#[tokio::test]
async fn dead_letters_are_listed_filtered_and_shown_with_their_reason() {
    let (server, rain) = buried(7).await;
    let admin = server.admin();
    let first = admin.dead_letters(None, None, None, 3).await.unwrap();
    assert_eq!(first.dead_letters.len(), 3);
    let second = admin
        .dead_letters(None, None, first.next_cursor.as_deref(), 100)
        .await
        .unwrap();
    assert_eq!((second.dead_letters.len(), second.next_cursor), (4, None));
    let letter = &first.dead_letters[0];
    assert_eq!(
        (letter.rain_id, letter.reason.as_str()),
        (rain, "unknown_account: the user has no account")
    );
    assert_eq!(&admin.dead_letter(letter.packet_id).await.unwrap(), letter);
    assert_eq!(
        admin
            .dead_letters(None, Some("unknown_account"), None, 100)
            .await
            .unwrap()
            .dead_letters
            .len(),
        7
    );
    assert!(
        admin
            .dead_letters(None, Some("conflict"), None, 100)
            .await
            .unwrap()
            .dead_letters
            .is_empty()
    );
    let nobody = rain.packet(99_999);
    assert!(matches!(
        admin.dead_letter(nobody).await,
        Err(AdminError::Problem { status: 404, .. })
    ));
    let audit = admin.audit(rain).await.unwrap();
    assert!(audit.balanced && audit.claims_cents.0 > 0, "{audit:?}");
}

#[tokio::test]
async fn a_discard_gives_the_money_back_once_and_a_requeue_pays_the_rest() {
    let (server, rain) = buried(6).await;
    let admin = server.admin();
    let packets = all(&admin, rain).await;
    let discarded = admin.discard(packets[0], "fraud, case 17").await.unwrap();
    assert!(discarded.returned);
    assert_eq!(
        admin.account("sponsor:acme").await.unwrap().balance_cents,
        discarded.cents
    );
    assert!(matches!(
        admin.discard(packets[0], "again").await,
        Err(AdminError::Problem { status: 404, .. })
    ));
    assert!(matches!(
        admin.discard(packets[1], " ").await,
        Err(AdminError::Problem { status: 422, .. })
    ));
    // Users without accounts are buried again: a requeue alone mends nothing.
    assert_eq!(
        admin.requeue(Some(packets[1]), None, None).await.unwrap(),
        1
    );
    eventually("the claim to be buried again", async || {
        (all(&admin, rain).await.len() == 5).then_some(())
    })
    .await;

    let server = server.restart_crashing(&["ledger.create_user_accounts=true"], None);
    let admin = server.admin();
    assert_eq!(
        admin
            .requeue(None, Some(rain), Some("conflict"))
            .await
            .unwrap(),
        0
    );
    assert_eq!(
        admin
            .requeue(None, None, Some("unknown_account"))
            .await
            .unwrap(),
        5
    );
    server.until_settled(rain).await;
    assert!(all(&admin, rain).await.is_empty());
    admin.close_rain(rain).await.unwrap();
    server
        .until(rain, |rain| rain.state == State::Finished)
        .await;
    let audit = admin.audit(rain).await.unwrap();
    assert!(audit.balanced && audit.credited_count == 5, "{audit:?}");
    assert_eq!(
        audit.credited_cents.0 + audit.refunded_cents.0 + discarded.cents.0,
        10_000
    );
}

#[tokio::test]
async fn a_rain_with_a_dead_letter_is_not_finished_and_its_keys_stay() {
    let (server, rain) = buried(1).await;
    server.admin().close_rain(rain).await.unwrap();
    server
        .until(rain, |rain| rain.state == State::Refunded)
        .await;
    let packet = all(&server.admin(), rain).await[0];
    server.admin().discard(packet, "not needed").await.unwrap();
    server
        .until(rain, |rain| rain.state == State::Finished)
        .await;
    assert!(server.admin().audit(rain).await.unwrap().balanced);
    assert_eq!(
        server
            .admin()
            .account("sponsor:acme")
            .await
            .unwrap()
            .balance_cents
            .0,
        10_000
    );
}

#[tokio::test]
async fn the_command_line_lists_requeues_and_discards() {
    let (server, rain) = buried(3).await;
    let packets = all(&server.admin(), rain).await;
    let run = |args: &[&str]| {
        let output = hongbao()
            .arg("--data-dir")
            .arg(server.data_dir())
            .arg("dead")
            .args(args)
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{args:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap()
    };
    let listed = run(&["list", "--reason", "unknown_account"]);
    assert!(
        packets
            .iter()
            .all(|packet| listed.contains(&packet.to_string())),
        "{listed}"
    );
    assert!(run(&["list", "--limit", "2"]).contains("more with --cursor"));
    assert!(
        run(&["show", &packets[0].to_string(), "--json"]).contains("\"reason\": \"unknown_account")
    );
    assert!(
        run(&["discard", &packets[0].to_string(), "--reason", "test"])
            .contains("went back to the sponsor")
    );
    assert_eq!(run(&["requeue", "--all"]), "2 requeued\n");
}

/// Never trimmed, however many: every one is found, filtered and taken back.
#[tokio::test]
async fn a_hundred_thousand_dead_letters_are_listed_and_requeued() {
    const LETTERS: u32 = 100_000;
    let bench = Bench::new(1).await;
    let rain = bench.open(10, 1_000).await;
    let bucket = bench.buckets(&rain)[0].clone();
    let letter = |n: u32| {
        let packet = hongbao::rain::Packet {
            id: rain.id.packet(n),
            cents: hongbao::rain::Cents(5),
        };
        let claim = Claim {
            packet,
            user: UserId::new(&format!("user-{n}")).unwrap(),
        };
        let kind = if n.is_multiple_of(10) {
            "conflict"
        } else {
            "unknown_account"
        };
        (
            packet.id.to_string(),
            format!("1000\t3\t{claim}\t{kind}: a test"),
        )
    };
    for part in (0..LETTERS).collect::<Vec<_>>().chunks(1_000) {
        let mut cmd = redis::cmd("HSET");
        cmd.arg(&bucket.keys.dead);
        part.iter()
            .map(|n| letter(*n))
            .for_each(|(packet, letter)| {
                cmd.arg(packet).arg(letter);
            });
        bucket.route.call(&cmd).await.unwrap();
    }
    let buckets = [bucket];
    let started = Instant::now();
    let conflicts = Filter {
        reason: Some("conflict".into()),
    };
    let (mut after, mut found) = (None, 0);
    loop {
        let page = list(&buckets, &conflicts, after, 1_000).await.unwrap();
        found += page.letters.len();
        assert!(
            page.letters
                .is_sorted_by_key(|letter| letter.claim.packet.id)
        );
        after = page
            .letters
            .last()
            .map(|letter| letter.claim.packet.id)
            .or(after);
        if !page.more {
            break;
        }
    }
    assert_eq!(found, 10_000);
    assert_eq!(requeue_all(&buckets[0], &conflicts).await, 10_000);
    assert_eq!(requeue_all(&buckets[0], &Filter::default()).await, 90_000);
    let census = buckets[0].census().await.unwrap();
    assert_eq!((census.dead, census.retrying), (0, 100_000));
    println!(
        "ten pages of 100,000 dead letters and their requeue: {:?}",
        started.elapsed()
    );
}

/// Two claims of one packet: the ack of the one that was paid used to delete the other's letter, and its discard left no trace.
#[tokio::test]
async fn a_conflict_keeps_its_letter_until_a_person_drops_the_claim_for_the_record() {
    let server = Server::start(&["store.managed_nodes=1"]);
    let rain = server.open_rain(10, 1_000).await;
    let admin = server.admin();
    let won = Raw::user(&server, "anna").await.grab(rain.get()).await;
    server.until_settled(rain).await;
    // A second claim of anna's packet turns up, as a node that lost its last writes could make one.
    let url = format!("redis+unix://{}", server.addresses.nodes[0]);
    let mut node = redis::Client::open(url)
        .unwrap()
        .get_multiplexed_async_connection()
        .await
        .unwrap();
    let keys: Vec<String> = redis::cmd("KEYS")
        .arg("hb:*:winners")
        .query_async(&mut node)
        .await
        .unwrap();
    let claims = keys[0].replace("winners", "claims");
    let claim = format!("{}:{}:ben", won.packet_id, won.cents);
    let _: i64 = redis::cmd("LPUSH")
        .arg(&claims)
        .arg(&claim)
        .query_async(&mut node)
        .await
        .unwrap();
    let _: i64 = redis::cmd("HSET")
        .arg(&keys[0])
        .arg("ben")
        .arg(format!("{}:{}", won.packet_id, won.cents))
        .query_async(&mut node)
        .await
        .unwrap();
    server
        .until(rain, |rain| rain.live.is_some_and(|live| live.dead == 1))
        .await;
    assert!(
        !admin.audit(rain).await.unwrap().balanced,
        "two winners of one packet"
    );
    // anna's claim is settled once more: ben's letter stays.
    let paid = format!("{}:{}:anna", won.packet_id, won.cents);
    let _: i64 = redis::cmd("LPUSH")
        .arg(&claims)
        .arg(&paid)
        .query_async(&mut node)
        .await
        .unwrap();
    server.until_settled(rain).await;
    let letters = admin
        .dead_letters(Some(rain), Some("conflict"), None, 10)
        .await
        .unwrap()
        .dead_letters;
    assert_eq!((letters.len(), letters[0].user.as_str()), (1, "ben"));
    let dropped = admin
        .discard(letters[0].packet_id, "a node lost its last writes")
        .await
        .unwrap();
    assert!(!dropped.returned);
    assert!(
        admin.audit(rain).await.unwrap().balanced,
        "the record explains it"
    );
    // The letter names both users, the log neither.
    let log = server.log();
    let mut lines = log
        .lines()
        .filter(|line| line.contains(&won.packet_id.to_string()));
    assert!(
        lines.clone().any(|line| line.contains("kind=\"conflict\"")),
        "{log}"
    );
    assert!(
        lines.all(|line| !line.contains("anna") && !line.contains("ben")),
        "{log}"
    );
    // Two winners of one packet: it is paid once, and what lies in the pool goes back.
    admin.close_rain(rain).await.unwrap();
    server
        .until(rain, |rain| rain.state >= State::Refunded)
        .await;
    let audit = admin.audit(rain).await.unwrap();
    assert!(audit.balanced, "{:?}", audit.differences);
    assert_eq!(audit.credited_count, 1);
    assert_eq!(admin.account("user:ben").await.ok(), None);
}
