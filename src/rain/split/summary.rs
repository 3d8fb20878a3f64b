use serde::{Deserialize, Serialize};

use super::{Allocation, CHUNK_PACKETS_MAX, Cents, Rule, Seed, Split, SplitError};

/// Bars of a histogram, at most.
const BARS_MAX: i64 = 20;

/// Packets of which every amount is computed: three times at most, together two seconds or less.
pub const EXACT_PACKETS_MAX: u32 = 10_000_000;

/// Of larger splits so many chunks, evenly spread: a million amounts.
const SAMPLE_CHUNKS: u32 = 1_000;

/// Counters with which the median is looked for, 512 KiB. A range of 655.36 is settled at once, each further round narrows it so many times.
const MEDIAN_BINS: usize = 65_536;

const _: () = assert!(EXACT_PACKETS_MAX > SAMPLE_CHUNKS * CHUNK_PACKETS_MAX);

/// What an allocation looks like, without its amounts.
///
/// Of a rain that has not ended it tells an operator what to expect, not where anything is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    pub packets: u32,
    /// Of all packets, also where only a sample was looked at: it is the total that is split.
    #[serde(rename = "sum_cents")]
    pub sum: Cents,
    #[serde(rename = "smallest_cents")]
    pub smallest: Cents,
    #[serde(rename = "largest_cents")]
    pub largest: Cents,
    /// Half of the packets have this or less. Of an even number the lower of the two in the middle.
    #[serde(rename = "median_cents")]
    pub median: Cents,
    /// Packets that smallest, largest, median and histogram were taken from: all of them up to [`EXACT_PACKETS_MAX`] and of every prize table; of
    /// more a sample of about a million.
    pub looked_at: u32,
    /// From the smallest to the largest amount without a gap, at most 20 bars of equal width: 1, 2 or 5 times a power of ten cents, and
    /// the edges are multiples of it.
    pub histogram: Vec<Bar>,
}

/// The packets with amounts from `from` up to, but not including, `below`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bar {
    #[serde(rename = "from_cents")]
    pub from: Cents,
    #[serde(rename = "below_cents")]
    pub below: Cents,
    pub packets: u32,
}

impl Split {
    /// Computes every amount, or those of a sample, three times (the range first, so that the bars fit it) and keeps none. Up to two seconds: not on
    /// a thread that serves connections.
    pub fn summary(&self, seed: &Seed) -> Result<Summary, SplitError> {
        let look = Look {
            allocation: self.allocation(seed)?,
            split: self,
        };
        let (mut smallest, mut largest, mut looked_at) = (self.max, self.min, 0);
        look.at_each(|amount, count| {
            smallest = smallest.min(amount);
            largest = largest.max(amount);
            looked_at += count;
        });

        let width = bar_width(smallest, largest);
        let first = smallest.0 / width;
        let mut histogram: Vec<Bar> = (first..=largest.0 / width)
            .map(|bar| Bar {
                from: Cents(bar * width),
                below: Cents((bar + 1) * width),
                packets: 0,
            })
            .collect();
        look.at_each(|amount, count| {
            histogram[(amount.0 / width - first) as usize].packets += count;
        });

        Ok(Summary {
            packets: self.packets,
            sum: self.total,
            smallest,
            largest,
            median: look.median(smallest, largest, looked_at),
            looked_at,
            histogram,
        })
    }
}

/// Amounts that can be gone through as often as it takes.
struct Look<'a> {
    split: &'a Split,
    allocation: Allocation,
}

impl Look<'_> {
    /// Each amount with the number of packets that have it, an amount perhaps several times. A prize table is its own answer.
    fn at_each(&self, mut visit: impl FnMut(Cents, u32)) {
        match &self.split.rule {
            Rule::Tiers(tiers) => tiers.iter().for_each(|tier| visit(tier.cents, tier.count)),
            Rule::Even | Rule::DoubleMean | Rule::LineCut => {
                let mut amounts = Vec::with_capacity(CHUNK_PACKETS_MAX as usize);
                for chunk in self.chunks() {
                    self.allocation.chunk(chunk, &mut amounts);
                    amounts.iter().for_each(|amount| visit(*amount, 1));
                }
            }
        }
    }

    fn chunks(&self) -> impl Iterator<Item = u32> {
        let all = self.split.chunks();
        let some = if self.split.packets > EXACT_PACKETS_MAX {
            SAMPLE_CHUNKS
        } else {
            all
        };
        (0..some).map(move |k| (u64::from(k) * u64::from(all) / u64::from(some)) as u32)
    }

    /// Counts the amounts in equal parts of the range, and goes on with the part that has the middle, until a part is one amount.
    fn median(&self, smallest: Cents, largest: Cents, packets: u32) -> Cents {
        // Amounts are above zero.
        let (mut from, mut below) = (smallest.0 as u64, largest.0 as u64 + 1);
        // How many amounts of the range, in their order, come before the median.
        let mut before = (packets - 1) / 2;
        while below - from > 1 {
            let width = (below - from).div_ceil(MEDIAN_BINS as u64);
            let mut bins = vec![0u32; (below - from).div_ceil(width) as usize];
            self.at_each(|amount, count| {
                let amount = amount.0 as u64;
                if (from..below).contains(&amount) {
                    bins[((amount - from) / width) as usize] += count;
                }
            });
            let mut bin = 0;
            while bins[bin] <= before {
                before -= bins[bin];
                bin += 1;
            }
            from += bin as u64 * width;
            below = below.min(from + width);
        }
        Cents(from as i64)
    }
}

