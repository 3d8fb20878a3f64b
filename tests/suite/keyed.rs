//! Rains with a key: what becomes of whoever does not have it yet, or any more.

use std::sync::Arc;
use std::time::Duration;

use hongbao::client::admin::NewRain;
use hongbao::client::{Client, Login, Settings};
use hongbao::clock::now_ms;
use hongbao::rain::RainId;
use hongbao::wire::server_frame::Message;
use hongbao::wire::{GrabResult, Outcome};

use crate::bots::{grab_with, opened, rain_like};
use crate::support::bench::Bench;
use crate::support::server::{Server, new_rain};
use crate::support::wire::{Raw, final_outcome};

/// Whatever is between the waits that the gateway asks for.
async fn told(server: &Server, user: &str, rain: RainId, key: &[u8]) -> GrabResult {
    let mut raw = Raw::user(server, user).await;
    loop {
        let result = grab_with(&mut raw, rain, key).await;
        match result.outcome() {
            Outcome::NotOpen | Outcome::Busy | Outcome::Retry => {
                let wait = Duration::from_millis(u64::from(result.retry_after_ms));
                tokio::time::sleep(wait).await; // the protocol asks for it
            }
            _ => return result,
        }
    }
}

/// A rain with a key that was opened just now, and its key.
async fn open_rain(server: &Server) -> (RainId, Vec<u8>) {
    let new = NewRain {
        key_required: true,
        ..new_rain(100, 10_000)
    };
    let rain = rain_like(server, &new).await;
    let mut watching = Raw::user(server, "watching").await;
    watching.watch("quiz").await;
    server.admin().open_rain(rain).await.unwrap();
    let key = opened(&mut watching).await.key.to_vec();
    (rain, key)
}

async fn client(server: &Server, user: &str) -> Client {
    let settings = Arc::new(Settings::new(vec![server.gateway().to_string()]));
    let login = Login::with_token(server.token(user));
    Client::connect(settings, login).await.unwrap().0
}

/// As after a reconnect: Watch and the grab that waits go out together, so the grab cannot have the key yet. It ended with WRONG_KEY.
#[tokio::test]
async fn a_grab_right_behind_its_watch_wins() {
    let server = Server::start(&[]);
    let (rain, _) = open_rain(&server).await;
    for n in 0..5 {
        let client = client(&server, &format!("anna-{n}")).await;
        let (watched, reply) = tokio::join!(client.watch("quiz"), client.grab(rain));
        watched.unwrap();
        assert_eq!(reply.unwrap().known(), Some(Outcome::Won));
    }
}

/// The last half second belonged to the node where clocks differ, and to nobody where a key is needed: such taps heard WRONG_KEY and were not counted.
#[tokio::test]
async fn until_the_opening_a_tap_without_the_key_is_early_and_counted() {
    let server = Server::start(&["gateway.early_taps_max=3"]);
    let opens_at_ms = now_ms() + 2_500;
    let new = NewRain {
        key_required: true,
        opens_at_ms: Some(opens_at_ms),
        duration_ms: Some(600_000),
        ..new_rain(100, 10_000)
    };
    let rain = rain_like(&server, &new).await;
    let mut bot = Raw::user(&server, "bot").await;
    let wait = (opens_at_ms - 400 - now_ms()).max(0) as u64;
    tokio::time::sleep(Duration::from_millis(wait)).await; // the rain's own time
    for key in [&[][..], &[7; 16], &[], &[]] {
        let result = grab_with(&mut bot, rain, key).await;
        assert_eq!(result.outcome(), Outcome::NotOpen, "{key:?}");
        assert!(result.retry_after_ms > 0);
    }
    let cooling = grab_with(&mut bot, rain, &[]).await;
    assert_eq!(cooling.outcome(), Outcome::CoolingDown);
}

