//! A night in a real Chromium: log in, prepare a rain, watch it fall, sell out and close, read its audit, put a dead letter right. Every
//! page is kept as a picture in `target/screenshots`.

use std::time::Duration;

use hongbao::admin::caller::Role;
use hongbao::rain::{Cents, RainId, State};

use super::key;
use crate::support::browser::Browser;
use crate::support::crowd::crowd_of;
use crate::support::server::Server;
use crate::support::wire::{Raw, final_outcome};

const PACKETS: u32 = 300;

/// A server with three claims that were buried because their users had no accounts; by now accounts are opened for them.
async fn with_dead_letters(confirm: &str) -> (Server, RainId) {
    let settings = [
        "store.managed_nodes=2",
        "ledger.create_user_accounts=false",
        "admin.live_interval_ms=100",
    ];
    let server = Server::start(&settings);
    let rain = server.open_rain(100, 10_000).await;
    for user in ["wei", "lan", "mei"] {
        final_outcome(&mut Raw::user(&server, user).await, rain.get()).await;
    }
    let dead = |live: hongbao::client::admin::Live| live.dead == 3;
    server.until(rain, |rain| rain.live.is_some_and(dead)).await;
    let settings = ["ledger.create_user_accounts=true", confirm];
    (server.restart_crashing(&settings, None), rain)
}

pub async fn log_in(browser: &Browser, key: &str, secret: &str) {
    browser.fill("#key", key).await;
    browser.fill("#secret", secret).await;
    browser.click("#log-in").await;
    browser.sees("h1", "Rains").await;
}

