//! The knee: the highest rate at which the latency still keeps its bound.

use serde::Serialize;

/// From one trial to the next while all goes well.
const STEP_UP: f64 = 1.5;

/// What came of offering one rate for a while.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Trial {
    /// Offered, a second.
    pub rate: f64,
    /// Answered, a second.
    pub reached: f64,
    pub p50_ms: f64,
    pub p99_ms: f64,
    /// Arrivals that found no connection free.
    pub dropped: u64,
    pub unanswered: u64,
    /// Sent late, because the generator could not keep up.
    pub late: u64,
    pub good: bool,
}

impl Trial {
    /// Good is: the bound is kept, nothing was dropped, and everything was answered. Who lags behind breaks the bound, since a latency counts from the
    /// planned instant.
    pub fn judge(mut self, bound_ms: f64) -> Trial {
        self.good = self.p99_ms <= bound_ms && self.dropped == 0 && self.unanswered == 0;
        self
    }
}

/// Goes up from `first` until a trial fails or `highest` is reached, then halves the gap between the best and the worst `halvings` times.
pub struct Search {
    highest: f64,
    halvings_left: u32,
    good: f64,
    bad: Option<f64>,
    next: Option<f64>,
}

impl Search {
    pub fn new(first: f64, highest: f64, halvings: u32) -> Search {
        Search {
            highest,
            halvings_left: halvings,
            good: 0.0,
            bad: None,
            next: Some(first.min(highest)),
        }
    }

    /// The rate to try; `None` when the search is over.
    pub fn next(&self) -> Option<f64> {
        self.next
    }

    /// What came of trying it.
    pub fn tried(&mut self, trial: Trial) {
        if trial.good {
            self.good = self.good.max(trial.rate);
        } else {
            self.bad = Some(trial.rate);
        }
        self.next = match self.bad {
            None if self.good >= self.highest => None,
            None => Some((self.good * STEP_UP).min(self.highest)),
            Some(_) if self.halvings_left == 0 => None,
            Some(bad) => {
                self.halvings_left -= 1;
                Some((self.good + bad) / 2.0)
            }
        };
    }

    /// The highest good rate so far; 0 if there is none.
    pub fn knee(&self) -> f64 {
        self.good
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn knee_at(limit: f64, highest: f64) -> (f64, usize) {
        let mut search = Search::new(100.0, highest, 5);
        let mut trials = 0;
        while let Some(rate) = search.next() {
            let trial = Trial {
                rate,
                reached: rate.min(limit),
                p50_ms: 1.0,
                p99_ms: if rate <= limit { 2.0 } else { 80.0 },
                dropped: 0,
                unanswered: 0,
                late: 0,
                good: false,
            };
            search.tried(trial.judge(10.0));
            trials += 1;
        }
        (search.knee(), trials)
    }

    #[test]
    fn the_knee_is_found_between_the_last_good_and_the_first_bad_rate() {
        let (knee, trials) = knee_at(1_000.0, 1e9);
        assert!((950.0..=1_000.0).contains(&knee), "{knee}");
        // 100 · 1.5^6 = 1139 is the first bad one, the seventh trial.
        assert_eq!(trials, 7 + 5);
    }

    #[test]
    fn a_search_ends_at_the_highest_rate_and_at_the_bottom() {
        assert_eq!(knee_at(1e9, 200.0), (200.0, 3));
        let (knee, trials) = knee_at(1.0, 1e9);
        assert_eq!((knee, trials), (0.0, 6));
    }

    #[test]
    fn a_trial_that_drops_or_lags_is_not_good() {
        let good = Trial {
            rate: 100.0,
            reached: 99.0,
            p50_ms: 1.0,
            p99_ms: 5.0,
            dropped: 0,
            unanswered: 0,
            late: 0,
            good: false,
        };
        assert!(good.judge(10.0).good);
        assert!(!good.judge(4.0).good);
        assert!(!Trial { dropped: 1, ..good }.judge(10.0).good);
        assert!(
            !Trial {
                unanswered: 1,
                ..good
            }
            .judge(10.0)
            .good
        );
    }
}
