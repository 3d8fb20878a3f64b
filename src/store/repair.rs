//! A bucket that may have lost something: what it holds, and putting back what the ledger knows.

use redis::Value;

use super::bucket::{Bucket, text};
use super::transfer::Transfer;
use super::{StoreError, script};
use crate::rain::{Packet, UserId};

/// Packets pushed by one call while a pool is put together.
const PUSH_MAX: usize = 1_000;
/// Pairs that `restore.lua` takes at a time.
const RESTORE_MAX: usize = 400;
/// Transfers that `repair.lua` takes.
pub const TRANSFERS_MAX: usize = 200;
/// A pool that is put together and never used goes after this time, ms.
const REBUILT_KEPT_MS: u64 = 600_000;

/// Whether a bucket is held by the process that loaded or repaired it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Of the process that answers now.
    pub run_id: String,
    /// What the gate says; empty for a bucket that is suspect already, or not there.
    pub recorded: String,
    pub state: String,
    pub chunks: u32,
    /// As text; empty for a bucket that is not there. Changes with every repair.
    pub epoch: String,
    /// As text; empty for a bucket that is not there. Another one after every repair.
    pub incarnation: String,
    /// Of the ids of all transfers that are under way from here or have arrived: another one after every step of one.
    pub transfers: u64,
}

impl Standing {
    /// It is not known that it has everything: another process loaded it, it is gone, or it has fewer than the `chunks` that it had.
    pub fn is_suspect(&self, chunks: u32) -> bool {
        suspect(
            &self.run_id,
            &self.recorded,
            &self.state,
            self.chunks < chunks,
        )
    }
}

fn suspect(run_id: &str, recorded: &str, state: &str, has_fewer: bool) -> bool {
    run_id != recorded || (state == "loading" && has_fewer)
}

/// What a repair puts into a bucket.
#[derive(Debug, Default)]
pub struct Repaired {
    /// In the order of the list.
    pub pool: Vec<String>,
    /// How many the rain has.
    pub chunks: u32,
    /// Whether the rain is closed: then the gate is shut, whatever it says.
    pub over: bool,
    /// Transfers to here whose packets are in the pool, at most [`TRANSFERS_MAX`].
    pub arrived: Vec<Transfer>,
    /// Ids of transfers from here that will never arrive, at most [`TRANSFERS_MAX`].
    pub void: Vec<String>,
}

/// What `repair.lua` did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RepairAnswer {
    Repaired,
    /// Something was not as it was when it was looked at: look again.
    Changed,
}

impl Bucket {
    pub async fn standing(&self) -> Result<Standing, StoreError> {
        match self.standing_at_owner().await {
            // The slot has moved: a call that follows it corrects the map.
            Err(StoreError::Refused { .. }) => {
                let mut read = redis::cmd("HLEN");
                self.route.call(read.arg(&self.keys.gate)).await?;
                self.standing_at_owner().await
            }
            other => other,
        }
    }

    /// Whether it is suspect, for those who only look: a slot that moves at this moment is an error.
    pub async fn is_suspect(&self, chunks: u32) -> Result<bool, StoreError> {
        let link = self.route.link();
        let connection = link.connect().await?;
        let mut read = redis::cmd("HMGET");
        read.arg(&self.keys.gate)
            .arg(&["run_id", "chunks", "state"]);
        let gate = link.call_on(&connection, &read).await?;
        let Value::Array(fields) = &gate else {
            return Err(script::REPAIR.misread(&gate));
        };
        let field = |i: usize| fields.get(i).and_then(text).unwrap_or_default();
        let loaded = field(1).parse().unwrap_or(0);
        Ok(suspect(
            &connection.peer.run_id,
            field(0),
            field(2),
            loaded < chunks,
        ))
    }

