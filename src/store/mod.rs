//! The only code that speaks Redis.

/// What a node must be before it is used.
pub mod admission;
/// A bucket: load, gate, close, lease, ack, retry, bury.
pub mod bucket;
/// Redis Cluster: the map of slots.
mod cluster;
/// Dead letters: list, find, requeue.
pub mod dead;
/// The published snapshots of rains.
pub mod directory;
/// Leases by name, with fencing numbers: who may work at something now.
pub mod fenced;
/// A batch of grabs: the call and the reading of its answer.
pub mod grab;
/// What a user is told: messages that stay, and news that pass.
pub mod inbox;
/// Every key.
pub mod keys;
/// One connection to one node, made again when it breaks.
pub mod link;
/// Channels that are listened to on every node.
mod listen;
/// Local `redis-server` children.
pub mod managed;
/// A primary, wherever it is now, and how to reach it.
pub mod node;
/// Which node owns which slot.
mod nodes;
/// Nonces of signed requests, each used once.
mod nonce;
/// What the ledger knows goes back into Redis.
pub mod repair;
/// The way to a slot, wherever it moves.
pub mod route;
/// The verbs: one `.lua` file each.
pub mod script;
/// Redis Sentinel: where each primary is.
mod sentinel;
/// Hash slots, as Redis Cluster computes them.
pub mod slots;
/// Packets between two buckets: give, take, given.
pub mod transfer;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use futures_util::future::join_all;

use crate::config::{self, Topology};
use crate::rain::{Durability, Rain, RainId, UserId};
use admission::{CLOCKS_APART_MAX_MS, Verdict};
use bucket::Bucket;
use keys::{BucketKeys, Tag};
use link::Link;
use managed::Managed;
use node::Reach;
use nodes::Nodes;
use route::Route;
use sentinel::Sentinels;
use slots::slot_of;

#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    #[error(
        "node address \"{url}\" is not valid: {problem}; write it like redis://user:password@host:6379"
    )]
    Address { url: String, problem: String },
    #[error("{path:?} cannot be read for TLS to the nodes: {problem}")]
    Tls {
        path: std::path::PathBuf,
        problem: String,
    },
    #[error("no sentinel says where primary \"{primary}\" is: {problem}")]
    Sentinel { primary: String, problem: String },
    #[error("Redis Cluster: {problem}")]
    Cluster { problem: String },
    /// It ran, but not on as many machines as it should have.
    #[error("node {node}: {acknowledged} replicas have it in time")]
    NotReplicated { node: String, acknowledged: String },
    #[error("managed nodes: {problem}")]
    Managed { problem: String },
    #[error("node {node} is not fit for use: {}", problems.join("; "))]
    Unfit { node: String, problems: Vec<String> },
    /// Nothing was sent.
    #[error("node {node} is down: {cause}")]
    Down { node: String, cause: String },
    /// It may or may not have run.
    #[error("node {node} did not answer: {cause}")]
    Unknown { node: String, cause: String },
    /// The node refused: nothing ran.
    #[error("node {node} refused: {code} {detail}")]
    Refused {
        node: String,
        code: String,
        detail: String,
    },
    #[error(
        "bucket {bucket} on node {node} is of another ledger's rain: give this ledger nodes of its own, or empty them"
    )]
    Foreign { node: String, bucket: String },
    /// Nothing was changed; repaired by the steward.
    #[error(
        "bucket {bucket} on node {node} is suspect: another process loaded it, and it is to be repaired first"
    )]
    Suspect { node: String, bucket: String },
    #[error("{verb} answered something unexpected: {reply}")]
    Reply { verb: &'static str, reply: String },
}

/// The nodes, and which bucket lies on which of them.
pub struct Store {
    nodes: Arc<Nodes>,
    /// Ends the task that keeps the map of slots.
    _keeper: Option<tokio_util::task::AbortOnDropHandle<()>>,
    /// Stops the children when the store is dropped.
    _managed: Option<Managed>,
}

impl Store {
    /// Starts managed nodes or connects to the listed ones, and refuses nodes that would lose money.
    pub async fn open(
        settings: &config::Store,
        data_dir: &Path,
        durability: Durability,
    ) -> Result<Store, StoreError> {
        let store = Store::connect(settings, data_dir, durability).await?;
        store.look_at_nodes().await?;
        Ok(store)
    }

