//! Edge sessions: trusted servers that grab for many users over one connection.
//!
//! What is kept for one is bounded, whoever its users are: no outcomes (a repeat asks Redis again, which knows), and of the packets that it was told
//! of only their ids, until their credit was pushed. So a user who wins nothing costs nothing here, and a credit finds its sessions by a number.
//!
//! A credit may come before its grab's answer: a reply that waits for replicas, or the repeat of one that was lost with its connection. So the
//! credits of lately are kept for those who are told of the packet afterwards, on every worker: a server whose connection was lost comes back on
//! whichever it meets. What is older stands in the user's inbox.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::rc::Rc;
use std::sync::Arc;

use super::session::Session;
use super::worker::Worker;
use crate::rain::{PacketId, UserId};
use crate::store::inbox::{Credited, News};
use crate::wire::Outcome;

/// Credits of lately that are kept at least. They stay in the news they came in, some 150 bytes each that all workers share.
const LATELY_MIN: usize = 4_096;

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
    lately: RefCell<Lately>,
}

#[derive(Default)]
struct Lately {
    /// The newest last.
    news: VecDeque<Arc<News>>,
    /// Number of the first of them; they are numbered in the order of their coming.
    first: u64,
    /// How many there are in `news`.
    credits: usize,
    /// `None` until there is an edge session: elsewhere nobody asks, and what is kept costs a place in the queue for 500 credits.
    places: Option<Places>,
}

type Places = HashMap<PacketId, Kept, BuildHasherDefault<PacketHasher>>;

/// Where a credit is kept.
struct Kept {
    news: u64,
    index: usize,
    /// The session that was told last; 0: none.
    told: u64,
}

impl Lately {
    fn keep(&mut self, news: &Arc<News>) {
        let number = self.first + self.news.len() as u64;
        if let Some(places) = &mut self.places {
            place(places, number, news);
        }
        self.credits += news.len();
        self.news.push_back(news.clone());
        while let Some(oldest) = self.news.front()
            && self.credits - oldest.len() >= LATELY_MIN
        {
            if let Some(places) = &mut self.places {
                for credited in oldest.iter() {
                    let packet = credited.claim.packet.id;
                    let gone = places.get(&packet);
                    if gone.is_some_and(|place| place.news == self.first) {
                        places.remove(&packet);
                    }
                }
            }
            self.credits -= oldest.len();
            self.first += 1;
            self.news.pop_front();
        }
    }

    /// Somebody may ask from now on.
    fn find_by_packet(&mut self) {
        let (first, news) = (self.first, &self.news);
        self.places.get_or_insert_with(|| {
            let mut places = Places::default();
            for (number, news) in (first..).zip(news) {
                place(&mut places, number, news);
            }
            places
        });
    }

    fn told(&mut self, packet: PacketId, session: u64) {
        let places = self.places.as_mut();
        if let Some(place) = places.and_then(|places| places.get_mut(&packet)) {
            place.told = session;
        }
    }

    /// For a session that is told of the packet now: its credit, and whether the session was told of that already.
    fn credit(&mut self, packet: PacketId, session: u64) -> Option<(Credited, bool)> {
        let place = self.places.as_mut()?.get_mut(&packet)?;
        let news = self.news.get((place.news - self.first) as usize)?;
        let told = std::mem::replace(&mut place.told, session) == session;
        Some((news.get(place.index)?.clone(), told))
    }
}

fn place(places: &mut Places, number: u64, news: &News) {
    for (index, credited) in news.iter().enumerate() {
        let kept = Kept {
            news: number,
            index,
            told: 0,
        };
        // A settler that died may have published it before.
        let known = places.entry(credited.claim.packet.id).or_insert(kept);
        (known.news, known.index) = (number, index);
    }
}

impl Edges {
    pub fn enter(&self, session: &Rc<Session>) {
        self.lately.borrow_mut().find_by_packet();
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
    }

    /// For those who are told of a packet after its credit.
    pub fn keep(&self, news: &Arc<News>) {
        self.lately.borrow_mut().keep(news);
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
        for session in &told {
            self.lately.borrow_mut().told(packet, session.id);
        }
        told
    }
}

impl Worker {
    /// An edge session was told of a packet: it will be told of the credit, now if that came first.
    pub(super) fn await_credit(&self, session: &Rc<Session>, packet: PacketId) {
        let Some(edge) = session.edge() else {
            return;
        };
        let credit = self.edges.lately.borrow_mut().credit(packet, session.id);
        match credit {
            Some((_, true)) => {}
            Some((credited, false)) => {
                // Its news may be on the way to the others still.
                edge.awaited.borrow_mut().take(packet);
                self.push_to_edges(&credited, std::slice::from_ref(session));
            }
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

    fn news(from: u32, count: u32) -> Arc<News> {
        let claim = |index| format!("{}:1:anna", packet(index).get());
        let credited = (from..from + count).map(|index| Credited {
            claim: claim(index).parse().unwrap(),
            place: crate::store::inbox::Place { id: 9, previous: 8 },
        });
        Arc::new(credited.collect())
    }

    #[test]
    fn credits_of_lately_are_found_once_by_each_session_and_the_oldest_give_way() {
        let mut lately = Lately::default();
        // They came before there was anybody to ask.
        lately.keep(&news(1, 250));
        lately.keep(&news(251, 250));
        lately.find_by_packet();
        let found = |lately: &mut Lately, index, session| {
            let (credited, told) = lately.credit(packet(index), session)?;
            assert_eq!(credited.claim.packet.id, packet(index));
            Some(told)
        };
        assert_eq!(found(&mut lately, 501, 1), None);
        assert_eq!(found(&mut lately, 500, 1), Some(false));
        assert_eq!(found(&mut lately, 500, 1), Some(true));
        assert_eq!(found(&mut lately, 500, 2), Some(false));
        lately.told(packet(499), 1);
        assert_eq!(found(&mut lately, 499, 1), Some(true));
        lately.keep(&news(499, 1)); // published again
        assert_eq!(found(&mut lately, 499, 1), Some(true));
        for from in (1_000..5_000).step_by(500) {
            lately.keep(&news(from, 500));
        }
        lately.keep(&news(5_000, 95)); // 4,596 in all, and 4,096 without the first ones
        assert_eq!(found(&mut lately, 1, 1), None);
        assert_eq!(found(&mut lately, 1_000, 1), Some(false));
        assert_eq!(
            found(&mut lately, 499, 1),
            Some(true),
            "as long as its later news"
        );
        for from in (10_000..10_000 + 100_000).step_by(500) {
            lately.keep(&news(from, 500));
            let places = lately.places.as_ref().map_or(0, Places::len);
            assert!(places < LATELY_MIN + 500 && lately.credits < LATELY_MIN + 500);
            assert_eq!(places, lately.credits);
        }
        // The news alone, where nobody asks, keep to the same bound.
        let mut unasked = Lately::default();
        for from in (1..100_001).step_by(500) {
            unasked.keep(&news(from, 500));
            assert!(unasked.credits < LATELY_MIN + 500 && unasked.news.len() <= 10);
        }
        assert!(unasked.places.is_none());
        unasked.find_by_packet();
        assert_eq!(found(&mut unasked, 100_000, 1), Some(false));
        assert_eq!(found(&mut unasked, 1, 1), None);
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
