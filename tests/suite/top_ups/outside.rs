//! What an operator asks for and what a phone sees.

use hongbao::client::admin::{AdminClient, AdminError, NewRain, NewTopUp, Rain};
use hongbao::rain::split::{Rule, Tier};
use hongbao::rain::{Cents, RainId, State};
use hongbao::store::directory::Snapshot;
use hongbao::wire::server_frame::Message;
use hongbao::wire::{GrabResult, Outcome};

use crate::support::bench::Bench;
use crate::support::crowd::{assert_paid, crowd};
use crate::support::eventually;
use crate::support::server::{Server, hongbao, new_rain};
use crate::support::signed::Signed;
use crate::support::wire::{Raw, final_outcome};

fn packets(packets: u32, total: i64, key: &str) -> NewTopUp {
    NewTopUp {
        packets,
        total_cents: Cents(total),
        rule: None,
        min_cents: None,
        max_cents: None,
        key: key.into(),
    }
}

/// Funded by acme, who gets the money for it, and loaded.
async fn top_up(server: &Server, rain: RainId, count: u32, total: i64) {
    let admin = server.admin();
    let key = format!("{}", hongbao::jitter::Jitter::default().next_u64());
    admin.deposit("acme", Cents(total), &key).await.unwrap();
    let asked = packets(count, total, &format!("{key}-more"));
    let done = admin.top_up_rain(rain, &asked).await.unwrap();
    let wanted = done.rain.packets;
    server
        .until(rain, |rain| rain.loaded_packets >= wanted)
        .await;
}

async fn tap(server: &Server, user: &str, rain: RainId) -> GrabResult {
    let mut raw = Raw::user(server, user).await;
    final_outcome(&mut raw, rain.get()).await
}

/// Closed and refunded; every cent has gone to a winner or back.
async fn assert_finished(server: &Server, rain: RainId) {
    let admin = server.admin();
    server.until_settled(rain).await;
    admin.close_rain(rain).await.unwrap();
    let finished = |rain: &Rain| rain.state == State::Finished;
    server.until(rain, finished).await;
    let audit = admin.audit(rain).await.unwrap();
    assert!(audit.balanced, "{audit:?}");
    let back = admin.account("sponsor:acme").await.unwrap().balance_cents;
    assert_eq!(back, audit.refunded_cents);
    assert_eq!(
        audit.funded_cents.0,
        audit.credited_cents.0 + audit.refunded_cents.0
    );
}

#[tokio::test]
async fn who_was_told_that_all_is_gone_wins_after_a_top_up() {
    let server = Server::start(&["store.managed_nodes=2"]);
    let rain = server.open_rain(2, 200).await;
    for user in ["anna", "bo"] {
        assert_eq!(tap(&server, user, rain).await.outcome(), Outcome::Won);
    }
    let mut late: Vec<Raw> = vec![];
    for user in ["cy", "di", "ed"] {
        let mut raw = Raw::user(&server, user).await;
        // The second answer comes from the session's memory.
        for _ in 0..2 {
            let told = final_outcome(&mut raw, rain.get()).await.outcome();
            assert_eq!(told, Outcome::SoldOut);
        }
        late.push(raw);
    }
    top_up(&server, rain, 2, 500).await;
    let mut outcomes = vec![];
    for raw in &mut late {
        // The gateway hears of it a moment after the steward has recorded it.
        let outcome = eventually("another answer", async || {
            let outcome = raw.grab(rain.get()).await.outcome();
            (!matches!(outcome, Outcome::SoldOut | Outcome::Missed) || outcomes.len() == 2)
                .then_some(outcome)
        });
        outcomes.push(outcome.await);
    }
    assert_eq!(outcomes[..2], [Outcome::Won, Outcome::Won]);
    let last = final_outcome(&mut late[2], rain.get()).await.outcome();
    assert_eq!(last, Outcome::SoldOut, "sold out once more");
    assert_finished(&server, rain).await;
}

