//! The user's messages, each once and in order, out of pushes that may be lost and pages that may overlap. No I/O.

use std::time::Duration;

use tokio::time::Instant;

use super::again::Again;
use super::events::Event;
use crate::wire::inbox_message::Contents;
use crate::wire::{Inbox, InboxMessage, InboxPage};

/// How far the clocks of gateways and nodes may be apart: a new client takes messages from this long before its first session for new.
const CLOCK_SLACK_MS: i64 = 60_000;
/// Before an inbox that could not be read is asked for again, whatever the gateway says.
pub(super) const UNREAD_WAIT_MIN: Duration = Duration::from_millis(50);

/// How far this client has read, and when it must ask for what it missed. The rules stand in `proto/hongbao.proto` at `InboxMessage`.
#[derive(Default)]
pub(super) struct Reader {
    /// Every message up to this one was told. 0: not known before the first Welcome.
    last: u64,
    /// Something was missed.
    missed: Again,
}

impl Reader {
    pub fn start_after(&mut self, last_message_id: u64) {
        self.last = last_message_id;
    }

    /// For Hello.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// The first Welcome says from when on messages are new. After a later one a page follows by itself.
    pub fn welcomed(&mut self, server_time_ms: i64) {
        if self.last == 0 {
            self.last = server_time_ms.saturating_sub(CLOCK_SLACK_MS).max(1) as u64;
        }
    }

    /// The next Hello names the last message, and what follows Welcome makes asking needless.
    pub fn connection_lost(&mut self) {
        self.missed = Again::No;
    }

    pub fn pushed(&mut self, message: InboxMessage) -> Option<Event> {
        if message.previous_message_id > self.last {
            self.missed.now();
            return None;
        }
        self.take(message)
    }

    pub fn page(&mut self, page: InboxPage) -> Vec<Event> {
        // Without `more` a question that is due stays due: it may be about a message that was written after this page was read.
        if page.more {
            let wait = Duration::from_millis(u64::from(page.retry_after_ms));
            let wait = match page.messages.is_empty() {
                true => wait.max(UNREAD_WAIT_MIN),
                false => wait,
            };
            self.missed = Again::Due(Instant::now() + wait);
        }
        page.messages
            .into_iter()
            .filter_map(|message| self.take(message))
            .collect()
    }

    /// The event of a message that was not told yet.
    fn take(&mut self, message: InboxMessage) -> Option<Event> {
        let message_id = message.message_id;
        if message_id <= self.last {
            return None;
        }
        self.last = message_id;
        match message.contents? {
            Contents::PacketCredited(credited) => Some(Event::PacketCredited {
                message_id,
                credited,
            }),
        }
    }

    pub fn ask_at(&self) -> Option<Instant> {
        self.missed.due()
    }

    /// The request for what was missed, if it is due; it is sent with this id.
    pub fn ask(&mut self, now: Instant, request_id: u64) -> Option<Inbox> {
        let due = self.missed.take_due(now, request_id);
        due.then(|| Inbox {
            after_message_id: self.last,
            ..Inbox::default()
        })
    }

    /// A request was refused for the moment: what was missed is still missed.
    pub fn refused(&mut self, request_id: u64) {
        self.missed.refused(request_id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::PacketCredited;

    const NONE: [u64; 0] = [];

    fn message(message_id: u64, previous_message_id: u64) -> InboxMessage {
        let credited = PacketCredited {
            packet_id: message_id * 10,
            ..PacketCredited::default()
        };
        InboxMessage {
            message_id,
            previous_message_id,
            contents: Some(Contents::PacketCredited(credited)),
            user: String::new(),
        }
    }

    fn page(ids: &[u64], more: bool) -> InboxPage {
        InboxPage {
            messages: ids.iter().map(|id| message(*id, 0)).collect(),
            more,
            retry_after_ms: 0,
        }
    }

    fn told(events: impl IntoIterator<Item = Event>) -> Vec<u64> {
        let id = |event| match event {
            Event::PacketCredited {
                message_id,
                credited,
            } => {
                assert_eq!(credited.packet_id, message_id * 10);
                message_id
            }
            other => panic!("{other:?}"),
        };
        events.into_iter().map(id).collect()
    }

    fn asked(reader: &mut Reader) -> Option<u64> {
        reader
            .ask(Instant::now(), 7)
            .map(|ask| ask.after_message_id)
    }

    #[test]
    fn pushes_in_a_row_are_told_once_each() {
        let mut reader = Reader::default();
        reader.welcomed(1_000_000);
        assert_eq!(reader.last(), 940_000, "a minute before the first session");
        // The message before the first push is an old one.
        assert_eq!(told(reader.pushed(message(1_000_005, 20))), [1_000_005]);
        assert_eq!(
            told(reader.pushed(message(1_000_006, 1_000_005))),
            [1_000_006]
        );
        assert_eq!(told(reader.pushed(message(1_000_006, 1_000_005))), NONE);
        assert_eq!(told(reader.pushed(message(1_000_005, 20))), NONE);
        assert_eq!(reader.ask_at(), None);
    }

    #[test]
    fn a_gap_is_asked_for_and_everything_told_in_order() {
        let mut reader = Reader::default();
        reader.start_after(10);
        reader.welcomed(1_000_000);
        assert_eq!(told(reader.pushed(message(13, 12))), NONE, "12 was missed");
        assert_eq!(asked(&mut reader), Some(10));
        assert_eq!(asked(&mut reader), None, "asked once");
        assert_eq!(told(reader.page(page(&[11, 12], true))), [11, 12]);
        assert_eq!(asked(&mut reader), Some(12));
        assert_eq!(told(reader.page(page(&[12, 13], false))), [13]);
        assert_eq!(asked(&mut reader), None);
        assert_eq!(told(reader.pushed(message(14, 13))), [14]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_question_that_is_refused_is_asked_again_later() {
        let mut reader = Reader::default();
        reader.start_after(10);
        reader.pushed(message(13, 12));
        assert_eq!(asked(&mut reader), Some(10));
        reader.refused(6);
        assert_eq!(reader.ask_at(), None, "that was another request");
        reader.refused(7);
        assert_eq!(asked(&mut reader), None, "not at once");
        tokio::time::sleep_until(reader.ask_at().unwrap()).await;
        assert_eq!(asked(&mut reader), Some(10));
    }

    #[test]
    fn an_inbox_that_cannot_be_read_is_asked_for_later_and_unknown_kinds_are_passed_over() {
        let mut reader = Reader::default();
        reader.start_after(10);
        let mut away = page(&[], true);
        away.retry_after_ms = 60_000;
        assert_eq!(told(reader.page(away)), NONE);
        assert_eq!(asked(&mut reader), None, "not yet");
        assert!(reader.ask_at().is_some());
        reader.connection_lost();
        assert_eq!(reader.ask_at(), None, "the next Welcome brings it");
        let mut newer = page(&[11, 12], false);
        newer.messages[0].contents = None;
        assert_eq!(told(reader.page(newer)), [12]);
        assert_eq!(reader.last(), 12);
    }
}
