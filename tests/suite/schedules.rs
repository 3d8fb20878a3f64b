//! Rains by name, and those that come by themselves.

use hongbao::client::admin::{AdminClient, AdminError, NewRain};
use hongbao::client::schedules::{NewSchedule, Opening};
use hongbao::clock::now_ms;
use hongbao::rain::{Cents, State, Times};
use hongbao::wire::Outcome;
use hongbao::wire::server_frame::Message;
use serde_json::{Value, json};

use crate::support::redis::Redis;
use crate::support::server::{Server, hongbao, new_rain};
use crate::support::wire::Raw;
use crate::support::{eventually, postgres};

fn problem(error: AdminError) -> (u16, String) {
    match error {
        AdminError::Problem { status, detail, .. } => (status, detail),
        other => panic!("{other}"),
    }
}

fn definition(packets: u32, total: i64) -> Value {
    json!(new_rain(packets, total))
}

fn once(instants: &[i64], ahead_ms: i64, key: &str) -> NewSchedule {
    NewSchedule {
        template: "nightly".into(),
        overrides: json!({}),
        times: Times::Once(instants.to_vec()),
        ahead_ms: Some(ahead_ms),
        key: Some(key.into()),
    }
}

async fn sponsor(admin: &AdminClient, cents: i64) {
    admin.create_sponsor("acme").await.unwrap();
    admin.deposit("acme", Cents(cents), "d").await.unwrap();
}

async fn until_opening(
    admin: &AdminClient,
    schedule: i64,
    wanted: impl Fn(&Opening) -> bool,
) -> Opening {
    eventually("an opening", async || {
        let openings = admin.schedule(schedule).await.ok()?.openings;
        openings.into_iter().find(|opening| wanted(opening))
    })
    .await
}

#[tokio::test]
async fn rains_are_made_from_a_template_with_fields_of_their_own() {
    let server = Server::start(&["store.managed_nodes=1"]);
    let admin = server.admin();
    let rain = definition(10, 1_000);
    let made = admin.create_template("nightly", &rain).await.unwrap();
    assert_eq!((made.name.as_str(), &made.rain), ("nightly", &rain));
    admin.create_template("nightly", &rain).await.unwrap();
    let other = definition(20, 1_000);
    let refused = admin.create_template("nightly", &other).await.unwrap_err();
    assert_eq!(problem(refused).0, 409);
    for (name, rain, part) in [
        ("two words", definition(10, 1_000), "two words"),
        ("small", definition(10, 9), "10 packets of at least 0.01"),
        ("typo", json!({"packetz": 1}), "packetz"),
        (
            "one",
            json!({"opens_at_ms": 7}),
            "opens_at_ms is of one rain only",
        ),
    ] {
        let (status, detail) = problem(admin.create_template(name, &rain).await.unwrap_err());
        assert_eq!(status, 422);
        assert!(detail.contains(part), "{detail}");
    }
    let missing = admin.update_template("weekly", &other).await.unwrap_err();
    assert_eq!(
        problem(missing),
        (404, "template weekly does not exist".into())
    );
    assert_eq!(
        admin.update_template("nightly", &other).await.unwrap().rain,
        other
    );
    assert_eq!(admin.templates().await.unwrap().len(), 1);

    sponsor(&admin, 5_000).await;
    let fields = json!({"room": "final", "total_cents": 3_000});
    let first = admin
        .rain_from_template("nightly", &fields, Some("tonight"))
        .await
        .unwrap();
    assert_eq!((first.room.as_str(), first.packets), ("final", Some(20)));
    assert_eq!(first.total_cents, Some(Cents(3_000)));
    let again = admin
        .rain_from_template("nightly", &fields, Some("tonight"))
        .await
        .unwrap();
    assert_eq!(again.id, first.id, "one key makes one rain");
    admin.delete_template("nightly").await.unwrap();
    let gone = admin
        .rain_from_template("nightly", &fields, None)
        .await
        .unwrap_err();
    assert_eq!(problem(gone).0, 404);
}

