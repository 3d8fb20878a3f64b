//! One client connection. It holds no buffers while it is idle: bytes are read into the worker's buffer and written straight to the socket; only a
//! frame that is cut, or an answer that the socket does not take, is kept.
//!
//! Who may end it first:
//! 1. the client closes, or the socket fails: the task ends, grabs in flight are answered into nothing and stay won;
//! 2. the gateway closes it with a code (limit, sweep, drain): GoAway is written, what waits is flushed for a moment, the task ends;
//! 3. the worker's runtime ends after a drain: the task is dropped with its socket.

/// How it ends.
mod ending;
/// What it remembers.
mod memory;

use std::cell::{Cell, OnceCell, RefCell};
use std::io;
use std::ops::ControlFlow;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use prost::Message as _;
use tokio::io::Interest;
use tokio::sync::Notify;

use super::admission::{self, Remembered};
use super::ahead;
use super::edge::Edge;
use super::inbox;
use super::limits::{Place, Verdict};
use super::rains::Phase;
use super::token::Credentials;
use super::transport::Transport;
use super::worker::Worker;
use crate::metrics;
use crate::rain::{RainId, UserId};
use crate::wire::client_frame::Request;
use crate::wire::frame::{self, FrameError};
use crate::wire::input::Input;
use crate::wire::server_frame::Message;
use crate::wire::{ClientFrame, CloseCode, Outcome, Pong, Refused, ServerFrame, Watching};

/// A Watch looks through all rains that are known.
const WATCH_COST: u64 = 10;
/// Bytes that a session reads before the others get their turn: some twenty frames of people, and never more than some hundred of those who
/// send whatever they can. One that speaks for many users fills the worker's whole buffer.
const TURN_BYTES: usize = 1_024;

