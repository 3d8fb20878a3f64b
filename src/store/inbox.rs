//! What a user is told: messages that stay in the user's inbox, and news of credits, which reach whoever is online or nobody.
//!
//! The inbox is the truth; news may be lost. Both carry message ids, so that a client sees what it missed: see `proto/hongbao.proto`.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use futures_util::future::join_all;
use redis::{Pipeline, Value};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::bucket::{or_node_clock, text};
use super::link::Link;
use super::{Store, StoreError, keys, script};
use crate::config;
use crate::rain::{Claim, Packet, UserId};

/// Messages written in one round trip. A call takes the node about 10 µs, so others wait a few ms for it at worst.
const WRITE_BATCH: usize = 250;
/// Refusals of one message of a batch after which it is sent on by itself.
const SENT_ON: [&str; 6] = [
    "NOSCRIPT",
    "MOVED",
    "ASK",
    "TRYAGAIN",
    "CLUSTERDOWN",
    "READONLY",
];
/// Credits in one piece of news: up to 60 KiB on the channel.
const NEWS_MAX: usize = 500;
/// Pieces of news that wait for a gateway. Its reader only hands them on; beyond this they are dropped, since the inbox has them.
const NEWS_WAITING_MAX: usize = 256;

/// What a message tells. Its text, the form it has in Redis, is also what it is known by: an inbox takes the same text once. So it says nothing
/// that changes when the message is written again; when it was written is its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contents {
    /// `credit:packet_id:cents`
    PacketCredited { packet: Packet },
}

impl fmt::Display for Contents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Contents::PacketCredited { packet } => write!(f, "credit:{packet}"),
        }
    }
}

/// Not a message of this version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is no message that this version knows")]
pub struct UnknownContents(String);

impl FromStr for Contents {
    type Err = UnknownContents;
    fn from_str(text: &str) -> Result<Contents, UnknownContents> {
        text.strip_prefix("credit:")
            .and_then(|packet| packet.parse().ok())
            .map(|packet| Contents::PacketCredited { packet })
            .ok_or_else(|| UnknownContents(text.to_owned()))
    }
}

/// A message on its way to a user's inbox.
#[derive(Clone, Debug)]
pub struct Draft {
    pub user: UserId,
    pub contents: Contents,
}

/// How much an inbox keeps.
#[derive(Clone, Copy, Debug)]
pub struct Keep {
    pub ms: u64,
    /// 1 to 500: `inbox.lua` removes what is over in one call.
    pub messages: usize,
}

impl From<config::Inbox> for Keep {
    fn from(inbox: config::Inbox) -> Keep {
        Keep {
            ms: inbox.keep.as_millis() as u64,
            messages: inbox.messages_max,
        }
    }
}

/// Where a message stands in its inbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// When it was written, ms since 1970 by the node's clock, made greater than every earlier id of this inbox.
    pub id: u64,
    /// Id of the message before it, 0 if there was none.
    pub previous: u64,
}

/// Where a message was put; `None` if it was there already.
pub type Written = Result<Option<Place>, StoreError>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub id: u64,
    /// `None` for one that a newer version wrote.
    pub contents: Option<Contents>,
}

/// Messages in their order, and whether there are more after them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    pub messages: Vec<Message>,
    pub more: bool,
}

impl Store {
    /// Puts each message into its user's inbox, unless it is there, and says what became of each, in their order. Nodes are written to side
    /// by side; one that does not answer costs its own messages one wait. `now_ms` is the node's clock unless a test says otherwise.
    pub async fn write_messages(
        &self,
        drafts: &[Draft],
        keep: Keep,
        now_ms: Option<i64>,
    ) -> Vec<Written> {
        let mut by_node: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (i, draft) in drafts.iter().enumerate() {
            let node = self.node_of_user(&draft.user);
            by_node.entry(node).or_default().push(i);
        }
        let writing = by_node.iter().map(|(node, indices)| async move {
            let link = self.link(*node);
            self.write_to_node(&link, drafts, indices, keep, now_ms)
                .await
        });
        let mut written = vec![Ok(None); drafts.len()];
        for (indices, results) in by_node.values().zip(join_all(writing).await) {
            for (i, result) in indices.iter().zip(results) {
                written[*i] = result;
            }
        }
        written
    }

    async fn write_to_node(
        &self,
        link: &Link,
        drafts: &[Draft],
        indices: &[usize],
        keep: Keep,
        now_ms: Option<i64>,
    ) -> Vec<Written> {
        let mut written = Vec::with_capacity(indices.len());
        for part in indices.chunks(WRITE_BATCH) {
            let call = |i: usize| {
                let mut call = script::INBOX.call(&[&keys::inbox(&drafts[i].user)]);
                call.arg(or_node_clock(now_ms))
                    .arg(keep.ms)
                    .arg(keep.messages)
                    .arg(drafts[i].contents.to_string());
                call
            };
            let mut calls = Pipeline::with_capacity(part.len());
            for &i in part {
                calls.add_command(call(i));
            }
            crate::crash::script(script::INBOX.verb, "before");
            let results = link.call_all(&calls).await;
            crate::crash::script(script::INBOX.verb, "after");
            let results = match results {
                Ok(results) => results,
                // The node is away: the rest is not even tried.
                Err(error) => {
                    written.resize(indices.len(), Err(error));
                    break;
                }
            };
            for (&i, result) in part.iter().zip(results) {
                // A node that does not know the script, or is not the slot's owner any more, has run nothing.
                let result = match result {
                    Err(StoreError::Refused { code, .. }) if SENT_ON.contains(&code.as_str()) => {
                        let route = self.route_of(&keys::inbox(&drafts[i].user));
                        route.run(&script::INBOX, |_| call(i)).await
                    }
                    result => result,
                };
                written.push(result.and_then(|reply| parse_place(&reply)));
            }
        }
        written
    }

