//! Who has how many sessions, over all workers of this gateway: beyond `gateway.sessions_per_user` a new one closes the oldest.
//!
//! Only this gateway's: another one does not know, and a user who reaches two of them has so many sessions on each. Nothing rests on the number but
//! order: money is safe however many sessions a user has.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::Notify;

use super::session::Session;
use super::worker::Worker;
use crate::rain::UserId;
use crate::wire::CloseCode;

/// Locks, so that workers seldom wait for one another. Taken twice in the life of a session.
const SHARDS: usize = 64;

/// Sessions that another worker wants closed. At most as many as there are.
#[derive(Default)]
pub struct Orders {
    close: Mutex<Vec<u64>>,
    pub told: Notify,
}

struct Entry {
    session: u64,
    worker: Arc<Orders>,
}

/// Oldest first.
type Shard = HashMap<UserId, Vec<Entry>>;

/// About 70 bytes a session.
pub struct Roll {
    shards: [Mutex<Shard>; SHARDS],
    hasher: RandomState,
    max: usize,
}

impl Roll {
    pub fn new(max: usize) -> Roll {
        Roll {
            shards: std::array::from_fn(|_| Mutex::default()),
            hasher: RandomState::new(),
            max,
        }
    }

    fn shard(&self, user: &UserId) -> MutexGuard<'_, Shard> {
        let place = self.hasher.hash_one(user) as usize % SHARDS;
        self.shards[place].lock().expect("no panic under this lock")
    }

    /// Enters a session and has those closed that are too many now.
    fn enter(&self, user: &UserId, session: u64, worker: &Arc<Orders>) {
        let mut shard = self.shard(user);
        let of_user = shard.entry(user.clone()).or_default();
        let worker = worker.clone();
        of_user.reserve_exact(1);
        of_user.push(Entry { session, worker });
        let too_many = of_user.len().saturating_sub(self.max);
        let replaced: Vec<Entry> = of_user.drain(..too_many).collect();
        drop(shard);
        for entry in replaced {
            let mut close = entry.worker.close.lock().expect("no panic under this lock");
            close.push(entry.session);
            drop(close);
            entry.worker.told.notify_one();
        }
    }

    fn leave(&self, user: &UserId, session: u64) {
        let mut shard = self.shard(user);
        if let Some(of_user) = shard.get_mut(user) {
            of_user.retain(|entry| entry.session != session);
            if of_user.is_empty() {
                shard.remove(user);
            }
        }
    }
}

impl Worker {
    pub(super) fn enter_roll(&self, user: &UserId, session: &Session) {
        self.roll.enter(user, session.id, &self.orders);
    }

    pub(super) fn leave_roll(&self, session: &Session) {
        if let Some(user) = session.user().filter(|_| session.edge().is_none()) {
            self.roll.leave(user, session.id);
        }
    }

    /// Closes the sessions that newer ones have replaced.
    pub(super) fn close_replaced(&self) {
        let ids = std::mem::take(&mut *self.orders.close.lock().expect("no panic under this lock"));
        for id in ids {
            let session = self.session(id);
            if let Some(session) = session {
                session.close(self, CloseCode::Replaced, "the user connected again");
            }
        }
        self.flush_dirty();
    }
}
