//! What a node must be before it is used: one that may evict keys or forgets everything at a restart would lose money silently.

use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisError, Value};

use super::StoreError;
use super::bucket::text;
use super::link::Link;
use super::node::{Peer, Reach, short_run_id};
use crate::clock::now_ms;
use crate::rain::Durability;

/// With "yes" a node does not flush its file while it rewrites it or writes a snapshot, whatever appendfsync says.
const ON_REWRITE: &str = "no-appendfsync-on-rewrite";
const VERSION_MIN: (u32, u32) = (7, 0);
/// How far the clocks of two nodes, or a node's and ours, may be apart: gates open and close by them.
pub const CLOCKS_APART_MAX_MS: i64 = 200;

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Check {
    pub what: &'static str,
    pub found: String,
    pub verdict: Verdict,
    /// What is wrong and what to do; empty when all is well.
    pub advice: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Ok,
    /// Works, for now or for less.
    Warning,
    /// No start with this; a node that is at work already is not given up for it, since what it holds must be settled.
    NoStart,
    /// The node is not used.
    Refused,
}

/// What a node says of itself.
#[derive(Clone, Debug, Default)]
pub struct Exam {
    pub version: String,
    pub run_id: String,
    pub policy: String,
    pub append_only: String,
    pub fsync: String,
    /// `no-appendfsync-on-rewrite`.
    pub on_rewrite: String,
    pub role: String,
    pub used_memory: u64,
    pub max_memory: u64,
    pub aof_write_status: String,
    /// Whether it can be asked to wait for its replicas' disks: it flushes its own before it answers, and so will they, and it knows WAITAOF
    /// (7.2) and lets us use it. Where files are flushed once a second, every grab would wait for that.
    pub waitaof: bool,
    pub replicas: u32,
    /// Replicas without which the node refuses writes (`min-replicas-to-write`).
    pub replicas_wanted: u32,
    pub clock_ahead_ms: i64,
    /// How long one command took, there and back.
    pub round_trip: Duration,
    pub clients: u32,
    pub commands_per_second: u64,
}

/// Asks in one round trip.
pub async fn examine(connection: &mut MultiplexedConnection) -> Result<Exam, RedisError> {
    let names = [
        "maxmemory-policy",
        "appendonly",
        "appendfsync",
        "min-replicas-to-write",
        ON_REWRITE,
    ];
    let mut ask = async |cmd: &mut Cmd| connection.send_packed_command(cmd).await?.extract_error();
    let info = ask(&mut redis::cmd("INFO")).await?;
    let settings = ask(redis::cmd("CONFIG").arg("GET").arg(&names)).await?;
    let role = ask(&mut redis::cmd("ROLE")).await?;
    let waitaof = config(&settings, names[2]) == Some("always")
        && ask(redis::cmd("WAITAOF").arg(&[0, 0, 0])).await.is_ok();
    let (before, asked) = (now_ms(), Instant::now());
    let time = ask(&mut redis::cmd("TIME")).await?;
    // In the middle of the round trip, give or take half of it: only what is certain counts.
    let round_trip = asked.elapsed();
    let doubt = round_trip.as_millis() as i64 / 2;
    let ahead = super::clock_ms(&time).map_or(0, |theirs| theirs - before - doubt);
    let clock_ahead_ms = (ahead.abs() - doubt).max(0) * ahead.signum();
    let role = match &role {
        Value::Array(items) => items.first().and_then(text),
        _ => None,
    };
    let setting = |name| config(&settings, name).unwrap_or("unknown").to_owned();
    let field = |name| info_field(&info, name).unwrap_or("unknown").to_owned();
    let number = |name| info_field(&info, name).and_then(|text| text.parse().ok());
    Ok(Exam {
        version: field("redis_version"),
        run_id: field("run_id"),
        policy: setting(names[0]),
        append_only: setting(names[1]),
        fsync: setting(names[2]),
        on_rewrite: setting(names[4]),
        role: role.unwrap_or("unknown").to_owned(),
        used_memory: number("used_memory").unwrap_or_default(),
        max_memory: number("maxmemory").unwrap_or_default(),
        aof_write_status: field("aof_last_write_status"),
        waitaof,
        replicas: number("connected_slaves").unwrap_or_default() as u32,
        replicas_wanted: setting(names[3]).parse().unwrap_or_default(),
        clock_ahead_ms,
        round_trip,
        clients: number("connected_clients").unwrap_or_default() as u32,
        commands_per_second: number("instantaneous_ops_per_sec").unwrap_or_default(),
    })
}

