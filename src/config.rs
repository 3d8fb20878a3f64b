//! Every setting and limit. Names with units, defaults and ranges stand in [read].
//!
//! Settings come from a TOML file, then the environment (`HONGBAO_GATEWAY__LISTEN`), then flags (`--set gateway.listen=…`); the later
//! wins. Unknown keys and values out of range are collected and reported together, each with where it came from.

/// Ranges of addresses.
mod network;
/// Names, defaults, ranges, and what holds between settings.
mod read;
/// Files, environment, flags: who said what, and what is wrong with it.
mod source;
/// Whom to send traces to.
mod trace;

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use axum::http::Uri;

use crate::rain::{Cents, Durability};
pub use network::Network;
pub use source::{Fault, Faults, Sources};
pub use trace::Trace;

/// Users of one bucket that share one call of `grab.lua`. Two values a user reach `unpack`, which takes at most 1,000 at a time.
pub const GRAB_BATCH_MAX: usize = 256;
const _: () = assert!(GRAB_BATCH_MAX * 2 <= 1000);
/// Claims leased by one call, and so the most that one bucket adds to a settlement transaction. `lease.lua` unpacks two values a claim.
pub const LEASE_BATCH_MAX: usize = 500;
const _: () = assert!(LEASE_BATCH_MAX * 2 <= 1000);
/// Claims in one settlement transaction.
pub const SETTLE_BATCH_MAX: usize = 2_000;
/// Bytes of a secret, at least.
pub const SECRET_BYTES: usize = 32;
/// Buckets of one rain.
pub const BUCKETS_MAX: u32 = 256;

#[derive(Clone, Debug)]
pub struct Settings {
    pub data_dir: PathBuf,
    pub roles: Vec<Role>,
    pub log: Log,
    pub trace: Option<Trace>,
    pub store: Store,
    pub gateway: Gateway,
    pub tokens: Tokens,
    pub risk: Option<Risk>,
    pub settle: Settle,
    pub ledger: Ledger,
    pub steward: Steward,
    pub admin: Admin,
    pub webhooks: Webhooks,
}

/// What [`Log::level`] holds, checked.
struct Directives(String);

impl FromStr for Directives {
    type Err = String;
    fn from_str(text: &str) -> Result<Directives, String> {
        match tracing_subscriber::EnvFilter::try_new(text) {
            Ok(_) => Ok(Directives(text.to_owned())),
            Err(error) => Err(format!("{error}; write it like info,hongbao::settle=debug")),
        }
    }
}

impl fmt::Display for Directives {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Gateway,
    Settle,
    Steward,
    Admin,
}

impl Role {
    pub const ALL: [Role; 4] = [Role::Gateway, Role::Settle, Role::Steward, Role::Admin];
}

impl FromStr for Role {
    type Err = String;
    fn from_str(text: &str) -> Result<Role, String> {
        match text {
            "gateway" => Ok(Role::Gateway),
            "settle" => Ok(Role::Settle),
            "steward" => Ok(Role::Steward),
            "admin" => Ok(Role::Admin),
            _ => Err("is not one of gateway, settle, steward, admin".into()),
        }
    }
}

impl Role {
    pub fn as_str(self) -> &'static str {
        match self {
            Role::Gateway => "gateway",
            Role::Settle => "settle",
            Role::Steward => "steward",
            Role::Admin => "admin",
        }
    }
}

#[derive(Clone, Debug)]
pub struct Log {
    /// `tracing` directives, like `info` or `info,hongbao::settle=debug`.
    pub level: String,
    pub json: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Topology {
    /// Local `redis-server` children under the data directory.
    Managed { nodes: usize, fsync: AppendFsync },
    /// Independent servers, slots split evenly between them in the order of the list.
    Nodes { urls: Vec<String> },
    /// Primaries that sentinels watch, slots split evenly between them in the order of the list.
    Sentinel {
        sentinels: Vec<String>,
        /// URLs with the primary's name instead of a host.
        primaries: Vec<String>,
    },
    /// Redis Cluster, of which these nodes are asked first.
    Cluster { seeds: Vec<String> },
}

/// TLS to the nodes, for addresses that begin with `rediss://`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeTls {
    /// Who signs the nodes' certificates; else those whom this machine trusts.
    pub ca_file: Option<PathBuf>,
    /// Ours, for nodes that ask for one.
    pub cert_file: Option<PathBuf>,
    pub key_file: Option<PathBuf>,
}

