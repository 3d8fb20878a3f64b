//! One bucket of a rain: the verbs of the steward and of the settlers. Grabs go through `grab.rs`.

use redis::{Cmd, Value};

use super::keys::{BucketKeys, Tag};
use super::node::Peer;
use super::route::Route;
use super::{StoreError, script};
use crate::config::LEASE_BATCH_MAX;
use crate::rain::{Claim, Packet, UserId, Window};

/// A bucket and the way to it.
#[derive(Clone)]
pub struct Bucket {
    pub tag: Tag,
    pub keys: BucketKeys,
    pub route: Route,
    /// Of the rain's seed: what Redis holds for this tag must carry it too.
    pub fingerprint: String,
}

/// What `gate` found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateAnswer {
    Set,
    Closed,
    NotLoaded,
    /// Another process loaded it: some of it may be lost.
    Suspect,
    /// A newer version of the rain's record was there first.
    Stale,
}

/// What a bucket held when its gate was shut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shut {
    pub left: u64,
    pub winners: u64,
    pub chunks: u32,
    /// Another process loaded it, or it was not there: some of it may be lost. Who has no packet there is told `RETRY` until it is repaired.
    pub suspect: bool,
}

/// How many of each a bucket holds at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Census {
    pub pool: u64,
    pub winners: u64,
    pub claims_waiting: u64,
    pub leased: u64,
    pub retrying: u64,
    pub dead: u64,
}

impl Census {
    pub fn plus(self, other: Census) -> Census {
        Census {
            pool: self.pool + other.pool,
            winners: self.winners + other.winners,
            claims_waiting: self.claims_waiting + other.claims_waiting,
            leased: self.leased + other.leased,
            retrying: self.retrying + other.retrying,
            dead: self.dead + other.dead,
        }
    }

    /// Claims that settlers still have to work on.
    pub fn unsettled(&self) -> u64 {
        self.claims_waiting + self.leased + self.retrying
    }
}

/// Claims held for a limited time. The deadline is the token: verbs that need the lease take this, not a bare claim.
#[derive(Clone, Debug, Default)]
pub struct Lease {
    /// ms since 1970 by the node's clock.
    pub deadline_ms: i64,
    pub claims: Vec<LeasedClaim>,
    /// Whether the bucket had claims at all: these, those that others hold, those that are not due yet.
    pub under_way: bool,
    /// Claims that killed their settlers too often and went to the dead letters.
    pub buried: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeasedClaim {
    pub claim: Claim,
    /// Attempts before this one.
    pub attempts: u32,
}

/// A claim that waits for a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// Under which it lies: the packet id, or the whole claim if another claim of the packet was there first.
    pub field: String,
    pub claim: Claim,
    /// ms since 1970.
    pub at_ms: i64,
    pub attempts: u32,
    pub reason: String,
}

/// A number as an argument: an empty text lets the script ask the node's own clock.
pub(super) fn or_node_clock(now_ms: Option<i64>) -> String {
    now_ms.map(|ms| ms.to_string()).unwrap_or_default()
}

/// Reasons and errors are one line of bounded length wherever they are stored.
fn one_line(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(200)
        .collect()
}

impl Bucket {
    pub(super) async fn run(
        &self,
        script: &script::Script,
        keys: &[&str],
        args: &[String],
    ) -> Result<Value, StoreError> {
        let arguments = |call: &mut Cmd, _: &Peer| {
            for arg in args {
                call.arg(arg);
            }
        };
        self.run_with(script, keys, arguments).await
    }

    /// Runs a script with the arguments for the process that is asked.
    pub(super) async fn run_with(
        &self,
        script: &script::Script,
        keys: &[&str],
        arguments: impl Fn(&mut Cmd, &Peer),
    ) -> Result<Value, StoreError> {
        crate::crash::script(script.verb, "before");
        let reply = self
            .route
            .run(script, |peer| {
                let mut call = script.call(keys);
                arguments(&mut call, peer);
                call
            })
            .await;
        crate::crash::script(script.verb, "after");
        reply
    }

