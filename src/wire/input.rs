//! What a gateway reads from one client, cut into frames. No I/O.

use std::ops::ControlFlow;

use super::frame::{self, CLIENT_FRAME_MAX, FrameError, HEADER};

/// The beginning of a frame whose rest has not come: at most one frame, and without memory when there is none.
#[derive(Default)]
pub struct Input {
    cut: Vec<u8>,
}

impl Input {
    /// Whether a frame has begun and not ended.
    pub fn is_cut(&self) -> bool {
        !self.cut.is_empty()
    }

    /// Bytes of memory that are held.
    pub fn held(&self) -> usize {
        self.cut.capacity()
    }

    /// Hands every whole frame's message to `each` until it breaks off: then what is left is of no interest. So is what follows an error, after which
    /// nobody knows where a frame begins. Returns whether a frame has ended.
    pub fn feed(
        &mut self,
        mut bytes: &[u8],
        mut each: impl FnMut(Result<&[u8], FrameError>) -> ControlFlow<()>,
    ) -> bool {
        let mut ended = false;
        // Only what the frame still lacks is put to it, so that it never holds more than one.
        while self.is_cut() {
            let len = match frame::announced_len(&self.cut, CLIENT_FRAME_MAX) {
                Ok(len) => len,
                Err(error) => {
                    self.cut = Vec::new();
                    let _ = each(Err(error)); // the last there is
                    return ended;
                }
            };
            let lacks = HEADER + len.unwrap_or(0) - self.cut.len();
            if lacks == 0 {
                let cut = std::mem::take(&mut self.cut);
                ended = true;
                if each(Ok(&cut[HEADER..])).is_break() {
                    return ended;
                }
            } else if bytes.is_empty() {
                return ended;
            } else {
                let (more, rest) = bytes.split_at(lacks.min(bytes.len()));
                self.cut.extend_from_slice(more);
                bytes = rest;
            }
        }
        loop {
            let message = match frame::announced_len(bytes, CLIENT_FRAME_MAX) {
                Ok(Some(len)) if bytes.len() >= HEADER + len => {
                    let (frame, rest) = bytes.split_at(HEADER + len);
                    bytes = rest;
                    ended = true;
                    Ok(&frame[HEADER..])
                }
                Ok(_) => {
                    self.cut = bytes.to_vec();
                    return ended;
                }
                Err(error) => Err(error),
            };
            let over = message.is_err();
            if each(message).is_break() || over {
                return ended;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What comes of these pieces, and the most memory that was held in between.
    fn fed(pieces: &[&[u8]]) -> (Vec<Result<Vec<u8>, FrameError>>, usize) {
        let (mut input, mut out, mut held) = (Input::default(), vec![], 0);
        for piece in pieces {
            let before = out.len();
            let ended = input.feed(piece, |message| {
                out.push(message.map(<[u8]>::to_vec));
                ControlFlow::Continue(())
            });
            assert_eq!(ended, out[before..].iter().any(Result::is_ok));
            held = held.max(input.held());
        }
        (out, held)
    }

    #[test]
    fn frames_come_out_whole_wherever_they_are_cut() {
        let sent = hex::decode("0000000208050000000101").unwrap();
        let expected = [Ok(vec![8, 5]), Ok(vec![1])];
        for first in 0..=sent.len() {
            for second in first..=sent.len() {
                let pieces = [&sent[..first], &sent[first..second], &sent[second..]];
                assert_eq!(fed(&pieces).0, expected, "cut at {first} and {second}");
            }
        }
    }

    /// A cut frame once took all that was read with its end, up to 64 KiB, and a session held that much until its next frame was whole.
    #[test]
    fn what_is_held_is_below_two_frames_however_much_comes_at_once() {
        let flood = [&[0, 0, 0, 1, 7].repeat(13_000)[..], &[0, 0]].concat();
        let (out, held) = fed(&[&[0, 0, 0], &[1], &[7, 0], &[0, 0], &[1, 7], &flood, &flood]);
        assert_eq!(out.len(), 2 + 13_000 + 1);
        // The second flood began inside a length.
        assert_eq!(out.last(), Some(&Err(FrameError::Empty)));
        assert!(held < 16, "{held}");
        let long = [&4_096u32.to_be_bytes()[..], &[7; 4_096]].concat();
        let pieces: Vec<&[u8]> = long.chunks(100).collect();
        let (out, held) = fed(&pieces);
        assert_eq!(out, [Ok(vec![7; 4_096])]);
        assert!(held < 2 * (HEADER + CLIENT_FRAME_MAX), "{held}");
    }

    #[test]
    fn a_length_that_cannot_be_ends_it_before_anything_is_held() {
        for (bytes, error) in [
            (hex::decode("00000000").unwrap(), FrameError::Empty),
            (
                hex::decode("ffffffff01").unwrap(),
                FrameError::TooLong {
                    len: u32::MAX as usize,
                    max: CLIENT_FRAME_MAX,
                },
            ),
        ] {
            assert_eq!(fed(&[&bytes]), (vec![Err(error)], 0));
            let (first, rest) = bytes.split_at(2);
            assert_eq!(fed(&[first, rest]).0, [Err(error)]);
        }
    }

    #[test]
    fn whoever_breaks_off_is_handed_nothing_more() {
        let mut input = Input::default();
        let mut handed = 0;
        input.feed(&[0, 0, 0, 1, 7, 0, 0, 0, 1, 7, 0], |_| {
            handed += 1;
            ControlFlow::Break(())
        });
        assert_eq!((handed, input.held()), (1, 0));
    }
}
