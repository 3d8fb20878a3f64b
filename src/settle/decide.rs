//! What becomes of a claim after a try to credit it.

use std::cell::Cell;
use std::time::Duration;

use crate::ledger::Verdict;
use crate::metrics;
use crate::store::bucket::LeasedClaim;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The credit stands: the claim may go.
    Ack,
    /// A person has to decide.
    Bury(String),
}

/// Exhaustive on purpose: a new verdict must be decided here.
pub fn decide(leased: &LeasedClaim, verdict: Verdict) -> Decision {
    let cents = leased.claim.packet.cents;
    match verdict {
        Verdict::Credited => {
            metrics::get().credits.increment(1);
            metrics::get().credited_cents.increment(cents.0 as u64);
            Decision::Ack
        }
        Verdict::Existed => Decision::Ack,
        // The money went back to the sponsor by a person's decision: nothing is left to credit.
        Verdict::Discarded => Decision::Ack,
        Verdict::Conflict { user, cents } => Decision::Bury(format!("conflict: the packet is credited to {user} with {cents}")),
        Verdict::UnknownAccount => Decision::Bury("unknown_account: the user has no account".into()),
        Verdict::Refused(refusal) => Decision::Bury(format!("refused: {refusal}")),
    }
}

/// A source of jitter, one a settler.
pub struct Jitter(Cell<u64>);

impl Jitter {
    pub fn new() -> Jitter {
        let mut seed = [0u8; 8];
        let _ = getrandom::fill(&mut seed);
        Jitter(Cell::new(u64::from_le_bytes(seed) | 1))
    }

    /// Exponential with jitter: half to all of `base` · 2^attempts, at most `max`.
    pub fn back_off(&self, attempts: u32, base: Duration, max: Duration) -> Duration {
        let whole = base.saturating_mul(1u32 << attempts.min(20)).min(max);
        let mut x = self.0.get();
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.0.set(x);
        whole / 2 + whole.mul_f64((x >> 11) as f64 / (1u64 << 53) as f64) / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn back_off_doubles_with_jitter_up_to_its_maximum() {
        let (base, max) = (Duration::from_millis(500), Duration::from_secs(300));
        let jitter = Jitter::new();
        for (attempts, whole_ms) in [(0, 500), (1, 1_000), (5, 16_000), (20, 300_000), (4_000_000, 300_000)] {
            for _ in 0..100 {
                let wait = jitter.back_off(attempts, base, max).as_millis() as u64;
                assert!((whole_ms / 2..=whole_ms).contains(&wait), "{attempts} attempts: {wait} ms");
            }
        }
    }
}
