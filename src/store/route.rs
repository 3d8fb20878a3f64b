//! The way to a slot: calls that follow it when it moves from one node to another.
//!
//! A call is repeated only when a node said that it did not run it. Whatever else goes wrong is the caller's to judge.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Pipeline, Value};

use super::StoreError;
use super::link::{Connection, Link};
use super::node::Peer;
use super::nodes::Nodes;
use super::script::Script;

/// How often a call is sent on before its error is told. With the waits between, about a third of a second.
const TURNS_MAX: u32 = 8;
/// After TRYAGAIN and CLUSTERDOWN, doubled each time up to [`WAIT_MAX`].
const WAIT_MIN: Duration = Duration::from_millis(2);
const WAIT_MAX: Duration = Duration::from_millis(100);

/// The way to one slot.
#[derive(Clone)]
pub struct Route {
    pub nodes: Arc<Nodes>,
    pub slot: u16,
}

/// How many replicas must have a write before its answer counts, and for how long to wait for them.
#[derive(Clone, Copy, Debug)]
pub struct Replicated {
    pub replicas: u8,
    pub wait: Duration,
}

/// What a refusal says about where to go.
enum Turn<'a> {
    Moved { slot: u16, address: &'a str },
    Ask { address: &'a str },
    Wait,
}

fn turn(error: &StoreError) -> Option<Turn<'_>> {
    let StoreError::Refused { code, detail, .. } = error else {
        return None;
    };
    let mut words = detail.split_ascii_whitespace();
    let mut place = || Some((words.next()?.parse().ok()?, words.next()?));
    match code.as_str() {
        "MOVED" => place().map(|(slot, address)| Turn::Moved { slot, address }),
        "ASK" => place().map(|(_, address)| Turn::Ask { address }),
        "TRYAGAIN" | "CLUSTERDOWN" | "READONLY" => Some(Turn::Wait),
        _ => None,
    }
}

impl Route {
    pub fn link(&self) -> Arc<Link> {
        self.nodes.link(self.nodes.owner(self.slot))
    }

    /// For people: the node that owns the slot now.
    pub fn name(&self) -> String {
        self.link().name()
    }

    /// Sends one command that needs no script.
    pub async fn call(&self, cmd: &Cmd) -> Result<Value, StoreError> {
        self.follow(&self.link(), None, &|_: &Peer| cmd.clone(), None)
            .await
    }

    /// Runs a script. The call is made anew for each process that it is sent to: some scripts compare its run id.
    pub async fn run(
        &self,
        script: &Script,
        call: impl Fn(&Peer) -> Cmd,
    ) -> Result<Value, StoreError> {
        self.follow(&self.link(), Some(script), &call, None).await
    }

    /// Like [`Route::run`], over a connection of the caller's own as long as that leads to the slot's owner.
    pub async fn run_over(
        &self,
        link: &Link,
        script: &Script,
        call: impl Fn(&Peer) -> Cmd,
        replicated: Option<Replicated>,
    ) -> Result<Value, StoreError> {
        self.follow(link, Some(script), &call, replicated).await
    }

