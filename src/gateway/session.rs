//! One client connection. It holds no buffers while it is idle: bytes are read into the worker's buffer and written straight to the socket; only a
//! frame that is cut, or an answer that the socket does not take, is kept.
//!
//! Who may end it first:
//! 1. the client closes, or the socket fails: the task ends, grabs in flight are answered into nothing and stay won;
//! 2. the gateway closes it with a code (limit, sweep, drain): GoAway is written, what waits is flushed for a moment, the task ends;
//! 3. the worker's runtime ends after a drain: the task is dropped with its socket.

use std::cell::{Cell, OnceCell, RefCell};
use std::io;
use std::rc::Rc;
use std::time::Instant;

use prost::Message as _;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::sync::Notify;

use super::admission::{self, Remembered};
use super::edge::Edge;
use super::inbox;
use super::token::Credentials;
use super::worker::Worker;
use crate::metrics;
use crate::rain::{Packet, RainId, UserId};
use crate::wire::client_frame::Request;
use crate::wire::frame::{self, CLIENT_FRAME_MAX, FrameError, HEADER};
use crate::wire::server_frame::Message;
use crate::wire::{ClientFrame, CloseCode, GoAway, Pong, Refused, ServerFrame, Watching};

/// Rains whose outcome a session remembers; more are asked of Redis again.
const REMEMBERED_RAINS: usize = 2;
/// Reads in a row before other sessions get their turn.
const READS_IN_A_ROW: usize = 8;

pub struct Session {
    pub id: u64,
    stream: TcpStream,
    user: OnceCell<UserId>,
    /// Set for a server that speaks for many users; `user` is its own name then.
    edge: OnceCell<Box<Edge>>,
    pub(super) credentials: RefCell<Option<Credentials>>,
    /// Bad tokens offered after Hello.
    pub(super) refusals: Cell<u8>,
    /// Set for one that tapped too early too often.
    pub(super) cool_until: Cell<Option<Instant>>,
    /// A frame that has not arrived whole. Empty and without memory otherwise.
    partial: RefCell<Vec<u8>>,
    /// What the socket did not take yet. Empty and without memory otherwise.
    out: RefCell<Vec<u8>>,
    pub(super) in_flight: Cell<u32>,
    pub(super) connected: Instant,
    /// One of those that `connections_max` allows; not one that is only told that there are too many.
    pub(super) counted: Cell<bool>,
    pub(super) last_heard: Cell<Instant>,
    memory: RefCell<Vec<(RainId, Remembered)>>,
    pub(super) room: RefCell<Option<Rc<str>>>,
    /// Set once: nothing is read any more, the task ends when `out` is empty.
    closing: Cell<Option<Instant>>,
    /// The task ends at once.
    gone: Cell<bool>,
    /// In the worker's list of sessions to flush.
    dirty: Cell<bool>,
    wake: Notify,
}

impl Session {
    pub fn new(id: u64, stream: TcpStream) -> Session {
        Session {
            id,
            stream,
            user: OnceCell::new(),
            edge: OnceCell::new(),
            credentials: RefCell::default(),
            refusals: Cell::new(0),
            cool_until: Cell::new(None),
            partial: RefCell::default(),
            out: RefCell::default(),
            in_flight: Cell::new(0),
            connected: Instant::now(),
            counted: Cell::new(true),
            last_heard: Cell::new(Instant::now()),
            memory: RefCell::default(),
            room: RefCell::default(),
            closing: Cell::new(None),
            gone: Cell::new(false),
            dirty: Cell::new(false),
            wake: Notify::new(),
        }
    }

    pub fn user(&self) -> Option<&UserId> {
        self.user.get()
    }

    /// Hello was accepted.
    pub(super) fn entered(&self, user: UserId, credentials: Credentials, edge: bool) -> &UserId {
        self.set_credentials(credentials);
        if edge {
            self.edge.get_or_init(Box::default);
        }
        self.user.get_or_init(|| user)
    }

    pub(super) fn set_credentials(&self, credentials: Credentials) {
        *self.credentials.borrow_mut() = Some(credentials);
    }

    pub(super) fn edge(&self) -> Option<&Edge> {
        self.edge.get().map(|edge| &**edge)
    }

