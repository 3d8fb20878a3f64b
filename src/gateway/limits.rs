//! How many may come in, from where, and how much each may ask. Counting costs less than what it keeps away: a number for a session's rate, a lock
//! and a map entry for a connection.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use crate::config;
use crate::rain::UserId;

/// What a rate allows at once: so many seconds' worth.
const BURST_SECONDS: u64 = 2;
const SECOND: u64 = 1_000_000_000;

/// Nanoseconds since the gateway started: the time that rates are counted in.
#[derive(Clone, Copy, Debug)]
pub struct Clock(Instant);

impl Clock {
    pub fn start() -> Clock {
        Clock(Instant::now())
    }

    pub fn at(&self, instant: Instant) -> u64 {
        instant.saturating_duration_since(self.0).as_nanos() as u64
    }

    pub fn now(&self) -> u64 {
        self.at(Instant::now())
    }
}

/// A token bucket in one number, the instant until which everything taken is paid for (the generic cell rate algorithm of ITU-T I.371).
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// From one to the next, ns.
    interval: u64,
}

/// What a rate says to one more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Within,
    /// Refused, and counted all the same.
    Over,
    /// Whoever was refused a whole burst and still does not slow down.
    FarOver,
}

impl Rate {
    pub fn per_second(count: u64) -> Rate {
        Rate {
            interval: SECOND / count.clamp(1, SECOND),
        }
    }

    /// One more at `now`, after what is paid `until`: the verdict, and what is paid until then.
    pub fn take(&self, until: u64, now: u64) -> (Verdict, u64) {
        let next = until.max(now) + self.interval;
        match next - now {
            ahead if ahead <= BURST_SECONDS * SECOND => (Verdict::Within, next),
            ahead if ahead <= 2 * BURST_SECONDS * SECOND => (Verdict::Over, next),
            _ => (Verdict::FarOver, until),
        }
    }

    /// How long from `now` until the next one is within the rate, ns; 0 for at once.
    pub fn wait(&self, until: u64, now: u64) -> u64 {
        (until + self.interval).saturating_sub(now + BURST_SECONDS * SECOND)
    }
}

/// Whose connections are counted together: an IPv4 address, or the /64 of an IPv6 address, which is what one customer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Visitor(u64);

impl Visitor {
    fn of(address: IpAddr) -> Visitor {
        match address.to_canonical() {
            // ::/32 is reserved, so no /64 in use is taken for an IPv4 address.
            IpAddr::V4(address) => Visitor(u64::from(address.to_bits())),
            IpAddr::V6(address) => Visitor((address.to_bits() >> 64) as u64),
        }
    }
}

#[derive(Default)]
struct Visits {
    open: u32,
    handshakes: u32,
    /// Of the connect rate.
    paid_until: u64,
}

/// Why somebody is not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turned {
    GatewayFull,
    AddressFull,
    /// The address connects too often.
    AddressRate,
    /// The address has as many handshakes under way as it may have.
    AddressHandshakes,
}

/// The connections of all workers.
pub struct Doors {
    clock: Clock,
    total_max: usize,
    per_address_max: u32,
    handshakes_per_address_max: u32,
    per_address_rate: Rate,
    total: AtomicUsize,
    /// Locked at a connection's begin and end, and at those of its handshake.
    book: Mutex<Book>,
}

#[derive(Default)]
struct Book {
    /// An entry lives as long as a connection, and until the address has paid for its last ones.
    visits: HashMap<Visitor, Visits>,
    /// Those without a connection who had not paid when the last one ended, in that order. Each is due within a burst.
    leaving: VecDeque<(Visitor, u64)>,
}

impl Doors {
    pub fn new(settings: &config::Gateway, clock: Clock) -> Arc<Doors> {
        Arc::new(Doors {
            clock,
            total_max: settings.connections_max,
            per_address_max: settings.connections_per_address_max as u32,
            handshakes_per_address_max: settings.handshakes_per_address_max as u32,
            per_address_rate: Rate::per_second(settings.connects_per_address_per_second),
            total: AtomicUsize::new(0),
            book: Mutex::default(),
        })
    }

