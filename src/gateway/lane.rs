//! A lane carries the grabs of one worker to one node.
//!
//! It takes all that is waiting, up to 256 users a bucket, sends it, and takes the next when the answers are back. Batches form by
//! themselves under load and add no delay when idle; there is no timer. A batch that is full cannot grow by waiting: a second one of those is on its
//! way while the first is, so that the node need not wait for this thread, nor this thread for the node. The answers go straight into the sessions'
//! sockets: no task is woken for them.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::rains::{Phase, RainView};
use super::session::Session;
use super::worker::Worker;
use crate::clock::now_ms;
use crate::config::{self, GRAB_BATCH_MAX};
use crate::log::JOURNEY;
use crate::rain::{Durability, Packet, RainId};
use crate::store::bucket_of;
use crate::store::grab::{self, Answer, Doubt, Gate, Grabbed};
use crate::store::link::Link;
use crate::store::node::Peer;
use crate::store::route::Replicated;
use crate::store::{StoreError, script};
use crate::task;
use crate::trace::Grab;
use crate::wire::Outcome;

/// A grab on its way.
pub struct Waiting {
    pub session: Rc<Session>,
    /// Whom an edge session grabs for.
    pub named: Option<String>,
    pub doubt: Option<Doubt>,
    /// Without the rain's key: only to be told what was won before.
    pub keyless: bool,
    pub request_id: u64,
    pub since: Instant,
    answered: Cell<bool>,
}

impl Waiting {
    pub fn new(session: &Rc<Session>, named: Option<String>, request_id: u64) -> Waiting {
        Waiting {
            session: session.clone(),
            named,
            doubt: None,
            keyless: false,
            request_id,
            since: session.last_heard(),
            answered: Cell::new(false),
        }
    }

    fn finish(&self, worker: &Worker) {
        self.answered.set(true);
        self.session.finished(worker);
    }

    pub fn user(&self) -> &str {
        match &self.named {
            Some(name) => name,
            None => self.session.user().map_or("", |user| user.as_str()),
        }
    }
}

/// What waits for one bucket.
struct Queue {
    rain: Arc<RainView>,
    bucket: usize,
    waiting: VecDeque<Waiting>,
}

/// What is sent to one bucket in one call.
struct Batch {
    rain: Arc<RainView>,
    bucket: usize,
    waiting: Vec<Waiting>,
}

pub struct Lane {
    link: Link,
    /// How long a batch waits for its replicas.
    replicas_wait: Duration,
    queues: RefCell<HashMap<(RainId, usize), Queue>>,
    queued: Cell<usize>,
    queued_max: usize,
    wake: Notify,
    /// Somewhere a full batch waits.
    full: Notify,
}

impl Lane {
    pub fn new(link: Link, settings: &config::Gateway) -> Lane {
        Lane {
            link,
            replicas_wait: settings.replicas_wait,
            queues: RefCell::default(),
            queued: Cell::new(0),
            queued_max: settings.lane_queue_max,
            wake: Notify::new(),
            full: Notify::new(),
        }
    }

    /// Queues a grab; gives it back when the lane is full.
    pub fn push(&self, rain: &Arc<RainView>, bucket: usize, grab: Waiting) -> Result<(), Waiting> {
        if self.queued.get() >= self.queued_max {
            return Err(grab);
        }
        self.queued.set(self.queued.get() + 1);
        let mut queues = self.queues.borrow_mut();
        let queue = queues
            .entry((rain.snapshot.rain, bucket))
            .or_insert_with(|| Queue {
                rain: rain.clone(),
                bucket,
                waiting: VecDeque::new(),
            });
        // What waits has not been sent yet, so what is known by now was known before: a queue that is never empty must not judge by an old record.
        if rain.snapshot.version > queue.rain.snapshot.version {
            queue.rain = rain.clone();
        }
        queue.waiting.push_back(grab);
        if queue.waiting.len().is_multiple_of(GRAB_BATCH_MAX) {
            self.full.notify_one();
        }
        drop(queues);
        self.wake.notify_one();
        Ok(())
    }