    /// Whether there is room for one more request in flight.
    pub(super) fn may_ask(&self, worker: &Worker) -> bool {
        let settings = &worker.settings;
        let (max, full) = match self.edge() {
            None => (settings.in_flight_max, &metrics::get().in_flight_full),
            Some(_) => (
                settings.edge_in_flight_max,
                &metrics::get().edge_in_flight_full,
            ),
        };
        let may = (self.in_flight.get() as usize) < max;
        if !may {
            full.increment(1);
        }
        may
    }

    /// Its client has not taken all that was written for it.
    pub(super) fn is_behind(&self) -> bool {
        !self.out.borrow().is_empty()
    }

    pub(super) fn closing_since(&self) -> Option<Instant> {
        self.closing.get()
    }

    /// Serves the connection until it ends.
    pub async fn run(self: &Rc<Self>, worker: &Rc<Worker>) {
        loop {
            let blocked = !self.out.borrow().is_empty();
            let closing = self.closing.get().is_some();
            if closing && !blocked {
                return self.linger(worker).await;
            }
            let interest = match (closing, blocked) {
                (false, false) => Interest::READABLE,
                (false, true) => Interest::READABLE | Interest::WRITABLE,
                (true, _) => Interest::WRITABLE,
            };
            tokio::select! {
                biased;
                ready = self.stream.ready(interest) => {
                    let Ok(ready) = ready else { return };
                    if ready.is_writable() && self.flush().is_err() {
                        return;
                    }
                    if !closing && ready.is_readable() && self.read(worker).is_err() {
                        return;
                    }
                    worker.flush_dirty();
                }
                () = self.wake.notified() => {}
            }
            if self.gone.get() {
                return;
            }
        }
    }

    /// The last word is written. Closing now, with bytes of the client unread, would have the kernel reset the connection and drop that word on its
    /// way: so end our side, and read into nothing until the client ends its own. The sweep bounds it.
    async fn linger(&self, worker: &Worker) {
        let _ = socket2::SockRef::from(&self.stream).shutdown(std::net::Shutdown::Write);
        while !self.gone.get() {
            tokio::select! {
                ready = self.stream.readable() => {
                    let mut buffer = worker.read_buffer.borrow_mut();
                    match self.stream.try_read(&mut buffer) {
                        Ok(0) => return,
                        Err(error) if error.kind() != io::ErrorKind::WouldBlock => return,
                        _ if ready.is_err() => return,
                        _ => {}
                    }
                }
                () = self.wake.notified() => {}
            }
        }
    }

