//! Every setting and limit, with its unit in its name, its default and its range.
//!
//! Settings come from a TOML file, then the environment (`HONGBAO_GATEWAY__LISTEN`), then flags (`--set gateway.listen=…`); the later
//! wins. Unknown keys and values out of range are collected and reported together, each with where it came from.

/// Ranges of addresses.
mod network;
/// Files, environment, flags: who said what, and what is wrong with it.
mod source;

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use axum::http::Uri;
use axum::http::uri::Authority;

use crate::rain::Durability;
pub use network::Network;
use source::Reader;
pub use source::{Fault, Faults, Sources};

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
    pub store: Store,
    pub gateway: Gateway,
    pub tokens: Tokens,
    pub risk: Option<Risk>,
    pub settle: Settle,
    pub ledger: Ledger,
    pub steward: Steward,
    pub admin: Admin,
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
    /// From the connection, or the end of its handshake.
    /// Of one user on this gateway; a new one closes the oldest.
    pub sessions_per_user: usize,
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
    /// How long to wait before looking for claims again when there were none.
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
    pub api_key_file: PathBuf,
    pub connections_max: usize,
    pub header_timeout: Duration,
    /// Bytes of a request's body.
    pub body_max: usize,
    /// How often the live numbers of a rain that somebody watches are taken.
    pub live_interval: Duration,
    /// Streams of live numbers at once. Each is a connection, and counts among `connections_max` too.
    pub live_streams_max: usize,
}

impl Settings {
    /// The effective settings, and a line `key = value (origin)` for each.
    pub fn read(sources: Sources) -> Result<(Settings, Vec<String>), Faults> {
        let mut reader = Reader::new(sources);
        let settings = Self::from_reader(&mut reader);
        reader.finish().map(|shown| (settings, shown))
    }

    fn from_reader(r: &mut Reader) -> Settings {
        let data_dir = PathBuf::from(r.text("server.data_dir", "hongbao-data"));
        let under = |dir: &Path, text: String| {
            if text.is_empty() {
                dir.to_owned()
            } else {
                dir.join(text)
            }
        };
        let roles = r.texts("server.roles", &["gateway", "settle", "steward", "admin"]);
        let mut known_roles = vec![];
        for role in &roles {
            match role.parse() {
                Ok(role) => known_roles.push(role),
                Err(problem) => r.fault("server.roles", format!("\"{role}\" {problem}")),
            }
        }
        if roles.is_empty() {
            r.fault("server.roles", "must name at least one role".into());
        }
        let inbox = Inbox {
            keep: r.ms(
                "settle.inbox_keep_ms",
                2_592_000_000,
                1_000..=31_536_000_000,
            ),
            messages_max: r.count("settle.inbox_messages_max", 100, 1..=500),
        };
        let mut settings = Settings {
            log: Log {
                level: r.parsed("log.level", Directives("info".into())).0,
                json: r.flag("log.json", false),
            },
            store: Self::store(r),
            gateway: Self::gateway(r),
            tokens: Tokens {
                secret_file: under(&data_dir, r.text("tokens.secret_file", "token-secret")),
                kid: r.text("tokens.kid", "default"),
                keys_file: Some(PathBuf::from(r.text("tokens.keys_file", "")))
                    .filter(|path| path != Path::new("")),
                leeway: r.ms("tokens.leeway_ms", 5_000, 0..=300_000),
            },
            risk: Self::risk(r),
            settle: Settle {
                workers: r.count("settle.workers", 2, 1..=64),
                lease: r.ms("settle.lease_ms", 30_000, 1_000..=3_600_000),
                batch_max: r.count("settle.batch_max", SETTLE_BATCH_MAX, 1..=SETTLE_BATCH_MAX),
                idle_wait: r.ms("settle.idle_wait_ms", 20, 1..=10_000),
                attempts_max: r.number("settle.attempts_max", 10, 1..=1_000) as u32,
                retry_base: r.ms("settle.retry_base_ms", 500, 1..=600_000),
                retry_max: r.ms("settle.retry_max_ms", 300_000, 1..=86_400_000),
                inbox,
            },
            ledger: Self::ledger(r, &known_roles),
            steward: Steward {
                interval: r.ms("steward.interval_ms", 50, 5..=10_000),
                repair_wait: r.ms("steward.repair_wait_ms", 500, 0..=600_000),
                progress_interval: r.ms("steward.progress_interval_ms", 200, 200..=3_600_000),
                refund_after: r.ms("steward.refund_after_ms", 86_400_000, 0..=31_536_000_000),
                keep_keys: r.ms("steward.keep_keys_ms", 604_800_000, 1_000..=31_536_000_000),
                durability: r.parsed("steward.durability", Durability::Memory),
                inbox,
                lease: LeaseTerms {
                    length: r.ms("steward.lease_ms", 5_000, 200..=3_600_000),
                    renew_interval: r.ms("steward.lease_renew_ms", 1_500, 10..=3_600_000),
                    margin: r.ms("steward.lease_margin_ms", 500, 10..=600_000),
                },
            },
            admin: Admin {
                listen: r.parsed("admin.listen", SocketAddr::from(([127, 0, 0, 1], 7701))),
                api_key_file: under(&data_dir, r.text("admin.api_key_file", "api-key")),
                connections_max: r.count("admin.connections_max", 256, 1..=65_536),
                header_timeout: r.ms("admin.header_timeout_ms", 5_000, 100..=60_000),
                body_max: r.count("admin.body_max_bytes", 256 * 1024, 1_024..=64 * 1024 * 1024),
                live_interval: r.ms("admin.live_interval_ms", 500, 50..=60_000),
                live_streams_max: r.count("admin.live_streams_max", 64, 1..=65_536),
            },
            roles: known_roles,
            data_dir,
        };
        if let Balance::Http(http) = &settings.ledger.balance {
            settings.steward.repair_wait = settings.steward.repair_wait.max(http.timeout);
        }
        settings.check(r);
        settings
    }

