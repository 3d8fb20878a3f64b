use super::Cents;
use super::draw::Stream;

/// One chunk's part of the rain: `packets · min ≤ total ≤ packets · max`, all in cents, at most 1,000 packets.
///
/// The rules below append `packets` amounts within [min, max] that add up to `total`. Their order follows the rule; the chunk is
/// shuffled afterwards.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    pub total: u64,
    pub packets: u64,
    pub min: u64,
    pub max: u64,
}

impl Share {
    /// What is left to split once every packet has its minimum.
    fn surplus(&self) -> u64 {
        self.total - self.packets * self.min
    }

    /// The most a packet may get above the minimum. The surplus is at most `packets` times this.
    fn cap(&self) -> u64 {
        self.max - self.min
    }
}

/// The quotient for everyone, and one cent more for as many packets as the remainder has cents.
pub fn even(share: &Share, amounts: &mut Vec<Cents>) {
    let quotient = share.total / share.packets;
    let remainder = share.total % share.packets;
    amounts.extend((0..share.packets).map(|i| cents(quotient + u64::from(i < remainder))));
}

/// With surplus R left for r ≥ 2 packets, the next one gets its minimum and x, uniform in [lo, hi],
/// hi = min(⌊2R/r⌋, cap), lo = max(0, ⌈2R/r⌉ − cap); the last one gets what is left.
///
/// Without a cap that is the familiar "up to twice the mean". Where twice the mean exceeds the cap, lo rises as much as hi falls, so the
/// mean of x stays R/r to within half a cent: a mere cut at the cap would push money to the packets drawn last.
///
/// Always feasible: let 0 ≤ R ≤ r·cap. Then lo ≤ hi, since R/r ≤ cap makes ⌈2R/r⌉ − cap ≤ cap. What is left, R − x, is
/// * not negative: x ≤ 2R/r ≤ R;
/// * at most (r−1)·cap: x ≥ 2R/r − cap, and 2R/r − cap ≥ R − (r−1)·cap ⇔ (r−2)·cap ≥ (r−2)·R/r.
///
/// So the condition holds again for r − 1, and with r = 1 it says that the last packet is within the cap.
pub fn double_mean(stream: &mut Stream, share: &Share, amounts: &mut Vec<Cents>) {
    let cap = share.cap();
    let mut surplus = share.surplus();
    for packets_left in (2..=share.packets).rev() {
        let twice_mean = 2 * surplus / packets_left;
        let twice_mean_up = (2 * surplus).div_ceil(packets_left);
        let hi = twice_mean.min(cap);
        let lo = twice_mean_up.saturating_sub(cap);
        let x = lo + stream.below(hi - lo + 1);
        amounts.push(cents(share.min + x));
        surplus -= x;
    }
    amounts.push(cents(share.min + surplus));
}

/// The surplus is a line, cut at r − 1 uniform points; each packet gets its minimum and one piece. What exceeds the cap is a line
/// again, cut among the packets that still have room, until nothing exceeds it.
pub fn line_cut(stream: &mut Stream, share: &Share, amounts: &mut Vec<Cents>) {
    cut_line(stream, share.surplus(), share.packets as usize, amounts);
    let cap = cents(share.cap());
    hand_on_excess(stream, cap, amounts);
    for amount in amounts.iter_mut() {
        amount.0 += share.min as i64;
    }
}

/// Replaces `pieces` by the `parts` ≥ 1 pieces of a line, from its start to its end.
fn cut_line(stream: &mut Stream, length: u64, parts: usize, pieces: &mut Vec<Cents>) {
    pieces.clear();
    pieces.extend((1..parts).map(|_| cents(stream.below(length + 1))));
    pieces.push(cents(length));
    pieces.sort_unstable();
    let mut start = 0;
    for piece in pieces {
        let end = piece.0;
        piece.0 = end - start;
        start = end;
    }
}

