//! Bytes that nobody would send: the decoder, and a real session over a socket. A bounded run of what `tests/fuzz` does without end.
//!
//! No panic, no growth beyond the limits, and every session either goes on or is told why not.

use std::ops::ControlFlow;

use bytes::BytesMut;
use hongbao::wire::client_frame::Request;
use hongbao::wire::frame::{self, CLIENT_FRAME_MAX, HEADER};
use hongbao::wire::input::Input;
use hongbao::wire::server_frame::Message;
use hongbao::wire::{ClientFrame, CloseCode, Grab, Hello, Inbox, Ping, Refresh, Watch};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use prost::Message as _;

use crate::support::server::Server;
use crate::support::wire::Raw;

/// Any request, well formed.
fn request() -> impl Strategy<Value = Request> {
    prop_oneof![
        Just(Request::Ping(Ping {})),
        (any::<u32>(), ".{0,80}", ".{0,40}").prop_map(|(rain_id, user, key)| {
            Request::Grab(Grab {
                rain_id,
                user,
                key: key.into_bytes().into(),
            })
        }),
        ".{0,100}".prop_map(|room| Request::Watch(Watch { room })),
        (any::<(u64, u32)>(), ".{0,80}").prop_map(|((after_message_id, limit), user)| {
            Request::Inbox(Inbox {
                after_message_id,
                limit,
                user,
            })
        }),
        ".{0,300}".prop_map(|token| Request::Refresh(Refresh { token })),
        (".{0,300}", any::<(u32, u64)>()).prop_map(|(token, (protocol, last_message_id))| {
            Request::Hello(Hello {
                token,
                protocol,
                last_message_id,
            })
        }),
    ]
}

fn valid_frame() -> impl Strategy<Value = Vec<u8>> {
    (any::<u64>(), request()).prop_map(|(request_id, request)| {
        let request = Some(request);
        frame::encode(&ClientFrame {
            request_id,
            request,
        })
        .to_vec()
    })
}

/// A frame with some bytes changed, put in, or cut off.
fn spoiled_frame() -> impl Strategy<Value = Vec<u8>> {
    let changes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3), 1..4);
    (valid_frame(), changes).prop_map(|(mut bytes, changes)| {
        for (place, byte, kind) in changes {
            let place = place.index(bytes.len().max(1));
            match kind {
                0 if place < bytes.len() => bytes[place] = byte,
                1 if place < bytes.len() => bytes.truncate(place),
                _ => bytes.insert(place.min(bytes.len()), byte),
            }
        }
        bytes
    })
}

/// A length that is right, and a message that is anything.
fn framed_garbage() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 1..600).prop_map(|garbage| {
        let len = u32::try_from(garbage.len()).unwrap().to_be_bytes();
        [&len[..], &garbage].concat()
    })
}

fn sent() -> impl Strategy<Value = Vec<u8>> {
    let part = prop_oneof![
        4 => valid_frame(),
        3 => spoiled_frame(),
        2 => framed_garbage(),
        1 => prop::collection::vec(any::<u8>(), 0..200),
    ];
    prop::collection::vec(part, 1..12).prop_map(|parts| parts.concat())
}

/// The input in pieces as a network may deliver it.
fn pieces(bytes: &[u8], cuts: &[prop::sample::Index]) -> Vec<Vec<u8>> {
    let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
    places.sort_unstable();
    places.push(bytes.len());
    let mut from = 0;
    places
        .into_iter()
        .map(|to| bytes[std::mem::replace(&mut from, to)..to].to_vec())
        .collect()
}

fn cuts() -> impl Strategy<Value = Vec<prop::sample::Index>> {
    prop::collection::vec(any::<prop::sample::Index>(), 0..8)
}

/// Messages, and the error that ends them.
type Decoded = (Vec<Vec<u8>>, Option<frame::FrameError>);

/// What a session makes of these pieces.
fn fed(pieces: &[Vec<u8>]) -> Decoded {
    let (mut input, mut messages, mut failed) = (Input::default(), vec![], None);
    for piece in pieces {
        input.feed(piece, |message| {
            match message {
                Ok(message) => messages.push(message.to_vec()),
                Err(error) => {
                    failed = Some(error);
                    return ControlFlow::Break(());
                }
            }
            ControlFlow::Continue(())
        });
        assert!(
            input.held() < 2 * (HEADER + CLIENT_FRAME_MAX),
            "{} bytes held",
            input.held()
        );
        if failed.is_some() {
            break;
        }
    }
    (messages, failed)
}

/// What the plain decoder makes of them, and whether a frame is left cut.
fn decoded(pieces: &[Vec<u8>]) -> (Decoded, bool) {
    let (mut buffer, mut messages) = (BytesMut::new(), vec![]);
    for piece in pieces {
        buffer.extend_from_slice(piece);
        loop {
            match frame::take(&mut buffer, CLIENT_FRAME_MAX) {
                Ok(Some(message)) => messages.push(message.to_vec()),
                Ok(None) => break,
                Err(error) => return ((messages, Some(error)), false),
            }
        }
        assert!(
            buffer.len() < HEADER + CLIENT_FRAME_MAX,
            "more than one frame waits"
        );
    }
    ((messages, None), !buffer.is_empty())
}

