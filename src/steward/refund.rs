//! What is left in the pools of a closed rain goes back to its sponsor, once.

use super::audit::PAGE;
use super::{Steward, StewardError};
use crate::clock::now_ms;
use crate::ledger::Booking;
use crate::rain::{Cents, Rain};

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
        let left = self.left_in_pools(rain).await?;
        match self.ledger.refund(rain.id, left, now).await? {
            Booking::Done | Booking::Existed => {
                tracing::info!(rain = %rain.id, refunded = %left, "rain refunded");
                let rain = self.ledger.rain(rain.id).await?;
                self.publish(&rain).await
            }
            Booking::Different { cents, .. } => Err(StewardError::Rain {
                rain: rain.id,
                problem: format!(
                    "was refunded with {cents} before, but {left} is left in its pools"
                ),
            }),
        }
    }

    /// The gates are shut, so the pools cannot change. Each packet must be the allocation's own, and stand there once: what a
    /// damaged pool says is not paid out.
    async fn left_in_pools(&self, rain: &Rain) -> Result<Cents, StewardError> {
        let fault = |problem: String| StewardError::Rain {
            rain: rain.id,
            problem,
        };
        let allocation = rain
            .split
            .allocation(&rain.seed)
            .map_err(|error| fault(error.to_string()))?;
        let amounts: Vec<Cents> = allocation.amounts().collect();
        let mut seen = vec![false; amounts.len()];
        let mut left = Cents::ZERO;
        for bucket in self.store.buckets(rain) {
            let mut start = 0;
            loop {
                let page = bucket.pool_page(start, PAGE).await?;
                start += page.len() as u64;
                for packet in &page {
                    let packet = packet
                        .as_ref()
                        .map_err(|text| fault(format!("pool {} holds \"{text}\"", bucket.tag)))?;
                    let index = packet.id.index() as usize;
                    let ours =
                        packet.id.rain() == rain.id && amounts.get(index) == Some(&packet.cents);
                    if !ours || std::mem::replace(&mut seen[index], true) {
                        return Err(fault(format!(
                            "pool {} holds {packet}, which is not its own or stands there twice",
                            bucket.tag
                        )));
                    }
                    left = left
                        .checked_add(packet.cents)
                        .ok_or_else(|| fault("the pools overflow".into()))?;
                }
                if (page.len() as u64) < PAGE {
                    break;
                }
            }
        }
        Ok(left)
    }
}
