//! Whole rains, with crashes in the middle.

use hongbao::rain::State;

use crate::support::crowd::{assert_paid, crowd};
use crate::support::server::Server;

#[tokio::test(flavor = "multi_thread")]
async fn a_whole_rain_ends_balanced_with_every_win_paid() {
    let server = Server::start(&[]);
    let rain = server.open_rain(300, 100_000).await;
    let told = crowd(&server, rain, 400).end().await;
    let audit = assert_paid(&server, rain, &told).await;
    assert_eq!(audit.credited_count as usize, told.len());
    assert!(
        told.len() > 250,
        "{} of 300 packets were won by 400 people",
        told.len()
    );
    server
        .until(rain, |rain| rain.state == State::Finished)
        .await;
    assert!(
        server.admin().audit(rain).await.unwrap().balanced,
        "after the finish, too"
    );
    assert!(!server.log().contains(" ERROR "), "{}", server.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_server_comes_back_and_pays_every_win_that_a_client_saw() {
    let mut server = Server::start(&["settle.lease_ms=5000"]);
    let rain = server.open_rain(400, 100_000).await;
    let crowd = crowd(&server, rain, 500);
    for wins in [60, 160] {
        crowd.until_won(wins).await;
        server.kill();
        server = server.restart();
    }
    let told = crowd.end().await;
    assert_paid(&server, rain, &told).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_dies_in_the_rain_is_started_again_and_loses_nothing() {
    let server = Server::start(&["gateway.retry_after_ms=20", "store.probe_interval_ms=20"]);
    let rain = server.open_rain(400, 100_000).await;
    let crowd = crowd(&server, rain, 500);
    crowd.until_won(100).await;
    let socket = server.data_dir().join("node-1").join("redis.sock");
    kill_process_on(&socket).await;
    let told = crowd.end().await;
    assert_paid(&server, rain, &told).await;
    assert!(
        server
            .log()
            .contains("managed node ended by itself; starting it again"),
        "{}",
        server.log()
    );
}

/// SIGKILL to the redis-server that listens on `socket`.
async fn kill_process_on(socket: &std::path::Path) {
    let client = redis::Client::open(format!("redis+unix://{}", socket.display())).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let info: String = redis::cmd("INFO")
        .arg("server")
        .query_async(&mut connection)
        .await
        .unwrap();
    let pid = info
        .lines()
        .find_map(|line| line.strip_prefix("process_id:"))
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(pid),
        nix::sys::signal::Signal::SIGKILL,
    )
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_load_that_was_killed_goes_on_where_it_stopped() {
    let mut server = Server::start(&[]);
    let admin = server.admin();
    admin.create_sponsor("acme").await.unwrap();
    admin
        .deposit("acme", hongbao::rain::Cents(30_000_000), "d")
        .await
        .unwrap();
    let rain = admin
        .create_rain(&crate::support::server::new_rain(200_000, 30_000_000))
        .await
        .unwrap()
        .id;
    let some = |rain: &hongbao::client::admin::Rain| rain.live.is_some_and(|live| live.pool > 0);
    server.until(rain, some).await;
    server.kill();
    let server = server.restart();
    server.until(rain, |rain| rain.state == State::Ready).await;
    let audit = server.admin().audit(rain).await.unwrap();
    assert!(audit.balanced, "{:?}", audit.differences.first());
    assert_eq!(audit.pool_cents, audit.funded_cents);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_won_goes_back_to_the_sponsor_by_itself() {
    let server = Server::start(&[]);
    let admin = server.admin();
    admin.create_sponsor("acme").await.unwrap();
    admin
        .deposit("acme", hongbao::rain::Cents(10_000), "d")
        .await
        .unwrap();
    let new = hongbao::client::admin::NewRain {
        opens_at_ms: Some(hongbao::clock::now_ms() + 50),
        duration_ms: Some(100),
        refund_after_ms: Some(100),
        ..crate::support::server::new_rain(100, 10_000)
    };
    let rain = admin.create_rain(&new).await.unwrap().id;
    assert_eq!(
        admin.account("sponsor:acme").await.unwrap().balance_cents.0,
        0
    );
    server
        .until(rain, |rain| rain.state == State::Finished)
        .await;
    assert_eq!(
        admin.account("sponsor:acme").await.unwrap().balance_cents.0,
        10_000
    );
    assert_eq!(
        admin
            .account(&format!("escrow:{rain}"))
            .await
            .unwrap()
            .balance_cents
            .0,
        0
    );
}
