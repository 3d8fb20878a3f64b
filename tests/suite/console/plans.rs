//! An operator prepares: a server that is told, a template, schedules, and a rain that is announced before its time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::http::StatusCode;
use hongbao::admin::caller::Role;
use hongbao::clock::now_ms;
use hongbao::rain::Cents;
use serde_json::json;

use super::browser::log_in;
use super::key;
use crate::support::browser::Browser;
use crate::support::receiver::{Answer, Receiver};
use crate::support::server::Server;
use crate::support::signed::Signed;

const QUICK: [&str; 6] = [
    "store.managed_nodes=1",
    "webhooks.interval_ms=10",
    "webhooks.first_retry_ms=20",
    "webhooks.second_retry_ms=30",
    "webhooks.third_retry_ms=40",
    "admin.schedule_interval_ms=50",
];

/// A browser in which somebody with this role is logged in.
async fn of_role(server: &Server, role: Role) -> Browser {
    let key = key(server, "night shift", &[role]).await;
    let browser = Browser::open(&server.admin_url()).await;
    browser.look(1_280, "light").await;
    browser.go("/rains").await;
    log_in(&browser, "", &key.credential).await;
    browser
}

/// What the page complained of, but for what was asked wrongly on purpose.
async fn assert_no_complaints(browser: &Browser, expected: &[&str]) {
    let complaints = browser.complaints().await;
    let unknown = |text: &&String| !expected.iter().any(|part| text.contains(part));
    let unknown: Vec<&String> = complaints.iter().filter(unknown).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}

