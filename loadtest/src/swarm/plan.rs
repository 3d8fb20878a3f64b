use std::time::Duration;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// When requests are due, from the start of a run: at a rate that rises evenly to its full height and stays there.
#[derive(Clone, Debug)]
pub struct Plan {
    per_second: f64,
    ramp: f64,
    length: f64,
    /// Arrivals at chance (a Poisson process), as those of many people are; else evenly.
    chance: Option<ChaCha8Rng>,
    /// In requests: how many are due before the next one.
    done: f64,
    next: Option<f64>,
}

impl Plan {
    /// `ramp` is the part of `length` in which the rate rises from nothing. The same seed gives the same arrivals.
    pub fn new(per_second: f64, length: Duration, ramp: Duration, seed: Option<u64>) -> Plan {
        let mut plan = Plan {
            per_second,
            ramp: ramp.min(length).as_secs_f64(),
            length: length.as_secs_f64(),
            chance: seed.map(ChaCha8Rng::seed_from_u64),
            done: 0.0,
            next: None,
        };
        plan.advance();
        plan
    }

    /// When the next request is due; `None` when there are no more.
    pub fn peek(&self) -> Option<Duration> {
        self.next.map(Duration::from_secs_f64)
    }

    pub fn advance(&mut self) {
        self.done += match &mut self.chance {
            // Between two arrivals of a Poisson process lies an exponential time; in the time of requests its mean is 1.
            Some(chance) => -(1.0 - unit(chance)).ln(),
            None => 1.0,
        };
        let at = self.when(self.done);
        self.next = (at < self.length).then_some(at);
    }

    /// Requests that are due in the whole plan, on the average.
    pub fn expected(&self) -> f64 {
        self.per_second * (self.length - self.ramp / 2.0)
    }

    /// The time at which `done` requests have become due: the rate's integral, turned around.
    fn when(&self, done: f64) -> f64 {
        let in_ramp = self.per_second * self.ramp / 2.0;
        if done < in_ramp {
            (2.0 * done * self.ramp / self.per_second).sqrt()
        } else {
            self.ramp + (done - in_ramp) / self.per_second
        }
    }
}

/// Evenly from 0 to below 1.
fn unit(random: &mut impl Rng) -> f64 {
    (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(mut plan: Plan) -> Vec<f64> {
        let mut times = vec![];
        while let Some(at) = plan.peek() {
            times.push(at.as_secs_f64());
            plan.advance();
        }
        times
    }

    #[test]
    fn without_a_ramp_requests_are_due_evenly() {
        let times = all(Plan::new(4.0, Duration::from_secs(1), Duration::ZERO, None));
        assert_eq!(times, [0.25, 0.5, 0.75]);
    }

    #[test]
    fn a_ramp_rises_evenly_to_the_rate() {
        let (length, ramp) = (Duration::from_secs(3), Duration::from_secs(2));
        let plan = Plan::new(1_000.0, length, ramp, None);
        assert_eq!(plan.expected(), 2_000.0);
        let times = all(plan);
        let until = |end: f64| times.iter().filter(|at| **at <= end + 1e-9).count();
        // A rate that rises by 500 each second: 250 in the first, 750 in the second, then 1000.
        assert_eq!((until(1.0), until(2.0)), (250, 1_000));
        assert!((1_998..=2_000).contains(&times.len()), "{}", times.len());
    }

    #[test]
    fn arrivals_at_chance_have_the_rate_and_repeat_with_their_seed() {
        let plan = |seed| Plan::new(10_000.0, Duration::from_secs(1), Duration::ZERO, Some(seed));
        let times = all(plan(5));
        // 10,000 expected with a standard deviation of 100.
        assert!((9_500..10_500).contains(&times.len()), "{}", times.len());
        assert_eq!(times, all(plan(5)));
        assert_ne!(times, all(plan(6)));
        // The gaps of a Poisson process: e^-1 of them are longer than the mean.
        let long = times
            .windows(2)
            .filter(|two| two[1] - two[0] > 1e-4)
            .count();
        assert!((3_400..3_950).contains(&long), "{long}");
    }
}
