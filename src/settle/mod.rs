//! claim → credit → message → ack.
//!
//! A settler leases claims, has them credited in one transaction, and removes them when that has committed and their users' inboxes have the
//! message. A crash at any point repeats work, never money or messages: the key of both is the packet id.

/// What becomes of a claim after a try to credit it.
mod decide;
/// The user's message after the credit, and the news of it.
mod notify;
/// Which bucket is looked at next: oldest rains first, every rain in its turn.
mod rota;

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::clock::now_ms;
use crate::config::{self, LEASE_BATCH_MAX};
use crate::jitter::Jitter;
use crate::ledger::{CREDIT_BATCH_MAX, Ledger, LedgerError};
use crate::rain::Claim;
use crate::store::bucket::{Bucket, Lease};
use crate::store::inbox::Credited;
use crate::store::{Store, StoreError};
use decide::{Decision, decide};
use notify::Notifier;
use rota::Rota;

/// One transaction takes whatever a settler holds.
const _: () = assert!(config::SETTLE_BATCH_MAX <= CREDIT_BATCH_MAX);

/// Buckets leased from at the same time.
const ROUND_MAX: usize = 16;

/// How long a settler waits for a ledger that is away before it looks again.
const OUTAGE_WAIT: Duration = Duration::from_millis(500);

/// Claims of one bucket under one lease.
struct Held {
    bucket: Bucket,
    lease: Lease,
}

struct Settler {
    settings: config::Settle,
    ledger: Ledger,
    rota: Rota,
    notifier: Notifier,
    jitter: Jitter,
}

/// Starts the settlers. They end when `stop` is cancelled, each after the batch it is working on.
pub fn start(
    settings: &config::Settle,
    store: Arc<Store>,
    ledger: Ledger,
    tasks: &TaskTracker,
    stop: &CancellationToken,
) {
    for number in 0..settings.workers {
        let settler = Settler {
            settings: settings.clone(),
            ledger: ledger.clone(),
            rota: Rota::new(store.clone(), ledger.clone(), number),
            notifier: Notifier::new(store.clone(), settings),
            jitter: Jitter::default(),
        };
        let stop = stop.clone();
        tasks.spawn(async move { settler.run(stop).await });
    }
}

impl Settler {
    async fn run(mut self, stop: CancellationToken) {
        while !stop.is_cancelled() {
            let held = self.lease().await;
            let idle = held.is_empty();
            let settled = if idle {
                Ok(())
            } else {
                self.settle(held).await
            };
            let pause = async {
                match settled {
                    Ok(()) if idle => tokio::time::sleep(self.settings.idle_wait).await,
                    Ok(()) => {}
                    Err(error) => self.wait_for_ledger(&error).await,
                }
            };
            stop.run_until_cancelled(pause).await;
        }
    }

    /// The breaker: while the ledger is away claims stay where they are cheapest, in their lists, and no attempt is burnt.
    async fn wait_for_ledger(&self, error: &LedgerError) {
        tracing::warn!(
            error = error as &dyn std::error::Error,
            "the ledger is away; claims wait in Redis"
        );
        loop {
            tokio::time::sleep(OUTAGE_WAIT).await;
            if self.ledger.ping().await.is_ok() {
                tracing::info!("the ledger is back");
                return;
            }
        }
    }

    /// Leases up to a transaction's worth of claims, one bucket of each rain in turn.
    async fn lease(&mut self) -> Vec<Held> {
        let mut held: Vec<Held> = vec![];
        let mut room = self.settings.batch_max;
        let mut buckets = self.rota.order().await.into_iter();
        while room > 0 {
            // Together they get no more than there is room for, and each at least one claim's.
            let round: Vec<Bucket> = buckets.by_ref().take(ROUND_MAX.min(room)).collect();
            if round.is_empty() {
                break;
            }
            let most = (room / round.len()).min(LEASE_BATCH_MAX);
            let leases = join_all(round.iter().map(|bucket| self.lease_one(bucket, most))).await;
            for (bucket, lease) in round.into_iter().zip(leases) {
                let found = lease.as_ref().is_ok_and(|lease| !lease.claims.is_empty());
                self.rota
                    .looked(&bucket.tag, found, self.settings.idle_wait);
                match lease {
                    Ok(lease) if lease.claims.is_empty() => {}
                    Ok(lease) => {
                        room = room.saturating_sub(lease.claims.len());
                        held.push(Held { bucket, lease });
                    }
                    Err(error) => {
                        tracing::debug!(%error, bucket = %bucket.tag, "no claims can be leased here now")
                    }
                }
            }
        }
        held
    }

