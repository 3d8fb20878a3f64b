//! Loading a rain: chunk *k* of the allocation is cut into the buckets' parts and appended where *k* chunks are loaded. A load that was
//! interrupted goes on where it stopped; one that runs twice changes nothing.

use futures_util::future::try_join_all;
use futures_util::{StreamExt, stream};

use super::{Steward, StewardError};
use crate::rain::split::Allocation;
use crate::rain::{Packet, Rain};
use crate::store::StoreError;
use crate::store::bucket::Bucket;

/// Chunks on their way. On one connection they arrive in order; one that is lost stops the later ones, which find it missing before them.
const CHUNKS_AT_ONCE: usize = 4;

/// The bucket of a packet: neighbours in the allocation go to different buckets, so all buckets hold the same number but one.
pub fn bucket_of_packet(index: u32, buckets: usize) -> usize {
    index as usize % buckets
}

impl Steward {
    /// Puts every packet of the rain into its pool. Returns false when the rain was called off meanwhile.
    pub(super) async fn load(&self, rain: &Rain) -> Result<bool, StewardError> {
        let fault = |problem: String| StewardError::Rain {
            rain: rain.id,
            problem,
        };
        let allocation = rain
            .split
            .allocation(&rain.seed)
            .map_err(|error| fault(error.to_string()))?;
        let buckets = self.store.buckets(rain);
        let chunks = rain.split.chunks();
        loop {
            let loaded = try_join_all(buckets.iter().map(Bucket::chunks_loaded)).await?;
            let first = loaded.into_iter().min().unwrap_or(chunks);
            if first >= chunks {
                return Ok(true);
            }
            let mut calls = stream::iter(first..chunks)
                .map(|chunk| load_chunk(rain, &allocation, &buckets, chunk))
                .buffered(CHUNKS_AT_ONCE);
            while let Some(done) = calls.next().await {
                match done? {
                    Loaded::Yes => {}
                    Loaded::GateClosed => return Ok(false),
                    // Somebody lost a chunk before this one: start again from what is there.
                    Loaded::TooEarly => break,
                }
            }
        }
    }
}

enum Loaded {
    Yes,
    TooEarly,
    GateClosed,
}

/// One chunk, cut into the buckets' parts.
async fn load_chunk(
    rain: &Rain,
    allocation: &Allocation,
    buckets: &[Bucket],
    chunk: u32,
) -> Result<Loaded, StoreError> {
    let mut amounts = vec![];
    allocation.chunk(chunk, &mut amounts);
    let mut parts = vec![vec![]; buckets.len()];
    for (index, cents) in rain.split.chunk_range(chunk).zip(amounts) {
        parts[bucket_of_packet(index, buckets.len())].push(Packet {
            id: rain.id.packet(index),
            cents,
        });
    }
    let calls = buckets
        .iter()
        .zip(&parts)
        .map(|(bucket, packets)| bucket.load(chunk, packets));
    let answers = try_join_all(calls).await?;
    Ok(if answers.contains(&None) {
        Loaded::GateClosed
    } else if answers.iter().flatten().all(|loaded| *loaded > chunk) {
        Loaded::Yes
    } else {
        Loaded::TooEarly
    })
}