/// A gateway used to call a rain with one bucket sold out when that was empty. With a top-up half loaded that is wrong.
#[tokio::test]
async fn an_empty_bucket_is_not_sold_out_while_a_top_up_is_on_its_way_into_it() {
    let bench = Bench::new(1).await;
    let server = Server::start(&[
        "server.roles=[\"gateway\"]",
        "store.topology=nodes",
        &format!("store.nodes=[\"{}\"]", bench.nodes[0].url()),
    ]);
    let rain = bench.open(1, 100).await;
    assert_eq!(tap(&server, "anna", rain.id).await.outcome(), Outcome::Won);
    bench.advance(rain.id).await.unwrap();
    let mut bo = Raw::user(&server, "bo").await;
    let told = final_outcome(&mut bo, rain.id.get()).await;
    assert_eq!(told.outcome(), Outcome::SoldOut);

    // The steward publishes, loads the first of three chunks, and is slow. Others win all of it.
    let topped_up = bench.top_up(&rain, 2_500, 25_000).await;
    bench
        .store
        .publish(&Snapshot::of(&topped_up))
        .await
        .unwrap();
    let first = super::chunk(&topped_up, 1, 0);
    let bucket = &bench.buckets(&rain)[0];
    bucket.top_up(1, &first).await.unwrap();
    bench.grab(&rain, "other", 1_000).await;
    assert_eq!(bucket.level().await.unwrap().pool, 0);
    let told = eventually("the gateway to hear of the top-up", async || {
        let outcome = bo.grab(rain.id.get()).await.outcome();
        (outcome != Outcome::SoldOut).then_some(outcome)
    })
    .await;
    assert_eq!(told, Outcome::Missed);
    assert_eq!(bo.grab(rain.id.get()).await.outcome(), Outcome::Missed);
    bench.advance(rain.id).await.unwrap();
    let told = final_outcome(&mut bo, rain.id.get()).await;
    assert_eq!(told.outcome(), Outcome::Won);
}

/// A session that had been told SOLD_OUT went on saying so when the rain was sold out a second time, although its user had won meanwhile.
#[tokio::test]
async fn a_session_that_was_told_sold_out_finds_what_its_user_won_elsewhere() {
    let server = Server::start(&["store.managed_nodes=1"]);
    let rain = server.open_rain(1, 100).await;
    assert_eq!(tap(&server, "bo", rain).await.outcome(), Outcome::Won);
    let mut phone = Raw::user(&server, "anna").await;
    let told = final_outcome(&mut phone, rain.get()).await;
    assert_eq!(told.outcome(), Outcome::SoldOut);

    top_up(&server, rain, 1, 77).await;
    let mut tablet = Raw::user(&server, "anna").await;
    let won = eventually("a win on the tablet", async || {
        let won = tablet.grab(rain.get()).await;
        (won.outcome() == Outcome::Won).then_some(won)
    })
    .await;
    assert_eq!((won.cents, won.packet_id as u32), (77, 1));
    server.until(rain, |rain| rain.sold_out).await;
    assert_eq!(tap(&server, "cy", rain).await.outcome(), Outcome::SoldOut);
    let found = phone.grab(rain.get()).await;
    assert_eq!(found.outcome(), Outcome::AlreadyWon);
    assert_eq!((found.packet_id, found.cents), (won.packet_id, 77));
    assert_finished(&server, rain).await;
}

