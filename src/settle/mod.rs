//! claim → credit → message → ack.
//!
//! A settler leases claims, has the balance system credit them, and removes them when the ledger has committed that and their users'
//! inboxes have the message. A crash at any point repeats work, never money or messages: the key of both is the packet id.

/// While the balance system is away nobody asks but one, and little.
mod breaker;
/// What becomes of a claim after a try to credit it.
mod decide;
/// The user's message after the credit, and the news of it.
mod notify;
/// How long a bucket that had no claims is left alone.
mod rests;
/// Which bucket is looked at next: oldest rains first, every rain in its turn.
mod rota;

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::clock::now_ms;
use crate::config::{self, LEASE_BATCH_MAX};
use crate::jitter::Jitter;
use crate::ledger::{Balance, CREDIT_BATCH_MAX, Verdict};
use crate::log::JOURNEY;
use crate::post::chain;
use crate::rain::Claim;
use crate::store::bucket::{Bucket, Lease, LeasedClaim};
use crate::store::inbox::Credited;
use crate::store::{Store, StoreError, dead};
use crate::trace::{Claims, Span};
use breaker::{Breaker, Outage, Permit, Turn};
use decide::{Decision, decide};
use notify::Notifier;
use rests::Seen;
use rota::{Rota, process};

/// One transaction takes whatever a settler holds.
const _: () = assert!(config::SETTLE_BATCH_MAX <= CREDIT_BATCH_MAX);

/// Buckets leased from at the same time.
const ROUND_MAX: usize = 16;
/// News of rains that wait for a settler; one that misses some lists the rains and looks at all of them.
const NEWS_MAX: usize = 1_024;

/// Claims of one bucket under one lease.
struct Held {
    bucket: Bucket,
    lease: Lease,
}

struct Settler {
    settings: config::Settle,
    balance: Balance,
    breaker: Arc<Breaker>,
    rota: Rota,
    notifier: Notifier,
    jitter: Jitter,
}

/// Starts the settlers. They end when `stop` is cancelled, each after the batch it is working on.
pub fn start(
    settings: &config::Settle,
    store: Arc<Store>,
    balance: impl Into<Balance>,
    tasks: &TaskTracker,
    stop: &CancellationToken,
) {
    let balance = balance.into();
    let breaker = Arc::new(Breaker::default());
    let (news, _) = broadcast::channel(NEWS_MAX);
    for number in 0..settings.workers {
        let settler = Settler {
            settings: settings.clone(),
            balance: balance.clone(),
            breaker: breaker.clone(),
            rota: Rota::new(
                store.clone(),
                balance.ledger().clone(),
                news.subscribe(),
                number,
            ),
            notifier: Notifier::new(store.clone(), settings),
            jitter: Jitter::default(),
        };
        let stop = stop.clone();
        crate::task::spawn(tasks, "settle", async move { settler.run(stop).await });
    }
    let mut changes = store.watch_rains(tasks, stop.clone());
    crate::task::spawn(tasks, "settle.news", async move {
        while let Some(rain) = changes.recv().await {
            // Settlers that have ended miss nothing.
            let _ = news.send(rain);
        }
    });
}

impl Settler {
    async fn run(mut self, stop: CancellationToken) {
        while !stop.is_cancelled() {
            let pause = match self.breaker.turn() {
                Turn::Wait(wait) => wait,
                Turn::Work(permit) => self.work(permit).await,
            };
            if !pause.is_zero() {
                stop.run_until_cancelled(tokio::time::sleep(pause)).await;
            }
        }
    }

    /// One batch. Returns how long to pause after it.
    async fn work(&mut self, permit: Permit) -> Duration {
        // The ledger records every credit, whoever pays: while it is plainly away no claim need be moved to find that out.
        if permit.is_probe()
            && let Err(error) = self.balance.ledger().ping().await
        {
            permit.failed(&Outage(chain(&error)));
            return Duration::ZERO;
        }
        let began = Instant::now();
        let held = self.lease(permit.claims_max(self.settings.batch_max)).await;
        if held.is_empty() {
            return self.settings.idle_wait;
        }
        if permit.is_overtaken() {
            let reason = "the balance system is away";
            self.give_back(&held, reason, false, None).await;
        } else {
            self.settle(held, permit, began).await;
        }
        Duration::ZERO
    }

