use std::time::Duration;

/// The ends of a [`Backoff`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackoffBounds {
    /// The longest first delay, ms.
    pub first_ms: u64,
    /// No delay is longer, ms.
    pub max_ms: u64,
}

/// Exponential back-off with jitter: delay *n* is drawn evenly from the upper half of `first · 2ⁿ`, capped at `max`.
///
/// The jitter is what keeps a hundred thousand phones that lost their gateway in the same millisecond from coming back in the same
/// millisecond; the lower half is left out so that a delay is never close to none.
#[derive(Debug, Clone)]
pub struct Backoff {
    bounds: BackoffBounds,
    tries: u32,
    random: SplitMix,
}

impl Backoff {
    pub fn new(bounds: BackoffBounds) -> Backoff {
        Backoff {
            bounds,
            tries: 0,
            random: SplitMix::from_system(),
        }
    }

    pub fn next_delay(&mut self) -> Duration {
        let doubled = self
            .bounds
            .first_ms
            .saturating_mul(1u64.checked_shl(self.tries).unwrap_or(u64::MAX));
        self.tries = self.tries.saturating_add(1);
        let ceiling_us = doubled.min(self.bounds.max_ms).saturating_mul(1_000);
        let half = ceiling_us / 2;
        Duration::from_micros(half + self.random.below(ceiling_us - half + 1))
    }

    /// After a success: the next delay is a first one again.
    pub fn reset(&mut self) {
        self.tries = 0;
    }
}

/// SplitMix64 (Steele, Lea and Flood, 2014): eight bytes of state are all that a session can spare for its jitter.
#[derive(Debug, Clone)]
pub(super) struct SplitMix(u64);

impl SplitMix {
    pub fn from_system() -> SplitMix {
        // Without the system's generator jitter from the clock is still jitter.
        SplitMix(getrandom::u64().unwrap_or_else(|_| clock_nanos()))
    }

    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Evenly from 0 to `n` - 1 (0 when `n` is 0), by the high half of a 128-bit product.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(n)) >> 64) as u64
    }
}

fn clock_nanos() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_their_cap_and_stay_in_the_upper_half() {
        let bounds = BackoffBounds {
            first_ms: 250,
            max_ms: 3_000,
        };
        for _ in 0..500 {
            let mut backoff = Backoff::new(bounds);
            for (low_ms, high_ms) in [
                (125, 250),
                (250, 500),
                (500, 1_000),
                (1_000, 2_000),
                (1_500, 3_000),
                (1_500, 3_000),
            ] {
                let delay = backoff.next_delay();
                assert!(delay >= Duration::from_millis(low_ms), "{delay:?}");
                assert!(delay <= Duration::from_millis(high_ms), "{delay:?}");
            }
            backoff.reset();
            assert!(backoff.next_delay() <= Duration::from_millis(250));
        }
    }

    #[test]
    fn ten_thousand_clients_do_not_come_back_together() {
        let bounds = BackoffBounds {
            first_ms: 1_000,
            max_ms: 30_000,
        };
        // Ten bins of 50 ms between 500 and 1000 ms: 1000 are expected in each, 30 is the standard deviation.
        let mut bins = [0u32; 10];
        for _ in 0..10_000 {
            let delay = Backoff::new(bounds).next_delay().as_micros() as usize;
            bins[((delay - 500_000) / 50_000).min(9)] += 1;
        }
        assert!(
            bins.iter().all(|count| (800..1_200).contains(count)),
            "{bins:?}"
        );
    }

    #[test]
    fn many_failures_do_not_overflow() {
        let mut backoff = Backoff::new(BackoffBounds {
            first_ms: u64::MAX / 2,
            max_ms: 10,
        });
        for _ in 0..200 {
            assert!(backoff.next_delay() <= Duration::from_millis(10));
        }
    }

    #[test]
    fn splitmix_gives_the_published_sequence() {
        // From the reference implementation (prng.di.unimi.it/splitmix64.c) with the seed 1234567.
        let mut random = SplitMix(1_234_567);
        assert_eq!(random.next_u64(), 6_457_827_717_110_365_317);
        assert_eq!(random.next_u64(), 3_203_168_211_198_807_973);
    }
}
