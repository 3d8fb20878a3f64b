//! The only code that speaks Redis.

/// What a node must be before it is used.
mod admission;
/// A bucket: load, gate, close, lease, ack, retry, bury.
pub mod bucket;
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
/// The verbs: one `.lua` file each.
pub mod script;
/// Hash slots, as Redis Cluster computes them.
pub mod slots;
/// Packets between two buckets: give, take, given.
pub mod transfer;

use std::path::Path;
use std::sync::Arc;

use futures_util::future::join_all;

use crate::config::{self, Topology};
use crate::rain::{Durability, Rain, RainId, UserId};
use bucket::Bucket;
use keys::{BucketKeys, Tag};
use link::{Address, Link};
use managed::Managed;
use slots::{even_owner, slot_of};

#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    #[error(
        "node address \"{url}\" is not valid: {problem}; write it like redis://user:password@host:6379"
    )]
    Address { url: String, problem: String },
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
    #[error("{verb} answered something unexpected: {reply}")]
    Reply { verb: &'static str, reply: String },
}

/// The nodes, and which bucket lies on which of them.
pub struct Store {
    links: Vec<Arc<Link>>,
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
        let (managed, urls) = match &settings.topology {
            Topology::Managed { nodes, fsync } => {
                let (dir, nodes, fsync) = (data_dir.to_owned(), *nodes, *fsync);
                let start = tokio::task::spawn_blocking(move || Managed::start(&dir, nodes, fsync));
                let (managed, urls) = start.await.expect("starting nodes does not panic")?;
                (Some(managed), urls)
            }
            Topology::Nodes { urls } => (None, urls.clone()),
        };
        let mut links = vec![];
        for url in urls {
            links.push(Arc::new(Link::new(Address::new(
                &url, settings, durability,
            )?)));
        }
        let store = Store {
            links,
            _managed: managed,
        };
        store.look_at_nodes().await?;
        Ok(store)
    }

    /// A node that is not fit stops the start. One that is down does not, as long as another is up: the rain goes on without it, and it is
    /// looked at when it comes back.
    async fn look_at_nodes(&self) -> Result<(), StoreError> {
        let ping = redis::cmd("PING");
        let answers = join_all(self.links.iter().map(|link| link.call(&ping))).await;
        let mut down = None;
        let mut up = 0;
        for answer in answers {
            match answer {
                Ok(_) => up += 1,
                Err(unfit @ StoreError::Unfit { .. }) => return Err(unfit),
                Err(error) => down = down.or(Some(error)),
            }
        }
        match down {
            Some(error) if up == 0 => Err(error),
            _ => Ok(()),
        }
    }

    /// Whether a win can be as durable as that here; if not, why.
    pub fn offers(&self, durability: Durability) -> Result<(), String> {
        match durability {
            Durability::Memory => Ok(()),
            Durability::Fsync => {
                let weak = self
                    .links
                    .iter()
                    .find(|link| link.offers() == Some(Durability::Memory));
                weak.map_or(Ok(()), |link| {
                    Err(format!("durability \"fsync\" needs appendfsync always on every node, and {} has it not", link.address.name))
                })
            }
            Durability::Replicas(_) => Err(format!(
                "durability \"{durability}\" is not offered by these nodes"
            )),
        }
    }

    /// The clock that is furthest behind among the nodes that answer, ms since 1970: when it has passed an instant, all have.
    pub async fn earliest_clock_ms(&self) -> Result<i64, StoreError> {
        let time = redis::cmd("TIME");
        let answers = join_all(self.links.iter().map(|link| link.call(&time))).await;
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

    pub fn links(&self) -> &[Arc<Link>] {
        &self.links
    }

    fn node_of_slot(&self, slot: u16) -> usize {
        even_owner(slot, self.links.len())
    }

    fn link_of(&self, key: &str) -> &Arc<Link> {
        &self.links[self.node_of_slot(slot_of(key))]
    }

    /// Salts that put bucket *b* on node *b mod N*.
    pub fn salts(&self, rain: RainId, buckets: u32) -> Vec<u32> {
        let salt = |bucket: u32| {
            let wanted = bucket as usize % self.links.len();
            Tag::place(rain, bucket, |slot| self.node_of_slot(slot) == wanted)
                .map_or(0, |tag| tag.salt)
        };
        (0..buckets).map(salt).collect()
    }

    /// How many buckets a rain gets unless the operator says: one a node, fewer when a bucket would hold under 32 packets.
    pub fn buckets_for(&self, packets: u32) -> u32 {
        (packets / 32).clamp(1, self.links.len() as u32)
    }

    /// The node of a bucket, by its place in the list of nodes.
    pub fn node_of(&self, tag: &Tag) -> usize {
        self.node_of_slot(tag.slot())
    }

    /// The node of a user's inbox, by its place in the list of nodes.
    pub fn node_of_user(&self, user: &UserId) -> usize {
        self.node_of_slot(slot_of(&keys::inbox(user)))
    }

    pub fn bucket(&self, tag: Tag, fingerprint: &str) -> Bucket {
        let link = self.links[self.node_of(&tag)].clone();
        Bucket {
            tag,
            keys: BucketKeys::new(&tag),
            link,
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