/// Takes what exceeds `cap` and cuts it among the packets below it.
///
/// Ends: a round that leaves an excess has filled a packet that had room, and a full packet neither loses nor gets anything in later
/// rounds, so there are at most as many rounds as packets. While there is an excess there is room for all of it, since all pieces
/// together are at most packets · cap; so `open` is never empty, and a single open packet takes the rest.
fn hand_on_excess(stream: &mut Stream, cap: Cents, amounts: &mut [Cents]) {
    let mut open = Vec::new();
    let mut pieces = Vec::new();
    loop {
        let mut excess = 0;
        for amount in amounts.iter_mut() {
            excess += (amount.0 - cap.0).max(0);
            *amount = (*amount).min(cap);
        }
        if excess == 0 {
            return;
        }
        open.clear();
        open.extend((0..amounts.len()).filter(|&i| amounts[i] < cap));
        cut_line(stream, excess as u64, open.len(), &mut pieces);
        for (&i, piece) in open.iter().zip(&pieces) {
            amounts[i].0 += piece.0;
        }
    }
}

/// No amount exceeds [`super::TOTAL_MAX`], except a `max` that is no limit, which came from an i64.
fn cents(amount: u64) -> Cents {
    Cents(amount as i64)
}

#[cfg(test)]
mod tests {
    use super::super::Seed;
    use super::*;

    fn stream(number: u64) -> Stream {
        Stream::new(&Seed([3; 32]), number)
    }

    fn share(total: u64, packets: u64, min: u64, max: u64) -> Share {
        Share {
            total,
            packets,
            min,
            max,
        }
    }

    fn sum(amounts: &[Cents]) -> u64 {
        amounts.iter().map(|a| a.0 as u64).sum()
    }

    /// Mean and standard deviation in whole units.
    fn mean_and_deviation(amounts: &[Cents]) -> (f64, f64) {
        let n = amounts.len() as f64;
        let mean = amounts.iter().map(|a| a.0 as f64).sum::<f64>() / n;
        let square = amounts
            .iter()
            .map(|a| (a.0 as f64 - mean).powi(2))
            .sum::<f64>()
            / n;
        (mean / 100.0, square.sqrt() / 100.0)
    }

    fn first_packets(rule: fn(&mut Stream, &Share, &mut Vec<Cents>)) -> Vec<Cents> {
        let share = share(10_000, 10, 1, 10_000);
        let mut stream = stream(0);
        let mut amounts = Vec::new();
        (0..40_000)
            .map(|_| {
                amounts.clear();
                rule(&mut stream, &share, &mut amounts);
                amounts[0]
            })
            .collect()
    }

    // For 100.00 in 10 packets the published deviations of the first packet are 20/√12 = 5.77 for the double mean and
    // 100·√(9/1100) = 9.05 for the line cut, around a mean of 10.00. Our surplus is 99.90, which makes them 5.77 and 9.04. With 40,000
    // draws the deviation of the mean is 0.029 and 0.045; the tolerances are four of them.
    #[test]
    fn the_first_packet_of_a_double_mean_varies_by_5_77() {
        let (mean, deviation) = mean_and_deviation(&first_packets(double_mean));
        assert!((mean - 10.00).abs() < 0.12, "{mean}");
        assert!((deviation - 5.77).abs() < 0.06, "{deviation}");
        let largest = first_packets(double_mean).into_iter().max();
        assert!(largest <= Some(Cents(1_999)), "0.01 + 2 · 99.90 / 10");
    }

    #[test]
    fn the_first_packet_of_a_line_cut_varies_by_9_05() {
        let (mean, deviation) = mean_and_deviation(&first_packets(line_cut));
        assert!((mean - 10.00).abs() < 0.18, "{mean}");
        assert!((deviation - 9.05).abs() < 0.20, "{deviation}");
    }

    #[test]
    fn an_even_share_gives_the_remainder_cent_by_cent() {
        let mut amounts = Vec::new();
        even(&share(1_003, 4, 1, 1_000), &mut amounts);
        assert_eq!(amounts, [251, 251, 251, 250].map(Cents));
    }

