//! A batch of grabs in one bucket: the call and the reading of its answer. No I/O.

use std::fmt::Write;

use redis::Cmd;

use super::keys::BucketKeys;
use super::script;
use crate::rain::Packet;

/// What the gate said to those who have no packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// The bucket is not there: its node lost it, or it has not been loaded.
    Missing,
    /// Some of it may be lost, so nothing is given until it is repaired, and nobody is told that it is over.
    Suspect,
    Loading,
    NotOpen,
    Open,
    Paused,
    /// Whoever has no packet there has won none.
    Closed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grabbed {
    Won(Packet),
    AlreadyWon(Packet),
    Nothing,
}

/// The answer to a batch, one entry per user in their order.
#[derive(Debug)]
pub struct Answer<'a> {
    pub gate: Gate,
    /// Changes when packets come into the bucket from outside; what was empty may be empty no more.
    pub epoch: u64,
    entries: std::str::SplitAsciiWhitespace<'a>,
}

/// A user whom somebody has doubts about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// May win, but a person decides about the money: the claim goes to the dead letters, with the reason `held`.
    Hold,
    /// Wins nothing; is told of what was won before.
    Deny,
}

/// `run_id` is that of the process the call is sent to; `waits` tells that WAIT follows; `doubts` are by the users' places, from 0.
pub fn call<'u>(
    keys: &BucketKeys,
    run_id: &str,
    waits: bool,
    users: impl Iterator<Item = &'u str>,
    doubts: impl Iterator<Item = (usize, Doubt)>,
) -> Cmd {
    let k = keys;
    let mut cmd = script::GRAB.call(&[&k.gate, &k.pool, &k.winners, &k.claims, &k.dead]);
    cmd.arg(run_id);
    let waits = if waits { "1" } else { "0" };
    let mut doubts = doubts.peekable();
    if doubts.peek().is_none() {
        cmd.arg(waits);
    } else {
        let mut text = waits.to_owned();
        for (place, doubt) in doubts {
            let what = match doubt {
                Doubt::Hold => 'h',
                Doubt::Deny => 'd',
            };
            let _ = write!(text, " {what}{}", place + 1);
        }
        cmd.arg(text);
    }
    for user in users {
        cmd.arg(user);
    }
    cmd
}

impl<'a> Answer<'a> {
    pub fn read(reply: &'a str) -> Option<Answer<'a>> {
        let mut entries = reply.split_ascii_whitespace();
        let head = entries.next()?;
        let gate = match head.as_bytes().first()? {
            b'U' => Gate::Missing,
            b'S' => Gate::Suspect,
            b'L' => Gate::Loading,
            b'N' => Gate::NotOpen,
            b'O' => Gate::Open,
            b'P' => Gate::Paused,
            b'C' => Gate::Closed,
            _ => return None,
        };
        Some(Answer {
            gate,
            epoch: head[1..].parse().ok()?,
            entries,
        })
    }
}

/// `None` is an entry that cannot be read.
impl Iterator for Answer<'_> {
    type Item = Option<Grabbed>;

    fn next(&mut self) -> Option<Option<Grabbed>> {
        let entry = self.entries.next()?;
        Some(match entry.as_bytes()[0] {
            b'W' => entry[1..].parse().ok().map(Grabbed::Won),
            b'A' => entry[1..].parse().ok().map(Grabbed::AlreadyWon),
            b'-' => Some(Grabbed::Nothing),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rain::Cents;

    #[test]
    fn an_answer_is_read_entry_by_entry() {
        let answer = Answer::read("O3 W30064771113:888 - A30064771114:1 x").unwrap();
        assert_eq!((answer.gate, answer.epoch), (Gate::Open, 3));
        let entries: Vec<_> = answer.collect();
        let packet = Packet {
            id: "30064771113".parse().unwrap(),
            cents: Cents(888),
        };
        assert_eq!(entries[0], Some(Grabbed::Won(packet)));
        assert_eq!(entries[1], Some(Grabbed::Nothing));
        assert!(matches!(entries[2], Some(Grabbed::AlreadyWon(_))));
        assert_eq!(entries[3], None);
        assert!(Answer::read("").is_none());
        assert!(Answer::read("?1 -").is_none());
    }
}