    /// Over one connection, so that the answers and the run id are of one process.
    async fn standing_at_owner(&self) -> Result<Standing, StoreError> {
        let k = &self.keys;
        let link = self.route.link();
        let connection = link.connect().await?;
        let mut read = redis::cmd("HMGET");
        read.arg(&k.gate);
        read.arg(&["run_id", "chunks", "state", "epoch", "incarnation"]);
        let gate = link.call_on(&connection, &read).await?;
        let mut ids = vec![];
        for key in [&k.applied, &k.outbox] {
            let reply = link
                .call_on(&connection, redis::cmd("HKEYS").arg(key))
                .await?;
            let Value::Array(found) = &reply else {
                return Err(script::REPAIR.misread(&reply));
            };
            ids.extend(
                found
                    .iter()
                    .filter_map(text)
                    .map(|id| format!("{key} {id}")),
            );
        }
        ids.sort_unstable();
        let Value::Array(fields) = &gate else {
            return Err(script::REPAIR.misread(&gate));
        };
        let field = |i: usize| fields.get(i).and_then(text).unwrap_or_default().to_owned();
        Ok(Standing {
            run_id: connection.peer.run_id.clone(),
            recorded: field(0),
            chunks: field(1).parse().unwrap_or_default(),
            state: field(2),
            epoch: field(3),
            incarnation: field(4),
            transfers: xxhash_rust::xxh3::xxh3_64(ids.join("\n").as_bytes()),
        })
    }

    /// Makes the bucket suspect, as if another process had loaded it: nothing is given there until it is repaired.
    pub async fn distrust(&self) -> Result<(), StoreError> {
        let mut set = redis::cmd("HSET");
        set.arg(&self.keys.gate).arg("run_id").arg("");
        self.route.call(&set).await.map(drop)
    }

    /// Whether the packets of a transfer have arrived here.
    pub async fn has_taken(&self, transfer: &Transfer) -> Result<bool, StoreError> {
        let mut cmd = redis::cmd("HEXISTS");
        cmd.arg(&self.keys.applied).arg(&transfer.id);
        Ok(self.route.call(&cmd).await? == Value::Int(1))
    }

    /// Puts wins back among the winners; returns how many were missing. A user who has a packet keeps it.
    pub async fn restore(&self, wins: &[(UserId, Packet)]) -> Result<u64, StoreError> {
        let mut restored = 0;
        for part in wins.chunks(RESTORE_MAX) {
            let mut args = vec![self.fingerprint.clone()];
            for (user, packet) in part {
                args.extend([user.to_string(), packet.to_string()]);
            }
            let keys = [self.keys.gate.as_str(), &self.keys.winners];
            match self.run_count(&script::RESTORE, &keys, &args).await? {
                -2 => return Err(self.foreign()),
                count => restored += count as u64,
            }
        }
        Ok(restored)
    }

    /// Replaces the pool, and makes the bucket one of the process that answers now, provided that nothing has changed since `looked_at`.
    /// `number` is another one for each try.
    pub async fn repair(
        &self,
        looked_at: &Standing,
        repaired: &Repaired,
        number: u64,
    ) -> Result<RepairAnswer, StoreError> {
        let k = &self.keys;
        let rebuilt = k.rebuilt(number);
        for part in repaired.pool.chunks(PUSH_MAX) {
            let mut push = redis::cmd("RPUSH");
            push.arg(&rebuilt).arg(part);
            self.route.call(&push).await?;
            let mut expire = redis::cmd("PEXPIRE");
            expire.arg(&rebuilt).arg(REBUILT_KEPT_MS);
            self.route.call(&expire).await?;
        }
        let keys = [
            k.gate.as_str(),
            &k.pool,
            &rebuilt,
            &k.applied,
            &k.outbox,
            &k.winners,
        ];
        crate::crash::script(script::REPAIR.verb, "before");
        let reply = self
            .route
            .run(&script::REPAIR, |peer| {
                let mut call = script::REPAIR.call(&keys);
                call.arg(&self.fingerprint).arg(&peer.run_id);
                call.arg(&looked_at.run_id).arg(&looked_at.epoch);
                call.arg(repaired.pool.len()).arg(repaired.chunks);
                call.arg(if repaired.over { "over" } else { "going" });
                call.arg(repaired.arrived.len());
                for transfer in &repaired.arrived {
                    call.arg(&transfer.id).arg(transfer.packets_text());
                }
                call.arg(&repaired.void);
                call
            })
            .await?;
        crate::crash::script(script::REPAIR.verb, "after");
        match text(&reply) {
            Some("ok") => Ok(RepairAnswer::Repaired),
            Some("changed") => Ok(RepairAnswer::Changed),
            Some("foreign") => Err(self.foreign()),
            _ => Err(script::REPAIR.misread(&reply)),
        }
    }
}
