//! Other people's servers that are told what happens: real servers, a real receiver.

use std::collections::BTreeSet;

use axum::http::StatusCode;
use hongbao::admin::caller::Role;
use hongbao::client::admin::{
    AdminClient, AdminError, Delivery, IssuedWebhook, NewKey, NewWebhook, WebhookChange,
};

use crate::support::crowd::crowd;
use crate::support::eventually;
use crate::support::receiver::{Answer, Receiver};
use crate::support::redis::Redis;
use crate::support::server::{Server, hongbao};
use crate::support::wire::{Raw, final_outcome};

/// Looks often, and tries again within milliseconds.
const QUICK: [&str; 5] = [
    "store.managed_nodes=1",
    "webhooks.interval_ms=10",
    "webhooks.first_retry_ms=20",
    "webhooks.second_retry_ms=30",
    "webhooks.third_retry_ms=40",
];

fn with(settings: &[&'static str]) -> Vec<&'static str> {
    [&QUICK[..], settings].concat()
}

async fn webhook(admin: &AdminClient, url: &str, events: &[&str]) -> IssuedWebhook {
    let events: Vec<String> = events.iter().map(|event| (*event).to_owned()).collect();
    let new = NewWebhook {
        url: url.to_owned(),
        events: Some(events).filter(|events| !events.is_empty()),
    };
    admin.create_webhook(&new, None).await.unwrap()
}

/// Every delivery of a server has ended in this state; there are so many of them.
async fn all_are(admin: &AdminClient, state: &str, count: usize) -> Vec<Delivery> {
    eventually(&format!("{count} to be {state}"), async || {
        let page = admin.deliveries(None, None, None, 1_000).await.unwrap();
        let all = page.deliveries.iter().all(|found| found.state == state);
        (all && page.deliveries.len() == count).then_some(page.deliveries)
    })
    .await
}

fn refused(error: AdminError) -> (u16, String) {
    match error {
        AdminError::Problem { status, detail, .. } => (status, detail),
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn a_whole_rain_is_told_once_and_signed_so_that_others_can_check_it() {
    let server = Server::start(&with(&["steward.refund_after_ms=0"]));
    let (admin, receiver) = (server.admin(), Receiver::start().await);
    let hook = webhook(&admin, &receiver.url(), &[]).await;
    let rain = server.open_rain(20, 2_000).await;
    assert_eq!(crowd(&server, rain, 25).end().await.len(), 20);
    server.until(rain, |rain| rain.sold_out).await;
    admin.close_rain(rain).await.unwrap();
    all_are(&admin, "delivered", 4).await;
    let told = receiver.told();
    let mut events: Vec<(i64, &str)> = vec![];
    for told in &told {
        assert!(told.is_signed_by(&hook.secret), "{told:?}");
        assert!(!told.is_signed_by("another secret"));
        assert_eq!(told.header("content-type"), "application/json");
        assert_eq!(told.body["id"], told.id());
        assert_eq!(told.body["event"], told.header("hongbao-event"));
        assert_eq!(told.body["rain_id"], rain.get());
        assert_eq!(told.body["data"]["total_cents"], 2_000);
        let at_ms = told.body["at_ms"].as_i64().unwrap();
        events.push((at_ms, told.header("hongbao-event")));
    }
    events.sort();
    let names: Vec<&str> = events.iter().map(|(_, name)| *name).collect();
    let wanted = [
        "rain.opened",
        "rain.sold_out",
        "rain.closed",
        "rain.refunded",
    ];
    assert_eq!(names, wanted);
    // With another body the signature is nobody's.
    let mut forged = told[0].clone();
    forged.text = forged.text.replace("2000", "9000");
    assert!(!forged.is_signed_by(&hook.secret));
    let delivered = r#"hongbao_webhook_deliveries_total{result="delivered"}"#;
    assert_eq!(server.metric(delivered).await, 4.0);
    let seconds = server.metric("hongbao_webhook_request_seconds_count").await;
    assert_eq!(seconds, 4.0);
}

#[tokio::test]
async fn a_claim_that_dies_is_told_even_if_its_letter_is_taken_back_at_once() {
    let server = Server::start(&with(&["ledger.create_user_accounts=false"]));
    let (admin, receiver) = (server.admin(), Receiver::start().await);
    webhook(&admin, &receiver.url(), &["claim.dead"]).await;
    let rain = server.open_rain(10, 1_000).await;
    let won = final_outcome(&mut Raw::user(&server, "anna").await, rain.get()).await;
    let letter = eventually("the letter", async || {
        let page = admin.dead_letters(Some(rain), None, None, 9).await.unwrap();
        page.dead_letters.into_iter().next()
    })
    .await;
    admin
        .requeue(Some(letter.packet_id), None, None)
        .await
        .unwrap();
    // Nobody has an account: it dies once more.
    all_are(&admin, "delivered", 2).await;
    let first = format!("dead:{}:{}", letter.packet_id, letter.at_ms);
    let ids: BTreeSet<String> = receiver.ids().into_iter().collect();
    assert!(ids.contains(&first) && ids.len() == 2, "{ids:?}");
    for told in receiver.told() {
        let data = &told.body["data"];
        assert_eq!(
            (&data["packet_id"], &data["user"]),
            (&letter.packet_id.to_string().into(), &"anna".into())
        );
        assert_eq!(data["cents"], won.cents);
        let reason = data["reason"].as_str().unwrap();
        assert!(reason.starts_with("unknown_account: "), "{reason}");
    }
}

#[tokio::test]
async fn whoever_does_not_say_thanks_is_asked_four_times_and_then_by_hand() {
    let server = Server::start(&with(&["webhooks.timeout_ms=300"]));
    let admin = server.admin();
    // Each misbehaves until its fifth request.
    let receiver = async |fault: fn() -> Answer| {
        Receiver::with(move |told| {
            if told.number < 4 {
                fault()
            } else {
                Answer::Thanks
            }
        })
        .await
    };
    let unavailable = || Answer::Refuse(StatusCode::SERVICE_UNAVAILABLE);
    let cases = [
        (
            receiver(unavailable).await,
            Some(503),
            "it answers 503: no thanks",
        ),
        (
            receiver(|| Answer::Redirect).await,
            Some(302),
            "it answers 302: redirects are not followed",
        ),
        (
            receiver(|| Answer::Silent).await,
            None,
            "no answer within 300 ms",
        ),
        (
            receiver(|| Answer::Endless).await,
            None,
            "its answer exceeds 16384 bytes",
        ),
    ];
    for (receiver, ..) in &cases {
        let hook = webhook(&admin, &receiver.url(), &["rain.opened"]).await;
        admin.test_webhook(&hook.webhook.id).await.unwrap();
    }
    // And one is not there at all.
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let nobody = format!("http://{}/", closed.local_addr().unwrap());
    drop(closed);
    let hook = webhook(&admin, &nobody, &[]).await;
    let lost = admin.test_webhook(&hook.webhook.id).await.unwrap();
    let mut failed = all_are(&admin, "failed", 5).await;
    failed.sort_by_key(|delivery| delivery.id);
    for (delivery, (receiver, status, error)) in failed.iter().zip(&cases) {
        let detail = admin.delivery(delivery.id).await.unwrap();
        assert_eq!(detail.log.len(), 4);
        for (number, attempt) in detail.log.iter().enumerate() {
            assert_eq!(attempt.number as usize, number + 1);
            let said = (attempt.status, attempt.error.as_deref());
            assert_eq!(said, (*status, Some(*error)));
        }
        let waits: Vec<i64> = detail
            .log
            .windows(2)
            .map(|two| two[1].at_ms - two[0].at_ms)
            .collect();
        assert!(
            waits[0] >= 20 && waits[1] >= 30 && waits[2] >= 40,
            "{waits:?}"
        );
        // The same event each time, and the attempts counted.
        let told = receiver.told();
        assert!(told.iter().all(|told| told.id() == delivery.event_id));
        assert_eq!(told[3].header("hongbao-attempt"), "4");
    }
    let detail = admin.delivery(lost.id).await.unwrap();
    let error = detail.log[0].error.clone().unwrap();
    assert!(error.starts_with("cannot be reached: "), "{error}");
    let failed = r#"hongbao_webhook_deliveries_total{result="failed"}"#;
    assert_eq!(server.metric(failed).await, 5.0);

    // By hand: one, then all.
    admin
        .change_webhook(&hook.webhook.id, &to(&cases[0].0.url()))
        .await
        .unwrap();
    admin.resend_delivery(lost.id).await.unwrap();
    eventually("the one", async || {
        let state = admin.delivery(lost.id).await.unwrap().delivery.state;
        (state == "delivered").then_some(())
    })
    .await;
    assert_eq!(admin.resend_failed(None).await.unwrap(), 4);
    all_are(&admin, "delivered", 5).await;
}

fn to(url: &str) -> WebhookChange {
    WebhookChange {
        url: Some(url.to_owned()),
        ..WebhookChange::default()
    }
}

#[tokio::test]
async fn a_slow_receiver_delays_no_other_and_holds_no_more_than_its_places() {
    let server = Server::start(&with(&[
        "webhooks.timeout_ms=20000",
        "webhooks.hold_ms=60000",
    ]));
    let admin = server.admin();
    let slow = Receiver::with(|_| Answer::Silent).await;
    let quick = Receiver::start().await;
    let stuck = webhook(&admin, &slow.url(), &["rain.opened"]).await;
    let hook = webhook(&admin, &quick.url(), &["rain.opened"]).await;
    for _ in 0..6 {
        admin.test_webhook(&stuck.webhook.id).await.unwrap();
    }
    eventually("the slow one's places to be taken", async || {
        (slow.in_flight() == 4).then_some(())
    })
    .await;
    for _ in 0..10 {
        admin.test_webhook(&hook.webhook.id).await.unwrap();
    }
    eventually("the quick one to be told", async || {
        (quick.told().len() == 10).then_some(())
    })
    .await;
    assert_eq!((slow.in_flight(), slow.told().len()), (4, 4));
    // The rest of them waits, and goes elsewhere when the webhook does.
    admin
        .change_webhook(&stuck.webhook.id, &to(&quick.url()))
        .await
        .unwrap();
    let pending = admin
        .deliveries(Some("pending"), None, None, 9)
        .await
        .unwrap();
    assert_eq!(pending.deliveries.len(), 6);
    // It is taken now and then: on a busy machine it may be from before the quick one had all of its own.
    eventually("the count of them", async || {
        let pending = server.metric("hongbao_webhook_pending").await;
        (pending <= 6.0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn two_processes_send_each_event_once_and_one_takes_over_from_the_other() {
    let redis = Redis::fit().await;
    let ledger = format!("ledger.url={}", crate::support::postgres::database().await);
    let nodes = format!("store.nodes=[\"{}\"]", redis.url());
    let mut shared = vec![
        "store.topology=nodes",
        &nodes,
        &ledger,
        "webhooks.timeout_ms=700",
        "webhooks.hold_ms=1400",
    ];
    shared.extend(&QUICK[1..]);
    let mut one = Server::start(&shared);
    let file =
        |setting: &str, name: &str| format!("{setting}={}", one.data_dir().join(name).display());
    let secrets = [
        file("admin.api_key_file", "api-key"),
        file("admin.key_secret_file", "key-secret"),
        "server.roles=[\"admin\"]".into(),
    ];
    shared.extend(secrets.iter().map(String::as_str));
    let two = Server::start(&shared);
    let admin = AdminClient::new(&two.admin_url(), &one.api_key()).unwrap();
    let receiver = Receiver::start().await;
    let hook = webhook(&admin, &receiver.url(), &[]).await;
    for _ in 0..40 {
        admin.test_webhook(&hook.webhook.id).await.unwrap();
    }
    all_are(&admin, "delivered", 40).await;
    let mut ids = receiver.ids();
    ids.sort();
    ids.dedup();
    assert_eq!((ids.len(), receiver.told().len()), (40, 40));
    let delivered = r#"hongbao_webhook_deliveries_total{result="delivered"}"#;
    let (first, second) = (one.metric(delivered).await, two.metric(delivered).await);
    assert_eq!(first + second, 40.0);

    // One of them dies while it may be sending: whatever it held is sent by the other.
    let silent = Receiver::with(|told| {
        if told.number < 4 {
            Answer::Silent
        } else {
            Answer::Thanks
        }
    })
    .await;
    admin
        .change_webhook(&hook.webhook.id, &to(&silent.url()))
        .await
        .unwrap();
    for _ in 0..8 {
        admin.test_webhook(&hook.webhook.id).await.unwrap();
    }
    eventually("requests under way", async || {
        (!silent.told().is_empty()).then_some(())
    })
    .await;
    one.kill();
    all_are(&admin, "delivered", 48).await;
    let ids: BTreeSet<String> = silent.ids().into_iter().collect();
    assert_eq!(ids.len(), 8);
}

#[tokio::test]
async fn a_rotated_secret_signs_beside_the_old_one_and_lies_nowhere() {
    let server = Server::start(&with(&[]));
    let (admin, receiver) = (server.admin(), Receiver::start().await);
    let new = NewWebhook {
        url: receiver.url(),
        events: None,
    };
    let first = admin.create_webhook(&new, Some("the one")).await.unwrap();
    // The repeat is told the same, although it was not kept.
    assert_eq!(
        admin.create_webhook(&new, Some("the one")).await.unwrap(),
        first
    );
    let id = first.webhook.id.clone();
    let told = async |count: usize| {
        admin.test_webhook(&id).await.unwrap();
        eventually("the test event", async || {
            let told = receiver.told();
            (told.len() == count).then(|| told[count - 1].clone())
        })
        .await
    };
    let second = admin.rotate_webhook(&id, None).await.unwrap();
    assert_ne!(first.secret, second.secret);
    let both = told(1).await;
    assert!(both.is_signed_by(&first.secret) && both.is_signed_by(&second.secret));
    let third = admin.rotate_webhook(&id, Some(0)).await.unwrap();
    assert_eq!(third.webhook.generation, 3);
    let alone = told(2).await;
    assert!(alone.is_signed_by(&third.secret) && !alone.is_signed_by(&second.secret));
    let dir = server.dir.clone();
    server.stop().await;
    for entry in std::fs::read_dir(dir.path().join("data")).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            let bytes = std::fs::read(&path).unwrap();
            for secret in [&first.secret, &second.secret, &third.secret] {
                let found = bytes
                    .windows(secret.len())
                    .any(|part| part == secret.as_bytes());
                assert!(!found, "{} holds a secret", path.display());
            }
        }
    }
}

#[tokio::test]
async fn a_webhook_that_is_disabled_waits_and_one_that_is_deleted_is_told_no_more() {
    let server = Server::start(&with(&[]));
    let (admin, receiver) = (server.admin(), Receiver::start().await);
    let fault = Receiver::with(|_| Answer::Refuse(StatusCode::GONE)).await;
    let hook = webhook(&admin, &fault.url(), &["rain.opened"]).await;
    let id = hook.webhook.id.as_str();
    let switch = async |on: bool| {
        let change = WebhookChange {
            enabled: Some(on),
            ..WebhookChange::default()
        };
        admin.change_webhook(id, &change).await.unwrap()
    };
    admin.test_webhook(id).await.unwrap();
    all_are(&admin, "failed", 1).await;
    assert!(!switch(false).await.enabled);
    let (status, detail) = refused(admin.test_webhook(id).await.unwrap_err());
    assert_eq!(status, 409);
    assert!(detail.contains("enable it first"), "{detail}");
    admin.resend_failed(Some(id)).await.unwrap();
    admin
        .change_webhook(id, &to(&receiver.url()))
        .await
        .unwrap();
    // An event of that time is not written for it, and what is pending waits.
    server.open_rain(5, 500).await;
    assert!(receiver.told().is_empty());
    switch(true).await;
    all_are(&admin, "delivered", 1).await;
    admin.delete_webhook(id).await.unwrap();
    assert!(admin.webhooks().await.unwrap().is_empty());
    let deleted = admin.webhook(id).await.unwrap();
    assert!(deleted.deleted_at_ms.is_some());
    for gone in [
        admin.test_webhook(id).await.map(drop),
        admin.rotate_webhook(id, None).await.map(drop),
        admin
            .change_webhook(id, &to(&receiver.url()))
            .await
            .map(drop),
        admin.resend_failed(Some(id)).await.map(drop),
    ] {
        assert_eq!(refused(gone.unwrap_err()).0, 409);
    }
    assert_eq!(receiver.told().len(), 1);
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_and_who_may_not_may_not() {
    let server = Server::start(&with(&[]));
    let admin = server.admin();
    let new = |url: &str, events: &[&str]| NewWebhook {
        url: url.to_owned(),
        events: Some(events.iter().map(|event| (*event).to_owned()).collect()),
    };
    for (new, said) in [
        (new("http://a.example/", &["rain.opened"]), "must be https"),
        (
            new("https://u:p@a.example/", &["rain.opened"]),
            "without user",
        ),
        (new("nonsense", &["rain.opened"]), "must be an address"),
        (
            new("https://a.example/", &["rain.fell"]),
            "event \"rain.fell\" is not",
        ),
        (
            new("https://a.example/", &["webhook.test"]),
            "event \"webhook.test\" is not",
        ),
        (new("https://a.example/", &[]), "at least one"),
    ] {
        let (status, detail) = refused(admin.create_webhook(&new, None).await.unwrap_err());
        assert_eq!(status, 422, "{detail}");
        assert!(detail.contains(said), "{detail}");
    }
    for (error, wanted) in [
        (admin.webhook("w1").await.map(drop), 404),
        (admin.test_webhook("w1").await.map(drop), 404),
        (admin.delete_webhook("w1").await.map(drop), 404),
        (admin.delivery(7).await.map(drop), 404),
        (admin.resend_delivery(7).await.map(drop), 404),
        (
            admin
                .deliveries(Some("lost"), None, None, 9)
                .await
                .map(drop),
            422,
        ),
        (
            admin.deliveries(None, None, Some("x"), 9).await.map(drop),
            422,
        ),
    ] {
        assert_eq!(refused(error.unwrap_err()).0, wanted);
    }
    let key = NewKey {
        name: "finance".into(),
        roles: vec![Role::Finance],
        expires_at_ms: None,
    };
    let key = admin.create_key(&key, None).await.unwrap();
    let finance = AdminClient::new(&server.admin_url(), &key.credential).unwrap();
    assert!(finance.webhooks().await.unwrap().is_empty());
    let new = new("https://a.example/", &["rain.opened"]);
    let forbidden = finance.create_webhook(&new, None).await.unwrap_err();
    assert_eq!(refused(forbidden).0, 403);
}

// The receiver answers while the command line is waited for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deliveries_are_listed_by_pages_and_the_command_line_does_it_all() {
    let server = Server::start(&with(&[]));
    let (admin, receiver) = (server.admin(), Receiver::start().await);
    let cli = |args: &[&str]| {
        let mut command = hongbao();
        command.arg("--data-dir").arg(server.data_dir()).args(args);
        command.env_remove("HONGBAO_API_KEY");
        let output = command.output().unwrap();
        let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        (output.status.code(), text)
    };
    let url = receiver.url();
    let made = cli(&[
        "webhooks",
        "create",
        &url,
        "--event",
        "rain.closed",
        "--json",
    ]);
    assert_eq!(made.0, Some(0), "{}", made.1);
    let made: IssuedWebhook = serde_json::from_str(&made.1).unwrap();
    assert_eq!(made.webhook.events, ["rain.closed"]);
    let id = made.webhook.id.as_str();
    for _ in 0..3 {
        let (code, text) = cli(&["webhooks", "test", id]);
        assert_eq!(code, Some(0), "{text}");
        assert!(
            text.contains("delivered") && text.contains(": 204"),
            "{text}"
        );
    }
    let (mut seen, mut cursor) = (vec![], None);
    loop {
        let page = admin.deliveries(Some("delivered"), Some(id), cursor.as_deref(), 2);
        let page = page.await.unwrap();
        seen.extend(page.deliveries.into_iter().map(|found| found.id));
        // What is added meanwhile moves nothing.
        admin.test_webhook(id).await.unwrap();
        match page.next_cursor {
            Some(next) => cursor = Some(next),
            None => break,
        }
    }
    assert_eq!(seen, [3, 2, 1]);
    all_are(&admin, "delivered", 5).await;
    let (_, one) = cli(&["webhooks", "delivery", "1", "--json"]);
    assert!(
        one.contains("webhook.test") && !one.contains(&made.secret),
        "{one}"
    );
    assert_eq!(cli(&["webhooks", "resend", "1"]).0, Some(0));
    assert_eq!(
        cli(&["webhooks", "resend", "--failed"]),
        (Some(0), "0 are sent again\n".into())
    );
    let (_, list) = cli(&["webhooks", "deliveries", "--limit", "3"]);
    assert_eq!(list.lines().count(), 3, "{list}");
    let (_, turned) = cli(&["webhooks", "rotate", id, "--overlap", "0"]);
    assert_ne!(turned.trim(), made.secret);
    let (_, changed) = cli(&[
        "webhooks",
        "update",
        id,
        "--event",
        "claim.dead",
        "--disable",
    ]);
    assert!(
        changed.contains("claim.dead") && !changed.contains("rain.closed"),
        "{changed}"
    );
    let (_, list) = cli(&["webhooks", "list"]);
    assert!(list.contains("disabled") && list.contains(&url), "{list}");
    assert_eq!(cli(&["webhooks", "delete", id]).0, Some(0));
    assert_eq!(cli(&["webhooks", "list"]), (Some(0), String::new()));
    let target = format!("webhook:{id}");
    let log = admin.log(Some(&target), None, 10).await.unwrap().log;
    let operations: Vec<&str> = log.iter().map(|line| line.operation.as_str()).collect();
    assert_eq!(
        operations[..3],
        ["delete_webhook", "update_webhook", "rotate_webhook"]
    );
    let text = serde_json::to_string(&log).unwrap();
    assert!(!text.contains(turned.trim()) && !text.contains(&made.secret));
    for wrong in [
        &[
            "webhooks",
            "create",
            "https://a.example",
            "--event",
            "rain.fell",
        ][..],
        &["webhooks", "resend"],
        &["webhooks", "deliveries", "--state", "lost"],
    ] {
        assert_eq!(cli(wrong).0, Some(2), "{wrong:?}");
    }
}
