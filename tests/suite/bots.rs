//! What stands between a script and a packet.

/// What an external service says of users.
mod risk;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use hongbao::client::admin::NewRain;
use hongbao::client::{Client, Login, Settings};
use hongbao::rain::{Cents, RainId, State};
use hongbao::wire::client_frame::Request;
use hongbao::wire::server_frame::Message;
use hongbao::wire::{Grab, GrabResult, Outcome, RainOpened};

use crate::support::server::{Server, new_rain};
use crate::support::wire::{Raw, final_outcome};

/// A rain of acme with these changes.
pub async fn rain_like(server: &Server, new: &NewRain) -> RainId {
    let admin = server.admin();
    admin.create_sponsor("acme").await.unwrap();
    admin.deposit("acme", Cents(1_000_000), "d").await.unwrap();
    let rain = admin.create_rain(new).await.unwrap().id;
    server.until(rain, |rain| rain.state == State::Ready).await;
    rain
}

pub async fn grab_with(raw: &mut Raw, rain: RainId, key: &[u8]) -> GrabResult {
    let grab = Grab {
        rain_id: rain.get(),
        key: Bytes::copy_from_slice(key),
        ..Grab::default()
    };
    match raw.ask(Request::Grab(grab)).await {
        Message::GrabResult(result) => result,
        other => panic!("{other:?}"),
    }
}

pub async fn opened(raw: &mut Raw) -> RainOpened {
    loop {
        if let Some(Message::RainOpened(opened)) = raw.receive().await.unwrap().message {
            return opened;
        }
    }
}

#[tokio::test]
async fn who_taps_before_the_opening_too_often_cools_down_past_it_and_others_do_not() {
    let server = Server::start(&[
        "gateway.early_taps_max=3",
        "gateway.early_cool_down_ms=2000",
        "gateway.retry_after_ms=20",
    ]);
    let rain = rain_like(&server, &new_rain(100, 10_000)).await;
    let mut bot = Raw::user(&server, "bot").await;
    let mut anna = Raw::user(&server, "anna").await;
    for _ in 0..4 {
        assert_eq!(bot.grab(rain.get()).await.outcome(), Outcome::NotOpen);
    }
    for _ in 0..3 {
        assert_eq!(anna.grab(rain.get()).await.outcome(), Outcome::NotOpen);
    }
    let last = Instant::now();
    let cooling = bot.grab(rain.get()).await;
    assert_eq!(cooling.outcome(), Outcome::CoolingDown);
    assert!(
        (500..=2_100).contains(&cooling.retry_after_ms),
        "{cooling:?}"
    );
    server.admin().open_rain(rain).await.unwrap();
    assert_eq!(
        final_outcome(&mut anna, rain.get()).await.outcome(),
        Outcome::Won
    );
    // Neither the opening nor another connection helps, and tapping after it does not harm.
    let mut again = Raw::user(&server, "bot").await;
    for raw in [&mut bot, &mut again] {
        let cooling = raw.grab(rain.get()).await;
        assert_eq!(cooling.outcome(), Outcome::CoolingDown);
        assert!(cooling.retry_after_ms <= 2_100);
    }
    assert_eq!(
        final_outcome(&mut again, rain.get()).await.outcome(),
        Outcome::Won
    );
    assert!(
        last.elapsed() >= Duration::from_millis(1_990),
        "{:?}",
        last.elapsed()
    );
    assert!(
        server
            .metrics()
            .await
            .contains("hongbao_cooled_down_total 1\n")
    );
}

/// Nobody knows when the rain opens: the waits that NOT_OPEN named were so short that a client which obeyed them was cooled down.
#[tokio::test]
async fn who_waits_as_long_as_it_is_told_to_never_cools_down() {
    let server = Server::start(&[
        "gateway.early_taps_max=4",
        "gateway.early_window_ms=2000",
        "gateway.retry_after_ms=20",
    ]);
    let rain = rain_like(&server, &new_rain(100, 10_000)).await;
    let mut anna = Raw::user(&server, "anna").await;
    let told = anna.grab(rain.get()).await;
    assert_eq!(told.outcome(), Outcome::NotOpen);
    // Four in two seconds are allowed.
    assert!((500..=600).contains(&told.retry_after_ms), "{told:?}");
}