/// What a managed node does with its append-only file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppendFsync {
    /// Once a second: up to a second of wins is lost when the machine loses power.
    EverySecond,
    /// Before a call is answered: what durability `fsync` needs.
    Always,
}

#[derive(Clone, Debug)]
pub struct Store {
    pub topology: Topology,
    pub tls: NodeTls,
    /// How long a node may take to accept a connection.
    pub connect_timeout: Duration,
    /// How long a node may take to answer. After that the result is unknown and the connection is given up: the bounded wait that a
    /// dead node costs its users.
    pub call_timeout: Duration,
    /// How often a node that is down is tried again.
    pub probe_interval: Duration,
}

#[derive(Clone, Debug)]
pub struct Gateway {
    pub listen: SocketAddr,
    /// Threads that serve sessions, each with its own runtime, sessions and lanes.
    pub workers: usize,
    /// Connections over all workers; worst case about 8 KiB each while they are busy.
    pub connections_max: usize,
    /// Connections from one IPv4 address or one /64 of IPv6. A carrier may have thousands of phones behind one address.
    pub connections_per_address_max: usize,
    /// New connections from one address; two seconds' worth at once. More are dropped without a word.
    pub connects_per_address_per_second: u64,
    /// New connections over all workers; two seconds' worth at once. More wait in the kernel's backlog, so that those who are connected get their share.
    pub accepts_per_second: u64,
    /// Load balancers that announce whom they forward by the PROXY protocol, version 2, and must.
    pub proxy_trusted: Vec<Network>,
    /// `None`: sessions are plain TCP.
    pub tls: Option<Tls>,
    /// For the PROXY header and the TLS handshake together.
    pub handshake_timeout: Duration,
    /// PROXY headers and TLS handshakes under way over all workers; about 20 KiB each. More connections are dropped without a word.
    pub handshakes_max: usize,
    /// TLS handshakes under way from one IPv4 address or one /64 of IPv6, over all workers: whoever begins and never ends them keeps nobody
    /// else out. More are dropped without a word. An eighth of all unless set; as many as all where everybody comes from one address.
    pub handshakes_per_address_max: usize,
    /// Of one user on this gateway; a new one closes the oldest.
    pub sessions_per_user: usize,
    /// From the connection, or the end of its handshake.
    pub hello_timeout: Duration,
    /// From the first byte of a frame to its last.
    pub frame_timeout: Duration,
    pub idle_timeout: Duration,
    /// Frames from one session; two seconds' worth at once. Another burst is refused, frame by frame; then the session is closed.
    pub frames_per_second: u64,
    /// Frames from one edge session, which speaks for many users; counted likewise.
    pub edge_frames_per_second: u64,
    /// Frames from one user, over all sessions of this gateway; counted likewise.
    pub user_frames_per_second: u64,
    pub heartbeat_interval: Duration,
    pub in_flight_max: usize,
    /// Bytes waiting to be written to one session before it is closed as a slow reader.
    pub write_backlog_max: usize,
    /// Requests in flight of one edge session; about 150 bytes each.
    pub edge_in_flight_max: usize,
    /// Like `write_backlog_max`, of an edge session: its answers come in bursts of a whole batch.
    pub edge_write_backlog_max: usize,
    /// Packets of one edge session whose credit is still to be pushed; about 30 bytes each.
    pub edge_awaited_max: usize,
    /// Grabs waiting for one node in one worker; more are answered `BUSY`. About 100 bytes each.
    pub lane_queue_max: usize,
    /// Batches on their way to one node from one worker.
    pub lanes_per_node: usize,
    /// How long a bucket that answered empty is taken to be empty without asking again.
    pub empty_memory: Duration,
    pub retry_after: Duration,
    /// Between two pushes of a rain's packets that are left.
    pub progress_interval: Duration,
    /// Such frames that one worker pushes in a second, on the whole: a push to a room of 100,000 is followed by a longer pause. 0: none.
    pub progress_per_second_max: usize,
    /// Taps before an opening that a user may make within `early_window` before cooling down.
    pub early_taps_max: u32,
    pub early_window: Duration,
    /// How long no grab of the user is let through, from the last early one.
    pub early_cool_down: Duration,
    /// How often the key set file is read again.
    pub keys_poll: Duration,
    /// How long a batch of grabs waits for the replicas of a rain with durability `replicas:n`.
    pub replicas_wait: Duration,
    /// From `/readyz` saying no to the end of accepting: for load balancers that ask now and then.
    pub drain_delay: Duration,
    /// Sessions that a drain sends away come back at instants spread over this time.
    pub drain_spread: Duration,
    /// How long a stop waits for grabs in flight and for clients to leave.
    pub drain_timeout: Duration,
}

