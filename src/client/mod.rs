//! A client of the gateway, for phones' stand-ins, servers and the load generator; and of the admin API.
//!
//! ```text
//! Client  what a caller holds: ping, watch, grab, the server's clock      (this file, grab.rs)
//!   │         requests go straight to the socket when it takes them
//! Shared  one small state per session: phase, requests in flight, events  (shared.rs, state.rs)
//!   │
//! Driver  the one future per session that reads: connect → Hello → serve → (lost) → back-off → connect …   (driver.rs)
//! ```
//!
//! A session costs one future of 0.6 KiB and a state of 0.5 KiB: bytes are read through the stack, buffers exist only while a frame is
//! incomplete or the socket is full, and the driver may share a task with its caller ([`Client::open`]).
//!
//! **A reply that did not come is *unknown*, never *no*.** Every request of the protocol may be repeated, so [`Client::grab`] and
//! [`Client::watch`] repeat theirs until they are answered, over as many connections as it takes.
//!
//! ```no_run
//! use std::sync::Arc;
//! use hongbao::client::{Client, Event, Login, Settings};
//! use hongbao::rain::RainId;
//!
//! # async fn example(token: String) -> Result<(), Box<dyn std::error::Error>> {
//! let settings = Arc::new(Settings::new(vec!["127.0.0.1:7000".to_owned()]));
//! let (client, mut events) = Client::connect(settings, Login::with_token(token)).await?;
//! client.watch("quiz").await?;
//! while let Some(event) = events.next().await {
//!     if let Event::RainOpened(opened) = event {
//!         let reply = client.grab(RainId::new(opened.rain_id)?).await?;
//!         println!("{:?}: {:?}", reply.known(), reply.packet);
//!     }
//! }
//! # Ok(())
//! # }
//! ```

/// The admin HTTP API.
pub mod admin;
/// Requests of the client's own that were refused for the moment.
mod again;
/// How long to wait before the next try.
mod backoff;
/// The server's time from its replies.
mod clock;
/// Connect, Hello, read, reconnect.
mod driver;
/// Pushes on their way to the caller.
mod events;
/// One tap, and repeating it safely.
mod grab;
/// The user's messages, each once and in order.
mod inbox;
/// The live numbers of a rain.
pub mod live;
/// Previews, rehearsals, lists of winners: the admin API about rains.
pub mod rains;
/// A new token before the old one expires.
mod renewal;
/// Requests in flight.
mod requests;
/// Templates and schedules.
pub mod schedules;
/// What the handle and the driver of a session share.
mod shared;
/// The writing side of a connection, and TLS over it.
mod socket;
/// Phase, requests and events of one session.
mod state;

#[cfg(test)]
mod stand_in;
#[cfg(test)]
mod tests;

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout};

use crate::rain::UserId;
use crate::wire::client_frame::Request;
use crate::wire::server_frame::Message;
use crate::wire::{CloseCode, Inbox, InboxPage, Ping, Watch};

pub use backoff::{Backoff, BackoffBounds};
pub use driver::Driver;
pub use events::{Event, Events};
pub use grab::{AfterGrab, Attempt, GrabReply, outcome_name};
pub use socket::Tls;

use shared::Shared;

/// The protocol this client speaks, sent in Hello.
pub const PROTOCOL: u32 = 1;

/// Why a request has no answer, or a session came to its end.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// The Hello or the request was not accepted. Codes 100–299 pass by themselves; others need somebody to act.
    #[error("refused by the gateway: {0}")]
    Refused(Refusal),
    /// The gateway ended the session and it must not simply reconnect (codes 300–499).
    #[error("sent away by the gateway: {0}")]
    GoAway(Refusal),
    /// There is no connection at the moment; the driver is making one.
    #[error("not connected: the next try is under way")]
    NotConnected,
    /// The request may or may not have been carried out: repeat it.
    #[error("the connection was lost before the reply came")]
    ConnectionLost,
    /// The request may or may not have been carried out: repeat it.
    #[error("no reply within {ms} ms")]
    TimedOut { ms: u64 },
    #[error("no session after {ms} ms: {last}")]
    Unreachable { ms: u64, last: String },
    #[error("the gateway broke the protocol: {0}")]
    Protocol(String),
    /// The [`Client`] was dropped.
    #[error("the client was closed")]
    Closed,
}