#[tokio::test]
async fn people_who_watch_are_told_that_it_falls_again() {
    let server = Server::start(&["store.managed_nodes=1"]);
    let mut watching = Raw::user(&server, "watcher").await;
    watching.watch("quiz").await;
    let rain = server.open_rain(1, 100).await;
    let mut told = vec![];
    for round in 0..3 {
        assert_eq!(
            tap(&server, &format!("user-{round}"), rain).await.outcome(),
            Outcome::Won
        );
        loop {
            match watching.receive().await.unwrap().message.unwrap() {
                Message::RainOpened(_) => told.push("opened"),
                Message::RainSoldOut(_) => break told.push("sold out"),
                Message::RainAnnounced(_) | Message::RainProgress(_) => {}
                other => panic!("{other:?}"),
            }
        }
        if round < 2 {
            top_up(&server, rain, 1, 100).await;
        }
    }
    let expected = [
        "opened", "sold out", "opened", "sold out", "opened", "sold out",
    ];
    assert_eq!(told, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_that_taps_through_top_ups_is_paid_exactly() {
    let server = Server::start(&["store.managed_nodes=3"]);
    let rain = server.open_rain(450, 90_000).await;
    let people = crowd(&server, rain, 500);
    people.until_won(30).await;
    top_up(&server, rain, 40, 4_000).await;
    people.until_won(200).await;
    top_up(&server, rain, 2_100, 210_000).await;
    let told = people.end().await;
    assert!(told.len() >= 450, "{} won", told.len());
    let audit = assert_paid(&server, rain, &told).await;
    assert_eq!(audit.funded_cents, Cents(304_000));
    assert!(!server.log().contains(" ERROR "), "{}", server.log());
}

#[tokio::test]
async fn a_rain_is_topped_up_in_every_state_before_the_close_and_in_none_after() {
    let server = Server::start(&["store.managed_nodes=1"]);
    let admin = server.admin();
    admin.create_sponsor("acme").await.unwrap();
    admin.deposit("acme", Cents(10_000), "d").await.unwrap();
    let rain = admin.create_rain(&new_rain(10, 1_000)).await.unwrap().id;
    let mut number = 0;
    let mut add = async || {
        number += 1;
        let asked = packets(10, 1_000, &format!("k{number}"));
        let done = admin.top_up_rain(rain, &asked).await?;
        assert_eq!(done.top_up, number);
        assert_eq!(done.rain.packets, Some(10 + 10 * number));
        let all = done.rain.packets;
        server.until(rain, |rain| rain.loaded_packets >= all).await;
        Ok::<State, AdminError>(done.rain.state)
    };
    assert!(add().await.unwrap() <= State::Ready); // created, or loaded by now
    server.until(rain, |rain| rain.state == State::Ready).await;
    assert_eq!(add().await.unwrap(), State::Ready);
    admin.open_rain(rain).await.unwrap();
    assert_eq!(add().await.unwrap(), State::Open);
    post(&server, &format!("/v1/rains/{rain}/pause"), "{}").await;
    assert_eq!(add().await.unwrap(), State::Paused);
    assert_eq!(tap_once(&server, "anna", rain).await, Outcome::Paused);
    post(&server, &format!("/v1/rains/{rain}/resume"), "{}").await;
    for n in 0..50 {
        let user = format!("user-{n}");
        assert_eq!(tap(&server, &user, rain).await.outcome(), Outcome::Won);
    }
    server.until_settled(rain).await;
    let winners = admin.all_winners(rain).await.unwrap();
    let indexes: Vec<u32> = winners.iter().map(|won| won.packet_id.index()).collect();
    assert_eq!(indexes, (0..50).collect::<Vec<_>>());
    let shown = admin.rain(rain).await.unwrap();
    assert_eq!(
        (shown.total_cents, shown.packets),
        (Some(Cents(5_000)), Some(50))
    );
    assert_eq!(shown.loaded_packets, Some(50));
    let numbers: Vec<u32> = shown.top_ups.iter().map(|top_up| top_up.number).collect();
    assert_eq!(numbers, [1, 2, 3, 4]);
    admin.close_rain(rain).await.unwrap();
    let late = admin.top_up_rain(rain, &packets(10, 1_000, "late")).await;
    let (status, detail) = problem(late.unwrap_err());
    assert_eq!(status, 409);
    assert!(detail.contains("cannot be topped up"), "{detail}");
    // What was done is answered as it was, even now.
    let again = admin.top_up_rain(rain, &packets(10, 1_000, "k2")).await;
    assert_eq!(again.unwrap().top_up, 2);
    let balance = admin.account("sponsor:acme").await.unwrap().balance_cents;
    assert_eq!(balance, Cents(5_000));
}

async fn tap_once(server: &Server, user: &str, rain: RainId) -> Outcome {
    let mut raw = Raw::user(server, user).await;
    raw.grab(rain.get()).await.outcome()
}

fn problem(error: AdminError) -> (u16, String) {
    match error {
        AdminError::Problem { status, detail, .. } => (status, detail),
        other => panic!("{other}"),
    }
}

async fn post(server: &Server, path: &str, body: &str) -> (u16, String) {
    let request = Signed::post(path, &server.api_key(), body);
    let answer = request.send(server).await;
    (answer.status, answer.text)
}

#[tokio::test]
async fn a_top_up_that_is_sent_often_and_at_once_is_made_once() {
    let server = Server::start(&["store.managed_nodes=1"]);
    let rain = server.ready_rain(10, 1_000).await;
    let admin = server.admin();
    admin.deposit("acme", Cents(700), "more").await.unwrap();
    let asked = packets(10, 500, "k");
    let calls = (0..12).map(|_| admin.top_up_rain(rain, &asked));
    for done in futures_util::future::join_all(calls).await {
        assert_eq!(done.unwrap().top_up, 1);
    }
    let other = packets(11, 500, "k");
    let (status, detail) = problem(admin.top_up_rain(rain, &other).await.unwrap_err());
    assert_eq!(status, 409);
    assert!(detail.contains("came with another request"), "{detail}");
    let balance = async |admin: &AdminClient, name: String| {
        admin.account(&name).await.unwrap().balance_cents.0
    };
    assert_eq!(balance(&admin, "sponsor:acme".into()).await, 200);
    assert_eq!(balance(&admin, format!("escrow:{rain}")).await, 1_500);
    server
        .until(rain, |rain| rain.loaded_packets == Some(20))
        .await;
    let audit = admin.audit(rain).await.unwrap();
    assert!(audit.balanced, "{audit:?}");
    assert_eq!(audit.pool_cents, Cents(1_500));
}

#[tokio::test]
async fn a_top_up_that_cannot_work_is_refused_with_the_reason() {
    let server = Server::start(&["store.managed_nodes=1"]);
    let rain = server.ready_rain(10, 1_000).await;
    let admin = server.admin();
    let table = NewRain {
        rule: Rule::Tiers(vec![Tier {
            count: 10,
            cents: Cents(100),
        }]),
        key: None,
        ..new_rain(10, 1_000)
    };
    admin.deposit("acme", Cents(1_050), "more").await.unwrap();
    let table = admin.create_rain(&table).await.unwrap().id;
    let path = |rain: RainId| format!("/v1/rains/{rain}/top-up");
    for (path, body, status, part) in [
        (
            path(rain),
            r#"{"packets":5,"total_cents":51}"#,
            409,
            "sponsor acme has 0.50, which does not pay for a top-up of 0.51",
        ),
        (
            path(rain),
            r#"{"packets":0,"total_cents":5}"#,
            422,
            "packets is 0",
        ),
        (
            path(rain),
            r#"{"packets":6,"total_cents":5}"#,
            422,
            "total is 0.05: 6 packets of at least 0.01",
        ),
        (
            path(rain),
            r#"{"packets":1,"total_cents":5,"max_cents":4}"#,
            422,
            "at most 0.04 (max)",
        ),
        (
            path(rain),
            r#"{"packets":99999991,"total_cents":99999991}"#,
            422,
            "the rain has 10, and may have at most 100000000 in all",
        ),
        (
            path(rain),
            r#"{"packets":1,"total_cents":1000000000000000}"#,
            422,
            "the rain has 10.00, and may have",
        ),
        (
            path(rain),
            r#"{"packets":3,"total_cents":5,"rule":{"tiers":[{"count":2,"cents":2}]}}"#,
            422,
            "add up to 2",
        ),
        (
            path(table),
            r#"{"packets":1,"total_cents":1}"#,
            422,
            "prize table",
        ),
        (
            path(rain),
            r#"{"packets":1,"total_cents":1,"key":"k"}"#,
            422,
            "unknown field `key`",
        ),
        (
            path(rain),
            r#"{"packets":1,"total_cents":1,"sponsor":"else"}"#,
            422,
            "sponsor",
        ),
        (path(rain), r#"{"packets":-1,"total_cents":1}"#, 422, "-1"),
        (
            path(rain),
            r#"{"packets":1,"total_cents":"0.01"}"#,
            422,
            "total_cents",
        ),
        (
            "/v1/rains/99/top-up".into(),
            r#"{"packets":1,"total_cents":1}"#,
            404,
            "rain 99 does not exist",
        ),
        (
            "/v1/rains/x/top-up".into(),
            r#"{"packets":1,"total_cents":1}"#,
            404,
            "\\\"x\\\"",
        ),
    ] {
        let (answered, text) = post(&server, &path, body).await;
        assert_eq!(answered, status, "{body}: {text}");
        assert!(text.contains(part), "{text}\ndoes not say\n{part}");
    }
    let balance = admin.account("sponsor:acme").await.unwrap().balance_cents;
    assert_eq!(balance, Cents(50), "nothing was taken");
    // Another rule and other bounds than the rain's.
    let own = r#"{"packets":3,"total_cents":50,"rule":{"tiers":[{"count":2,"cents":20},{"count":1,"cents":10}]},"min_cents":5}"#;
    let (status, text) = post(&server, &path(rain), own).await;
    assert_eq!(status, 201, "{text}");
    let shown: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (&shown["top_up"], &shown["packets"]),
        (&1.into(), &13.into())
    );
    assert_eq!(shown["rule"], "double_mean");
    assert_eq!(shown["top_ups"][0]["min_cents"], 5);
    assert!(!text.contains("seed"));
}

#[tokio::test]
async fn the_command_line_tops_a_rain_up() {
    let server = Server::start(&["store.managed_nodes=1"]);
    let rain = server.ready_rain(10, 1_000).await.to_string();
    let admin = server.admin();
    admin.deposit("acme", Cents(10_000), "more").await.unwrap();
    let cli = |args: &[&str]| {
        let output = hongbao()
            .arg("--data-dir")
            .arg(server.data_dir())
            .args(["rain", "top-up", &rain])
            .args(args)
            .output()
            .unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (
            output.status.code(),
            text(output.stdout),
            text(output.stderr),
        )
    };
    let plain = ["--packets", "5", "--total", "10.00", "--key", "k"];
    for _ in 0..2 {
        let (code, out, error) = cli(&plain);
        assert_eq!(code, Some(0), "{error}");
        assert!(out.contains("top-up    1\n"), "{out}");
        assert!(out.contains("packets   15 worth 20.00\n"), "{out}");
        assert!(out.contains("of them 5 worth 10.00 by top-up 1"), "{out}");
    }
    let table = [
        "--tier", "2x5.00", "--tier", "1x1.50", "--total", "11.50", "--key", "t", "--json",
    ];
    let (code, out, error) = cli(&table);
    assert_eq!(code, Some(0), "{error}");
    let shown: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        (&shown["top_up"], &shown["packets"]),
        (&2.into(), &18.into())
    );
    let (code, _, error) = cli(&["--packets", "5", "--total", "1000.00", "--key", "x"]);
    assert_eq!(code, Some(1));
    assert!(
        error.contains("sponsor acme has 78.50, which does not pay"),
        "{error}"
    );
    let (code, _, error) = cli(&["--packets", "5", "--total", "1.00"]);
    assert_eq!(code, Some(2), "without a key it could not be repeated");
    assert!(error.contains("--key"), "{error}");
}
