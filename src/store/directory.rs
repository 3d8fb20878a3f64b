//! The rain directory: snapshots of rains, published by the steward, read by the gateways.

use redis::Value;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::bucket::text;
use super::{Store, StoreError, keys, script};
use crate::rain::{Durability, GrabKey, Rain, RainId, State, Window};

/// What a gateway needs to know of a rain.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    pub rain: RainId,
    pub version: i64,
    pub room: String,
    pub title: String,
    pub state: State,
    pub opens_at_ms: Option<i64>,
    pub duration_ms: i64,
    pub salts: Vec<u32>,
    pub durability: Durability,
    /// Every packet was found to be won: nobody can win until the version changes.
    pub sold_out: bool,
    /// Not before this is the room told of the rain, unless it opens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub announce_at_ms: Option<i64>,
    /// What a grab must carry; told to clients when the rain opens, and not before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grab_key: Option<GrabKey>,
}

impl Snapshot {
    pub fn of(rain: &Rain) -> Snapshot {
        Snapshot {
            rain: rain.id,
            version: rain.version,
            room: rain.room.clone(),
            title: rain.title.clone(),
            state: rain.state,
            opens_at_ms: rain.window.opens_at_ms,
            duration_ms: rain.window.duration_ms,
            salts: rain.salts.clone(),
            durability: rain.durability,
            sold_out: rain.sold_out,
            announce_at_ms: rain.announce_at_ms,
            grab_key: rain.grab_key(),
        }
    }

    pub fn window(&self) -> Window {
        Window {
            opens_at_ms: self.opens_at_ms,
            duration_ms: self.duration_ms,
        }
    }
}

impl Store {
    /// Publishes a snapshot unless a newer one is there. Repeating it changes nothing.
    pub async fn publish(&self, snapshot: &Snapshot) -> Result<(), StoreError> {
        let key = keys::rain(snapshot.rain);
        let json = serde_json::to_string(snapshot).expect("a snapshot is plain data");
        let mut call = script::PUBLISH.call(&[&key]);
        call.arg(snapshot.version)
            .arg(json)
            .arg(keys::RAIN_CHANNEL)
            .arg(snapshot.rain.get());
        let mut list = redis::cmd("ZADD");
        list.arg(keys::RAINS)
            .arg("NX")
            .arg(snapshot.rain.get())
            .arg(snapshot.rain.get());
        // Side by side: while the list's node is away, gateways hear of a rain whose own node is not. Whoever is told of the error publishes again.
        let (of_list, of_rain) = (self.route_of(keys::RAINS), self.route_of(&key));
        let (listed, published) = tokio::join!(
            of_list.call(&list),
            of_rain.run(&script::PUBLISH, |_| call.clone())
        );
        published.and(listed).map(drop)
    }

    /// Takes a rain off the list and lets its snapshot expire.
    pub async fn unlist(&self, rain: RainId, after_ms: u64) -> Result<(), StoreError> {
        self.route_of(keys::RAINS)
            .call(redis::cmd("ZREM").arg(keys::RAINS).arg(rain.get()))
            .await?;
        let key = keys::rain(rain);
        self.route_of(&key)
            .call(redis::cmd("PEXPIRE").arg(&key).arg(after_ms))
            .await?;
        Ok(())
    }

    /// The published snapshot; `None` if there is none.
    pub async fn snapshot(&self, rain: RainId) -> Result<Option<Snapshot>, StoreError> {
        let key = keys::rain(rain);
        let reply = self
            .route_of(&key)
            .call(redis::cmd("HGET").arg(&key).arg("snapshot"))
            .await?;
        let Some(json) = text(&reply) else {
            return Ok(None);
        };
        let snapshot = serde_json::from_str(json);
        snapshot.map(Some).map_err(|error| StoreError::Reply {
            verb: "HGET",
            reply: format!("{key}: {error}"),
        })
    }

    /// Whether the rain is on the list.
    pub async fn is_listed(&self, rain: RainId) -> Result<bool, StoreError> {
        let reply = self
            .route_of(keys::RAINS)
            .call(redis::cmd("ZSCORE").arg(keys::RAINS).arg(rain.get()))
            .await?;
        Ok(reply != Value::Nil)
    }

    /// Ids of all listed rains: what a gateway that missed a message reads again.
    pub async fn listed(&self) -> Result<Vec<RainId>, StoreError> {
        let reply = self
            .route_of(keys::RAINS)
            .call(redis::cmd("ZRANGE").arg(keys::RAINS).arg(0).arg(-1))
            .await?;
        let Value::Array(items) = &reply else {
            return Err(StoreError::Reply {
                verb: "ZRANGE",
                reply: format!("{reply:?}"),
            });
        };
        Ok(items
            .iter()
            .filter_map(|item| text(item)?.parse().ok())
            .collect())
    }
}

/// Changes that wait to be read: a reader that falls behind finds them all at its next refresh.
const CHANGES_MAX: usize = 1_024;

impl Store {
    /// Ids of rains whose snapshot has changed, or in which claims are due that settlers do not expect, until `stop`. Messages may be lost
    /// while a node is away: [`Store::listed`] finds what was missed.
    pub fn watch_rains(
        &self,
        tasks: &TaskTracker,
        stop: CancellationToken,
    ) -> mpsc::Receiver<RainId> {
        let read = |text: &str| text.parse().ok();
        self.listen(keys::RAIN_CHANNEL, CHANGES_MAX, read, tasks, stop)
    }
}

/// How many packets of a rain are left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    pub rain: RainId,
    pub packets: u32,
    pub remaining: u32,
}

/// Counts that wait for a gateway; the next ones are as good as those that are dropped.
const PROGRESS_WAITING_MAX: usize = 64;

impl Store {
    /// Tells the gateways; it may be lost.
    pub async fn publish_progress(&self, progress: Progress) -> Result<(), StoreError> {
        let Progress {
            rain,
            packets,
            remaining,
        } = progress;
        let mut publish = redis::cmd("PUBLISH");
        publish
            .arg(keys::PROGRESS_CHANNEL)
            .arg(format!("{rain}:{packets}:{remaining}"));
        self.route_of(&keys::rain(rain)).call(&publish).await?;
        Ok(())
    }

    /// What stewards have counted, until `stop`.
    pub fn watch_progress(
        &self,
        tasks: &TaskTracker,
        stop: CancellationToken,
    ) -> mpsc::Receiver<Progress> {
        let read = |text: &str| {
            let mut parts = text.split(':');
            Some(Progress {
                rain: parts.next()?.parse().ok()?,
                packets: parts.next()?.parse().ok()?,
                remaining: parts.next()?.parse().ok()?,
            })
        };
        let (channel, waiting) = (keys::PROGRESS_CHANNEL, PROGRESS_WAITING_MAX);
        self.listen(channel, waiting, read, tasks, stop)
    }
}