    /// A place among all; whose it is may become known later.
    pub fn enter(self: &Arc<Self>) -> Result<Place, Turned> {
        if self.total.fetch_add(1, Ordering::Relaxed) >= self.total_max {
            self.total.fetch_sub(1, Ordering::Relaxed);
            return Err(Turned::GatewayFull);
        }
        Ok(Place {
            doors: self.clone(),
            visitor: None,
        })
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// One of the connections that are allowed; dropping it frees the place.
pub struct Place {
    doors: Arc<Doors>,
    visitor: Option<Visitor>,
}

impl Place {
    /// Counts the connection as one of `address`.
    pub fn belongs_to(&mut self, address: IpAddr) -> Result<(), Turned> {
        let visitor = Visitor::of(address);
        let now = self.doors.clock.now();
        let mut book = self.doors.book();
        let visits = book.visits.entry(visitor).or_default();
        let (verdict, paid_until) = self.doors.per_address_rate.take(visits.paid_until, now);
        if verdict != Verdict::Within {
            // Not counted: others behind the same address get their share of what the rate allows.
            return Err(Turned::AddressRate);
        }
        visits.paid_until = paid_until;
        if visits.open >= self.doors.per_address_max {
            return Err(Turned::AddressFull);
        }
        visits.open += 1;
        self.visitor = Some(visitor);
        Ok(())
    }

    /// One more handshake of the address that the connection belongs to.
    pub fn handshake(&self) -> Result<Handshake<'_>, Turned> {
        let mut book = self.doors.book();
        let visits = self.visitor.and_then(|of| book.visits.get_mut(&of));
        if let Some(visits) = visits {
            if visits.handshakes >= self.doors.handshakes_per_address_max {
                return Err(Turned::AddressHandshakes);
            }
            visits.handshakes += 1;
        }
        Ok(Handshake(self))
    }
}

/// A TLS handshake under way; dropping it gives the address its share back.
pub struct Handshake<'a>(&'a Place);

impl Drop for Handshake<'_> {
    fn drop(&mut self) {
        let mut book = self.0.doors.book();
        let visits = self.0.visitor.and_then(|of| book.visits.get_mut(&of));
        if let Some(visits) = visits {
            visits.handshakes -= 1;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.doors.total.fetch_sub(1, Ordering::Relaxed);
        let Some(visitor) = self.visitor else {
            return;
        };
        let now = self.doors.clock.now();
        let mut book = self.doors.book();
        if let Some(visits) = book.visits.get_mut(&visitor) {
            visits.open -= 1;
        }
        book.forget(visitor, now, true);
        while let Some((visitor, _)) = book.leaving.pop_front_if(|(_, due)| *due <= now) {
            book.forget(visitor, now, false);
        }
    }
}

impl Book {
    fn forget(&mut self, visitor: Visitor, now: u64, later: bool) {
        match self.visits.get(&visitor) {
            Some(visits) if visits.open > 0 => {}
            Some(visits) if visits.paid_until > now => {
                if later {
                    self.leaving
                        .push_back((visitor, now + BURST_SECONDS * SECOND));
                }
            }
            _ => {
                self.visits.remove(&visitor);
            }
        }
    }
}

/// What each user has taken of their frames, in all sessions of this gateway and across reconnects. A session holds its user's; the map is
/// looked into at Hello and at the end.
pub struct UserRates {
    clock: Clock,
    rate: Rate,
    users: Mutex<Paid>,
}

#[derive(Default)]
struct Paid {
    until: HashMap<UserId, Arc<AtomicU64>>,
    /// Users without a session who had not paid yet when their last one ended, in that order. Each is due within two bursts.
    leaving: VecDeque<(UserId, u64)>,
}

impl UserRates {
    pub fn new(settings: &config::Gateway, clock: Clock) -> UserRates {
        UserRates {
            clock,
            rate: Rate::per_second(settings.user_frames_per_second),
            users: Mutex::default(),
        }
    }

    pub fn enter(&self, user: &UserId) -> Arc<AtomicU64> {
        self.paid().until.entry(user.clone()).or_default().clone()
    }