    fn store(r: &mut Reader) -> Store {
        #[derive(Clone, Copy)]
        enum Kind {
            Managed,
            Nodes,
            Sentinel,
            Cluster,
        }
        let kind = r.one_of(
            "store.topology",
            "managed",
            &[
                ("managed", Kind::Managed),
                ("nodes", Kind::Nodes),
                ("sentinel", Kind::Sentinel),
                ("cluster", Kind::Cluster),
            ],
        );
        let managed = r.count("store.managed_nodes", 3, 1..=64);
        let choices = [
            ("everysec", AppendFsync::EverySecond),
            ("always", AppendFsync::Always),
        ];
        let fsync = r.one_of("store.managed_appendfsync", "everysec", &choices);
        let urls = r.texts("store.nodes", &[]);
        let sentinels = r.texts("store.sentinels", &[]);
        if matches!(kind, Kind::Managed) == !urls.is_empty() {
            let problem = match kind {
                Kind::Managed => {
                    "is given, but store.topology is \"managed\": set it to \"nodes\", \"sentinel\" or \"cluster\""
                }
                Kind::Nodes => "must list at least one node, like [\"redis://127.0.0.1:6379\"]",
                Kind::Sentinel => {
                    "must list at least one primary by its name, like [\"redis://rain-a\"]"
                }
                Kind::Cluster => {
                    "must list at least one node of the cluster, like [\"redis://127.0.0.1:6379\"]"
                }
            };
            r.fault("store.nodes", problem.into());
        }
        if matches!(kind, Kind::Sentinel) == sentinels.is_empty() {
            let problem = if sentinels.is_empty() {
                "must list at least one sentinel, like [\"redis://127.0.0.1:26379\"]"
            } else {
                "is given, but store.topology is not \"sentinel\""
            };
            r.fault("store.sentinels", problem.into());
        }
        let file = |r: &mut Reader, key| {
            Some(PathBuf::from(r.text(key, ""))).filter(|path| path != Path::new(""))
        };
        let tls = NodeTls {
            ca_file: file(r, "store.tls_ca_file"),
            cert_file: file(r, "store.tls_cert_file"),
            key_file: file(r, "store.tls_key_file"),
        };
        if tls.cert_file.is_some() != tls.key_file.is_some() {
            let problem = "and store.tls_key_file are given together or not at all";
            r.fault("store.tls_cert_file", problem.into());
        }
        let topology = match kind {
            Kind::Managed => Topology::Managed {
                nodes: managed,
                fsync,
            },
            Kind::Nodes => Topology::Nodes { urls },
            Kind::Sentinel => Topology::Sentinel {
                sentinels,
                primaries: urls,
            },
            Kind::Cluster => Topology::Cluster { seeds: urls },
        };
        Store {
            topology,
            tls,
            connect_timeout: r.ms("store.connect_timeout_ms", 1_000, 10..=60_000),
            call_timeout: r.ms("store.call_timeout_ms", 1_000, 10..=60_000),
            probe_interval: r.ms("store.probe_interval_ms", 200, 10..=60_000),
        }
    }