#[tokio::test]
async fn a_schedule_creates_its_rain_ahead_as_soon_as_the_sponsor_can_pay() {
    let server = Server::start(&["store.managed_nodes=1", "admin.schedule_interval_ms=20"]);
    let admin = server.admin();
    admin.create_sponsor("acme").await.unwrap();
    admin
        .create_template("nightly", &definition(10, 1_000))
        .await
        .unwrap();
    let opens_at_ms = now_ms() + 600_000;
    let plan = once(&[opens_at_ms], 3_600_000, "s");
    let schedule = admin.create_schedule(&plan).await.unwrap().id;
    assert_eq!(admin.create_schedule(&plan).await.unwrap().id, schedule);
    let other = NewSchedule {
        ahead_ms: None,
        ..plan.clone()
    };
    assert_eq!(
        problem(admin.create_schedule(&other).await.unwrap_err()).0,
        409
    );
    let failed = until_opening(&admin, schedule, |opening| opening.state == "failed").await;
    let why = failed.problem.unwrap();
    assert!(
        why.contains("acme has 0.00, which does not pay for a rain of 10.00"),
        "{why}"
    );
    let in_use = problem(admin.delete_template("nightly").await.unwrap_err());
    assert_eq!(in_use.0, 409);

    admin.deposit("acme", Cents(5_000), "d").await.unwrap();
    let created = until_opening(&admin, schedule, |opening| opening.state == "created").await;
    assert_eq!(
        (created.opens_at_ms, &created.problem),
        (opens_at_ms, &None)
    );
    let rain = created.rain_id.unwrap();
    let ready = server.until(rain, |rain| rain.state == State::Ready).await;
    assert_eq!(ready.opens_at_ms, Some(opens_at_ms));
    // Nothing is to come any more: it ends by itself, and the template is free.
    eventually("the end of the schedule", async || {
        admin.schedule(schedule).await.unwrap().ended.then_some(())
    })
    .await;
    admin.delete_template("nightly").await.unwrap();
    assert_eq!(admin.rains().await.unwrap().len(), 1);
    assert_eq!(
        admin.account("sponsor:acme").await.unwrap().balance_cents,
        Cents(4_000)
    );
    assert_eq!(
        server
            .metric("hongbao_openings_total{result=\"created\"}")
            .await,
        1.0
    );
}

#[tokio::test]
async fn an_opening_without_money_is_missed_with_the_reason_and_the_next_one_is_not() {
    let server = Server::start(&["store.managed_nodes=1", "admin.schedule_interval_ms=20"]);
    let admin = server.admin();
    admin.create_sponsor("acme").await.unwrap();
    admin
        .create_template("nightly", &definition(10, 1_000))
        .await
        .unwrap();
    let soon = now_ms() + 500;
    let later = soon + 600_000;
    let schedule = admin
        .create_schedule(&once(&[later, soon], 1_000, "s"))
        .await
        .unwrap();
    assert_eq!(schedule.next_openings_ms, [soon, later]);
    let missed = until_opening(&admin, schedule.id, |opening| opening.state == "missed").await;
    assert_eq!(missed.opens_at_ms, soon);
    assert!(missed.problem.unwrap().contains("acme has 0.00"));
    let shown = admin.schedule(schedule.id).await.unwrap();
    assert_eq!((shown.next_openings_ms, shown.ended), (vec![later], false));
    assert!(admin.end_schedule(schedule.id).await.unwrap().ended);
    for (times, part) in [
        (
            Times::Once(vec![1]),
            "every opening of the schedule is past",
        ),
        (Times::Once(vec![]), "once names 0 openings"),
    ] {
        let plan = NewSchedule {
            times,
            ..once(&[], 1_000, "wrong")
        };
        let (status, detail) = problem(admin.create_schedule(&plan).await.unwrap_err());
        assert_eq!(status, 422);
        assert!(detail.contains(part), "{detail}");
    }
}

/// Three processes look after the same schedules; two of them die on the way.
#[tokio::test(flavor = "multi_thread")]
async fn however_many_processes_look_an_opening_has_one_rain() {
    let node = Redis::fit().await;
    let ledger = format!("ledger.url={}", postgres::database().await);
    let nodes = format!("store.nodes=[\"{}\"]", node.url());
    let settings = [
        "store.topology=nodes",
        nodes.as_str(),
        ledger.as_str(),
        "admin.schedule_interval_ms=20",
    ];
    let mut servers = [(); 3].map(|()| Server::start(&settings));
    let admin = servers[2].admin();
    sponsor(&admin, 1_000_000).await;
    admin
        .create_template("nightly", &definition(10, 1_000))
        .await
        .unwrap();
    let first = now_ms() + 600_000;
    let openings: Vec<i64> = (0..30).map(|n| first + n * 1_000).collect();
    let schedule = admin
        .create_schedule(&once(&openings, 3_600_000, "s"))
        .await
        .unwrap()
        .id;
    until_opening(&admin, schedule, |opening| opening.state == "created").await;
    servers[0].kill();
    servers[1].kill();
    eventually("every opening to have its rain", async || {
        let openings = admin.schedule(schedule).await.ok()?.openings;
        let created = openings.iter().filter(|opening| opening.rain_id.is_some());
        (created.count() == 30).then_some(())
    })
    .await;
    let rains = admin.rains().await.unwrap();
    let mut opens: Vec<i64> = rains.iter().filter_map(|rain| rain.opens_at_ms).collect();
    opens.sort();
    assert_eq!(opens, openings, "one rain each");
    let left = admin.account("sponsor:acme").await.unwrap().balance_cents;
    assert_eq!(left, Cents(1_000_000 - 30 * 1_000));
}