/// Where the certificate stands. PEM: a chain with the gateway's own first, and its key.
#[derive(Clone, Debug)]
pub struct Tls {
    pub cert_file: PathBuf,
    pub key_file: PathBuf,
    /// How often the files are looked at.
    pub reload_interval: Duration,
}

#[derive(Clone, Debug)]
pub struct Tokens {
    /// HS256 secret as hex text; made at the first start.
    pub secret_file: PathBuf,
    /// The `kid` that names it.
    pub kid: String,
    /// A key set in its place: see `gateway/token/keys.rs`.
    pub keys_file: Option<PathBuf>,
    /// Clocks of login service and gateways may differ by this much.
    pub leeway: Duration,
}

/// An external service that is asked about users (`proto/risk.md`).
#[derive(Clone, Debug)]
pub struct Risk {
    pub url: Uri,
    /// What the service knows us by, sent as a bearer token.
    pub token_file: Option<PathBuf>,
    /// For one request.
    pub timeout: Duration,
    /// Whether users win when the service does not answer.
    pub fails_open: bool,
    /// Users in one request.
    pub batch_max: usize,
    /// Requests under way.
    pub concurrency_max: usize,
    /// Users who wait to be asked about; about 150 bytes each.
    pub queue_max: usize,
    /// Users and rains whose verdict is remembered; about 40 bytes each.
    pub memory_max: usize,
    /// How long nobody is asked about after a request that came to nothing.
    pub pause: Duration,
}

#[derive(Clone, Debug)]
pub struct Settle {
    pub workers: usize,
    pub lease: Duration,
    pub batch_max: usize,
    /// How long to wait before looking for claims again when there were none. Where nobody can win, the waits grow.
    pub idle_wait: Duration,
    /// A claim is given to a person after this many failed attempts, and after its settlers died this often.
    pub attempts_max: u32,
    pub retry_base: Duration,
    pub retry_max: Duration,
    pub inbox: Inbox,
}

/// How much the inbox of a user keeps.
#[derive(Clone, Copy, Debug)]
pub struct Inbox {
    /// How long a message stays there, and the inbox after its last message.
    pub keep: Duration,
    /// The oldest beyond it go. Measured: 190 bytes for an inbox with one, 30 for each more.
    pub messages_max: usize,
}

#[derive(Clone, Debug)]
pub struct Ledger {
    pub url: String,
    pub create_user_accounts: bool,
    pub balance: Balance,
}

/// Who pays a claim.
#[derive(Clone, Debug)]
pub enum Balance {
    /// The ledger itself.
    Ledger,
    /// A company's own system (`proto/balance.md`); the ledger records what it confirmed.
    Http(HttpBalance),
}

#[derive(Clone, Debug)]
pub struct HttpBalance {
    pub url: Uri,
    /// Of the signatures: at least [`SECRET_BYTES`] bytes as hex text. Never made by us, since the other side has to have it too.
    pub secret_file: PathBuf,
    /// PEM: who vouches for the endpoint, instead of whom this machine trusts.
    pub ca_file: Option<PathBuf>,
    /// For one request, from connecting to the last byte of the answer.
    pub timeout: Duration,
    /// Claims in one request: about 100 bytes each, and up to 1 KiB each of its answer.
    pub batch_max: usize,
    /// Requests of this process under way.
    pub concurrency_max: usize,
}