    /// Like [`Store::open`], with nodes of any kind: for those who want to know what is wrong with them. Managed nodes are started.
    pub async fn connect(
        settings: &config::Store,
        data_dir: &Path,
        durability: Durability,
    ) -> Result<Store, StoreError> {
        let reach = Arc::new(Reach::new(settings, durability)?);
        let parse = |urls: &[String]| {
            let infos: Result<Vec<_>, StoreError> =
                urls.iter().map(|url| Reach::parse(url)).collect();
            infos
        };
        let (mut managed, mut keeper) = (None, None);
        let nodes = match &settings.topology {
            Topology::Managed { nodes, fsync } => {
                let (dir, nodes, fsync) = (data_dir.to_owned(), *nodes, *fsync);
                let start = tokio::task::spawn_blocking(move || Managed::start(&dir, nodes, fsync));
                let (started, urls) = start.await.expect("starting nodes does not panic")?;
                managed = Some(started);
                Arc::new(Nodes::fixed(reach, parse(&urls)?)?)
            }
            Topology::Nodes { urls } => Arc::new(Nodes::fixed(reach, parse(urls)?)?),
            Topology::Sentinel {
                sentinels,
                primaries,
            } => {
                let sentinels = Sentinels::new(&reach, sentinels, primaries)?;
                let nodes = Arc::new(Nodes::fixed(reach, sentinels.find().await?)?);
                keeper = Some(tokio::spawn(sentinels.keep(nodes.clone())));
                nodes
            }
            Topology::Cluster { seeds } => {
                let nodes = Arc::new(Nodes::cluster(reach, parse(seeds)?)?);
                cluster::refresh(&nodes).await?;
                keeper = Some(tokio::spawn(cluster::keep(nodes.clone())));
                nodes
            }
        };
        Ok(Store {
            nodes,
            _keeper: keeper.map(tokio_util::task::AbortOnDropHandle::new),
            _managed: managed,
        })
    }

    /// A node that is not fit stops the start. One that is down does not, as long as another is up: the rain goes on without it, and it is
    /// looked at when it comes back.
    async fn look_at_nodes(&self) -> Result<(), StoreError> {
        let exams = self.examine().await;
        let (mut down, mut clocks) = (None, vec![]);
        for (name, exam) in exams {
            match exam {
                Ok(exam) if self.nodes.reach.roles_change && exam.role != "master" => {
                    let cause = "it is a replica now".to_owned();
                    down = down.or(Some(StoreError::Down { node: name, cause }));
                }
                Ok(exam) => {
                    let checks = exam.checks(self.nodes.reach.needs);
                    admission::problems(&name, checks, Verdict::NoStart)?;
                    clocks.push((exam.clock_ahead_ms, name));
                }
                Err(unfit @ StoreError::Unfit { .. }) => return Err(unfit),
                Err(error) => down = down.or(Some(error)),
            }
        }
        if let (Some((behind, slow)), Some((ahead, fast))) =
            (clocks.iter().min(), clocks.iter().max())
            && ahead - behind > CLOCKS_APART_MAX_MS
        {
            let apart = ahead - behind;
            return Err(StoreError::Unfit {
                node: fast.clone(),
                problems: vec![format!(
                    "its clock is {apart} ms ahead of that of {slow}, more than {CLOCKS_APART_MAX_MS}: synchronise the clocks"
                )],
            });
        }
        match down {
            Some(error) if clocks.is_empty() => Err(error),
            _ => Ok(()),
        }
    }

    /// What every node says of itself, by its name, each for itself.
    pub async fn examine(&self) -> Vec<(String, Result<admission::Exam, StoreError>)> {
        let exam = |link: Arc<Link>| async move {
            let (reach, target) = (&link.node.reach, link.node.target());
            let down = |error: redis::RedisError| StoreError::Down {
                node: target.name.clone(),
                cause: error.to_string(),
            };
            let looked = async {
                let mut wire = reach.connect(&target.client).await.map_err(down)?;
                admission::examine(&mut wire).await.map_err(down)
            };
            (target.name.clone(), looked.await)
        };
        join_all(self.nodes.owners().into_iter().map(exam)).await
    }

    /// Slots that no node owns, as far as is known: other than 0 only in a cluster.
    pub fn slots_without_owner(&self) -> usize {
        self.nodes.unowned()
    }

    /// How many slots each node owns, by its name.
    pub fn slots_by_node(&self) -> HashMap<String, usize> {
        let mut owned = HashMap::new();
        for slot in (0..slots::SLOTS).filter(|slot| self.nodes.is_owned(*slot)) {
            *owned.entry(self.nodes.owner(slot)).or_insert(0) += 1;
        }
        let named = |(node, slots)| (self.link(node).name(), slots);
        owned.into_iter().map(named).collect()
    }

    /// Whether a win can be as durable as that here, as the nodes are now; if not, why.
    pub async fn offers(&self, durability: Durability) -> Result<(), String> {
        let weak = self.weaker_than(durability).await.into_iter().next();
        weak.map_or(Ok(()), |(_, problem)| Err(problem))
    }

    /// The numbers of the nodes on which a win cannot be as durable as that now, and why.
    pub async fn weaker_than(&self, durability: Durability) -> Vec<(usize, String)> {
        let needed = match durability {
            Durability::Memory => return vec![],
            Durability::Fsync => None,
            Durability::Replicas(needed) => Some(u32::from(needed)),
        };
        let owners = self.nodes.owners();
        let looks = owners.iter().map(|link| admission::durability(link));
        let mut weak = vec![];
        for (link, look) in owners.iter().zip(join_all(looks).await) {
            // One that is away says nothing: grabs there are answered RETRY anyway.
            let Ok((fsync, replicas)) = look else {
                continue;
            };
            match needed {
                None if !fsync => {
                    let problem = format!(
                        "durability \"fsync\" needs appendfsync always on every node, and {} has it not",
                        link.name()
                    );
                    weak.push((link.node.id, problem));
                }
                Some(needed) if replicas < needed => {
                    let problem = format!(
                        "durability \"{durability}\" needs {needed} replicas of every node, and {} has {replicas}",
                        link.name()
                    );
                    weak.push((link.node.id, problem));
                }
                None | Some(_) => {}
            }
        }
        weak
    }

