//! Loading a rain: chunk *k* of the allocation is cut into the buckets' parts and appended where *k* chunks are loaded. A load that was
//! interrupted goes on where it stopped; one that runs twice changes nothing.

use futures_util::StreamExt;
use futures_util::stream;

use super::{Steward, StewardError};
use crate::rain::split::Allocation;
use crate::rain::{Packet, Rain};
use crate::store::bucket::Bucket;

/// Calls on their way to one bucket. They arrive in order on one connection; one that is lost stops the later ones, which find a
/// chunk missing before them.
const CALLS_AT_ONCE: usize = 4;

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
        let loads = buckets
            .iter()
            .enumerate()
            .map(|(number, bucket)| self.load_bucket(rain, &allocation, number, bucket));
        let loaded = futures_util::future::try_join_all(loads).await?;
        Ok(loaded.into_iter().all(|loaded| loaded))
    }

    async fn load_bucket(
        &self,
        rain: &Rain,
        allocation: &Allocation,
        number: usize,
        bucket: &Bucket,
    ) -> Result<bool, StewardError> {
        let chunks = rain.split.chunks();
        let mut first = bucket.chunks_loaded().await?;
        while first < chunks {
            let mut calls = stream::iter(first..chunks)
                .map(|chunk| {
                    let packets = part(rain, allocation, chunk, number);
                    async move { (chunk, bucket.load(chunk, &packets).await) }
                })
                .buffered(CALLS_AT_ONCE);
            while let Some((chunk, loaded)) = calls.next().await {
                match loaded? {
                    None => return Ok(false),
                    Some(loaded) if loaded > chunk => first = loaded,
                    // Somebody lost a chunk before this one: go back to it.
                    Some(loaded) => {
                        first = loaded;
                        break;
                    }
                }
            }
        }
        Ok(true)
    }
}

/// The packets of one chunk that belong to bucket `number`.
fn part(rain: &Rain, allocation: &Allocation, chunk: u32, number: usize) -> Vec<Packet> {
    let mut amounts = vec![];
    allocation.chunk(chunk, &mut amounts);
    let buckets = rain.salts.len();
    let indexed = rain.split.chunk_range(chunk).zip(amounts);
    indexed
        .filter(|(index, _)| bucket_of_packet(*index, buckets) == number)
        .map(|(index, cents)| Packet {
            id: rain.id.packet(index),
            cents,
        })
        .collect()
}
