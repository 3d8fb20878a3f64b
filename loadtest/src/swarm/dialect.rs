use hongbao::rain::RainId;
use hongbao::wire::client_frame::Request;
use hongbao::wire::frame::{self, HEADER, SERVER_FRAME_MAX};
use hongbao::wire::server_frame::Message;
use hongbao::wire::{ClientFrame, CloseCode, Hello, Ping, ServerFrame, Watch};
use prost::Message as _;

use crate::tokens::Signer;

/// What came over a connection.
#[derive(Debug, PartialEq)]
pub enum Heard {
    /// The connection is ready.
    Welcome,
    Answer {
        id: u8,
        /// The outcome's number; 0 where there are no outcomes.
        code: u8,
    },
    /// RainOpened.
    Opened { lag_ms: u64 },
    /// Something that is not asked about.
    Aside,
    /// The other side will say no more.
    Ended(String),
}

/// What is said over a connection, by its number.
pub trait Dialect {
    /// Appends the first words. False when there are none to be answered: the connection is ready.
    fn greet(&mut self, connection: usize, out: &mut Vec<u8>) -> bool;

    /// Appends one request; `id` is 1 to 64, and free on this connection.
    fn request(&mut self, connection: usize, id: u8, out: &mut Vec<u8>);

    /// Reads one reply from the front of `bytes` and tells its length; `None` when it is cut.
    ///
    /// # Errors
    /// Bytes that are no reply at all.
    fn read(&mut self, connection: usize, bytes: &[u8]) -> Result<Option<(usize, Heard)>, String>;
}

/// Whom the grabs are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// A fresh user for every grab: the sessions are those of trusted servers.
    Fresh,
    /// The session's own user, again and again.
    Own,
}

/// What a request asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    Grab(Option<RainId>),
    Ping,
}

/// Frames of the gateway. What is sent most, and what is answered most, is written and read by hand: the generator should cost less than the
/// gateway.
pub struct Gateway {
    signer: Signer,
    who: Who,
    ask: Ask,
    /// Begins the names of users and sessions; two runs against one server need two names.
    prefix: String,
    /// Watched by every session, if not empty.
    pub room: String,
    /// Users so far.
    fresh: u64,
}

impl Gateway {
    pub fn new(signer: Signer, who: Who, ask: Ask, prefix: &str) -> Gateway {
        Gateway {
            signer,
            who,
            ask,
            prefix: prefix.to_owned(),
            room: String::new(),
            fresh: 0,
        }
    }

    /// What requests ask from now on.
    pub fn ask(&mut self, ask: Ask) {
        self.ask = ask;
    }
}

impl Dialect for Gateway {
    fn greet(&mut self, connection: usize, out: &mut Vec<u8>) -> bool {
        let name = format!("{}-{}", self.prefix, connection);
        let token = match self.who {
            Who::Fresh => self.signer.edge_token(&name),
            Who::Own => self.signer.token(&name),
        };
        let hello = Hello {
            token,
            protocol: hongbao::client::PROTOCOL,
            last_message_id: 0,
        };
        put(1, Request::Hello(hello), out);
        if !self.room.is_empty() {
            let room = self.room.clone();
            put(2, Request::Watch(Watch { room }), out);
        }
        true
    }

    fn request(&mut self, _connection: usize, id: u8, out: &mut Vec<u8>) {
        match (self.ask, self.who) {
            (Ask::Ping, _) => put(id.into(), Request::Ping(Ping {}), out),
            (Ask::Grab(rain), who) => {
                self.fresh += 1;
                let user = match who {
                    Who::Fresh => Some((self.prefix.as_str(), self.fresh)),
                    Who::Own => None,
                };
                put_grab(id, rain.map_or(0, RainId::get), user, out);
            }
        }
    }

    fn read(&mut self, _connection: usize, bytes: &[u8]) -> Result<Option<(usize, Heard)>, String> {
        let length = match frame::announced_len(bytes, SERVER_FRAME_MAX) {
            Ok(Some(length)) if bytes.len() >= HEADER + length => length,
            Ok(_) => return Ok(None),
            Err(error) => return Err(error.to_string()),
        };
        let message = &bytes[HEADER..HEADER + length];
        let heard = match outcome_of(message) {
            Some((id, code)) => Heard::Answer { id, code },
            None => {
                let frame = ServerFrame::decode(message).map_err(|error| error.to_string())?;
                heard(frame)?
            }
        };
        Ok(Some((HEADER + length, heard)))
    }
}

fn put(request_id: u64, request: Request, out: &mut Vec<u8>) {
    let request = Some(request);
    frame::put(
        &ClientFrame {
            request_id,
            request,
        },
        out,
    );
}

/// A frame with a grab: the same bytes as prost would write.
fn put_grab(id: u8, rain: u32, user: Option<(&str, u64)>, out: &mut Vec<u8>) {
    let start = out.len();
    // Lengths are one byte each: a user has at most 64 of them. They are written when they are known.
    out.extend_from_slice(&[0, 0, 0, 0, 0x08, id, 0x2a, 0, 0x08]);
    let mut rest = rain;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
    if let Some((prefix, number)) = user {
        out.extend_from_slice(&[0x12, 0]);
        let from = out.len();
        out.extend_from_slice(prefix.as_bytes());
        put_digits(number, out);
        out[from - 1] = (out.len() - from) as u8;
    }
    out[start + 7] = (out.len() - start - 8) as u8;
    out[start + 3] = (out.len() - start - HEADER) as u8;
}