    fn ledger(r: &mut Reader, roles: &[Role]) -> Ledger {
        let url = r.text("ledger.url", "");
        let create_user_accounts = r.flag("ledger.create_user_accounts", true);
        let http = r.one_of(
            "ledger.balance",
            "ledger",
            &[("ledger", false), ("http", true)],
        );
        let texts = [
            "ledger.balance_url",
            "ledger.balance_secret_file",
            "ledger.balance_ca_file",
        ];
        let [balance_url, secret_file, ca_file] = texts.map(|key| (key, r.text(key, "")));
        let timeout = r.ms("ledger.balance_timeout_ms", 5_000, 10..=600_000);
        let batch_max = r.count("ledger.balance_batch_max", 500, 1..=SETTLE_BATCH_MAX);
        let concurrency_max = r.count("ledger.balance_concurrency_max", 4, 1..=256);
        if !http {
            for (key, text) in [balance_url, secret_file, ca_file] {
                if !text.is_empty() {
                    let problem = "is given, but ledger.balance is \"ledger\": set it to \"http\"";
                    r.fault(key, problem.into());
                }
            }
            return Ledger {
                url,
                create_user_accounts,
                balance: Balance::Ledger,
            };
        }
        if !create_user_accounts {
            let problem = "must be true when ledger.balance is \"http\": the ledger could not record what was paid to a user it does not know";
            r.fault("ledger.create_user_accounts", problem.into());
        }
        let parsed = endpoint_url(&balance_url.1);
        match &parsed {
            Err(problem) => r.fault(balance_url.0, problem.clone()),
            Ok(url) if url.scheme_str() == Some("http") && !ca_file.1.is_empty() => {
                let problem = "is given, but ledger.balance_url is no https address";
                r.fault(ca_file.0, problem.into());
            }
            Ok(_) => {}
        }
        // Machines that do not settle need not have the secret.
        if roles.contains(&Role::Settle)
            && let Err(problem) = read_secret(Path::new(&secret_file.1))
        {
            r.fault(secret_file.0, problem);
        }
        Ledger {
            url,
            create_user_accounts,
            balance: Balance::Http(HttpBalance {
                url: parsed.unwrap_or_default(),
                secret_file: secret_file.1.into(),
                ca_file: Some(PathBuf::from(ca_file.1)).filter(|path| path != Path::new("")),
                timeout,
                batch_max,
                concurrency_max,
            }),
        }
    }

    fn risk(r: &mut Reader) -> Option<Risk> {
        let url = r.text("risk.url", "");
        let token_file = PathBuf::from(r.text("risk.token_file", ""));
        let risk = Risk {
            url: Uri::default(),
            token_file: Some(token_file).filter(|path| path != Path::new("")),
            timeout: r.ms("risk.timeout_ms", 500, 1..=60_000),
            fails_open: r.one_of("risk.fail", "open", &[("open", true), ("closed", false)]),
            batch_max: r.count("risk.batch_max", 500, 1..=10_000),
            concurrency_max: r.count("risk.concurrency_max", 8, 1..=256),
            queue_max: r.count("risk.queue_max", 65_536, 1..=1_048_576),
            memory_max: r.count("risk.memory_max", 1_000_000, 64..=100_000_000),
            pause: r.ms("risk.pause_ms", 1_000, 0..=600_000),
        };
        if url.is_empty() {
            return None;
        }
        match endpoint_url(&url) {
            Ok(url) => Some(Risk { url, ..risk }),
            Err(problem) => {
                r.fault("risk.url", problem);
                None
            }
        }
    }

    fn tls(r: &mut Reader) -> Option<Tls> {
        let files = ["gateway.tls_cert_file", "gateway.tls_key_file"];
        let [cert_file, key_file] = files.map(|key| r.text(key, ""));
        let reload_interval = r.ms("gateway.tls_reload_interval_ms", 10_000, 10..=86_400_000);
        for (key, given, other) in [
            (files[1], &key_file, &cert_file),
            (files[0], &cert_file, &key_file),
        ] {
            if given.is_empty() && !other.is_empty() {
                let problem = "is missing: TLS needs a certificate and its key";
                r.fault(key, problem.into());
            }
        }
        (!cert_file.is_empty()).then(|| Tls {
            cert_file: cert_file.into(),
            key_file: key_file.into(),
            reload_interval,
        })
    }