    pub async fn run(&self, worker: &Worker) {
        let carried = async |least, wake| {
            // A panic between two batches must not leave those who wait without a lane.
            while task::contained("lane", self.carry(worker, least, wake))
                .await
                .is_err()
            {}
        };
        tokio::join!(carried(1, &self.wake), carried(GRAB_BATCH_MAX, &self.full));
    }

    /// Batches of at least so many grabs, one a bucket at a time.
    async fn carry(&self, worker: &Worker, least: usize, wake: &Notify) {
        loop {
            let batches = self.take(least);
            if batches.is_empty() {
                wake.notified().await;
                continue;
            }
            // One call a bucket, all in one round trip.
            let calls = batches.into_iter().map(|batch| async move {
                // A panic costs these grabs a repeat, and nobody else anything.
                let carried = task::contained("lane", async {
                    let reply = self.send(worker, &batch).await;
                    self.answer(worker, &batch, reply);
                    worker.flush_dirty();
                });
                if carried.await.is_err() {
                    self.answer_retry(worker, &batch);
                    worker.flush_dirty();
                }
            });
            futures_util::future::join_all(calls).await;
        }
    }

    /// The first of what waits, at most one batch a bucket, where at least so many wait.
    fn take(&self, least: usize) -> Vec<Batch> {
        crate::crash::bug("lane_take");
        let mut queues = self.queues.borrow_mut();
        let mut batches = Vec::with_capacity(queues.len());
        queues.retain(|_, queue| {
            if queue.waiting.len() < least {
                return true;
            }
            let waiting = match queue.waiting.len() {
                ..=GRAB_BATCH_MAX => Vec::from(std::mem::take(&mut queue.waiting)),
                _ => queue.waiting.drain(..GRAB_BATCH_MAX).collect(),
            };
            self.queued.set(self.queued.get() - waiting.len());
            batches.push(Batch {
                rain: queue.rain.clone(),
                bucket: queue.bucket,
                waiting,
            });
            !queue.waiting.is_empty()
        });
        batches
    }

    async fn send(&self, worker: &Worker, batch: &Batch) -> Result<String, StoreError> {
        let durability = batch.rain.snapshot.durability;
        let view = &batch.rain.buckets[batch.bucket];
        let replicated = match durability {
            Durability::Memory | Durability::Fsync => None,
            Durability::Replicas(replicas) => Some(Replicated {
                replicas,
                wait: self.replicas_wait,
            }),
        };
        // WON must not be sent for less than the rain's level: checked for the very process that is asked.
        let fsync = Cell::new(false);
        let call = |peer: &Peer| {
            fsync.set(peer.fsync);
            let users = batch.waiting.iter().map(Waiting::user);
            let places = batch.waiting.iter().enumerate();
            let doubts = places.filter_map(|(place, grab)| Some((place, grab.doubt?)));
            let waits = replicated.is_some();
            grab::call(&view.keys, &peer.run_id, waits, users, doubts)
        };
        crate::crash::point("grab.before");
        let route = worker.store.route(view.slot);
        let reply = route
            .run_over(&self.link, &script::GRAB, call, replicated)
            .await?;
        crate::crash::point("grab.after");
        // The repeat finds the win, and by then perhaps a node that was set right.
        if durability == Durability::Fsync && !fsync.get() {
            self.link.look_again("appendfsync is not always");
            let problems = vec!["appendfsync is not always, too weak for this rain".to_owned()];
            return Err(StoreError::Unfit {
                node: self.link.name(),
                problems,
            });
        }
        match reply {
            redis::Value::BulkString(bytes) => {
                String::from_utf8(bytes).map_err(|error| StoreError::Reply {
                    verb: "grab",
                    reply: format!("{:?}", error.as_bytes()),
                })
            }
            other => Err(script::GRAB.misread(&other)),
        }
    }

