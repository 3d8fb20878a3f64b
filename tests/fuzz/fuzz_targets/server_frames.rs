//! What a client of ours reads from whoever says to be a gateway.
#![no_main]

use bytes::BytesMut;
use hongbao::wire::ServerFrame;
use hongbao::wire::frame::{self, SERVER_FRAME_MAX};
use prost::Message;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let mut buffer = BytesMut::from(input);
    while let Ok(Some(message)) = frame::take(&mut buffer, SERVER_FRAME_MAX) {
        if let Ok(frame) = ServerFrame::decode(message) {
            let again = ServerFrame::decode(&frame.encode_to_vec()[..]);
            assert_eq!(again.as_ref(), Ok(&frame));
        }
    }
});