    fn networks(r: &mut Reader, key: &'static str) -> Vec<Network> {
        let mut networks = vec![];
        for text in r.texts(key, &[]) {
            match text.parse() {
                Ok(network) => networks.push(network),
                Err(problem) => r.fault(key, problem),
            }
        }
        networks
    }

    fn gateway(r: &mut Reader) -> Gateway {
        Gateway {
            // What one address can have by its ports alone: a limit that holds, and that nobody meets before it is set lower.
            connections_per_address_max: r.count(
                "gateway.connections_per_address_max",
                65_536,
                1..=10_000_000,
            ),
            connects_per_address_per_second: r.number(
                "gateway.connects_per_address_per_second",
                10_000,
                1..=1_000_000,
            ),
            accepts_per_second: r.number("gateway.accepts_per_second", 50_000, 1..=10_000_000),
            proxy_trusted: Self::networks(r, "gateway.proxy_trusted"),
            tls: Self::tls(r),
            handshake_timeout: r.ms("gateway.handshake_timeout_ms", 5_000, 10..=60_000),
            handshakes_max: r.count("gateway.handshakes_max", 2_048, 1..=65_536),
            frame_timeout: r.ms("gateway.frame_timeout_ms", 10_000, 10..=600_000),
            frames_per_second: r.number("gateway.frames_per_second", 1_000, 1..=10_000_000),
            edge_frames_per_second: r.number(
                "gateway.edge_frames_per_second",
                1_000_000,
                1..=10_000_000,
            ),
            user_frames_per_second: r.number(
                "gateway.user_frames_per_second",
                2_000,
                1..=10_000_000,
            ),
            drain_delay: r.ms("gateway.drain_delay_ms", 0, 0..=600_000),
            drain_spread: r.ms("gateway.drain_spread_ms", 2_000, 1..=3_600_000),
            listen: r.parsed("gateway.listen", SocketAddr::from(([127, 0, 0, 1], 7700))),
            workers: r.count("gateway.workers", 1, 1..=256),
            connections_max: r.count("gateway.connections_max", 1_000_000, 1..=10_000_000),
            sessions_per_user: r.count("gateway.sessions_per_user", 4, 1..=1_000),
            hello_timeout: r.ms("gateway.hello_timeout_ms", 5_000, 10..=60_000),
            idle_timeout: r.ms("gateway.idle_timeout_ms", 90_000, 100..=3_600_000),
            heartbeat_interval: r.ms("gateway.heartbeat_interval_ms", 30_000, 10..=3_600_000),
            in_flight_max: r.count("gateway.in_flight_max", 32, 1..=65_536),
            write_backlog_max: r.count(
                "gateway.write_backlog_max_bytes",
                64 * 1024,
                1_024..=16 * 1024 * 1024,
            ),
            edge_in_flight_max: r.count("gateway.edge_in_flight_max", 16_384, 1..=1_048_576),
            edge_write_backlog_max: r.count(
                "gateway.edge_write_backlog_max_bytes",
                4 * 1024 * 1024,
                1_024..=256 * 1024 * 1024,
            ),
            edge_awaited_max: r.count("gateway.edge_awaited_max", 262_144, 1..=16_777_216),
            lane_queue_max: r.count("gateway.lane_queue_max", 65_536, 1..=1_048_576),
            lanes_per_node: r.count("gateway.lanes_per_node", 1, 1..=16),
            empty_memory: r.ms("gateway.empty_memory_ms", 50, 1..=1_000),
            retry_after: r.ms("gateway.retry_after_ms", 300, 1..=60_000),
            progress_interval: r.ms("gateway.progress_interval_ms", 200, 200..=3_600_000),
            progress_per_second_max: r.count(
                "gateway.progress_per_second_max",
                20_000,
                0..=10_000_000,
            ),
            early_taps_max: r.number("gateway.early_taps_max", 10, 0..=1_000_000) as u32,
            early_window: r.ms("gateway.early_window_ms", 10_000, 1..=3_600_000),
            early_cool_down: r.ms("gateway.early_cool_down_ms", 3_000, 1..=600_000),
            keys_poll: r.ms("tokens.keys_poll_ms", 1_000, 10..=3_600_000),
            replicas_wait: r.ms("gateway.replicas_wait_ms", 500, 1..=60_000),
            drain_timeout: r.ms("gateway.drain_timeout_ms", 5_000, 0..=600_000),
        }
    }