/// The second session was open before the first one had to cool down.
#[tokio::test]
async fn a_user_cools_down_on_every_session_at_once() {
    let server = Server::start(&["gateway.early_taps_max=3"]);
    let rain = rain_like(&server, &new_rain(100, 10_000)).await;
    let mut sessions = [
        Raw::user(&server, "bot").await,
        Raw::user(&server, "bot").await,
    ];
    for _ in 0..4 {
        let result = sessions[0].grab(rain.get()).await;
        assert_eq!(result.outcome(), Outcome::NotOpen);
    }
    let result = sessions[1].grab(rain.get()).await;
    assert_eq!(result.outcome(), Outcome::CoolingDown);
}

#[tokio::test]
async fn a_rains_key_is_first_told_when_it_opens_and_without_it_nobody_wins() {
    let server = Server::start(&[]);
    let new = NewRain {
        key_required: true,
        opens_at_ms: Some(hongbao::clock::now_ms() + 1_500),
        duration_ms: Some(600_000),
        ..new_rain(100, 10_000)
    };
    let rain = rain_like(&server, &new).await;
    let mut anna = Raw::user(&server, "anna").await;
    anna.watch("quiz").await;
    let mut ben = Raw::user(&server, "ben").await;
    assert_eq!(
        grab_with(&mut ben, rain, &[0; 16]).await.outcome(),
        Outcome::NotOpen
    );

    // All bytes that anybody is sent before the opening.
    let mut heard = vec![];
    let opened = loop {
        let frame = anna.receive().await.unwrap();
        match frame.message.clone().unwrap() {
            Message::RainOpened(opened) => break opened,
            _ => heard.extend_from_slice(&hongbao::wire::frame::encode(&frame)),
        }
    };
    let key = opened.key.to_vec();
    assert_eq!(key.len(), 16);
    assert!(!heard.is_empty() && !heard.windows(16).any(|window| window == key));
    // Neither do operators see it.
    let shown = server.admin().rain(rain).await.unwrap();
    assert!(!format!("{shown:?}").contains(&hex::encode(&key)));
    assert!(!server.log().contains(&hex::encode(&key)));

    let mut wrong = key.clone();
    wrong[15] ^= 1;
    for bad in [&[][..], &wrong, &key[..15]] {
        // On a session of its own each: one may ask so once in a while.
        let mut guessing = Raw::user(&server, "ben").await;
        let refused = grab_with(&mut guessing, rain, bad).await;
        assert_eq!(refused.outcome(), Outcome::WrongKey, "{bad:?}");
    }
    // The gates open by the nodes' clocks.
    let won = loop {
        let result = grab_with(&mut anna, rain, &key).await;
        if result.outcome() != Outcome::NotOpen {
            break result;
        }
    };
    assert_eq!(won.outcome(), Outcome::Won);
    // Whoever comes late is told when watching.
    ben.watch("quiz").await;
    assert_eq!(self::opened(&mut ben).await.key.to_vec(), key);
    assert_eq!(
        grab_with(&mut ben, rain, &key).await.outcome(),
        Outcome::Won
    );

    // The client library sends it along by itself.
    let settings = Arc::new(Settings::new(vec![server.gateway().to_string()]));
    let login = Login::with_token(server.token("cleo"));
    let (client, mut events) = Client::connect(settings, login).await.unwrap();
    client.watch("quiz").await.unwrap();
    while !matches!(
        events.next().await,
        Some(hongbao::client::Event::RainOpened(_))
    ) {}
    assert!(client.grab(rain).await.unwrap().packet.is_some());

    // Another rain has another key.
    let other = NewRain {
        key_required: true,
        ..new_rain(100, 10_000)
    };
    let other = rain_like(&server, &other).await;
    server.admin().open_rain(other).await.unwrap();
    let told = self::opened(&mut anna).await;
    assert_eq!(told.rain_id, other.get());
    assert_ne!(told.key.to_vec(), key);

    // After the close everyone may learn what was won, and nobody can win.
    server.admin().close_rain(rain).await.unwrap();
    let mut later = Raw::user(&server, "anna").await;
    let mut dora = Raw::user(&server, "dora").await;
    let same = later.grab(rain.get()).await;
    assert_eq!(
        (same.outcome(), same.packet_id),
        (Outcome::AlreadyWon, won.packet_id)
    );
    let over = loop {
        let result = final_outcome(&mut dora, rain.get()).await;
        if result.outcome() != Outcome::WrongKey {
            break result;
        }
    };
    assert_eq!(over.outcome(), Outcome::Closed);
}
