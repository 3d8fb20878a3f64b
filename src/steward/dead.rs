//! Claims that were buried are told to webhooks: `claim.dead`.
//!
//! A claim dies in Redis, by a settler or by the lease script, and nobody writes SQL in that instant. So the steward looks at the dead
//! letters every second and records those that it does not know yet; the ledger knows them by claim and time, so that two stewards,
//! or one that starts again, record a letter once. Whoever takes a letter away (requeue, discard) records it before that.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use futures_util::future::try_join_all;

use super::{Steward, StewardError};
use crate::ledger::{BuriedClaim, Ledger, LedgerError};
use crate::rain::{Rain, RainId};
use crate::store::bucket::{Bucket, DeadLetter};

/// How late a webhook may hear of a dead claim.
const LOOK: Duration = Duration::from_secs(1);
/// Letters in one transaction.
const BATCH: usize = 500;

/// By field and time, of the letters that lie there.
type Known = HashSet<(String, i64)>;

/// Records letters that were found. Those that are recorded already stay as they are.
pub async fn record(ledger: &Ledger, letters: &[DeadLetter]) -> Result<(), LedgerError> {
    for letters in letters.chunks(BATCH) {
        let buried: Vec<BuriedClaim> = letters.iter().map(buried).collect();
        ledger.record_dead(&buried).await?;
    }
    Ok(())
}

fn buried(letter: &DeadLetter) -> BuriedClaim {
    BuriedClaim {
        field: letter.field.clone(),
        claim: letter.claim.clone(),
        at_ms: letter.at_ms,
        attempts: letter.attempts,
        reason: letter.reason.clone(),
    }
}

impl Steward {
    pub(super) async fn tell_of_the_dead(&self) {
        let mut known: HashMap<RainId, Known> = HashMap::new();
        let mut look = tokio::time::interval(LOOK);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            look.tick().await;
            let rains = match self.ledger.unfinished_rains().await {
                Ok(rains) => rains,
                Err(error) => {
                    tracing::debug!(%error, "rains cannot be listed; dead letters wait");
                    continue;
                }
            };
            known.retain(|id, _| rains.iter().any(|rain| rain.id == *id));
            for rain in rains {
                let before = known.remove(&rain.id).unwrap_or_default();
                match self.tell_of_new(&rain, &before).await {
                    Ok(now) => known.insert(rain.id, now),
                    Err(error) => {
                        tracing::debug!(rain = %rain.id, %error, "dead letters cannot be told now");
                        known.insert(rain.id, before)
                    }
                };
            }
        }
    }

    /// Returns those that lie there, all of them recorded.
    async fn tell_of_new(&self, rain: &Rain, known: &Known) -> Result<Known, StewardError> {
        let buckets = self.store.buckets(rain);
        let letters = try_join_all(buckets.iter().map(letters)).await?.concat();
        let place = |letter: &DeadLetter| (letter.field.clone(), letter.at_ms);
        let new = letters
            .iter()
            .filter(|letter| !known.contains(&place(letter)));
        let new: Vec<DeadLetter> = new.cloned().collect();
        if !new.is_empty() {
            crate::crash::point("dead.seen");
            record(&self.ledger, &new).await?;
            crate::crash::point("dead.recorded");
        }
        Ok(letters.iter().map(place).collect())
    }
}

/// Those that can be read: the others name no packet, and stand in the list of dead letters.
async fn letters(bucket: &Bucket) -> Result<Vec<DeadLetter>, StewardError> {
    let (mut found, mut cursor) = (vec![], Some(0));
    while let Some(at) = cursor {
        let (next, page) = bucket.dead_scan(at).await?;
        found.extend(page.into_iter().flatten());
        cursor = (next != 0).then_some(next);
    }
    Ok(found)
}