    pub fn take(&self, user: &AtomicU64, now: u64) -> Verdict {
        let mut verdict = Verdict::FarOver;
        let _ = user.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |until| {
            let (said, until) = self.rate.take(until, now);
            verdict = said;
            Some(until)
        });
        verdict
    }

    /// A session of `user` has ended, and gives back what it held.
    pub fn leave(&self, user: &UserId, held: Arc<AtomicU64>) {
        let mut paid = self.paid();
        drop(held);
        let now = self.clock.now();
        paid.forget(user, now, true);
        while let Some((user, _)) = paid.leaving.pop_front_if(|(_, due)| *due <= now) {
            paid.forget(&user, now, false);
        }
    }

    fn paid(&self) -> MutexGuard<'_, Paid> {
        self.users
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Paid {
    fn forget(&mut self, user: &UserId, now: u64, later: bool) {
        let Some(until) = self.until.get_mut(user) else {
            return;
        };
        let Some(until) = Arc::get_mut(until) else {
            return; // another session of the user
        };
        let until = *until.get_mut();
        if until <= now {
            self.until.remove(user);
        } else if later {
            self.leaving
                .push_back((user.clone(), now + 2 * BURST_SECONDS * SECOND));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_rate_allows_its_burst_then_refuses_another_then_sends_away() {
        let rate = Rate::per_second(10); // one in 100 ms, 20 at once
        let (mut until, mut said) = (0, vec![]);
        for _ in 0..41 {
            let verdict;
            (verdict, until) = rate.take(until, 5 * SECOND);
            said.push(verdict);
        }
        assert!(said[..20].iter().all(|verdict| *verdict == Verdict::Within));
        assert!(said[20..40].iter().all(|verdict| *verdict == Verdict::Over));
        assert_eq!(said[40], Verdict::FarOver);
        // Four seconds are paid for: after two of them the next one is welcome again.
        assert_eq!(rate.wait(until, 5 * SECOND), 2 * SECOND + 100 * MS);
        assert_eq!(rate.take(until, 7 * SECOND + 50 * MS).0, Verdict::Over);
        assert_eq!(rate.take(until, 7 * SECOND + 100 * MS).0, Verdict::Within);
        assert_eq!(rate.wait(until, 60 * SECOND), 0);
    }

    fn doors(flags: &[&str]) -> Arc<Doors> {
        let sources = config::Sources::default().flags(flags.iter().copied());
        let (settings, _) = config::Settings::read(sources).unwrap();
        Doors::new(&settings.gateway, Clock::start())
    }

    fn let_in(doors: &Arc<Doors>, address: &str) -> Result<Place, Turned> {
        let mut place = doors.enter()?;
        place.belongs_to(address.parse().unwrap())?;
        Ok(place)
    }

    #[test]
    fn places_are_counted_in_total_and_per_address_and_freed() {
        let doors = doors(&[
            "gateway.connections_max=4",
            "gateway.connections_per_address_max=2",
        ]);
        let first = let_in(&doors, "192.0.2.1").unwrap();
        // The same address as seen by an IPv6 socket.
        let _second = let_in(&doors, "::ffff:192.0.2.1").unwrap();
        assert_eq!(let_in(&doors, "192.0.2.1").err(), Some(Turned::AddressFull));
        // One customer's network is one visitor; its neighbour is another.
        let _third = let_in(&doors, "2001:db8:0:1::1").unwrap();
        let _fourth = let_in(&doors, "2001:db8:0:1:ffff::2").unwrap();
        assert_eq!(
            let_in(&doors, "2001:db8:0:2::1").err(),
            Some(Turned::GatewayFull)
        );
        drop(first);
        assert_eq!(
            let_in(&doors, "2001:db8:0:1::3").err(),
            Some(Turned::AddressFull)
        );
        let _fifth = let_in(&doors, "192.0.2.1").unwrap();
        assert_eq!(doors.enter().err(), Some(Turned::GatewayFull));
    }

    #[test]
    fn handshakes_are_counted_per_address_and_freed() {
        let doors = doors(&["gateway.handshakes_per_address_max=1"]);
        let (first, second) = (
            let_in(&doors, "2001:db8:0:1::1"),
            let_in(&doors, "2001:db8:0:1::2"),
        );
        let (first, second) = (first.unwrap(), second.unwrap());
        let under_way = first.handshake().unwrap();
        assert_eq!(second.handshake().err(), Some(Turned::AddressHandshakes));
        let neighbour = let_in(&doors, "2001:db8:0:2::1").unwrap();
        assert!(neighbour.handshake().is_ok());
        drop(under_way);
        assert!(second.handshake().is_ok());
        assert!(second.handshake().is_ok(), "the last one is over");
    }

    #[test]
    fn an_address_that_connects_too_often_is_turned_away_and_forgotten_when_it_has_paid() {
        let doors = doors(&["gateway.connects_per_address_per_second=3"]);
        let mut let_in_at_once = 0;
        while let Ok(place) = let_in(&doors, "192.0.2.1") {
            drop(place);
            let_in_at_once += 1;
        }
        assert_eq!(let_in_at_once, 6);
        assert_eq!(let_in(&doors, "192.0.2.1").err(), Some(Turned::AddressRate));
        assert!(let_in(&doors, "192.0.2.2").is_ok());
        assert_eq!(doors.book().visits.len(), 2);
        doors
            .book()
            .visits
            .values_mut()
            .for_each(|visits| visits.paid_until = 0);
        doors
            .book()
            .leaving
            .iter_mut()
            .for_each(|(_, due)| *due = 0);
        drop(let_in(&doors, "192.0.2.3").unwrap());
        let book = doors.book();
        assert_eq!((book.visits.len(), book.leaving.len()), (1, 1));
    }

    #[test]
    fn a_user_pays_across_sessions_and_is_forgotten_after_the_last() {
        let sources = config::Sources::default().flags(["gateway.user_frames_per_second=1"]);
        let (settings, _) = config::Settings::read(sources).unwrap();
        let rates = UserRates::new(&settings.gateway, Clock::start());
        let anna = UserId::new("anna").unwrap();
        let (phone, tablet) = (rates.enter(&anna), rates.enter(&anna));
        assert_eq!(rates.take(&phone, 0), Verdict::Within);
        assert_eq!(rates.take(&tablet, 0), Verdict::Within);
        assert_eq!(rates.take(&phone, 0), Verdict::Over);
        rates.leave(&anna, phone);
        rates.leave(&anna, tablet);
        // She comes back at once, and has not paid yet.
        let again = rates.enter(&anna);
        assert_eq!(rates.take(&again, 0), Verdict::Over);
        again.store(0, Ordering::Relaxed);
        rates.leave(&anna, again);
        assert!(rates.paid().until.is_empty());
        assert!(rates.paid().leaving.len() <= 1);
    }
}
