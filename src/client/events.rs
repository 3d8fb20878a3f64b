use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use futures_util::stream::{Stream, StreamExt};

use super::shared::Shared;
use crate::rain::UserId;
use crate::wire::{
    PacketCredited, RainAnnounced, RainClosed, RainOpened, RainProgress, RainSoldOut,
};

/// What happened without being asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A session began; the watched room is being watched again.
    Connected {
        session_id: u64,
    },
    /// The session was lost; the driver is making another one.
    Lost {
        reason: String,
    },
    RainAnnounced(RainAnnounced),
    RainOpened(RainOpened),
    RainProgress(RainProgress),
    RainSoldOut(RainSoldOut),
    RainClosed(RainClosed),
    /// The money of a won packet is in the user's balance. Told once for each packet in the life of a [`Client`](super::Client), in order, also when
    /// it happened between two sessions. Those that were [`Skipped`](Event::Skipped) are still in the inbox.
    PacketCredited {
        message_id: u64,
        credited: PacketCredited,
    },
    /// An edge session was told of a user's credit. Each at most once in a session; what is not told stands in the user's inbox.
    UserCredited {
        user: UserId,
        message_id: u64,
        credited: PacketCredited,
    },
    /// This many events before the next one were dropped, since nobody took them.
    Skipped(u64),
}

/// The events of a session, oldest first; ends when the session has ended for good.
///
/// Bounded: at most `events_max` wait, then the oldest is dropped. A push tells how things stand now, so a reader that fell behind wants
/// the newest, and a slow reader must not stop the replies behind a push.
pub struct Events {
    shared: Arc<Shared>,
}

impl Events {
    pub(super) fn of(shared: Arc<Shared>) -> Events {
        Events { shared }
    }

    /// The next event; `None` after the session's end. May be cancelled.
    pub async fn next(&mut self) -> Option<Event> {
        StreamExt::next(self).await
    }

    /// An event that is already there.
    pub fn try_next(&mut self) -> Option<Event> {
        self.shared.lock().events.pop()
    }
}

impl Stream for Events {
    type Item = Event;

    fn poll_next(self: std::pin::Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Event>> {
        let mut state = self.shared.lock();
        match state.events.pop() {
            Some(event) => Poll::Ready(Some(event)),
            None if state.has_ended() => Poll::Ready(None),
            None => {
                state.events.reader = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// The queue behind [`Events`]. Takes no memory while it is empty.
#[derive(Default)]
pub(super) struct EventQueue {
    waiting: VecDeque<Event>,
    skipped: u64,
    reader: Option<Waker>,
}

impl EventQueue {
    pub fn push(&mut self, event: Event, max: usize) {
        // Of the packets that are left only the last number is of interest; the others must not push out what is.
        if let (Event::RainProgress(new), Some(Event::RainProgress(last))) =
            (&event, self.waiting.back_mut())
            && new.rain_id == last.rain_id
        {
            last.clone_from(new);
            return self.wake();
        }
        while self.waiting.len() >= max.max(1) {
            self.waiting.pop_front();
            self.skipped += 1;
        }
        self.waiting.push_back(event);
        self.wake();
    }

    pub fn wake(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }

    fn pop(&mut self) -> Option<Event> {
        if self.skipped > 0 {
            return Some(Event::Skipped(std::mem::take(&mut self.skipped)));
        }
        let event = self.waiting.pop_front();
        if self.waiting.is_empty() {
            self.waiting = VecDeque::new();
        }
        event
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_drops_the_oldest_and_says_how_many() {
        let mut queue = EventQueue::default();
        for session_id in 1..=5 {
            queue.push(Event::Connected { session_id }, 3);
        }
        assert_eq!(queue.pop(), Some(Event::Skipped(2)));
        for session_id in 3..=5 {
            assert_eq!(queue.pop(), Some(Event::Connected { session_id }));
        }
        assert_eq!(queue.pop(), None);
    }
}
