//! What the admin API takes and answers. Answers may carry more fields than are read here.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::admin::caller::Role;
use crate::rain::split::Rule;
use crate::rain::{Cents, Durability, PacketId, RainId, State, UserId};

/// A rain as an operator asks for it. What is `None` is left to the server's defaults.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NewRain {
    pub title: String,
    pub room: String,
    pub sponsor: String,
    pub rule: Rule,
    pub total_cents: Cents,
    pub packets: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_cents: Option<Cents>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_cents: Option<Cents>,
    /// ms since 1970; without it an operator opens the rain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub opens_at_ms: Option<i64>,
    /// How long it stays open.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub durability: Option<Durability>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub buckets: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refund_after_ms: Option<i64>,
    /// Grabs must carry a key that clients are told when the rain opens.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub key_required: bool,
    /// How long before its opening the room is told; without it as soon as the rain is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub announce_ms: Option<i64>,
    /// The caller's own name for this request: the same key makes one rain. `None`: one is made up.
    #[serde(skip)]
    pub key: Option<String>,
}

/// Packets and money for a rain that exists. What is `None` is as it was when the rain was created.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NewTopUp {
    pub packets: u32,
    pub total_cents: Cents,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<Rule>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_cents: Option<Cents>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_cents: Option<Cents>,
    /// The caller's own name for this request: the same key tops up once.
    #[serde(skip)]
    pub key: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rain {
    pub id: RainId,
    pub state: State,
    #[serde(default)]
    pub title: String,
    #[serde(default)]
    pub room: String,
    /// With all top-ups.
    #[serde(default)]
    pub packets: Option<u32>,
    #[serde(default)]
    pub total_cents: Option<Cents>,
    /// How many of them are or have been in their pools.
    #[serde(default)]
    pub loaded_packets: Option<u32>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub top_ups: Vec<TopUp>,
    #[serde(default)]
    pub sold_out: bool,
    #[serde(default)]
    pub rule: Option<Rule>,
    #[serde(default)]
    pub opens_at_ms: Option<i64>,
    /// Unknown while the opening time is.
    #[serde(default)]
    pub closes_at_ms: Option<i64>,
    #[serde(default)]
    pub duration_ms: Option<u64>,
    #[serde(default)]
    pub buckets: Option<u32>,
    /// Only where one rain was asked for.
    #[serde(default)]
    pub live: Option<Live>,
}

/// What a rain was given after its creation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TopUp {
    /// Counted within the rain, from 1.
    pub number: u32,
    pub packets: u32,
    pub total_cents: Cents,
    pub rule: Rule,
    pub loaded: bool,
}

/// The answer to a top-up.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToppedUp {
    /// The number of this top-up among those of the rain.
    pub top_up: u32,
    #[serde(flatten)]
    pub rain: Rain,
}

/// Where the packets of a rain are at this moment. Counts of packets and claims.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Live {
    pub pool: u64,
    pub claims_waiting: u64,
    pub leased: u64,
    pub retrying: u64,
    pub dead: u64,
    pub credited_count: u64,
    pub credited_cents: Cents,
}

impl Live {
    /// Claims on their way to a credit. Dead ones wait for a person.
    pub fn claims_moving(&self) -> u64 {
        self.claims_waiting + self.leased + self.retrying
    }
}

/// What a repair found and did, see `hongbao::steward::repair`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Repair {
    pub buckets: Vec<usize>,
    pub wins_restored: u64,
    pub packets_removed: u64,
    pub packets_returned: u64,
    pub not_restored_total: u64,
    pub not_restored: Vec<NotRestored>,
}

/// A paid win that could not be put back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotRestored {
    pub user: UserId,
    pub packet_id: PacketId,
    pub reason: String,
}

/// The verdict on a rain.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Audit {
    pub rain_id: RainId,
    pub balanced: bool,
    /// Packets that are neither in a pool nor at their end: more than 0 only while the rain lives.
    #[serde(default)]
    pub in_motion: u64,
    pub funded_cents: Cents,
    #[serde(default)]
    pub pool_cents: Cents,
    #[serde(default)]
    pub claims_cents: Cents,
    pub credited_cents: Cents,
    pub credited_count: u64,
    pub refunded_cents: Cents,
    #[serde(default)]
    pub differences: Vec<Difference>,
}

/// One thing that is not as it must be.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Difference {
    pub kind: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packet_id: Option<PacketId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cents: Option<Cents>,
    #[serde(default)]
    pub detail: String,
}