/// A close code with its reason, as sent in Refused and GoAway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// May be one that this version does not know; its range still tells what to do.
    pub code: i32,
    /// For a log, not for the user.
    pub reason: String,
    /// Already jittered by the gateway; zero when not set.
    pub reconnect_after: Duration,
}

/// What a close code's range asks of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterClose {
    /// 100–199: at once, or after `reconnect_after`.
    Reconnect,
    /// 200–299: with back-off.
    ReconnectLater,
    /// 300–399: a new token or an update first.
    FixFirst,
    /// 400–499.
    StayAway,
}

impl Refusal {
    /// `None` for a code of a newer protocol.
    pub fn known(&self) -> Option<CloseCode> {
        CloseCode::try_from(self.code).ok()
    }

    /// Codes outside every range are treated like 200–299: trying again slowly harms nobody.
    pub fn after(&self) -> AfterClose {
        match self.code {
            100..=199 => AfterClose::Reconnect,
            300..=399 => AfterClose::FixFirst,
            400..=499 => AfterClose::StayAway,
            _ => AfterClose::ReconnectLater,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.known() {
            Some(code) => f.write_str(code.as_str_name())?,
            None => write!(f, "code {}", self.code)?,
        }
        if !self.reason.is_empty() {
            write!(f, " ({})", self.reason)?;
        }
        Ok(())
    }
}

/// What all sessions of a process have in common. Times are upper bounds of waits.
#[derive(Debug, Clone)]
pub struct Settings {
    /// `host:port`, at least one. A session starts at a random one and takes the next after a failure.
    pub gateways: Vec<String>,
    /// `None`: plain TCP.
    pub tls: Option<Tls>,
    /// One TCP connect, with its TLS handshake, ms.
    pub connect_ms: u64,
    /// From the connection to Welcome, ms.
    pub hello_ms: u64,
    /// From sending a request to its reply, ms. A connection on which nothing at all was heard for that long is given up.
    pub reply_ms: u64,
    /// How long [`Client::connect`] tries before it reports [`ClientError::Unreachable`], ms.
    pub first_session_ms: u64,
    /// Between failed connections.
    pub reconnect: BackoffBounds,
    /// Between repeats of a grab when the gateway named no time.
    pub repeat: BackoffBounds,
    /// Further requests wait; fewer if the gateway allows fewer. Usually it allows 32; two are left for the heartbeat and the room.
    pub in_flight_max: usize,
    /// Events that wait for the caller; beyond that the oldest is dropped and counted.
    pub events_max: usize,
    /// Requests are gathered and written by the driver, many at once: cheaper for a session with thousands in flight, a task switch slower for
    /// one tap.
    pub gather: bool,
}

impl Settings {
    pub fn new(gateways: Vec<String>) -> Settings {
        Settings {
            gateways,
            tls: None,
            connect_ms: 5_000,
            hello_ms: 5_000,
            reply_ms: 5_000,
            first_session_ms: 30_000,
            reconnect: BackoffBounds {
                first_ms: 250,
                max_ms: 30_000,
            },
            repeat: BackoffBounds {
                first_ms: 100,
                max_ms: 2_000,
            },
            in_flight_max: 30,
            events_max: 64,
            gather: false,
        }
    }

