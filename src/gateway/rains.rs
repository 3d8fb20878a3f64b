//! The rains that this gateway knows: views of the published snapshots, kept up to date, and the pushes that follow from them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use futures_util::StreamExt;
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::clock::now_ms;
use crate::rain::{RainId, State};
use crate::store::directory::{Progress, Snapshot};
use crate::store::keys::BucketKeys;
use crate::store::{Store, StoreError, tags};
use crate::wire::server_frame::Message;
use crate::wire::{self, RainAnnounced, RainClosed, RainOpened, RainSoldOut, ServerFrame};

/// How often all listed rains are read again: what a lost message costs at most.
const REFRESH: Duration = Duration::from_secs(1);
/// How long a record that is not read again is believed, ms: two rounds may fail.
const BELIEVED_MS: i64 = 3 * REFRESH.as_millis() as i64;
/// Snapshots read at the same time.
const READS_AT_ONCE: usize = 16;

/// A bucket as the gateway sees it.
pub struct BucketView {
    pub keys: BucketKeys,
    pub slot: u16,
    /// The gate's epoch at the last answer.
    epoch: AtomicU64,
    /// Until when, ms since 1970, the last answer *empty* is taken to hold.
    empty_until_ms: AtomicU64,
}

impl BucketView {
    /// The bucket answered *empty* in `epoch`.
    pub fn remember_empty(&self, epoch: u64, until_ms: u64) {
        // An answer that was overtaken by a newer one says nothing any more.
        if self.epoch.load(Ordering::Relaxed) <= epoch {
            self.empty_until_ms.store(until_ms, Ordering::Relaxed);
        }
    }

    /// The rain's record has changed: packets may have come.
    fn forget_empty(&self) {
        self.empty_until_ms.store(0, Ordering::Relaxed);
    }

    pub fn remember_epoch(&self, epoch: u64) {
        if self.epoch.fetch_max(epoch, Ordering::Relaxed) < epoch {
            self.empty_until_ms.store(0, Ordering::Relaxed);
        }
    }

    /// Whether the bucket is still empty as far as anyone here knows, in the epoch in which a session saw it empty.
    pub fn still_empty(&self, seen_epoch: u64, now_ms: u64) -> bool {
        self.epoch.load(Ordering::Relaxed) == seen_epoch
            && now_ms < self.empty_until_ms.load(Ordering::Relaxed)
    }
}

/// A rain as the gateway sees it.
pub struct RainView {
    pub snapshot: Snapshot,
    /// When the record was last read, or came, ms since 1970.
    read_at_ms: AtomicI64,
    pub buckets: Arc<[BucketView]>,
}

/// What watching clients have been told of a rain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Nothing yet.
    Untold,
    Announced,
    Open,
    Closed,
}

impl RainView {
    pub(super) fn new(snapshot: Snapshot) -> RainView {
        let view = |tag| BucketView {
            keys: BucketKeys::new(&tag),
            slot: tag.slot(),
            epoch: AtomicU64::new(0),
            empty_until_ms: AtomicU64::new(0),
        };
        let buckets = tags(snapshot.rain, &snapshot.salts).map(view).collect();
        RainView {
            snapshot,
            read_at_ms: AtomicI64::new(now_ms()),
            buckets,
        }
    }

    /// Whether nothing is left for certain. A record that could not be read again for a while does not tell: there may be a top-up.
    pub fn is_sold_out(&self, now_ms: i64) -> bool {
        self.snapshot.sold_out && now_ms - self.read_at_ms.load(Ordering::Relaxed) < BELIEVED_MS
    }

    /// By this machine's clock: good enough to tell people; whether a grab may win is decided by the node's own.
    pub fn phase(&self, now_ms: i64) -> Phase {
        let window = self.snapshot.window();
        let early = match self.snapshot.announce_at_ms {
            Some(at) if now_ms < at => Phase::Untold,
            Some(_) | None => Phase::Announced,
        };
        match (
            self.snapshot.state,
            window.opens_at_ms,
            window.closes_at_ms(),
        ) {
            (State::Closed | State::Refunded | State::Finished, ..) => Phase::Closed,
            (
                State::Created | State::Ready | State::Open | State::Paused,
                Some(opens),
                Some(closes),
            ) => {
                if now_ms < opens {
                    early
                } else if now_ms < closes {
                    Phase::Open
                } else {
                    Phase::Closed
                }
            }
            (State::Created | State::Ready | State::Open | State::Paused, ..) => early,
        }
    }