    /// Reads what is there and answers it. An error ends the session; so does the client's end of the stream.
    fn read(self: &Rc<Self>, worker: &Rc<Worker>) -> io::Result<()> {
        let mut buffer = worker.read_buffer.borrow_mut();
        for _ in 0..READS_IN_A_ROW {
            match self.stream.try_read(&mut buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => {
                    self.last_heard.set(Instant::now());
                    self.feed(worker, &buffer[..n]);
                    if self.closing.get().is_some() || n < buffer.len() {
                        return Ok(());
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn feed(self: &Rc<Self>, worker: &Rc<Worker>, bytes: &[u8]) {
        let mut partial = std::mem::take(&mut *self.partial.borrow_mut());
        if partial.is_empty() {
            let used = self.frames(worker, bytes);
            if used < bytes.len() {
                *self.partial.borrow_mut() = bytes[used..].to_vec();
            }
        } else {
            partial.extend_from_slice(bytes);
            let used = self.frames(worker, &partial);
            if used < partial.len() {
                partial.drain(..used);
                *self.partial.borrow_mut() = partial;
            }
        }
    }

    /// Handles every whole frame in `bytes`; returns how many bytes they took. What is left is at most one frame that is cut, and so bounded.
    fn frames(self: &Rc<Self>, worker: &Rc<Worker>, bytes: &[u8]) -> usize {
        let mut used = 0;
        loop {
            match frame::announced_len(&bytes[used..], CLIENT_FRAME_MAX) {
                Ok(Some(len)) if bytes.len() - used >= HEADER + len => {
                    let message = &bytes[used + HEADER..used + HEADER + len];
                    used += HEADER + len;
                    match ClientFrame::decode(message) {
                        Ok(frame) => self.request(worker, frame),
                        Err(error) => self.close(
                            worker,
                            CloseCode::FrameInvalid,
                            &format!("frame cannot be read: {error}"),
                        ),
                    }
                }
                Ok(_) => return used,
                Err(error) => {
                    let code = match error {
                        FrameError::TooLong { .. } => CloseCode::FrameTooLong,
                        FrameError::Empty => CloseCode::FrameInvalid,
                    };
                    self.close(worker, code, &error.to_string());
                }
            }
            if self.closing.get().is_some() {
                return bytes.len();
            }
        }
    }

    fn request(self: &Rc<Self>, worker: &Rc<Worker>, frame: ClientFrame) {
        let id = frame.request_id;
        match (frame.request, self.user()) {
            (Some(Request::Hello(hello)), None) => self.hello(worker, id, hello),
            (Some(Request::Hello(_)), Some(_)) => {
                self.close(worker, CloseCode::HelloExpected, "a second Hello")
            }
            (None, _) => self.close(
                worker,
                CloseCode::FrameInvalid,
                "the frame holds no request of this protocol",
            ),
            (Some(_), None) => self.close(
                worker,
                CloseCode::HelloExpected,
                "the first frame must be Hello",
            ),
            (Some(Request::Ping(_)), Some(_)) => {
                self.send(
                    worker,
                    id,
                    Message::Pong(Pong {
                        server_time_ms: crate::clock::now_ms(),
                    }),
                );
            }
            (Some(Request::Watch(watch)), Some(_)) => self.watch(worker, id, watch.room),
            (Some(Request::Refresh(refresh)), Some(_)) => self.refresh(worker, id, &refresh),
            (Some(Request::Grab(grab)), Some(_)) => admission::grab(worker, self, id, grab),
            (Some(Request::Inbox(asked)), Some(user)) => {
                inbox::asked(worker, self, user, id, asked)
            }
        }
    }

    fn watch(self: &Rc<Self>, worker: &Rc<Worker>, id: u64, room: String) {
        // The same alphabet as a user's: it leaves out what has a meaning somewhere on the way.
        if !room.is_empty() && UserId::new(&room).is_err() {
            let reason = "a room is 0 to 64 characters from A-Z a-z 0-9 . _ @ : + = / -".to_owned();
            return self.send(
                worker,
                id,
                Message::Refused(Refused {
                    code: CloseCode::FrameInvalid as i32,
                    reason,
                }),
            );
        }
        worker.rooms.watch(self, &room);
        self.send(
            worker,
            id,
            Message::Watching(Watching { room: room.clone() }),
        );
        if !room.is_empty() {
            let now = crate::clock::now_ms();
            for rain in worker.rains.in_room(&room) {
                self.send_bytes(worker, &rain.push(rain.phase(now)));
                // Known before the first tap.
                admission::ask_ahead(worker, self, &rain);
            }
        }
    }

    /// What this session knows of its user's outcome.
    pub fn remembered(&self, rain: RainId) -> Option<Remembered> {
        let memory = self.memory.borrow();
        memory
            .iter()
            .find(|(known, _)| *known == rain)
            .map(|(_, remembered)| *remembered)
    }

    pub fn remember_won(&self, rain: RainId, packet: Packet) {
        self.remember(rain, Remembered::Won(packet));
    }

    pub fn remember_closed(&self, rain: RainId) {
        self.remember(rain, Remembered::Closed);
    }

    pub fn remember_barred(&self, rain: RainId) {
        self.remember(rain, Remembered::Barred);
    }

    pub fn remember_empty(&self, rain: RainId, epoch: u64) {
        self.remember(rain, Remembered::Empty { epoch });
    }

    pub fn remember_sold_out(&self, rain: RainId, version: i64) {
        self.remember(rain, Remembered::SoldOut { version });
    }

    fn remember(&self, rain: RainId, what: Remembered) {
        // The next grab is for another user.
        if self.edge().is_some() {
            return;
        }
        // What is final is not replaced by an answer that comes late.
        if matches!(
            self.remembered(rain),
            Some(Remembered::Won(_) | Remembered::Closed | Remembered::Barred)
        ) {
            return;
        }
        self.forget(rain);
        let mut memory = self.memory.borrow_mut();
        if memory.len() == REMEMBERED_RAINS {
            memory.remove(0);
        }
        memory.reserve_exact(1);
        memory.push((rain, what));
    }

    /// After an unknown outcome only what is final may answer the next tap.
    pub fn forget(&self, rain: RainId) {
        self.memory.borrow_mut().retain(|(known, _)| *known != rain);
    }

    /// A request in flight has been answered.
    pub fn finished(&self, worker: &Worker) {
        self.in_flight.set(self.in_flight.get() - 1);
        worker.in_flight.set(worker.in_flight.get() - 1);
        if worker.in_flight.get() == 0 {
            worker.idle.notify_waiters();
        }
    }

    pub fn send(self: &Rc<Self>, worker: &Worker, request_id: u64, message: Message) {
        if self.gone.get() {
            return;
        }
        frame::put(
            &ServerFrame {
                request_id,
                message: Some(message),
            },
            &mut *self.out.borrow_mut(),
        );
        self.sent(worker);
    }

    /// Appends an encoded frame that is shared by many sessions.
    pub fn send_bytes(self: &Rc<Self>, worker: &Worker, frame: &[u8]) {
        // Nothing follows a GoAway: what is pushed now is in the inbox, or told at the next Watch.
        if self.gone.get() || self.closing.get().is_some() {
            return;
        }
        self.out.borrow_mut().extend_from_slice(frame);
        self.sent(worker);
    }

    fn sent(self: &Rc<Self>, worker: &Worker) {
        let max = match self.edge() {
            None => worker.settings.write_backlog_max,
            Some(_) => worker.settings.edge_write_backlog_max,
        };
        let full = || self.out.borrow().len() > max;
        if full() && (self.flush().is_err() || full()) {
            // Never buffered without end. Nothing more is told: it would not be read.
            crate::metrics::get().closed(CloseCode::SlowReader);
            self.abandon();
        } else if !self.dirty.replace(true) {
            worker.dirty.borrow_mut().push(self.clone());
        }
    }

    /// Writes what waits, as far as the socket takes it. The rest wakes the session's task when the socket is ready again.
    pub(super) fn flush(&self) -> io::Result<()> {
        self.dirty.set(false);
        let mut out = self.out.borrow_mut();
        let mut written = 0;
        while written < out.len() {
            match self.stream.try_write(&out[written..]) {
                Ok(n) => written += n,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    out.drain(..written);
                    self.wake.notify_one();
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
        *out = Vec::new();
        if self.closing.get().is_some() {
            self.wake.notify_one();
        }
        Ok(())
    }

    pub(super) fn refuse(
        self: &Rc<Self>,
        worker: &Worker,
        request_id: u64,
        code: CloseCode,
        reason: String,
    ) {
        crate::metrics::get().closed(code);
        tracing::debug!(
            session = self.id,
            code = code.as_str_name(),
            reason,
            "Hello refused"
        );
        self.send(
            worker,
            request_id,
            Message::Refused(Refused {
                code: code as i32,
                reason,
            }),
        );
        self.closing.set(Some(Instant::now()));
    }

    /// Tells the client why and ends the session when that is written.
    pub fn close(self: &Rc<Self>, worker: &Worker, code: CloseCode, reason: &str) {
        self.go_away(worker, code, reason, 0);
    }

    pub fn go_away(
        self: &Rc<Self>,
        worker: &Worker,
        code: CloseCode,
        reason: &str,
        reconnect_after_ms: u32,
    ) {
        if self.closing.get().is_some() {
            return;
        }
        crate::metrics::get().closed(code);
        tracing::debug!(
            session = self.id,
            code = code.as_str_name(),
            reason,
            "session closed"
        );
        let message = GoAway {
            code: code as i32,
            reason: reason.to_owned(),
            reconnect_after_ms,
        };
        self.send(worker, 0, Message::GoAway(message));
        self.closing.set(Some(Instant::now()));
    }

    /// Ends the session at once.
    pub fn abandon(&self) {
        self.gone.set(true);
        self.wake.notify_one();
    }
}
