//! The knee: the highest rate at which the latency still keeps its bound, again and again.

use std::time::Duration;

use hongbao::paint::thousands;
use hongbao::wire::Outcome;
use serde::Serialize;

use crate::swarm::tally::Tally;

/// From one trial to the next while all goes well.
pub const STEP_UP: f64 = 1.5;
/// A generator that sends more than this share of its requests late has a part in the p99.
const LATE_SHARE_MAX: f64 = 0.01;

/// What came of offering one rate for a while.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Trial {
    /// Offered, a second.
    pub rate: f64,
    /// Answered, a second, until the last answer.
    pub reached: f64,
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub planned: u64,
    /// Arrivals that found no connection free.
    pub dropped: u64,
    pub unanswered: u64,
    /// Answered, and not with WON.
    pub refused: u64,
    /// Sent late, because the generator could not keep up.
    pub late: u64,
    pub good: bool,
    /// What was wrong.
    pub why: Vec<String>,
}

impl Trial {
    /// What came of offering `rate` of grabs, with a packet for each, for `length`; to be judged.
    pub fn of(rate: f64, length: Duration, tally: &Tally) -> Trial {
        // What is answered after the plan's end takes time too: a rate that is not kept up with is not reached.
        let seconds = length.as_secs_f64().max(tally.seconds_to_last_answer());
        Trial {
            rate,
            reached: tally.answered as f64 / seconds,
            p50_ms: tally.quantile_ms(0.5),
            p99_ms: tally.quantile_ms(0.99),
            planned: tally.sent + tally.dropped,
            dropped: tally.dropped,
            unanswered: tally.unanswered,
            refused: tally.answered - tally.outcome(Outcome::Won as i32),
            late: tally.late,
            good: false,
            why: vec![],
        }
    }

    /// Good is: the bound is kept, nothing was dropped, everything was answered, and every grab won: to say no is quick and no feat. Who lags behind breaks the bound, since a latency counts from the
    /// planned instant; that of the generator too, and then that is said.
    pub fn judge(mut self, bound_ms: f64) -> Trial {
        let mut why = vec![];
        if self.p99_ms > bound_ms {
            why.push(format!("p99 above {bound_ms} ms"));
        }
        if self.dropped > 0 {
            why.push(format!("{} dropped", self.dropped));
        }
        if self.unanswered > 0 {
            why.push(format!("{} unanswered", self.unanswered));
        }
        if self.refused > 0 {
            why.push(format!("{} did not win", self.refused));
        }
        let late = self.late as f64 / self.planned.max(1) as f64;
        self.good = why.is_empty();
        if !self.good && late > LATE_SHARE_MAX {
            let percent = late * 100.0;
            why.push(format!(
                "{percent:.1} % sent late: the generator is at its end"
            ));
        }
        self.why = why;
        self
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    /// Up from the first rate, and halving the gap. A rate that failed is tried once more: a hiccup is no knee.
    Searching {
        failed_once: bool,
    },
    /// So many times more must the best rate hold.
    Confirming {
        left: u32,
    },
    Over,
}

/// Goes up from `first` until a rate fails twice or `highest` is reached, halves the gap between the best and the worst `halvings` times, and then has
/// the best hold `confirm` times more; if it does not, the next lower one.
pub struct Search {
    highest: f64,
    halvings_left: u32,
    confirm: u32,
    /// Rates that were good, rising.
    good: Vec<f64>,
    bad: Option<f64>,
    next: f64,
    phase: Phase,
}

impl Search {
    pub fn new(first: f64, highest: f64, halvings: u32, confirm: u32) -> Search {
        Search {
            highest,
            halvings_left: halvings,
            confirm,
            good: vec![],
            bad: None,
            next: first.min(highest),
            phase: Phase::Searching { failed_once: false },
        }
    }

    /// The rate to try; `None` when the search is over.
    pub fn next(&self) -> Option<f64> {
        (self.phase != Phase::Over).then_some(self.next)
    }

    /// What the trial of the next rate is for, for a person.
    pub fn purpose(&self) -> &'static str {
        match self.phase {
            Phase::Searching { failed_once: true } => "once more",
            Phase::Searching { failed_once: false } => "search",
            Phase::Confirming { .. } | Phase::Over => "confirm",
        }
    }