    fn next_change_ms(&self, now_ms: i64) -> Option<i64> {
        let window = self.snapshot.window();
        [
            self.snapshot.announce_at_ms,
            window.opens_at_ms,
            window.closes_at_ms(),
        ]
        .into_iter()
        .flatten()
        .filter(|at| *at > now_ms)
        .min() // a rain that is opened early may be open before it was to be announced
    }

    /// The frame that tells a watching client where the rain stands, if it is to be told.
    pub fn push(&self, phase: Phase) -> Option<Bytes> {
        let (rain_id, room, title) = (
            self.snapshot.rain.get(),
            self.snapshot.room.clone(),
            self.snapshot.title.clone(),
        );
        let window = self.snapshot.window();
        let server_time_ms = now_ms();
        Some(encode(match phase {
            Phase::Untold => return None,
            Phase::Announced => Message::RainAnnounced(RainAnnounced {
                rain_id,
                room,
                title,
                opens_at_ms: window.opens_at_ms.unwrap_or_default(),
                server_time_ms,
            }),
            Phase::Open => Message::RainOpened(RainOpened {
                rain_id,
                room,
                title,
                closes_at_ms: window.closes_at_ms().unwrap_or_default(),
                server_time_ms,
                key: self
                    .snapshot
                    .grab_key
                    .map_or_else(Bytes::new, |key| Bytes::copy_from_slice(&key.0)),
            }),
            Phase::Closed => Message::RainClosed(RainClosed { rain_id, room }),
        }))
    }

    pub fn push_sold_out(&self) -> Bytes {
        let (rain_id, room) = (self.snapshot.rain.get(), self.snapshot.room.clone());
        encode(Message::RainSoldOut(RainSoldOut { rain_id, room }))
    }
}

pub(super) fn encode(message: Message) -> Bytes {
    wire::frame::encode(&ServerFrame {
        request_id: 0,
        message: Some(message),
    })
}

/// One frame for everyone who watches `room`.
#[derive(Clone)]
pub struct Push {
    pub room: Arc<str>,
    pub frame: Bytes,
    pub rank: Rank,
}

/// What must be told, and what gives way.
#[derive(Clone, Copy, Debug)]
pub enum Rank {
    News,
    Progress(Progress),
}

/// The rains by id. Reading costs no lock.
pub struct Rains {
    views: ArcSwap<HashMap<RainId, Arc<RainView>>>,
    store: Arc<Store>,
}

impl Rains {
    pub fn new(store: Arc<Store>) -> Rains {
        Rains {
            views: ArcSwap::default(),
            store,
        }
    }

    pub fn get(&self, rain: RainId) -> Option<Arc<RainView>> {
        self.views.load().get(&rain).cloned()
    }

    /// Rains of a room that are announced or open.
    pub fn in_room(&self, room: &str) -> Vec<Arc<RainView>> {
        let now = now_ms();
        let views = self.views.load();
        let mut found: Vec<_> = views
            .values()
            .filter(|view| {
                let told = matches!(view.phase(now), Phase::Announced | Phase::Open);
                &*view.snapshot.room == room && told
            })
            .cloned()
            .collect();
        found.sort_by_key(|view| view.snapshot.rain);
        found
    }

    /// Reads one rain's snapshot: for a grab that names a rain not known yet.
    pub async fn find(&self, rain: RainId) -> Result<Option<Arc<RainView>>, StoreError> {
        if let Some(snapshot) = self.store.snapshot(rain).await? {
            self.put(snapshot);
        }
        Ok(self.get(rain))
    }

    /// Takes in a snapshot unless a newer one is known. The buckets' epochs are kept as long as the buckets stay.
    fn put(&self, snapshot: Snapshot) {
        crate::tally::make_room(snapshot.rain);
        let fresh = Arc::new(RainView::new(snapshot));
        self.views.rcu(|views| {
            let mut views = HashMap::clone(views);
            let id = fresh.snapshot.rain;
            let view = match views.get(&id) {
                Some(known) if known.snapshot.version >= fresh.snapshot.version => {
                    if known.snapshot.version == fresh.snapshot.version {
                        known.read_at_ms.fetch_max(now_ms(), Ordering::Relaxed);
                    }
                    return views;
                }
                Some(known) if known.snapshot.salts == fresh.snapshot.salts => {
                    known.buckets.iter().for_each(BucketView::forget_empty);
                    Arc::new(RainView {
                        snapshot: fresh.snapshot.clone(),
                        read_at_ms: AtomicI64::new(now_ms()),
                        buckets: known.buckets.clone(),
                    })
                }
                _ => fresh.clone(),
            };
            views.insert(id, view);
            views
        });
    }