    fn answer(&self, worker: &Worker, batch: &Batch, reply: Result<String, StoreError>) {
        let metrics = crate::metrics::get();
        metrics.grab_batch_users.record(batch.waiting.len() as f64);
        let answered = Instant::now();
        let read = reply.as_ref().ok().and_then(|reply| Answer::read(reply));
        let Some(mut answer) = read else {
            // A time-out or a lost connection means unknown, never no: the repeat finds out.
            metrics.node_failures.increment(1);
            match &reply {
                Err(error) => {
                    tracing::debug!(%error, grabs = batch.waiting.len(), "grabs are answered RETRY")
                }
                Ok(reply) => tracing::error!(reply, "grab answered something unexpected"),
            }
            return self.answer_retry(worker, batch);
        };
        let view = &batch.rain.buckets[batch.bucket];
        view.remember_epoch(answer.epoch);
        let (gate, epoch) = (answer.gate, answer.epoch);
        // The first has waited longest. One sample a batch: a sample each cost an eighth of this thread's time under load, since the exporter keeps
        // every one of them until it is asked.
        if let Some(first) = batch.waiting.first() {
            let waited = answered - first.since;
            metrics.grab_seconds.record(waited.as_secs_f64());
            let rain = batch.rain.snapshot.rain.get();
            crate::tally::took(rain, waited, batch.waiting.len());
        }
        for grab in &batch.waiting {
            let entry = answer.next().flatten();
            crate::crash::bug("lane");
            self.answer_one(worker, batch, gate, epoch, grab, entry);
        }
    }

    /// For all who have no answer yet.
    fn answer_retry(&self, worker: &Worker, batch: &Batch) {
        let rain = batch.rain.snapshot.rain;
        for grab in batch.waiting.iter().filter(|grab| !grab.answered.get()) {
            grab.session.forget(rain);
            worker.reply_grab(&grab.session, grab.request_id, rain, Outcome::Retry, None);
            grab.finish(worker);
        }
    }

    fn answer_one(
        &self,
        worker: &Worker,
        batch: &Batch,
        gate: Gate,
        epoch: u64,
        grab: &Waiting,
        entry: Option<Grabbed>,
    ) {
        let rain = &batch.rain;
        let id = rain.snapshot.rain;
        let (outcome, packet): (Outcome, Option<Packet>) = match (entry, gate) {
            (Some(Grabbed::Won(packet)), _) => (Outcome::Won, Some(packet)),
            (Some(Grabbed::AlreadyWon(packet)), _) => (Outcome::AlreadyWon, Some(packet)),
            (None, _) | (Some(Grabbed::Nothing), Gate::Missing | Gate::Suspect) => {
                (Outcome::Retry, None)
            }
            (Some(Grabbed::Nothing), Gate::Loading | Gate::NotOpen) => (Outcome::NotOpen, None),
            (Some(Grabbed::Nothing), Gate::Paused) => (Outcome::Paused, None),
            (Some(Grabbed::Nothing), Gate::Closed) => (Outcome::Closed, None),
            (Some(Grabbed::Nothing), Gate::Open) if grab.keyless => (keyless_outcome(rain), None),
            (Some(Grabbed::Nothing), Gate::Open) if grab.doubt == Some(Doubt::Deny) => {
                (Outcome::Barred, None)
            }
            (Some(Grabbed::Nothing), Gate::Open) => {
                let until = now_ms() as u64 + worker.settings.empty_memory.as_millis() as u64;
                rain.buckets[batch.bucket].remember_empty(epoch, until);
                (worker.nothing_left(rain), None)
            }
        };
        match (packet, outcome) {
            (Some(packet), _) => grab.session.remember_won(id, packet),
            (None, Outcome::Barred) => grab.session.remember_barred(id),
            (None, Outcome::Closed) => grab.session.remember_closed(id),
            (None, Outcome::SoldOut) => grab.session.remember_sold_out(id, rain.snapshot.version),
            (None, Outcome::Missed) => grab.session.remember_empty(id, epoch),
            (None, _) => grab.session.forget(id),
        }
        if outcome == Outcome::NotOpen {
            worker.tapped_early(&grab.session, rain);
        }
        worker.reply_grab(&grab.session, grab.request_id, id, outcome, packet);
        // Answered, and once: whatever fails below, nobody is told RETRY as well.
        grab.finish(worker);
        crate::trace::grab(&Grab {
            session: grab.session.id,
            request: grab.request_id,
            rain: id,
            packet: packet.map(|packet| packet.id),
            outcome: outcome.as_str_name(),
            since: grab.since,
        });
        if let Some(packet) = packet {
            tracing::trace!(
                target: JOURNEY,
                packet = %packet.id,
                rain = %id,
                session = grab.session.id,
                request = grab.request_id,
                outcome = outcome.as_str_name(),
                "grabbed"
            );
            worker.await_credit(&grab.session, packet.id);
        }
    }
}

