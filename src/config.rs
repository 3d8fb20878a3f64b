//! Every setting and limit, with its unit in its name, its default and its range.
//!
//! Settings come from a TOML file, then the environment (`HONGBAO_GATEWAY__LISTEN`), then flags (`--set gateway.listen=…`); the later
//! wins. Unknown keys and values out of range are collected and reported together, each with where it came from.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use crate::rain::Durability;

/// Users of one bucket that share one call of `grab.lua`. Two values a user reach `unpack`, which takes at most 1,000 at a time.
pub const GRAB_BATCH_MAX: usize = 256;
const _: () = assert!(GRAB_BATCH_MAX * 2 <= 1000);
/// Claims leased by one call, and so the most that one bucket adds to a settlement transaction. `lease.lua` unpacks two values a claim.
pub const LEASE_BATCH_MAX: usize = 500;
const _: () = assert!(LEASE_BATCH_MAX * 2 <= 1000);
/// Claims in one settlement transaction.
pub const SETTLE_BATCH_MAX: usize = 2_000;
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
    pub settle: Settle,
    pub ledger: Ledger,
    pub steward: Steward,
    pub admin: Admin,
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
    /// Sessions over all workers; worst case about 8 KiB each while they are busy.
    pub connections_max: usize,
    pub hello_timeout: Duration,
    pub idle_timeout: Duration,
    pub heartbeat_interval: Duration,
    pub in_flight_max: usize,
    /// Bytes waiting to be written to one session before it is closed as a slow reader.
    pub write_backlog_max: usize,
    /// Grabs waiting for one node in one worker; more are answered `BUSY`. About 100 bytes each.
    pub lane_queue_max: usize,
    /// Batches on their way to one node from one worker.
    pub lanes_per_node: usize,
    /// How long a bucket that answered empty is taken to be empty without asking again.
    pub empty_memory: Duration,
    pub retry_after: Duration,
    /// How long a stop waits for grabs in flight.
    pub drain_timeout: Duration,
}

#[derive(Clone, Debug)]
pub struct Tokens {
    /// HS256 secret as hex text; made at the first start.
    pub secret_file: PathBuf,
    /// The `kid` that names it.
    pub kid: String,
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
}

#[derive(Clone, Debug)]
pub struct Ledger {
    pub url: String,
    pub create_user_accounts: bool,
}

#[derive(Clone, Debug)]
pub struct Steward {
    pub interval: Duration,
    pub refund_after: Duration,
    /// How long the keys of a finished rain stay in Redis.
    pub keep_keys: Duration,
    pub durability: Durability,
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
}

/// One thing wrong with the settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub key: String,
    /// The file, variable or flag it came from.
    pub origin: String,
    pub problem: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}): {}", self.key, self.origin, self.problem)
    }
}

/// Everything wrong with the settings.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} fault{} in the settings:{}", .0.len(), if .0.len() == 1 { "" } else { "s" }, .0.iter().map(|f| format!("\n  {f}")).collect::<String>())]
pub struct Faults(pub Vec<Fault>);

/// A value as it was given, and where.
#[derive(Clone, Debug)]
struct Given {
    value: toml::Value,
    origin: String,
}

/// Raw settings by dotted key, the later source over the earlier.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    given: BTreeMap<String, Given>,
    faults: Vec<Fault>,
}

impl Sources {
    pub fn file(mut self, path: &Path) -> Sources {
        let origin = path.display().to_string();
        let read =
            std::fs::read_to_string(path).map_err(|error| format!("cannot be read: {error}"));
        match read.and_then(|text| {
            text.parse::<toml::Table>()
                .map_err(|error| error.to_string())
        }) {
            Ok(table) => self.flatten("", toml::Value::Table(table), &origin),
            Err(problem) => self.faults.push(Fault {
                key: "file".into(),
                origin,
                problem,
            }),
        }
        self
    }