    /// What holds between settings.
    fn check(&self, r: &mut Reader) {
        let managed = matches!(self.store.topology, Topology::Managed { .. });
        if managed && !Role::ALL.iter().all(|role| self.roles.contains(role)) {
            let problem = "needs all four roles in this process, since managed nodes are private to it; use \"nodes\"";
            r.fault("store.topology", problem.into());
        }
        if self.gateway.heartbeat_interval >= self.gateway.idle_timeout {
            let problem = format!(
                "{} ms must be shorter than gateway.idle_timeout_ms, {} ms",
                self.gateway.heartbeat_interval.as_millis(),
                self.gateway.idle_timeout.as_millis()
            );
            r.fault("gateway.heartbeat_interval_ms", problem);
        }
        if self.settle.lease < self.store.call_timeout * 5 {
            let problem = "must be at least five times store.call_timeout_ms, or live settlers lose their leases";
            r.fault("settle.lease_ms", problem.into());
        }
        let lease = &self.steward.lease;
        let needed = lease.renew_interval + self.store.call_timeout + lease.margin;
        if lease.length <= needed {
            let problem = format!(
                "must be more than steward.lease_renew_ms, store.call_timeout_ms and steward.lease_margin_ms together, {} ms, or one \
                 call that is not answered loses the lease",
                needed.as_millis()
            );
            r.fault("steward.lease_ms", problem);
        }
        if let Balance::Http(http) = &self.ledger.balance
            && http.timeout * 3 > self.settle.lease
        {
            let problem = "must be at most a third of settle.lease_ms: a settler that waits for an answer may not lose its lease";
            r.fault("ledger.balance_timeout_ms", problem.into());
        }
        if self.steward.durability == Durability::Fsync
            && let Topology::Managed {
                fsync: AppendFsync::EverySecond,
                ..
            } = self.store.topology
        {
            r.fault(
                "steward.durability",
                "\"fsync\" needs store.managed_appendfsync = \"always\"".into(),
            );
        }
    }

    /// The ledger's address: the default is a SQLite file in the data directory.
    pub fn ledger_url(&self) -> String {
        if self.ledger.url.is_empty() {
            return format!("sqlite:{}", self.data_dir.join("ledger.sqlite").display());
        }
        self.ledger.url.clone()
    }
}