    async fn follow(
        &self,
        first: &Link,
        script: Option<&Script>,
        call: &impl Fn(&Peer) -> Cmd,
        replicated: Option<Replicated>,
    ) -> Result<Value, StoreError> {
        let mut error = match attempt(first, script, call, false, replicated).await {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        let mut told_by: Option<Arc<Link>> = None;
        let mut wait = WAIT_MIN;
        for _ in 0..TURNS_MAX {
            let teller = told_by.as_deref().unwrap_or(first);
            let (link, asking) = match turn(&error) {
                Some(Turn::Moved { slot, address }) if self.nodes.is_cluster() => {
                    crate::metrics::get().redirected("moved");
                    let link = self.nodes.at(address, teller)?;
                    self.nodes.set_owner(slot, &link);
                    self.nodes.doubt();
                    (link, false)
                }
                Some(Turn::Ask { address }) if self.nodes.is_cluster() => {
                    crate::metrics::get().redirected("ask");
                    (self.nodes.at(address, teller)?, true)
                }
                Some(Turn::Wait) => {
                    crate::metrics::get().redirected("wait");
                    self.nodes.doubt();
                    tokio::time::sleep(wait).await;
                    wait = (wait * 2).min(WAIT_MAX);
                    (self.link(), false)
                }
                Some(_) | None => break,
            };
            match attempt(&link, script, call, asking, replicated).await {
                Ok(value) => return Ok(value),
                Err(next) => error = next,
            }
            told_by = Some(link);
        }
        if matches!(error, StoreError::Down { .. } | StoreError::Unknown { .. }) {
            // Perhaps somebody else owns the slot by now.
            self.nodes.doubt();
        }
        Err(error)
    }
}

/// One try on one node. A node that does not know the script (restart, failover, SCRIPT FLUSH) is taught it, and asked once more: the
/// refused call ran nothing.
async fn attempt(
    link: &Link,
    script: Option<&Script>,
    call: &impl Fn(&Peer) -> Cmd,
    asking: bool,
    replicated: Option<Replicated>,
) -> Result<Value, StoreError> {
    let connection = link.connect().await?;
    let cmd = call(&connection.peer);
    match send(link, &connection, &cmd, asking, replicated).await {
        Err(StoreError::Refused { code, .. }) if code == "NOSCRIPT" && script.is_some() => {
            let source = script.map_or("", |script| script.source);
            link.call_on(&connection, redis::cmd("SCRIPT").arg("LOAD").arg(source))
                .await?;
            send(link, &connection, &cmd, asking, replicated).await
        }
        result => result,
    }
}

/// The command with what belongs to it, in one round trip: ASKING before it, WAIT behind it.
async fn send(
    link: &Link,
    connection: &Connection,
    cmd: &Cmd,
    asking: bool,
    replicated: Option<Replicated>,
) -> Result<Value, StoreError> {
    if !asking && replicated.is_none() {
        return link.call_on(connection, cmd).await;
    }
    let mut commands = Pipeline::with_capacity(3);
    if asking {
        commands.add_command(redis::cmd("ASKING"));
    }
    commands.add_command(cmd.clone());
    if let Some(Replicated { replicas, wait }) = replicated {
        let mut waiting = if connection.peer.waitaof {
            // On the replicas' disks, not only in their memory.
            let mut waiting = redis::cmd("WAITAOF");
            waiting.arg(0);
            waiting
        } else {
            redis::cmd("WAIT")
        };
        waiting.arg(replicas).arg(wait.as_millis() as u64);
        commands.add_command(waiting);
    }
    let mut answers = link.call_all_on(connection, &commands).await?;
    let short = |acknowledged: String| StoreError::NotReplicated {
        node: link.name(),
        acknowledged,
    };
    let acknowledged = replicated.map(|replicated| (replicated, answers.pop()));
    let value = answers.pop().unwrap_or(Ok(Value::Nil))?;
    match acknowledged {
        None => Ok(value),
        Some((wanted, Some(Ok(answer)))) => match replicas_of(&answer) {
            Some(count) if count >= i64::from(wanted.replicas) => Ok(value),
            Some(count) => Err(short(count.to_string())),
            None => Err(short(format!("{answer:?}"))),
        },
        Some((_, Some(Err(error)))) => Err(error),
        Some((_, None)) => Err(short("nothing".into())),
    }
}

/// WAIT answers with a number, WAITAOF with those of local files and of replicas.
fn replicas_of(answer: &Value) -> Option<i64> {
    match answer {
        Value::Int(count) => Some(*count),
        Value::Array(counts) => match counts[..] {
            [Value::Int(_), Value::Int(replicas)] => Some(replicas),
            _ => None,
        },
        _ => None,
    }
}
