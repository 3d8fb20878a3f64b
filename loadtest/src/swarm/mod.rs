//! Thousands of connections on one thread, with as little between them and the kernel as can be: the generator must cost less than what it measures.
//!
//! Closed loop: each connection keeps a number of requests in flight and sends the next when one is answered. Open loop: requests are sent by a
//! [`plan`], whether the earlier ones were answered or not, and a latency counts from the planned instant: a server that stalls makes all of its
//! clients wait, and hides none of them.

/// What is said over a connection: frames of the gateway, the same as an echo.
pub mod dialect;
/// When requests are due.
pub mod plan;
/// The dialect of Redis.
pub mod resp;
/// What was counted.
pub mod tally;

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::IpBindAddressNoPort;
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

use crate::interrupt;
use crate::sources::Sources;
use dialect::{Dialect, Heard};
use plan::Plan;
use tally::{Slot, Tally};

/// Request ids in flight on one connection are 1 to this: one bit each, one byte on the wire.
pub const IN_FLIGHT_MAX: u32 = 64;
/// Connections that may be on their way to a Welcome at the same time.
const CONNECTING_MAX: usize = 512;
/// What is in flight when a run ends may still be answered for this long.
const DRAIN_MAX: Duration = Duration::from_secs(3);
/// The timer of an open loop is not set finer: each wake-up costs some microseconds.
const TIMER_MIN: Duration = Duration::from_micros(100);
const READ_BUFFER: usize = 64 * 1024;
const NS_PER_SECOND: u64 = 1_000_000_000;
const TIMER: Token = Token(usize::MAX);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Connecting,
    Greeting,
    Ready,
    Gone,
}

struct Connection {
    stream: TcpStream,
    phase: Phase,
    /// A reply that has not come whole.
    partial: Vec<u8>,
    /// What the socket did not take yet.
    backlog: Vec<u8>,
    /// A bit for each request id that is free.
    free: u64,
    /// When the request in flight under each id was due, ns since the swarm began.
    due: Vec<u64>,
    /// When the connection was begun, or was to be by plan, ns since the swarm began.
    began: u64,
}

impl Connection {
    /// The lowest free id, from 1.
    fn take_id(&mut self, due: u64) -> Option<u8> {
        let bit = self.free.trailing_zeros();
        if bit as usize >= self.due.len() {
            return None;
        }
        self.free &= !(1 << bit);
        self.due[bit as usize] = due;
        Some(bit as u8 + 1)
    }

    /// Frees the id; tells when its request was due.
    fn answered(&mut self, id: u8) -> Option<u64> {
        let bit = u32::from(id).checked_sub(1)?;
        if bit as usize >= self.due.len() || self.free & (1 << bit) != 0 {
            return None;
        }
        self.free |= 1 << bit;
        Some(self.due[bit as usize])
    }

    fn in_flight(&self) -> u32 {
        self.free.count_zeros()
    }
}

/// How connections are made.
#[derive(Clone, Copy, Debug)]
pub struct Ramp<'a> {
    /// Taken in turn; at least one.
    pub servers: &'a [SocketAddr],
    pub connections: usize,
    /// New connections a second; 0 as fast as they are answered.
    pub per_second: u32,
    /// The longest time for all of them.
    pub patience: Duration,
}

/// What a closed loop keeps doing, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct Closed {
    pub in_flight: u32,
    /// Sent and answered, and not counted.
    pub warm_up: Duration,
    pub length: Duration,
    /// No more requests than this, the warm-up included.
    pub requests_max: u64,
}

/// What one step of the loop is for.
struct Step<'a> {
    tally: &'a mut Tally,
    /// Send the next when one is answered, until then, ns; 0 in an open loop.
    again_until: u64,
    requests_left: u64,
}

/// How runs are cut into slots.
#[derive(Clone, Copy)]
struct Series {
    slot_ms: u64,
    /// Is told of some of them as of one, when they are over.
    told: fn(&Slot),
    slots_a_line: usize,
}