/// The promise to whoever has lost the reply: it must not depend on having kept the key as well.
#[tokio::test]
async fn a_winner_without_the_key_is_told_the_packet_and_a_guess_wins_nothing() {
    let server = Server::start(&[]);
    let (rain, key) = open_rain(&server).await;
    let won = told(&server, "anna", rain, &key).await;
    assert_eq!(won.outcome(), Outcome::Won);
    for key in [&[][..], &[7; 16], &key[..15]] {
        let again = told(&server, "anna", rain, key).await;
        let same = (again.outcome(), again.packet_id, again.cents);
        assert_eq!(same, (Outcome::AlreadyWon, won.packet_id, won.cents));
        let guess = told(&server, "ben", rain, key).await;
        assert_eq!((guess.outcome(), guess.packet_id), (Outcome::WrongKey, 0));
    }
    // A node is asked once in a while, and waiting as told is enough.
    let mut bot = Raw::user(&server, "bot").await;
    assert_eq!(bot.grab(rain.get()).await.outcome(), Outcome::WrongKey);
    let busy = bot.grab(rain.get()).await;
    assert_eq!(busy.outcome(), Outcome::Busy);
    assert!(busy.retry_after_ms >= 150, "{busy:?}");
    let answer = final_outcome(&mut bot, rain.get()).await;
    assert_eq!(answer.outcome(), Outcome::WrongKey);
    // What a guess did not get is not taken for a pool that is empty.
    let ben = told(&server, "ben", rain, &key).await;
    assert_eq!(ben.outcome(), Outcome::Won);
}

/// The key was asked for until the record said closed, and Watch told it to nobody any more.
#[tokio::test]
async fn as_soon_as_a_rain_is_over_nobody_needs_its_key() {
    let server = Server::start(&[]);
    let new = NewRain {
        key_required: true,
        duration_ms: Some(1_500),
        ..new_rain(100, 10_000)
    };
    let rain = rain_like(&server, &new).await;
    let mut watching = Raw::user(&server, "watching").await;
    let mut ben = Raw::user(&server, "ben").await;
    watching.watch("quiz").await;
    server.admin().open_rain(rain).await.unwrap();
    let key = opened(&mut watching).await.key;
    let won = told(&server, "anna", rain, &key).await;
    assert_eq!(won.outcome(), Outcome::Won);
    while !matches!(
        watching.receive().await.unwrap().message,
        Some(Message::RainClosed(_))
    ) {}
    assert_eq!(
        final_outcome(&mut ben, rain.get()).await.outcome(),
        Outcome::Closed
    );
    let again = told(&server, "anna", rain, &[]).await;
    assert_eq!(
        (again.outcome(), again.packet_id),
        (Outcome::AlreadyWon, won.packet_id)
    );
}

/// A gateway that has just started, and a node that has lost the rain's record: there is no such rain, it said, and that is final.
#[tokio::test]
async fn a_rain_that_is_listed_without_a_record_is_unknown_and_not_missing() {
    let bench = Bench::new(2).await;
    let rain = bench.open(100, 10_000).await;
    let key = format!("hb:rain:{}", rain.id);
    for node in &bench.nodes {
        node.call(&["DEL", &key]).await;
    }
    let urls: Vec<String> = bench.nodes.iter().map(|node| node.url()).collect();
    let nodes = format!("store.nodes={urls:?}");
    let gateway = Server::start(&["store.topology=nodes", &nodes, "server.roles=[\"gateway\"]"]);
    let mut anna = Raw::user(&gateway, "anna").await;
    let lost = anna.grab(rain.id.get()).await;
    assert_eq!(lost.outcome(), Outcome::Retry);
    assert!(lost.retry_after_ms > 0);
    let nowhere = anna.grab(rain.id.get() + 1).await;
    assert_eq!(nowhere.outcome(), Outcome::NoSuchRain);
    // A steward that remembers nothing writes it again.
    bench.other_steward().advance(rain.clone()).await.unwrap();
    let answer = final_outcome(&mut anna, rain.id.get()).await;
    assert_eq!(answer.outcome(), Outcome::Won);
}