    /// For an edge session: a trusted server that grabs for many users ([`Client::grab_for`]) over one connection, 16,000 at a time.
    pub fn for_edge(gateways: Vec<String>) -> Settings {
        Settings {
            in_flight_max: 16_000,
            events_max: 65_536,
            gather: true,
            ..Settings::new(gateways)
        }
    }
}

/// Asked for a token at every connect and some time before the last one expires; called by the driver, so it must not block. A session that has expired
/// ends for good only if the token is still the same.
pub type TokenSource = Arc<dyn Fn() -> String + Send + Sync>;

/// What one session brings along.
#[derive(Clone)]
pub struct Login {
    pub token: TokenSource,
    /// The local address to connect from; `None` lets the system choose.
    pub source: Option<IpAddr>,
    /// [`Client::last_message_id`] of an earlier run: messages after it are told as events. 0: only those from now on.
    pub last_message_id: u64,
}

impl Login {
    /// With a token that stays the same.
    pub fn with_token(token: impl Into<String>) -> Login {
        let token = token.into();
        Login {
            token: Arc::new(move || token.clone()),
            source: None,
            last_message_id: 0,
        }
    }
}

/// Counts of one session.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// TCP connects tried.
    pub attempts: u32,
    /// Welcomes received.
    pub sessions: u32,
}

/// The handle of one session. Dropping it ends the session and its driver.
///
/// Every method may be cancelled by dropping its future, and called from many tasks at once.
pub struct Client {
    shared: Arc<Shared>,
}

impl Drop for Client {
    fn drop(&mut self) {
        self.shared.end(ClientError::Closed);
    }
}

impl Client {
    /// Makes a session without a task: nothing happens until the caller runs the [`Driver`], for example in a `select!` beside what it
    /// does with the client.
    pub fn open(settings: Arc<Settings>, login: Login) -> (Client, Events, Driver) {
        let shared = Arc::new(Shared::new(settings));
        shared.lock().inbox.start_after(login.last_message_id);
        let client = Client {
            shared: shared.clone(),
        };
        let events = Events::of(shared.clone());
        (client, events, Driver::new(shared, login))
    }

    /// Makes a session with a task of its own and waits until the gateway has welcomed it. Failures that may pass are retried for
    /// `first_session_ms`.
    ///
    /// # Errors
    /// [`ClientError::Refused`] or [`ClientError::GoAway`] when the gateway said what is wrong with this client,
    /// [`ClientError::Unreachable`] when the time is over.
    pub async fn connect(
        settings: Arc<Settings>,
        login: Login,
    ) -> Result<(Client, Events), ClientError> {
        let ms = settings.first_session_ms;
        let (client, events, driver) = Client::open(settings, login);
        tokio::spawn(driver.run());
        match timeout(Duration::from_millis(ms), client.ready()).await {
            Ok(ready) => ready.map(|()| (client, events)),
            Err(_) => Err(ClientError::Unreachable {
                ms,
                last: client.last_failure(),
            }),
        }
    }

    /// Waits until there is a session, for as long as the driver keeps trying.
    ///
    /// # Errors
    /// Why the session ended for good.
    pub async fn ready(&self) -> Result<(), ClientError> {
        self.shared.ready().await
    }

    /// Asks the gateway for its time. Returns the round trip.
    pub async fn ping(&self) -> Result<Duration, ClientError> {
        let sent = Instant::now();
        match self.shared.request(Request::Ping(Ping {})).await? {
            Message::Pong(_) => Ok(sent.elapsed()),
            other => Err(unexpected("Pong", &other)),
        }
    }

    /// Watches `room` from now on, in every session to come; an empty name watches none. Repeats itself until it is answered.
    ///
    /// # Errors
    /// [`ClientError::Refused`] for a name that the gateway does not accept, or why the session ended.
    pub async fn watch(&self, room: &str) -> Result<(), ClientError> {
        self.shared.set_room(room);
        let request = Request::Watch(Watch {
            room: room.to_owned(),
        });
        let mut backoff = self.repeat_backoff();
        loop {
            self.ready().await?;
            match self.shared.request(request.clone()).await {
                Ok(Message::Watching(_)) => return Ok(()),
                Ok(other) => return Err(unexpected("Watching", &other)),
                Err(error) => match error.wait_before_repeat(&mut backoff) {
                    Some(wait) => tokio::time::sleep(wait).await,
                    None => return Err(error),
                },
            }
        }
    }

    /// A page of the user's inbox: up to `limit` messages (1 to 100) after the one with id `after`, 0 for the oldest. For showing what was; new
    /// messages come as events by themselves. Repeats itself until the inbox could be read.
    ///
    /// # Errors
    /// Why the session ended.
    pub async fn inbox(&self, after: u64, limit: u32) -> Result<InboxPage, ClientError> {
        self.read_inbox(after, limit, String::new()).await
    }