#[derive(Clone, Debug)]
pub struct Steward {
    pub interval: Duration,
    /// How long settlers have to record the credits of claims that a node may have forgotten, before its buckets are compared with the ledger. At
    /// least the time-out of the company's balance system, if there is one.
    pub repair_wait: Duration,
    /// How often the gateways are told how many packets are left.
    pub progress_interval: Duration,
    pub refund_after: Duration,
    /// How long the keys of a finished rain stay in Redis.
    pub keep_keys: Duration,
    pub durability: Durability,
    /// What a repair writes into inboxes again is kept as what settlers write.
    pub inbox: Inbox,
    /// Of the lease that the steward at work on a rain holds.
    pub lease: LeaseTerms,
}

/// How long a named lease lasts, and who must do what before it runs out.
#[derive(Clone, Copy, Debug)]
pub struct LeaseTerms {
    /// Unless it is renewed: what a successor waits after a crash.
    pub length: Duration,
    /// How often the holder renews it.
    pub renew_interval: Duration,
    /// A holder that could not renew is told this long before the lease runs out: time to stop, and room for clocks that run unevenly.
    pub margin: Duration,
}

#[derive(Clone, Debug)]
pub struct Admin {
    pub listen: SocketAddr,
    /// The secret of the key `bootstrap`, which may do everything: for whoever runs the server.
    pub api_key_file: PathBuf,
    /// What the secrets of all other keys follow from: the same on every machine with the role admin.
    pub key_secret_file: PathBuf,
    pub connections_max: usize,
    pub header_timeout: Duration,
    /// A connection that takes nothing of an answer for so long is ended.
    pub write_timeout: Duration,
    /// Bytes of a request's body. Each connection may hold one, of strangers too: at most 64 MiB with the defaults.
    pub body_max: usize,
    /// From the end of the headers to the last byte of the body.
    pub body_timeout: Duration,
    /// How often the live numbers of a rain that somebody watches are taken.
    pub live_interval: Duration,
    /// What moves money is asked for twice.
    pub confirm: bool,
    /// New rains up to this amount are not.
    pub confirm_above: Cents,
    /// How often it is looked whether a schedule's rain is to be created.
    pub schedule_interval: Duration,
    /// Streams of live numbers at once. Each is a connection, and counts among `connections_max` too.
    pub live_streams_max: usize,
    /// A session of the console in which nobody does anything ends after this.
    pub console_idle: Duration,
    /// The longest that a session of the console lasts.
    pub console_session: Duration,
    /// What the console puts before an amount, like "¥"; its hundredth part is a cent here.
    pub currency: String,
}

/// How events are delivered to other people's servers (`proto/webhooks.md`).
#[derive(Clone, Debug)]
pub struct Webhooks {
    /// How often a process with the role admin looks for something to send.
    pub interval: Duration,
    /// For one request, from connecting to the last byte of the answer.
    pub timeout: Duration,
    /// How long a delivery is held by the process that sends it: what a successor waits after a crash.
    pub hold: Duration,
    /// How long after each failed try until the next. After the last the delivery has failed.
    pub retries: [Duration; 3],
    /// How long what was delivered is kept. What has failed is kept for a person.
    pub keep: Duration,
    /// Requests of this process under way to one webhook. The answer of each takes up to 16 KiB.
    pub concurrency_max: usize,
    /// Whether http is spoken to other machines: whoever is on the way reads the events then.
    pub allow_http: bool,
    /// PEM: who vouches for the endpoints, instead of whom this machine trusts.
    pub ca_file: Option<PathBuf>,
}

impl Settings {
    /// The ledger's address: the default is a SQLite file in the data directory.
    pub fn ledger_url(&self) -> String {
        if self.ledger.url.is_empty() {
            return format!("sqlite:{}", self.data_dir.join("ledger.sqlite").display());
        }
        self.ledger.url.clone()
    }
}

/// A secret of at least [`SECRET_BYTES`] bytes, in a file as hex text.
pub fn read_secret(path: &Path) -> Result<Vec<u8>, String> {
    let fault = |problem| format!("{path:?} must be a file that holds a secret: {problem}");
    let text = std::fs::read_to_string(path).map_err(|error| fault(error.to_string()))?;
    let bytes = hex::decode(text.trim()).map_err(|_| fault("it is not hex text".into()))?;
    if bytes.len() < SECRET_BYTES {
        let held = bytes.len();
        return Err(fault(format!(
            "it has {held} bytes, fewer than {SECRET_BYTES}"
        )));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests;
