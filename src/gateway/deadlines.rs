//! When to look at which session again: a wheel of ticks.
//!
//! A timer for each session would cost memory and a wake-up; a pass over all of them would stop the worker for a quarter of a second when it has a
//! million. Here a session is looked at when it is due, which for a silent one is once in `idle_timeout`.

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

/// Ticks in one turn. What is due later is looked at after one turn, and put further.
const SLOTS: usize = 4_096;

pub struct Deadlines {
    started: Instant,
    tick: Duration,
    /// Ids of sessions. About 8 bytes a session, and 24 a slot.
    slots: RefCell<Vec<Vec<u64>>>,
    /// Ticks before this one have been handed out.
    next: Cell<u64>,
}

impl Deadlines {
    pub fn new(tick: Duration) -> Deadlines {
        Deadlines {
            started: Instant::now(),
            tick,
            slots: RefCell::new(vec![vec![]; SLOTS]),
            next: Cell::new(0),
        }
    }

    pub fn tick(&self) -> Duration {
        self.tick
    }

    /// Has `session` handed out at `due`, or at most a tick later; earlier when that is more than a turn away. Returns the tick, which tells this
    /// promise from an earlier one for the same session.
    pub fn look_at(&self, session: u64, due: Instant) -> u64 {
        let tick = self.tick_of(due);
        self.slots.borrow_mut()[tick as usize % SLOTS].push(session);
        tick
    }

    /// The tick at which `due` is handed out.
    pub fn tick_of(&self, due: Instant) -> u64 {
        let wait = due.saturating_duration_since(self.started);
        let tick = wait.as_nanos().div_ceil(self.tick.as_nanos()) as u64;
        tick.clamp(self.next.get(), self.next.get() + SLOTS as u64 - 1)
    }

    /// Calls `look` with every session and tick that is due at `now`.
    pub fn due(&self, now: Instant, mut look: impl FnMut(u64, u64)) {
        let until = (now - self.started).as_nanos() / self.tick.as_nanos();
        while u128::from(self.next.get()) <= until {
            let tick = self.next.get();
            self.next.set(tick + 1);
            let sessions = std::mem::take(&mut self.slots.borrow_mut()[tick as usize % SLOTS]);
            sessions.into_iter().for_each(|session| look(session, tick));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_session_is_handed_out_once_when_it_is_due_and_never_early_within_a_turn() {
        let tick = Duration::from_millis(10);
        let wheel = Deadlines::new(tick);
        let start = wheel.started;
        let at = |ms: u64| start + Duration::from_millis(ms);
        let dues = [(1, 0), (2, 5), (3, 10), (4, 11), (5, 400), (6, 40_000)];
        for (session, ms) in dues {
            wheel.look_at(session, at(ms));
        }
        let mut seen = vec![];
        for ms in (0..=41_000).step_by(7) {
            wheel.due(at(ms), |session, _| seen.push((session, ms)));
        }
        assert_eq!(
            seen.iter().map(|(session, _)| *session).collect::<Vec<_>>(),
            [1, 2, 3, 4, 5, 6]
        );
        for ((_, due), (_, seen)) in dues.iter().zip(&seen) {
            assert!(
                (*due..=due + 17).contains(seen),
                "due at {due}, seen at {seen}"
            );
        }
    }

    #[test]
    fn what_is_more_than_a_turn_away_comes_early_and_what_is_late_comes_at_once() {
        let tick = Duration::from_millis(1);
        let wheel = Deadlines::new(tick);
        let far = wheel.look_at(1, wheel.started + Duration::from_secs(3_600));
        assert_eq!(far, SLOTS as u64 - 1);
        let mut seen = vec![];
        wheel.due(wheel.started + Duration::from_secs(5), |session, tick| {
            seen.push((session, tick))
        });
        assert_eq!(seen, [(1, far)]);
        let late = wheel.look_at(2, wheel.started);
        wheel.due(wheel.started + Duration::from_secs(6), |session, tick| {
            seen.push((session, tick))
        });
        assert_eq!(seen[1], (2, late));
    }
}