    pub(super) async fn run_count(
        &self,
        script: &script::Script,
        keys: &[&str],
        args: &[String],
    ) -> Result<i64, StoreError> {
        match self.run(script, keys, args).await? {
            Value::Int(count) => Ok(count),
            reply => Err(script.misread(&reply)),
        }
    }

    /// Appends chunk number `chunk`; returns how many chunks are loaded now, or `None` if the gate is closed.
    pub async fn load(&self, chunk: u32, packets: &[Packet]) -> Result<Option<u32>, StoreError> {
        self.append("load", chunk, packets).await
    }

    /// The same for a chunk of a rain that has been loaded: some of it may have been won, so a bucket that is not there, or was loaded by
    /// another process, is suspect.
    pub async fn top_up(&self, chunk: u32, packets: &[Packet]) -> Result<Option<u32>, StoreError> {
        self.append("top-up", chunk, packets).await
    }

    async fn append(
        &self,
        load: &str,
        chunk: u32,
        packets: &[Packet],
    ) -> Result<Option<u32>, StoreError> {
        let keys = [self.keys.gate.as_str(), &self.keys.pool];
        let arguments = |call: &mut Cmd, peer: &Peer| {
            call.arg(chunk).arg(&self.fingerprint).arg(&peer.run_id);
            call.arg(load);
            for packet in packets {
                call.arg(packet.to_string());
            }
        };
        match self.run_with(&script::LOAD, &keys, arguments).await? {
            Value::Int(-3) => Err(self.suspect()),
            Value::Int(-2) => Err(self.foreign()),
            Value::Int(-1) => Ok(None),
            Value::Int(loaded) => Ok(Some(loaded as u32)),
            reply => Err(script::LOAD.misread(&reply)),
        }
    }

    pub(super) fn suspect(&self) -> StoreError {
        StoreError::Suspect {
            node: self.route.name(),
            bucket: self.tag.to_string(),
        }
    }

    pub(super) fn foreign(&self) -> StoreError {
        StoreError::Foreign {
            node: self.route.name(),
            bucket: self.tag.to_string(),
        }
    }

    /// Chunks that are loaded, 0 for a bucket that is not there.
    pub async fn chunks_loaded(&self) -> Result<u32, StoreError> {
        let reply = self
            .route
            .call(redis::cmd("HGET").arg(&self.keys.gate).arg("chunks"))
            .await?;
        match text(&reply) {
            Some(chunks) => chunks.parse().map_err(|_| script::LOAD.misread(&reply)),
            None => Ok(0),
        }
    }

    /// Sets state and window of a bucket that has at least `chunks` chunks, as version `version` of the rain's record says.
    pub async fn set_gate(
        &self,
        chunks: u32,
        paused: bool,
        window: &Window,
        version: i64,
    ) -> Result<GateAnswer, StoreError> {
        let ms = |ms: Option<i64>| ms.map(|ms| ms.to_string()).unwrap_or_default();
        let state = if paused { "paused" } else { "ready" };
        let (opens, closes) = (ms(window.opens_at_ms), ms(window.closes_at_ms()));
        let arguments = |call: &mut Cmd, peer: &Peer| {
            call.arg(chunks).arg(state).arg(&opens).arg(&closes);
            call.arg(version).arg(&self.fingerprint).arg(&peer.run_id);
        };
        let keys = [self.keys.gate.as_str()];
        let reply = self.run_with(&script::GATE, &keys, arguments).await?;
        match text(&reply) {
            Some("ok") => Ok(GateAnswer::Set),
            Some("stale") => Ok(GateAnswer::Stale),
            Some("closed") => Ok(GateAnswer::Closed),
            Some("loading") => Ok(GateAnswer::NotLoaded),
            Some("suspect") => Ok(GateAnswer::Suspect),
            Some("foreign") => Err(self.foreign()),
            _ => Err(script::GATE.misread(&reply)),
        }
    }

