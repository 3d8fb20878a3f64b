//! What is left of a closed rain goes back to its sponsor, once.

use futures_util::future::try_join_all;

use super::advance::{chunks_of, fault};
use super::audit::{PAGE, amounts};
use super::load::Reach;
use super::{Steward, StewardError};
use crate::clock::now_ms;
use crate::ledger::Booking;
use crate::rain::{Cents, Rain};
use crate::store::bucket::{Bucket, Shut};
use crate::trace::Span;

impl Steward {
    pub(super) async fn refund_when_due(&self, rain: &Rain) -> Result<(), StewardError> {
        let now = now_ms();
        // A rain without a closing time never opened: it was called off, and is refunded at once.
        let due = rain
            .window
            .closes_at_ms()
            .map_or(now, |closes| closes.saturating_add(rain.refund_after_ms));
        if now < due && rain.refund_after_ms > 0 {
            return Ok(());
        }
        Span::of_rain("steward.refund", rain.id, self.refund(rain, now)).await
    }

    async fn refund(&self, rain: &Rain, now: i64) -> Result<(), StewardError> {
        // Shut once more, whatever was done before: a node may have forgotten. Then nothing is given any more, and what was given
        // arrives before it is counted.
        let (buckets, chunks) = (self.store.buckets(rain), chunks_of(rain));
        try_join_all(buckets.iter().map(|bucket| bucket.close(chunks))).await?;
        self.finish_transfers(rain, &buckets).await?;
        let shut = try_join_all(buckets.iter().map(|bucket| bucket.close(chunks))).await?;
        let loaded = chunks.is_some();
        if loaded && shut.iter().any(|shut| shut.suspect) {
            // What lies there now may have been won: repaired in the next round.
            return Ok(());
        }
        let left = if loaded {
            match self.left_of(rain, &buckets, &shut).await? {
                Some(left) => left,
                None => return Ok(()),
            }
        } else if shut.iter().any(|shut| shut.winners > 0) {
            return Err(fault(rain, "was never loaded, yet it has winners".into()));
        } else {
            // Its gates have never been open: all of it is left, in the pools or not yet in them.
            rain.parts.total()
        };
        crate::crash::point("refund.counted");
        let booking = self.ledger.refund(rain.id, left, now).await?;
        crate::crash::point("refund.recorded");
        match booking {
            Booking::Done | Booking::Existed => {
                tracing::info!(rain = %rain.id, refunded = %left, "rain refunded");
                let rain = self.ledger.rain(rain.id).await?;
                self.publish(&rain).await
            }
            Booking::Different { cents, .. } => Err(fault(
                rain,
                format!("was refunded with {cents} before, but {left} is left in its pools"),
            )),
        }
    }

