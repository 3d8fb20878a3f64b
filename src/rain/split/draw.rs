use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::Seed;

/// The stream that rounds the chunk totals. Chunk k uses stream k, which stays below 2³².
pub const STREAM_ROUNDING: u64 = 1 << 32;
/// The stream behind the permutation of a prize table.
pub const STREAM_PERMUTATION: u64 = (1 << 32) + 1;

/// A stream of random 64-bit numbers: the ChaCha20 keystream (D. J. Bernstein's variant: 64-bit counter from 0, 64-bit nonce) under the
/// seed as key and the stream's number as nonce, read eight bytes at a time, little-endian.
///
/// Ranges and shuffles are our own. Those of the `rand` crates may change their output from one version to the next, and then an audit
/// would no longer find the amounts that were paid.
pub struct Stream(ChaCha20Rng);

impl Stream {
    pub fn new(seed: &Seed, number: u64) -> Stream {
        let mut keystream = ChaCha20Rng::from_seed(seed.0);
        keystream.set_stream(number);
        Stream(keystream)
    }

    /// Uniform in 0..bound. `bound` is at least 1.
    pub fn below(&mut self, bound: u64) -> u64 {
        below(bound, || self.0.next_u64())
    }

    /// Every order equally likely (Fisher–Yates, from the end).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}

/// Uniform in 0..bound from numbers uniform in 0..2⁶⁴: multiply, take the upper half, draw again while the lower half is below
/// 2⁶⁴ mod bound (D. Lemire, "Fast Random Integer Generation in an Interval", ACM TOMACS 2019, algorithm 5).
fn below(bound: u64, mut next: impl FnMut() -> u64) -> u64 {
    debug_assert!(bound > 0, "an empty range holds no number");
    let mut product = u128::from(next()) * u128::from(bound);
    // 2⁶⁴ mod bound is below bound, so the division is needed almost never.
    if (product as u64) < bound {
        let reject_below = bound.wrapping_neg() % bound;
        while (product as u64) < reject_below {
            product = u128::from(next()) * u128::from(bound);
        }
    }
    (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_is_the_published_chacha20_keystream() {
        // Key and nonce zero: RFC 8439, appendix A.1, test vector 1: 76 b8 e0 ad a0 f1 3d 90 40 5d 6a e5 53 86 bd 28 …
        let mut stream = Stream::new(&Seed([0; 32]), 0);
        let bytes = [
            0x76, 0xb8, 0xe0, 0xad, 0xa0, 0xf1, 0x3d, 0x90, 0x40, 0x5d, 0x6a, 0xe5, 0x53, 0x86,
            0xbd, 0x28,
        ];
        for expected in bytes.chunks_exact(8) {
            assert_eq!(stream.0.next_u64().to_le_bytes(), expected);
        }
        // Nonce bytes 00 00 00 00 00 00 00 01: draft-agl-tls-chacha20poly1305-04, section 7: de 9c ba 7b f3 d6 9e f5 …
        let mut stream = Stream::new(&Seed([0; 32]), 1 << 56);
        assert_eq!(
            stream.0.next_u64().to_le_bytes(),
            [0xde, 0x9c, 0xba, 0x7b, 0xf3, 0xd6, 0x9e, 0xf5]
        );
    }

    #[test]
    fn a_draw_that_would_favour_small_numbers_is_drawn_again() {
        // 2⁶⁴ mod 3 = 1: of all numbers only 0 is one too many.
        let mut numbers = [0u64, u64::MAX].into_iter();
        assert_eq!(below(3, || numbers.next().unwrap()), 2);
        let mut numbers = [1u64, u64::MAX].into_iter();
        assert_eq!(below(3, || numbers.next().unwrap()), 0);
        // A power of two divides 2⁶⁴: nothing is rejected.
        assert_eq!(below(1, || 0), 0);
        assert_eq!(below(1 << 63, || 0), 0);
        assert_eq!(below(1 << 63, || u64::MAX), (1 << 63) - 1);
        // 2⁶⁴ mod (2⁶³ + 1) = 2⁶³ − 1: lower halves below it are rejected. 1 × bound is 2⁶³ + 1, 2 × bound is 2⁶⁴ + 2.
        let mut numbers = [0u64, 2, 1].into_iter();
        assert_eq!(below((1 << 63) + 1, || numbers.next().unwrap()), 0);
        assert_eq!(numbers.next(), None);
    }

    #[test]
    fn small_ranges_are_drawn_evenly() {
        let mut stream = Stream::new(&Seed([1; 32]), 0);
        for bound in [1u64, 2, 3, 5, 6, 7, 10, 13] {
            const DRAWS: u64 = 20_000;
            let mut seen = vec![0u64; bound as usize];
            for _ in 0..DRAWS {
                seen[stream.below(bound) as usize] += 1;
            }
            // Chi-square with bound − 1 degrees of freedom has mean bound − 1 and variance 2 (bound − 1): five deviations.
            let expected = DRAWS as f64 / bound as f64;
            let chi_square: f64 = seen
                .iter()
                .map(|&n| (n as f64 - expected).powi(2) / expected)
                .sum();
            let freedom = (bound - 1) as f64;
            assert!(
                chi_square <= freedom + 5.0 * (2.0 * freedom).sqrt(),
                "{bound}: {seen:?}"
            );
        }
    }

    #[test]
    fn every_order_of_a_shuffle_is_equally_likely() {
        const SHUFFLES: usize = 24_000;
        let mut stream = Stream::new(&Seed([2; 32]), 0);
        let mut seen = std::collections::HashMap::new();
        for _ in 0..SHUFFLES {
            let mut items = [0, 1, 2, 3];
            stream.shuffle(&mut items);
            *seen.entry(items).or_insert(0u32) += 1;
        }
        // 24 orders, 1,000 each; binomial deviation √(1000 · 23/24) = 31, five of them 155.
        assert_eq!(seen.len(), 24);
        assert!(seen.values().all(|n| n.abs_diff(1000) < 155), "{seen:?}");
    }
}
