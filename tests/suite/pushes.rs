//! What is told without being asked for.

use std::time::{Duration, Instant};

use hongbao::rain::State;
use hongbao::store::directory::Snapshot;
use hongbao::wire::client_frame::Request;
use hongbao::wire::frame;
use hongbao::wire::server_frame::Message;
use hongbao::wire::{ClientFrame, Outcome, Ping, RainProgress};

use redis::Value;

use crate::support::redis::{Redis, flags};
use crate::support::server::Server;
use crate::support::wire::Raw;

async fn progress(raw: &mut Raw) -> RainProgress {
    loop {
        match raw.receive().await.unwrap().message {
            Some(Message::RainProgress(progress)) => return progress,
            Some(Message::RainSoldOut(_) | Message::RainClosed(_)) => panic!("it is over"),
            _ => {}
        }
    }
}

#[tokio::test]
async fn watchers_see_the_packets_go_at_most_five_times_a_second() {
    let server = Server::start(&[]);
    let rain = server.open_rain(1_000, 100_000).await;
    let mut anna = Raw::user(&server, "anna").await;
    anna.watch("quiz").await;
    let mut stranger = Raw::user(&server, "stranger").await;
    stranger.watch("elsewhere").await;
    let mut edge = Raw::edge(&server, "edge-1").await;
    let first = progress(&mut anna).await;
    assert_eq!(
        (first.rain_id, first.packets, first.remaining),
        (rain.get(), 1_000, 1_000)
    );

    let (mut won, mut told, mut user) = (0, vec![], 0);
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(1_500) {
        user += 1;
        let result = edge.grab_as(rain.get(), &format!("user-{user}")).await;
        won += u32::from(result.outcome() == Outcome::Won);
        if user % 20 == 0 && won < 900 {
            told.push(progress(&mut anna).await.remaining);
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    assert!(told.len() >= 2, "{told:?}");
    assert!(
        told.len() as f64 <= seconds * 5.0 + 2.0,
        "{} in {seconds} s",
        told.len()
    );
    assert!(
        told.is_sorted_by(|before, after| before > after),
        "each is news: {told:?}"
    );
    // Nothing goes on: the last number is told, and then nothing.
    let mut last = *told.last().unwrap();
    while last != 1_000 - won {
        let remaining = progress(&mut anna).await.remaining;
        assert!(
            (1_000 - won..last).contains(&remaining),
            "{remaining} after {last}"
        );
        last = remaining;
    }
    let answer = stranger.ask(Request::Ping(Ping {})).await;
    assert!(
        matches!(answer, Message::Pong(_)),
        "other rooms hear nothing"
    );
    let metrics = server.metrics().await;
    let line = metrics
        .lines()
        .find(|line| line.starts_with("hongbao_progress_pushes_total"));
    let count: f64 = line
        .unwrap()
        .split(' ')
        .next_back()
        .unwrap()
        .parse()
        .unwrap();
    assert!(count > told.len() as f64, "{line:?}");
}

/// A second RainOpened means that there is more: who comes late must not take the first one for that.
#[tokio::test]
async fn who_comes_when_all_is_gone_hears_that_too() {
    let server = Server::start(&[]);
    let rain = server.open_rain(5, 500).await;
    let mut early = Raw::user(&server, "early").await;
    early.watch("quiz").await;
    let mut edge = Raw::edge(&server, "edge-1").await;
    for user in 0..5 {
        let result = edge.grab_as(rain.get(), &format!("user-{user}")).await;
        assert_eq!(result.outcome(), Outcome::Won);
    }
    let hears = async |raw: &mut Raw| loop {
        if let Some(Message::RainSoldOut(push)) = raw.receive().await.unwrap().message {
            return push.rain_id;
        }
    };
    assert_eq!(hears(&mut early).await, rain.get());
    let mut late = Raw::user(&server, "late").await;
    late.watch("quiz").await;
    assert_eq!(hears(&mut late).await, rain.get());
}

#[tokio::test]
async fn a_large_room_is_told_less_often_and_none_when_the_setting_says_so() {
    // Ten watchers with ten frames a second: one push a second.
    let server = Server::start(&["gateway.progress_per_second_max=10"]);
    let rain = server.open_rain(1_000, 100_000).await;
    let mut room = vec![];
    for n in 0..10 {
        let mut raw = Raw::user(&server, &format!("watcher-{n}")).await;
        raw.watch("quiz").await;
        room.push(raw);
    }
    let mut edge = Raw::edge(&server, "edge-1").await;
    let watcher = &mut room[0];
    progress(watcher).await;
    let mut times = vec![];
    for n in 0..3 {
        assert_eq!(
            edge.grab_as(rain.get(), &format!("user-{n}"))
                .await
                .outcome(),
            Outcome::Won
        );
        progress(watcher).await;
        times.push(Instant::now());
    }
    assert!(
        times[2] - times[0] >= Duration::from_millis(1_500),
        "{times:?}"
    );

    let server = Server::start(&["gateway.progress_per_second_max=0"]);
    let rain = server.open_rain(3, 300).await;
    let mut anna = Raw::user(&server, "anna").await;
    anna.watch("quiz").await;
    for user in ["a", "b", "c"] {
        let mut raw = Raw::user(&server, user).await;
        assert_eq!(raw.grab(rain.get()).await.outcome(), Outcome::Won);
    }
    loop {
        match anna.receive().await.unwrap().message.unwrap() {
            Message::RainSoldOut(_) => break,
            Message::RainProgress(progress) => panic!("{progress:?}"),
            _ => {}
        }
    }
}

#[tokio::test]
async fn sessions_that_do_not_read_delay_nobody() {
    let server = Server::start(&[
        "gateway.write_backlog_max_bytes=16777216",
        "gateway.frames_per_second=1000000",
        "gateway.user_frames_per_second=1000000",
    ]);
    let rain = server.ready_rain(1_000, 100_000).await;
    let mut stuck = vec![];
    let mut pings = bytes::BytesMut::new();
    for request_id in 1..=20_000 {
        let ping = ClientFrame {
            request_id,
            request: Some(Request::Ping(Ping {})),
        };
        frame::put(&ping, &mut pings);
    }
    for n in 0..20 {
        let mut raw = Raw::user(&server, &format!("stuck-{n}")).await;
        raw.watch("quiz").await;
        // Megabytes of answers that nobody takes: the sockets fill, the rest waits in the gateway.
        for _ in 0..12 {
            raw.bytes(&pings).await;
        }
        stuck.push(raw);
    }
    let mut honest = vec![];
    for n in 0..5 {
        let mut raw = Raw::user(&server, &format!("honest-{n}")).await;
        raw.watch("quiz").await;
        honest.push(raw);
    }
    server.admin().open_rain(rain).await.unwrap();
    let opened = Instant::now();
    for raw in &mut honest {
        while !matches!(
            raw.receive().await.unwrap().message,
            Some(Message::RainOpened(_))
        ) {}
    }
    assert!(
        opened.elapsed() < Duration::from_secs(3),
        "{:?}",
        opened.elapsed()
    );
    for raw in &mut honest {
        let start = Instant::now();
        assert_eq!(raw.grab(rain.get()).await.outcome(), Outcome::Won);
        assert!(
            start.elapsed() < Duration::from_secs(3),
            "{:?}",
            start.elapsed()
        );
    }
    // They were not cut off either: what they have not read is within what they may leave.
    let last = stuck.last_mut().unwrap();
    while !matches!(
        last.receive().await.unwrap().message,
        Some(Message::RainOpened(_))
    ) {}
}

/// Without the list no record was read again, not even of the rains that are known and whose nodes are there.
#[tokio::test]
async fn known_rains_are_read_again_while_the_node_of_the_list_is_away() {
    let mut nodes = [Redis::fit().await, Redis::fit().await];
    let flags = flags(&[&nodes[0], &nodes[1]]);
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let server = Server::start(&flags);
    let (key, list) = loop {
        let key = format!("hb:rain:{}", server.ready_rain(10, 1_000).await);
        let list = usize::from(nodes[0].done(&["EXISTS", "hb:rains"]).await == Value::Int(0));
        if nodes[list].done(&["EXISTS", &key]).await == Value::Int(0) {
            break (key, list);
        }
    };
    let mut anna = Raw::user(&server, "anna").await;
    anna.watch("quiz").await;
    nodes[list].kill();
    // A change of which no message tells.
    let other = &nodes[1 - list];
    let read = other.done(&["HGET", &key, "snapshot"]).await;
    let json: String = redis::from_redis_value(read).unwrap();
    let mut snapshot: Snapshot = serde_json::from_str(&json).unwrap();
    snapshot.version += 1_000;
    snapshot.state = State::Open;
    snapshot.opens_at_ms = Some(hongbao::clock::now_ms());
    let (version, json) = (
        snapshot.version.to_string(),
        serde_json::to_string(&snapshot).unwrap(),
    );
    let put = ["HSET", &key, "version", &version, "snapshot", &json];
    other.done(&put).await;
    loop {
        if let Some(Message::RainOpened(opened)) = anna.receive().await.unwrap().message {
            assert_eq!(opened.rain_id, snapshot.rain.get());
            return;
        }
    }
}
