//! Something breaks: the console says what, and what to do, on whatever page somebody is.

use hongbao::rain::Cents;

use crate::support::browser::Browser;
use crate::support::redis::{Redis, flags};
use crate::support::server::{Server, hongbao, new_rain};
use crate::support::wire::{Raw, final_outcome};

use super::browser::log_in;

const ALL: &str = "server.roles=[\"gateway\",\"settle\",\"steward\",\"admin\"]";
const NO_STEWARD: &str = "server.roles=[\"gateway\",\"settle\",\"admin\"]";
const NO_SETTLER: &str = "server.roles=[\"gateway\",\"steward\",\"admin\"]";

#[tokio::test(flavor = "multi_thread")]
async fn the_console_says_what_is_wrong_on_every_page() {
    let mut node = Redis::fit().await;
    let other = Redis::fit().await;
    let settings = flags(&[&node, &other]);
    let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
    let server = Server::start(&settings);
    let rain = server.open_rain(200, 10_000).await;
    let browser = Browser::open(&server.admin_url()).await;
    browser.look(1_280, "light").await;
    browser.go("/rains").await;
    log_in(&browser, "bootstrap", &server.api_key()).await;
    browser.go("/nodes").await;
    browser.sees("#ready", "All is well").await;
    browser.sees("#nodes", "8,192").await;
    browser.picture("health").await;

    // A frozen node, seen from the page of a rain.
    browser.go(&format!("/rains/{rain}")).await;
    browser.sees("main", "Packets left").await;
    node.stop();
    browser.sees("#faults", "stands still").await;
    browser
        .sees("main", "1 of 2 buckets could not be counted")
        .await;
    browser.picture("rain-without-a-node").await;
    browser.go("/nodes").await;
    browser.sees("#nodes", "down").await;
    browser.picture("health-without-a-node").await;
    let mut command = hongbao();
    command
        .arg("--data-dir")
        .arg(server.data_dir())
        .arg("nodes");
    let said = command.output().unwrap();
    let text = String::from_utf8(said.stdout).unwrap();
    assert_eq!(said.status.code(), Some(1), "{text}");
    assert_eq!(text.matches("  up  ").count(), 2, "{text}");
    assert!(text.contains("DOWN  8192 slots  node "), "{text}");
    node.go_on();
    browser.until("#faults", str::is_empty).await;

    // It comes back as another process, and nobody is there to compare its bucket with the ledger.
    node.restart().await;
    let server = server.restart_crashing(&[NO_STEWARD], None);
    browser.sees("#faults", "1 suspect bucket on").await;
    browser.sees("#nodes", "1 suspect").await;
    browser.go(&format!("/rains/{rain}")).await;
    browser.sees("tbody", "suspect").await;
    browser.picture("rain-suspect").await;
    // Nor does anybody load what is funded.
    let admin = server.admin();
    admin.deposit("acme", Cents(1_000), "bank").await.unwrap();
    let funded = admin.create_rain(&new_rain(10, 1_000)).await.unwrap();
    browser.go(&format!("/rains/{}", funded.id)).await;
    browser
        .sees("main", "Its packets are not being loaded")
        .await;
    let server = server.restart_crashing(&[ALL], None);
    browser.until("#faults", str::is_empty).await;

    // Nobody credits what is won.
    let server = server.restart_crashing(&[NO_SETTLER], None);
    final_outcome(&mut Raw::user(&server, "wei").await, rain.get()).await;
    browser.sees("#faults", "no settler is running").await;
    browser.go("/rains").await;
    browser.sees("#faults", "1 claim waits").await;
    browser.picture("rains-without-a-settler").await;
    let mut server = server.restart_crashing(&[ALL], None);
    browser.until("#faults", str::is_empty).await;
    server.kill();
    browser.sees("#faults", "The server does not answer").await;
}