/// The secret that is shown, once.
async fn secret(browser: &Browser) -> String {
    let secret = browser.until("#credential", |text| !text.is_empty()).await;
    browser.click("#yes").await;
    browser.until("#credential", str::is_empty).await;
    secret
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_has_a_server_told_and_sends_again_what_failed() {
    let server = Server::start(&QUICK);
    let broken = Arc::new(AtomicBool::new(false));
    let script = broken.clone();
    let receiver = Receiver::with(move |_| match script.load(Ordering::SeqCst) {
        true => Answer::Refuse(StatusCode::INTERNAL_SERVER_ERROR),
        false => Answer::Thanks,
    })
    .await;
    let browser = of_role(&server, Role::Operator).await;
    browser.go("/webhooks").await;
    browser.sees("main", "No webhook yet").await;
    browser.picture("webhooks-none").await;
    browser.click("#new-webhook").await;
    browser.fill("#url", "gopher://quiz.example").await;
    browser.click("#yes").await;
    // What is wrong is said where it was written, and the rest of the answer is not lost.
    browser.sees("dialog .fault", "gopher").await;
    browser.picture("webhook-new").await;
    browser.fill("#url", &receiver.url()).await;
    browser.click("#yes").await;
    let first = secret(&browser).await;
    browser.sees("h1", &receiver.url()).await;

    browser.click("#hook-test").await;
    browser.sees("#deliveries tbody", "delivered").await;
    let told = receiver.told();
    assert_eq!(told[0].body["event"], "webhook.test");
    assert!(told[0].is_signed_by(&first));

    broken.store(true, Ordering::SeqCst);
    browser.click("#hook-test").await;
    browser.sees("#deliveries tbody", "failed").await;
    // Every page says that something was not delivered.
    browser.sees("nav", "!").await;
    browser.picture("webhook").await;
    browser.click("#deliveries button.link").await;
    browser.sees("dialog tbody", "500").await;
    browser.sees("dialog pre", "webhook.test").await;
    browser.picture("delivery").await;
    browser
        .click("dialog .actions.end button[type=button]")
        .await;
    broken.store(false, Ordering::SeqCst);
    browser.click("button.resend").await;
    let done = |text: &str| text.matches("delivered").count() == 2;
    browser.until("#deliveries tbody", done).await;
    browser
        .until("nav .mark.warn", |text| !text.contains('!'))
        .await;

    browser.click("#hook-rotate").await;
    browser.click("#yes").await;
    let second = secret(&browser).await;
    assert_ne!(first, second);
    browser.click("#hook-edit").await;
    browser.click("#event-claim-dead").await;
    browser.click("#yes").await;
    browser
        .until(".facts", |text| {
            text.contains("rain.opened") && !text.contains("claim.dead") && text.contains("no. 2")
        })
        .await;
    browser.click("#hook-disable").await;
    browser.sees("dialog", "Disable this webhook?").await;
    browser.click("#yes").await;
    browser.sees("header", "disabled").await;
    browser.click("#hook-delete").await;
    browser.click("#yes").await;
    browser.sees("main", "No webhook yet").await;
    assert_no_complaints(&browser, &["status of 401", "status of 422"]).await;
}

/// A template of acme, by its fields.
async fn make_template(browser: &Browser) {
    browser.go("/templates").await;
    browser.sees("main", "No template yet").await;
    browser.click("#new-template").await;
    for (field, text) in [
        ("#name", "friday-final"),
        ("#title", "Final question"),
        ("#room", "quiz"),
        ("#sponsor", "acme"),
        ("#total", "1,500.00"),
        ("#packets", "300"),
        ("#seconds", "45"),
        ("#announce", "1"),
    ] {
        browser.fill(field, text).await;
    }
    browser.sees("#preview", "Median").await;
    browser.picture("template-new").await;
    browser.click("#save-template").await;
    browser.sees("tbody", "friday-final").await;
    browser.picture("templates").await;
}

/// Has a rain of the template created for an opening in nine minutes.
async fn make_schedule(browser: &Browser, title: &str) {
    browser.go("/templates").await;
    browser.click("a.plan").await;
    browser.sees("h1", "New schedule").await;
    browser.fill("#title", title).await;
    // Where a field of a time takes its digits depends on the machine's language.
    let script = "const field = document.querySelector('.instant'); const at = new Date(arguments[0]); \
                  field.value = new Date(at - at.getTimezoneOffset() * 60000).toISOString().slice(0, 19); \
                  field.dispatchEvent(new Event('input', { bubbles: true }));";
    let opens = now_ms() + 9 * 60_000;
    browser.run(script, json!([opens])).await;
    browser.picture("schedule-new").await;
    browser.click("#save-schedule").await;
    browser.sees("h1", title).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_keeps_a_template_schedules_a_rain_and_announces_it() {
    let server = Server::start(&QUICK);
    let admin = server.admin();
    admin.create_sponsor("acme").await.unwrap();
    admin
        .deposit("acme", Cents(200_000), "bank-1")
        .await
        .unwrap();
    let browser = of_role(&server, Role::Operator).await;
    browser.go("/schedules/new").await;
    browser.sees("main", "A schedule needs a template").await;
    make_template(&browser).await;
    make_schedule(&browser, "Tonight").await;
    browser.sees("tbody", "created").await;
    browser.picture("schedule").await;

    // Its room is to be told a minute before the opening, and is told now.
    browser.click("tbody a").await;
    browser.sees("#state", "ready").await;
    browser.sees("#clock", "opens in 08:").await;
    browser.picture("rain-ready").await;
    browser.click("#do-announce").await;
    browser.sees(".toasts", "The room has been told").await;
    browser.until("#do-announce", str::is_empty).await;
    let key = server.api_key();
    let told = Signed::get("/v1/rains/1", &key).send(&server).await.json;
    assert!(told["announce_at_ms"].as_i64().unwrap() <= now_ms());
    assert_eq!(told["title"], "Tonight");

    // There are 500.00 left: what goes wrong is said, until it is put right.
    make_schedule(&browser, "Later tonight").await;
    browser.sees(".notice.bad", "There is no rain yet").await;
    browser.sees("tbody", "not enough money").await;
    browser.picture("schedule-failed").await;
    admin
        .deposit("acme", Cents(200_000), "bank-2")
        .await
        .unwrap();
    browser.sees("tbody", "created").await;
    assert_eq!(browser.count(".notice.bad").await, 0);
    // It has no other opening.
    browser.sees(".facts", "ended").await;

    browser.click("a.back").await;
    browser.click("#new-schedule").await;
    browser.fill("#title", "Every night").await;
    browser.choose("#kind", "daily").await;
    browser.click("#save-schedule").await;
    browser.sees(".facts", "Daily at 20:00").await;
    browser.click("#end-schedule").await;
    browser.sees("dialog", "creates no more rains").await;
    browser.click("#yes").await;
    browser.sees(".facts", "ended").await;
    browser.click("a.back").await;
    browser.sees("tbody", "Later tonight").await;
    browser.picture("schedules").await;

    // A rain by hand, with an amount of its own.
    browser.go("/templates").await;
    browser.click("a.use").await;
    browser.sees("#preview", "Median").await;
    browser.fill("#total", "200.00").await;
    browser.fill("#title", "By hand").await;
    browser.click("#check-rain").await;
    browser.sees("#rehearsal", "¥800.00 after it").await;
    browser.click("#create-rain").await;
    browser.sees("h1", "By hand").await;
    browser.sees("dl", "45 s").await;

    browser.go("/templates").await;
    browser.click("td.acts .danger").await;
    browser.click("#yes").await;
    browser
        .until("tbody", |text| !text.contains("friday-final"))
        .await;
    assert_no_complaints(&browser, &["status of 401"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_viewer_sees_what_is_planned_and_who_is_told_and_changes_nothing() {
    let server = Server::start(&QUICK);
    let admin = server.admin();
    admin.create_sponsor("acme").await.unwrap();
    admin
        .deposit("acme", Cents(10_000), "bank-1")
        .await
        .unwrap();
    let key = server.api_key();
    let rain = json!({ "room": "quiz", "sponsor": "acme", "rule": "even", "total_cents": 100, "packets": 10 });
    let opens = now_ms() + 3_600_000;
    for (path, body) in [
        ("/v1/templates", json!({ "name": "nightly", "rain": rain })),
        (
            "/v1/schedules",
            json!({ "template": "nightly", "times": { "once": [opens] } }),
        ),
        (
            "/v1/webhooks",
            json!({ "url": "https://quiz.example/hook" }),
        ),
    ] {
        let made = Signed::post(path, &key, body.to_string())
            .send(&server)
            .await;
        assert!(made.status < 300, "{}", made.text);
    }
    let browser = of_role(&server, Role::Viewer).await;
    browser.go("/webhooks").await;
    browser.click("tbody a").await;
    browser.sees("h1", "quiz.example").await;
    let webhook = browser
        .run("return location.hash.slice(1)", json!([]))
        .await;
    for (page, sight) in [
        ("/templates", "nightly"),
        ("/templates/nightly", "All alike"),
        ("/schedules", "nightly"),
        ("/schedules/1", "Next openings"),
        ("/webhooks", "quiz.example"),
        (webhook.as_str().unwrap(), "Deliveries"),
        ("/dead", "No dead letters"),
        ("/accounts", "sponsor:acme"),
    ] {
        browser.go(page).await;
        browser.sees("main", sight).await;
        // It says why there is nothing to press.
        browser.sees("main", "Read only").await;
        let why = "return document.querySelector('.readonly').title";
        let why = browser.run(why, json!([])).await;
        assert!(why.as_str().unwrap().contains("Changes need the role"));
        let writes = "main .primary, main .danger, td.acts, [id^=do-], [id^=hook-], [id^=new-], [id^=save-], #resend-failed, #requeue-all";
        assert_eq!(browser.text(writes).await, "", "{page}");
    }
    browser.picture("viewer").await;
    for page in ["/templates/new", "/schedules/new", "/rains/new"] {
        browser.go(page).await;
        browser
            .sees("main", "Ask for one with the role operator")
            .await;
    }
    browser.go("/keys").await;
    browser.sees("main", "There is no such page").await;
}
