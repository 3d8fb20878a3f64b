//! How a total becomes packets.
//!
//! Every amount of a rain follows from its [`Split`] and its [`Seed`], so a load can resume anywhere and an audit years later can
//! recompute the whole allocation. The recipe is therefore fixed; golden values in `tests.rs` hold it:
//!
//! 1. The packets are cut into C = ⌈n / 1000⌉ chunks; chunk k holds the indexes ⌊n·k/C⌋ to ⌊n·(k+1)/C⌋ − 1.
//! 2. Chunk k gets ⌊(T·end + u)/n⌋ − ⌊(T·start + u)/n⌋ cents, u drawn once per rain, uniform in 0..n (`allocation.rs`).
//! 3. The rule splits the chunk's cents with the chunk's own random stream (`rules.rs`); a prize table instead deals its rows to the
//!    indexes through a permutation of the whole rain (`permutation.rs`).
//! 4. The chunk is shuffled with what follows in its stream.
//!
//! Nothing depends on how another crate draws numbers from a range: only the ChaCha20 keystream itself is taken from outside.

use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::Cents;

/// A split and a seed, ready to compute any chunk.
mod allocation;
/// The random stream and what is drawn from it.
mod draw;
/// A keyed permutation of all indexes, for prize tables.
mod permutation;
/// How one chunk's cents become amounts.
mod rules;
/// A look at an allocation without keeping it.
mod summary;
#[cfg(test)]
mod tests;

pub use allocation::{Allocation, Amounts};
pub use summary::{Bar, EXACT_PACKETS_MAX, Summary};

/// Packets of one rain: 100 million pool entries of about 25 bytes (`packet_id:cents`) are 2.5 GB in Redis before anybody has won one.
pub const PACKETS_MAX: u32 = 100_000_000;

/// Total of one rain: 10¹⁵ cents, ten trillion whole units. Below 2⁵³, so that JSON readers keep it exact, and small enough that twice
/// a chunk's surplus cannot overflow 64 bits.
pub const TOTAL_MAX: Cents = Cents(1_000_000_000_000_000);

/// Packets of one chunk: what a load script appends in one call (`unpack` takes at most 1,000 values at a time).
pub const CHUNK_PACKETS_MAX: u32 = 1_000;

/// Rows of a prize table.
pub const TIERS_MAX: usize = 1_000;

const _: () = assert!(TOTAL_MAX.0 < 1 << 53);
const _: () = assert!(2 * (TOTAL_MAX.0 as u64) < u64::MAX / 2);

/// 32 secret bytes from the operating system's generator: the whole allocation of a rain follows from them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Seed(pub [u8; 32]);

/// Never printed: whoever knows the seed knows where the big packets are.
impl fmt::Debug for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seed(secret)")
    }
}

/// One row of a prize table: `count` packets of `cents` each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tier {
    pub count: u32,
    pub cents: Cents,
}

/// In JSON `"even"`, `"double_mean"`, `"line_cut"` or `{"tiers": [{"count": 1, "cents": 88800}, …]}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// All packets alike, to within a cent.
    Even,
    /// Each packet uniform between the minimum and about twice the mean of what is left: the rule of the well-known chat apps.
    DoubleMean,
    /// Uniform cuts of a line: many small packets and a few large ones.
    LineCut,
    /// A prize table. Counts and amounts must add up to the packets and the total.
    Tiers(Vec<Tier>),
}

/// What is to be split, and how. A JSON object with `rule`, `total_cents`, `packets`, `min_cents`, `max_cents`, and nothing else.
///
/// The fields may hold anything; [`Split::check`] says whether they can be met.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Split {
    pub rule: Rule,
    /// 1 to [`TOTAL_MAX`].
    #[serde(rename = "total_cents")]
    pub total: Cents,
    /// 1 to [`PACKETS_MAX`].
    pub packets: u32,
    /// The smallest amount a packet may have, at least one cent.
    #[serde(rename = "min_cents")]
    pub min: Cents,
    /// The largest amount a packet may have. May exceed the total: then it is no limit.
    #[serde(rename = "max_cents")]
    pub max: Cents,
}