/// A credited win.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Winner {
    pub packet_id: PacketId,
    pub user: UserId,
    pub cents: Cents,
    pub credited_at_ms: i64,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct WinnersPage {
    pub winners: Vec<Winner>,
    /// Where the next page starts; `None` on the last one.
    #[serde(default)]
    pub next_cursor: Option<String>,
}

/// A claim that waits for a person.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadLetter {
    pub packet_id: PacketId,
    pub rain_id: RainId,
    pub user: UserId,
    pub cents: Cents,
    pub at_ms: i64,
    pub attempts: u32,
    /// A kind, a colon, and the detail.
    pub reason: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadLettersPage {
    pub dead_letters: Vec<DeadLetter>,
    /// Where the next page starts; `None` on the last one.
    #[serde(default)]
    pub next_cursor: Option<String>,
    /// Texts among them that nobody can read.
    #[serde(default)]
    pub unreadable: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Discarded {
    pub packet_id: PacketId,
    pub cents: Cents,
    pub returned: bool,
    pub detail: String,
}

/// What a key may be asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NewKey {
    pub name: String,
    pub roles: Vec<Role>,
    /// ms since 1970; `None`: until it is revoked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at_ms: Option<i64>,
}

/// A key of the admin API, without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key {
    pub id: String,
    pub name: String,
    pub roles: Vec<Role>,
    /// Like `rains:write`; who may write may read.
    #[serde(default)]
    pub permissions: Vec<String>,
    /// active, expired, revoked, or fixed: the key `bootstrap`, which is the server's file
    pub state: String,
    pub generation: u32,
    pub created_at_ms: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at_ms: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_at_ms: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_used_at_ms: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old_secret_until_ms: Option<i64>,
}

/// A key with the text that its holder signs with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IssuedKey {
    #[serde(flatten)]
    pub key: Key,
    /// `<id>.<secret>`: told once.
    pub credential: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeysPage {
    pub keys: Vec<Key>,
    #[serde(default)]
    pub next_cursor: Option<String>,
}

/// A line of the log: who did what.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LogLine {
    pub id: i64,
    pub at_ms: i64,
    pub request_id: String,
    pub caller: String,
    pub caller_name: String,
    pub method: String,
    pub path: String,
    pub operation: String,
    pub target: String,
    /// 0 when nobody knows how it ended.
    pub status: u16,
    pub outcome: String,
    #[serde(default)]
    pub before: Option<Value>,
    #[serde(default)]
    pub after: Option<Value>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LogPage {
    pub log: Vec<LogLine>,
    #[serde(default)]
    pub next_cursor: Option<String>,
}

/// How claims flow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PipelineSeen {
    pub claims_waiting: u64,
    pub leased: u64,
    pub retrying: u64,
    pub dead: u64,
    pub oldest_seconds: f64,
    pub credits_per_second: f64,
    /// Those that are not over.
    pub rains: Vec<RainSeen>,
    /// Buckets in which nothing is given until they have been compared with the ledger.
    pub suspects: Vec<SuspectSeen>,
    /// Who did not answer: the numbers of these nodes are missing.
    pub problems: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RainSeen {
    pub rain_id: RainId,
    pub state: State,
    pub pool: u64,
    pub winners: u64,
    pub claims_waiting: u64,
    pub leased: u64,
    pub retrying: u64,
    pub dead: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SuspectSeen {
    pub rain_id: RainId,
    pub bucket: usize,
    pub node: String,
}

/// Ledger and nodes as a server sees them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodesSeen {
    pub draining: bool,
    /// Of the process that answered.
    pub roles: Vec<String>,
    pub ledger: LedgerSeen,
    pub nodes: Vec<NodeSeen>,
    pub slots_without_owner: usize,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LedgerSeen {
    pub up: bool,
    pub latency_seconds: f64,
    pub problem: Option<String>,
}

/// A node. What it says of itself is empty while it does not answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeSeen {
    pub name: String,
    pub up: bool,
    pub problem: Option<String>,
    pub slots: usize,
    #[serde(default)]
    pub version: String,
    #[serde(default)]
    pub latency_seconds: f64,
    #[serde(default)]
    pub memory_bytes: u64,
    /// 0: no limit but the machine's.
    #[serde(default)]
    pub memory_max_bytes: u64,
    #[serde(default)]
    pub appendfsync: String,
    #[serde(default)]
    pub replicas: u32,
    #[serde(default)]
    pub clients: u32,
    #[serde(default)]
    pub commands_per_second: u64,
    #[serde(default)]
    pub clock_ahead_ms: i64,
    /// What is not as it should be.
    pub checks: Vec<CheckSeen>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckSeen {
    pub what: String,
    pub found: String,
    pub verdict: String,
    pub advice: String,
}
