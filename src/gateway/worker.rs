//! A worker: one thread with its own runtime, sessions and lanes. Nothing on the path of a grab is shared between threads.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::net::TcpListener;
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

use super::deadlines::Deadlines;
use super::early::Early;
use super::edge::Edges;
use super::lane::Lane;
use super::limits::{Clock, Doors, Rate, UserRates};
use super::progress::Tellings;
use super::rains::{BucketView, Phase, Push, RainView, Rains, Rank};
use super::risk::Risk;
use super::roll::{Orders, Roll};
use super::rooms::Rooms;
use super::session::Session;
use super::tls::Certificates;
use super::token::TokenKeys;
use super::users::Users;
use crate::clock::now_ms;
use crate::config;
use crate::jitter::Jitter;
use crate::rain::{Durability, Packet, RainId};
use crate::store::Store;
use crate::store::inbox::News;
use crate::store::link::Link;
use crate::task;
use crate::wire::server_frame::Message;
use crate::wire::{CloseCode, GrabResult, Outcome};

/// Shared by all sessions of the worker: a session reads into it and hands on what it read before the next one does.
const READ_BUFFER: usize = 64 * 1024;
/// Rain ids known not to exist, and for how long that is taken to hold.
const MISSING_MAX: usize = 1_024;
const MISSING_FOR: Duration = Duration::from_secs(1);
/// Rains looked up at the same time on behalf of grabs.
const LOOK_UPS_MAX: usize = 64;
/// Inboxes read at the same time on one node: two round trips each, so tens of thousands a second.
const INBOX_READS_MAX: usize = 64;
/// How long a closing session may take to read its last frame.
pub(super) const LINGER: Duration = Duration::from_secs(1);
/// Sessions that a sweep looks at before grabs get their turn.
const SWEEP_SLICE: usize = 16;
/// After an accept that failed.
const ACCEPT_AGAIN: Duration = Duration::from_millis(20);
/// Sessions that a push is written to before grabs get their turn.
pub(super) const PUSH_SLICE: usize = 256;

/// What the workers of a gateway share.
pub struct Shared {
    pub settings: config::Gateway,
    pub tokens: Arc<TokenKeys>,
    pub roll: Roll,
    pub early: Early,
    pub risk: Option<Arc<Risk>>,
    pub rains: Arc<Rains>,
    pub store: Arc<Store>,
    pub clock: Clock,
    pub doors: Arc<Doors>,
    pub user_rates: UserRates,
    /// With TLS.
    pub certificates: Option<Arc<Certificates>>,
    pub next_session: AtomicU64,
    /// Stop accepting and send everyone away.
    pub drain: CancellationToken,
}

/// What a worker is told by the rest of the gateway.
pub struct Inputs {
    pub pushes: mpsc::Receiver<Push>,
    pub news: mpsc::Receiver<Arc<News>>,
}

pub struct Worker {
    shared: Arc<Shared>,
    sessions: RefCell<HashMap<u64, Rc<Session>>>,
    /// By the node's number, then with and without waiting for replicas: what waits keeps nothing behind it waiting that need not.
    lanes: RefCell<Vec<[Vec<Rc<Lane>>; 2]>>,
    next_lane: Cell<usize>,
    pub(super) rooms: Rooms,
    pub(super) tellings: RefCell<Tellings>,
    pub(super) users: Users,
    pub(super) edges: Edges,
    pub(super) orders: Arc<Orders>,
    pub(super) read_buffer: RefCell<Box<[u8]>>,
    /// Sessions with something to write.
    pub(super) dirty: RefCell<Vec<Rc<Session>>>,
    pub(super) in_flight: Cell<usize>,
    /// Of this worker's own: every grab asks, and `drain` is a lock.
    draining: Cell<bool>,
    /// Told when the last session has ended.
    emptied: Notify,
    deadlines: Deadlines,
    pub(super) frame_rate: Rate,
    pub(super) edge_frame_rate: Rate,
    accept_rate: Rate,
    /// Until when its accepted connections are paid for.
    accepts_paid: Cell<u64>,
    /// Connections on their way to a session, and how many of them are this worker's share.
    pub(super) handshakes: Rc<Cell<usize>>,
    pub(super) handshakes_max: usize,
    /// Sessions that are only told that there are too many.
    pub(super) told: Cell<usize>,
    missing: RefCell<HashMap<RainId, Instant>>,
    look_ups: Rc<Cell<usize>>,
    /// Inboxes that are being read, by node: one that does not answer must not keep those of the others waiting.
    inbox_reads: RefCell<HashMap<usize, Rc<Cell<usize>>>>,
    /// The generation of the token keys that all sessions were last checked against.
    keys_seen: Cell<u64>,
    jitter: Jitter,
}

