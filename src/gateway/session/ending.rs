//! How a session ends: who is told what, how long it is waited for, and what is overdue.

use std::rc::Rc;
use std::time::{Duration, Instant};

use super::Session;
use crate::clock::now_ms;
use crate::gateway::worker::{LINGER, Worker};
use crate::metrics;
use crate::wire::server_frame::Message;
use crate::wire::{CloseCode, GoAway, Refused};

impl Session {
    pub fn refuse(
        self: &Rc<Self>,
        worker: &Worker,
        request_id: u64,
        code: CloseCode,
        reason: String,
    ) {
        metrics::get().closed(code);
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
        self.part(worker);
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
        metrics::get().closed(code);
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
        self.part(worker);
    }

    fn part(self: &Rc<Self>, worker: &Worker) {
        self.closing.set(Some(Instant::now()));
        worker.look_again(self);
    }

    /// In a drain the answers to what is in flight still go out.
    pub(super) fn finishing(&self, worker: &Worker) -> bool {
        worker.draining() && self.in_flight.get() > 0 && self.user().is_some()
    }

    /// When to look at this session again if nothing happens.
    pub fn due(&self, worker: &Worker) -> Instant {
        let settings = &worker.settings;
        if let Some(since) = self.closing.get() {
            let wait = if self.finishing(worker) {
                settings.drain_timeout
            } else {
                LINGER
            };
            return since + wait;
        }
        let silent = match self.user() {
            Some(_) => self.last_heard.get() + settings.idle_timeout,
            None => self.connected + settings.hello_timeout,
        };
        let cut = (self.frame_begun.get()).map(|begun| begun + settings.frame_timeout);
        let lapses = (self.credentials.borrow().as_ref()).map(|credentials| {
            let left = worker
                .tokens
                .lapses_ms(credentials)
                .saturating_sub(now_ms())
                .max(0);
            // Tokens may be valid for ever, and instants have an end.
            Instant::now() + Duration::from_millis(left as u64).min(settings.idle_timeout)
        });
        [Some(silent), cut, lapses]
            .into_iter()
            .flatten()
            .min()
            .unwrap_or(silent)
    }

    /// Ends the session if its time is over in any way.
    pub fn end_if_overdue(self: &Rc<Self>, worker: &Worker, now: Instant, keys_changed: bool) {
        let settings = &worker.settings;
        if self.closing.get().is_some() {
            if self.due(worker) <= now {
                self.abandon();
            }
            return;
        }
        let cut = self
            .frame_begun
            .get()
            .is_some_and(|begun| begun + settings.frame_timeout <= now);
        let why = match self.user() {
            _ if cut => Some((
                CloseCode::FrameTimeout,
                "a frame that had begun did not end in time",
            )),
            None if self.connected + settings.hello_timeout <= now => {
                Some((CloseCode::HelloExpected, "no Hello in time"))
            }
            Some(_) if self.last_heard.get() + settings.idle_timeout <= now => {
                Some((CloseCode::Idle, "nothing heard for too long"))
            }
            None => None,
            Some(_) => self.lapsed(worker, now_ms(), keys_changed),
        };
        if let Some((code, reason)) = why {
            self.close(worker, code, reason);
        }
    }

    /// Ends the session at once.
    pub fn abandon(&self) {
        self.gone.set(true);
        self.wake.notify_one();
    }
}
