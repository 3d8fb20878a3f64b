//! Requests in flight of one session. No I/O.

use std::collections::VecDeque;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::ClientError;
use crate::wire::server_frame::Message;

/// Who waits for a reply, and where.
pub(super) type Waiter = oneshot::Sender<Result<Message, ClientError>>;
pub(super) type Answer = oneshot::Receiver<Result<Message, ClientError>>;

/// A request on its way.
pub(super) struct InFlight {
    pub sent: Instant,
    /// `None` for the driver's own: heartbeats, and watching again.
    pub reply: Option<Waiter>,
}

/// Requests that wait for their replies, found by their ids without a search: ids follow one another.
#[derive(Default)]
pub(super) struct Requests {
    /// Id of the first slot.
    first: u64,
    /// `None`: answered. The first one never is.
    slots: VecDeque<Option<InFlight>>,
    waiting: usize,
}

impl Requests {
    pub fn put(&mut self, id: u64, request: InFlight) {
        if self.slots.is_empty() {
            self.first = id;
        }
        self.slots.push_back(Some(request));
        self.waiting += 1;
    }

    pub fn take(&mut self, id: u64) -> Option<InFlight> {
        let place = usize::try_from(id.checked_sub(self.first)?).ok()?;
        let request = self.slots.get_mut(place)?.take()?;
        self.waiting -= 1;
        while let Some(None) = self.slots.front() {
            self.slots.pop_front();
            self.first += 1;
        }
        Some(request)
    }

    /// The oldest.
    pub fn take_first(&mut self) -> Option<InFlight> {
        self.take(self.first)
    }

    pub fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// One reply that is very late keeps the slots behind it: they are bounded too.
    pub fn is_full(&self, max: usize) -> bool {
        self.waiting >= max || self.slots.len() >= max.saturating_mul(4)
    }
}