/// What must become of a session that is sent this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    GoesOn,
    Closed,
    /// What is sent next is the rest of a frame: either.
    Cut,
}

fn expected(welcomed: bool, pieces: &[Vec<u8>]) -> End {
    let ((messages, error), cut) = decoded(pieces);
    let mut refreshes = 0;
    for message in messages {
        match ClientFrame::decode(&message[..]).map(|frame| frame.request) {
            // No token here is one, so a Hello is refused, and so is what comes before it.
            _ if !welcomed => return End::Closed,
            Err(_) | Ok(None | Some(Request::Hello(_))) => return End::Closed,
            Ok(Some(Request::Refresh(_))) => refreshes += 1,
            Ok(Some(_)) => {}
        }
        if refreshes == 4 {
            return End::Closed;
        }
    }
    match (error, cut) {
        (Some(_), _) => End::Closed,
        (None, true) => End::Cut,
        // A Ping is no Hello.
        (None, false) if !welcomed => End::Closed,
        (None, false) => End::GoesOn,
    }
}

proptest! {
    #![proptest_config(Config { cases: 512, failure_persistence: None, ..Config::default() })]

    #[test]
    fn session_and_decoder_say_the_same_however_the_bytes_are_cut(bytes in sent(), cuts in cuts()) {
        let (whole, cut) = decoded(std::slice::from_ref(&bytes));
        let pieces = pieces(&bytes, &cuts);
        prop_assert_eq!((&whole, cut), (&decoded(&pieces).0, decoded(&pieces).1));
        prop_assert_eq!(&whole, &fed(&pieces));
        prop_assert_eq!(&whole, &fed(&[bytes]));
        for message in whole.0 {
            // What can be read can be written, and reads the same again.
            if let Ok(frame) = ClientFrame::decode(&message[..]) {
                prop_assert_eq!(ClientFrame::decode(&frame.encode_to_vec()[..]), Ok(frame));
            }
        }
    }

    #[test]
    fn a_frame_comes_out_as_it_went_in(frame in valid_frame(), cuts in cuts()) {
        let (messages, error) = fed(&pieces(&frame, &cuts));
        prop_assert_eq!(error, None);
        prop_assert_eq!(messages, vec![frame[HEADER..].to_vec()]);
    }
}

/// Plays one input to a session and sees that it ends well: the next Ping is answered, or the close has a code.
async fn play(server: &Server, welcomed: bool, pieces: &[Vec<u8>]) -> Result<(), TestCaseError> {
    let mut raw = match welcomed {
        true => Raw::user(server, "anna").await,
        false => Raw::connect(server).await,
    };
    for piece in pieces {
        if !raw.try_bytes(piece).await {
            break;
        }
        tokio::task::yield_now().await;
    }
    // Padding ends any frame that was left cut.
    let last = u64::MAX - 7;
    let ping = frame::encode(&ClientFrame {
        request_id: last,
        request: Some(Request::Ping(Ping {})),
    });
    let padding = vec![0; CLIENT_FRAME_MAX];
    let _ = raw.try_bytes(&ping).await && raw.try_bytes(&padding).await;
    let (mut told, mut ponged) = (None, false);
    while let Some(frame) = raw.receive().await {
        match frame.message {
            Some(Message::GoAway(away)) => told = Some(away.code()),
            Some(Message::Refused(refused)) => told = Some(refused.code()),
            Some(Message::Pong(_)) if frame.request_id == last => ponged = true,
            Some(_) | None => {}
        }
    }
    match expected(welcomed, pieces) {
        End::GoesOn => prop_assert!(ponged, "closed with {told:?} for no reason"),
        End::Closed => prop_assert!(!ponged, "not closed"),
        End::Cut => {}
    }
    // Padding is a frame of no bytes: in the end every one of these sessions is closed, and told so.
    prop_assert!(
        told.is_some_and(|code| code != CloseCode::Unspecified),
        "closed without a word"
    );
    Ok(())
}

#[test]
fn a_session_survives_or_is_told_whatever_it_is_sent() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    // Rates have tests of their own; here all sessions are one user's.
    let server = Server::start(&[
        "gateway.sessions_per_user=1000",
        "gateway.frames_per_second=10000000",
        "gateway.user_frames_per_second=10000000",
    ]);
    let before = server.resident_kib();
    let config = Config {
        cases: 400,
        failure_persistence: None,
        max_shrink_iters: 200,
        ..Config::default()
    };
    let mut runner = TestRunner::new(config);
    let played = runner.run(
        &(any::<bool>(), sent(), cuts()),
        |(welcomed, bytes, cuts)| runtime.block_on(play(&server, welcomed, &pieces(&bytes, &cuts))),
    );
    played.unwrap();
    runtime.block_on(async {
        let panics = server.metrics().await;
        assert!(
            !panics.contains("hongbao_panics_total{"),
            "a panic: {}",
            server.log()
        );
        let mut honest = Raw::user(&server, "honest").await;
        assert!(matches!(
            honest.ask(Request::Ping(Ping {})).await,
            Message::Pong(_)
        ));
        assert_eq!(
            server.metric("hongbao_sessions").await,
            1.0,
            "no session is left over"
        );
    });
    let grown = server.resident_kib().saturating_sub(before);
    assert!(grown < 30_000, "{grown} KiB more than before");
}
