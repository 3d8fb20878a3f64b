use super::draw::Stream;

/// Rounds of the network. Four already make a permutation that only somebody with thousands of its values could tell from a random
/// one (Luby and Rackoff 1988); eight leave a wide margin, and a round costs one look into a table.
const ROUNDS: usize = 8;

/// A permutation of 0..n that is computed at any point without the others: a Feistel network whose round functions are tables of
/// random numbers, O(√n) of them in all.
///
/// A number x < a·b is a pair (left < a, right < b), a and b about √n; a round adds a table's entry for one half to the other half
/// (J. Black and P. Rogaway, "Ciphers with Arbitrary Finite Domains", 2002, generalized Feistel). Each round can be undone, so the whole
/// is a permutation of 0..a·b. Where it leads out of 0..n it is applied again ("cycle walking"): since the cycle of x comes back to x,
/// it ends, and since a·b − n < a that is rare.
pub struct Permutation {
    n: u32,
    lefts: u32,
    rights: u32,
    tables: [Vec<u32>; ROUNDS],
}

impl Permutation {
    /// `n` is at least 1.
    pub fn new(stream: &mut Stream, n: u32) -> Permutation {
        let lefts = (n - 1).isqrt() + 1;
        let rights = n.div_ceil(lefts);
        let tables = std::array::from_fn(|round| {
            let (entries, below) = match round % 2 {
                0 => (rights, lefts),
                _ => (lefts, rights),
            };
            (0..entries)
                .map(|_| stream.below(u64::from(below)) as u32)
                .collect()
        });
        Permutation {
            n,
            lefts,
            rights,
            tables,
        }
    }

    /// Where `x` goes. `x` is below n, and so is the answer.
    pub fn apply(&self, x: u32) -> u32 {
        let mut x = x;
        loop {
            x = self.network(x);
            if x < self.n {
                return x;
            }
        }
    }

    fn network(&self, x: u32) -> u32 {
        let (mut left, mut right) = (x / self.rights, x % self.rights);
        for pair in self.tables.chunks_exact(2) {
            left = add(left, pair[0][right as usize], self.lefts);
            right = add(right, pair[1][left as usize], self.rights);
        }
        left * self.rights + right
    }
}

/// (a + b) mod `modulus` for a and b below it.
fn add(a: u32, b: u32, modulus: u32) -> u32 {
    let sum = a + b;
    if sum < modulus { sum } else { sum - modulus }
}

#[cfg(test)]
mod tests {
    use super::super::draw::STREAM_PERMUTATION;
    use super::super::{PACKETS_MAX, Seed};
    use super::*;

    fn permutation(seed: u8, n: u32) -> Permutation {
        Permutation::new(&mut Stream::new(&Seed([seed; 32]), STREAM_PERMUTATION), n)
    }

    #[test]
    fn every_number_is_reached_exactly_once() {
        for n in (1..=300).chain([1_000, 1_001, 1_500, 10_007, 65_536]) {
            let permutation = permutation(5, n);
            let mut seen = vec![false; n as usize];
            for x in 0..n {
                let y = permutation.apply(x) as usize;
                assert!(!seen[y], "{y} of {n} is reached twice");
                seen[y] = true;
            }
        }
    }

    #[test]
    fn the_largest_rain_fits_and_needs_few_numbers() {
        let permutation = permutation(5, PACKETS_MAX);
        assert_eq!((permutation.lefts, permutation.rights), (10_000, 10_000));
        for x in [0, 1, PACKETS_MAX / 2, PACKETS_MAX - 1] {
            assert!(permutation.apply(x) < PACKETS_MAX);
        }
    }

    #[test]
    fn neighbours_and_seeds_have_nothing_in_common() {
        const N: u32 = 5_000;
        let (one, other) = (permutation(6, N), permutation(7, N));
        // A random permutation keeps one number in place on average, and so it is with any two: ten are improbable (1 / 10!).
        let alike = (0..N).filter(|&x| one.apply(x) == other.apply(x)).count();
        assert!(alike < 10, "{alike}");
        let neighbours = (1..N)
            .filter(|&x| one.apply(x) == one.apply(x - 1) + 1)
            .count();
        assert!(neighbours < 10, "{neighbours}");
    }

    #[test]
    fn every_number_goes_everywhere_equally_often() {
        const SEEDS: u64 = 2_000;
        let mut seen = vec![0u32; 100];
        for number in 0..SEEDS {
            let permutation = Permutation::new(&mut Stream::new(&Seed([8; 32]), number), 100);
            for x in [0, 1, 9, 10, 99] {
                seen[permutation.apply(x) as usize] += 1;
            }
        }
        // Five sources of 2,000 permutations into 100 goals: 100 each, deviation 10, five of them 50.
        assert!(seen.iter().all(|n| n.abs_diff(100) < 50), "{seen:?}");
    }
}
