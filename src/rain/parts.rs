use std::ops::Range;

use super::Cents;
use super::split::{Allocation, PACKETS_MAX, Rule, Seed, Split, SplitError, TOTAL_MAX};

/// Top-ups of one rain. They are read with the rain's record in every round of the steward: 100 prize tables of 1,000 rows are 3 MB.
pub const TOP_UPS_MAX: u32 = 100;

/// Packets that were funded together: those of the creation, or those of a top-up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    pub split: Split,
    /// Its own: who has worked out the amounts of one part knows nothing of the next.
    pub seed: Seed,
    /// Every packet has been in its pool: from then on a pool that lacks one has lost it.
    pub loaded: bool,
}

/// All packets of a rain, part after part in the order of their funding. Never empty.
///
/// The indexes of a part follow those of the part before it, and so do the numbers of its chunks. Within its part a chunk is what it
/// would be alone: a pure function of the part's seed and split and of its place there.
///
/// ```text
///   part      0: as created       1: a top-up     2: another
///   chunks    0, 1, 2, … 9        10, 11          12
///   indexes   0 to 9,999          10,000 to …     … to 11,999
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parts(Vec<Part>);

/// Packets and money for a rain that exists, as an operator asks for them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopUp {
    pub packets: u32,
    pub total: Cents,
    /// Rule and bounds are those of the rain's creation unless they are given.
    pub rule: Option<Rule>,
    pub min: Option<Cents>,
    pub max: Option<Cents>,
}

/// Why a rain cannot be topped up so. The texts are for the operator who asked for it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TopUpError {
    #[error(
        "the rain was created with a prize table, which adds up to its own packets only: give tiers that add up to the top-up's, or a rule"
    )]
    NeedsRule,
    #[error(transparent)]
    Split(#[from] SplitError),
    #[error("packets is {more}: the rain has {has}, and may have at most {PACKETS_MAX} in all")]
    Packets { more: u32, has: u32 },
    #[error("total is {more}: the rain has {has}, and may have at most {TOTAL_MAX} in all")]
    Total { more: Cents, has: Cents },
    #[error("the rain has been topped up {TOP_UPS_MAX} times, which is the most")]
    TooMany,
}

impl TopUp {
    /// How it is split when it is added to a rain that was created with `first`.
    pub fn split(&self, first: &Split) -> Result<Split, TopUpError> {
        let rule = match (&self.rule, &first.rule) {
            (Some(rule), _) => rule.clone(),
            (None, Rule::Tiers(_)) => return Err(TopUpError::NeedsRule),
            (None, rule) => rule.clone(),
        };
        let split = Split {
            rule,
            total: self.total,
            packets: self.packets,
            min: self.min.unwrap_or(first.min),
            max: self.max.unwrap_or(first.max),
        };
        split.check()?;
        Ok(split)
    }
}

impl Parts {
    pub fn new(first: Part) -> Parts {
        Parts(vec![first])
    }

    /// Puts a part behind the others. Its split has been checked.
    pub fn push(&mut self, part: Part) -> Result<(), TopUpError> {
        if self.top_ups().len() >= TOP_UPS_MAX as usize {
            return Err(TopUpError::TooMany);
        }
        let (more, has) = (part.split.packets, self.packets());
        if has.checked_add(more).is_none_or(|sum| sum > PACKETS_MAX) {
            return Err(TopUpError::Packets { more, has });
        }
        let (more, has) = (part.split.total, self.total());
        if has.checked_add(more).is_none_or(|sum| sum > TOTAL_MAX) {
            return Err(TopUpError::Total { more, has });
        }
        self.0.push(part);
        Ok(())
    }

    /// What the rain was created with.
    pub fn first(&self) -> &Part {
        &self.0[0]
    }

    pub fn first_mut(&mut self) -> &mut Part {
        &mut self.0[0]
    }

    /// The others, oldest first. Top-up number *n*, counted from 1, is part *n*.
    pub fn top_ups(&self) -> &[Part] {
        &self.0[1..]
    }

    /// How many parts there are, at least 1.
    pub fn count(&self) -> u32 {
        self.0.len() as u32
    }

    pub fn packets(&self) -> u32 {
        packets(&self.0)
    }

    pub fn total(&self) -> Cents {
        self.0.iter().map(|part| part.split.total).sum()
    }

    pub fn chunks(&self) -> u32 {
        chunks(&self.0)
    }