    /// Messages of a user with an id above `after`, at most `limit`.
    pub async fn read_inbox(
        &self,
        user: &UserId,
        after: u64,
        limit: usize,
    ) -> Result<Page, StoreError> {
        let inbox = keys::inbox(user);
        let mut range = redis::cmd("ZRANGE");
        range
            .arg(&inbox)
            .arg(format!("({after}"))
            .arg("+inf")
            .arg("BYSCORE");
        range.arg("LIMIT").arg(0).arg(limit + 1).arg("WITHSCORES");
        let mut messages = parse_messages(&self.route_of(&inbox).call(&range).await?)?;
        let more = messages.len() > limit;
        messages.truncate(limit);
        Ok(Page { messages, more })
    }
}

fn parse_place(reply: &Value) -> Written {
    match reply {
        Value::Array(items) => match items[..] {
            [] => Ok(None),
            [Value::Int(id), Value::Int(previous)] => Ok(Some(Place {
                id: id as u64,
                previous: previous as u64,
            })),
            _ => Err(script::INBOX.misread(reply)),
        },
        _ => Err(script::INBOX.misread(reply)),
    }
}

/// Messages with their ids: RESP3 sends pairs.
fn parse_messages(reply: &Value) -> Result<Vec<Message>, StoreError> {
    let pair = |item: &Value| match item {
        Value::Array(pair) => match &pair[..] {
            [message, Value::Double(id)] => Some(Message {
                id: *id as u64,
                contents: text(message).and_then(|text| text.parse().ok()),
            }),
            _ => None,
        },
        _ => None,
    };
    let pairs = match reply {
        Value::Array(items) => items.iter().map(pair).collect(),
        _ => None,
    };
    pairs.ok_or_else(|| StoreError::Reply {
        verb: "ZRANGE",
        reply: format!("{reply:?}").chars().take(200).collect(),
    })
}

/// A claim that was credited, for those who are online. On the channel a line `message_id:previous:packet_id:cents:user`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credited {
    pub claim: Claim,
    pub place: Place,
}

/// Claims that one settlement credited.
pub type News = Vec<Credited>;

impl fmt::Display for Credited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Credited { claim, place } = self;
        write!(f, "{}:{}:{claim}", place.id, place.previous)
    }
}

fn news_text(credited: &[Credited]) -> String {
    let lines: Vec<String> = credited.iter().map(Credited::to_string).collect();
    lines.join("\n")
}

/// `None` unless all of it can be read.
fn read_news(text: &str) -> Option<News> {
    let credited = |line: &str| {
        let mut parts = line.splitn(3, ':'); // a user id may hold colons itself
        let place = Place {
            id: parts.next()?.parse().ok()?,
            previous: parts.next()?.parse().ok()?,
        };
        let claim = parts.next()?.parse().ok()?;
        Some(Credited { claim, place })
    };
    text.lines().map(credited).collect()
}

impl Store {
    /// Tells every gateway that listens. Any node will do, since gateways listen to all: `link` leads to one that was up just now.
    pub async fn publish_credited(&self, link: &Link, news: &[Credited]) -> Result<(), StoreError> {
        for part in news.chunks(NEWS_MAX) {
            let mut publish = redis::cmd("PUBLISH");
            publish.arg(keys::CREDITED_CHANNEL).arg(news_text(part));
            link.call(&publish).await?;
        }
        Ok(())
    }

    /// Who was credited, until `stop`. News may be lost: the inbox has it.
    pub fn watch_credited(
        &self,
        tasks: &TaskTracker,
        stop: CancellationToken,
    ) -> mpsc::Receiver<Arc<News>> {
        let read = |text: &str| read_news(text).map(Arc::new);
        self.listen(keys::CREDITED_CHANNEL, NEWS_WAITING_MAX, read, tasks, stop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_reads_back_as_written() {
        let text = "credit:30064771113:888";
        assert_eq!(text.parse::<Contents>().unwrap().to_string(), text);
        for other in ["", "credit:", "credit:30064771113", "refund:30064771113:8"] {
            assert!(other.parse::<Contents>().is_err(), "{other}");
        }
    }

    #[test]
    fn news_read_back_as_written_even_with_colons_in_the_user() {
        let text = "12:0:30064771113:888:app:anna\n14:12:30064771114:1:ben";
        let news = read_news(text).unwrap();
        assert_eq!(news[0].claim.user.as_str(), "app:anna");
        let place = Place {
            id: 14,
            previous: 12,
        };
        assert_eq!(news[1].place, place);
        assert_eq!(news_text(&news), text);
        for broken in ["now", "1:2:3", "1:2:3:4:u"] {
            assert_eq!(read_news(broken), None, "{broken}");
        }
    }
}
