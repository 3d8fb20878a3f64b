//! Grabs that this process has answered, by rain and outcome, and how long they took: for the live numbers of a rain. Metrics have no label for a rain,
//! since rains are many.
//!
//! On the path of every grab, so it is one load and one addition; a latency is noted once a batch. Room for [`RAINS_MAX`] rains: a younger one takes the place of an older one
//! whose number has the same remainder, so the last 64 rains are always there.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::rain::RainId;
use crate::wire::Outcome;

pub const RAINS_MAX: usize = 64;
/// Above every outcome's number.
const OUTCOMES_MAX: usize = 64;
/// Four steps to each doubling of a latency, up to two minutes: a quantile is at most a quarter too high.
const STEPS: usize = 4 * 28;

struct Place {
    rain: AtomicU32,
    grabs: [AtomicU64; OUTCOMES_MAX],
    took: [AtomicU64; STEPS],
}

/// 88 KiB.
static PLACES: [Place; RAINS_MAX] = [const {
    Place {
        rain: AtomicU32::new(0),
        grabs: [const { AtomicU64::new(0) }; OUTCOMES_MAX],
        took: [const { AtomicU64::new(0) }; STEPS],
    }
}; RAINS_MAX];

/// Gives a rain its place, unless a younger one has it. Only for rains that exist: a client may name any number.
pub fn make_room(rain: RainId) {
    let place = place(rain.get());
    let taken = place
        .rain
        .try_update(Ordering::Relaxed, Ordering::Relaxed, |there| {
            (there < rain.get()).then_some(rain.get())
        });
    // A grab that is counted at this very moment may fall to the wrong rain: these numbers are for the eye.
    if taken.is_ok() {
        place
            .grabs
            .iter()
            .chain(&place.took)
            .for_each(|grabs| grabs.store(0, Ordering::Relaxed));
    }
}

/// Counts a grab, if its rain has a place.
pub fn count(rain: u32, outcome: Outcome) {
    let place = place(rain);
    if place.rain.load(Ordering::Relaxed) == rain {
        place.grabs[outcome as usize].fetch_add(1, Ordering::Relaxed);
    }
}

/// Notes a batch that a node has answered: its grabs took at most so long.
pub fn took(rain: u32, longest: Duration, grabs: usize) {
    let place = place(rain);
    if place.rain.load(Ordering::Relaxed) == rain {
        place.took[step(longest)].fetch_add(grabs as u64, Ordering::Relaxed);
    }
}

/// Microseconds below 4 have a step each, then every doubling has four.
fn step(took: Duration) -> usize {
    let micros = took.as_micros().min(u128::from(u64::MAX)) as u64;
    if micros < 4 {
        return micros as usize;
    }
    let doubling = micros.ilog2() as usize;
    let quarter = (micros >> (doubling - 2)) & 3;
    (4 * (doubling - 1) + quarter as usize).min(STEPS - 1)
}

/// The first latency above those of a step.
fn end_of(step: usize) -> Duration {
    let (doubling, quarter) = (step / 4 + 1, step as u64 % 4);
    match step {
        0..4 => Duration::from_micros(step as u64 + 1),
        _ => Duration::from_micros((5 + quarter) << (doubling - 2)),
    }
}

/// How many grabs of a rain took how long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Latencies([u64; STEPS]);

impl Default for Latencies {
    fn default() -> Latencies {
        Latencies([0; STEPS])
    }
}

impl Latencies {
    /// Those of a rain since this process has known it.
    pub fn of(rain: RainId) -> Latencies {
        let place = place(rain.get());
        if place.rain.load(Ordering::Relaxed) != rain.get() {
            return Latencies::default();
        }
        Latencies(std::array::from_fn(|step| {
            place.took[step].load(Ordering::Relaxed)
        }))
    }

    /// Those that came after `before`.
    pub fn since(&self, before: &Latencies) -> Latencies {
        Latencies(std::array::from_fn(|step| {
            self.0[step].saturating_sub(before.0[step])
        }))
    }

    /// So long, or less, took this part of them; `None` if there are none.
    pub fn quantile(&self, part: f64) -> Option<Duration> {
        let all: u64 = self.0.iter().sum();
        let wanted = (all as f64 * part).ceil() as u64;
        let mut seen = 0;
        let reached = |grabs: &u64| {
            seen += grabs;
            seen >= wanted
        };
        let step = self.0.iter().position(reached)?;
        (all > 0).then(|| end_of(step))
    }
}

fn place(rain: u32) -> &'static Place {
    &PLACES[rain as usize % RAINS_MAX]
}

/// Grabs of a rain since this process has known it, by outcome, those that were given.
pub fn of(rain: RainId) -> Vec<(Outcome, u64)> {
    let place = place(rain.get());
    if place.rain.load(Ordering::Relaxed) != rain.get() {
        return vec![];
    }
    let counted = (0..).zip(&place.grabs).filter_map(|(code, grabs)| {
        let grabs = grabs.load(Ordering::Relaxed);
        let outcome = Outcome::try_from(code).ok()?;
        (grabs > 0).then_some((outcome, grabs))
    });
    counted.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One test, since the table is the process's own.
    #[test]
    fn grabs_are_counted_by_rain_and_a_younger_rain_takes_the_place() {
        let rain = |id| RainId::new(id).unwrap();
        let (older, younger) = (1_000_001, 1_000_001 + RAINS_MAX as u32);
        count(older, Outcome::Won);
        assert_eq!(of(rain(older)), [], "nobody has said that it exists");
        make_room(rain(older));
        count(older, Outcome::Won);
        count(older, Outcome::Missed);
        count(older, Outcome::Missed);
        make_room(rain(older));
        assert_eq!(of(rain(older)), [(Outcome::Won, 1), (Outcome::Missed, 2)]);
        make_room(rain(younger));
        count(younger, Outcome::Won);
        make_room(rain(older));
        count(older, Outcome::Won);
        assert_eq!(of(rain(older)), []);
        assert_eq!(of(rain(younger)), [(Outcome::Won, 1)], "untouched");
    }

    #[test]
    fn a_quantile_is_never_too_low_and_at_most_a_quarter_too_high() {
        for micros in (1..4_000).chain((4_000..100_000_000).step_by(9_973)) {
            let took = Duration::from_micros(micros);
            let end = end_of(step(took));
            assert!(end > took, "{took:?} {end:?}");
            assert!(end <= Duration::from_micros(micros + micros / 4 + 1));
        }
        let rain = RainId::new(2_000_003).unwrap();
        make_room(rain);
        assert_eq!(Latencies::of(rain).quantile(0.5), None);
        took(rain.get(), Duration::from_millis(1), 98);
        took(rain.get(), Duration::from_millis(40), 2);
        let before = Latencies::of(rain);
        let ms = |part| before.quantile(part).unwrap().as_secs_f64() * 1e3;
        assert!((1.0..1.25).contains(&ms(0.5)) && (1.0..1.25).contains(&ms(0.98)));
        assert!((40.0..50.0).contains(&ms(0.99)));
        took(rain.get(), Duration::from_secs(3), 1);
        let since = Latencies::of(rain).since(&before);
        assert!(since.quantile(0.01).unwrap() > Duration::from_secs(3));
    }
}