    /// What came of trying it.
    pub fn tried(&mut self, good: bool) {
        match (self.phase, good) {
            (Phase::Searching { failed_once: false }, false) => {
                self.phase = Phase::Searching { failed_once: true };
            }
            (Phase::Searching { .. }, _) => {
                self.phase = Phase::Searching { failed_once: false };
                match good {
                    true => self.good.push(self.next),
                    false => self.bad = Some(self.next),
                }
                self.search_on();
            }
            (Phase::Confirming { left }, true) => {
                self.phase = match left {
                    0 | 1 => Phase::Over,
                    left => Phase::Confirming { left: left - 1 },
                };
            }
            (Phase::Confirming { .. }, false) => {
                self.bad = self.good.pop();
                self.confirm_best();
            }
            (Phase::Over, _) => {}
        }
    }

    fn search_on(&mut self) {
        let best = self.knee();
        match self.bad {
            None if best >= self.highest => self.confirm_best(),
            None => self.next = (best * STEP_UP).min(self.highest),
            Some(_) if self.halvings_left == 0 => self.confirm_best(),
            Some(bad) => {
                self.halvings_left -= 1;
                self.next = (best + bad) / 2.0;
            }
        }
    }

    fn confirm_best(&mut self) {
        self.phase = match (self.good.last(), self.confirm) {
            (None, _) | (_, 0) => Phase::Over,
            (Some(best), left) => {
                self.next = *best;
                Phase::Confirming { left }
            }
        };
    }

    /// The highest good rate so far; 0 if there is none.
    pub fn knee(&self) -> f64 {
        self.good.last().copied().unwrap_or(0.0)
    }

    /// The knee, when the search is over: until then the best rate may be one that does not hold again.
    pub fn found(&self) -> Option<f64> {
        (self.phase == Phase::Over).then(|| self.knee())
    }

    /// The lowest rate above the knee that failed; `None` when even the highest held.
    pub fn limit(&self) -> Option<f64> {
        self.bad
    }
}