async fn create_rain(browser: &Browser) {
    browser.click("#new-rain").await;
    for (field, text) in [
        ("#title", "Final question"),
        ("#room", "quiz"),
        ("#sponsor", "acme"),
        ("#total", "1,500.00"),
        ("#packets", "300"),
        ("#seconds", "600"),
    ] {
        browser.fill(field, text).await;
    }
    // The preview comes by itself, of this split.
    browser
        .until("#preview", |text| {
            text.contains("1,500.00") && text.contains("Median")
        })
        .await;
    assert!(browser.count("#preview rect.bar").await > 3);
    browser.click("#check-rain").await;
    browser
        .sees("#rehearsal", "acme has ¥2,000.00, and ¥500.00 after it")
        .await;
    browser.picture("rain-new").await;
    browser.click("#create-rain").await;
    browser.sees("h1", "Final question").await;
    browser.sees("#state", "ready").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_runs_a_rain_and_puts_a_dead_letter_right() {
    let (server, buried) = with_dead_letters("admin.confirm=false").await;
    let admin = server.admin();
    admin
        .deposit("acme", Cents(200_000), "bank-1")
        .await
        .unwrap();
    let browser = Browser::open(&server.admin_url()).await;
    browser.look(1_280, "light").await;
    browser.go("/rains").await;
    browser.sees("form", "Log in with a key").await;
    browser.picture("login").await;
    browser.fill("#key", "bootstrap").await;
    browser.fill("#secret", "guessed").await;
    browser.click("#log-in").await;
    browser.sees(".fault", "there is no such key").await;
    log_in(&browser, "bootstrap", &server.api_key()).await;

    create_rain(&browser).await;
    let rain = admin
        .rains()
        .await
        .unwrap()
        .into_iter()
        .map(|rain| rain.id)
        .max()
        .unwrap();
    browser.click("#do-open").await;
    browser.sees("#state", "open").await;
    // More people than packets, one after the other, while somebody watches.
    let people = crowd_of(&server, rain, 0..PACKETS + 60, Duration::from_millis(8));
    people.until_won(80).await;
    browser
        .until("#live", |text| {
            text.contains("Wins a second") && text.contains(" won") && !text.contains("\n300\n")
        })
        .await;
    browser
        .until("#latency", |text| {
            text.ends_with(" ms") || text.ends_with(" µs")
        })
        .await;
    browser.picture("rain-running").await;
    let told = people.end().await;
    assert_eq!(told.len(), PACKETS as usize);
    browser.sees("#state", "sold out").await;
    browser.sees("#credited", "1,500.00").await;
    browser.picture("rain-sold-out").await;

    browser.click("#do-close").await;
    browser.sees("dialog", "Close this rain?").await;
    browser.picture("rain-close").await;
    browser.click("#yes").await;
    server
        .until(rain, |rain| rain.state == State::Finished)
        .await;
    browser.sees("#state", "finished").await;
    browser.click("#to-audit").await;
    browser.sees("#verdict", "Balanced").await;
    browser.sees(".sums", "1,500.00").await;
    browser.picture("audit").await;

    browser.go("/dead").await;
    browser.sees("table", "lan").await;
    browser.picture("dead-letters").await;
    browser.fill("#search", "lan").await;
    browser
        .until("tbody", |text| {
            text.contains("lan") && !text.contains("wei")
        })
        .await;
    browser.click("button.requeue").await;
    browser.sees(".toasts", "It is tried again").await;
    let paid = |live: hongbao::client::admin::Live| live.dead == 2 && live.claims_moving() == 0;
    server
        .until(buried, |rain| rain.live.is_some_and(paid))
        .await;
    assert!(admin.account("user:lan").await.unwrap().balance_cents > Cents(0));

    let complaints = browser.complaints().await;
    // The wrong secret is one, and that nobody was logged in at first.
    let real: Vec<&String> = complaints
        .iter()
        .filter(|text| !text.contains("status of 401"))
        .collect();
    assert!(real.is_empty(), "{real:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn finance_and_admins_have_their_pages_and_a_viewer_has_no_buttons() {
    let (server, rain) = with_dead_letters("admin.confirm=true").await;
    let viewer = key(&server, "wall screen", &[Role::Viewer]).await;
    let browser = Browser::open(&server.admin_url()).await;
    browser.look(1_280, "light").await;
    browser.go("/accounts").await;
    browser.fill("#secret", &server.api_key()).await;
    browser.click("#log-in").await;
    browser.sees("table", "sponsor:acme").await;
    browser.click("td.acts button").await;
    browser.fill("#amount", "12,345.67").await;
    browser.fill("#reference", "bank-77").await;
    browser.picture("deposit").await;
    browser.click("#yes").await;
    browser.sees("dialog", "This moves ¥12,345.67").await;
    browser.picture("confirm").await;
    browser.click("#sure").await;
    browser.sees(".toasts", "Recorded").await;
    browser.sees("tbody", "12,345.67").await;
    browser.picture("accounts").await;
    browser.go("/accounts/sponsor:acme").await;
    browser.sees("tbody", "escrow:1").await;
    browser.picture("account").await;

    browser.go("/nodes").await;
    browser.sees("#ready", "All is well").await;
    browser.picture("health").await;
    browser.go("/keys").await;
    browser.click("#new-key").await;
    browser.fill("#key-name", "dashboard").await;
    browser.click("#role-viewer").await;
    browser.picture("key-new").await;
    browser.click("#yes").await;
    let credential = browser
        .until("#credential", |text| text.contains('.'))
        .await;
    browser.click("#yes").await;
    browser.sees("tbody", "dashboard").await;
    browser.picture("keys").await;
    browser.go("/log").await;
    browser.sees("tbody", "Create key").await;
    browser.picture("log").await;
    let text = browser.text("body").await;
    assert!(!text.contains(credential.split('.').nth(1).unwrap()));

    browser.click("#log-out").await;
    browser.go("/rains").await;
    log_in(&browser, "", &viewer.credential).await;
    browser.sees("tbody", "test").await;
    browser.picture("rains").await;
    assert_eq!(browser.text("nav").await.matches("Keys").count(), 0);
    for (page, sight) in [
        ("/rains".to_owned(), "test"),
        (format!("/rains/{rain}"), "Packets left"),
        ("/dead".into(), "wei"),
        ("/accounts".into(), "acme"),
        (format!("/rains/{rain}/audit"), "Balanced"),
    ] {
        browser.go(&page).await;
        browser.sees("main", sight).await;
        let writes = "#new-rain, [id^=do-], .requeue, td.acts, main .primary:not(.verdict ~ *)";
        let offered = browser.text(writes).await;
        assert!(
            offered.is_empty() || offered == "Audit again",
            "{page} offers {offered}"
        );
    }
    // What is not offered is refused too: a page is not the guard.
    let script = "return (async () => { const { csrf } = await (await fetch('/console/session')).json(); \
                  const head = { 'content-type': 'application/json', 'hongbao-csrf': csrf, 'idempotency-key': 'x' }; \
                  return (await fetch(arguments[0], { method: 'POST', headers: head, body: '{}' })).status; })()";
    let path = format!("/v1/rains/{rain}/pause");
    assert_eq!(browser.run(script, serde_json::json!([path])).await, 403);
}