pub struct Session {
    pub id: u64,
    transport: Transport,
    user: OnceCell<UserId>,
    /// Set for a server that speaks for many users; `user` is its own name then.
    edge: OnceCell<Box<Edge>>,
    pub(super) credentials: RefCell<Option<Credentials>>,
    /// Bad tokens offered after Hello.
    pub(super) refusals: Cell<u8>,
    /// Set for one that tapped too early too often.
    pub(super) cool_until: Cell<Option<Instant>>,
    /// Of the last grab without its rain's key that a node was asked about.
    asked_without_key: Cell<Option<Instant>>,
    /// A frame that has not arrived whole.
    input: RefCell<Input>,
    /// When the frame began that has not arrived whole.
    frame_begun: Cell<Option<Instant>>,
    /// Until when its frames are paid for, and its user's.
    paid_until: Cell<u64>,
    user_paid: RefCell<Option<Arc<AtomicU64>>>,
    /// What the socket did not take yet. Empty and without memory otherwise.
    out: RefCell<Vec<u8>>,
    in_flight: Cell<u32>,
    connected: Instant,
    /// Among the connections that are allowed; none for one that is only told that there are too many.
    pub(super) place: Option<Place>,
    last_heard: Cell<Instant>,
    /// The tick of the worker's deadlines at which this session is looked at next.
    pub(super) looked_at: Cell<u64>,
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
    pub fn new(id: u64, transport: Transport, place: Option<Place>) -> Session {
        Session {
            id,
            transport,
            user: OnceCell::new(),
            edge: OnceCell::new(),
            credentials: RefCell::default(),
            refusals: Cell::new(0),
            cool_until: Cell::new(None),
            asked_without_key: Cell::new(None),
            input: RefCell::default(),
            frame_begun: Cell::new(None),
            paid_until: Cell::new(0),
            user_paid: RefCell::default(),
            out: RefCell::default(),
            in_flight: Cell::new(0),
            connected: Instant::now(),
            place,
            last_heard: Cell::new(Instant::now()),
            looked_at: Cell::new(u64::MAX),
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

    /// Whether a node may be asked what the user has won in a rain whose key did not come along. Whoever waits as long as BUSY says may; an edge
    /// session asks for many users, and is trusted.
    pub(super) fn may_ask_without_key(&self, worker: &Worker) -> bool {
        let pause = worker.settings.retry_after / 2;
        let heard = self.last_heard.get();
        let asked = self.asked_without_key.get();
        let may = self.edge().is_some() || asked.is_none_or(|asked| heard - asked >= pause);
        if may {
            self.asked_without_key.set(Some(heard));
        }
        may
    }

    /// Its client has not taken all that was written for it.
    pub(super) fn is_behind(&self) -> bool {
        !self.out.borrow().is_empty()
    }

    pub(super) fn last_heard(&self) -> Instant {
        self.last_heard.get()
    }

    pub(super) fn closing_since(&self) -> Option<Instant> {
        self.closing.get()
    }

    /// Serves the connection until it ends.
    pub async fn run(self: &Rc<Self>, worker: &Rc<Worker>) {
        loop {
            let blocked = !self.out.borrow().is_empty() || self.transport.holds_back();
            let closing = self.closing.get().is_some();
            if closing && !blocked && !self.finishing(worker) {
                return self.linger(worker).await;
            }
            let interest = match (closing, blocked) {
                (false, false) => Interest::READABLE,
                (false, true) => Interest::READABLE | Interest::WRITABLE,
                (true, _) => Interest::WRITABLE,
            };
            tokio::select! {
                biased;
                ready = self.transport.socket().ready(interest), if blocked || !closing => {
                    let Ok(ready) = ready else { return };
                    if ready.is_writable() && self.flush().is_err() {
                        return;
                    }
                    let more = match !closing && ready.is_readable() {
                        true => self.read(worker),
                        false => Ok(false),
                    };
                    worker.flush_dirty();
                    match more {
                        Err(_) => return,
                        Ok(true) => tokio::task::yield_now().await,
                        Ok(false) => {}
                    }
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
    async fn linger(self: &Rc<Self>, worker: &Worker) {
        self.closing.set(Some(Instant::now()));
        worker.look_again(self);
        self.transport.finish();
        let socket = self.transport.socket();
        while !self.gone.get() {
            tokio::select! {
                ready = socket.readable() => {
                    let read = socket.try_read(&mut worker.read_buffer.borrow_mut());
                    match read {
                        Ok(0) => return,
                        Err(error) if error.kind() != io::ErrorKind::WouldBlock => return,
                        _ if ready.is_err() => return,
                        _ => tokio::task::yield_now().await,
                    }
                }
                () = self.wake.notified() => {}
            }
        }
    }

    /// Reads a turn's worth of what is there and answers it; true if there is more, and it is others' turn. An error ends the session; so does the
    /// client's end of the stream.
    fn read(self: &Rc<Self>, worker: &Rc<Worker>) -> io::Result<bool> {
        let mut buffer = worker.read_buffer.borrow_mut();
        let room = match self.edge() {
            None => TURN_BYTES,
            Some(_) => buffer.len(),
        };
        match self.transport.try_read(&mut buffer[..room]) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => {
                self.last_heard.set(Instant::now());
                self.feed(worker, &buffer[..n]);
                self.frame_cut(worker);
                let more = n == room || self.transport.may_hold_more();
                if !more {
                    self.transport.is_drained();
                }
                Ok(more && self.closing.get().is_none())
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn feed(self: &Rc<Self>, worker: &Rc<Worker>, bytes: &[u8]) {
        let mut input = self.input.borrow_mut();
        let ended = input.feed(bytes, |message| match message {
            Ok(message) => self.frame(worker, message),
            Err(error) => {
                let code = match error {
                    FrameError::TooLong { .. } => CloseCode::FrameTooLong,
                    FrameError::Empty => CloseCode::FrameInvalid,
                };
                let strange = error.looks_like().filter(|_| self.user().is_none());
                let strange = strange.map_or_else(String::new, |what| format!(": {what}"));
                self.close(worker, code, &format!("{error}{strange}"));
                ControlFlow::Break(())
            }
        });
        if ended {
            self.frame_begun.set(None);
        } else if self.closing.get().is_none() && self.one_more(worker) == Verdict::FarOver {
            // A frame in a hundred pieces, or records of TLS, costs as much as a hundred frames.
            self.leave_us(worker);
        }
    }

    /// A frame that has begun must end in time.
    fn frame_cut(self: &Rc<Self>, worker: &Worker) {
        if !self.input.borrow().is_cut() {
            self.frame_begun.set(None);
        } else if self.frame_begun.get().is_none() {
            self.frame_begun.set(Some(self.last_heard.get()));
            worker.look_again(self);
        }
    }

    /// What the rates say to one more frame; the stricter of session and user.
    fn one_more(&self, worker: &Worker) -> Verdict {
        let metrics = metrics::get();
        let now = worker.clock.at(self.last_heard.get());
        let rate = match self.edge() {
            None => &worker.frame_rate,
            Some(_) => &worker.edge_frame_rate,
        };
        let (verdict, until) = rate.take(self.paid_until.get(), now);
        self.paid_until.set(until);
        if verdict != Verdict::Within {
            metrics.refused_by_session_rate.increment(1);
            return verdict;
        }
        let of_user = self.user_paid.borrow();
        let of_user = of_user.as_ref();
        let verdict = of_user.map_or(verdict, |paid| worker.user_rates.take(paid, now));
        if verdict != Verdict::Within {
            metrics.refused_by_user_rate.increment(1);
        }
        verdict
    }

    /// Whether the rates allow a request that costs as much as so many taps; a second's worth, where people may not send so many in one: no burst
    /// would ever pay for it.
    pub(super) fn may_cost(&self, worker: &Worker, taps: u64) -> bool {
        let rates = &worker.settings;
        let second = (rates.frames_per_second).min(rates.user_frames_per_second);
        (1..taps.min(second)).all(|_| self.one_more(worker) == Verdict::Within)
    }

    pub(super) fn refuse_too_many(self: &Rc<Self>, worker: &Worker, request_id: u64) {
        let reason = "more frames a second than allowed".to_owned();
        let code = CloseCode::TooManyRequests as i32;
        self.send(
            worker,
            request_id,
            Message::Refused(Refused { code, reason }),
        );
    }

    /// A frame beyond the rates: its request is not carried out.
    fn too_many(self: &Rc<Self>, worker: &Worker, frame: ClientFrame) {
        match (frame.request, self.user()) {
            (Some(Request::Grab(grab)), Some(_)) => worker.reply_grab_raw(
                self,
                frame.request_id,
                grab.rain_id,
                Outcome::Busy,
                None,
                worker.retry_after_ms(),
            ),
            (Some(_), Some(_)) => self.refuse_too_many(worker, frame.request_id),
            (_, None) | (None, _) => self.leave_us(worker),
        }
    }

    fn leave_us(self: &Rc<Self>, worker: &Worker) {
        let reason = "more frames a second than allowed, and it goes on";
        let after = worker.retry_after_ms() * 10;
        self.go_away(worker, CloseCode::TooManyRequests, reason, after);
    }

    /// One whole frame; breaks off when the session is closing.
    fn frame(self: &Rc<Self>, worker: &Rc<Worker>, message: &[u8]) -> ControlFlow<()> {
        let verdict = self.one_more(worker);
        if verdict == Verdict::FarOver {
            self.leave_us(worker);
            return ControlFlow::Break(());
        }
        match ClientFrame::decode(message) {
            Ok(frame) if verdict == Verdict::Over => self.too_many(worker, frame),
            Ok(frame) => self.request(worker, frame),
            Err(error) => self.close(
                worker,
                CloseCode::FrameInvalid,
                &format!("frame cannot be read: {error}"),
            ),
        }
        match self.closing.get() {
            Some(_) => ControlFlow::Break(()),
            None => ControlFlow::Continue(()),
        }
    }

    fn request(self: &Rc<Self>, worker: &Rc<Worker>, frame: ClientFrame) {
        crate::crash::bug("session");
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
        if !self.may_cost(worker, WATCH_COST) {
            return self.refuse_too_many(worker, id);
        }
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
                if let Some(frame) = rain.push(rain.phase(now)) {
                    self.send_bytes(worker, &frame);
                }
                if rain.snapshot.sold_out && rain.phase(now) == Phase::Open {
                    self.send_bytes(worker, &rain.push_sold_out());
                }
                // Known before the first tap.
                ahead::of_session(worker, self, rain.snapshot.rain);
            }
        }
    }

    /// One more request is in flight.
    pub fn begun(&self, worker: &Worker) {
        self.in_flight.set(self.in_flight.get() + 1);
        worker.in_flight.set(worker.in_flight.get() + 1);
    }

    /// A request in flight has been answered.
    pub fn finished(&self, worker: &Worker) {
        self.in_flight.set(self.in_flight.get() - 1);
        worker.in_flight.set(worker.in_flight.get() - 1);
        if self.closing.get().is_some() && self.in_flight.get() == 0 {
            self.wake.notify_one(); // nothing keeps it any more
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
            match self.transport.try_write(&out[written..]) {
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
        drop(out);
        self.transport.push_out()?;
        if self.closing.get().is_some() || self.transport.holds_back() {
            self.wake.notify_one();
        }
        Ok(())
    }

    pub(super) fn hold_rate(&self, paid: Arc<AtomicU64>) {
        *self.user_paid.borrow_mut() = Some(paid);
    }

    /// What the session held of its user's rate.
    pub(super) fn give_back(&self) -> Option<(&UserId, Arc<AtomicU64>)> {
        Some((self.user.get()?, self.user_paid.take()?))
    }
}
