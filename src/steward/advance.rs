//! The next step of one rain. See the diagram at [`State`].

use futures_util::future::try_join_all;

use super::{Steward, StewardError};
use crate::clock::now_ms;
use crate::rain::{Rain, State, Step};
use crate::store::bucket::{Census, GateAnswer};
use crate::store::directory::Snapshot;

impl Steward {
    /// Takes the step that the rain's record asks for, if any. Taking it twice changes nothing.
    pub async fn advance(&self, rain: Rain) -> Result<(), StewardError> {
        match rain.state {
            State::Created => {
                if self.load(&rain).await? {
                    let rain = self.ledger.step(rain.id, Step::Load).await?;
                    tracing::info!(rain = %rain.id, packets = rain.split.packets, "rain loaded");
                    self.apply(&rain).await?;
                }
                Ok(())
            }
            State::Ready => {
                self.apply(&rain).await?;
                // The gates open by the nodes' clocks; this only records it.
                if rain
                    .window
                    .opens_at_ms
                    .is_some_and(|opens| opens <= now_ms())
                {
                    let rain = self.ledger.step(rain.id, Step::Open).await?;
                    self.apply(&rain).await?;
                }
                Ok(())
            }
            State::Open | State::Paused => {
                self.apply(&rain).await?;
                if rain
                    .window
                    .closes_at_ms()
                    .is_some_and(|closes| closes <= now_ms())
                {
                    let rain = self.ledger.step(rain.id, Step::Close).await?;
                    self.shut(&rain).await?;
                } else if !rain.sold_out && self.is_sold_out(&rain).await? {
                    let rain = self.ledger.set_sold_out(rain.id, true).await?;
                    self.apply(&rain).await?;
                }
                Ok(())
            }
            State::Closed => {
                self.shut(&rain).await?;
                self.refund_when_due(&rain).await
            }
            State::Refunded => self.finish_when_settled(&rain).await,
            State::Finished => Ok(()),
        }
    }

    /// Makes gates and snapshot say what the record says. Gates first: what is published must be true.
    async fn apply(&self, rain: &Rain) -> Result<(), StewardError> {
        if self.applied(rain.id).version == Some(rain.version) {
            return Ok(());
        }
        let (chunks, paused) = (rain.split.chunks(), rain.state == State::Paused);
        let buckets = self.store.buckets(rain);
        let gates = buckets
            .iter()
            .map(|bucket| bucket.set_gate(chunks, paused, &rain.window, rain.version));
        for (bucket, answer) in buckets.iter().zip(try_join_all(gates).await?) {
            if answer == GateAnswer::NotLoaded {
                let problem = format!(
                    "bucket {} on node {} lost its packets",
                    bucket.tag, bucket.link.address.name
                );
                return Err(StewardError::Rain {
                    rain: rain.id,
                    problem,
                });
            }
        }
        self.store.publish(&Snapshot::of(rain)).await?;
        self.remember(rain.id, |applied| applied.version = Some(rain.version));
        Ok(())
    }

    /// Shuts every gate for ever, then says so.
    async fn shut(&self, rain: &Rain) -> Result<(), StewardError> {
        if !self.applied(rain.id).closed {
            try_join_all(self.store.buckets(rain).iter().map(|bucket| bucket.close())).await?;
            self.remember(rain.id, |applied| applied.closed = true);
            tracing::info!(rain = %rain.id, "rain closed");
        }
        self.publish(rain).await
    }

    pub(super) async fn publish(&self, rain: &Rain) -> Result<(), StewardError> {
        if self.applied(rain.id).version != Some(rain.version) {
            self.store.publish(&Snapshot::of(rain)).await?;
            self.remember(rain.id, |applied| applied.version = Some(rain.version));
        }
        Ok(())
    }

    pub(super) async fn census(&self, rain: &Rain) -> Result<Census, StewardError> {
        let buckets = self.store.buckets(rain);
        let counts = try_join_all(buckets.iter().map(|bucket| bucket.census())).await?;
        Ok(counts.into_iter().fold(Census::default(), Census::plus))
    }

    /// All pools empty. No packet comes into a pool of a loaded rain from outside, so what was seen empty stays empty.
    async fn is_sold_out(&self, rain: &Rain) -> Result<bool, StewardError> {
        Ok(self.census(rain).await?.pool == 0)
    }

    /// A refunded rain is finished when no claim is left in Redis and the audit balances. Its keys then expire.
    async fn finish_when_settled(&self, rain: &Rain) -> Result<(), StewardError> {
        self.publish(rain).await?;
        let census = self.census(rain).await?;
        if census.unsettled() > 0 || census.dead > 0 {
            return Ok(());
        }
        let report = super::audit::audit(&self.store, &self.ledger, rain).await?;
        if !report.balanced {
            let problem = format!(
                "audit UNBALANCED with {} differences: its keys are kept",
                report.differences_total
            );
            return Err(StewardError::Rain {
                rain: rain.id,
                problem,
            });
        }
        let keep_ms = self.settings.keep_keys.as_millis() as u64;
        try_join_all(
            self.store
                .buckets(rain)
                .iter()
                .map(|bucket| bucket.expire(keep_ms)),
        )
        .await?;
        let rain = self.ledger.step(rain.id, Step::Finish).await?;
        self.store.publish(&Snapshot::of(&rain)).await?;
        self.store.unlist(rain.id, keep_ms).await?;
        tracing::info!(rain = %rain.id, "rain finished: settled, refunded, audit balanced");
        Ok(())
    }
}