/// The smallest of 1, 2, 5, 10, 20, 50, … cents with which at most [`BARS_MAX`] bars cover the range.
fn bar_width(smallest: Cents, largest: Cents) -> i64 {
    let mut power = 1;
    loop {
        for width in [power, 2 * power, 5 * power] {
            if largest.0 / width - smallest.0 / width < BARS_MAX {
                return width;
            }
        }
        power *= 10; // ends by 10¹⁵, the largest amount
    }
}

#[cfg(test)]
mod tests {
    use super::super::Tier;
    use super::*;

    #[test]
    fn bars_have_round_edges_and_are_at_most_twenty() {
        for (smallest, largest, width) in [
            (1, 1, 1),
            (1, 19, 1),
            (1, 20, 1),
            (0, 20, 2),
            (1, 39, 2),
            (1, 40, 5),
            (1, 1_999, 100),
            (1, 2_000, 200),
            (999_999, 1_000_001, 1),
            (1, 1_000_000_000_000_000, 100_000_000_000_000),
        ] {
            let found = bar_width(Cents(smallest), Cents(largest));
            assert_eq!(found, width, "{smallest} to {largest}");
        }
    }

    #[test]
    fn a_summary_of_a_prize_table_counts_every_prize() {
        let split = Split {
            rule: Rule::Tiers(vec![
                Tier {
                    count: 2,
                    cents: Cents(888),
                },
                Tier {
                    count: 98,
                    cents: Cents(8),
                },
            ]),
            total: Cents(2_560),
            packets: 100,
            min: Cents(1),
            max: Cents(100_000),
        };
        let summary = split.summary(&Seed([0; 32])).unwrap();
        assert_eq!(
            (summary.smallest, summary.largest, summary.sum),
            (Cents(8), Cents(888), Cents(2_560))
        );
        assert_eq!((summary.median, summary.looked_at), (Cents(8), 100));
        assert_eq!(summary.histogram.len(), 18); // 0.00 to 9.00 in steps of 0.50
        assert_eq!(summary.histogram[0].packets, 98);
        assert_eq!(
            serde_json::to_value(&summary.histogram[17]).unwrap(),
            serde_json::json!({"from_cents": 850, "below_cents": 900, "packets": 2})
        );
    }

    #[test]
    fn a_summary_agrees_with_the_amounts() {
        for rule in [Rule::Even, Rule::DoubleMean, Rule::LineCut] {
            let split = Split {
                rule,
                total: Cents(1_234_567),
                packets: 1_234,
                min: Cents(3),
                max: Cents(4_000),
            };
            let seed = Seed([9; 32]);
            let amounts: Vec<Cents> = split.allocation(&seed).unwrap().amounts().collect();
            let summary = split.summary(&seed).unwrap();
            assert_eq!((summary.packets, summary.sum), (1_234, Cents(1_234_567)));
            assert_eq!(Some(summary.smallest), amounts.iter().min().copied());
            assert_eq!(Some(summary.largest), amounts.iter().max().copied());
            let mut sorted = amounts.clone();
            sorted.sort();
            assert_eq!(summary.median, sorted[616]); // 617 of 1,234 have it or less
            assert_eq!(summary.looked_at, 1_234);
            for bar in &summary.histogram {
                let within = amounts.iter().filter(|&&a| a >= bar.from && a < bar.below);
                assert_eq!(within.count() as u32, bar.packets, "{bar:?}");
            }
        }
    }

    /// Worked by hand: 1.00 and 1,000,000.00 lie further apart than there are counters, so the search takes a second round.
    #[test]
    fn the_median_of_a_wide_range_is_an_amount_that_was_drawn() {
        let tier = |count, cents| Tier {
            count,
            cents: Cents(cents),
        };
        let tiers = vec![tier(3, 100), tier(1, 77_777_777), tier(3, 100_000_000)];
        let split = Split {
            rule: Rule::Tiers(tiers),
            total: Cents(377_778_077),
            packets: 7,
            min: Cents(1),
            max: Cents(100_000_000),
        };
        let summary = split.summary(&Seed([1; 32])).unwrap();
        assert_eq!(summary.median, Cents(77_777_777));
    }

    #[test]
    fn a_hundred_million_packets_are_looked_at_by_a_sample_that_says_so() {
        let split = Split {
            rule: Rule::DoubleMean,
            total: Cents(30_000_000_000),
            packets: 100_000_000,
            min: Cents(1),
            max: Cents(i64::MAX),
        };
        let summary = split.summary(&Seed([4; 32])).unwrap();
        assert_eq!(
            (summary.packets, summary.looked_at),
            (100_000_000, 1_000_000)
        );
        assert_eq!(summary.sum, Cents(30_000_000_000));
        // Uniform from 0.01 to about 6.00, mean 3.00: the median is near it.
        assert!(
            (285..=315).contains(&summary.median.0),
            "{:?}",
            summary.median
        );
        let counted: u32 = summary.histogram.iter().map(|bar| bar.packets).sum();
        assert_eq!(counted, summary.looked_at);
    }
}