/// Why a split is impossible. The texts are for the operator who asked for it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SplitError {
    #[error("packets is {0}: it must be from 1 to {PACKETS_MAX}")]
    Packets(u32),
    #[error("total is {0}: it must be from 0.01 to {TOTAL_MAX}")]
    Total(Cents),
    #[error("min is {0}: a packet holds at least 0.01")]
    Min(Cents),
    #[error("max is {max}: it must be at least min, which is {min}")]
    MaxBelowMin { max: Cents, min: Cents },
    #[error(
        "total is {total}: {packets} packets of at least {min} (min) each take at least {least}",
        least = money(*packets, *min)
    )]
    TotalTooSmall {
        total: Cents,
        packets: u32,
        min: Cents,
    },
    #[error(
        "total is {total}: {packets} packets of at most {max} (max) each hold at most {most}",
        most = money(*packets, *max)
    )]
    TotalTooLarge {
        total: Cents,
        packets: u32,
        max: Cents,
    },
    #[error("tiers has {0} rows: it must have from 1 to {TIERS_MAX}")]
    TierRows(usize),
    #[error("row {row} of tiers has a count of 0: it must be at least 1")]
    TierCount { row: usize },
    #[error("row {row} of tiers is worth {cents}: it must be from {min} (min) to {max} (max)")]
    TierCents {
        row: usize,
        cents: Cents,
        min: Cents,
        max: Cents,
    },
    #[error("the counts of tiers add up to {counts}: they must equal packets, which is {packets}")]
    TierCounts { counts: u64, packets: u32 },
    #[error("the amounts of tiers add up to {sum}: they must equal total, which is {total}", sum = decimal(*sum))]
    TierSum { sum: i128, total: Cents },
}

/// What `packets` packets of `each` come to, as text: it may be more than [`Cents`] can hold.
fn money(packets: u32, each: Cents) -> String {
    decimal(i128::from(packets) * i128::from(each.0))
}

fn decimal(cents: i128) -> String {
    format!("{}.{:02}", cents / 100, cents % 100)
}

impl Split {
    /// Refuses what cannot be split, with the first reason found.
    ///
    /// More packets than cents needs no reason of its own: a packet holds at least a cent, so the total is too small for them.
    pub fn check(&self) -> Result<(), SplitError> {
        let (total, packets, min, max) = (self.total, self.packets, self.min, self.max);
        if packets == 0 || packets > PACKETS_MAX {
            return Err(SplitError::Packets(packets));
        }
        if total < Cents(1) || total > TOTAL_MAX {
            return Err(SplitError::Total(total));
        }
        if min < Cents(1) {
            return Err(SplitError::Min(min));
        }
        if max < min {
            return Err(SplitError::MaxBelowMin { max, min });
        }
        let of_all = |each: Cents| i128::from(packets) * i128::from(each.0);
        if i128::from(total.0) < of_all(min) {
            return Err(SplitError::TotalTooSmall {
                total,
                packets,
                min,
            });
        }
        if i128::from(total.0) > of_all(max) {
            return Err(SplitError::TotalTooLarge {
                total,
                packets,
                max,
            });
        }
        match &self.rule {
            Rule::Even | Rule::DoubleMean | Rule::LineCut => Ok(()),
            Rule::Tiers(tiers) => self.check_tiers(tiers),
        }
    }

    fn check_tiers(&self, tiers: &[Tier]) -> Result<(), SplitError> {
        if tiers.is_empty() || tiers.len() > TIERS_MAX {
            return Err(SplitError::TierRows(tiers.len()));
        }
        let (mut counts, mut sum) = (0u64, 0i128);
        for (row, tier) in (1..).zip(tiers) {
            if tier.count == 0 {
                return Err(SplitError::TierCount { row });
            }
            if tier.cents < self.min || tier.cents > self.max {
                return Err(SplitError::TierCents {
                    row,
                    cents: tier.cents,
                    min: self.min,
                    max: self.max,
                });
            }
            counts += u64::from(tier.count);
            sum += i128::from(tier.count) * i128::from(tier.cents.0);
        }
        if counts != u64::from(self.packets) {
            return Err(SplitError::TierCounts {
                counts,
                packets: self.packets,
            });
        }
        if sum != i128::from(self.total.0) {
            return Err(SplitError::TierSum {
                sum,
                total: self.total,
            });
        }
        Ok(())
    }

    /// How many chunks a load appends, at most 1,000 packets each.
    pub fn chunks(&self) -> u32 {
        self.packets.div_ceil(CHUNK_PACKETS_MAX)
    }

    /// The indexes of chunk `k`. Chunks differ in size by at most one packet: a small last chunk would spread its amounts differently,
    /// and with that its place would matter. Empty for a chunk that does not exist.
    pub fn chunk_range(&self, k: u32) -> Range<u32> {
        let chunks = self.chunks();
        if k >= chunks {
            return self.packets..self.packets;
        }
        let start_of = |k: u64| (u64::from(self.packets) * k / u64::from(chunks)) as u32;
        start_of(u64::from(k))..start_of(u64::from(k) + 1)
    }

    /// Everything needed to compute chunks and amounts, after [`Split::check`]. Cheap, except that a prize table draws about 8·√packets
    /// numbers for its permutation (some 25,000 for 10 million packets): keep it when computing many chunks.
    pub fn allocation(&self, seed: &Seed) -> Result<Allocation, SplitError> {
        self.check()?;
        Ok(Allocation::new(self, seed))
    }
}