/// Whether the node's file is on disk before it answers, and how many replicas it has, as it says now.
pub async fn durability(link: &Link) -> Result<(bool, u32), StoreError> {
    let connection = link.connect().await?;
    let names = ["appendfsync", ON_REWRITE];
    let settings = link
        .call_on(&connection, redis::cmd("CONFIG").arg("GET").arg(&names))
        .await?;
    let info = link
        .call_on(&connection, redis::cmd("INFO").arg("replication"))
        .await?;
    let fsync =
        config(&settings, names[0]) == Some("always") && config(&settings, names[1]) != Some("yes");
    if fsync != connection.peer.fsync {
        // Lanes go by what they found when they connected: this one finds out anew, and a rain that needs it is paused meanwhile.
        link.drop_connection(&connection, "appendfsync has changed");
    }
    let replicas = info_field(&info, "connected_slaves").and_then(|count| count.parse().ok());
    Ok((fsync, replicas.unwrap_or_default()))
}

impl Exam {
    /// Every check, in the order in which a person would read them.
    pub fn checks(&self, needs: Durability) -> Vec<Check> {
        let mut checks = vec![];
        let mut check = |what, found: String, bad: Option<(Verdict, String)>| {
            let (verdict, advice) = bad.unwrap_or((Verdict::Ok, String::new()));
            checks.push(Check {
                what,
                found,
                verdict,
                advice,
            });
        };
        let refused = |wrong: bool, advice: String| wrong.then_some((Verdict::Refused, advice));
        let no_start = |wrong: bool, advice: String| wrong.then_some((Verdict::NoStart, advice));
        let Exam {
            version,
            policy,
            append_only,
            fsync,
            role,
            ..
        } = self;
        let known = parse_version(version);
        check(
            "version",
            version.clone(),
            refused(
                known.is_none_or(|version| version < VERSION_MIN),
                format!("its version is {version}, 7.0 or later is needed"),
            ),
        );
        check(
            "role",
            role.clone(),
            refused(
                role != "master",
                "it is a replica, not a primary: name its primary".into(),
            ),
        );
        check(
            "maxmemory-policy",
            policy.clone(),
            refused(
                policy != "noeviction",
                format!(
                    "maxmemory-policy is \"{policy}\", which may evict packets: set it to noeviction"
                ),
            ),
        );
        check(
            "appendonly",
            append_only.clone(),
            refused(
                append_only != "yes",
                format!(
                    "appendonly is \"{append_only}\", wins would not survive a restart: set it to yes"
                ),
            ),
        );
        check(
            "appendfsync",
            fsync.clone(),
            refused(
                fsync == "no",
                "appendfsync is \"no\", which leaves wins to chance: set it to everysec or always"
                    .into(),
            )
            .or_else(|| {
                refused(
                    fsync != "always" && needs == Durability::Fsync,
                    format!(
                        "appendfsync is \"{fsync}\", too weak for durability fsync: set it to always"
                    ),
                )
            }),
        );
        check(
            "no-appendfsync-on-rewrite",
            self.on_rewrite.clone(),
            refused(
                self.on_rewrite == "yes" && needs == Durability::Fsync,
                "no-appendfsync-on-rewrite is \"yes\", so wins would not be on disk during a rewrite: set it to no"
                    .into(),
            ),
        );
        check(
            "append-only file",
            self.aof_write_status.clone(),
            no_start(
                self.aof_write_status == "err",
                "its append-only file could not be written: look at its disk".into(),
            ),
        );
        let full = self.max_memory > 0 && self.used_memory >= self.max_memory;
        check(
            "memory",
            match self.max_memory {
                0 => format!("{} MiB, no limit", self.used_memory >> 20),
                max => format!("{} of {} MiB", self.used_memory >> 20, max >> 20),
            },
            no_start(
                full,
                format!(
                    "it is out of memory ({} of {} bytes): raise maxmemory",
                    self.used_memory, self.max_memory
                ),
            ),
        );
        let replicas = self.replicas;
        let needed = match needs {
            Durability::Replicas(needed) => u32::from(needed),
            Durability::Memory | Durability::Fsync => 0,
        };
        check(
            "replicas",
            replicas.to_string(),
            no_start(
                replicas < needed,
                format!("it has {replicas} replicas, durability replicas:{needed} needs {needed}: add replicas"),
            )
            .or_else(|| {
                no_start(
                    replicas < self.replicas_wanted,
                    format!(
                        "it is read-only: it has {replicas} replicas and min-replicas-to-write is {}",
                        self.replicas_wanted
                    ),
                )
            }),
        );
        let ahead = self.clock_ahead_ms;
        check(
            "clock",
            format!("{ahead:+} ms"),
            refused(
                ahead.abs() > CLOCKS_APART_MAX_MS,
                format!(
                    "its clock is {} ms {} this machine's, more than {CLOCKS_APART_MAX_MS}: synchronise the clocks (chrony, ntpd)",
                    ahead.abs(),
                    if ahead > 0 { "ahead of" } else { "behind" }
                ),
            ),
        );
        checks
    }

