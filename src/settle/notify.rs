//! After the credit: the user's message, before the claim may go, and the news for those who are online.
//!
//! A claim whose message cannot be written is given back and comes again when it is due: it is then found credited, and only the message is
//! still to do. Nothing else has to remember it, no attempt is burnt, and its neighbours are acked. The wait grows with the outage, so that
//! claims that come again in vain take a bounded share of the settlers' time, however many there are.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::{Held, Settler};
use crate::config;
use crate::metrics;
use crate::rain::Claim;
use crate::store::bucket::LeasedClaim;
use crate::store::inbox::{Contents, Credited, Draft, Keep};
use crate::store::link::Link;
use crate::store::{Store, StoreError};

/// While a node is away it is tried again after half of the outage, in these bounds: a try of a frozen node costs the batch a whole time-out.
const TRY_AGAIN_MIN: Duration = Duration::from_millis(500);
const TRY_AGAIN_MAX: Duration = Duration::from_secs(10);

/// What became of the messages of one lease.
#[derive(Default)]
pub struct Told {
    /// Their users have the message.
    pub acks: Vec<Claim>,
    /// Those among them whose message is new.
    pub news: Vec<Credited>,
}

/// Writes messages and publishes news. Knows which nodes are away.
pub struct Notifier {
    store: Arc<Store>,
    keep: Keep,
    /// By node.
    /// By the node's number.
    away: Mutex<HashMap<usize, Away>>,
}

#[derive(Clone)]
struct Away {
    since: Instant,
    try_again: Instant,
    error: StoreError,
}

/// Why a claim's message is not written.
enum Hindrance {
    /// The node is away, or full: nothing is wrong with the claim.
    NodeAway { outage: Duration, error: StoreError },
    /// This inbox cannot be written, and will not get better by itself.
    Spoiled(StoreError),
}

impl Notifier {
    pub fn new(store: Arc<Store>, settings: &config::Settle) -> Notifier {
        Notifier {
            store,
            keep: settings.inbox.into(),
            away: Mutex::default(),
        }
    }

    /// The nodes that must not be tried yet.
    fn resting(&self) -> HashMap<usize, Away> {
        let now = Instant::now();
        let mut away = self.away.lock().expect("no panic under this lock").clone();
        away.retain(|_, away| away.try_again > now);
        away
    }

    fn answered(&self, node: usize) {
        let mut away = self.away.lock().expect("no panic under this lock");
        if away.remove(&node).is_some() {
            tracing::info!(node = %self.store.link(node).name(), "inboxes can be written again");
        }
    }

    /// Returns for how long the node has been away.
    fn failed(&self, node: usize, error: &StoreError) -> Duration {
        let now = Instant::now();
        let mut away = self.away.lock().expect("no panic under this lock");
        let since = match away.get(&node) {
            Some(away) => away.since,
            None => {
                tracing::warn!(%error, "inboxes cannot be written; credited claims wait for it");
                now
            }
        };
        let outage = now - since;
        let wait = (outage / 2).clamp(TRY_AGAIN_MIN, TRY_AGAIN_MAX);
        let try_again = now + wait;
        let error = error.clone();
        away.insert(
            node,
            Away {
                since,
                try_again,
                error,
            },
        );
        outage
    }

