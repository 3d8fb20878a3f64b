//! Those who tap before the opening, too often: they cool down, also past the opening.
//!
//! Known by their users and not by their sessions: a new connection cools nobody. Only those who tap early cost memory here, and a grab only looks at its
//! session. An edge session is trusted to look after its users itself.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::rains::RainView;
use super::session::Session;
use super::worker::Worker;
use crate::clock::now_ms;
use crate::config;
use crate::rain::UserId;

const SHARDS: usize = 16;
/// Between two sweeps.
const SWEEP_MS: u64 = 1_000;
/// Users who are remembered; those beyond are not counted. About 100 bytes each.
const USERS_MAX: usize = 262_144;

struct Record {
    /// Early taps since `since`.
    taps: u32,
    since: Instant,
    cool_until: Option<Instant>,
}

pub struct Early {
    shards: [Mutex<HashMap<UserId, Record>>; SHARDS],
    hasher: RandomState,
    users: AtomicUsize,
    /// When the next sweep is worth its while, ms since `started`.
    sweep_at_ms: AtomicU64,
    started: Instant,
    taps_max: u32,
    window: Duration,
    cool_down: Duration,
}

impl Early {
    pub fn new(settings: &config::Gateway) -> Early {
        Early {
            shards: std::array::from_fn(|_| Mutex::default()),
            hasher: RandomState::new(),
            users: AtomicUsize::new(0),
            sweep_at_ms: AtomicU64::new(0),
            started: Instant::now(),
            taps_max: settings.early_taps_max,
            window: settings.early_window,
            cool_down: settings.early_cool_down,
        }
    }

    fn shard(&self, user: &UserId) -> &Mutex<HashMap<UserId, Record>> {
        &self.shards[self.hasher.hash_one(user) as usize % SHARDS]
    }

    /// One more early tap. Until when the user must cool down, if it was one too many: from then on each one begins the time again.
    fn tapped(&self, user: &UserId, now: Instant) -> Option<Instant> {
        let mut shard = self.shard(user).lock().expect("no panic under this lock");
        if !shard.contains_key(user) {
            if self.users.load(Ordering::Relaxed) >= USERS_MAX {
                return None;
            }
            self.users.fetch_add(1, Ordering::Relaxed);
        }
        let record = shard.entry(user.clone()).or_insert(Record {
            taps: 0,
            since: now,
            cool_until: None,
        });
        if now - record.since > self.window {
            (record.taps, record.since) = (0, now);
        }
        record.taps += 1;
        if record.taps > self.taps_max {
            record.cool_until = Some(now + self.cool_down);
        }
        record.cool_until.filter(|until| *until > now)
    }

    /// Until when a user who has just come must cool down.
    fn cooling(&self, user: &UserId) -> Option<Instant> {
        if self.users.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let shard = self.shard(user).lock().expect("no panic under this lock");
        shard.get(user)?.cool_until
    }

    /// Forgets those whose time is over.
    pub fn sweep(&self, now: Instant) {
        if self.users.load(Ordering::Relaxed) == 0 {
            return;
        }
        // Workers ask often, and one of them a second is enough.
        let now_ms = now.saturating_duration_since(self.started).as_millis() as u64;
        let due = self.sweep_at_ms.load(Ordering::Relaxed);
        let next = now_ms + SWEEP_MS;
        let order = Ordering::Relaxed;
        if now_ms < due
            || (self.sweep_at_ms)
                .compare_exchange(due, next, order, order)
                .is_err()
        {
            return;
        }
        for shard in &self.shards {
            let mut shard = shard.lock().expect("no panic under this lock");
            let before = shard.len();
            shard.retain(|_, record| {
                now - record.since <= self.window
                    || record.cool_until.is_some_and(|until| until > now)
            });
            let gone = before - shard.len();
            self.users.fetch_sub(gone, Ordering::Relaxed);
        }
    }
}

impl Worker {
    /// The session tapped before the opening. A tap that only the node's clock calls early is nobody's fault.
    pub(super) fn tapped_early(&self, session: &Session, rain: &RainView) {
        if (rain.snapshot.opens_at_ms).is_some_and(|opens| opens <= now_ms()) {
            return;
        }
        let Some(user) = session.user().filter(|_| session.edge().is_none()) else {
            return;
        };
        if let Some(until) = self.early.tapped(user, Instant::now())
            && session.cool_until.replace(Some(until)).is_none()
        {
            crate::metrics::get().cooled_down.increment(1);
        }
    }

    /// The user has come with a new session.
    pub(super) fn still_cooling(&self, session: &Session, user: &UserId) {
        session.cool_until.set(self.early.cooling(user));
    }

    /// How long the session must cool down yet, ms; 0: not at all. Another session of the user may have earned it.
    pub(super) fn cooling_ms(&self, session: &Session) -> u32 {
        let of_user = || {
            let user = session.user().filter(|_| session.edge().is_none())?;
            self.early.cooling(user)
        };
        let Some(until) = session.cool_until.get().or_else(of_user) else {
            return 0;
        };
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            session.cool_until.set(None);
            return 0;
        }
        left.as_millis() as u32 + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_many_early_taps_in_the_window_cool_down_and_time_heals() {
        let (settings, _) = config::Settings::read(config::Sources::default().flags([
            "gateway.early_taps_max=2",
            "gateway.early_window_ms=1000",
            "gateway.early_cool_down_ms=3000",
        ]))
        .unwrap();
        let early = Early::new(&settings.gateway);
        let (anna, ben) = (UserId::new("anna").unwrap(), UserId::new("ben").unwrap());
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        assert_eq!(early.tapped(&anna, at(0)), None);
        assert_eq!(early.tapped(&anna, at(500)), None);
        assert_eq!(early.tapped(&anna, at(900)), Some(at(3_900)));
        assert_eq!(
            early.cooling(&anna),
            Some(at(3_900)),
            "on another session too"
        );
        assert_eq!(early.cooling(&ben), None);
        // Slow tapping is nobody's fault.
        for n in 0..10 {
            assert_eq!(early.tapped(&ben, at(n * 600)), None, "{n}");
        }
        early.sweep(at(10_000));
        assert_eq!(early.users.load(Ordering::Relaxed), 0);
    }
}
