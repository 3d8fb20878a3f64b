use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, timeout_at};

use super::requests::Answer;
use super::state::{Parting, Phase, State};
use super::{ClientError, Refusal, Settings, Stats};
use crate::wire::client_frame::Request;
use crate::wire::server_frame::Message;

/// What the handle and the driver of one session share. The lock is held for microseconds and never across an `await`.
pub(super) struct Shared {
    pub settings: Arc<Settings>,
    state: Mutex<State>,
    /// The phase changed, or a rain opened.
    changed: Notify,
    /// A reply came: there is room for one more request in flight.
    freed: Notify,
}

impl Shared {
    pub fn new(settings: Arc<Settings>) -> Shared {
        Shared {
            state: Mutex::new(State::new(&settings)),
            settings,
            changed: Notify::new(),
            freed: Notify::new(),
        }
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state
            .lock()
            .expect("nothing panics while it holds the state of a session")
    }

    /// One request, one reply, on the connection that is there. While `in_flight_max` are on their way it waits, within the same time limit.
    pub async fn request(&self, request: Request) -> Result<Message, ClientError> {
        let ms = self.settings.reply_ms;
        let deadline = Instant::now() + Duration::from_millis(ms);
        let mut waited = false;
        let (reply, sent) = loop {
            let freed = self.freed.notified();
            match self.send(&request)? {
                Some(sent) => break sent,
                None if timeout_at(deadline, freed).await.is_err() => {
                    self.abandon(Parting::Lost(format!("requests unanswered for {ms} ms")));
                    return Err(ClientError::TimedOut { ms });
                }
                None => waited = true,
            }
        };
        // A late reply makes room for all that its slot had kept waiting, and wakes one: each wakes the next.
        if waited && !self.lock().is_full() {
            self.freed.notify_one();
        }
        match timeout_at(deadline, reply).await {
            Ok(Ok(Ok(Message::Refused(refused)))) => Err(ClientError::Refused(Refusal {
                code: refused.code,
                reason: refused.reason,
                reconnect_after: Duration::ZERO,
            })),
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(ClientError::ConnectionLost),
            Err(_) => {
                // Other replies came, so the connection lives: this one may only be late. Nothing came: it is dead.
                if self.lock().heard_at < sent {
                    self.abandon(Parting::Lost(format!("nothing heard for {ms} ms")));
                }
                Err(ClientError::TimedOut { ms })
            }
        }
    }

    /// `None` when too many are in flight.
    fn send(&self, request: &Request) -> Result<Option<(Answer, Instant)>, ClientError> {
        let mut state = self.lock();
        match &state.phase {
            Phase::Up(_) => {}
            Phase::Down | Phase::Greeting(_) | Phase::Leaving(..) => {
                return Err(ClientError::NotConnected);
            }
            Phase::Ended(error) => return Err(error.clone()),
        }
        if state.is_full() {
            return Ok(None);
        }
        let (reply, answer) = oneshot::channel();
        state.put(request.clone(), Some(reply));
        // Straight to the socket: waking the driver for it would cost a task switch per grab. With many at once it costs less than a write each.
        if self.settings.gather || state.write_out().is_err() || state.has_unsent() {
            state.wake_driver();
        }
        Ok(Some((answer, state.sent_at)))
    }

    pub async fn ready(&self) -> Result<(), ClientError> {
        loop {
            let changed = self.changed.notified();
            match &self.lock().phase {
                Phase::Up(_) => return Ok(()),
                Phase::Ended(error) => return Err(error.clone()),
                Phase::Down | Phase::Greeting(_) | Phase::Leaving(..) => {}
            }
            changed.await;
        }
    }

    /// Waits for `wait`, or shorter if a rain opens that was not open when `rains_opened` were counted.
    pub async fn wait_or_opened(&self, wait: Duration, rains_opened: u32) {
        let deadline = Instant::now() + wait;
        loop {
            let changed = self.changed.notified();
            if self.rains_opened() != rains_opened || timeout_at(deadline, changed).await.is_err() {
                return;
            }
        }
    }

    pub fn rains_opened(&self) -> u32 {
        self.lock().rains_opened
    }

    /// After WRONG_KEY to a grab that carried `sent`: whether to send it again. Watch and grab follow one another after a reconnect, and RainOpened may come
    /// behind the refusal of a grab that was told when to come back: so whoever watches a room and knows no key waits for it, as long as for a reply.
    pub async fn another_key(&self, rain_id: u32, sent: &Bytes) -> bool {
        let deadline = Instant::now() + Duration::from_millis(self.settings.reply_ms);
        loop {
            let changed = self.changed.notified();
            {
                let state = self.lock();
                // A lost connection: the next one tells what is open.
                if state.key_of(rain_id) != *sent || !matches!(state.phase, Phase::Up(_)) {
                    return true;
                }
                if state.room.is_none() || !sent.is_empty() {
                    return false;
                }
            }
            if timeout_at(deadline, changed).await.is_err() {
                return false;
            }
        }
    }

    pub fn set_room(&self, room: &str) {
        self.lock().room = (!room.is_empty()).then(|| room.into());
    }

    pub fn ask_reconnect(&self) {
        self.abandon(Parting::Asked);
    }

    fn abandon(&self, parting: Parting) {
        let mut state = self.lock();
        if !state.has_ended() {
            state.abandon = Some(parting);
            state.wake_driver();
        }
    }

    /// The session is over for good.
    pub fn end(&self, error: ClientError) {
        let mut state = self.lock();
        if !state.has_ended() {
            state.drop_connection(Phase::Ended(error));
            state.wake_driver();
            state.events.wake();
            drop(state);
            self.tell();
        }
    }

    /// Wakes all who wait for a change.
    pub fn tell(&self) {
        self.changed.notify_waiters();
        self.freed.notify_waiters();
    }

    pub fn reply_came(&self) {
        self.freed.notify_one();
    }

    pub fn server_now_ms(&self, now: Instant) -> Option<i64> {
        self.lock().clock.now_ms(now)
    }

    pub fn last_failure(&self) -> String {
        self.lock().last_failure.clone()
    }

    pub fn stats(&self) -> Stats {
        self.lock().stats
    }
}