    /// Writes the message of each claim and says what hindered those that have none now.
    async fn write<'a>(
        &self,
        paid: &[&'a LeasedClaim],
    ) -> (Told, Vec<(&'a LeasedClaim, Hindrance)>) {
        let (mut told, mut hindered) = (Told::default(), vec![]);
        let resting = self.resting();
        let (mut tried, mut drafts) = (vec![], vec![]);
        for leased in paid {
            let node = self.store.node_of_user(&leased.claim.user);
            if let Some(away) = resting.get(&node) {
                let hindrance = Hindrance::NodeAway {
                    outage: away.since.elapsed(),
                    error: away.error.clone(),
                };
                hindered.push((*leased, hindrance));
                continue;
            }
            tried.push((*leased, node));
            drafts.push(Draft {
                user: leased.claim.user.clone(),
                contents: Contents::PacketCredited {
                    packet: leased.claim.packet,
                },
            });
        }
        let written = self.store.write_messages(&drafts, self.keep, None).await;
        for ((leased, node), written) in tried.into_iter().zip(written) {
            match written {
                Ok(place) => {
                    self.answered(node);
                    told.acks.push(leased.claim.clone());
                    told.news.extend(place.map(|place| Credited {
                        claim: leased.claim.clone(),
                        place,
                    }));
                }
                Err(error) if is_of_the_node(&error) => {
                    let outage = self.failed(node, &error);
                    hindered.push((leased, Hindrance::NodeAway { outage, error }));
                }
                Err(error) => hindered.push((leased, Hindrance::Spoiled(error))),
            }
        }
        (told, hindered)
    }

    /// One publication for the whole batch. It may be lost: the inbox has the messages.
    pub async fn publish(&self, link: &Link, news: &[Credited]) {
        if let Err(error) = self.store.publish_credited(link, news).await {
            tracing::debug!(%error, "gateways could not be told of credits; the inboxes have them");
        }
    }
}

/// Whether an error says something about the node, not about one inbox.
fn is_of_the_node(error: &StoreError) -> bool {
    match error {
        StoreError::Down { .. } | StoreError::Unknown { .. } | StoreError::Unfit { .. } => true,
        StoreError::Address { .. } | StoreError::Managed { .. } => true,
        // Out of memory, loading, read-only, …: all inboxes there have to wait.
        StoreError::Refused { code, .. } => code != "WRONGTYPE",
        StoreError::Tls { .. } | StoreError::Sentinel { .. } | StoreError::Cluster { .. } => true,
        StoreError::NotReplicated { .. } => true,
        StoreError::Foreign { .. } | StoreError::Suspect { .. } | StoreError::Reply { .. } => false,
    }
}

impl Settler {
    /// Tells the users of claims whose credit stands. Claims that cannot be told now are given back.
    pub(super) async fn tell(&self, held: &Held, paid: &[&LeasedClaim]) -> Told {
        if paid.is_empty() {
            return Told::default();
        }
        let (told, hindered) = self.notifier.write(paid).await;
        metrics::get()
            .inbox_messages
            .increment(told.news.len() as u64);
        metrics::get().inbox_waits.increment(hindered.len() as u64);
        let (mut untried, mut tried, mut burials) = (vec![], vec![], vec![]);
        for (leased, hindrance) in hindered {
            let claim = leased.claim.clone();
            let (base, max) = (self.settings.retry_base, self.settings.retry_max);
            match hindrance {
                Hindrance::NodeAway { outage, error } => {
                    let wait = self.jitter.back_off(0, base.max(outage), max);
                    untried.push((claim, wait.as_millis() as u64, format!("inbox: {error}")));
                }
                // A person has to look at the key; requeued, the claim is found credited and only its message is written.
                Hindrance::Spoiled(error) if leased.attempts + 1 >= self.settings.attempts_max => {
                    burials.push((
                        claim,
                        format!("inbox_spoiled: credited, but the user cannot be told: {error}"),
                    ));
                }
                Hindrance::Spoiled(error) => {
                    let wait = self.jitter.back_off(leased.attempts, base, max);
                    tried.push((claim, wait.as_millis() as u64, format!("inbox: {error}")));
                }
            }
        }
        for (attempted, claims) in [(false, untried), (true, tried)] {
            if claims.is_empty() {
                continue;
            }
            super::follow("put off", claims.iter().map(|(claim, ..)| claim));
            let retried = held
                .bucket
                .retry(held.lease.deadline_ms, attempted, None, &claims)
                .await;
            if let Err(error) = retried {
                tracing::warn!(%error, bucket = %held.bucket.tag, "claims could not be given back; their lease will run out");
            }
        }
        self.bury(held, burials).await;
        told
    }
}