    /// Parts are loaded one after the other: those whose packets have all been in their pools.
    fn loaded(&self) -> &[Part] {
        let first_unloaded = self.0.iter().position(|part| !part.loaded);
        &self.0[..first_unloaded.unwrap_or(self.0.len())]
    }

    pub fn loaded_parts(&self) -> u32 {
        self.loaded().len() as u32
    }

    pub fn are_loaded(&self) -> bool {
        self.loaded_parts() == self.count()
    }

    /// Packets that have been in their pools for certain; the next index is the first that may not have been.
    pub fn loaded_packets(&self) -> u32 {
        packets(self.loaded())
    }

    /// Chunks that every bucket must have.
    pub fn loaded_chunks(&self) -> u32 {
        chunks(self.loaded())
    }

    /// The part of chunk `k`, the number of the part's first chunk, and its first index; `None` for a chunk that does not exist.
    fn of_chunk(&self, k: u32) -> Option<(usize, u32, u32)> {
        let (mut first_chunk, mut first_index) = (0, 0);
        for (number, part) in self.0.iter().enumerate() {
            if k - first_chunk < part.split.chunks() {
                return Some((number, first_chunk, first_index));
            }
            first_chunk += part.split.chunks();
            first_index += part.split.packets;
        }
        None
    }

    /// The indexes of chunk `k`. Empty for a chunk that does not exist.
    pub fn chunk_range(&self, k: u32) -> Range<u32> {
        match self.of_chunk(k) {
            Some((part, first_chunk, first_index)) => {
                let range = self.0[part].split.chunk_range(k - first_chunk);
                first_index + range.start..first_index + range.end
            }
            None => self.packets()..self.packets(),
        }
    }

    /// Everything needed to compute any chunk. As cheap as [`Split::allocation`] is for each part.
    pub fn allocation(&self) -> Result<PartsAllocation<'_>, SplitError> {
        let of_part = |part: &Part| part.split.allocation(&part.seed);
        Ok(PartsAllocation {
            parts: self,
            allocations: self.0.iter().map(of_part).collect::<Result<_, _>>()?,
        })
    }

    /// Every amount in the order of the indexes.
    pub fn amounts(&self) -> Result<Vec<Cents>, SplitError> {
        let mut amounts = Vec::with_capacity(self.packets() as usize);
        for allocation in self.allocation()?.allocations {
            amounts.extend(allocation.amounts());
        }
        Ok(amounts)
    }
}

fn packets(parts: &[Part]) -> u32 {
    parts.iter().map(|part| part.split.packets).sum()
}

fn chunks(parts: &[Part]) -> u32 {
    parts.iter().map(|part| part.split.chunks()).sum()
}

/// The allocation of a whole rain, from which chunks are computed. As secret as the seeds.
pub struct PartsAllocation<'a> {
    parts: &'a Parts,
    allocations: Vec<Allocation>,
}

impl PartsAllocation<'_> {
    /// The packets of chunk `k`, index and amount; none for a chunk that does not exist.
    pub fn chunk(&self, k: u32) -> impl Iterator<Item = (u32, Cents)> + use<> {
        let mut amounts = vec![];
        if let Some((part, first_chunk, _)) = self.parts.of_chunk(k) {
            self.allocations[part].chunk(k - first_chunk, &mut amounts);
        }
        self.parts.chunk_range(k).zip(amounts)
    }
}

#[cfg(test)]
mod tests {
    use super::super::split::Tier;
    use super::*;

    fn split(rule: Rule, packets: u32, total: i64) -> Split {
        Split {
            rule,
            total: Cents(total),
            packets,
            min: Cents(1),
            max: Cents(i64::MAX),
        }
    }

    fn part(seed: u8, packets: u32, total: i64) -> Part {
        Part {
            split: split(Rule::DoubleMean, packets, total),
            seed: Seed([seed; 32]),
            loaded: false,
        }
    }

    /// 2,500 packets in 3 chunks, 1 in one chunk, 1,001 in two.
    fn three_parts() -> Parts {
        let mut parts = Parts::new(part(1, 2_500, 250_000));
        parts.push(part(2, 1, 7)).unwrap();
        parts.push(part(3, 1_001, 5_005)).unwrap();
        parts
    }