    /// The clock that is furthest behind among the nodes that answer, ms since 1970: when it has passed an instant, all have.
    pub async fn earliest_clock_ms(&self) -> Result<i64, StoreError> {
        let time = redis::cmd("TIME");
        let answers = join_all(self.nodes.owners().iter().map(|link| link.call(&time))).await;
        let (mut earliest, mut failed) = (None::<i64>, None);
        for answer in answers {
            match answer.map(|reply| (clock_ms(&reply), reply)) {
                Ok((Some(ms), _)) => {
                    earliest = Some(earliest.map_or(ms, |earliest| earliest.min(ms)))
                }
                Ok((None, reply)) => {
                    return Err(StoreError::Reply {
                        verb: "TIME",
                        reply: format!("{reply:?}"),
                    });
                }
                Err(error) => failed = Some(error),
            }
        }
        match (earliest, failed) {
            (Some(ms), _) => Ok(ms),
            (None, Some(error)) => Err(error),
            (None, None) => Ok(crate::clock::now_ms()),
        }
    }

    /// The nodes that own slots now.
    pub fn links(&self) -> Vec<Arc<Link>> {
        self.nodes.owners()
    }

    /// The node with this number.
    pub fn link(&self, node: usize) -> Arc<Link> {
        self.nodes.link(node)
    }

    /// The number of the node that owns a slot now.
    pub fn node_of_slot(&self, slot: u16) -> usize {
        self.nodes.owner(slot)
    }

    pub fn route(&self, slot: u16) -> Route {
        Route {
            nodes: self.nodes.clone(),
            slot,
        }
    }

    pub(super) fn route_of(&self, key: &str) -> Route {
        self.route(slot_of(key))
    }

    /// Salts that put bucket *b* on node *b mod N*.
    pub fn salts(&self, rain: RainId, buckets: u32) -> Vec<u32> {
        let owners = self.nodes.owners();
        let salt = |bucket: u32| {
            let wanted = owners[bucket as usize % owners.len()].node.id;
            Tag::place(rain, bucket, |slot| self.node_of_slot(slot) == wanted)
                .map_or(0, |tag| tag.salt)
        };
        (0..buckets).map(salt).collect()
    }

    /// How many buckets a rain gets unless the operator says: one a node, fewer when a bucket would hold under 32 packets.
    pub fn buckets_for(&self, packets: u32) -> u32 {
        (packets / 32).clamp(1, self.nodes.owners().len() as u32)
    }

    /// The number of a bucket's node.
    pub fn node_of(&self, tag: &Tag) -> usize {
        self.node_of_slot(tag.slot())
    }

    /// The number of the node of a user's inbox.
    pub fn node_of_user(&self, user: &UserId) -> usize {
        self.node_of_slot(slot_of(&keys::inbox(user)))
    }

    pub fn bucket(&self, tag: Tag, fingerprint: &str) -> Bucket {
        Bucket {
            tag,
            keys: BucketKeys::new(&tag),
            route: self.route(tag.slot()),
            fingerprint: fingerprint.to_owned(),
        }
    }

    pub fn buckets(&self, rain: &Rain) -> Vec<Bucket> {
        let fingerprint = rain.fingerprint();
        tags(rain.id, &rain.salts)
            .map(|tag| self.bucket(tag, &fingerprint))
            .collect()
    }
}

/// The tags of a rain's buckets, from its salts.
pub fn tags(rain: RainId, salts: &[u32]) -> impl Iterator<Item = Tag> {
    (0..).zip(salts).map(move |(bucket, salt)| Tag {
        rain,
        bucket,
        salt: *salt,
    })
}

/// The bucket of a user, the same on every machine. The rain's id is mixed in, so that nobody shares a bucket with the same crowd every time.
pub fn bucket_of(rain: RainId, user: &str, buckets: usize) -> usize {
    let hash = xxhash_rust::xxh3::xxh3_64_with_seed(user.as_bytes(), u64::from(rain.get()));
    // The high half of a 128-bit product: even for any number of buckets, and quicker than a division.
    ((u128::from(hash) * buckets as u128) >> 64) as usize
}

/// The answer to TIME: seconds and microseconds.
fn clock_ms(reply: &redis::Value) -> Option<i64> {
    let redis::Value::Array(items) = reply else {
        return None;
    };
    let number = |item: &redis::Value| bucket::text(item)?.parse::<i64>().ok();
    Some(number(items.first()?)? * 1_000 + number(items.get(1)?)? / 1_000)
}