    /// Leases up to `room` claims, one bucket of each rain in turn.
    async fn lease(&mut self, mut room: usize) -> Vec<Held> {
        let mut held: Vec<Held> = vec![];
        let mut buckets = self.rota.order().await.into_iter();
        while room > 0 {
            // Together they get no more than there is room for, and each at least one claim's.
            let round: Vec<Bucket> = buckets.by_ref().take(ROUND_MAX.min(room)).collect();
            if round.is_empty() {
                break;
            }
            let most = (room / round.len()).min(LEASE_BATCH_MAX);
            let processes: Vec<Option<String>> = round.iter().map(process).collect();
            let leases = join_all(round.iter().map(|bucket| self.lease_one(bucket, most))).await;
            for ((bucket, process), lease) in round.into_iter().zip(processes).zip(leases) {
                let seen = match &lease {
                    Ok(lease) if !lease.claims.is_empty() => Seen::Claims,
                    Ok(lease) if lease.under_way => Seen::UnderWay,
                    Ok(_) => Seen::Nothing,
                    Err(_) => Seen::Failed,
                };
                self.rota
                    .looked(&bucket, process, seen, self.settings.idle_wait);
                match lease {
                    Ok(lease) if lease.claims.is_empty() => {}
                    Ok(lease) => {
                        follow("leased", lease.claims.iter().map(|leased| &leased.claim));
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

    /// All that is held in one go, then what each claim deserves.
    async fn settle(&self, held: Vec<Held>, permit: Permit, began: Instant) {
        let mut batch = Span::begun("settle.batch", began);
        batch.past("settle.lease", began);
        let started = Instant::now();
        let rest = permit.rest();
        let claims: Vec<Claim> = held
            .iter()
            .flat_map(|held| held.lease.claims.iter().map(|leased| leased.claim.clone()))
            .collect();
        crate::metrics::get()
            .claims_leased
            .increment(claims.len() as u64);
        batch.note("hongbao.claims", claims.len());
        let crediting = batch.part("settle.credit");
        let credited = self.balance.credit(&claims, now_ms()).await;
        crediting.end();
        let verdicts = match credited {
            Ok(verdicts) => verdicts,
            Err(error) => {
                batch.failed(&chain(&error));
                let outage = error.is_outage();
                if outage {
                    permit.failed(&Outage(chain(&error)));
                } else {
                    let error = &error as &dyn std::error::Error;
                    tracing::error!(error, "a batch of claims cannot be credited");
                }
                let reason = error.to_string();
                return self.give_back(&held, &reason, !outage, rest).await;
            }
        };
        // The others are to know of an outage before anything else is done.
        let outage = verdicts.iter().find_map(|verdict| match verdict {
            Verdict::Unknown(reason) => Some(Outage(reason.clone())),
            _ => None,
        });
        match outage {
            Some(outage) => permit.failed(&outage),
            None => permit.worked(),
        }
        let mut verdicts = verdicts.into_iter();
        let mut traced = Claims::default();
        let finishing = held.iter().map(|held| {
            let mut decisions = vec![];
            for (leased, verdict) in held.lease.claims.iter().zip(&mut verdicts) {
                let decision = decide(leased, verdict);
                traced.add(leased.claim.packet.id, decision.as_str());
                decisions.push(decision);
            }
            self.finish(held, decisions, rest)
        });
        let finishing: Vec<_> = finishing.collect();
        let acking = batch.part("settle.ack");
        let news = join_all(finishing).await.concat();
        acking.end();
        traced.end(&batch, began);
        let link = held[0].bucket.route.link();
        self.notifier.publish(&link, &news).await;
        crate::metrics::get()
            .settle_batch_seconds
            .record(started.elapsed());
    }

    /// The batch came to nothing.
    async fn give_back(&self, held: &[Held], reason: &str, tried: bool, rest: Option<Duration>) {
        let again = Decision::Retry {
            reason: reason.to_owned(),
            tried,
        };
        let finishing = held.iter().map(|held| {
            let count = held.lease.claims.len();
            self.finish(held, vec![again.clone(); count], rest)
        });
        join_all(finishing).await;
    }

    /// Carries out the decisions. A failure here loses nothing: the lease runs out and somebody does it again. Returns the claims whose
    /// users have a new message.
    async fn finish(
        &self,
        held: &Held,
        decisions: Vec<Decision>,
        rest: Option<Duration>,
    ) -> Vec<Credited> {
        let (mut acks, mut paid) = (vec![], vec![]);
        let (mut tried, mut untried, mut burials) = (vec![], vec![], vec![]);
        for (leased, decision) in held.lease.claims.iter().zip(decisions) {
            let claim = leased.claim.clone();
            match decision {
                Decision::TellThenAck => paid.push(leased),
                Decision::Ack => acks.push(claim),
                Decision::Bury(reason) => burials.push((claim, reason)),
                Decision::Retry {
                    reason,
                    tried: true,
                } if leased.attempts + 1 >= self.settings.attempts_max => {
                    let reason = format!("attempts_used_up: last error: {reason}");
                    burials.push((claim, reason));
                }
                Decision::Retry {
                    reason,
                    tried: true,
                } => tried.push((claim, self.back_off_ms(leased), reason)),
                Decision::Retry {
                    reason,
                    tried: false,
                } => {
                    // After a probe each claim rests for another time: one that the other side chokes on is not to meet the others again.
                    let wait_ms = match rest {
                        Some(rest) => as_ms(rest + self.jitter.around(rest) / 2),
                        None => self.back_off_ms(leased),
                    };
                    untried.push((claim, wait_ms, reason));
                }
            }
        }
        let told = self.tell(held, &paid).await;
        acks.extend(told.acks);
        if !acks.is_empty() {
            match held.bucket.ack(&acks).await {
                Ok(_) => follow("acked", acks.iter()),
                Err(error) => {
                    tracing::warn!(%error, bucket = %held.bucket.tag, "credited claims could not be acked; they will be found credited")
                }
            }
        }
        self.retry(held, true, tried).await;
        self.retry(held, false, untried).await;
        self.bury(held, burials).await;
        told.news
    }

    fn back_off_ms(&self, leased: &LeasedClaim) -> u64 {
        let (base, max) = (self.settings.retry_base, self.settings.retry_max);
        as_ms(self.jitter.back_off(leased.attempts, base, max))
    }

    async fn retry(&self, held: &Held, attempted: bool, retries: Vec<(Claim, u64, String)>) {
        if retries.is_empty() {
            return;
        }
        follow("put off", retries.iter().map(|(claim, ..)| claim));
        let deadline_ms = held.lease.deadline_ms;
        match held
            .bucket
            .retry(deadline_ms, attempted, None, &retries)
            .await
        {
            Ok(retried) => crate::metrics::get().claims_retried.increment(retried),
            Err(error) => {
                tracing::warn!(%error, bucket = %held.bucket.tag, "claims could not be given back; their lease will run out")
            }
        }
    }

    async fn bury(&self, held: &Held, burials: Vec<(Claim, String)>) {
        if burials.is_empty() {
            return;
        }
        for (claim, reason) in &burials {
            // What follows the kind may name a user, or be another company's text: the dead letter has it.
            let kind = dead::kind(reason);
            tracing::error!(packet = %claim.packet.id, kind, "claim buried: the dead letter says why");
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
}

/// A step of each packet's way, for the log: see [`JOURNEY`].
fn follow<'a>(step: &str, claims: impl Iterator<Item = &'a Claim>) {
    if tracing::enabled!(target: JOURNEY, tracing::Level::TRACE) {
        claims.for_each(
            |claim| tracing::trace!(target: JOURNEY, packet = %claim.packet.id, "{step}"),
        );
    }
}

fn as_ms(wait: Duration) -> u64 {
    wait.as_millis() as u64
}
