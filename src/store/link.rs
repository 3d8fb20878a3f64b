//! One connection to one node, made again when it breaks. Nothing is ever sent twice here: whoever repeats a call knows that it may.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionInfo, IntoConnectionInfo, Pipeline, RedisError,
    Value,
};

use super::{StoreError, admission};
use crate::config;
use crate::rain::Durability;

/// How to reach a node.
#[derive(Clone, Debug)]
pub struct Address {
    /// For people: never with a password.
    pub name: String,
    client: Client,
    timeouts: config::Store,
    needs: Durability,
}

impl Address {
    /// `needs` is what every node must offer, whatever a rain asks for.
    pub fn new(
        url: &str,
        settings: &config::Store,
        needs: Durability,
    ) -> Result<Address, StoreError> {
        let invalid = |error: RedisError| StoreError::Address {
            url: without_password(url),
            problem: error.to_string(),
        };
        let info: ConnectionInfo = url.into_connection_info().map_err(invalid)?;
        // RESP3 tells an idle connection that it was closed, instead of leaving the next call to find out.
        let redis = info
            .redis_settings()
            .clone()
            .set_protocol(redis::ProtocolVersion::RESP3)
            .set_skip_set_lib_name();
        let tcp = redis::io::tcp::TcpSettings::default()
            .set_nodelay(true)
            .set_keepalive(
                redis::io::tcp::socket2::TcpKeepalive::new()
                    .with_time(std::time::Duration::from_secs(10)),
            );
        let info = info.set_redis_settings(redis).set_tcp_settings(tcp);
        let name = info.addr().to_string();
        let client = Client::open(info).map_err(invalid)?;
        Ok(Address {
            name,
            client,
            timeouts: settings.clone(),
            needs,
        })
    }

    async fn connect(&self) -> Result<MultiplexedConnection, RedisError> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.timeouts.connect_timeout))
            .set_response_timeout(Some(self.timeouts.call_timeout));
        self.client
            .get_multiplexed_async_connection_with_config(&config)
            .await
    }

    pub fn needs(&self) -> Durability {
        self.needs
    }

    pub fn probe_interval(&self) -> std::time::Duration {
        self.timeouts.probe_interval
    }

    /// A connection of its own that listens to one channel.
    pub async fn subscribe(&self, channel: &str) -> Result<redis::aio::PubSub, RedisError> {
        let connect = self.client.get_async_pubsub();
        let mut listener = match tokio::time::timeout(self.timeouts.connect_timeout, connect).await
        {
            Ok(connected) => connected?,
            Err(_) => return Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()),
        };
        listener.subscribe(channel).await?;
        Ok(listener)
    }
}

fn without_password(url: &str) -> String {
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}://…@{host}"),
        _ => url.to_owned(),
    }
}

/// A connection that is made on first use, dropped after an error or time-out, and made again. While a node is down at most one attempt
/// each probe interval reaches it; all other calls fail at once.
pub struct Link {
    pub address: Address,
    state: Mutex<State>,
    /// Held while connecting, so that a hundred callers make one connection.
    connecting: tokio::sync::Mutex<()>,
    generation: AtomicU64,
}

#[derive(Default)]
struct State {
    connection: Option<(u64, MultiplexedConnection)>,
    /// When the last attempt to connect failed, and why.
    failed: Option<(Instant, StoreError)>,
    offers: Option<Durability>,
}

impl Link {
    pub fn new(address: Address) -> Link {
        Link {
            address,
            state: Mutex::default(),
            connecting: tokio::sync::Mutex::default(),
            generation: AtomicU64::new(0),
        }
    }

    /// Sends one command. `Refused` means that the node answered with an error; `Down` that it was never sent; `Unknown` that it may or
    /// may not have run.
    pub async fn call(&self, cmd: &Cmd) -> Result<Value, StoreError> {
        let (generation, mut connection) = self.connection().await?;
        match connection.send_packed_command(cmd).await {
            // The crate hands a node's refusal on as a value.
            Ok(Value::ServerError(error)) => Err(self.refused(
                generation,
                error.code().to_owned(),
                error.details().unwrap_or_default().to_owned(),
            )),
            Ok(value) => Ok(value),
            Err(error) => Err(self.failed(generation, error)),
        }
    }