    async fn refresh(&self) -> Result<(), StoreError> {
        let listed = self.store.listed().await?;
        let mut reads = futures_util::stream::iter(listed.clone())
            .map(|id| self.store.snapshot(id))
            .buffer_unordered(READS_AT_ONCE);
        // A node that is away hides its own rains only.
        let mut failed = None;
        while let Some(snapshot) = reads.next().await {
            match snapshot {
                Ok(Some(snapshot)) => self.put(snapshot),
                Ok(None) => {}
                Err(error) => failed = Some(error),
            }
        }
        // A finished rain leaves the list, and then our memory.
        let now = now_ms();
        let gone = |view: &RainView| {
            !listed.contains(&view.snapshot.rain) && view.phase(now) == Phase::Closed
        };
        if self.views.load().values().any(|view| gone(view)) {
            self.views.rcu(|views| {
                let kept = views.iter().filter(|(_, view)| !gone(view));
                kept.map(|(id, view)| (*id, view.clone()))
                    .collect::<HashMap<_, _>>()
            });
        }
        failed.map_or(Ok(()), Err)
    }

    /// Keeps the views up to date and sends a push for every change of phase, until `stop`.
    pub async fn keep(
        &self,
        pushes: Vec<mpsc::Sender<Push>>,
        tasks: &TaskTracker,
        stop: CancellationToken,
    ) {
        let changes = self.store.watch_rains(tasks, stop.clone());
        let progress = self.store.watch_progress(tasks, stop.clone());
        let news = Notify::new();
        // Side by side: a node that does not answer delays what it has to tell, and no opening that is known.
        tokio::select! {
            () = stop.cancelled() => {}
            () = self.refresh_often(&news) => {}
            () = self.follow(changes, &news) => {}
            () = self.tell_on(progress, &news, &pushes) => {}
        }
    }

    async fn refresh_often(&self, news: &Notify) {
        let mut refresh = tokio::time::interval(REFRESH);
        refresh.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            refresh.tick().await;
            if let Err(error) = self.refresh().await {
                tracing::debug!(%error, "rains cannot be read now; those known stay");
            }
            news.notify_one();
        }
    }

    async fn follow(&self, mut changes: mpsc::Receiver<RainId>, news: &Notify) {
        while let Some(rain) = changes.recv().await {
            if let Err(error) = self.find(rain).await {
                tracing::debug!(%rain, %error, "a changed rain cannot be read now");
            }
            news.notify_one();
        }
        std::future::pending().await
    }

    async fn tell_on(
        &self,
        mut progress: mpsc::Receiver<Progress>,
        news: &Notify,
        pushes: &[mpsc::Sender<Push>],
    ) {
        let mut told: HashMap<RainId, (Phase, bool)> = HashMap::new();
        loop {
            let next = self
                .views
                .load()
                .values()
                .filter_map(|view| view.next_change_ms(now_ms()))
                .min();
            let wait = next.map_or(REFRESH, |at| {
                Duration::from_millis((at - now_ms()).max(0) as u64)
            });
            tokio::select! {
                () = news.notified() => {}
                Some(progress) = progress.recv() => self.tell_progress(progress, pushes),
                () = tokio::time::sleep(wait) => {}
            }
            self.tell(&mut told, pushes).await;
        }
    }

    async fn tell(&self, told: &mut HashMap<RainId, (Phase, bool)>, pushes: &[mpsc::Sender<Push>]) {
        let views = self.views.load_full();
        told.retain(|rain, _| views.contains_key(rain));
        let now = now_ms();
        for (id, view) in views.iter() {
            let (phase, sold_out) = (view.phase(now), view.snapshot.sold_out);
            let before = told.insert(*id, (phase, sold_out));
            let room: Arc<str> = view.snapshot.room.as_str().into();
            let mut frames = vec![];
            // What was over when this gateway first heard of it is no news. Who was told that all is gone is told that it falls again.
            let topped_up = phase == Phase::Open && !sold_out;
            if before.is_none_or(|(before, gone)| before != phase || (gone && topped_up))
                && (before.is_some() || phase != Phase::Closed)
            {
                frames.extend(view.push(phase));
            }
            if sold_out && phase == Phase::Open && before.is_none_or(|(_, before)| !before) {
                frames.push(view.push_sold_out());
            }
            for frame in frames {
                for worker in pushes {
                    let _ = worker
                        .send(Push {
                            room: room.clone(),
                            frame: frame.clone(),
                            rank: Rank::News,
                        })
                        .await;
                }
            }
        }
    }
}
