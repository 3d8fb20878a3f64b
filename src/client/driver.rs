use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use prost::Message as _;
use rustls::ClientConnection;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::tcp::OwnedReadHalf;
use tokio::net::{TcpSocket, TcpStream, lookup_host};
use tokio::time::{Instant, Sleep, sleep_until, timeout};

use super::backoff::SplitMix;
use super::shared::Shared;
use super::socket::{Socket, shake_hands};
use super::state::{Parting, Phase, State};
use super::{AfterClose, Backoff, ClientError, Event, Login, PROTOCOL, Refusal};
use crate::wire::client_frame::Request;
use crate::wire::frame::{self, FrameError, HEADER, SERVER_FRAME_MAX};
use crate::wire::server_frame::Message;
use crate::wire::{CloseCode, Hello, ServerFrame};

/// Read at once, on the stack: dozens of replies. TLS decrypts into as much again.
const READ_MAX: usize = 4 * 1024;
/// A session that lasted this long was a success: the next back-off starts small again. One that is lost sooner was not, or a gateway that
/// welcomes and drops would be asked without end.
const STABLE: Duration = Duration::from_secs(5);
/// After GoAway, how long replies to requests in flight may still come.
const LEAVING: Duration = Duration::from_secs(5);
/// However long a gateway asks to stay away. Beyond an hour it is a mistake.
const AWAY_MAX: Duration = Duration::from_secs(3_600);

/// The future that keeps one session alive: connect, Hello, read and heartbeat, and all of it again when the connection is lost. Ends when
/// the [`Client`](super::Client) is dropped or the gateway does not want it back.
#[must_use = "a session lives only while its driver runs"]
pub struct Driver {
    shared: Arc<Shared>,
    login: Login,
    random: SplitMix,
    /// Index of the gateway to try next.
    gateway: usize,
    /// Hash of the token shown last.
    shown: u64,
    /// Hash of the token in the last Hello.
    greeted: u64,
}

/// One connection.
struct Link<'a> {
    driver: &'a mut Driver,
    read: OwnedReadHalf,
    /// What is read is TLS.
    encrypted: bool,
    /// The beginning of a frame whose rest has not come. Holds memory only then.
    partial: BytesMut,
    greet_by: Instant,
    leave_by: Instant,
}

impl Driver {
    pub(super) fn new(shared: Arc<Shared>, login: Login) -> Driver {
        let mut random = SplitMix::from_system();
        let gateway = random.below(shared.settings.gateways.len() as u64) as usize;
        Driver {
            shared,
            login,
            random,
            gateway,
            shown: 0,
            greeted: 0,
        }
    }

    /// Returns why the session is over: [`ClientError::Closed`] or what the gateway had against it.
    pub async fn run(mut self) -> ClientError {
        let mut backoff = Backoff::new(self.shared.settings.reconnect);
        loop {
            let parting = self.one_connection().await;
            let parting = self.with_a_new_token(parting);
            let wait = match self.after(parting, &mut backoff) {
                Ok(wait) => wait,
                Err(error) => {
                    self.shared.end(error.clone());
                    return error;
                }
            };
            if wait.is_zero() {
                continue;
            }
            // Until the time has come, or the caller wants it now, or wants no more.
            let asked = poll_fn(|context| {
                let mut state = self.shared.lock();
                state.driver = Some(context.waker().clone());
                match state.has_ended() || state.abandon.take().is_some() {
                    true => Poll::Ready(()),
                    false => Poll::Pending,
                }
            });
            let _ = timeout(wait, asked).await;
        }
    }

    /// The source's token, if it is another one than was shown last.
    fn new_token(&mut self) -> Option<String> {
        // Never under the lock: the source is the caller's code.
        let token = (self.login.token)();
        let hash = xxhash_rust::xxh3::xxh3_64(token.as_bytes());
        (std::mem::replace(&mut self.shown, hash) != hash).then_some(token)
    }

    /// A session whose token is no longer good goes on if there is a new one.
    fn with_a_new_token(&mut self, parting: Parting) -> Parting {
        let (Parting::Final(ClientError::Refused(refusal))
        | Parting::Final(ClientError::GoAway(refusal))) = &parting
        else {
            return parting;
        };
        let stale = [
            CloseCode::TokenExpired,
            CloseCode::SessionExpired,
            CloseCode::TokenRevoked,
        ];
        let stale = refusal.known().is_some_and(|code| stale.contains(&code));
        // One that was offered in between may have been refused too early: its key was not known everywhere yet.
        let token = (self.login.token)();
        let other = xxhash_rust::xxh3::xxh3_64(token.as_bytes()) != self.greeted;
        match stale && other {
            true => Parting::Lost(format!("{refusal}; there is a new token")),
            false => parting,
        }
    }