    /// Sends many commands in one round trip; the node's answers in their order, each refused or not for itself. `Err` means that nothing
    /// is known of any of them, or with `Down` that none was sent.
    pub async fn call_all(
        &self,
        commands: &Pipeline,
    ) -> Result<Vec<Result<Value, StoreError>>, StoreError> {
        let (generation, mut connection) = self.connection().await?;
        let answers = connection
            .send_packed_commands(commands, 0, commands.len())
            .await
            .map_err(|error| self.failed(generation, error))?;
        let read = |answer| match answer {
            Value::ServerError(error) => Err(self.refused(
                generation,
                error.code().to_owned(),
                error.details().unwrap_or_default().to_owned(),
            )),
            value => Ok(value),
        };
        Ok(answers.into_iter().map(read).collect())
    }

    /// How durable a write is once this node has answered; `None` while it has not been asked.
    pub fn offers(&self) -> Option<Durability> {
        self.state.lock().expect("no panic under this lock").offers
    }

    async fn connection(&self) -> Result<(u64, MultiplexedConnection), StoreError> {
        if let Some(ready) = self.ready()? {
            return Ok(ready);
        }
        let _only_one = self.connecting.lock().await;
        if let Some(ready) = self.ready()? {
            return Ok(ready);
        }
        // Every connection is looked at: a node may come back with other settings than it left with.
        let connected = match self.address.connect().await {
            Ok(mut connection) => match admission::check(&self.address, &mut connection).await {
                Ok(offers) => Ok((connection, offers)),
                Err(unfit @ StoreError::Unfit { .. }) => return Err(self.is_down(unfit)),
                Err(error) => Err(error.to_string()),
            },
            Err(error) => Err(error.to_string()),
        };
        match connected {
            Ok((connection, offers)) => {
                let mut state = self.state.lock().expect("no panic under this lock");
                let generation = self.generation.fetch_add(1, Ordering::Relaxed) + 1;
                if state.failed.take().is_some() {
                    tracing::info!(node = %self.address.name, "node is up again");
                }
                state.offers = Some(offers);
                state.connection = Some((generation, connection.clone()));
                Ok((generation, connection))
            }
            Err(cause) => Err(self.is_down(StoreError::Down {
                node: self.address.name.clone(),
                cause,
            })),
        }
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

    /// The connection if there is one; an error while it is too early to try again.
    fn ready(&self) -> Result<Option<(u64, MultiplexedConnection)>, StoreError> {
        let state = self.state.lock().expect("no panic under this lock");
        if let Some(ready) = &state.connection {
            return Ok(Some(ready.clone()));
        }
        match &state.failed {
            Some((at, error)) if at.elapsed() < self.address.timeouts.probe_interval => {
                Err(error.clone())
            }
            _ => Ok(None),
        }
    }

    fn failed(&self, generation: u64, error: RedisError) -> StoreError {
        // Whatever has a code was said by the node; without one, nobody knows what happened there.
        if let Some(code) = error.code().filter(|_| !error.is_io_error()) {
            return self.refused(
                generation,
                code.to_owned(),
                error.detail().unwrap_or_default().to_owned(),
            );
        }
        let cause = error.to_string();
        self.drop_connection(generation, &cause);
        StoreError::Unknown {
            node: self.address.name.clone(),
            cause,
        }
    }

    fn refused(&self, generation: u64, code: String, detail: String) -> StoreError {
        if code == "READONLY" {
            // After a failover the old connection stays with the old primary.
            self.drop_connection(generation, "read-only");
        }
        StoreError::Refused {
            node: self.address.name.clone(),
            code,
            detail,
        }
    }

    /// A time-out leaves replies on their way that nobody waits for: the connection is not used again.
    fn drop_connection(&self, generation: u64, cause: &str) {
        let mut state = self.state.lock().expect("no panic under this lock");
        if state
            .connection
            .as_ref()
            .is_some_and(|(current, _)| *current == generation)
        {
            tracing::warn!(node = %self.address.name, cause, "connection given up");
            state.connection = None;
        }
    }
}