    #[test]
    fn indexes_and_chunks_of_a_part_follow_those_of_the_part_before() {
        let parts = three_parts();
        assert_eq!((parts.packets(), parts.chunks()), (3_502, 6));
        assert_eq!(parts.total(), Cents(255_012));
        let ranges: Vec<_> = (0..8).map(|k| parts.chunk_range(k)).collect();
        let expected = [
            0..833,
            833..1_666,
            1_666..2_500,
            2_500..2_501,
            2_501..3_001,
            3_001..3_502,
            3_502..3_502,
            3_502..3_502,
        ];
        assert_eq!(ranges, expected);
    }

    #[test]
    fn a_part_holds_the_amounts_that_it_would_hold_alone() {
        let parts = three_parts();
        let mut alone: Vec<Cents> = vec![];
        for (seed, packets, total) in [(1, 2_500, 250_000), (2, 1, 7), (3, 1_001, 5_005)] {
            let split = split(Rule::DoubleMean, packets, total);
            let allocation = split.allocation(&Seed([seed; 32])).unwrap();
            alone.extend(allocation.amounts());
        }
        assert_eq!(parts.amounts().unwrap(), alone);
        let allocation = parts.allocation().unwrap();
        let by_chunk: Vec<_> = (0..7).flat_map(|k| allocation.chunk(k)).collect();
        let indexed: Vec<_> = (0..).zip(alone).collect();
        assert_eq!(by_chunk, indexed);
    }

    #[test]
    fn what_is_loaded_ends_at_the_first_part_that_is_not() {
        let mut parts = three_parts();
        assert_eq!((parts.loaded_packets(), parts.loaded_chunks()), (0, 0));
        parts.0[0].loaded = true;
        assert_eq!((parts.loaded_packets(), parts.loaded_chunks()), (2_500, 3));
        parts.0[2].loaded = true;
        assert!(!parts.are_loaded());
        assert_eq!(parts.loaded_chunks(), 3, "the part before it is not");
        parts.0[1].loaded = true;
        assert!(parts.are_loaded());
        assert_eq!((parts.loaded_packets(), parts.loaded_chunks()), (3_502, 6));
    }

    #[test]
    fn a_top_up_is_split_like_the_rain_unless_it_says_otherwise() {
        let first = Split {
            min: Cents(5),
            max: Cents(900),
            ..split(Rule::LineCut, 10, 1_000)
        };
        let plain = TopUp {
            packets: 4,
            total: Cents(400),
            rule: None,
            min: None,
            max: None,
        };
        let like = plain.split(&first).unwrap();
        assert_eq!(
            (like.rule, like.min, like.max),
            (Rule::LineCut, Cents(5), Cents(900))
        );
        let table = Rule::Tiers(vec![Tier {
            count: 4,
            cents: Cents(100),
        }]);
        let own = TopUp {
            rule: Some(table.clone()),
            min: Some(Cents(1)),
            ..plain.clone()
        };
        assert_eq!(own.split(&first).unwrap().rule, table);

        let of_table = Split {
            rule: table,
            ..split(Rule::Even, 4, 400)
        };
        assert_eq!(plain.split(&of_table), Err(TopUpError::NeedsRule));
        let too_small = TopUp {
            total: Cents(19),
            ..plain
        };
        let refused = too_small.split(&first).unwrap_err().to_string();
        assert!(refused.contains("0.19") && refused.contains("0.20"));
    }

    #[test]
    fn a_rain_has_its_limits_whatever_it_is_made_of() {
        let mut parts = Parts::new(part(1, PACKETS_MAX - 5, i64::from(PACKETS_MAX)));
        let refused = parts.push(part(2, 6, 6)).unwrap_err().to_string();
        assert_eq!(
            refused,
            "packets is 6: the rain has 99999995, and may have at most 100000000 in all"
        );
        parts.push(part(2, 5, 5)).unwrap();

        let mut parts = Parts::new(part(1, 1, TOTAL_MAX.0 - 10));
        let refused = parts.push(part(2, 1, 11)).unwrap_err();
        assert_eq!(
            refused,
            TopUpError::Total {
                more: Cents(11),
                has: Cents(TOTAL_MAX.0 - 10)
            }
        );

        let mut parts = Parts::new(part(0, 1, 1));
        for _ in 0..TOP_UPS_MAX {
            parts.push(part(1, 1, 1)).unwrap();
        }
        assert_eq!(parts.push(part(1, 1, 1)), Err(TopUpError::TooMany));
    }
}