    /// Refuses a node with every reason at once.
    pub fn admit(&self, name: &str, reach: &Reach) -> Result<Peer, StoreError> {
        if reach.roles_change && self.role != "master" {
            return Err(StoreError::Down {
                node: name.to_owned(),
                cause: "it is a replica now".into(),
            });
        }
        problems(name, self.checks(reach.needs), Verdict::Refused)?;
        Ok(Peer {
            run_id: short_run_id(&self.run_id),
            fsync: self.fsync == "always" && self.on_rewrite != "yes",
            waitaof: self.waitaof,
            clock_ahead_ms: self.clock_ahead_ms,
        })
    }
}

/// An error that names all checks with a verdict of at least `worst`.
pub fn problems(name: &str, checks: Vec<Check>, worst: Verdict) -> Result<(), StoreError> {
    let bad = |check: &Check| match worst {
        Verdict::NoStart => matches!(check.verdict, Verdict::NoStart | Verdict::Refused),
        _ => check.verdict == worst,
    };
    let problems: Vec<String> = checks
        .into_iter()
        .filter(bad)
        .map(|check| check.advice)
        .collect();
    if problems.is_empty() {
        return Ok(());
    }
    Err(StoreError::Unfit {
        node: name.to_owned(),
        problems,
    })
}

/// RESP3 answers with a map, RESP2 with a flat list.
fn config<'a>(reply: &'a Value, name: &str) -> Option<&'a str> {
    match reply {
        Value::Map(pairs) => pairs
            .iter()
            .find(|(key, _)| text(key) == Some(name))
            .and_then(|(_, value)| text(value)),
        Value::Array(items) => items
            .chunks(2)
            .find(|pair| text(&pair[0]) == Some(name))
            .and_then(|pair| text(pair.get(1)?)),
        _ => None,
    }
}

fn info_field<'a>(info: &'a Value, name: &str) -> Option<&'a str> {
    let text = match info {
        Value::VerbatimString { text, .. } => text,
        other => text(other)?,
    };
    text.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
}

fn parse_version(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}
