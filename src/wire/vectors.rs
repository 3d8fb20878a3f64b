//! Holds `proto/wire.md` to the code: the frames in it were made by another encoder, with a look at the protobuf specification only.

use std::time::Duration;

use prost::Message as _;

use super::client_frame::Request;
use super::inbox_message::Contents;
use super::server_frame::Message;
use super::*;
use crate::gateway::token::TokenKeys;

const PAGE: &str = include_str!("../../proto/wire.md");
const TIME: i64 = 1_784_550_000_000;
const PACKET: u64 = 30_064_771_113;

fn key() -> bytes::Bytes {
    (0..16).collect::<Vec<u8>>().into()
}

fn from_client(request_id: u64, request: Request) -> bytes::Bytes {
    frame::encode(&ClientFrame {
        request_id,
        request: Some(request),
    })
}

fn from_gateway(request_id: u64, message: Message) -> bytes::Bytes {
    frame::encode(&ServerFrame {
        request_id,
        message: Some(message),
    })
}

fn message(user: &str, previous_message_id: u64) -> InboxMessage {
    InboxMessage {
        message_id: TIME as u64 + 20,
        previous_message_id,
        contents: Some(Contents::PacketCredited(PacketCredited {
            rain_id: 7,
            packet_id: PACKET,
            cents: 888,
            credited_at_ms: TIME + 20,
        })),
        user: user.into(),
    }
}

fn grab(user: &str, key: bytes::Bytes) -> Request {
    Request::Grab(Grab {
        rain_id: 7,
        user: user.into(),
        key,
    })
}

fn result(outcome: Outcome, packet_id: u64, cents: i64, retry_after_ms: u32) -> Message {
    Message::GrabResult(GrabResult {
        outcome: outcome.into(),
        rain_id: 7,
        packet_id,
        cents,
        retry_after_ms,
    })
}

/// What our code makes of each vector, by its title.
fn ours() -> Vec<(&'static str, bytes::Bytes)> {
    let (token, room) = (|| "e30.e30.c2ln".to_owned(), || "quiz".to_owned());
    let hello = Hello {
        token: token(),
        protocol: 1,
        last_message_id: TIME as u64 - 1_000,
    };
    let inbox = Inbox {
        after_message_id: TIME as u64,
        limit: 50,
        user: String::new(),
    };
    let welcome = Welcome {
        session_id: 42,
        user: "anna".into(),
        server_time_ms: TIME,
        heartbeat_interval_ms: 30_000,
        edge: false,
        in_flight_max: 32,
        expires_at_ms: TIME + 3_600_000,
    };
    let refused = Refused {
        code: CloseCode::TokenExpired.into(),
        reason: "the token has expired".into(),
    };
    let announced = RainAnnounced {
        rain_id: 7,
        room: room(),
        title: "红包雨".into(),
        opens_at_ms: TIME + 60_000,
        server_time_ms: TIME,
    };
    let opened = RainOpened {
        rain_id: 7,
        room: room(),
        title: "t".into(),
        closes_at_ms: TIME + 90_000,
        server_time_ms: TIME + 60_000,
        key: key(),
    };
    let progress = RainProgress {
        rain_id: 7,
        room: room(),
        packets: 3_000,
        remaining: 1_200,
        server_time_ms: TIME + 61_000,
    };
    let away = GoAway {
        code: CloseCode::Draining.into(),
        reason: "this gateway stops".into(),
        reconnect_after_ms: 317,
    };
    let page = InboxPage {
        messages: vec![message("", 0)],
        more: true,
        retry_after_ms: 0,
    };
    let (rain_id, server_time_ms) = (7, TIME);
    let sold_out = RainSoldOut {
        rain_id,
        room: room(),
    };
    let closed = RainClosed {
        rain_id,
        room: room(),
    };
    let refreshed = Refreshed {
        expires_at_ms: TIME + 7_200_000,
    };
    let pushed = message("", TIME as u64 - 5_000);
    vec![
        ("Hello", from_client(1, Request::Hello(hello))),
        ("Ping", from_client(2, Request::Ping(Ping {}))),
        (
            "Watch",
            from_client(3, Request::Watch(Watch { room: room() })),
        ),
        ("Grab", from_client(5, grab("", bytes::Bytes::new()))),
        ("Grab with a key", from_client(300, grab("", key()))),
        (
            "Grab of an edge session",
            from_client(5, grab("anna", bytes::Bytes::new())),
        ),
        ("Inbox", from_client(6, Request::Inbox(inbox))),
        (
            "Refresh",
            from_client(7, Request::Refresh(Refresh { token: token() })),
        ),
        ("Welcome", from_gateway(1, Message::Welcome(welcome))),
        ("Refused", from_gateway(1, Message::Refused(refused))),
        (
            "Pong",
            from_gateway(2, Message::Pong(Pong { server_time_ms })),
        ),
        (
            "Watching",
            from_gateway(3, Message::Watching(Watching { room: room() })),
        ),
        (
            "GrabResult of a winner",
            from_gateway(5, result(Outcome::Won, PACKET, 888, 0)),
        ),
        (
            "GrabResult of somebody who taps on",
            from_gateway(5, result(Outcome::Missed, 0, 0, 0)),
        ),
        (
            "GrabResult with a time to wait",
            from_gateway(5, result(Outcome::NotOpen, 0, 0, 2_500)),
        ),
        (
            "RainAnnounced",
            from_gateway(0, Message::RainAnnounced(announced)),
        ),
        ("RainOpened", from_gateway(0, Message::RainOpened(opened))),
        (
            "RainProgress",
            from_gateway(0, Message::RainProgress(progress)),
        ),
        (
            "RainSoldOut",
            from_gateway(0, Message::RainSoldOut(sold_out)),
        ),
        ("RainClosed", from_gateway(0, Message::RainClosed(closed))),
        ("GoAway", from_gateway(0, Message::GoAway(away))),
        ("InboxPage", from_gateway(6, Message::InboxPage(page))),
        (
            "InboxMessage",
            from_gateway(0, Message::InboxMessage(pushed)),
        ),
        (
            "InboxMessage to an edge session",
            from_gateway(0, Message::InboxMessage(message("anna", 0))),
        ),
        ("Refreshed", from_gateway(7, Message::Refreshed(refreshed))),
    ]
}

