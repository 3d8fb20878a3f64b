//! One connection to one node, made again when it breaks. Nothing is ever sent twice here: whoever repeats a call knows that it may.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, RedisError, ServerError, Value};

use super::node::{Node, Peer, Target};
use super::{StoreError, admission};

/// A connection that is made on first use, dropped after an error or time-out, and made again. While a node is down at most one attempt
/// each probe interval reaches it; all other calls fail at once.
pub struct Link {
    pub node: Arc<Node>,
    state: Mutex<State>,
    /// Held while connecting, so that a hundred callers make one connection.
    connecting: tokio::sync::Mutex<()>,
    generation: AtomicU64,
}

#[derive(Default)]
struct State {
    connection: Option<Connection>,
    /// When the last attempt to connect failed, and why.
    failed: Option<(Instant, StoreError)>,
}

/// A connection, and who is at its other end. It stays with that process: one that has restarted is behind another connection.
#[derive(Clone)]
pub struct Connection {
    generation: u64,
    /// The version of the node's target that this leads to.
    version: u64,
    wire: MultiplexedConnection,
    pub peer: Arc<Peer>,
}

impl Link {
    pub fn new(node: Arc<Node>) -> Link {
        Link {
            node,
            state: Mutex::default(),
            connecting: tokio::sync::Mutex::default(),
            generation: AtomicU64::new(0),
        }
    }

    /// For people: never with a password.
    pub fn name(&self) -> String {
        self.node.name()
    }

    /// Sends one command. `Refused` means that the node answered with an error; `Down` that it was never sent; `Unknown` that it may or
    /// may not have run.
    pub async fn call(&self, cmd: &Cmd) -> Result<Value, StoreError> {
        let connection = self.connect().await?;
        self.call_on(&connection, cmd).await
    }

    /// Sends many commands in one round trip; the node's answers in their order, each refused or not for itself. `Err` means that nothing
    /// is known of any of them, or with `Down` that none was sent.
    pub async fn call_all(
        &self,
        commands: &Pipeline,
    ) -> Result<Vec<Result<Value, StoreError>>, StoreError> {
        let connection = self.connect().await?;
        self.call_all_on(&connection, commands).await
    }

    pub async fn call_on(&self, connection: &Connection, cmd: &Cmd) -> Result<Value, StoreError> {
        match connection.wire.clone().send_packed_command(cmd).await {
            // The crate hands a node's refusal on as a value.
            Ok(Value::ServerError(error)) => Err(self.refusal(connection, &error)),
            Ok(value) => Ok(value),
            Err(error) => Err(self.failed(connection, error)),
        }
    }

    pub async fn call_all_on(
        &self,
        connection: &Connection,
        commands: &Pipeline,
    ) -> Result<Vec<Result<Value, StoreError>>, StoreError> {
        let mut wire = connection.wire.clone();
        let answers = wire
            .send_packed_commands(commands, 0, commands.len())
            .await
            .map_err(|error| self.failed(connection, error))?;
        let read = |answer| match answer {
            Value::ServerError(error) => Err(self.refusal(connection, &error)),
            value => Ok(value),
        };
        Ok(answers.into_iter().map(read).collect())
    }

    /// Who answered last, if there is a connection.
    pub fn peer(&self) -> Option<Arc<Peer>> {
        let state = self.state.lock().expect("no panic under this lock");
        let connection = state.connection.as_ref();
        connection.map(|connection| connection.peer.clone())
    }

