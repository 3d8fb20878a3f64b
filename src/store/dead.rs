//! Dead letters of a rain: found, taken back, never trimmed.

use std::collections::BTreeMap;

use redis::Value;

use super::bucket::{Bucket, DeadLetter, or_node_clock};
use super::{StoreError, keys, script};
use crate::config::LEASE_BATCH_MAX;
use crate::rain::PacketId;

/// Which letters are meant. An empty filter means all.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// What stands before the colon of a reason, like `conflict`.
    pub reason: Option<String>,
}

impl Filter {
    pub fn accepts(&self, letter: &DeadLetter) -> bool {
        self.reason
            .as_ref()
            .is_none_or(|reason| letter.reason_kind() == reason)
    }
}

impl DeadLetter {
    pub fn reason_kind(&self) -> &str {
        kind(&self.reason)
    }
}

/// The kind of a reason: what stands before its colon. It names nobody.
pub fn kind(reason: &str) -> &str {
    reason.split(':').next().unwrap_or_default()
}

/// A page of letters by packet id.
#[derive(Debug, Default)]
pub struct Letters {
    pub letters: Vec<DeadLetter>,
    /// Whether there are more behind the last one.
    pub more: bool,
    /// Texts that are no letters.
    pub unreadable: Vec<String>,
}

/// The first `limit` letters after packet `after`, over all buckets of a rain. Reads every letter of the rain: 100,000 take a fraction of a second.
pub async fn list(
    buckets: &[Bucket],
    filter: &Filter,
    after: Option<PacketId>,
    limit: usize,
) -> Result<Letters, StoreError> {
    // Two claims of one packet are two letters.
    let mut found: BTreeMap<(PacketId, String), DeadLetter> = BTreeMap::new();
    let mut page = Letters::default();
    for bucket in buckets {
        let mut cursor = Some(0);
        while let Some(at) = cursor {
            let (next, letters) = bucket.dead_scan(at).await?;
            for letter in letters {
                match letter {
                    Ok(letter)
                        if filter.accepts(&letter) && Some(letter.claim.packet.id) > after =>
                    {
                        found.insert((letter.claim.packet.id, letter.field.clone()), letter);
                        if found.len() > limit {
                            found.pop_last();
                            page.more = true;
                        }
                    }
                    Ok(_) => {}
                    Err(text) => page.unreadable.push(text),
                }
            }
            cursor = (next != 0).then_some(next);
        }
    }
    page.letters = found.into_values().collect();
    page.unreadable.sort();
    page.unreadable.dedup();
    Ok(page)
}

/// The letter of one packet, and the bucket it lies in.
pub async fn find(
    buckets: &[Bucket],
    packet: PacketId,
) -> Result<Option<(Bucket, DeadLetter)>, StoreError> {
    for bucket in buckets {
        if let Some(letter) = bucket.dead_letter(packet).await? {
            return Ok(Some((bucket.clone(), letter)));
        }
    }
    Ok(None)
}

/// One step of a walk over the letters of a bucket that the filter accepts, from cursor 0 until the next one is `None`.
pub async fn page(
    bucket: &Bucket,
    filter: &Filter,
    cursor: u64,
) -> Result<(Option<u64>, Vec<DeadLetter>), StoreError> {
    let (next, letters) = bucket.dead_scan(cursor).await?;
    let accepted = letters
        .into_iter()
        .flatten()
        .filter(|letter| filter.accepts(letter));
    Ok(((next != 0).then_some(next), accepted.collect()))
}

impl Bucket {
    /// Takes dead letters, named by their fields, back into the delay queue, due at once, and has settlers look there now. Returns how many there
    /// were.
    pub async fn requeue(&self, now_ms: Option<i64>, fields: &[String]) -> Result<u64, StoreError> {
        let k = &self.keys;
        let mut taken = 0;
        for part in fields.chunks(LEASE_BATCH_MAX) {
            let mut args = vec![or_node_clock(now_ms)];
            args.extend_from_slice(part);
            taken += self
                .run_count(&script::REQUEUE, &[&k.dead, &k.retry], &args)
                .await?;
        }
        if taken > 0 {
            let mut news = redis::cmd("PUBLISH");
            news.arg(keys::RAIN_CHANNEL).arg(self.tag.rain.get());
            // Lost news cost a wait: settlers come by themselves, too.
            if let Err(error) = self.route.call(&news).await {
                tracing::debug!(%error, bucket = %self.tag, "settlers cannot be told of claims that are due again");
            }
        }
        Ok(taken as u64)
    }

    /// The dead letter of one packet.
    pub async fn dead_letter(&self, packet: PacketId) -> Result<Option<DeadLetter>, StoreError> {
        let reply = self
            .route
            .call(
                redis::cmd("HGET")
                    .arg(&self.keys.dead)
                    .arg(packet.to_string()),
            )
            .await?;
        match &reply {
            Value::Nil => Ok(None),
            reply => {
                let field = packet.to_string();
                let letter = super::bucket::text(reply)
                    .and_then(|text| super::bucket::parse_letter(&field, text));
                letter.map(Some).ok_or_else(|| script::BURY.misread(reply))
            }
        }
    }
}