    /// Shuts the gate for ever. A bucket that has been loaded has at least `chunks` chunks; of a rain that never was (`None`) nobody can have
    /// won: its bucket is not suspect, even if it is not there.
    pub async fn close(&self, chunks: Option<u32>) -> Result<Shut, StoreError> {
        let chunks = chunks.map(|count| count.to_string()).unwrap_or_default();
        let k = &self.keys;
        let keys = [k.gate.as_str(), &k.pool, &k.winners];
        let arguments = |call: &mut Cmd, peer: &Peer| {
            call.arg(&self.fingerprint).arg(&peer.run_id).arg(&chunks);
        };
        match self.run_with(&script::CLOSE, &keys, arguments).await? {
            Value::Array(items) => match items[..] {
                [
                    Value::Int(left),
                    Value::Int(winners),
                    Value::Int(chunks),
                    Value::Int(suspect),
                ] => Ok(Shut {
                    left: left as u64,
                    winners: winners as u64,
                    chunks: chunks as u32,
                    suspect: suspect == 1,
                }),
                _ => Err(self.foreign()),
            },
            reply => Err(script::CLOSE.misread(&reply)),
        }
    }

    /// Leases up to `most` claims (1 to [`LEASE_BATCH_MAX`]). `now_ms` is the node's clock unless a test says otherwise.
    pub async fn lease(
        &self,
        now_ms: Option<i64>,
        lease_ms: u64,
        most: usize,
        deaths_max: u32,
    ) -> Result<Lease, StoreError> {
        let k = &self.keys;
        let args = [
            or_node_clock(now_ms),
            lease_ms.to_string(),
            most.clamp(1, LEASE_BATCH_MAX).to_string(),
            deaths_max.to_string(),
        ];
        let reply = self
            .run(
                &script::LEASE,
                &[&k.claims, &k.leased, &k.retry, &k.attempts, &k.dead],
                &args,
            )
            .await?;
        let Value::Array(items) = &reply else {
            return Err(script::LEASE.misread(&reply));
        };
        let lease = parse_lease(items).ok_or_else(|| script::LEASE.misread(&reply))?;
        if !lease.claims.is_empty() {
            crate::crash::point("lease.after");
        }
        Ok(lease)
    }

    /// Removes claims whose credit has committed.
    pub async fn ack(&self, claims: &[Claim]) -> Result<u64, StoreError> {
        let k = &self.keys;
        let mut removed = 0;
        for part in claims.chunks(LEASE_BATCH_MAX) {
            let args: Vec<String> = part.iter().map(Claim::to_string).collect();
            removed += self
                .run_count(
                    &script::ACK,
                    &[&k.leased, &k.retry, &k.attempts, &k.dead],
                    &args,
                )
                .await?;
        }
        Ok(removed as u64)
    }

    /// Puts claims of a lease into the delay queue, each with how long it waits there (ms) and the error. `attempted` is false when the
    /// balance system was away: then no attempt is counted. Returns how many were still the lease's.
    pub async fn retry(
        &self,
        deadline_ms: i64,
        attempted: bool,
        now_ms: Option<i64>,
        claims: &[(Claim, u64, String)],
    ) -> Result<u64, StoreError> {
        let k = &self.keys;
        let mut moved = 0;
        for part in claims.chunks(300) {
            let mut args = vec![
                deadline_ms.to_string(),
                u8::from(attempted).to_string(),
                or_node_clock(now_ms),
            ];
            for (claim, wait_ms, error) in part {
                args.extend([claim.to_string(), wait_ms.to_string(), one_line(error)]);
            }
            moved += self
                .run_count(&script::RETRY, &[&k.leased, &k.retry, &k.attempts], &args)
                .await?;
        }
        Ok(moved as u64)
    }

    /// Moves claims of a lease to the dead letters, each with its reason. Returns how many were still the lease's.
    pub async fn bury(
        &self,
        deadline_ms: i64,
        now_ms: Option<i64>,
        claims: &[(Claim, String)],
    ) -> Result<u64, StoreError> {
        let k = &self.keys;
        let mut buried = 0;
        for part in claims.chunks(LEASE_BATCH_MAX) {
            let mut args = vec![deadline_ms.to_string(), or_node_clock(now_ms)];
            for (claim, reason) in part {
                args.extend([claim.to_string(), one_line(reason)]);
            }
            buried += self
                .run_count(&script::BURY, &[&k.leased, &k.attempts, &k.dead], &args)
                .await?;
        }
        Ok(buried as u64)
    }

