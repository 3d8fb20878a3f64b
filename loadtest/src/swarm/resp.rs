use std::collections::VecDeque;

use super::dialect::{Dialect, Heard};

/// One call of a script a request, straight to Redis. Answers come in the order of their calls.
pub struct Redis {
    /// The command up to its last argument, which is the user.
    head: Vec<u8>,
    fresh: u64,
    in_flight: Vec<VecDeque<u8>>,
}

impl Redis {
    /// `command` without its last argument.
    pub fn new(command: &[&str]) -> Redis {
        let mut head = format!("*{}\r\n", command.len() + 1).into_bytes();
        for word in command {
            head.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
        }
        Redis {
            head,
            fresh: 0,
            in_flight: vec![],
        }
    }
}

impl Dialect for Redis {
    fn greet(&mut self, _connection: usize, _out: &mut Vec<u8>) -> bool {
        false
    }

    fn request(&mut self, connection: usize, id: u8, out: &mut Vec<u8>) {
        if self.in_flight.len() <= connection {
            self.in_flight.resize_with(connection + 1, VecDeque::new);
        }
        self.in_flight[connection].push_back(id);
        self.fresh += 1;
        out.extend_from_slice(&self.head);
        out.extend_from_slice(format!("$11\r\nb1{:09}\r\n", self.fresh).as_bytes());
    }

    fn read(&mut self, connection: usize, bytes: &[u8]) -> Result<Option<(usize, Heard)>, String> {
        let Some(line) = bytes.windows(2).position(|two| two == b"\r\n") else {
            return Ok(None);
        };
        let head = &bytes[..line];
        let text = || String::from_utf8_lossy(head).into_owned();
        let length = match head {
            [b'$', number @ ..] => {
                let number = std::str::from_utf8(number).ok();
                let number: i64 = number.and_then(|text| text.parse().ok()).ok_or_else(text)?;
                line + 2 + number.try_into().map_or(0, |bytes: usize| bytes + 2)
            }
            [b'+' | b':', ..] => line + 2,
            _ => return Err(text()),
        };
        if bytes.len() < length {
            return Ok(None);
        }
        // `O1 W…`: the gate is open and the user has won. Anything else is no win.
        let body = &bytes[line + 2..length];
        let won = body.first() == Some(&b'O') && body.windows(2).any(|two| two == b" W");
        let waiting = self.in_flight.get_mut(connection);
        let id = waiting
            .and_then(VecDeque::pop_front)
            .ok_or("an answer to nothing")?;
        let code = if won { 10 } else { 20 };
        Ok(Some((length, Heard::Answer { id, code })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_and_answers_are_those_of_the_protocol() {
        let mut redis = Redis::new(&["EVALSHA", "abc", "1", "k"]);
        let mut out = vec![];
        redis.request(0, 5, &mut out);
        let wanted =
            "*5\r\n$7\r\nEVALSHA\r\n$3\r\nabc\r\n$1\r\n1\r\n$1\r\nk\r\n$11\r\nb1000000001\r\n";
        assert_eq!(String::from_utf8(out).unwrap(), wanted);
        let answer = b"$9\r\nO1 W7:888\r\n$1";
        for cut in 0..15 {
            assert_eq!(redis.read(0, &answer[..cut]), Ok(None), "{cut}");
        }
        let won = Heard::Answer { id: 5, code: 10 };
        assert_eq!(redis.read(0, answer), Ok(Some((15, won))));
        let refused = redis.read(0, b"-NOSCRIPT\r\n").unwrap_err();
        assert_eq!(refused, "-NOSCRIPT");
    }
}