    /// How long to wait before the next connection, or why there must be none.
    fn after(&mut self, parting: Parting, backoff: &mut Backoff) -> Result<Duration, ClientError> {
        let mut state = self.shared.lock();
        if let Phase::Ended(error) = &state.phase {
            return Err(error.clone());
        }
        let welcomed_at = state.welcomed_at;
        state.drop_connection(Phase::Down);
        if welcomed_at.is_some_and(|at| at.elapsed() >= STABLE) {
            backoff.reset();
        }
        let (reason, wait) = match parting {
            Parting::Final(error) => return Err(error),
            Parting::Asked => ("asked to reconnect".to_owned(), Duration::ZERO),
            Parting::Lost(reason) => (reason, backoff.next_delay()),
            Parting::Away { refusal, back_at } => {
                let named = back_at.saturating_duration_since(Instant::now());
                let wait = match refusal.after() {
                    AfterClose::Reconnect if !refusal.reconnect_after.is_zero() => named,
                    _ => named.max(backoff.next_delay()),
                };
                (refusal.to_string(), wait)
            }
        };
        if welcomed_at.is_some() {
            let event = Event::Lost {
                reason: reason.clone(),
            };
            state.events.push(event, self.shared.settings.events_max);
        }
        state.last_failure = reason;
        drop(state);
        self.shared.tell();
        self.gateway = (self.gateway + 1) % self.shared.settings.gateways.len().max(1);
        Ok(wait)
    }

    /// From the connect to the end of the connection.
    async fn one_connection(&mut self) -> Parting {
        let limit_ms = self.shared.settings.connect_ms;
        let (stream, tls) = match timeout(Duration::from_millis(limit_ms), self.connect()).await {
            Ok(Ok(connected)) => connected,
            Ok(Err(error)) => return Parting::Lost(format!("cannot connect: {error}")),
            Err(_) => return Parting::Lost(format!("not connected within {limit_ms} ms")),
        };
        let (read, write) = stream.into_split();
        let encrypted = tls.is_some();
        let socket = Socket::new(write, tls);
        let now = Instant::now();
        let token = (self.login.token)();
        self.greeted = xxhash_rust::xxh3::xxh3_64(token.as_bytes());
        self.shown = self.greeted;
        {
            let mut state = self.shared.lock();
            let hello = Hello {
                token,
                protocol: PROTOCOL,
                last_message_id: state.inbox.last(),
            };
            if state.has_ended() {
                return Parting::Final(ClientError::Closed);
            }
            state.drop_connection(Phase::Greeting(socket));
            state.put(Request::Hello(hello), None);
            state.heard_at = now;
            let _ = state.write_out(); // an error shows when the link is polled
        }
        let greet_by = now + Duration::from_millis(self.shared.settings.hello_ms);
        let link = Link {
            driver: self,
            read,
            encrypted,
            partial: BytesMut::new(),
            greet_by,
            leave_by: greet_by,
        };
        link.serve().await
    }

    async fn connect(&mut self) -> io::Result<(TcpStream, Option<Box<ClientConnection>>)> {
        self.shared.lock().stats.attempts += 1;
        let none = || io::Error::new(io::ErrorKind::InvalidInput, "no gateway address is known");
        let gateways = &self.shared.settings.gateways;
        let name = gateways.get(self.gateway).ok_or_else(none)?;
        let mut failure = none();
        for address in lookup_host(name.as_str()).await? {
            let stream = match connect_to(address, self.login.source).await {
                Ok(stream) => stream,
                Err(error) => {
                    failure = error;
                    continue;
                }
            };
            let Some(tls) = &self.shared.settings.tls else {
                return Ok((stream, None));
            };
            // Boxed: a plain session's future does not grow by it.
            match Box::pin(shake_hands(&stream, tls, name)).await {
                Ok(connection) => return Ok((stream, Some(connection))),
                Err(error) => failure = error,
            }
        }
        Err(io::Error::new(failure.kind(), format!("{name}: {failure}")))
    }
}

async fn connect_to(address: SocketAddr, source: Option<IpAddr>) -> io::Result<TcpStream> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    socket.set_nodelay(true)?; // a tap is one small packet that must not wait for another
    if let Some(source) = source {
        socket.bind(SocketAddr::new(source, 0))?;
    }
    socket.connect(address).await
}

