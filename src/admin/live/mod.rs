//! The numbers of a rain as they change, as server-sent events.
//!
//! ```text
//!   event: numbers   data: what `numbers.rs` says, as often as `admin.live_interval_ms`
//!   event: problem   data: {"detail"}: this look failed, the next may not
//!   event: end       data: {"reason"}: finished, settled (closed, and no claim is on its way), or draining; the stream ends
//! ```
//!
//! A stream whose key is revoked, or has lost its role, breaks off within seconds.
//! All who watch the same rain share one look. It ends with the last of them, with the rain, or with the process. Whoever reads slowly misses looks, and
//! costs no more than who reads quickly: only the last one is kept.

/// What one look finds.
mod numbers;

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use axum::Extension;
use axum::extract::{Path, State};
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::{Stream, stream};
use serde_json::json;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::caller::{Access, Caller, Module};
use super::problem::Problem;
use super::rains::find;
use super::{Admin, Shared};
use crate::ledger::LedgerError;
use crate::rain::RainId;
use crate::task;

/// A comment now and then tells both ends that the other is there.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// How long somebody who may not watch any more goes on watching, at most.
const ASK_AGAIN: Duration = Duration::from_secs(2);
/// After a lost stream a browser comes back so soon.
const COME_BACK: Duration = Duration::from_secs(1);

/// The last look, and whether it was the last of all.
#[derive(Clone)]
struct Told {
    /// `None` before the first look.
    event: Option<Event>,
    end: Option<&'static str>,
}

/// Rains that somebody watches.
pub struct Live {
    places: Arc<Semaphore>,
    streams_max: usize,
    watched: Mutex<HashMap<RainId, watch::Receiver<Told>>>,
}

impl Live {
    pub fn new(streams_max: usize) -> Live {
        Live {
            places: Arc::new(Semaphore::new(streams_max)),
            streams_max,
            watched: Mutex::default(),
        }
    }

    fn watched(&self) -> MutexGuard<'_, HashMap<RainId, watch::Receiver<Told>>> {
        self.watched.lock().expect("no panic under this lock")
    }

    /// Forgets a rain that nobody watches any more: the look of one who comes now is a new one.
    fn forget_if_alone(&self, rain: RainId, told: &watch::Sender<Told>) -> bool {
        let mut watched = self.watched();
        let alone = told.receiver_count() <= 1; // the one in the table
        if alone {
            watched.remove(&rain);
        }
        alone
    }

    /// The last word on a rain to all who watch it.
    fn end(&self, rain: RainId, told: &watch::Sender<Told>, reason: &'static str) {
        let mut watched = self.watched();
        told.send_modify(|told| told.end = Some(reason));
        watched.remove(&rain);
    }
}

pub async fn stream(
    State(admin): Shared,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Problem> {
    let rain = find(&admin, &id).await?.id;
    let Ok(place) = admin.live.places.clone().try_acquire_owned() else {
        let detail = format!(
            "{} streams are open, which is admin.live_streams_max: close one, or ask GET /v1/rains/{rain} now and then",
            admin.live.streams_max
        );
        return Err(Problem::new(503, "too many streams", detail));
    };
    let watching = Watching {
        told: subscribe(&admin, rain),
        rest: Rest::Looks,
        admin,
        key: caller.id,
        asked_at: Instant::now(),
        _place: place,
    };
    let events = stream::unfold(watching, Watching::next);
    let heartbeat = KeepAlive::new().interval(HEARTBEAT).text("alive");
    Ok(Sse::new(events).keep_alive(heartbeat))
}

/// One who watches.
struct Watching {
    told: watch::Receiver<Told>,
    rest: Rest,
    admin: Arc<Admin>,
    /// Whose it is, and when the gate last said that it may.
    key: String,
    asked_at: Instant,
    _place: OwnedSemaphorePermit,
}

/// What is still to come.
enum Rest {
    Looks,
    End(&'static str),
    Nothing,
}

impl Watching {
    async fn next(mut self) -> Option<(Result<Event, Infallible>, Watching)> {
        let event = loop {
            match self.rest {
                Rest::Nothing => return None,
                Rest::End(reason) => {
                    self.rest = Rest::Nothing;
                    break end(reason);
                }
                Rest::Looks => {}
            }
            let alive = self.told.changed().await.is_ok();
            // Whoever is sent away is told why when they come back.
            if !self.may_go_on().await {
                return None;
            }
            let told = self.told.borrow_and_update().clone();
            if let Some(reason) = told.end.or((!alive).then_some("draining")) {
                self.rest = Rest::End(reason);
            }
            // The last look comes before the end.
            if let (true, Some(event)) = (alive, told.event) {
                break event;
            }
        };
        Some((Ok(event), self))
    }

    /// Nobody loses a stream because the ledger is away.
    async fn may_go_on(&mut self) -> bool {
        if self.asked_at.elapsed() < ASK_AGAIN {
            return true;
        }
        self.asked_at = Instant::now();
        let gate = &self.admin.gate;
        let may = gate.still_may(&self.admin, &self.key, Module::Rains, Access::Read);
        may.await.unwrap_or(true)
    }
}

fn end(reason: &str) -> Event {
    Event::default()
        .event("end")
        .data(json!({ "reason": reason }).to_string())
}

/// Joins those who watch the rain, or begins to look at it.
fn subscribe(admin: &Arc<Admin>, rain: RainId) -> watch::Receiver<Told> {
    let mut watched = admin.live.watched();
    if let Some(known) = watched.get(&rain).filter(|told| told.has_changed().is_ok()) {
        let mut told = known.clone();
        told.mark_changed(); // who comes in between sees the last look at once
        return told;
    }
    let (sender, receiver) = watch::channel(Told {
        event: None,
        end: None,
    });
    watched.insert(rain, receiver.clone());
    drop(watched);
    let looking = look_on(admin.clone(), rain, sender);
    task::spawn(&admin.tasks, "admin.live", looking);
    receiver
}

/// Looks until nobody watches, the rain is over, or the process drains.
async fn look_on(admin: Arc<Admin>, rain: RainId, told: watch::Sender<Told>) {
    let mut memory = numbers::Memory::default();
    let mut round = tokio::time::interval(admin.settings.live_interval);
    round.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let looks = async {
        loop {
            round.tick().await;
            if admin.live.forget_if_alone(rain, &told) {
                return;
            }
            let look = memory.look(&admin, rain).await;
            let over = look.as_ref().ok().and_then(numbers::Numbers::over);
            told.send_replace(Told {
                event: Some(event(look)),
                end: None,
            });
            if let Some(reason) = over {
                return admin.live.end(rain, &told, reason);
            }
        }
    };
    if admin.draining.run_until_cancelled(looks).await.is_none() {
        admin.live.end(rain, &told, "draining");
    }
}

fn event(look: Result<numbers::Numbers, LedgerError>) -> Event {
    let event = Event::default().retry(COME_BACK);
    match look {
        Ok(numbers) => {
            let json = serde_json::to_string(&numbers).expect("numbers are plain data");
            event.event("numbers").data(json)
        }
        Err(error) => event
            .event("problem")
            .data(json!({ "detail": error.to_string() }).to_string()),
    }
}
