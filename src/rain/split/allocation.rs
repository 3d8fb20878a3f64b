use std::fmt;

use super::draw::{STREAM_PERMUTATION, STREAM_ROUNDING, Stream};
use super::permutation::Permutation;
use super::rules::{self, Share};
use super::{CHUNK_PACKETS_MAX, Cents, Rule, Seed, Split, Tier};

/// A split that has been checked, and a seed: computes any chunk by itself, or all amounts one after the other in constant memory.
pub struct Allocation {
    split: Split,
    seed: Seed,
    /// Uniform in 0..packets, see [`Allocation::cents_before`].
    rounding: u64,
    way: Way,
}

/// How a chunk is filled: the rule, and what it needs to be computed quickly.
enum Way {
    Even,
    DoubleMean,
    LineCut,
    Tiers(Box<PrizeTable>),
}

/// As secret as the seed.
impl fmt::Debug for Allocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Allocation")
            .field("split", &self.split)
            .field("seed", &self.seed)
            .finish_non_exhaustive()
    }
}

impl Allocation {
    /// `split` has been checked.
    pub(super) fn new(split: &Split, seed: &Seed) -> Allocation {
        let way = match &split.rule {
            Rule::Even => Way::Even,
            Rule::DoubleMean => Way::DoubleMean,
            Rule::LineCut => Way::LineCut,
            Rule::Tiers(tiers) => Way::Tiers(Box::new(PrizeTable::new(tiers, split.packets, seed))),
        };
        Allocation {
            split: split.clone(),
            seed: *seed,
            rounding: Stream::new(seed, STREAM_ROUNDING).below(u64::from(split.packets)),
            way,
        }
    }

    /// Replaces what is in `amounts` by the amounts of chunk `k`, in the order of [`Split::chunk_range`]; by nothing for a chunk that
    /// does not exist.
    pub fn chunk(&self, k: u32, amounts: &mut Vec<Cents>) {
        amounts.clear();
        let range = self.split.chunk_range(k);
        if range.is_empty() {
            return;
        }
        let share = Share {
            total: self.cents_before(range.end) - self.cents_before(range.start),
            packets: u64::from(range.end - range.start),
            min: self.split.min.0 as u64,
            max: self.split.max.0 as u64,
        };
        let mut stream = Stream::new(&self.seed, u64::from(k));
        match &self.way {
            Way::Even => rules::even(&share, amounts),
            Way::DoubleMean => rules::double_mean(&mut stream, &share, amounts),
            Way::LineCut => rules::line_cut(&mut stream, &share, amounts),
            Way::Tiers(table) => amounts.extend(range.map(|index| table.prize(index))),
        }
        stream.shuffle(amounts);
    }

    /// All amounts in the order of their indexes. One chunk is in memory at a time.
    pub fn amounts(&self) -> Amounts<'_> {
        Amounts {
            allocation: self,
            next_chunk: 0,
            chunk: Vec::with_capacity(CHUNK_PACKETS_MAX as usize),
            taken: 0,
            left: self.split.packets as usize,
        }
    }

    /// ⌊(T·index + u) / n⌋: the cents of all chunks before `index`, a chunk's first index. (Nothing for prize tables, which have their
    /// amounts already.)
    ///
    /// * Chunks add up to T, since ⌊u/n⌋ = 0 and ⌊(T·n + u)/n⌋ = T.
    /// * A chunk of m packets gets less than a cent more or less than m·T/n. As min ≤ T/n ≤ max and m·min and m·max are whole cents, its
    ///   total lies between them: every chunk can be split within the bounds, and all have the same mean to within a cent.
    /// * With u = 0 the odd cents would always fall to the same chunks. With u uniform in 0..n every chunk expects exactly m·T/n.
    fn cents_before(&self, index: u32) -> u64 {
        let total = self.split.total.0 as u128;
        let cents = (total * u128::from(index) + u128::from(self.rounding))
            / u128::from(self.split.packets);
        cents as u64
    }
}

/// See [`Allocation::amounts`].
pub struct Amounts<'a> {
    allocation: &'a Allocation,
    next_chunk: u32,
    chunk: Vec<Cents>,
    /// Amounts of `chunk` already given out.
    taken: usize,
    left: usize,
}

impl Iterator for Amounts<'_> {
    type Item = Cents;

    fn next(&mut self) -> Option<Cents> {
        if self.taken == self.chunk.len() {
            self.allocation.chunk(self.next_chunk, &mut self.chunk);
            self.next_chunk = self.next_chunk.saturating_add(1);
            self.taken = 0;
        }
        let amount = *self.chunk.get(self.taken)?;
        self.taken += 1;
        self.left -= 1;
        Some(amount)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Amounts<'_> {}

/// The prizes lie in a row, as the table lists them, and the permutation says which of them belongs to an index.
struct PrizeTable {
    /// For each row of the table, how many prizes it and the rows before it have.
    ends: Vec<u32>,
    cents: Vec<Cents>,
    permutation: Permutation,
}

impl PrizeTable {
    fn new(tiers: &[Tier], packets: u32, seed: &Seed) -> PrizeTable {
        let ends = tiers.iter().scan(0, |end, tier| {
            *end += tier.count;
            Some(*end)
        });
        PrizeTable {
            ends: ends.collect(),
            cents: tiers.iter().map(|tier| tier.cents).collect(),
            permutation: Permutation::new(&mut Stream::new(seed, STREAM_PERMUTATION), packets),
        }
    }

    fn prize(&self, index: u32) -> Cents {
        let place = self.permutation.apply(index);
        self.cents[self.ends.partition_point(|&end| end <= place)]
    }
}