impl Link<'_> {
    async fn serve(mut self) -> Parting {
        let due = sleep_until(self.greet_by);
        let mut due = std::pin::pin!(due);
        poll_fn(|context| self.poll(context, due.as_mut())).await
    }

    /// Reads all that is there, does what the handle left to do, and looks at the clock.
    fn poll(&mut self, context: &mut Context<'_>, due: Pin<&mut Sleep>) -> Poll<Parting> {
        if let Poll::Ready(parting) = self.poll_read(context) {
            // The gateway closes after GoAway: that is what was announced, not a loss.
            return Poll::Ready(match &self.driver.shared.lock().phase {
                Phase::Leaving(_, announced) => announced.clone(),
                _ => parting,
            });
        }
        let shared = self.driver.shared.clone();
        let renew = shared.lock().renewal.take_due(Instant::now());
        if renew {
            let token = self.driver.new_token();
            shared.lock().renew(token);
        }
        let mut state = shared.lock();
        state.driver = Some(context.waker().clone());
        if let Some(parting) = ready_to_part(&mut state) {
            return Poll::Ready(parting);
        }
        while state.has_unsent() {
            match self.read.as_ref().poll_write_ready(context) {
                Poll::Pending => break,
                Poll::Ready(Err(error)) => return Poll::Ready(Parting::Lost(error.to_string())),
                Poll::Ready(Ok(())) => {
                    if let Err(error) = state.write_out() {
                        return Poll::Ready(Parting::Lost(error.to_string()));
                    }
                }
            }
        }
        self.poll_clock(&mut state, context, due)
    }

    fn poll_clock(
        &mut self,
        state: &mut State,
        context: &mut Context<'_>,
        mut due: Pin<&mut Sleep>,
    ) -> Poll<Parting> {
        let settings = &self.driver.shared.settings;
        loop {
            let next = match &state.phase {
                Phase::Greeting(_) => self.greet_by,
                Phase::Up(_) => state.beat_due(settings),
                Phase::Leaving(..) => self.leave_by,
                Phase::Down | Phase::Ended(_) => return Poll::Ready(Parting::Asked),
            };
            // Every grab moves the next heartbeat further away. The timer is set again when it fires, not for each of them.
            if next < due.deadline() {
                due.as_mut().reset(next);
            }
            ready!(due.as_mut().poll(context));
            if next > Instant::now() {
                due.as_mut().reset(next);
                continue;
            }
            // The token's source is asked before the state is locked: in the next round.
            if state.renewal.due().is_some_and(|due| due <= Instant::now()) {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            let parting = match &state.phase {
                Phase::Greeting(_) => Some(Parting::Lost(format!(
                    "no Welcome within {} ms",
                    settings.hello_ms
                ))),
                Phase::Leaving(_, announced) => Some(announced.clone()),
                Phase::Up(_) | Phase::Down | Phase::Ended(_) => state.beat(settings),
            };
            if let Some(parting) = parting {
                return Poll::Ready(parting);
            }
            if let Err(error) = state.write_out() {
                return Poll::Ready(Parting::Lost(error.to_string()));
            }
            due.as_mut().reset(state.beat_due(settings));
        }
    }

    fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<Parting> {
        let mut space = [MaybeUninit::uninit(); READ_MAX];
        loop {
            let mut got = ReadBuf::uninit(&mut space);
            match ready!(Pin::new(&mut self.read).poll_read(context, &mut got)) {
                Err(error) => return Poll::Ready(Parting::Lost(error.to_string())),
                Ok(()) if got.filled().is_empty() => {
                    return Poll::Ready(Parting::Lost("closed by the gateway".to_owned()));
                }
                Ok(()) => {
                    let parting = match self.encrypted {
                        false => self.hear(got.filled()),
                        true => self.hear_encrypted(got.filled()),
                    };
                    if let Some(parting) = parting {
                        return Poll::Ready(parting);
                    }
                }
            }
        }
    }

    fn hear_encrypted(&mut self, mut bytes: &[u8]) -> Option<Parting> {
        let shared = self.driver.shared.clone();
        let mut plain = [0; READ_MAX];
        loop {
            let got = match shared.lock().socket() {
                None => return None, // ended: what comes is of no interest
                Some(socket) => socket.decrypt(&mut bytes, &mut plain),
            };
            match got {
                Ok(0) => return None,
                Ok(n) => {
                    if let Some(parting) = self.hear(&plain[..n]) {
                        return Some(parting);
                    }
                }
                Err(error) => return Some(Parting::Lost(error.to_string())),
            }
        }
    }

    /// Bytes came: each complete frame is handled, the rest is kept.
    fn hear(&mut self, bytes: &[u8]) -> Option<Parting> {
        let mut partial = std::mem::take(&mut self.partial);
        let handled = if partial.is_empty() {
            let handled = self.each_frame(bytes);
            if let Ok(used) = handled {
                partial.extend_from_slice(&bytes[used..]);
            }
            handled
        } else {
            partial.extend_from_slice(bytes);
            let handled = self.each_frame(&partial);
            if let Ok(used) = handled {
                partial.advance(used);
            }
            handled
        };
        if !partial.is_empty() {
            self.partial = partial;
        }
        handled.err()
    }

    /// Returns how many bytes were complete frames.
    fn each_frame(&mut self, bytes: &[u8]) -> Result<usize, Parting> {
        let broken = |error: FrameError| Parting::Lost(format!("the gateway sent a {error}"));
        let shared = self.driver.shared.clone();
        let mut state = shared.lock();
        state.heard_at = Instant::now();
        let mut used = 0;
        loop {
            let rest = &bytes[used..];
            match frame::announced_len(rest, SERVER_FRAME_MAX).map_err(broken)? {
                Some(len) if rest.len() >= HEADER + len => {
                    self.frame(&mut state, &rest[HEADER..HEADER + len])?;
                    used += HEADER + len;
                }
                Some(_) | None => return Ok(used),
            }
        }
    }

    fn frame(&mut self, state: &mut State, bytes: &[u8]) -> Result<(), Parting> {
        let frame = ServerFrame::decode(bytes)
            .map_err(|error| Parting::Lost(format!("the gateway sent no message: {error}")))?;
        let greeting = matches!(state.phase, Phase::Greeting(_));
        match frame.message {
            Some(Message::Welcome(welcome)) if greeting => {
                let settings = &self.driver.shared.settings;
                state.welcomed(&welcome, self.driver.random.next_u64(), settings);
                let _ = state.write_out(); // an error shows when the link is polled
                self.driver.shared.tell();
                Ok(())
            }
            Some(Message::Refused(refused)) if greeting => {
                let refusal = Refusal {
                    code: refused.code,
                    reason: refused.reason,
                    reconnect_after: Duration::ZERO,
                };
                Err(part(refusal, ClientError::Refused))
            }
            Some(Message::GoAway(go_away)) => {
                let after = Duration::from_millis(u64::from(go_away.reconnect_after_ms));
                let refusal = Refusal {
                    code: go_away.code,
                    reason: go_away.reason,
                    reconnect_after: after.min(AWAY_MAX),
                };
                self.sent_away(state, part(refusal, ClientError::GoAway))
            }
            other if greeting => Err(Parting::Lost(format!(
                "the gateway answered Hello with {}",
                if other.is_some() {
                    "another message"
                } else {
                    "nothing"
                }
            ))),
            message if frame.request_id == 0 => {
                if state.push(message, &self.driver.shared.settings) {
                    self.driver.shared.tell();
                }
                Ok(())
            }
            message => {
                state.answer(frame.request_id, message, &self.driver.shared.settings);
                self.driver.shared.reply_came();
                Ok(())
            }
        }
    }

    /// GoAway: requests in flight may still be answered, so the connection is kept until they are.
    fn sent_away(&mut self, state: &mut State, parting: Parting) -> Result<(), Parting> {
        match (&parting, std::mem::replace(&mut state.phase, Phase::Down)) {
            (Parting::Away { .. }, Phase::Up(socket)) => {
                self.leave_by = Instant::now() + LEAVING;
                state.phase = Phase::Leaving(socket, parting);
                Ok(())
            }
            (Parting::Away { .. }, phase @ Phase::Leaving(..)) => {
                state.phase = phase;
                Ok(())
            }
            (_, phase) => {
                state.phase = phase;
                Err(parting)
            }
        }
    }
}

fn part(refusal: Refusal, wrap: fn(Refusal) -> ClientError) -> Parting {
    match refusal.after() {
        AfterClose::Reconnect | AfterClose::ReconnectLater => Parting::Away {
            back_at: Instant::now() + refusal.reconnect_after,
            refusal,
        },
        AfterClose::FixFirst | AfterClose::StayAway => Parting::Final(wrap(refusal)),
    }
}

fn ready_to_part(state: &mut State) -> Option<Parting> {
    match &state.phase {
        Phase::Ended(error) => return Some(Parting::Final(error.clone())),
        Phase::Leaving(_, announced) if state.all_answered() => return Some(announced.clone()),
        Phase::Down | Phase::Greeting(_) | Phase::Up(_) | Phase::Leaving(..) => {}
    }
    state.abandon.take()
}
