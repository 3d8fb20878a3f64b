//! Chance that spreads people and retries in time. Not for money: amounts come from seeds, secrets from the operating system.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// SplitMix64 (Steele, Lea and Flood, 2014), seeded by the operating system. May be shared between threads.
pub struct Jitter(AtomicU64);

impl Default for Jitter {
    fn default() -> Jitter {
        let mut seed = [0u8; 8];
        // Without random bytes everybody would still get a sequence, only the same one: bearable for jitter.
        let _ = getrandom::fill(&mut seed);
        Jitter(AtomicU64::new(u64::from_le_bytes(seed)))
    }
}

impl Jitter {
    pub fn next_u64(&self) -> u64 {
        const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
        let mut z = self
            .0
            .fetch_add(GOLDEN, Ordering::Relaxed)
            .wrapping_add(GOLDEN);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Half to one and a half times `base`.
    pub fn around(&self, base: Duration) -> Duration {
        base / 2 + base.mul_f64(self.fraction())
    }

    /// Somewhere between nothing and `limit`.
    pub fn below(&self, limit: Duration) -> Duration {
        limit.mul_f64(self.fraction())
    }

    /// Exponential back-off: half to all of `base` · 2^attempts, at most `max`.
    pub fn back_off(&self, attempts: u32, base: Duration, max: Duration) -> Duration {
        let whole = base.saturating_mul(1u32 << attempts.min(20)).min(max);
        whole / 2 + whole.mul_f64(self.fraction()) / 2
    }

    /// 0 to 1, without 1.
    fn fraction(&self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn back_off_doubles_with_jitter_up_to_its_maximum() {
        let (base, max) = (Duration::from_millis(500), Duration::from_secs(300));
        let jitter = Jitter::default();
        for (attempts, whole_ms) in [
            (0, 500),
            (1, 1_000),
            (5, 16_000),
            (20, 300_000),
            (4_000_000, 300_000),
        ] {
            for _ in 0..100 {
                let wait = jitter.back_off(attempts, base, max).as_millis() as u64;
                assert!(
                    (whole_ms / 2..=whole_ms).contains(&wait),
                    "{attempts} attempts: {wait} ms"
                );
            }
        }
    }

    #[test]
    fn around_spreads_over_the_base() {
        let jitter = Jitter::default();
        let waits: Vec<_> = (0..1_000)
            .map(|_| jitter.around(Duration::from_millis(100)).as_millis())
            .collect();
        assert!(waits.iter().all(|wait| (50..150).contains(wait)));
        assert!(waits.iter().any(|wait| *wait < 70) && waits.iter().any(|wait| *wait > 130));
    }
}