    /// What is in the pools, and what never got there: packets of a top-up that was not loaded before the close.
    ///
    /// The gates are shut, so neither can change. Every packet that has been loaded must be in its pool or won, and what a pool holds must be
    /// the allocation's own, once, and not paid: what a damaged pool says is not paid out.
    ///
    /// `None` when a packet that is paid lies in a pool: a settler recorded its credit after the bucket had been repaired. Then the buckets are
    /// suspect once more, and repaired in the next round.
    async fn left_of(
        &self,
        rain: &Rain,
        buckets: &[Bucket],
        shut: &[Shut],
    ) -> Result<Option<Cents>, StewardError> {
        let amounts = amounts(rain).await?;
        let paid = self.paid(rain, amounts.len()).await?;
        let mut counted: u64 = shut.iter().map(|shut| shut.left + shut.winners).sum();
        let reach = Reach::new(&rain.parts, shut.iter().map(|shut| shut.chunks));
        let never_loaded = || (0..amounts.len()).filter(|index| !reach.has(*index as u32));
        let certain = rain.parts.loaded_packets() as usize;
        let lost = never_loaded().next().is_some_and(|index| index < certain);
        let loaded = amounts.len() - never_loaded().count();
        let mut won = vec![];
        if counted > loaded as u64 {
            // A repair makes everybody a winner again who was paid, also where another user was given the same packet meanwhile.
            won = won_in(rain, buckets, amounts.len()).await?;
            let packets = won.iter().filter(|won| **won).count() as u64;
            counted = shut.iter().map(|shut| shut.left).sum::<u64>() + packets;
        }
        if lost || counted != loaded as u64 {
            let problem = format!(
                "{counted} of its {} packets are in a pool or won: nothing is refunded before a person has looked",
                loaded.max(certain)
            );
            return Err(fault(rain, problem));
        }
        let mut seen = vec![false; amounts.len()];
        let mut left = Cents::ZERO;
        for index in never_loaded() {
            // As if it had been in a pool: there it must not be, nor be paid.
            seen[index] = true;
            if paid[index] || won.get(index) == Some(&true) {
                let problem = format!(
                    "packet {} is paid or won, and no pool has ever held it",
                    rain.id.packet(index as u32)
                );
                return Err(fault(rain, problem));
            }
            let sum = left.checked_add(amounts[index]);
            left = sum.ok_or_else(|| fault(rain, "the packets overflow".into()))?;
        }
        for (bucket, shut) in buckets.iter().zip(shut) {
            let mut start = 0;
            loop {
                let page = bucket.pool_page(start, PAGE).await?;
                start += page.len() as u64;
                for packet in &page {
                    let packet = packet.as_ref().map_err(|text| {
                        fault(rain, format!("pool {} holds \"{text}\"", bucket.tag))
                    })?;
                    let index = packet.id.index() as usize;
                    let ours =
                        packet.id.rain() == rain.id && amounts.get(index) == Some(&packet.cents);
                    if !ours || std::mem::replace(&mut seen[index], true) {
                        let problem = format!(
                            "pool {} holds {packet}, which is not its own or there twice",
                            bucket.tag
                        );
                        return Err(fault(rain, problem));
                    }
                    if won.get(index) == Some(&true) && !paid[index] {
                        let problem = format!("packet {} is won and lies in a pool", packet.id);
                        return Err(fault(rain, problem));
                    }
                    if paid[index] {
                        tracing::error!(rain = %rain.id, packet = %packet.id, "a packet that is paid lies in a pool");
                        self.distrust(rain).await?;
                        return Ok(None);
                    }
                    let sum = left.checked_add(packet.cents);
                    left = sum.ok_or_else(|| fault(rain, "the pools overflow".into()))?;
                }
                if (page.len() as u64) < PAGE {
                    break;
                }
            }
            if start != shut.left {
                return Err(fault(
                    rain,
                    format!("pool {} changed while it was counted", bucket.tag),
                ));
            }
        }
        Ok(Some(left))
    }

    /// Which packets the ledger has paid or given back.
    async fn paid(&self, rain: &Rain, packets: usize) -> Result<Vec<bool>, StewardError> {
        let mut paid = vec![false; packets];
        let mut after = None;
        loop {
            let page = self
                .ledger
                .credits_after(rain.id, after, PAGE as u32)
                .await?;
            let Some(last) = page.last() else { break };
            after = Some(last.packet.id.index());
            for credit in &page {
                if let Some(paid) = paid.get_mut(credit.packet.id.index() as usize) {
                    *paid = true;
                }
            }
        }
        for packet in self.ledger.discarded(rain.id).await? {
            if let Some(paid) = paid.get_mut(packet.id.index() as usize) {
                *paid = true;
            }
        }
        Ok(paid)
    }
}

/// Which packets somebody has won, by Redis.
async fn won_in(
    rain: &Rain,
    buckets: &[Bucket],
    packets: usize,
) -> Result<Vec<bool>, StewardError> {
    let mut won = vec![false; packets];
    for bucket in buckets {
        let mut cursor = 0;
        loop {
            let (next, winners) = bucket.winners_scan(cursor).await?;
            for winner in winners {
                let (_, packet) = winner.map_err(|text| {
                    fault(
                        rain,
                        format!("the winners of {} hold \"{text}\"", bucket.tag),
                    )
                })?;
                if packet.id.rain() == rain.id
                    && let Some(won) = won.get_mut(packet.id.index() as usize)
                {
                    *won = true;
                }
            }
            if next == 0 {
                break;
            }
            cursor = next;
        }
    }
    Ok(won)
}