pub struct Swarm<D> {
    pub dialect: D,
    poll: Poll,
    events: Events,
    timer: TimerFd,
    connections: Vec<Connection>,
    /// Ready and not gone, in turn.
    next: usize,
    buffer: Box<[u8]>,
    began: Instant,
    in_flight: u64,
    /// Connections with bytes to write that no event will bring up.
    dirty: VecDeque<usize>,
    series: Option<Series>,
    sources: Sources,
}

impl<D: Dialect> Swarm<D> {
    pub fn new(dialect: D) -> io::Result<Swarm<D>> {
        let poll = Poll::new()?;
        let flags = TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC;
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, flags)?;
        let raw = timer.as_fd().as_raw_fd();
        poll.registry()
            .register(&mut SourceFd(&raw), TIMER, Interest::READABLE)?;
        Ok(Swarm {
            dialect,
            poll,
            events: Events::with_capacity(1_024),
            timer,
            connections: vec![],
            next: 0,
            buffer: vec![0; READ_BUFFER].into(),
            began: Instant::now(),
            in_flight: 0,
            dirty: VecDeque::new(),
            series: None,
            sources: Sources::default(),
        })
    }

    /// From now on connections come from these addresses.
    pub fn with_sources(&mut self, sources: Sources) {
        self.sources = sources;
    }

    /// From now on runs are cut into slots; `told` hears of each `slots_a_line` of them as of one.
    pub fn with_series(&mut self, slot_ms: u64, slots_a_line: usize, told: fn(&Slot)) {
        self.series = Some(Series {
            slot_ms,
            told,
            slots_a_line,
        });
    }

    fn tally(&self, start: u64) -> Tally {
        let mut tally = Tally::new(start);
        // After a warm-up.
        tally.began += Duration::from_nanos(start.saturating_sub(self.now()));
        match self.series {
            Some(Series {
                slot_ms,
                told,
                slots_a_line,
            }) => tally.with_series(slot_ms, slots_a_line, Box::new(told)),
            None => tally,
        }
    }

    /// Connections that are ready.
    pub fn ready(&self) -> usize {
        let ready = self.connections.iter();
        ready.filter(|one| one.phase == Phase::Ready).count()
    }

    /// Makes connections, greets, and returns when each is ready or has failed. The tally's latencies end with the Welcome. They
    /// begin with the first packet, or at a given rate when that was due: a server that lets nobody in for a while makes all wait who come meanwhile.
    pub fn connect(&mut self, ramp: Ramp<'_>) -> io::Result<Tally> {
        let mut tally = self.tally(self.now());
        let (start, from) = (self.now(), self.connections.len());
        let deadline = start + ramp.patience.as_nanos() as u64;
        let wanted = from + ramp.connections;
        loop {
            let now = self.now();
            let allowed = match ramp.per_second {
                0 => ramp.connections as u64,
                rate => 1 + (now - start) * u64::from(rate) / NS_PER_SECOND,
            };
            let settled = tally.answered as usize + tally.failed as usize;
            while self.connections.len() < wanted
                && ((self.connections.len() - from) as u64) < allowed
                && self.connections.len() - from - settled < CONNECTING_MAX
            {
                let (number, now) = ((self.connections.len() - from) as u64, self.now());
                let due = match ramp.per_second {
                    0 => now,
                    rate => start + number * NS_PER_SECOND / u64::from(rate),
                };
                if ramp.per_second > 0 {
                    tally.planned(due, now);
                }
                tally.sent += 1;
                self.begin(ramp, due)?;
            }
            if settled >= ramp.connections {
                tally.end(self.now());
                return Ok(tally);
            }
            if now > deadline || interrupt::is_set() {
                tally.failed += (ramp.connections - settled) as u64;
                tally.end(now);
                return Ok(tally);
            }
            let mut step = Step {
                tally: &mut tally,
                again_until: 0,
                requests_left: 0,
            };
            self.turn(Duration::from_millis(1), &mut step)?;
        }
    }

    fn begin(&mut self, ramp: Ramp<'_>, due: u64) -> io::Result<()> {
        let index = self.connections.len();
        let server = ramp.servers[index % ramp.servers.len()];
        let socket = socket2::Socket::new(
            socket2::Domain::for_address(server),
            socket2::Type::STREAM,
            None,
        )?;
        socket.set_nonblocking(true)?;
        socket.set_tcp_nodelay(true)?;
        if server.ip().is_loopback() && server.is_ipv4() {
            let source = self.sources.of(index);
            // The port is chosen when the server is known: several generators may then share ports towards several servers.
            setsockopt(&socket, IpBindAddressNoPort, &true)?;
            socket.bind(&SocketAddr::new(source, 0).into())?;
        }
        match socket.connect(&server.into()) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(nix::libc::EINPROGRESS) => {}
            Err(error) => return Err(error),
        }
        let mut stream = TcpStream::from_std(socket.into());
        let interest = Interest::READABLE | Interest::WRITABLE;
        self.poll
            .registry()
            .register(&mut stream, Token(index), interest)?;
        self.connections.push(Connection {
            stream,
            phase: Phase::Connecting,
            partial: vec![],
            backlog: vec![],
            free: u64::MAX,
            due: vec![],
            began: due,
        });
        Ok(())
    }

    /// Keeps `in_flight` requests under way on every connection.
    pub fn closed_loop(&mut self, closed: Closed) -> io::Result<Tally> {
        self.allow(closed.in_flight);
        let start = self.now() + closed.warm_up.as_nanos() as u64;
        let end = start + closed.length.as_nanos() as u64;
        let mut tally = self.tally(start);
        let mut step = Step {
            tally: &mut tally,
            again_until: end,
            requests_left: closed.requests_max,
        };
        for index in 0..self.connections.len() {
            for _ in 0..closed.in_flight {
                let now = self.now();
                self.request(index, now, &mut step);
            }
            self.flush(index, &mut step);
        }
        while self.now() < end && self.in_flight > 0 && !interrupt::is_set() {
            self.turn(Duration::from_millis(10), &mut step)?;
        }
        step.tally.end(self.now().min(end));
        self.drain(&mut tally)?;
        Ok(tally)
    }

    /// Sends by plan, at most `in_flight_max` under way on one connection; an arrival that finds no connection free is dropped, and counted so.
    pub fn open_loop(&mut self, mut plan: Plan, in_flight_max: u32) -> io::Result<Tally> {
        self.allow(in_flight_max);
        let zero = self.now();
        let mut tally = self.tally(zero);
        while let Some(due) = plan.peek() {
            let due = zero + due.as_nanos() as u64;
            let now = self.now();
            if interrupt::is_set() {
                break;
            }
            let mut step = Step {
                tally: &mut tally,
                again_until: 0,
                requests_left: u64::MAX,
            };
            if due <= now {
                plan.advance();
                step.tally.planned(due, now);
                match self.free_connection() {
                    Some(index) => self.request(index, due, &mut step),
                    None => step.tally.dropped(due),
                }
                continue;
            }
            self.flush_dirty(&mut step);
            self.wake_after(Duration::from_nanos(due - now))?;
            self.turn(Duration::from_millis(10), &mut step)?;
        }
        self.drain(&mut tally)?;
        tally.end(self.now());
        Ok(tally)
    }

    /// Listens for `length`, or until `enough` says so.
    pub fn listen(
        &mut self,
        length: Duration,
        mut enough: impl FnMut(&Tally) -> bool,
    ) -> io::Result<Tally> {
        let start = self.now();
        let end = start + length.as_nanos() as u64;
        let mut tally = self.tally(start);
        while self.now() < end && !interrupt::is_set() && !enough(&tally) {
            let mut step = Step {
                tally: &mut tally,
                again_until: 0,
                requests_left: 0,
            };
            self.turn(Duration::from_millis(10), &mut step)?;
        }
        tally.end(self.now());
        Ok(tally)
    }

    /// Sends one request on every connection, `in_flight_max` at most under way on each, and waits for the answers.
    pub fn once_each(&mut self, patience: Duration) -> io::Result<Tally> {
        self.allow(1);
        let start = self.now();
        let end = start + patience.as_nanos() as u64;
        let mut tally = self.tally(start);
        for index in 0..self.connections.len() {
            let mut step = Step {
                tally: &mut tally,
                again_until: 0,
                requests_left: u64::MAX,
            };
            let now = self.now();
            self.request(index, now, &mut step);
            self.flush(index, &mut step);
            if index % 256 == 255 {
                self.turn(Duration::ZERO, &mut step)?;
            }
        }
        while self.in_flight > 0 && self.now() < end && !interrupt::is_set() {
            let mut step = Step {
                tally: &mut tally,
                again_until: 0,
                requests_left: 0,
            };
            self.turn(Duration::from_millis(10), &mut step)?;
        }
        tally.end(self.now());
        Ok(tally)
    }

    fn now(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    /// Room for so many requests in flight on each connection.
    fn allow(&mut self, in_flight: u32) {
        assert!(
            (1..=IN_FLIGHT_MAX).contains(&in_flight),
            "checked by callers"
        );
        for connection in &mut self.connections {
            connection.due.clear();
            connection.due.resize(in_flight as usize, 0);
            connection.free = u64::MAX;
        }
        self.in_flight = 0;
    }

    /// The next connection in turn that may send.
    fn free_connection(&mut self) -> Option<usize> {
        let count = self.connections.len();
        for _ in 0..count {
            self.next = (self.next + 1) % count;
            let connection = &self.connections[self.next];
            if connection.phase == Phase::Ready
                && (connection.in_flight() as usize) < connection.due.len()
            {
                return Some(self.next);
            }
        }
        None
    }

    /// Puts one request into the connection's backlog; [`Swarm::flush`] sends it.
    fn request(&mut self, index: usize, due: u64, step: &mut Step<'_>) {
        let connection = &mut self.connections[index];
        if connection.phase != Phase::Ready || step.requests_left == 0 {
            return;
        }
        let Some(id) = connection.take_id(due) else {
            return;
        };
        if connection.backlog.is_empty() {
            self.dirty.push_back(index);
        }
        self.dialect.request(index, id, &mut connection.backlog);
        step.requests_left -= 1;
        step.tally.sent += 1;
        self.in_flight += 1;
    }

    fn flush_dirty(&mut self, step: &mut Step<'_>) {
        while let Some(index) = self.dirty.pop_front() {
            self.flush(index, step);
        }
    }

    fn flush(&mut self, index: usize, step: &mut Step<'_>) {
        let connection = &mut self.connections[index];
        let mut written = 0;
        while written < connection.backlog.len() {
            match connection.stream.write(&connection.backlog[written..]) {
                Ok(n) => written += n,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => return self.lose(index, step),
            }
        }
        connection.backlog.drain(..written);
    }

    /// The connection is no more; what was in flight on it has no answer.
    fn lose(&mut self, index: usize, step: &mut Step<'_>) {
        let connection = &mut self.connections[index];
        match connection.phase {
            Phase::Gone => return,
            Phase::Connecting | Phase::Greeting => step.tally.failed += 1,
            Phase::Ready => step.tally.lost += 1,
        }
        connection.phase = Phase::Gone;
        let unanswered = u64::from(connection.in_flight());
        step.tally.unanswered += unanswered;
        self.in_flight -= unanswered;
        connection.free = u64::MAX;
        connection.backlog = vec![];
        let _ = self.poll.registry().deregister(&mut connection.stream);
        let _ = connection.stream.shutdown(std::net::Shutdown::Both);
    }

    fn wake_after(&self, wait: Duration) -> io::Result<()> {
        let at = Expiration::OneShot(TimeSpec::from_duration(wait.max(TIMER_MIN)));
        Ok(self.timer.set(at, TimerSetTimeFlags::empty())?)
    }

    /// Waits for events and handles them.
    fn turn(&mut self, wait: Duration, step: &mut Step<'_>) -> io::Result<()> {
        let mut events = std::mem::replace(&mut self.events, Events::with_capacity(0));
        let polled = self.poll.poll(&mut events, Some(wait));
        match polled {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => events.clear(),
            other => other?,
        }
        for event in &events {
            if event.token() == TIMER {
                let _ = self.timer.wait(); // only there to end the poll
                continue;
            }
            let index = event.token().0;
            if event.is_writable() {
                self.writable(index, step);
            }
            if event.is_readable() {
                self.readable(index, step);
            }
        }
        self.events = events;
        self.flush_dirty(step);
        Ok(())
    }

    fn writable(&mut self, index: usize, step: &mut Step<'_>) {
        let connection = &mut self.connections[index];
        if connection.phase == Phase::Connecting {
            if let Ok(Some(error)) | Err(error) = connection.stream.take_error() {
                step.tally.fault(error.to_string());
                return self.lose(index, step);
            }
            if connection.stream.peer_addr().is_err() {
                return; // not yet
            }
            connection.phase = Phase::Greeting;
            if !self.dialect.greet(index, &mut connection.backlog) {
                connection.phase = Phase::Ready;
                step.tally.answered += 1;
            }
        }
        if !self.connections[index].backlog.is_empty() {
            self.flush(index, step);
        }
    }

    fn readable(&mut self, index: usize, step: &mut Step<'_>) {
        loop {
            let connection = &mut self.connections[index];
            if connection.phase == Phase::Gone {
                return;
            }
            let carried = connection.partial.len();
            self.buffer[..carried].copy_from_slice(&connection.partial);
            let read = match connection.stream.read(&mut self.buffer[carried..]) {
                Ok(0) => return self.lose(index, step),
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => return self.lose(index, step),
            };
            connection.partial.clear();
            let buffer = std::mem::take(&mut self.buffer);
            let whole = self.replies(index, &buffer[..carried + read], step);
            let drained = carried + read < buffer.len();
            self.buffer = buffer;
            if !whole {
                return self.lose(index, step);
            }
            if drained {
                break;
            }
        }
        if !self.connections[index].backlog.is_empty() {
            self.flush(index, step);
        }
    }

    /// Takes in all whole replies; false when the connection is of no more use.
    fn replies(&mut self, index: usize, bytes: &[u8], step: &mut Step<'_>) -> bool {
        let now = self.now();
        let mut used = 0;
        loop {
            let (length, heard) = match self.dialect.read(index, &bytes[used..]) {
                Ok(Some(read)) => read,
                Ok(None) => break,
                Err(problem) => {
                    step.tally.fault(problem);
                    return false;
                }
            };
            used += length;
            match heard {
                Heard::Answer { id, code } => self.answer(index, id, code, now, step),
                Heard::Welcome => {
                    let connection = &mut self.connections[index];
                    connection.phase = Phase::Ready;
                    step.tally.record(connection.began, now, 0);
                }
                Heard::Opened { lag_ms } => step.tally.push(lag_ms),
                Heard::Aside => step.tally.asides += 1,
                Heard::Ended(reason) => {
                    step.tally.fault(reason);
                    return false;
                }
            }
        }
        if used < bytes.len() {
            if bytes.len() - used >= READ_BUFFER / 2 {
                step.tally
                    .fault("a reply is longer than any should be".to_owned());
                return false;
            }
            let rest = &bytes[used..];
            self.connections[index].partial.extend_from_slice(rest);
        }
        true
    }

    fn answer(&mut self, index: usize, id: u8, code: u8, now: u64, step: &mut Step<'_>) {
        let Some(due) = self.connections[index].answered(id) else {
            return step
                .tally
                .fault(format!("an answer to request {id}, which is not in flight"));
        };
        self.in_flight -= 1;
        step.tally.record(due, now, code);
        if now < step.again_until {
            self.request(index, now, step);
            // The caller flushes this connection.
            if self.dirty.back() == Some(&index) {
                self.dirty.pop_back();
            }
        }
    }

    /// Lets what is in flight be answered.
    fn drain(&mut self, tally: &mut Tally) -> io::Result<()> {
        let end = self.now() + DRAIN_MAX.as_nanos() as u64;
        let mut step = Step {
            tally,
            again_until: 0,
            requests_left: 0,
        };
        self.flush_dirty(&mut step);
        while self.in_flight > 0 && self.now() < end {
            self.turn(Duration::from_millis(10), &mut step)?;
        }
        step.tally.unanswered += self.in_flight;
        Ok(())
    }
}
