//! Packets on their way from one bucket to another, in three steps that may each be repeated by anyone: give, take, given.

use redis::{Cmd, Value};

use super::bucket::{Bucket, text};
use super::node::Peer;
use super::{StoreError, script};
use crate::rain::Packet;

/// Packets in one transfer.
pub const TRANSFER_MAX: u64 = 500;

/// An entry of an outbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transfer {
    pub id: String,
    /// The bucket that gets the packets.
    pub target: u32,
    /// The incarnation of the target that it was meant for: see [`Level::incarnation`].
    pub incarnation: String,
    pub packets: Vec<Packet>,
}

/// What the steward looks at to decide who gives to whom.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Level {
    pub pool: u64,
    /// Somebody has tapped here in vain since packets came in last.
    pub hungry: bool,
    /// Transfers that are under way from here.
    pub giving: u64,
    /// It takes part: its node answers, and it is not suspect.
    pub sound: bool,
    /// Another one after every repair.
    pub incarnation: String,
}

fn parse(id: &str, entry: &str) -> Option<Transfer> {
    let mut parts = entry.split(' ');
    let target = parts.next()?.parse().ok()?;
    let incarnation = parts.next()?.to_owned();
    let packets: Result<Vec<Packet>, _> = parts.map(str::parse).collect();
    Some(Transfer {
        id: id.to_owned(),
        target,
        incarnation,
        packets: packets.ok()?,
    })
}

impl Transfer {
    /// As `give.lua` wrote them, and `take.lua` remembers them by.
    pub fn packets_text(&self) -> String {
        let packets: Vec<String> = self.packets.iter().map(Packet::to_string).collect();
        packets.join(" ")
    }
}

impl Bucket {
    pub async fn level(&self) -> Result<Level, StoreError> {
        let k = &self.keys;
        let (mut pool, mut gate, mut giving) =
            (redis::cmd("LLEN"), redis::cmd("HMGET"), redis::cmd("HLEN"));
        let fields = ["hungry", "run_id", "incarnation"];
        let (pool, gate, giving) = (
            pool.arg(&k.pool),
            gate.arg(&k.gate).arg(&fields),
            giving.arg(&k.outbox),
        );
        let answers = futures_util::try_join!(
            self.route.call(pool),
            self.route.call(gate),
            self.route.call(giving)
        )?;
        match answers {
            (Value::Int(pool), Value::Array(gate), Value::Int(giving)) => {
                let field = |i: usize| gate.get(i).and_then(text);
                let peer = self.route.link().peer();
                Ok(Level {
                    pool: pool as u64,
                    hungry: field(0).is_some(),
                    giving: giving as u64,
                    sound: peer.is_some_and(|peer| field(1) == Some(&peer.run_id)),
                    incarnation: field(2).unwrap_or_default().to_owned(),
                })
            }
            (reply, ..) => Err(StoreError::Reply {
                verb: "LLEN",
                reply: format!("{reply:?}"),
            }),
        }
    }

    /// Takes up to `most` packets (1 to [`TRANSFER_MAX`]) out of the pool for bucket `target` in its present `incarnation`; `None` if there are none, or the gate is
    /// closed, or the bucket is suspect.
    pub async fn give(
        &self,
        id: &str,
        target: u32,
        incarnation: &str,
        most: u64,
    ) -> Result<Option<Transfer>, StoreError> {
        let k = &self.keys;
        let keys = [k.gate.as_str(), &k.pool, &k.outbox];
        let arguments = |call: &mut Cmd, peer: &Peer| {
            call.arg(id).arg(target).arg(most.clamp(1, TRANSFER_MAX));
            call.arg(&peer.run_id).arg(incarnation);
        };
        match self.run_with(&script::GIVE, &keys, arguments).await? {
            Value::Nil => Ok(None),
            reply => {
                let transfer = text(&reply).and_then(|entry| parse(id, entry));
                transfer
                    .map(Some)
                    .ok_or_else(|| script::GIVE.misread(&reply))
            }
        }
    }

    /// Puts the packets of a transfer into this pool, once. `false` if they were meant for an earlier incarnation of this bucket: its repair
    /// has accounted for them, or they were given too late.
    pub async fn take(&self, transfer: &Transfer) -> Result<bool, StoreError> {
        let k = &self.keys;
        let keys = [k.gate.as_str(), &k.pool, &k.applied];
        let arguments = |call: &mut Cmd, peer: &Peer| {
            call.arg(&transfer.id).arg(&peer.run_id);
            call.arg(&transfer.incarnation);
            for packet in &transfer.packets {
                call.arg(packet.to_string());
            }
        };
        let answer = match self.run_with(&script::TAKE, &keys, arguments).await? {
            Value::Int(answer) => answer,
            reply => return Err(script::TAKE.misread(&reply)),
        };
        match answer {
            0 | 1 => Ok(true),
            -4 => Ok(false),
            -3 => Err(self.suspect()),
            answer => Err(StoreError::Reply {
                verb: "take",
                reply: format!(
                    "{answer} (-1: bucket {} is not there, -2: id {} was used for other packets)",
                    self.tag, transfer.id
                ),
            }),
        }
    }

    /// Forgets a transfer that has been taken.
    pub async fn given(&self, transfer: &Transfer) -> Result<(), StoreError> {
        self.run_count(
            &script::GIVEN,
            &[&self.keys.outbox],
            std::slice::from_ref(&transfer.id),
        )
        .await
        .map(drop)
    }

    /// What is on its way from here; an entry that cannot be read is returned as its text.
    pub async fn outbox(&self) -> Result<Vec<Result<Transfer, String>>, StoreError> {
        let mut found = vec![];
        let mut cursor = Some(0);
        while let Some(at) = cursor {
            let (next, entries) = self.hscan(&self.keys.outbox, at).await?;
            found.extend(
                entries
                    .into_iter()
                    .map(|(id, entry)| parse(&id, &entry).ok_or(entry)),
            );
            cursor = (next != 0).then_some(next);
        }
        Ok(found)
    }
}