    /// Takes every variable that starts with `HONGBAO_` and holds a `__`.
    pub fn environment(mut self, variables: impl Iterator<Item = (String, String)>) -> Sources {
        for (name, text) in variables {
            let Some(path) = name
                .strip_prefix("HONGBAO_")
                .filter(|path| path.contains("__"))
            else {
                continue;
            };
            let key = path.to_ascii_lowercase().replace("__", ".");
            self.give(key, &text, format!("environment {name}"));
        }
        self
    }

    /// `assignments` are texts like `gateway.listen=0.0.0.0:7700`.
    pub fn flags<'a>(mut self, assignments: impl IntoIterator<Item = &'a str>) -> Sources {
        for assignment in assignments {
            match assignment.split_once('=') {
                Some((key, text)) => self.give(
                    key.trim().into(),
                    text.trim(),
                    format!("flag --set {assignment}"),
                ),
                None => self.faults.push(Fault {
                    key: assignment.into(),
                    origin: "flag --set".into(),
                    problem: "must be KEY=VALUE".into(),
                }),
            }
        }
        self
    }

    /// A value from a flag of its own, like `--data-dir`.
    pub fn flag(mut self, flag: &str, key: &str, text: Option<String>) -> Sources {
        if let Some(text) = text {
            self.give(key.into(), &text, format!("flag {flag}"));
        }
        self
    }

    fn give(&mut self, key: String, text: &str, origin: String) {
        // Numbers, booleans and lists are written as in TOML; all else is text.
        let value = match format!("v = {text}").parse::<toml::Table>() {
            Ok(mut table) => table
                .remove("v")
                .unwrap_or_else(|| toml::Value::String(text.into())),
            Err(_) => toml::Value::String(text.into()),
        };
        self.given.insert(key, Given { value, origin });
    }

    fn flatten(&mut self, prefix: &str, value: toml::Value, origin: &str) {
        match value {
            toml::Value::Table(table) => {
                for (name, value) in table {
                    let key = if prefix.is_empty() {
                        name
                    } else {
                        format!("{prefix}.{name}")
                    };
                    self.flatten(&key, value, origin);
                }
            }
            value => {
                self.given.insert(
                    prefix.into(),
                    Given {
                        value,
                        origin: origin.into(),
                    },
                );
            }
        }
    }
}

/// Hands out settings by key and notes what is wrong with them.
struct Reader {
    given: BTreeMap<String, Given>,
    faults: Vec<Fault>,
    known: Vec<&'static str>,
    /// Key, value, origin: for `check-config`.
    used: Vec<(&'static str, String, String)>,
}

impl Reader {
    fn take<T: fmt::Display>(
        &mut self,
        key: &'static str,
        default: T,
        read: impl FnOnce(&toml::Value) -> Result<T, String>,
    ) -> T {
        self.known.push(key);
        let (value, origin) = match self.given.remove(key) {
            None => (default, "default".to_owned()),
            Some(given) => match read(&given.value) {
                Ok(value) => (value, given.origin),
                Err(problem) => {
                    let problem = format!("{} {problem}", given.value);
                    self.faults.push(Fault {
                        key: key.into(),
                        origin: given.origin.clone(),
                        problem,
                    });
                    (default, given.origin)
                }
            },
        };
        self.used.push((key, value.to_string(), origin));
        value
    }

    fn number(&mut self, key: &'static str, default: u64, range: RangeInclusive<u64>) -> u64 {
        self.take(key, default, |value| {
            value
                .as_integer()
                .and_then(|n| u64::try_from(n).ok())
                .filter(|n| range.contains(n))
                .ok_or_else(|| format!("is not a number from {} to {}", range.start(), range.end()))
        })
    }

    fn count(&mut self, key: &'static str, default: usize, range: RangeInclusive<usize>) -> usize {
        self.number(
            key,
            default as u64,
            *range.start() as u64..=*range.end() as u64,
        ) as usize
    }

    fn ms(&mut self, key: &'static str, default: u64, range: RangeInclusive<u64>) -> Duration {
        Duration::from_millis(self.number(key, default, range))
    }

    fn flag(&mut self, key: &'static str, default: bool) -> bool {
        self.take(key, default, |value| {
            value.as_bool().ok_or_else(|| "is not true or false".into())
        })
    }