/// The vectors of the page: title and bytes.
fn vectors() -> Vec<(&'static str, Vec<u8>)> {
    let sections = PAGE.split("\n### ").skip(1);
    let vector = |section: &'static str| {
        let title = section.lines().next().unwrap();
        let block = section.split("```text\n").nth(1).expect("a block");
        let lines = block.split("\n```").next().unwrap().lines();
        let hex: String = lines.map(|line| line.split(' ').next().unwrap()).collect();
        (title, hex::decode(hex).unwrap())
    };
    sections.map(vector).collect()
}

#[test]
fn every_vector_is_what_we_write_and_reads_back() {
    let (mut vectors, ours) = (vectors(), ours());
    let (newer, unknown) = vectors.pop().unwrap();
    assert_eq!(newer, "Pong of a newer gateway");
    let pong = ServerFrame::decode(&unknown[frame::HEADER..]).unwrap();
    let pong = from_gateway(pong.request_id, pong.message.unwrap());
    assert_eq!(
        pong,
        ours.iter().find(|(title, _)| *title == "Pong").unwrap().1
    );

    let titles =
        |all: &[(&'static str, usize)]| all.iter().map(|(title, _)| *title).collect::<Vec<_>>();
    let listed: Vec<_> = vectors
        .iter()
        .map(|(title, bytes)| (*title, bytes.len()))
        .collect();
    let made: Vec<_> = ours
        .iter()
        .map(|(title, bytes)| (*title, bytes.len()))
        .collect();
    assert_eq!(titles(&listed), titles(&made));
    for ((title, listed), (_, ours)) in vectors.iter().zip(&ours) {
        assert_eq!(hex::encode(listed), hex::encode(ours), "{title}");
        let body = &listed[frame::HEADER..];
        let again = match ClientFrame::decode(body) {
            Ok(ClientFrame {
                request_id,
                request: Some(request),
            }) if is_from_client(title) => from_client(request_id, request),
            _ => {
                let frame = ServerFrame::decode(body).unwrap();
                from_gateway(frame.request_id, frame.message.unwrap())
            }
        };
        assert_eq!(again, *ours, "{title}");
    }
}

/// Made with another program, like the frames.
#[test]
fn the_token_of_the_page_is_accepted() {
    let token = PAGE.lines().find(|line| line.starts_with("eyJ")).unwrap();
    let secret: Vec<u8> = (0..32).collect();
    let keys = TokenKeys::hs256("default", &secret, Duration::ZERO);
    let identity = keys.verify(token, TIME).unwrap();
    assert_eq!(
        (identity.user.as_str(), identity.credentials.expires_ms),
        ("anna", 1_784_553_600_000)
    );
}

fn is_from_client(title: &str) -> bool {
    let first = title.split(' ').next().unwrap();
    ["Hello", "Ping", "Watch", "Grab", "Inbox", "Refresh"].contains(&first)
}

/// A row for each number of the protocol, in its own range.
#[test]
fn every_code_says_what_the_client_does_next() {
    let outcomes =
        (1..100).filter_map(|code| Some((code, Outcome::try_from(code).ok()?.as_str_name())));
    let codes =
        (1..1_000).filter_map(|code| Some((code, CloseCode::try_from(code).ok()?.as_str_name())));
    let mut rows = 0;
    for (code, name) in outcomes.chain(codes) {
        assert!(
            PAGE.contains(&format!("| | {code} `{name}` | ")),
            "{code} {name}"
        );
        rows += 1;
    }
    let listed = PAGE
        .lines()
        .filter(|line| line.starts_with("| | ") && line.contains('`'));
    assert_eq!(listed.count(), rows, "a row for a code that is not there");
}
