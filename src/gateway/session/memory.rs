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
        self.forget(rain);
        let mut memory = self.memory.borrow_mut();
        // What is final is not replaced by an answer that comes late.
        if memory.iter().any(|(known, _)| *known == rain) {
            return;
        }
        if memory.len() == REMEMBERED_RAINS {
            memory.remove(0);
        }
        memory.reserve_exact(1);
        memory.push((rain, what));
    }

    /// After an unknown outcome only what is final may answer the next tap.
    pub fn forget(&self, rain: RainId) {
        let mut memory = self.memory.borrow_mut();
        memory.retain(|(known, what)| *known != rain || what.is_final());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::tests::connection;
    use crate::gateway::transport::Transport;
    use crate::rain::Cents;

    /// A tap that was not answered by its node took the win of the tap before it along, and each repeat asked Redis.
    #[tokio::test]
    async fn what_is_final_outlives_an_unknown_outcome_and_what_is_not_does_not() {
        let session = Session::new(1, Transport::Plain(connection().await.0), None);
        let rain = RainId::new(7).unwrap();
        session.remember_empty(rain, 3);
        session.forget(rain);
        assert_eq!(session.remembered(rain), None);
        session.remember_empty(rain, 3);
        session.remember_sold_out(rain, 4);
        let sold_out = Remembered::SoldOut { version: 4 };
        assert_eq!(session.remembered(rain), Some(sold_out));
        let packet = Packet {
            id: rain.packet(41),
            cents: Cents(888),
        };
        session.remember_won(rain, packet);
        session.forget(rain);
        session.remember_empty(rain, 3);
        assert_eq!(session.remembered(rain), Some(Remembered::Won(packet)));
    }
}
