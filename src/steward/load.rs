//! Loading a rain: chunk *k* of the allocation is cut into the buckets' parts and appended where *k* chunks are loaded. A load that was
//! interrupted goes on where it stopped; one that runs twice changes nothing.
//!
//! The packets of a top-up are further chunks. They may be won as soon as they are in a pool, so a node that may have lost some of them takes no
//! more: its bucket is repaired first, and has all of them then.

use futures_util::future::try_join_all;
use futures_util::{StreamExt, stream};

use super::advance::fault;
use super::{Steward, StewardError};
use crate::rain::{Packet, Parts, PartsAllocation, Rain};
use crate::store::StoreError;
use crate::store::bucket::Bucket;

/// Chunks on their way. On one connection they arrive in order; one that is lost stops the later ones, which find it missing before them.
const CHUNKS_AT_ONCE: usize = 4;
/// Chunks of a top-up in one step, 100,000 packets at most: a rain that falls needs its steward for other things, too.
const SLICE_CHUNKS: u32 = 100;

/// The bucket of a packet: neighbours in the allocation go to different buckets, so all buckets hold the same number but one.
pub fn bucket_of_packet(index: u32, buckets: usize) -> usize {
    index as usize % buckets
}

/// Which chunks are to be loaded.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Missing {
    /// All that are not there: nobody can have won any.
    All,
    /// Those of top-ups, a slice of them.
    TopUps,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Load {
    /// Every packet of the rain, as it is known here, is or has been in its pool.
    Done,
    /// The next step goes on.
    Slice,
    /// The rain is over: its gates are shut.
    Shut,
}

/// How far the buckets of a rain are loaded: for each the first index that has not been in its pool.
pub(super) struct Reach(Vec<u32>);

impl Reach {
    /// From the number of chunks that each bucket has.
    pub(super) fn new(parts: &Parts, chunks: impl Iterator<Item = u32>) -> Reach {
        Reach(chunks.map(|chunk| parts.chunk_range(chunk).start).collect())
    }

    /// As the buckets say now.
    pub(super) async fn of(parts: &Parts, buckets: &[Bucket]) -> Result<Reach, StoreError> {
        let chunks = chunks_loaded(buckets).await?;
        Ok(Reach::new(parts, chunks.into_iter()))
    }

    /// Whether a packet is or has been in its pool.
    pub(super) fn has(&self, index: u32) -> bool {
        index < self.0[bucket_of_packet(index, self.0.len())]
    }
}

impl Steward {
    /// Puts packets of the rain into their pools.
    pub(super) async fn load(&self, rain: &Rain, missing: Missing) -> Result<Load, StewardError> {
        let allocation = rain.parts.allocation();
        let allocation = allocation.map_err(|error| fault(rain, error.to_string()))?;
        let buckets = self.store.buckets(rain);
        let chunks = rain.parts.chunks();
        let mut slice = match missing {
            Missing::All => u32::MAX,
            Missing::TopUps => SLICE_CHUNKS,
        };
        loop {
            let loaded = chunks_loaded(&buckets).await?;
            let first = loaded.into_iter().min().unwrap_or(chunks);
            if first >= chunks {
                return Ok(Load::Done);
            }
            if slice == 0 {
                return Ok(Load::Slice);
            }
            let end = chunks.min(first.saturating_add(slice));
            let mut calls = stream::iter(first..end)
                .map(|chunk| load_chunk(rain, missing, &allocation, &buckets, chunk))
                .buffered(CHUNKS_AT_ONCE);
            while let Some(done) = calls.next().await {
                match done? {
                    Loaded::Yes => slice -= 1,
                    Loaded::GateClosed => return Ok(Load::Shut),
                    // Somebody lost a chunk before this one: start again from what is there.
                    Loaded::TooEarly => break,
                }
                if missing == Missing::TopUps {
                    crate::crash::point("top_up.chunk");
                }
            }
        }
    }
}

async fn chunks_loaded(buckets: &[Bucket]) -> Result<Vec<u32>, StoreError> {
    try_join_all(buckets.iter().map(Bucket::chunks_loaded)).await
}

enum Loaded {
    Yes,
    TooEarly,
    GateClosed,
}

/// One chunk, cut into the buckets' parts.
async fn load_chunk(
    rain: &Rain,
    missing: Missing,
    allocation: &PartsAllocation<'_>,
    buckets: &[Bucket],
    chunk: u32,
) -> Result<Loaded, StoreError> {
    let mut parts = vec![vec![]; buckets.len()];
    for (index, cents) in allocation.chunk(chunk) {
        parts[bucket_of_packet(index, buckets.len())].push(Packet {
            id: rain.id.packet(index),
            cents,
        });
    }
    let calls = buckets
        .iter()
        .zip(&parts)
        .map(async |(bucket, packets)| match missing {
            Missing::All => bucket.load(chunk, packets).await,
            Missing::TopUps => bucket.top_up(chunk, packets).await,
        });
    let answers = try_join_all(calls).await?;
    Ok(if answers.contains(&None) {
        Loaded::GateClosed
    } else if answers.iter().flatten().all(|loaded| *loaded > chunk) {
        Loaded::Yes
    } else {
        Loaded::TooEarly
    })
}