    pub async fn census(&self) -> Result<Census, StoreError> {
        let k = &self.keys;
        let (pool, winners, claims_waiting, leased, retrying, dead) = futures_util::try_join!(
            self.count("LLEN", &k.pool),
            self.count("HLEN", &k.winners),
            self.count("LLEN", &k.claims),
            self.count("ZCARD", &k.leased),
            self.count("ZCARD", &k.retry),
            self.count("HLEN", &k.dead),
        )?;
        Ok(Census {
            pool,
            winners,
            claims_waiting,
            leased,
            retrying,
            dead,
        })
    }

    /// The census of a bucket in which nobody has won yet; `None` where somebody has. It costs two commands: many rains wait to be opened, and are
    /// counted every second.
    pub async fn untouched(&self) -> Result<Option<Census>, StoreError> {
        let k = &self.keys;
        let touched = [&k.winners, &k.claims, &k.leased, &k.retry, &k.dead];
        if self.count("EXISTS", &touched).await? > 0 {
            return Ok(None);
        }
        let pool = self.count("LLEN", &k.pool).await?;
        Ok(Some(Census {
            pool,
            ..Census::default()
        }))
    }

    async fn count(
        &self,
        verb: &'static str,
        keys: impl redis::ToRedisArgs,
    ) -> Result<u64, StoreError> {
        let mut cmd = redis::cmd(verb);
        cmd.arg(keys);
        match self.route.call(&cmd).await? {
            Value::Int(count) => Ok(count as u64),
            reply => Err(StoreError::Reply {
                verb,
                reply: format!("{reply:?}"),
            }),
        }
    }

    /// The claim that has waited longest, the one whose lease is over first, the one that is due first: as texts, those there are.
    pub async fn oldest_claims(&self) -> Result<Vec<String>, StoreError> {
        let mut oldest = vec![];
        let mut waiting = redis::cmd("LINDEX");
        waiting.arg(&self.keys.claims).arg(-1);
        oldest.extend(text(&self.route.call(&waiting).await?).map(str::to_owned));
        for key in [&self.keys.leased, &self.keys.retry] {
            let mut first = redis::cmd("ZRANGE");
            first.arg(key).arg(0).arg(0);
            if let Value::Array(items) = self.route.call(&first).await? {
                oldest.extend(items.first().and_then(text).map(str::to_owned));
            }
        }
        Ok(oldest)
    }

    /// Packets of the pool from `start`, at most `most`: an element that cannot be read is returned as its text.
    pub async fn pool_page(
        &self,
        start: u64,
        most: u64,
    ) -> Result<Vec<Result<Packet, String>>, StoreError> {
        let mut cmd = redis::cmd("LRANGE");
        cmd.arg(&self.keys.pool).arg(start).arg(start + most - 1);
        parsed_items(&self.route.call(&cmd).await?)
    }

    /// Claims waiting, from `start` (0 is the newest), at most `most`.
    pub async fn claims_page(
        &self,
        start: u64,
        most: u64,
    ) -> Result<Vec<Result<Claim, String>>, StoreError> {
        let mut cmd = redis::cmd("LRANGE");
        cmd.arg(&self.keys.claims).arg(start).arg(start + most - 1);
        parsed_items(&self.route.call(&cmd).await?)
    }

    /// Claims leased or in the delay queue, by rank, at most `most`.
    pub async fn held_page(
        &self,
        leased: bool,
        start: u64,
        most: u64,
    ) -> Result<Vec<Result<Claim, String>>, StoreError> {
        let mut cmd = redis::cmd("ZRANGE");
        cmd.arg(if leased {
            &self.keys.leased
        } else {
            &self.keys.retry
        })
        .arg(start)
        .arg(start + most - 1);
        parsed_items(&self.route.call(&cmd).await?)
    }

