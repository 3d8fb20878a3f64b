//! Grabs that this process has answered, by rain and outcome: for the live numbers of a rain. Metrics have no label for a rain, since rains are many.
//!
//! On the path of every grab, so it is one load and one addition. Room for [`RAINS_MAX`] rains: a younger one takes the place of an older one
//! whose number has the same remainder, so the last 64 rains are always there.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::rain::RainId;
use crate::wire::Outcome;

pub const RAINS_MAX: usize = 64;
/// Above every outcome's number.
const OUTCOMES_MAX: usize = 64;

struct Place {
    rain: AtomicU32,
    grabs: [AtomicU64; OUTCOMES_MAX],
}

/// 32 KiB.
static PLACES: [Place; RAINS_MAX] = [const {
    Place {
        rain: AtomicU32::new(0),
        grabs: [const { AtomicU64::new(0) }; OUTCOMES_MAX],
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
}