impl std::ops::Deref for Worker {
    type Target = Shared;
    fn deref(&self) -> &Shared {
        &self.shared
    }
}

/// A place among the reads under way; dropping it frees the place.
pub struct Turn(Rc<Cell<usize>>);

impl Turn {
    pub(super) fn take(under_way: &Rc<Cell<usize>>, max: usize) -> Option<Turn> {
        if under_way.get() >= max {
            return None;
        }
        under_way.set(under_way.get() + 1);
        Some(Turn(under_way.clone()))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl Worker {
    pub fn new(shared: Arc<Shared>) -> Rc<Worker> {
        let settings = &shared.settings;
        let shortest = (settings.hello_timeout)
            .min(settings.idle_timeout)
            .min(settings.frame_timeout);
        let tick = (shortest / 4).clamp(Duration::from_millis(5), Duration::from_millis(100));
        Rc::new(Worker {
            deadlines: Deadlines::new(tick),
            frame_rate: Rate::per_second(settings.frames_per_second),
            edge_frame_rate: Rate::per_second(settings.edge_frames_per_second),
            accept_rate: Rate::per_second(settings.accepts_per_second / settings.workers as u64),
            accepts_paid: Cell::new(0),
            handshakes: Rc::default(),
            handshakes_max: (settings.handshakes_max / settings.workers).max(1),
            sessions: RefCell::default(),
            lanes: RefCell::default(),
            next_lane: Cell::new(0),
            rooms: Rooms::default(),
            tellings: RefCell::default(),
            users: Users::default(),
            edges: Edges::default(),
            orders: Arc::default(),
            read_buffer: RefCell::new(vec![0; READ_BUFFER].into()),
            dirty: RefCell::default(),
            in_flight: Cell::new(0),
            draining: Cell::new(false),
            emptied: Notify::new(),
            told: Cell::new(0),
            missing: RefCell::default(),
            look_ups: Rc::default(),
            inbox_reads: RefCell::default(),
            keys_seen: Cell::new(shared.tokens.generation()),
            jitter: Jitter::default(),
            shared,
        })
    }

    /// Serves until the drain is over.
    pub async fn run(self: Rc<Self>, listener: TcpListener, mut inputs: Inputs) {
        // A panic here must not end the sessions of this worker.
        while task::contained("worker", self.serve(&listener, &mut inputs))
            .await
            .is_err()
        {}
        drop(listener);
        self.drain().await;
    }

    /// Until the drain begins.
    async fn serve(self: &Rc<Self>, listener: &TcpListener, inputs: &mut Inputs) {
        let Inputs { pushes, news } = inputs;
        let mut sweep = tokio::time::interval(self.deadlines.tick());
        sweep.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let pause = tokio::time::sleep(Duration::ZERO);
        let mut pause = std::pin::pin!(pause);
        loop {
            tokio::select! {
                () = self.shared.drain.cancelled() => return,
                accepted = listener.accept(), if pause.is_elapsed() => {
                    let wait = match accepted {
                        Ok((stream, peer)) => {
                            self.accept(stream, peer);
                            // Those who are connected get their turn after each newcomer: a storm of them must not be felt.
                            tokio::task::yield_now().await;
                            self.accept_pause()
                        }
                        Err(error) => {
                            // Out of descriptors, most likely: accepting at once again would spin.
                            tracing::warn!(%error, "a connection cannot be accepted");
                            Some(ACCEPT_AGAIN)
                        }
                    };
                    if let Some(wait) = wait {
                        pause.as_mut().reset(tokio::time::Instant::now() + wait);
                    }
                }
                () = pause.as_mut(), if !pause.is_elapsed() => {}
                Some(push) = pushes.recv() => self.push(push).await,
                Some(news) = news.recv() => self.push_credited(&news).await,
                () = self.orders.told.notified() => self.close_replaced(),
                _ = sweep.tick() => self.sweep().await,
            }
        }
    }

    /// One has been accepted: how long the next must wait in the kernel's backlog.
    fn accept_pause(&self) -> Option<Duration> {
        let now = self.clock.now();
        let (_, until) = self.accept_rate.take(self.accepts_paid.get(), now);
        self.accepts_paid.set(until);
        let wait = self.accept_rate.wait(until, now);
        (wait > 0).then(|| {
            crate::metrics::get().accepts_delayed.increment(1);
            // The runtime's timer is good to a millisecond; what that is too long is made up for by the burst.
            Duration::from_nanos(wait)
        })
    }

    pub(super) fn next_session_id(&self) -> u64 {
        self.next_session.fetch_add(1, Ordering::Relaxed)
    }

    /// One more session of this worker.
    pub(super) fn enter(&self, session: &Rc<Session>) {
        (self.sessions.borrow_mut()).insert(session.id, session.clone());
        self.look_again(session);
    }

    pub(super) fn forget(&self, session: &Session) {
        session.abandon();
        self.rooms.leave(session);
        self.users.leave(session);
        self.leave_roll(session);
        self.edges.leave(session);
        if let Some((user, held)) = session.give_back() {
            self.user_rates.leave(user, held);
        }
        let removed = self.sessions.borrow_mut().remove(&session.id);
        if removed.is_some() {
            if session.place.is_none() {
                self.told.set(self.told.get() - 1);
            }
            crate::metrics::get().sessions.decrement(1);
        }
        if self.sessions.borrow().is_empty() {
            self.emptied.notify_waiters();
        }
    }

    pub(super) fn session(&self, id: u64) -> Option<Rc<Session>> {
        self.sessions.borrow().get(&id).cloned()
    }

    /// Has the session looked at when it is due, if that is not promised already.
    pub(super) fn look_again(&self, session: &Session) {
        let due = session.due(self);
        if self.deadlines.tick_of(due) < session.looked_at.get() {
            (session.looked_at).set(self.deadlines.look_at(session.id, due));
        }
    }

    /// Those who are due, each with its next promise; all when the token keys have changed.
    fn to_look_at(&self, now: Instant, all: bool) -> Vec<Rc<Session>> {
        let sessions = self.sessions.borrow();
        let mut late = vec![];
        self.deadlines.due(now, |id, tick| {
            // Of several promises for a session the last one counts.
            let session = sessions.get(&id);
            let promised = session.filter(|session| session.looked_at.get() == tick);
            late.extend(promised.cloned());
        });
        // The next promise first: should one of them panic, the others are not forgotten.
        for session in &late {
            session.looked_at.set(u64::MAX);
            self.look_again(session);
        }
        match all {
            true => sessions.values().cloned().collect(),
            false => late,
        }
    }

    /// Closes those whose time is over. All are looked at only when the token keys have changed: somebody may have been revoked.
    async fn sweep(&self) {
        let now = Instant::now();
        let keys = self.tokens.generation();
        let keys_changed = self.keys_seen.replace(keys) != keys;
        self.early.sweep(now);
        let late = self.to_look_at(now, keys_changed);
        // Many who came together may be due together; grabs get their turn in between.
        for slice in late.chunks(SWEEP_SLICE) {
            for session in slice {
                session.end_if_overdue(self, now, keys_changed);
            }
            self.flush_dirty();
            tokio::task::yield_now().await;
        }
        self.missing
            .borrow_mut()
            .retain(|_, since| since.elapsed() < MISSING_FOR);
    }

    async fn push(&self, push: Push) {
        crate::crash::bug("worker");
        if let Rank::Progress(progress) = push.rank {
            return self.push_progress(&push, progress).await;
        }
        let watching = self.rooms.watching(&push.room);
        crate::metrics::get()
            .pushes
            .increment(watching.len() as u64);
        for slice in watching.chunks(PUSH_SLICE) {
            for session in slice {
                session.send_bytes(self, &push.frame);
            }
            self.flush_dirty();
            tokio::task::yield_now().await;
        }
    }

    /// GoAway to everyone, grabs in flight finish, sockets are flushed, the end.
    async fn drain(&self) {
        self.draining.set(true);
        let deadline = tokio::time::Instant::now() + self.settings.drain_timeout;
        let sessions: Vec<_> = self.sessions.borrow().values().cloned().collect();
        for slice in sessions.chunks(PUSH_SLICE) {
            for session in slice {
                let after = self.jitter.below(self.settings.drain_spread).as_millis() as u32;
                session.go_away(
                    self,
                    CloseCode::Draining,
                    "this gateway stops",
                    after.max(1),
                );
            }
            self.flush_dirty();
            // The lanes' answers get their turn.
            tokio::task::yield_now().await;
        }
        drop(sessions);
        let mut sweep = tokio::time::interval(self.deadlines.tick());
        loop {
            let emptied = self.emptied.notified();
            if self.sessions.borrow().is_empty() {
                return;
            }
            tokio::select! {
                () = emptied => {}
                _ = sweep.tick() => self.sweep().await,
                () = tokio::time::sleep_until(deadline) => break,
            }
        }
        tracing::warn!(
            sessions = self.sessions.borrow().len(),
            in_flight = self.in_flight.get(),
            "the drain's time is over before everybody has left"
        );
    }

    pub fn draining(&self) -> bool {
        self.draining.get()
    }

    /// A lane to the node that owns the bucket now.
    pub fn lane(self: &Rc<Self>, bucket: &BucketView, durability: Durability) -> Rc<Lane> {
        let node = self.store.node_of_slot(bucket.slot);
        let waits = matches!(durability, Durability::Replicas(_));
        let mut lanes = self.lanes.borrow_mut();
        if lanes.len() <= node {
            lanes.resize_with(node + 1, Default::default);
        }
        let lanes = &mut lanes[node][usize::from(waits)];
        if lanes.is_empty() {
            for _ in 0..self.settings.lanes_per_node {
                let link = Link::new(self.store.link(node).node.clone());
                let (lane, worker) = (Rc::new(Lane::new(link, &self.settings)), self.clone());
                lanes.push(lane.clone());
                tokio::task::spawn_local(async move { lane.run(&worker).await });
            }
        }
        self.next_lane.set(self.next_lane.get().wrapping_add(1));
        lanes[self.next_lane.get() % lanes.len()].clone()
    }

    /// Writes to every session that has something to write.
    pub fn flush_dirty(&self) {
        let dirty = std::mem::take(&mut *self.dirty.borrow_mut());
        for session in &dirty {
            if session.flush().is_err() {
                session.abandon();
            }
        }
        let mut dirty = dirty;
        dirty.clear();
        // The list keeps its memory for the next batch.
        let mut current = self.dirty.borrow_mut();
        if current.is_empty() {
            *current = dirty;
        }
    }

    /// What to say when the user's bucket is empty: `SOLD_OUT` only when every packet has been won. An empty bucket alone does not tell, even
    /// where it is the only one: a top-up may be on its way into it.
    ///
    /// `rain` is the view from before the grab was sent: if the rain was sold out then and still is, nobody has won in between.
    pub fn nothing_left(&self, rain: &RainView) -> Outcome {
        let (id, version) = (rain.snapshot.rain, rain.snapshot.version);
        let now = self.rains.get(id);
        let still =
            |now: Arc<RainView>| now.snapshot.version == version && now.is_sold_out(now_ms());
        if now.is_some_and(still) {
            Outcome::SoldOut
        } else {
            Outcome::Missed
        }
    }

    pub fn reply_grab(
        &self,
        session: &Rc<Session>,
        request_id: u64,
        rain: RainId,
        outcome: Outcome,
        packet: Option<Packet>,
    ) {
        let retry_after_ms = match outcome {
            Outcome::NotOpen => self.until_opening_ms(rain),
            Outcome::Paused | Outcome::Busy | Outcome::Retry | Outcome::Checking => {
                self.retry_after_ms()
            }
            _ => 0,
        };
        self.reply_grab_raw(
            session,
            request_id,
            rain.get(),
            outcome,
            packet,
            retry_after_ms,
        );
    }

    pub fn cool_down(&self, session: &Rc<Session>, request_id: u64, rain: RainId, left_ms: u32) {
        let after_ms = left_ms + self.retry_after_ms() / 4;
        let outcome = Outcome::CoolingDown;
        // Whoever goes on tapping before the opening waits longer.
        let early = self.rains.get(rain);
        if let Some(rain) = early.filter(|rain| rain.phase(now_ms()) < Phase::Open) {
            self.tapped_early(session, &rain);
        }
        self.reply_grab_raw(session, request_id, rain.get(), outcome, None, after_ms);
    }

    pub fn reply_grab_raw(
        &self,
        session: &Rc<Session>,
        request_id: u64,
        rain_id: u32,
        outcome: Outcome,
        packet: Option<Packet>,
        retry_after_ms: u32,
    ) {
        crate::metrics::get().outcome(outcome).increment(1);
        crate::tally::count(rain_id, outcome);
        let result = GrabResult {
            outcome: outcome as i32,
            rain_id,
            packet_id: packet.map_or(0, |packet| packet.id.get()),
            cents: packet.map_or(0, |packet| packet.cents.0),
            retry_after_ms,
        };
        session.send(self, request_id, Message::GrabResult(result));
    }

    /// Those who were turned away together must not come back together.
    pub(super) fn retry_after_ms(&self) -> u32 {
        self.jitter.around(self.settings.retry_after).as_millis() as u32
    }

    fn until_opening_ms(&self, rain: RainId) -> u32 {
        let opens = self
            .rains
            .get(rain)
            .and_then(|rain| rain.snapshot.opens_at_ms);
        // Whoever waits as long as it is told to never taps too early too often, even if nobody knows when.
        let unknown = self.settings.early_window.as_millis() as i64
            / i64::from(self.settings.early_taps_max.max(1));
        let left = opens.map_or(unknown, |opens| (opens - now_ms()).max(0)) as u64;
        // Nobody is told to come later than in ten seconds: the opening may be brought forward.
        left.min(10_000) as u32 + self.retry_after_ms() / 4
    }

    pub fn known_missing(&self, rain: RainId) -> bool {
        self.missing
            .borrow()
            .get(&rain)
            .is_some_and(|since| since.elapsed() < MISSING_FOR)
    }

    pub fn remember_missing(&self, rain: RainId) {
        let mut missing = self.missing.borrow_mut();
        if missing.len() < MISSING_MAX {
            missing.insert(rain, Instant::now());
        }
    }

    pub fn look_up_turn(&self) -> Option<Turn> {
        Turn::take(&self.look_ups, LOOK_UPS_MAX)
    }

    /// A place among the reads of inboxes on `node`.
    pub fn inbox_turn(&self, node: usize) -> Option<Turn> {
        Turn::take(
            self.inbox_reads.borrow_mut().entry(node).or_default(),
            INBOX_READS_MAX,
        )
    }
}