/// Why the search went no further.
pub fn stopped(search: &Search, trials: &[Trial], highest: f64) -> String {
    if search.found().is_none() {
        let trials = trials.len();
        return format!("it was interrupted after {trials} trials, before there was a knee");
    }
    let Some(limit) = search.limit() else {
        let highest = thousands(highest as u64);
        return format!("--to {highest} a second was reached: the knee is there or higher");
    };
    let failed = trials
        .iter()
        .rev()
        .find(|trial| trial.rate == limit && !trial.good);
    let why = failed.map_or(String::new(), |trial| trial.why.join(", "));
    format!("{} a second failed: {why}", thousands(limit.round() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trial(rate: f64) -> Trial {
        Trial {
            rate,
            reached: rate,
            p50_ms: 1.0,
            p99_ms: 2.0,
            planned: 1_000,
            dropped: 0,
            unanswered: 0,
            refused: 0,
            late: 0,
            good: false,
            why: vec![],
        }
    }

    /// The knee and the rates that were tried, when rates are as good as `holds` says at each trial.
    fn search(
        highest: f64,
        confirm: u32,
        mut holds: impl FnMut(usize, f64) -> bool,
    ) -> (f64, Vec<f64>) {
        let mut search = Search::new(100.0, highest, 5, confirm);
        let mut rates = vec![];
        while let Some(rate) = search.next() {
            search.tried(holds(rates.len(), rate));
            rates.push(rate);
        }
        (search.knee(), rates)
    }

    #[test]
    fn the_knee_is_found_between_the_last_good_and_the_first_bad_rate() {
        let (knee, rates) = search(1e9, 2, |_, rate| rate <= 1_000.0);
        assert!((950.0..=1_000.0).contains(&knee), "{knee}");
        // 100 · 1.5^6 = 1139 is the first bad one, the seventh rate. Every bad rate is tried twice, and the knee is confirmed twice.
        let bad = rates.iter().filter(|rate| **rate > 1_000.0).count();
        assert_eq!(bad % 2, 0);
        assert_eq!(rates.len(), 7 + 5 + bad / 2 + 2);
        assert_eq!(rates[rates.len() - 2..], [knee, knee]);
    }

    #[test]
    fn a_search_ends_at_the_highest_rate_and_at_the_bottom() {
        let (knee, rates) = search(200.0, 1, |_, _| true);
        assert_eq!((knee, rates), (200.0, vec![100.0, 150.0, 200.0, 200.0]));
        let (knee, rates) = search(1e9, 2, |_, rate| rate <= 1.0);
        assert_eq!((knee, rates.len()), (0.0, 12), "nothing to confirm");
    }

    #[test]
    fn a_hiccup_is_no_knee() {
        let (knee, rates) = search(200.0, 0, |trial, _| trial != 1);
        assert_eq!(knee, 200.0);
        assert_eq!(rates, [100.0, 150.0, 150.0, 200.0]);
    }

    #[test]
    fn a_knee_that_holds_only_once_is_given_up_for_the_next_lower_rate() {
        // 100, 150 and 200 hold once; 200 does not hold again.
        let (knee, rates) = search(200.0, 2, |trial, _| trial != 3);
        assert_eq!(knee, 150.0);
        assert_eq!(rates, [100.0, 150.0, 200.0, 200.0, 150.0, 150.0]);
    }

    #[test]
    fn a_trial_that_drops_lags_or_is_late_is_not_good_and_says_why() {
        let why = |trial: Trial| trial.judge(10.0).why.join(", ");
        assert!(trial(100.0).judge(10.0).good);
        let mut slow = trial(100.0);
        slow.p99_ms = 10.5;
        assert_eq!(why(slow), "p99 above 10 ms");
        let mut dropping = trial(100.0);
        (dropping.dropped, dropping.unanswered) = (3, 2);
        assert_eq!(why(dropping), "3 dropped, 2 unanswered");
        let mut refusing = trial(100.0);
        refusing.refused = 7;
        assert_eq!(why(refusing), "7 did not win");
        let mut late = trial(100.0);
        late.late = 50;
        let kept = late.clone().judge(10.0);
        assert!(kept.good, "the bound is kept even so");
        late.p99_ms = 12.0;
        let wanted = "p99 above 10 ms, 5.0 % sent late: the generator is at its end";
        assert_eq!(why(late), wanted);
    }

    #[test]
    fn a_rate_counts_as_reached_over_the_time_that_its_answers_took() {
        let second = 1_000_000_000;
        let mut tally = Tally::new(5 * second);
        for (at, outcome) in [(6, Outcome::Won), (7, Outcome::Busy), (9, Outcome::Won)] {
            tally.record(5 * second, at * second, outcome as u8);
        }
        let trial = Trial::of(3.0, Duration::from_secs(1), &tally);
        assert_eq!((trial.reached, trial.refused), (0.75, 1));
        let trial = Trial::of(0.1, Duration::from_secs(30), &tally);
        assert_eq!(trial.reached, 0.1, "who answers at once waits for the plan");
    }

    #[test]
    fn the_reason_is_that_of_the_rate_above_the_knee() {
        let mut search = Search::new(100.0, 1_000.0, 0, 0);
        let mut trials = vec![];
        while let Some(rate) = search.next() {
            let mut one = trial(rate);
            one.p99_ms = if rate > 120.0 { 44.0 } else { 1.0 };
            trials.push(one.judge(10.0));
            search.tried(trials.last().unwrap().good);
        }
        let why = stopped(&search, &trials, 1_000.0);
        assert_eq!(why, "150 a second failed: p99 above 10 ms");
        let mut whole = Search::new(100.0, 100.0, 0, 0);
        let why = stopped(&whole, &[], 100.0);
        assert!(
            why.starts_with("it was interrupted after 0 trials"),
            "{why}"
        );
        assert_eq!(whole.found(), None);
        whole.tried(true);
        assert_eq!(whole.found(), Some(100.0));
        let why = stopped(&whole, &[], 100.0);
        assert!(why.starts_with("--to 100 a second was reached"), "{why}");
    }
}
