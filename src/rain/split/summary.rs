use serde::{Deserialize, Serialize};

use super::{Cents, Rule, Seed, Split, SplitError};

/// Bars of a histogram, at most.
const BARS_MAX: i64 = 20;

/// What an allocation looks like, without its amounts.
///
/// Of a rain that has not ended it tells an operator what to expect, not where anything is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    pub packets: u32,
    #[serde(rename = "sum_cents")]
    pub sum: Cents,
    #[serde(rename = "smallest_cents")]
    pub smallest: Cents,
    #[serde(rename = "largest_cents")]
    pub largest: Cents,
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
    /// Computes every amount (twice: the range first, so that the bars fit it) and keeps none. Half a second to two seconds for 10 million packets:
    /// not on a thread that serves connections.
    pub fn summary(&self, seed: &Seed) -> Result<Summary, SplitError> {
        self.check()?;
        let (mut smallest, mut largest) = (self.max, self.min);
        let (mut packets, mut sum) = (0, 0);
        self.visit(seed, |amount, count| {
            smallest = smallest.min(amount);
            largest = largest.max(amount);
            packets += count;
            sum += amount.0 * i64::from(count);
        })?;

        let width = bar_width(smallest, largest);
        let first = smallest.0 / width;
        let mut histogram: Vec<Bar> = (first..=largest.0 / width)
            .map(|bar| Bar {
                from: Cents(bar * width),
                below: Cents((bar + 1) * width),
                packets: 0,
            })
            .collect();
        self.visit(seed, |amount, count| {
            histogram[(amount.0 / width - first) as usize].packets += count;
        })?;

        Ok(Summary {
            packets,
            sum: Cents(sum),
            smallest,
            largest,
            histogram,
        })
    }

    /// Every amount with the number of packets that have it, an amount perhaps several times. A prize table is its own answer.
    fn visit(&self, seed: &Seed, mut visit: impl FnMut(Cents, u32)) -> Result<(), SplitError> {
        match &self.rule {
            Rule::Tiers(tiers) => tiers.iter().for_each(|tier| visit(tier.cents, tier.count)),
            Rule::Even | Rule::DoubleMean | Rule::LineCut => {
                let allocation = self.allocation(seed)?;
                allocation.amounts().for_each(|amount| visit(amount, 1));
            }
        }
        Ok(())
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
            for bar in &summary.histogram {
                let within = amounts.iter().filter(|&&a| a >= bar.from && a < bar.below);
                assert_eq!(within.count() as u32, bar.packets, "{bar:?}");
            }
        }
    }
}