    /// One step of a walk over the winners; start with cursor 0, end when it is 0 again. May repeat a winner. What cannot be read is
    /// returned as its text.
    pub async fn winners_scan(
        &self,
        cursor: u64,
    ) -> Result<(u64, Vec<Result<(UserId, Packet), String>>), StoreError> {
        let (cursor, fields) = self.hscan(&self.keys.winners, cursor).await?;
        let winner = |(user, packet): &(String, String)| {
            let parsed = UserId::new(user).ok().zip(packet.parse().ok());
            parsed.ok_or_else(|| format!("{user} {packet}"))
        };
        Ok((cursor, fields.iter().map(winner).collect()))
    }

    /// One step of a walk over the dead letters, like [`Bucket::winners_scan`].
    pub async fn dead_scan(
        &self,
        cursor: u64,
    ) -> Result<(u64, Vec<Result<DeadLetter, String>>), StoreError> {
        let (cursor, fields) = self.hscan(&self.keys.dead, cursor).await?;
        let letter = |(field, letter): &(String, String)| {
            parse_letter(field, letter).ok_or_else(|| letter.clone())
        };
        Ok((cursor, fields.iter().map(letter).collect()))
    }

    pub(super) async fn hscan(
        &self,
        key: &str,
        cursor: u64,
    ) -> Result<(u64, Vec<(String, String)>), StoreError> {
        let mut cmd = redis::cmd("HSCAN");
        cmd.arg(key).arg(cursor).arg("COUNT").arg(1_000);
        let reply = self.route.call(&cmd).await?;
        redis::from_redis_value(reply).map_err(|error| StoreError::Reply {
            verb: "HSCAN",
            reply: error.to_string(),
        })
    }

    /// One batch of grabs, as a gateway makes it: up to [`crate::config::GRAB_BATCH_MAX`] users.
    pub async fn grab<'u>(
        &self,
        users: impl Iterator<Item = &'u str> + Clone,
    ) -> Result<Value, StoreError> {
        let nobody = std::iter::empty;
        let call = |peer: &Peer| {
            super::grab::call(&self.keys, &peer.run_id, false, users.clone(), nobody())
        };
        self.route.run(&script::GRAB, call).await
    }

    /// Lets every key of the bucket expire.
    pub async fn expire(&self, after_ms: u64) -> Result<(), StoreError> {
        for key in self.keys.all() {
            self.route
                .call(redis::cmd("PEXPIRE").arg(key).arg(after_ms))
                .await?;
        }
        Ok(())
    }
}

/// A reply that is text.
pub(super) fn text(reply: &Value) -> Option<&str> {
    match reply {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

fn parse_lease(items: &[Value]) -> Option<Lease> {
    let [
        deadline,
        Value::Int(buried),
        Value::Int(under_way),
        claims @ ..,
    ] = items
    else {
        return None;
    };
    let mut lease = Lease {
        deadline_ms: text(deadline)?.parse().ok()?,
        claims: vec![],
        under_way: *under_way == 1,
        buried: *buried as u64,
    };
    for pair in claims.chunks(2) {
        let [claim, Value::Int(attempts)] = pair else {
            return None;
        };
        match text(claim).unwrap_or_default().parse() {
            Ok(claim) => lease.claims.push(LeasedClaim {
                claim,
                attempts: *attempts as u32,
            }),
            // Left to its lease: when that has run out, lease.lua buries it.
            Err(error) => tracing::error!(%error, "a claim cannot be read"),
        }
    }
    Some(lease)
}

pub(super) fn parse_letter(field: &str, letter: &str) -> Option<DeadLetter> {
    let mut parts = letter.splitn(4, '\t');
    Some(DeadLetter {
        field: field.to_owned(),
        at_ms: parts.next()?.parse().ok()?,
        attempts: parts.next()?.parse().ok()?,
        claim: parts.next()?.parse().ok()?,
        reason: parts.next()?.to_owned(),
    })
}

fn parsed_items<T: std::str::FromStr>(reply: &Value) -> Result<Vec<Result<T, String>>, StoreError> {
    let Value::Array(items) = reply else {
        return Err(StoreError::Reply {
            verb: "LRANGE",
            reply: format!("{reply:?}"),
        });
    };
    let parse = |item: &Value| {
        let text = text(item).unwrap_or("(not text)");
        text.parse().map_err(|_| text.to_owned())
    };
    Ok(items.iter().map(parse).collect())
}