fn endpoint_url(text: &str) -> Result<Uri, String> {
    let fault = || {
        format!(
            "{text:?} must be the address of the endpoint, like https://balance.example/hongbao, without user and password"
        )
    };
    let url: Uri = text.parse().map_err(|_| fault())?;
    let plain = |authority: &Authority| !authority.as_str().contains('@');
    match (url.scheme_str(), url.authority()) {
        (Some("http" | "https"), Some(authority)) if plain(authority) => Ok(url),
        _ => Err(fault()),
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
mod tests {
    use super::*;

    fn faults(sources: Sources) -> String {
        Settings::read(sources).unwrap_err().to_string()
    }

    #[test]
    fn the_defaults_are_valid() {
        let (settings, shown) = Settings::read(Sources::default()).unwrap();
        assert_eq!(settings.gateway.listen.port(), 7700);
        assert!(shown.contains(&"gateway.listen = 127.0.0.1:7700 (default)".to_owned()));
    }

    #[test]
    fn flags_win_over_the_environment_which_wins_over_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("hongbao.toml");
        std::fs::write(
            &file,
            "[gateway]\nworkers = 2\nin_flight_max = 3\nlane_queue_max = 4\n",
        )
        .unwrap();
        let environment = [
            ("HONGBAO_GATEWAY__IN_FLIGHT_MAX", "30"),
            ("HONGBAO_GATEWAY__LANE_QUEUE_MAX", "40"),
            ("HONGBAO_API_KEY", "x"),
        ];
        let environment = environment.map(|(name, text)| (name.to_owned(), text.to_owned()));
        let sources = Sources::default()
            .file(&file)
            .environment(environment.into_iter())
            .flags(["gateway.lane_queue_max=400", "admin.listen=127.0.0.1:0"]);
        let (settings, _) = Settings::read(sources).unwrap();
        let gateway = &settings.gateway;
        assert_eq!(
            (
                gateway.workers,
                gateway.in_flight_max,
                gateway.lane_queue_max
            ),
            (2, 30, 400)
        );
        assert_eq!(settings.admin.listen.port(), 0);
    }

    #[test]
    fn all_faults_are_reported_together_with_where_they_came_from() {
        let environment = [("HONGBAO_GATEWAY__WORKERS".to_owned(), "none".to_owned())];
        let text = faults(
            Sources::default()
                .environment(environment.into_iter())
                .flags([
                    "gateway.lissen=127.0.0.1:1",
                    "admin.listen=here",
                    "settle.batch_max=0",
                    "log.level=info,hongbao=loud",
                    "oops",
                ]),
        );
        assert!(text.starts_with("6 faults in the settings:"), "{text}");
        for part in [
            "gateway.workers (environment HONGBAO_GATEWAY__WORKERS): \"none\" is not a number from 1 to 256",
            "gateway.lissen (flag --set gateway.lissen=127.0.0.1:1): is not a setting; did you mean gateway.listen?",
            "admin.listen (flag --set admin.listen=here): \"here\" is not valid",
            "settle.batch_max (flag --set settle.batch_max=0): 0 is not a number from 1 to 2000",
            "oops (flag --set): must be KEY=VALUE",
        ] {
            assert!(text.contains(part), "{part}\nis not in\n{text}");
        }
    }

    #[test]
    fn settings_that_contradict_each_other_are_faults() {
        assert!(
            faults(Sources::default().flags(["store.topology=nodes"]))
                .contains("at least one node")
        );
        assert!(
            faults(Sources::default().flags(["server.roles=[\"gateway\"]"]))
                .contains("all four roles")
        );
        assert!(
            faults(Sources::default().flags(["steward.durability=fsync"]))
                .contains("managed_appendfsync")
        );
        assert!(
            faults(Sources::default().flags(["steward.lease_ms=3000"]))
                .contains("one call that is not answered loses the lease")
        );
        assert!(
            faults(Sources::default().flags(["server.roles=[\"cook\"]"]))
                .contains("\"cook\" is not one of")
        );
    }

    #[test]
    fn a_balance_system_needs_a_url_a_secret_and_a_time_out_within_the_lease() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            std::fs::write(dir.path().join(name), text).unwrap();
            format!(
                "ledger.balance_secret_file={}",
                dir.path().join(name).display()
            )
        };
        let (good, short) = (file("good", &"ab".repeat(32)), file("short", "abcd"));
        let url = "ledger.balance_url=https://balance.example/hongbao";
        let flags = ["ledger.balance=http", url, &good];
        let (settings, _) = Settings::read(Sources::default().flags(flags)).unwrap();
        let Balance::Http(http) = settings.ledger.balance else {
            panic!()
        };
        assert_eq!(http.url.host(), Some("balance.example"));
        assert_eq!(http.timeout, Duration::from_secs(5));

        for (change, fault) in [
            ("ledger.balance_url=", "must be the address of the endpoint"),
            ("ledger.balance_url=ftp://a/b", "\"ftp://a/b\" must be"),
            (
                "ledger.balance_url=http://anna:secret@host/",
                "without user and password",
            ),
            ("ledger.balance_secret_file=/nowhere", "No such file"),
            (&short, "it has 2 bytes, fewer than 32"),
            (
                "ledger.balance_timeout_ms=10001",
                "a third of settle.lease_ms",
            ),
            ("ledger.create_user_accounts=false", "must be true when"),
            ("ledger.balance=ledger", "set it to \"http\""),
        ] {
            let flags = flags.into_iter().chain([change]);
            let text = faults(Sources::default().flags(flags));
            assert!(text.contains(fault), "{change}: {text}");
        }
        // A gateway's machine has no secret.
        let gateway = [
            "server.roles=[\"gateway\"]",
            "store.topology=nodes",
            "store.nodes=[\"redis://a\"]",
        ];
        let flags = ["ledger.balance=http", url].into_iter().chain(gateway);
        assert!(Settings::read(Sources::default().flags(flags)).is_ok());
    }
}
