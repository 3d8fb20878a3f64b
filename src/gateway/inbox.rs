//! A user's messages: pages of the inbox when a session asks, and a push to every session of a user who was credited.
//!
//! The inbox is the truth. Pushes are dropped wherever something is full; the ids in the next one show the client what it missed.

use std::rc::Rc;
use std::sync::Arc;

use tokio::sync::mpsc;

use super::edge;
use super::errand;
use super::session::Session;
use super::worker::{PUSH_SLICE, Worker};
use crate::metrics;
use crate::rain::{Packet, UserId};
use crate::store::inbox::{Contents, Credited, News, Page};
use crate::wire::frame::{self, SERVER_FRAME_MAX};
use crate::wire::inbox_message::Contents as Told;
use crate::wire::server_frame::Message;
use crate::wire::{
    CloseCode, Inbox, InboxMessage, InboxPage, Outcome, PacketCredited, Refused, ServerFrame,
};

/// Messages in one page.
const PAGE_MAX: usize = 100;
/// A message is at most 70 bytes on the wire: three ids and times of 10, an amount of 10, a rain of 6, and their tags and lengths.
const _: () = assert!(PAGE_MAX * 70 + 100 < SERVER_FRAME_MAX);

/// A session asked for a page of its user's inbox; an edge session names the user.
pub fn asked(
    worker: &Rc<Worker>,
    session: &Rc<Session>,
    user: &UserId,
    request_id: u64,
    mut asked: Inbox,
) {
    let named = edge::named(session, std::mem::take(&mut asked.user));
    match named.map(|named| named.map(|name| UserId::new(&name))) {
        Ok(None) => page(worker, session, user, request_id, asked),
        Ok(Some(Ok(user))) => page(worker, session, &user, request_id, asked),
        Ok(Some(Err(_))) => refuse(worker, session, request_id, Outcome::BadRequest),
        Err(outcome) => refuse(worker, session, request_id, outcome),
    }
}

fn refuse(worker: &Worker, session: &Rc<Session>, request_id: u64, refused: Outcome) {
    let refused = Refused {
        code: CloseCode::UserWrong as i32,
        reason: edge::reason(refused),
    };
    session.send(worker, request_id, Message::Refused(refused));
}

/// A page for a session that asked for one.
fn page(worker: &Rc<Worker>, session: &Rc<Session>, user: &UserId, request_id: u64, asked: Inbox) {
    let limit = match asked.limit as usize {
        limit @ 1..=PAGE_MAX => limit,
        _ => PAGE_MAX,
    };
    let full = !session.may_ask(worker);
    let node = worker.store.node_of_user(user);
    let turn = (!full && !worker.draining()).then(|| worker.inbox_turn(node));
    let Some(turn) = turn.flatten() else {
        metrics::get().inbox_pages_busy.increment(1);
        return session.send(worker, request_id, not_now(worker));
    };
    let (reading, asking, user) = (worker.clone(), session.clone(), user.clone());
    let read = async move {
        let inbox = &reading.store;
        let read = inbox.read_inbox(&user, asked.after_message_id, limit).await;
        drop(turn);
        crate::crash::bug("inbox");
        let answer = match read {
            Ok(page) => {
                metrics::get().inbox_pages_read.increment(1);
                Message::InboxPage(on_the_wire(&page))
            }
            Err(error) => {
                metrics::get().inbox_pages_away.increment(1);
                tracing::debug!(%error, "an inbox cannot be read now");
                not_now(&reading)
            }
        };
        asking.send(&reading, request_id, answer);
    };
    errand::run(worker, session, "inbox", read, move |worker, session| {
        session.send(worker, request_id, not_now(worker));
    });
}

/// What a client missed that has messages up to `last_message_id`; one without any asks when it wants to.
pub fn page_after_welcome(
    worker: &Rc<Worker>,
    session: &Rc<Session>,
    user: &UserId,
    last_message_id: u64,
) {
    if last_message_id > 0 {
        let asked = Inbox {
            after_message_id: last_message_id,
            ..Inbox::default()
        };
        page(worker, session, user, 0, asked);
    }
}

/// "There may be more, ask again": those who were turned away together must not come back together.
fn not_now(worker: &Worker) -> Message {
    Message::InboxPage(InboxPage {
        messages: vec![],
        more: true,
        retry_after_ms: worker.retry_after_ms(),
    })
}

fn on_the_wire(page: &Page) -> InboxPage {
    let message = |message: &crate::store::inbox::Message| InboxMessage {
        message_id: message.id,
        previous_message_id: 0,
        contents: message.contents.map(|contents| match contents {
            Contents::PacketCredited { packet } => packet_credited(packet, message.id),
        }),
        user: String::new(),
    };
    InboxPage {
        messages: page.messages.iter().map(message).collect(),
        more: page.more,
        retry_after_ms: 0,
    }
}

fn packet_credited(packet: Packet, message_id: u64) -> Told {
    Told::PacketCredited(PacketCredited {
        rain_id: packet.id.rain().get(),
        packet_id: packet.id.get(),
        cents: packet.cents.0,
        // The message was written when the credit had been booked, and its id is that time.
        credited_at_ms: message_id as i64,
    })
}

/// Every worker looks through all news for its own users: a look into a map each, and nothing to keep up to date between workers. Ends when
/// the store stops listening.
pub async fn hand_on(mut news: mpsc::Receiver<Arc<News>>, workers: Vec<mpsc::Sender<Arc<News>>>) {
    while let Some(news) = news.recv().await {
        for worker in &workers {
            if worker.try_send(news.clone()).is_err() {
                metrics::get()
                    .inbox_pushes_dropped
                    .increment(news.len() as u64);
            }
        }
    }
}

impl Worker {
    /// Tells the sessions of this worker whose users were credited. Grabs get their turn in between.
    pub(super) async fn push_credited(&self, news: &Arc<News>) {
        self.edges.keep(news);
        for part in news.chunks(PUSH_SLICE) {
            for credited in part {
                self.push_to_user(credited);
            }
            self.flush_dirty();
            tokio::task::yield_now().await;
        }
    }

    fn push_to_user(&self, credited: &Credited) {
        let sessions = self.users.sessions_of(&credited.claim.user);
        if !sessions.is_empty() {
            self.push_message(credited, String::new(), &sessions);
        }
        let edges = self.edges.awaiting(credited);
        if !edges.is_empty() {
            self.push_to_edges(credited, &edges);
        }
    }

    pub(super) fn push_to_edges(&self, credited: &Credited, sessions: &[Rc<Session>]) {
        self.push_message(credited, credited.claim.user.to_string(), sessions);
    }

    /// `named`: whose message it is, when that is not the user of the sessions.
    fn push_message(&self, credited: &Credited, named: String, sessions: &[Rc<Session>]) {
        let message = InboxMessage {
            message_id: credited.place.id,
            previous_message_id: credited.place.previous,
            contents: Some(packet_credited(credited.claim.packet, credited.place.id)),
            user: named,
        };
        let frame = frame::encode(&ServerFrame {
            request_id: 0,
            message: Some(Message::InboxMessage(message)),
        });
        metrics::get().inbox_pushes.increment(sessions.len() as u64);
        for session in sessions {
            session.send_bytes(self, &frame);
        }
    }
}