/// For a grab without the key that found no win while the gate is open. By this machine's clock the rain may be over: then the key is told to nobody
/// any more, and a moment later the gate says so, too.
fn keyless_outcome(rain: &RainView) -> Outcome {
    match rain.phase(now_ms()) {
        Phase::Closed => Outcome::Retry,
        Phase::Untold | Phase::Announced | Phase::Open => Outcome::WrongKey,
    }
}

/// Which bucket of `rain` is the user's.
pub fn bucket_for(rain: &RainView, user: &str) -> usize {
    bucket_of(rain.snapshot.rain, user, rain.buckets.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::tests::{bench, connection};
    use crate::gateway::transport::Transport;
    use crate::rain::State;
    use crate::store::directory::Snapshot;

    /// Rain 7 of one bucket, as its record is in this version.
    fn record(version: i64) -> Arc<RainView> {
        Arc::new(RainView::new(Snapshot {
            rain: RainId::new(7).unwrap(),
            version,
            room: String::new(),
            title: String::new(),
            state: State::Open,
            opens_at_ms: Some(1),
            duration_ms: 30_000,
            salts: vec![0],
            durability: Durability::Memory,
            sold_out: version > 1,
            announce_at_ms: None,
            grab_key: None,
        }))
    }

    /// A queue that was never empty kept the record of when it last was: sold out by then, and everybody was told MISSED for ever.
    #[tokio::test]
    async fn a_queue_that_is_never_empty_judges_by_the_newest_record() {
        let worker = bench(&[]).await;
        let link = Link::new(worker.store.link(0).node.clone());
        let lane = Lane::new(link, &worker.settings);
        let (socket, _client) = connection().await;
        let session = Rc::new(Session::new(1, Transport::Plain(socket), None));
        let push = |rain: &Arc<RainView>| {
            let grab = Waiting::new(&session, None, 1);
            assert!(lane.push(rain, 0, grab).is_ok());
        };
        let judged_by = || -> Vec<_> {
            let batches = lane.take(1).into_iter();
            batches
                .map(|batch| (batch.waiting.len(), batch.rain.snapshot.version))
                .collect()
        };
        let (open, sold_out) = (record(1), record(2));
        for _ in 0..GRAB_BATCH_MAX + 1 {
            push(&open);
        }
        assert_eq!(judged_by(), [(GRAB_BATCH_MAX, 1)]);
        // One waits still when the news comes.
        for _ in 0..GRAB_BATCH_MAX {
            push(&sold_out);
        }
        assert_eq!(judged_by(), [(GRAB_BATCH_MAX, 2)]);
        // One that was admitted before the news, and was held up on its way, takes nothing back.
        push(&open);
        assert_eq!(judged_by(), [(2, 2)]);
        assert_eq!((judged_by(), lane.queued.get()), (vec![], 0));
    }
}