    fn parsed<T>(&mut self, key: &'static str, default: T) -> T
    where
        T: FromStr + fmt::Display,
        T::Err: fmt::Display,
    {
        self.take(key, default, |value| {
            let text = value.as_str().ok_or("is not a text")?;
            text.parse::<T>()
                .map_err(|error| format!("is not valid: {error}"))
        })
    }

    fn text(&mut self, key: &'static str, default: &str) -> String {
        self.take(key, default.to_owned(), |value| {
            value
                .as_str()
                .map(str::to_owned)
                .ok_or_else(|| "is not a text".into())
        })
    }

    fn one_of<T: Copy>(&mut self, key: &'static str, default: &str, choices: &[(&str, T)]) -> T {
        let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
        let chosen = self.take(key, default.to_owned(), |value| {
            value
                .as_str()
                .filter(|text| names.contains(text))
                .map(str::to_owned)
                .ok_or_else(|| format!("is not one of {}", names.join(", ")))
        });
        let found = choices.iter().find(|(name, _)| *name == chosen);
        found
            .map(|(_, choice)| *choice)
            .expect("the default is one of the choices")
    }

    fn texts(&mut self, key: &'static str, default: &[&str]) -> Vec<String> {
        let default = List(default.iter().map(|text| (*text).to_owned()).collect());
        self.take(key, default, |value| {
            let fault = || "is not a list of texts".to_owned();
            let texts = value.as_array().ok_or_else(fault)?.iter();
            let texts: Option<Vec<String>> =
                texts.map(|text| text.as_str().map(str::to_owned)).collect();
            texts.map(List).ok_or_else(fault)
        })
        .0
    }

    fn fault(&mut self, key: &str, problem: String) {
        let origin = self
            .used
            .iter()
            .find(|(used, ..)| *used == key)
            .map_or("default", |(_, _, origin)| origin);
        self.faults.push(Fault {
            key: key.into(),
            origin: origin.to_owned(),
            problem,
        });
    }

    /// What nobody asked for is a spelling mistake, and says which key was probably meant.
    fn unknown(&mut self) {
        for (key, given) in std::mem::take(&mut self.given) {
            let nearest = self.known.iter().min_by_key(|known| distance(known, &key));
            let hint = nearest
                .filter(|known| distance(known, &key) <= 4)
                .map(|known| format!("; did you mean {known}?"));
            let problem = format!("is not a setting{}", hint.unwrap_or_default());
            self.faults.push(Fault {
                key,
                origin: given.origin,
                problem,
            });
        }
    }
}

struct List(Vec<String>);

impl fmt::Display for List {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

/// Edit distance (Levenshtein), for hints.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(row[j + 1] + 1);
        }
    }
    row[b.len()]
}

impl Settings {
    /// The effective settings, and a line `key = value (origin)` for each.
    pub fn read(sources: Sources) -> Result<(Settings, Vec<String>), Faults> {
        let mut reader = Reader {
            given: sources.given,
            faults: sources.faults,
            known: vec![],
            used: vec![],
        };
        let settings = Self::from_reader(&mut reader);
        reader.unknown();
        if !reader.faults.is_empty() {
            return Err(Faults(reader.faults));
        }
        let shown = reader
            .used
            .iter()
            .map(|(key, value, origin)| format!("{key} = {value} ({origin})"))
            .collect();
        Ok((settings, shown))
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
        let settings = Settings {
            log: Log {
                level: r.text("log.level", "info"),
                json: r.flag("log.json", false),
            },
            store: Self::store(r),
            gateway: Self::gateway(r),
            tokens: Tokens {
                secret_file: under(&data_dir, r.text("tokens.secret_file", "token-secret")),
                kid: r.text("tokens.kid", "default"),
            },
            settle: Settle {
                workers: r.count("settle.workers", 1, 1..=64),
                lease: r.ms("settle.lease_ms", 30_000, 1_000..=3_600_000),
                batch_max: r.count("settle.batch_max", SETTLE_BATCH_MAX, 1..=SETTLE_BATCH_MAX),
                idle_wait: r.ms("settle.idle_wait_ms", 20, 1..=10_000),
                attempts_max: r.number("settle.attempts_max", 10, 1..=1_000) as u32,
                retry_base: r.ms("settle.retry_base_ms", 500, 1..=600_000),
                retry_max: r.ms("settle.retry_max_ms", 300_000, 1..=86_400_000),
            },
            ledger: Ledger {
                url: r.text("ledger.url", ""),
                create_user_accounts: r.flag("ledger.create_user_accounts", true),
            },
            steward: Steward {
                interval: r.ms("steward.interval_ms", 50, 5..=10_000),
                refund_after: r.ms("steward.refund_after_ms", 86_400_000, 0..=31_536_000_000),
                keep_keys: r.ms("steward.keep_keys_ms", 604_800_000, 1_000..=31_536_000_000),
                durability: r.parsed("steward.durability", Durability::Memory),
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
            },
            roles: known_roles,
            data_dir,
        };
        settings.check(r);
        settings
    }

