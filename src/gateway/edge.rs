//! Edge sessions: trusted servers that grab for many users over one connection.
//!
//! What is kept for one is bounded, whoever its users are: no outcomes (a repeat asks Redis again, which knows), and of the packets that it was told
//! of only their ids, until their credit was pushed. So a user who wins nothing costs nothing here, and a credit finds its sessions by a number.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::rc::Rc;

use super::session::Session;
use super::worker::Worker;
use crate::rain::{PacketId, UserId};
use crate::store::inbox::Credited;
use crate::wire::Outcome;

/// Credits that nobody waited for yet, kept for a grab whose answer comes after its credit: the repeat of a lost reply, for one. About 150 bytes each.
const EARLY_MAX: usize = 4_096;

/// What an edge session keeps.
#[derive(Default)]
pub struct Edge {
    awaited: RefCell<Awaited>,
}

/// Packets whose credit is to be pushed, at most `gateway.edge_awaited_max`; beyond that the oldest is left to the inbox.
#[derive(Default)]
struct Awaited {
    packets: HashSet<PacketId, BuildHasherDefault<PacketHasher>>,
    /// In the order of their coming; one that was pushed stays here until it is the oldest.
    order: VecDeque<PacketId>,
}

/// Packet ids are made here, so nobody can choose them to collide: one multiplication does, where the standard hasher took a tenth of the thread's
/// time under load. The middle bits of the product are the best mixed ones.
#[derive(Default)]
struct PacketHasher(u64);

impl Hasher for PacketHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(self.0 ^ u64::from(*byte));
        }
    }

    fn write_u64(&mut self, id: u64) {
        self.0 = id.wrapping_mul(0x9e37_79b9_7f4a_7c15); // 2^64 divided by the golden ratio
    }

    fn finish(&self) -> u64 {
        self.0.rotate_left(26)
    }
}

impl Awaited {
    fn add(&mut self, packet: PacketId, max: usize) {
        if !self.packets.insert(packet) {
            return;
        }
        self.order.push_back(packet);
        while self.order.len() > max {
            let oldest = self.order.pop_front().unwrap_or(packet);
            if self.packets.remove(&oldest) {
                crate::metrics::get().edge_awaited_dropped.increment(1);
            }
        }
    }

    fn take(&mut self, packet: PacketId) -> bool {
        let taken = self.packets.remove(&packet);
        if self.packets.is_empty() {
            *self = Awaited::default();
        }
        taken
    }
}

/// The edge sessions of one worker: tens, not thousands.
#[derive(Default)]
pub struct Edges {
    sessions: RefCell<Vec<Rc<Session>>>,
    early: RefCell<Early>,
}

#[derive(Default)]
struct Early {
    credits: HashMap<PacketId, Credited>,
    order: VecDeque<PacketId>,
}

impl Edges {
    pub fn enter(&self, session: &Rc<Session>) {
        self.sessions.borrow_mut().push(session.clone());
        crate::metrics::get().edge_sessions.increment(1);
    }

    pub fn leave(&self, session: &Session) {
        if session.edge().is_none() {
            return;
        }
        let mut sessions = self.sessions.borrow_mut();
        let before = sessions.len();
        sessions.retain(|other| other.id != session.id);
        let left = before - sessions.len();
        crate::metrics::get().edge_sessions.decrement(left as f64);
        if sessions.is_empty() {
            *self.early.borrow_mut() = Early::default();
        }
    }

    /// Sessions that are to be told of this credit, each once.
    pub fn awaiting(&self, credited: &Credited) -> Vec<Rc<Session>> {
        let packet = credited.claim.packet.id;
        let sessions = self.sessions.borrow();
        if sessions.is_empty() {
            return vec![];
        }
        let awaits = |session: &&Rc<Session>| {
            let edge = session.edge();
            session.closing_since().is_none()
                && edge.is_some_and(|edge| edge.awaited.borrow_mut().take(packet))
        };
        let told: Vec<_> = sessions.iter().filter(awaits).cloned().collect();
        if told.is_empty() {
            self.early.borrow_mut().keep(credited);
        }
        told
    }
}

impl Early {
    fn keep(&mut self, credited: &Credited) {
        let packet = credited.claim.packet.id;
        if self.credits.insert(packet, credited.clone()).is_none() {
            self.order.push_back(packet);
        }
        if self.order.len() > EARLY_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.credits.remove(&oldest);
        }
    }
}

impl Worker {
    /// An edge session was told of a packet: it will be told of the credit, now if that came first.
    pub(super) fn await_credit(&self, session: &Rc<Session>, packet: PacketId) {
        let Some(edge) = session.edge() else {
            return;
        };
        let early = self.edges.early.borrow().credits.get(&packet).cloned();
        match early {
            Some(credited) => self.push_to_edges(&credited, std::slice::from_ref(session)),
            None => edge
                .awaited
                .borrow_mut()
                .add(packet, self.settings.edge_awaited_max),
        }
    }
}

/// Whom a request is for: `None` is the session's own user.
pub fn named(session: &Session, name: String) -> Result<Option<String>, Outcome> {
    match (session.edge(), name.is_empty()) {
        (None, true) => Ok(None),
        (None, false) => Err(Outcome::UserNotAllowed),
        (Some(_), true) => Err(Outcome::UserMissing),
        (Some(_), false) if UserId::fits(&name) => Ok(Some(name)),
        (Some(_), false) => Err(Outcome::BadRequest),
    }
}

/// Why [`named`] refused, for a log.
pub fn reason(refused: Outcome) -> String {
    match refused {
        Outcome::UserNotAllowed => "only an edge session names a user".to_owned(),
        Outcome::UserMissing => "an edge session must name the user".to_owned(),
        _ => "a user is 1 to 64 characters from A-Z a-z 0-9 . _ @ : + = / -".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rain::RainId;

    fn packet(index: u32) -> PacketId {
        RainId::new(7).unwrap().packet(index)
    }

    #[test]
    fn the_oldest_packet_gives_way_and_a_told_one_is_told_once() {
        let mut awaited = Awaited::default();
        for index in [1, 2, 2, 3] {
            awaited.add(packet(index), 2);
        }
        assert!(!awaited.take(packet(1)), "left to the inbox");
        assert!(awaited.take(packet(2)));
        assert!(!awaited.take(packet(2)));
        assert!(awaited.take(packet(3)));
        assert!(
            awaited.order.is_empty(),
            "nothing is kept when all are told"
        );
    }
}