/// Nine digits at least, so that names have one length.
fn put_digits(mut number: u64, out: &mut Vec<u8>) {
    let mut digits = [b'0'; 20];
    let mut at = digits.len();
    while number > 0 || at > digits.len() - 9 {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
    }
    out.extend_from_slice(&digits[at..]);
}

/// Request and outcome of a GrabResult; `None` for anything else.
fn outcome_of(message: &[u8]) -> Option<(u8, u8)> {
    match message {
        [0x08, id @ 1..=64, 0x32, _, 0x08, code @ 1..=0x7f, ..] => Some((*id, *code)),
        _ => None,
    }
}

fn heard(frame: ServerFrame) -> Result<Heard, String> {
    let message = frame.message.ok_or("a frame without a message")?;
    Ok(match message {
        Message::Welcome(_) => Heard::Welcome,
        Message::Pong(_) => Heard::Answer {
            id: frame.request_id as u8,
            code: 0,
        },
        Message::GrabResult(result) => Heard::Answer {
            id: frame.request_id as u8,
            code: result.outcome as u8,
        },
        Message::RainOpened(opened) => {
            let lag_ms = hongbao::clock::now_ms() - opened.server_time_ms;
            Heard::Opened {
                lag_ms: lag_ms.max(0) as u64,
            }
        }
        Message::Refused(refused) => Heard::Ended(format!(
            "refused: {} {}",
            code_name(refused.code),
            refused.reason
        )),
        Message::GoAway(go_away) => Heard::Ended(format!(
            "sent away: {} {}",
            code_name(go_away.code),
            go_away.reason
        )),
        _ => Heard::Aside,
    })
}

fn code_name(code: i32) -> String {
    match CloseCode::try_from(code) {
        Ok(code) => code.as_str_name().to_owned(),
        Err(_) => code.to_string(),
    }
}

/// A server that sends back what it gets: the same frames as [`Gateway`] would send, and back they come.
pub struct Echo {
    who: Who,
    fresh: u64,
}

impl Echo {
    pub fn new(who: Who) -> Echo {
        Echo { who, fresh: 0 }
    }
}

impl Dialect for Echo {
    fn greet(&mut self, _connection: usize, _out: &mut Vec<u8>) -> bool {
        false
    }

    fn request(&mut self, _connection: usize, id: u8, out: &mut Vec<u8>) {
        self.fresh += 1;
        let user = match self.who {
            Who::Fresh => Some(("b1", self.fresh)),
            Who::Own => None,
        };
        put_grab(id, 1, user, out);
    }

    fn read(&mut self, _connection: usize, bytes: &[u8]) -> Result<Option<(usize, Heard)>, String> {
        match bytes {
            [0, 0, 0, length, 0x08, id, ..] if bytes.len() >= HEADER + usize::from(*length) => {
                let heard = Heard::Answer { id: *id, code: 0 };
                Ok(Some((HEADER + usize::from(*length), heard)))
            }
            [0, 0, 0, ..] | [] | [0] | [0, 0] => Ok(None),
            _ => Err("the echo sent back something else".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hongbao::wire::{Grab, GrabResult, Outcome};

    #[test]
    fn a_grab_written_by_hand_is_the_one_that_prost_writes() {
        for (id, rain, user) in [
            (1, 1, None),
            (64, 2_147_483_647, Some(("load-7-", 12))),
            (17, 300, Some(("b", 123_456_789_012))),
        ] {
            let mut ours = vec![1, 2, 3];
            put_grab(id, rain, user, &mut ours);
            let name = user.map(|(prefix, number)| format!("{prefix}{number:09}"));
            let mut theirs = vec![1, 2, 3];
            let grab = Grab {
                rain_id: rain,
                user: name.unwrap_or_default(),
                key: Default::default(),
            };
            put(id.into(), Request::Grab(grab), &mut theirs);
            assert_eq!(ours, theirs);
        }
    }

    #[test]
    fn a_result_is_read_as_prost_reads_it() {
        let answer = |request_id, outcome: Outcome| {
            let result = GrabResult {
                outcome: outcome as i32,
                rain_id: 7,
                packet_id: 30_064_771_113,
                cents: 888,
                retry_after_ms: 0,
            };
            let message = Some(Message::GrabResult(result));
            frame::encode(&ServerFrame {
                request_id,
                message,
            })
        };
        let bytes = answer(64, Outcome::Won);
        assert_eq!(outcome_of(&bytes[HEADER..]), Some((64, 10)));
        assert_eq!(outcome_of(&answer(0, Outcome::Won)[HEADER..]), None);
        let pong = frame::encode(&ServerFrame {
            request_id: 3,
            message: Some(Message::Pong(Default::default())),
        });
        assert_eq!(outcome_of(&pong[HEADER..]), None);
    }

    #[test]
    fn a_cut_echo_waits_for_its_rest() {
        let mut bytes = vec![];
        put_grab(9, 1, Some(("b1", 5)), &mut bytes);
        let mut echo = Echo::new(Who::Fresh);
        for cut in 0..bytes.len() {
            assert_eq!(echo.read(0, &bytes[..cut]), Ok(None), "{cut}");
        }
        let whole = Heard::Answer { id: 9, code: 0 };
        assert_eq!(echo.read(0, &bytes), Ok(Some((bytes.len(), whole))));
    }
}