    /// [`Client::inbox`] of `user`, for an edge session.
    ///
    /// # Errors
    /// Why the session ended; [`ClientError::Refused`] when this is no edge session.
    pub async fn inbox_of(
        &self,
        user: &UserId,
        after: u64,
        limit: u32,
    ) -> Result<InboxPage, ClientError> {
        self.read_inbox(after, limit, user.to_string()).await
    }

    async fn read_inbox(
        &self,
        after_message_id: u64,
        limit: u32,
        user: String,
    ) -> Result<InboxPage, ClientError> {
        let request = Request::Inbox(Inbox {
            after_message_id,
            limit,
            user,
        });
        let mut backoff = self.repeat_backoff();
        loop {
            self.ready().await?;
            let wait = match self.shared.request(request.clone()).await {
                Ok(Message::InboxPage(page)) if page.messages.is_empty() && page.more => {
                    Duration::from_millis(u64::from(page.retry_after_ms))
                        .max(inbox::UNREAD_WAIT_MIN)
                }
                Ok(Message::InboxPage(page)) => return Ok(page),
                Ok(other) => return Err(unexpected("InboxPage", &other)),
                Err(error) => match error.wait_before_repeat(&mut backoff) {
                    Some(wait) => wait,
                    None => return Err(error),
                },
            };
            tokio::time::sleep(wait).await;
        }
    }

    /// Id of the newest inbox message that was told as an event; before the first, an instant shortly before the first session. Kept for
    /// [`Login::last_message_id`], it lets the next run of a program go on where this one ended.
    pub fn last_message_id(&self) -> u64 {
        self.shared.lock().inbox.last()
    }

    /// Gives up the connection and makes a new one at once, as when a phone changes its network. Replies on their way are lost; requests
    /// that repeat themselves are repeated.
    pub fn reconnect(&self) {
        self.shared.ask_reconnect();
    }

    /// The server's time now, ms since 1970; `None` before the first Welcome. Right within half the best round trip, and independent of
    /// this machine's own clock being right.
    pub fn server_now_ms(&self) -> Option<i64> {
        self.shared.server_now_ms(Instant::now())
    }

    /// How long until the server's clock shows `server_ms`; zero when it has passed.
    pub fn until(&self, server_ms: i64) -> Option<Duration> {
        let left = server_ms.saturating_sub(self.server_now_ms()?);
        Some(Duration::from_millis(left.max(0) as u64))
    }

    pub fn stats(&self) -> Stats {
        self.shared.stats()
    }

    /// Why the last connection was lost or could not be made, for a log.
    pub fn last_failure(&self) -> String {
        self.shared.last_failure()
    }

    fn repeat_backoff(&self) -> Backoff {
        Backoff::new(self.shared.settings.repeat)
    }
}

fn unexpected(wanted: &str, got: &Message) -> ClientError {
    let mut got = format!("{got:?}");
    got.truncate(got.find(['(', ' ']).unwrap_or(got.len()));
    ClientError::Protocol(format!("{got} in reply where {wanted} belongs"))
}

impl ClientError {
    /// For requests that may be repeated: how long to wait before doing so; `None` when repeating cannot help.
    fn wait_before_repeat(&self, backoff: &mut Backoff) -> Option<Duration> {
        match self {
            // Waiting for the next session is all the delay that is needed, and the driver's back-off has the jitter.
            ClientError::NotConnected | ClientError::ConnectionLost => Some(Duration::ZERO),
            ClientError::TimedOut { .. } => Some(backoff.next_delay()),
            ClientError::Refused(refusal) => match refusal.after() {
                AfterClose::Reconnect | AfterClose::ReconnectLater => Some(backoff.next_delay()),
                AfterClose::FixFirst | AfterClose::StayAway => None,
            },
            ClientError::GoAway(_)
            | ClientError::Unreachable { .. }
            | ClientError::Protocol(_)
            | ClientError::Closed => None,
        }
    }
}
