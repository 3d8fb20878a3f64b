//! Taps spread evenly over the buckets, but the last packets do not: while people tap a bucket that is empty and another is not, packets are moved.
//!
//! A transfer that somebody began is finished by whoever finds it.

use futures_util::future::join_all;

use super::advance::fault;
use super::{Steward, StewardError};
use crate::rain::Rain;
use crate::store::bucket::Bucket;
use crate::store::transfer::{Level, TRANSFER_MAX, Transfer};

/// Rounds of transfers in one step: a rain that goes on being uneven is looked at again in the next.
const ROUNDS: usize = 8;

impl Steward {
    /// Moves packets to where people tap in vain.
    pub(super) async fn balance(&self, rain: &Rain) -> Result<(), StewardError> {
        if rain.salts.len() < 2 {
            return Ok(());
        }
        let buckets = self.store.buckets(rain);
        let mut failed = None;
        for _ in 0..ROUNDS {
            let levels = join_all(buckets.iter().map(|bucket| bucket.level())).await;
            // A bucket whose node is away neither gives nor takes.
            let levels: Vec<Level> = levels.into_iter().map(Result::unwrap_or_default).collect();
            if failed.is_none() && levels.iter().any(|level| level.giving > 0) {
                // One that cannot be finished now keeps no other from being begun.
                failed = self.finish_transfers(rain, &buckets).await.err();
            }
            let Some((from, to, count)) = next_transfer(&levels) else {
                break;
            };
            let id = transfer_id(from, to).map_err(|problem| fault(rain, problem))?;
            let incarnation = &levels[to].incarnation;
            let given = buckets[from]
                .give(&id, to as u32, incarnation, count)
                .await?;
            if let Some(transfer) = given {
                finish(&buckets, &buckets[from], &transfer).await?;
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Finishes every transfer that is found under way.
    pub(super) async fn finish_transfers(
        &self,
        rain: &Rain,
        buckets: &[Bucket],
    ) -> Result<(), StewardError> {
        let mut failed = None;
        for bucket in buckets {
            match bucket.outbox().await {
                Ok(transfers) => {
                    for transfer in transfers {
                        let finished = match transfer {
                            Ok(transfer) => finish(buckets, bucket, &transfer).await,
                            Err(text) => Err(fault(
                                rain,
                                format!("outbox {} holds \"{text}\"", bucket.tag),
                            )),
                        };
                        failed = failed.or(finished.err());
                    }
                }
                Err(error) => failed = failed.or(Some(error.into())),
            }
        }
        // What could be finished is; the first that could not is told.
        failed.map_or(Ok(()), Err)
    }
}

/// Never the same twice: `take` knows by it what it has received.
fn transfer_id(from: usize, to: usize) -> Result<String, String> {
    let mut unique = [0u8; 16];
    getrandom::fill(&mut unique)
        .map_err(|error| format!("no random bytes for a transfer: {error}"))?;
    Ok(format!("{from}-{to}-{}", hex::encode(unique)))
}

async fn finish(
    buckets: &[Bucket],
    from: &Bucket,
    transfer: &Transfer,
) -> Result<(), StewardError> {
    let target = buckets.get(transfer.target as usize);
    let target = target.ok_or_else(|| StewardError::Rain {
        rain: from.tag.rain,
        problem: format!(
            "transfer {} is for bucket {}, which does not exist",
            transfer.id, transfer.target
        ),
    })?;
    if target.take(transfer).await? {
        from.given(transfer).await?;
    } else {
        // Whether the packets are here or there, only the whole picture tells: a repair looks at it.
        tracing::error!(transfer = %transfer.id, bucket = %from.tag, "a transfer to a bucket as it was before its repair");
        from.distrust().await?;
    }
    Ok(())
}

/// From the fullest bucket to an empty one in which somebody taps: its share of what both will then have, at least one packet.
fn next_transfer(levels: &[Level]) -> Option<(usize, usize, u64)> {
    let to = levels
        .iter()
        .position(|level| level.sound && level.pool == 0 && level.hungry)?;
    let (from, fullest) = levels
        .iter()
        .enumerate()
        .filter(|(_, level)| level.sound)
        .max_by_key(|(_, level)| level.pool)?;
    let count = fullest.pool.div_ceil(2).min(TRANSFER_MAX);
    (fullest.pool > 0).then_some((from, to, count))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn level(pool: u64, hungry: bool) -> Level {
        Level {
            pool,
            hungry,
            giving: 0,
            sound: true,
            incarnation: String::new(),
        }
    }

    #[test]
    fn packets_go_from_the_fullest_to_the_hungry() {
        let levels = [level(0, true), level(7, false), level(90, true)];
        assert_eq!(next_transfer(&levels), Some((2, 0, 45)));
        assert_eq!(
            next_transfer(&[level(0, true), level(1, true)]),
            Some((1, 0, 1)),
            "the last packet moves, too"
        );
        assert_eq!(
            next_transfer(&[level(0, true), level(5_000, false)]),
            Some((1, 0, 500))
        );
        assert_eq!(
            next_transfer(&[level(0, false), level(5, true)]),
            None,
            "nobody taps there"
        );
        assert_eq!(
            next_transfer(&[level(0, true), level(0, true)]),
            None,
            "nothing is left"
        );
    }
}