    /// The connection, made if there is none.
    pub async fn connect(&self) -> Result<Connection, StoreError> {
        if let Some(ready) = self.ready()? {
            return Ok(ready);
        }
        let _only_one = self.connecting.lock().await;
        if let Some(ready) = self.ready()? {
            return Ok(ready);
        }
        let target = self.node.target();
        match self.look_at(&target).await {
            Ok((wire, peer)) => {
                if self.node.saw(&peer.run_id) {
                    tracing::debug!(node = %target.name, run_id = %peer.run_id, "another process than before");
                }
                let connection = Connection {
                    generation: self.generation.fetch_add(1, Ordering::Relaxed) + 1,
                    version: target.version,
                    wire,
                    peer: Arc::new(peer),
                };
                crate::metrics::get().node_up(&target.name, true);
                let mut state = self.state.lock().expect("no panic under this lock");
                if state.failed.take().is_some() {
                    tracing::info!(node = %target.name, "node is up again");
                }
                state.connection = Some(connection.clone());
                Ok(connection)
            }
            Err(error) => {
                crate::metrics::get().node_up(&target.name, false);
                Err(self.is_down(error))
            }
        }
    }

    /// Every connection is looked at: a node may come back with other settings than it left with, or as a replica.
    async fn look_at(&self, target: &Target) -> Result<(MultiplexedConnection, Peer), StoreError> {
        let reach = &self.node.reach;
        let down = |error: RedisError| StoreError::Down {
            node: target.name.clone(),
            cause: error.to_string(),
        };
        let mut wire = reach.connect(&target.client).await.map_err(down)?;
        let exam = admission::examine(&mut wire).await.map_err(down)?;
        let peer = exam.admit(&target.name, reach)?;
        Ok((wire, peer))
    }

    /// Notes why there is no connection, so that the next callers learn it without trying. Said once, not at every try.
    fn is_down(&self, error: StoreError) -> StoreError {
        let mut state = self.state.lock().expect("no panic under this lock");
        if state.failed.is_none() {
            tracing::warn!(%error, "node is down");
        }
        state.failed = Some((Instant::now(), error.clone()));
        error
    }

    /// The connection if there is one to where the node is now; an error while it is too early to try again.
    fn ready(&self) -> Result<Option<Connection>, StoreError> {
        let version = self.node.version();
        let mut state = self.state.lock().expect("no panic under this lock");
        match &state.connection {
            Some(ready) if ready.version == version => return Ok(Some(ready.clone())),
            Some(_) => {
                state.connection = None;
                state.failed = None;
            }
            None => {}
        }
        match &state.failed {
            Some((at, error)) if at.elapsed() < self.node.reach.probe_interval => {
                Err(error.clone())
            }
            _ => Ok(None),
        }
    }

    fn failed(&self, connection: &Connection, error: RedisError) -> StoreError {
        // Whatever has a code was said by the node; without one, nobody knows what happened there.
        if let Some(code) = error.code().filter(|_| !error.is_io_error()) {
            let detail = error.detail().unwrap_or_default();
            return self.refused(connection, code, detail);
        }
        let cause = error.to_string();
        self.drop_connection(connection, &cause);
        StoreError::Unknown {
            node: self.name(),
            cause,
        }
    }

    fn refusal(&self, connection: &Connection, error: &ServerError) -> StoreError {
        self.refused(
            connection,
            error.code(),
            error.details().unwrap_or_default(),
        )
    }

    fn refused(&self, connection: &Connection, code: &str, detail: &str) -> StoreError {
        if code == "READONLY" {
            // After a failover the old connection stays with the old primary.
            self.drop_connection(connection, "read-only");
        }
        StoreError::Refused {
            node: self.name(),
            code: code.to_owned(),
            detail: detail.to_owned(),
        }
    }

    /// The next call finds out anew who is there, and how durable what it writes is.
    pub fn look_again(&self, cause: &str) {
        let mut state = self.state.lock().expect("no panic under this lock");
        if state.connection.take().is_some() {
            tracing::debug!(node = %self.name(), cause, "connection given up");
        }
    }

    /// A time-out leaves replies on their way that nobody waits for: the connection is not used again.
    pub fn drop_connection(&self, connection: &Connection, cause: &str) {
        let mut state = self.state.lock().expect("no panic under this lock");
        let current = state.connection.as_ref();
        if current.is_some_and(|current| current.generation == connection.generation) {
            tracing::warn!(node = %self.name(), cause, "connection given up");
            state.connection = None;
        }
    }
}
