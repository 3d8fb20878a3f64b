//! What a session remembers of its user's outcomes: a repeated tap costs no call of Redis.

use super::Session;
use crate::gateway::admission::Remembered;
use crate::rain::{Packet, RainId};

/// Rains whose outcome a session remembers; more are asked of Redis again.
const REMEMBERED_RAINS: usize = 2;

impl Session {
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
}