    async fn lease_one(&self, bucket: &Bucket, most: usize) -> Result<Lease, StoreError> {
        let lease_ms = self.settings.lease.as_millis() as u64;
        let lease = bucket
            .lease(None, lease_ms, most, self.settings.attempts_max)
            .await?;
        if lease.buried > 0 {
            tracing::error!(bucket = %bucket.tag, claims = lease.buried, "claims whose settlers died too often were buried");
            crate::metrics::get().claims_buried.increment(lease.buried);
        }
        Ok(lease)
    }

    /// One transaction for all that is held, then what each claim deserves. `Err` is an outage: the claims are given back untried.
    async fn settle(&self, held: Vec<Held>) -> Result<(), LedgerError> {
        let started = Instant::now();
        let claims: Vec<Claim> = held
            .iter()
            .flat_map(|held| held.lease.claims.iter().map(|leased| leased.claim.clone()))
            .collect();
        crate::metrics::get()
            .claims_leased
            .increment(claims.len() as u64);
        let verdicts = match self.ledger.credit(&claims, now_ms()).await {
            Ok(verdicts) => verdicts,
            Err(error) => {
                let outage = error.is_outage();
                let reason = error.to_string();
                join_all(
                    held.iter()
                        .map(|held| self.give_back(held, !outage, &reason)),
                )
                .await;
                return if outage { Err(error) } else { Ok(()) };
            }
        };
        let mut verdicts = verdicts.into_iter();
        let mut finishing = vec![];
        for held in &held {
            let mut decisions = vec![];
            for leased in &held.lease.claims {
                let Some(verdict) = verdicts.next() else {
                    break;
                };
                decisions.push(decide(leased, verdict));
            }
            finishing.push(self.finish(held, decisions));
        }
        let news = join_all(finishing).await.concat();
        self.notifier.publish(&held[0].bucket.link, &news).await;
        crate::metrics::get()
            .settle_batch_seconds
            .record(started.elapsed());
        Ok(())
    }

    /// Carries out the decisions. A failure here loses nothing: the lease runs out and somebody does it again. Returns the claims whose
    /// users have a new message.
    async fn finish(&self, held: &Held, decisions: Vec<Decision>) -> Vec<Credited> {
        let (mut acks, mut paid, mut burials) = (vec![], vec![], vec![]);
        for (leased, decision) in held.lease.claims.iter().zip(decisions) {
            match decision {
                Decision::TellThenAck => paid.push(leased),
                Decision::Ack => acks.push(leased.claim.clone()),
                Decision::Bury(reason) => burials.push((leased.claim.clone(), reason)),
            }
        }
        let told = self.tell(held, &paid).await;
        acks.extend(told.acks);
        if !acks.is_empty()
            && let Err(error) = held.bucket.ack(&acks).await
        {
            tracing::warn!(%error, bucket = %held.bucket.tag, "credited claims could not be acked; they will be found credited");
        }
        self.bury(held, burials).await;
        told.news
    }

    async fn bury(&self, held: &Held, burials: Vec<(Claim, String)>) {
        if burials.is_empty() {
            return;
        }
        for (claim, reason) in &burials {
            tracing::error!(packet = %claim.packet.id, reason, "claim buried");
        }
        match held
            .bucket
            .bury(held.lease.deadline_ms, None, &burials)
            .await
        {
            Ok(buried) => crate::metrics::get().claims_buried.increment(buried),
            Err(error) => {
                tracing::warn!(%error, bucket = %held.bucket.tag, "claims could not be buried yet")
            }
        }
    }

    /// The batch came to nothing. If the claims were tried, those that have been tried often enough are given to a person.
    async fn give_back(&self, held: &Held, tried: bool, reason: &str) {
        let (mut retries, mut burials) = (vec![], vec![]);
        for leased in &held.lease.claims {
            if tried && leased.attempts + 1 >= self.settings.attempts_max {
                burials.push((
                    leased.claim.clone(),
                    format!("attempts_used_up: last error: {reason}"),
                ));
            } else {
                let wait = self.jitter.back_off(
                    leased.attempts,
                    self.settings.retry_base,
                    self.settings.retry_max,
                );
                retries.push((
                    leased.claim.clone(),
                    wait.as_millis() as u64,
                    reason.to_owned(),
                ));
            }
        }
        crate::metrics::get()
            .claims_retried
            .increment(retries.len() as u64);
        if !retries.is_empty()
            && let Err(error) = held
                .bucket
                .retry(held.lease.deadline_ms, tried, None, &retries)
                .await
        {
            tracing::warn!(%error, bucket = %held.bucket.tag, "claims could not be given back; their lease will run out");
        }
        self.bury(held, burials).await;
    }
}
