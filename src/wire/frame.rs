//! Framing: 4 bytes big-endian length, then that many bytes of protobuf. No I/O.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::Message;

/// Longest frame a client may send, bytes after the length field.
pub const CLIENT_FRAME_MAX: usize = 4 * 1024;
/// Longest frame a gateway sends: an inbox page of 100 messages stays well below it.
pub const SERVER_FRAME_MAX: usize = 64 * 1024;
/// The length field.
pub const HEADER: usize = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error("frame of {len} bytes exceeds {max}")]
    TooLong { len: usize, max: usize },
    #[error("frame of 0 bytes: every frame holds a message")]
    Empty,
}

impl FrameError {
    /// What a connection speaks instead, by its first four bytes.
    pub fn looks_like(&self) -> Option<&'static str> {
        let FrameError::TooLong { len, .. } = self else {
            return None;
        };
        match &u32::try_from(*len).ok()?.to_be_bytes() {
            [0x16, 3, ..] => Some("this is TLS, and plain TCP is spoken here"),
            b"\r\n\r\n" => {
                Some("this is a PROXY header, and gateway.proxy_trusted does not name its sender")
            }
            b"PROX" => Some("this is a PROXY header of version 1; version 2 is understood"),
            b"GET " | b"HEAD" | b"POST" | b"PUT " | b"OPTI" | b"PRI " => Some("this is HTTP"),
            _ => None,
        }
    }
}

/// Appends `message` as one frame. Messages of ours are bounded far below 4 GiB, so the length always fits.
pub fn put(message: &impl Message, out: &mut impl BufMut) {
    let len = message.encoded_len();
    out.put_u32(len as u32);
    message.encode_raw(out);
}

/// One frame of its own, to be shared by many sessions.
pub fn encode(message: &impl Message) -> Bytes {
    let mut out = BytesMut::with_capacity(HEADER + message.encoded_len());
    put(message, &mut out);
    out.freeze()
}

/// Length of the frame that starts `bytes`; `None` while the length field is not complete. Checked before anything is reserved for it.
pub fn announced_len(bytes: &[u8], max: usize) -> Result<Option<usize>, FrameError> {
    let Some(header) = bytes.first_chunk::<HEADER>() else {
        return Ok(None);
    };
    match u32::from_be_bytes(*header) as usize {
        0 => Err(FrameError::Empty),
        len if len > max => Err(FrameError::TooLong { len, max }),
        len => Ok(Some(len)),
    }
}

/// Takes the first complete frame's message bytes off `buffer`; `None` means that more must be read.
pub fn take(buffer: &mut BytesMut, max: usize) -> Result<Option<Bytes>, FrameError> {
    match announced_len(buffer, max)? {
        Some(len) if buffer.len() >= HEADER + len => {
            buffer.advance(HEADER);
            Ok(Some(buffer.split_to(len).freeze()))
        }
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{ClientFrame, Grab, client_frame::Request};

    #[test]
    fn a_grab_is_these_bytes() {
        // request_id 5 = 08 05; grab is field 5, 2 bytes long = 2a 02; rain_id 7 = 08 07
        let frame = ClientFrame {
            request_id: 5,
            request: Some(Request::Grab(Grab {
                rain_id: 7,
                ..Grab::default()
            })),
        };
        assert_eq!(
            hex::encode(encode(&frame)),
            "00000006".to_owned() + "0805" + "2a02" + "0807"
        );
    }

    #[test]
    fn frames_come_out_whole_however_the_bytes_arrive() {
        let sent = hex::decode("0000000208050000000101").unwrap();
        let mut buffer = BytesMut::new();
        let mut taken = Vec::new();
        for byte in sent {
            buffer.put_u8(byte);
            while let Some(frame) = take(&mut buffer, 16).unwrap() {
                taken.push(frame.to_vec());
            }
        }
        assert_eq!(taken, [vec![0x08, 0x05], vec![0x01]]);
        assert!(buffer.is_empty());
    }

    #[test]
    fn a_length_beyond_the_limit_is_refused_before_its_bytes_arrive() {
        let mut buffer = BytesMut::from(&9120u32.to_be_bytes()[..]);
        let error = take(&mut buffer, CLIENT_FRAME_MAX).unwrap_err();
        assert_eq!(error.to_string(), "frame of 9120 bytes exceeds 4096");
        let mut empty = BytesMut::from(&[0u8; 4][..]);
        assert_eq!(take(&mut empty, CLIENT_FRAME_MAX), Err(FrameError::Empty));
    }
}
