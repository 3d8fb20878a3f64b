//! The state of one session: its phase, and what every message does to it.

use std::collections::VecDeque;
use std::io;
use std::task::Waker;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use tokio::time::Instant;

use super::again::Again;
use super::clock::ServerClock;
use super::events::{Event, EventQueue};
use super::inbox::Reader;
use super::renewal::Renewal;
use super::requests::{InFlight, Requests, Waiter};
use super::socket::Socket;
use super::{AfterClose, ClientError, Refusal, Settings, Stats};
use crate::rain::UserId;
use crate::wire::client_frame::Request;
use crate::wire::inbox_message::Contents;
use crate::wire::server_frame::Message;
use crate::wire::{
    ClientFrame, InboxMessage, InboxPage, Ping, RainOpened, Refresh, Refused, Watch, Welcome, frame,
};

/// Bytes that the socket did not take. A gateway that stops reading for that long is not worth waiting for: all requests in flight together
/// are a few hundred bytes, Hello with its token below 4 KiB.
const UNSENT_MAX: usize = 64 * 1024;
/// Of a session that gathers its requests, this many bytes for each in flight: a grab for a user with a long name.
const REQUEST_MAX: usize = 160;
/// Rains whose keys are remembered: more than fall at a time.
const KEYS_MAX: usize = 4;
/// When Welcome names no heartbeat interval.
const HEARTBEAT_DEFAULT_MS: u32 = 30_000;
/// What a session keeps for unsent bytes once they are sent; a grab is below 20.
const OUT_KEPT: usize = 128;
/// The same for one that gathers thousands of requests.
const OUT_KEPT_GATHERED: usize = 64 * 1024;

pub(super) enum Phase {
    /// No connection; the driver is waiting or connecting.
    Down,
    /// Hello is sent.
    Greeting(Socket),
    Up(Socket),
    /// GoAway came: no new requests, but replies are still welcome.
    Leaving(Socket, Parting),
    Ended(ClientError),
}

/// How a connection came to its end.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Parting {
    Lost(String),
    /// The caller asked for another one.
    Asked,
    /// The gateway asked to come back, not before `back_at`.
    Away {
        refusal: Refusal,
        back_at: Instant,
    },
    /// Not to be repeated.
    Final(ClientError),
}

pub(super) struct State {
    pub phase: Phase,
    /// Set by the handle, carried out by the driver.
    pub abandon: Option<Parting>,
    pub driver: Option<Waker>,
    pub out: BytesMut,
    in_flight: Requests,
    next_request_id: u64,
    pub room: Option<Box<str>>,
    /// Watching it again after a reconnect.
    watching: Again,
    pub clock: ServerClock,
    pub events: EventQueue,
    pub last_failure: String,
    heartbeat: Duration,
    /// Sent and not answered yet.
    heartbeat_sent: Option<Instant>,
    pub sent_at: Instant,
    pub heard_at: Instant,
    /// Of this connection.
    pub welcomed_at: Option<Instant>,
    pub rains_opened: u32,
    pub inbox: Reader,
    pub renewal: Renewal,
    /// Keys of rains that opened, the latest last. Boxed: few rains have one.
    #[allow(clippy::box_collection, reason = "8 bytes a session instead of 32")]
    keys: Option<Box<VecDeque<(u32, Bytes)>>>,
    pub stats: Stats,
    /// What both we and the gateway allow.
    in_flight_max: u32,
    gather: bool,
}

impl State {
    pub fn new(settings: &Settings) -> State {
        let now = Instant::now();
        State {
            phase: Phase::Down,
            abandon: None,
            driver: None,
            out: BytesMut::new(),
            in_flight: Requests::default(),
            next_request_id: 1,
            room: None,
            watching: Again::default(),
            clock: ServerClock::default(),
            events: EventQueue::default(),
            last_failure: "the driver was not run".to_owned(),
            heartbeat: Duration::from_millis(u64::from(HEARTBEAT_DEFAULT_MS)),
            heartbeat_sent: None,
            sent_at: now,
            heard_at: now,
            welcomed_at: None,
            rains_opened: 0,
            inbox: Reader::default(),
            renewal: Renewal::default(),
            keys: None,
            stats: Stats::default(),
            in_flight_max: settings.in_flight_max as u32,
            gather: settings.gather,
        }
    }