    #[test]
    fn two_packets_of_a_double_mean_are_any_two_that_add_up() {
        // Surplus 3, so x is uniform in 0..=3: 1+4, 2+3, 3+2, 4+1, 500 each; deviation 19, five of them 97.
        let mut seen = [0u32; 4];
        let mut stream = stream(1);
        for _ in 0..2_000 {
            let mut amounts = Vec::new();
            double_mean(&mut stream, &share(5, 2, 1, 5), &mut amounts);
            assert_eq!(sum(&amounts), 5);
            seen[amounts[0].0 as usize - 1] += 1;
        }
        assert!(seen.iter().all(|n| n.abs_diff(500) < 97), "{seen:?}");
    }

    #[test]
    fn three_packets_of_a_line_cut_follow_the_cuts() {
        // Surplus 1 and two cuts, each at 0 or 1: both at 0 (1/4) → 1 1 2, one each (1/2) → 1 2 1, both at 1 (1/4) → 2 1 1.
        let mut seen = std::collections::BTreeMap::new();
        let mut stream = stream(2);
        for _ in 0..4_000 {
            let mut amounts = Vec::new();
            line_cut(&mut stream, &share(4, 3, 1, 4), &mut amounts);
            *seen.entry(amounts).or_insert(0u32) += 1;
        }
        for (amounts, expected) in [([1, 1, 2], 1_000), ([1, 2, 1], 2_000), ([2, 1, 1], 1_000)] {
            let n = seen.remove(amounts.map(Cents).as_slice()).unwrap();
            assert!(n.abs_diff(expected) < 160, "{amounts:?} {n}"); // five deviations of √1000
        }
        assert!(seen.is_empty(), "{seen:?}");
    }

    #[test]
    fn a_cap_that_bites_keeps_the_mean_of_the_first_double_mean_packet() {
        // Mean 7.00 and cap 10.00 above nothing: 2R/r = 14.00, so x is uniform in [4.00, 10.00], deviation 6/√12 = 1.73.
        let mut stream = stream(3);
        let first: Vec<Cents> = (0..10_000)
            .map(|_| {
                let mut amounts = Vec::new();
                double_mean(&mut stream, &share(7_010, 10, 1, 1_001), &mut amounts);
                amounts[0]
            })
            .collect();
        let (mean, deviation) = mean_and_deviation(&first);
        assert!((mean - 7.01).abs() < 0.09, "{mean}");
        assert!((deviation - 1.73).abs() < 0.05, "{deviation}");
        assert!(first.iter().all(|a| (401..=1_001).contains(&a.0)));
    }

    #[test]
    fn every_rule_fills_every_packet_when_the_mean_is_the_bound() {
        for (total, min, max) in [(5_000, 5, 5), (5_000, 5, 900), (5_000, 1, 5)] {
            for rule in [double_mean, line_cut] {
                let mut amounts = Vec::new();
                rule(&mut stream(4), &share(total, 1_000, min, max), &mut amounts);
                assert_eq!(amounts, vec![Cents(5); 1_000], "{min} to {max}");
            }
        }
    }

    #[test]
    fn a_cap_one_cent_above_the_mean_is_kept() {
        for packets in [1u64, 2, 3, 10, 999, 1_000] {
            for mean in [2u64, 3, 50, 5_000] {
                for rule in [double_mean, line_cut] {
                    let share = share(packets * mean, packets, 1, mean + 1);
                    let mut amounts = Vec::new();
                    rule(&mut stream(packets), &share, &mut amounts);
                    assert_eq!(amounts.len() as u64, packets);
                    assert_eq!(sum(&amounts), share.total, "{share:?}");
                    let within = |a: &Cents| (1..=mean as i64 + 1).contains(&a.0);
                    assert!(amounts.iter().all(within), "{share:?}");
                }
            }
        }
    }
}