    fn store(r: &mut Reader) -> Store {
        #[derive(Clone, Copy)]
        enum Kind {
            Managed,
            Nodes,
        }
        let kind = r.one_of(
            "store.topology",
            "managed",
            &[("managed", Kind::Managed), ("nodes", Kind::Nodes)],
        );
        let managed = r.count("store.managed_nodes", 3, 1..=64);
        let choices = [
            ("everysec", AppendFsync::EverySecond),
            ("always", AppendFsync::Always),
        ];
        let fsync = r.one_of("store.managed_appendfsync", "everysec", &choices);
        let urls = r.texts("store.nodes", &[]);
        let topology = match kind {
            Kind::Managed => {
                if !urls.is_empty() {
                    r.fault(
                        "store.nodes",
                        "is given, but store.topology is \"managed\": set it to \"nodes\"".into(),
                    );
                }
                Topology::Managed {
                    nodes: managed,
                    fsync,
                }
            }
            Kind::Nodes => {
                if urls.is_empty() {
                    r.fault(
                        "store.nodes",
                        "must list at least one node, like [\"redis://127.0.0.1:6379\"]".into(),
                    );
                }
                Topology::Nodes { urls }
            }
        };
        Store {
            topology,
            connect_timeout: r.ms("store.connect_timeout_ms", 1_000, 10..=60_000),
            call_timeout: r.ms("store.call_timeout_ms", 1_000, 10..=60_000),
            probe_interval: r.ms("store.probe_interval_ms", 200, 10..=60_000),
        }
    }

    fn gateway(r: &mut Reader) -> Gateway {
        Gateway {
            listen: r.parsed("gateway.listen", SocketAddr::from(([127, 0, 0, 1], 7700))),
            workers: r.count("gateway.workers", 1, 1..=256),
            connections_max: r.count("gateway.connections_max", 1_000_000, 1..=10_000_000),
            hello_timeout: r.ms("gateway.hello_timeout_ms", 5_000, 10..=60_000),
            idle_timeout: r.ms("gateway.idle_timeout_ms", 90_000, 100..=3_600_000),
            heartbeat_interval: r.ms("gateway.heartbeat_interval_ms", 30_000, 10..=3_600_000),
            in_flight_max: r.count("gateway.in_flight_max", 32, 1..=65_536),
            write_backlog_max: r.count(
                "gateway.write_backlog_max_bytes",
                64 * 1024,
                1_024..=16 * 1024 * 1024,
            ),
            lane_queue_max: r.count("gateway.lane_queue_max", 65_536, 1..=1_048_576),
            lanes_per_node: r.count("gateway.lanes_per_node", 1, 1..=16),
            empty_memory: r.ms("gateway.empty_memory_ms", 50, 1..=10_000),
            retry_after: r.ms("gateway.retry_after_ms", 300, 1..=60_000),
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
                    "oops",
                ]),
        );
        assert!(text.starts_with("5 faults in the settings:"), "{text}");
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
}
