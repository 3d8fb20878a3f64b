//! Loading a rain: chunk *k* of the allocation is cut into the buckets' parts and appended where *k* chunks are loaded. A load that was
//! interrupted goes on where it stopped; one that runs twice changes nothing.
//!
//! The packets of a top-up are further chunks. They may be won as soon as they are in a pool, so they are never loaded a second time: what a
//! node has lost of them is for a person to decide, as it is for the rest of an open rain.

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
            if missing == Missing::TopUps {
                self.refuse_lost(rain, &buckets, first).await?;
            }
            let end = chunks.min(first.saturating_add(slice));
            let mut calls = stream::iter(first..end)
                .map(|chunk| load_chunk(rain, &allocation, &buckets, chunk))
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

    /// Where a bucket once had chunks that it lacks now, their packets may have been won: loading them again would give them twice.
    ///
    /// That the record calls their part loaded tells so, or one of them that has been paid. `first` is the first chunk that a bucket lacks.
    async fn refuse_lost(
        &self,
        rain: &Rain,
        buckets: &[Bucket],
        first: u32,
    ) -> Result<(), StewardError> {
        let mut lost = first < rain.parts.loaded_chunks();
        if !lost {
            let mut paid = vec![];
            let from = rain.parts.chunk_range(first).start;
            self.each_paid(rain, from, |index| paid.push(index)).await?;
            // Asked after the credits: a packet that was paid by then had been loaded by then.
            let reach = Reach::of(&rain.parts, buckets).await?;
            lost = paid.into_iter().any(|index| !reach.has(index));
        }
        if lost {
            let problem = "a node lost packets that may have been won, so the top-up is not loaded: restore the node's append-only file, or close the rain";
            return Err(fault(rain, problem.into()));
        }
        Ok(())
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
