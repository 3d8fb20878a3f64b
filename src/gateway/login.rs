//! Hello, Refresh, and the end of what they allowed.

use std::rc::Rc;

use super::inbox;
use super::session::Session;
use super::token::Identity;
use super::worker::Worker;
use crate::clock::now_ms;
use crate::metrics;
use crate::wire::server_frame::Message;
use crate::wire::{CloseCode, Hello, Refresh, Refreshed, Refused, Welcome};

/// The protocol that this gateway speaks.
pub const PROTOCOL: u32 = 1;
/// Bad tokens that a session may offer before it is closed: checking one costs as much as a hundred taps.
const REFUSALS_MAX: u8 = 3;
/// A signature takes as long as a hundred taps.
const REFRESH_COST: u64 = 100;

impl Session {
    pub(super) fn hello(self: &Rc<Self>, worker: &Rc<Worker>, id: u64, hello: Hello) {
        if hello.protocol != PROTOCOL {
            let reason = format!(
                "protocol {} is not spoken here; this gateway speaks {PROTOCOL}",
                hello.protocol
            );
            return self.refuse(worker, id, CloseCode::ProtocolUnsupported, reason);
        }
        match worker.tokens.verify(&hello.token, now_ms()) {
            Err(error) => self.refuse(worker, id, error.code, error.reason),
            Ok(identity) => self.welcome(worker, id, identity, hello.last_message_id),
        }
    }

    fn welcome(
        self: &Rc<Self>,
        worker: &Rc<Worker>,
        id: u64,
        identity: Identity,
        last_message_id: u64,
    ) {
        let Identity {
            user,
            edge,
            credentials,
        } = identity;
        let settings = &worker.settings;
        let in_flight_max = match edge {
            true => settings.edge_in_flight_max,
            false => settings.in_flight_max,
        };
        let welcome = Welcome {
            session_id: self.id,
            user: user.to_string(),
            server_time_ms: now_ms(),
            heartbeat_interval_ms: settings.heartbeat_interval.as_millis() as u32,
            edge,
            in_flight_max: in_flight_max as u32,
            expires_at_ms: credentials.expires_ms,
        };
        let user = self.entered(user, credentials, edge);
        self.send(worker, id, Message::Welcome(welcome));
        if edge {
            return worker.edges.enter(self);
        }
        self.hold_rate(worker.user_rates.enter(user));
        // Known as the user's before the inbox is read: what is written meanwhile is pushed.
        worker.users.enter(user, self);
        worker.enter_roll(user, self);
        worker.still_cooling(self, user);
        inbox::page_after_welcome(worker, self, user, last_message_id);
    }

    /// The session goes on with a new token of the same user.
    pub(super) fn refresh(self: &Rc<Self>, worker: &Worker, id: u64, refresh: &Refresh) {
        if !self.may_cost(worker, REFRESH_COST) {
            return self.refuse_too_many(worker, id);
        }
        let verified = worker.tokens.verify(&refresh.token, now_ms());
        let same = verified.and_then(|identity| {
            let same =
                self.user() == Some(&identity.user) && self.edge().is_some() == identity.edge;
            let other = || super::token::TokenError {
                code: CloseCode::TokenOtherUser,
                reason: "the token is another user's, or of another scope".to_owned(),
            };
            same.then_some(identity).ok_or_else(other)
        });
        match same {
            Ok(identity) => {
                metrics::get().refreshes_accepted.increment(1);
                let expires_at_ms = identity.credentials.expires_ms;
                self.set_credentials(identity.credentials);
                worker.look_again(self);
                self.send(worker, id, Message::Refreshed(Refreshed { expires_at_ms }));
            }
            Err(error) => {
                metrics::get().refreshes_refused.increment(1);
                let refusals = self.refusals.get() + 1;
                self.refusals.set(refusals);
                if refusals > REFUSALS_MAX {
                    return self.close(worker, error.code, &error.reason);
                }
                let refused = Refused {
                    code: error.code as i32,
                    reason: error.reason,
                };
                self.send(worker, id, Message::Refused(refused));
            }
        }
    }

    /// Why the session's token allows it no longer. Keys and users are only looked up when the key set has changed.
    pub(super) fn lapsed(
        &self,
        worker: &Worker,
        now_ms: i64,
        keys_changed: bool,
    ) -> Option<(CloseCode, &'static str)> {
        let (credentials, user) = (self.credentials.borrow(), self.user()?);
        let credentials = credentials.as_ref()?;
        if !keys_changed && now_ms <= credentials.expires_ms {
            return None;
        }
        worker.tokens.lapsed(user, credentials, now_ms)
    }
}
