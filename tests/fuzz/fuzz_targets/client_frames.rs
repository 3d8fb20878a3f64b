//! What a gateway reads from a client: the first byte says into how many pieces the rest is cut. A session's own input must say what the plain
//! decoder says, and hold no more than one frame.
#![no_main]

use std::ops::ControlFlow;

use bytes::BytesMut;
use hongbao::wire::ClientFrame;
use hongbao::wire::frame::{self, CLIENT_FRAME_MAX, FrameError, HEADER};
use hongbao::wire::input::Input;
use prost::Message;

fn plain(input: &[u8]) -> Vec<Result<Vec<u8>, FrameError>> {
    let (mut buffer, mut out) = (BytesMut::from(input), vec![]);
    loop {
        match frame::take(&mut buffer, CLIENT_FRAME_MAX) {
            Ok(Some(message)) => out.push(Ok(message.to_vec())),
            Ok(None) => return out,
            Err(error) => {
                out.push(Err(error));
                return out;
            }
        }
    }
}

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Some((pieces, bytes)) = input.split_first() else {
        return;
    };
    let piece = bytes.len() / (usize::from(*pieces) + 1) + 1;
    let (mut input, mut out) = (Input::default(), vec![]);
    for piece in bytes.chunks(piece) {
        input.feed(piece, |message| {
            out.push(message.map(<[u8]>::to_vec));
            match message {
                Ok(_) => ControlFlow::Continue(()),
                Err(_) => ControlFlow::Break(()),
            }
        });
        assert!(input.held() < 2 * (HEADER + CLIENT_FRAME_MAX));
        if out.last().is_some_and(Result::is_err) {
            break;
        }
    }
    assert_eq!(out, plain(bytes));
    for message in out.into_iter().flatten() {
        if let Ok(frame) = ClientFrame::decode(&message[..]) {
            let again = ClientFrame::decode(&frame.encode_to_vec()[..]);
            assert_eq!(again.as_ref(), Ok(&frame));
        }
    }
});
