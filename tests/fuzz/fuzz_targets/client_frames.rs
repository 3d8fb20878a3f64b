//! What a gateway reads from a client: the first byte says into how many pieces the rest is cut.
#![no_main]

use bytes::BytesMut;
use hongbao::wire::ClientFrame;
use hongbao::wire::frame::{self, CLIENT_FRAME_MAX, HEADER};
use prost::Message;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Some((pieces, bytes)) = input.split_first() else {
        return;
    };
    let piece = bytes.len() / (usize::from(*pieces) + 1) + 1;
    let mut buffer = BytesMut::new();
    for piece in bytes.chunks(piece) {
        buffer.extend_from_slice(piece);
        loop {
            match frame::take(&mut buffer, CLIENT_FRAME_MAX) {
                Ok(Some(message)) => {
                    if let Ok(frame) = ClientFrame::decode(message) {
                        let again = ClientFrame::decode(&frame.encode_to_vec()[..]);
                        assert_eq!(again.as_ref(), Ok(&frame));
                    }
                }
                Ok(None) => break,
                Err(_) => return,
            }
        }
        assert!(buffer.len() < HEADER + CLIENT_FRAME_MAX);
    }
});