    pub fn has_ended(&self) -> bool {
        matches!(self.phase, Phase::Ended(_))
    }

    pub fn wake_driver(&mut self) {
        if let Some(driver) = self.driver.take() {
            driver.wake();
        }
    }

    pub fn put(&mut self, request: Request, reply: Option<Waiter>) {
        let id = self.next_request_id;
        self.next_request_id += 1;
        let frame = ClientFrame {
            request_id: id,
            request: Some(request),
        };
        frame::put(&frame, &mut self.out);
        self.sent_at = Instant::now();
        let sent = self.sent_at;
        self.in_flight.put(id, InFlight { sent, reply });
    }

    /// Gives the socket what it takes. What stays in `out` waits until the driver finds the socket writable.
    pub fn write_out(&mut self) -> io::Result<()> {
        // Field by field: what is written stands beside the socket.
        let (Phase::Greeting(socket) | Phase::Up(socket) | Phase::Leaving(socket, _)) =
            &mut self.phase
        else {
            return Ok(());
        };
        if let Err(error) = socket.push_out() {
            self.abandon.get_or_insert(Parting::Lost(error.to_string()));
            return Err(error);
        }
        while !self.out.is_empty() {
            match socket.try_write(&self.out) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => self.out.advance(written),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => {
                    self.abandon.get_or_insert(Parting::Lost(error.to_string()));
                    return Err(error);
                }
            }
        }
        let (kept, unsent_max) = match self.gather {
            true => (OUT_KEPT_GATHERED, self.in_flight_max as usize * REQUEST_MAX),
            false => (OUT_KEPT, 0),
        };
        if self.out.is_empty() && self.out.capacity() > kept {
            self.out = BytesMut::new();
        } else if self.out.len() > unsent_max.max(UNSENT_MAX) {
            self.abandon.get_or_insert(Parting::Lost(
                "the gateway does not read what we send".into(),
            ));
        }
        Ok(())
    }

    /// The socket of the connection that there is.
    pub fn socket(&mut self) -> Option<&mut Socket> {
        match &mut self.phase {
            Phase::Greeting(socket) | Phase::Up(socket) | Phase::Leaving(socket, _) => Some(socket),
            Phase::Down | Phase::Ended(_) => None,
        }
    }

    /// Whether anything waits for the socket to become writable.
    pub fn has_unsent(&mut self) -> bool {
        !self.out.is_empty() || self.socket().is_some_and(|socket| socket.holds_back())
    }

    /// Forgets the connection: whoever waits for a reply learns that it will not come.
    pub fn drop_connection(&mut self, next: Phase) {
        self.phase = next;
        self.out = BytesMut::new();
        self.in_flight = Requests::default();
        self.heartbeat_sent = None;
        self.inbox.connection_lost();
        self.watching = Again::No;
        self.renewal.connection_lost();
        self.welcomed_at = None;
        self.abandon = None;
    }

    /// Whether no more requests may be in flight.
    pub fn is_full(&self) -> bool {
        self.in_flight.is_full(self.in_flight_max as usize)
    }

    pub fn all_answered(&self) -> bool {
        self.in_flight.is_empty()
    }

    // ---- what the gateway says ----

    /// Welcome: the session has begun.
    pub fn welcomed(&mut self, welcome: &Welcome, jitter: u64, settings: &Settings) {
        let now = Instant::now();
        if let Some(hello) = self.in_flight.take_first() {
            self.clock.observe(hello.sent, now, welcome.server_time_ms);
        }
        let interval_ms = match welcome.heartbeat_interval_ms {
            0 => HEARTBEAT_DEFAULT_MS,
            ms => ms,
        };
        // Between 60 and 80 % of what is allowed, another one for each session: early enough for a slow network, and not all at once.
        self.heartbeat =
            Duration::from_micros(u64::from(interval_ms) * 1_000 / 100 * (60 + jitter % 21));
        let phase = std::mem::replace(&mut self.phase, Phase::Down);
        self.phase = match phase {
            Phase::Greeting(socket) => Phase::Up(socket),
            other => other,
        };
        self.welcomed_at = Some(now);
        // Two are left for the heartbeat and the room.
        let allowed = welcome.in_flight_max.saturating_sub(2).max(1);
        self.in_flight_max = match welcome.in_flight_max {
            0 => settings.in_flight_max as u32,
            _ => allowed.min(settings.in_flight_max as u32),
        };
        self.inbox.welcomed(welcome.server_time_ms);
        self.renewal
            .valid_until(welcome.expires_at_ms, welcome.server_time_ms, jitter);
        self.stats.sessions += 1;
        let session_id = welcome.session_id;
        self.events
            .push(Event::Connected { session_id }, settings.events_max);
        self.watch_again();
    }

    fn watch_again(&mut self) {
        if let Some(room) = &self.room {
            let room = room.to_string();
            self.watching = Again::Asked(self.next_request_id);
            self.put(Request::Watch(Watch { room }), None);
        }
    }

    /// A reply finds its request. Replies to nothing (a request that was asked twice, say) are ignored.
    pub fn answer(&mut self, id: u64, mut message: Option<Message>, settings: &Settings) {
        let Some(request) = self.in_flight.take(id) else {
            return;
        };
        if let Some(Message::Pong(pong)) = &message {
            self.clock
                .observe(request.sent, Instant::now(), pong.server_time_ms);
        }
        if let (None, Some(Message::InboxPage(page))) = (&request.reply, &mut message) {
            self.take_page(std::mem::take(page), settings);
            return;
        }
        if self.renewal.is_answer(id) {
            self.renewal_answered(message);
            return;
        }
        if let (None, Some(Message::Refused(refused))) = (&request.reply, &message) {
            return self.own_refused(id, refused);
        }
        let unknown = || ClientError::Protocol("a reply of no kind that we know".to_owned());
        if let Some(waiter) = request.reply {
            let _ = waiter.send(message.ok_or_else(unknown)); // nobody waits any more: the caller was cancelled
        }
    }

    /// What was asked for by nobody but us: nobody else would repeat it.
    fn own_refused(&mut self, id: u64, refused: &Refused) {
        let refusal = Refusal {
            code: refused.code,
            reason: String::new(),
            reconnect_after: Duration::ZERO,
        };
        match refusal.after() {
            AfterClose::Reconnect | AfterClose::ReconnectLater => {
                self.inbox.refused(id);
                self.watching.refused(id);
            }
            AfterClose::FixFirst | AfterClose::StayAway => {}
        }
    }

    /// Returns whether a rain opened.
    pub fn push(&mut self, message: Option<Message>, settings: &Settings) -> bool {
        let event = match message {
            Some(Message::RainAnnounced(push)) => Event::RainAnnounced(push),
            Some(Message::RainOpened(push)) => {
                self.learn_key(&push);
                Event::RainOpened(push)
            }
            Some(Message::RainProgress(push)) => Event::RainProgress(push),
            Some(Message::RainSoldOut(push)) => Event::RainSoldOut(push),
            Some(Message::RainClosed(push)) => Event::RainClosed(push),
            Some(Message::InboxMessage(push)) if !push.user.is_empty() => {
                match of_another_user(push) {
                    Some(event) => event,
                    None => return false,
                }
            }
            Some(Message::InboxMessage(push)) => match self.inbox.pushed(push) {
                Some(event) => event,
                None => return false,
            },
            Some(Message::InboxPage(page)) => {
                self.take_page(page, settings);
                return false;
            }
            // A reply without its number, or a push of a newer gateway.
            Some(_) | None => return false,
        };
        let opened = matches!(event, Event::RainOpened(_));
        self.rains_opened += u32::from(opened);
        self.events.push(event, settings.events_max);
        opened
    }

    fn learn_key(&mut self, opened: &RainOpened) {
        if opened.key.is_empty() || self.key_of(opened.rain_id) == opened.key {
            return;
        }
        let keys = self.keys.get_or_insert_default();
        if keys.len() >= KEYS_MAX {
            keys.pop_front();
        }
        keys.push_back((opened.rain_id, opened.key.clone()));
    }

    pub fn key_of(&self, rain_id: u32) -> Bytes {
        let mut keys = self.keys.iter().flat_map(|keys| keys.iter());
        let key = keys.find(|(rain, _)| *rain == rain_id);
        key.map_or_else(Bytes::new, |(_, key)| key.clone())
    }

    fn renewal_answered(&mut self, message: Option<Message>) {
        let now_ms = self.clock.now_ms(Instant::now()).unwrap_or_default();
        match message {
            Some(Message::Refreshed(refreshed)) => {
                let jitter = now_ms as u64;
                self.renewal
                    .valid_until(refreshed.expires_at_ms, now_ms, jitter);
            }
            // Refused, or something of a newer gateway: the old token holds a while.
            Some(_) | None => self.renewal.look_again(now_ms),
        }
    }

    /// The source's token of now: shown to the gateway if it is a new one.
    pub fn renew(&mut self, token: Option<String>) {
        let now_ms = self.clock.now_ms(Instant::now()).unwrap_or_default();
        match (token, &self.phase) {
            (Some(token), Phase::Up(_)) => {
                self.renewal.asked(self.next_request_id);
                self.put(Request::Refresh(Refresh { token }), None);
                let _ = self.write_out(); // an error shows when the link is polled
            }
            _ => self.renewal.look_again(now_ms),
        }
    }

    fn take_page(&mut self, page: InboxPage, settings: &Settings) {
        for event in self.inbox.page(page) {
            self.events.push(event, settings.events_max);
        }
    }

    // ---- what the driver sends by itself ----

    /// When the driver must look again although nothing happened.
    pub fn beat_due(&self, settings: &Settings) -> Instant {
        let reply = Duration::from_millis(settings.reply_ms);
        let heartbeat = match self.heartbeat_sent {
            Some(sent) if sent >= self.heard_at => sent + reply,
            Some(_) | None => self.sent_at + self.heartbeat,
        };
        let asks = [self.inbox.ask_at(), self.watching.due(), self.renewal.due()];
        asks.into_iter().flatten().fold(heartbeat, Instant::min)
    }

    /// Asks for missed messages or for the room if it is time, else sends a heartbeat or finds that the last one was not answered.
    pub fn beat(&mut self, settings: &Settings) -> Option<Parting> {
        let now = Instant::now();
        if let Some(ask) = self.inbox.ask(now, self.next_request_id) {
            self.put(Request::Inbox(ask), None);
            return None;
        }
        if self.watching.take_due(now, self.next_request_id) {
            self.watch_again();
            return None;
        }
        if self
            .heartbeat_sent
            .is_some_and(|sent| sent >= self.heard_at)
        {
            let ms = settings.reply_ms;
            return Some(Parting::Lost(format!("no heartbeat reply within {ms} ms")));
        }
        self.put(Request::Ping(Ping {}), None);
        self.heartbeat_sent = Some(self.sent_at);
        None
    }
}

/// What an edge session is told of one of its users; `None` for a kind of message that a newer gateway knows.
fn of_another_user(message: InboxMessage) -> Option<Event> {
    let user = UserId::new(&message.user).ok()?;
    match message.contents? {
        Contents::PacketCredited(credited) => Some(Event::UserCredited {
            user,
            message_id: message.message_id,
            credited,
        }),
    }
}