#[tokio::test]
async fn a_room_is_told_of_a_rain_when_it_is_to_be_announced_and_not_before() {
    let server = Server::start(&["store.managed_nodes=1"]);
    let admin = server.admin();
    sponsor(&admin, 10_000).await;
    let mut anna = Raw::user(&server, "anna").await;
    anna.watch("quiz").await;
    let opens_at_ms = now_ms() + 600_000;
    let new = |announce_ms| NewRain {
        opens_at_ms: Some(opens_at_ms),
        announce_ms: Some(announce_ms),
        ..new_rain(10, 1_000)
    };
    let untold = admin.create_rain(&new(0)).await.unwrap().id;
    server
        .until(untold, |rain| rain.state == State::Ready)
        .await;
    // Its gateway knows it, and says so to who taps; the room hears of the next one first.
    assert_eq!(anna.grab(untold.get()).await.outcome(), Outcome::NotOpen);
    let soon = 600_000 - 300;
    let told = admin.create_rain(&new(soon)).await.unwrap().id;
    let announced = async |raw: &mut Raw| loop {
        if let Some(Message::RainAnnounced(rain)) = raw.receive().await.unwrap().message {
            return rain;
        }
    };
    let first = announced(&mut anna).await;
    assert_eq!(first.rain_id, told.get());
    assert!(first.server_time_ms >= opens_at_ms - soon);
    let mut ben = Raw::user(&server, "ben").await;
    ben.watch("quiz").await;
    assert_eq!(announced(&mut ben).await.rain_id, told.get());
    admin.announce_rain(untold).await.unwrap();
    for raw in [&mut anna, &mut ben] {
        assert_eq!(announced(raw).await.rain_id, untold.get());
    }
    // Whoever comes now is told of both.
    let mut carl = Raw::user(&server, "carl").await;
    carl.watch("quiz").await;
    let both = [
        announced(&mut carl).await.rain_id,
        announced(&mut carl).await.rain_id,
    ];
    assert_eq!(both, [untold.get(), told.get()]);
    let without_time = NewRain {
        announce_ms: Some(5),
        ..new_rain(10, 1_000)
    };
    let (status, detail) = problem(admin.create_rain(&without_time).await.unwrap_err());
    assert_eq!(status, 422);
    assert!(detail.contains("announce_ms needs opens_at_ms"), "{detail}");
}

#[tokio::test]
async fn the_command_line_keeps_templates_and_schedules() {
    let server = Server::start(&["store.managed_nodes=1"]);
    sponsor(&server.admin(), 10_000).await;
    let run = |args: &[&str]| {
        let mut command = hongbao();
        command.arg("--data-dir").arg(server.data_dir()).args(args);
        let output = command.output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{args:?}: {errors}");
        String::from_utf8(output.stdout).unwrap()
    };
    let rain = [
        "--sponsor",
        "acme",
        "--room",
        "quiz",
        "--total",
        "10.00",
        "--packets",
        "10",
    ];
    run(&[&["template", "create", "nightly"], &rain[..]].concat());
    run(&[
        &["template", "update", "nightly", "--announce-ms", "5000"],
        &rain[..],
    ]
    .concat());
    let shown: Value = serde_json::from_str(&run(&["template", "show", "nightly"])).unwrap();
    assert_eq!(shown["rain"]["announce_ms"], 5_000);
    assert!(run(&["template", "list"]).starts_with("nightly"));
    let with = r#"{"room":"final","announce_ms":null}"#;
    let made = run(&["template", "rain", "nightly", "--with", with, "--json"]);
    let made: Value = serde_json::from_str(&made).unwrap();
    assert_eq!(made["room"], "final");
    let plan = [
        "--weekly",
        "20:00",
        "--on",
        "friday,saturday",
        "--utc-offset=+08:00",
        "--key",
        "s",
    ];
    let told = run(&[&["schedule", "create", "nightly"], &plan[..]].concat());
    assert!(told.contains(r#""days":["friday","saturday"]"#), "{told}");
    assert!(told.contains("next      "), "{told}");
    assert!(run(&["schedule", "show", "1"]).contains("schedule  1"));
    assert!(run(&["schedule", "end", "1"]).contains("schedule  1, ended"));
    assert!(run(&["schedule", "list", "--json"]).contains("\"ended\": true"));
    run(&["template", "delete", "nightly"]);
    let refused = hongbao()
        .args(["schedule", "create", "nightly", "--key", "s"])
        .output()
        .unwrap();
    assert_eq!(refused.status.code(), Some(2), "no times");
}
