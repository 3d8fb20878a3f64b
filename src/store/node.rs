//! A node: a Redis primary, wherever it is now, and how to reach it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::aio::{MultiplexedConnection, PubSub};
use redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, ConnectionInfo, IntoConnectionInfo, RedisError,
    TlsCertificates,
};
use tokio::sync::watch;

use super::StoreError;
use crate::config;
use crate::rain::Durability;

/// Characters of a run id that are kept: it is compared in every call of `grab.lua`, and 64 bits tell processes apart.
const RUN_ID_KEPT: usize = 16;

/// What all nodes are reached with.
#[derive(Debug)]
pub struct Reach {
    pub connect_timeout: Duration,
    pub call_timeout: Duration,
    pub probe_interval: Duration,
    /// What every node must offer, whatever a rain asks for.
    pub needs: Durability,
    /// Whether a node may turn into a replica: then one that is, is away and will be found elsewhere; otherwise it is a mistake.
    pub roles_change: bool,
    certificates: TlsCertificates,
}

impl Reach {
    pub fn new(settings: &config::Store, needs: Durability) -> Result<Reach, StoreError> {
        let read = |path: &Option<std::path::PathBuf>| match path {
            None => Ok(None),
            Some(path) => std::fs::read(path)
                .map(Some)
                .map_err(|error| StoreError::Tls {
                    path: path.clone(),
                    problem: error.to_string(),
                }),
        };
        let tls = &settings.tls;
        let (certificate, key) = (read(&tls.cert_file)?, read(&tls.key_file)?);
        let client_tls = certificate.zip(key);
        Ok(Reach {
            connect_timeout: settings.connect_timeout,
            call_timeout: settings.call_timeout,
            probe_interval: settings.probe_interval,
            needs,
            roles_change: matches!(
                settings.topology,
                config::Topology::Sentinel { .. } | config::Topology::Cluster { .. }
            ),
            certificates: TlsCertificates {
                client_tls: client_tls.map(|(client_cert, client_key)| ClientTlsConfig {
                    client_cert,
                    client_key,
                }),
                root_cert: read(&tls.ca_file)?,
            },
        })
    }

    pub fn parse(url: &str) -> Result<ConnectionInfo, StoreError> {
        url.into_connection_info()
            .map_err(|error| StoreError::Address {
                url: without_password(url),
                problem: error.to_string(),
            })
    }

    /// A client that connects to `info` as we want every connection to be.
    pub fn client(&self, info: ConnectionInfo) -> Result<Client, StoreError> {
        let name = info.addr().to_string();
        // RESP3 tells an idle connection that it was closed, instead of leaving the next call to find out.
        let redis = info
            .redis_settings()
            .clone()
            .set_protocol(redis::ProtocolVersion::RESP3)
            .set_skip_set_lib_name();
        let keepalive = redis::io::tcp::socket2::TcpKeepalive::new()
            .with_time(Duration::from_secs(10))
            .with_interval(Duration::from_secs(3));
        let tcp = redis::io::tcp::TcpSettings::default()
            .set_nodelay(true)
            .set_keepalive(keepalive)
            .set_user_timeout(Duration::from_secs(10));
        let encrypted = matches!(info.addr(), redis::ConnectionAddr::TcpTls { .. });
        let info = info.set_redis_settings(redis).set_tcp_settings(tcp);
        let client = if encrypted {
            Client::build_with_tls(info, self.certificates.clone())
        } else {
            Client::open(info)
        };
        client.map_err(|error| StoreError::Address {
            url: name,
            problem: error.to_string(),
        })
    }

    /// A connection to `client`, within the time for connecting.
    pub async fn connect(&self, client: &Client) -> Result<MultiplexedConnection, RedisError> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.connect_timeout))
            .set_response_timeout(Some(self.call_timeout));
        client
            .get_multiplexed_async_connection_with_config(&config)
            .await
    }

    /// A connection of its own that listens to one channel.
    pub async fn subscribe(&self, client: &Client, channel: &str) -> Result<PubSub, RedisError> {
        let late = || RedisError::from(std::io::Error::from(std::io::ErrorKind::TimedOut));
        let connecting = async {
            let mut listener = client.get_async_pubsub().await?;
            listener.subscribe(channel).await?;
            Ok(listener)
        };
        let connected = tokio::time::timeout(self.connect_timeout, connecting).await;
        connected.map_err(|_| late())?
    }
}

pub fn without_password(url: &str) -> String {
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}://…@{host}"),
        _ => url.to_owned(),
    }
}

/// Where a node is.
pub struct Target {
    /// For people: never with a password.
    pub name: String,
    pub client: Client,
    /// Grows with every move.
    pub version: u64,
}

/// A primary that owns slots, under one number for as long as the process runs.
pub struct Node {
    pub id: usize,
    pub reach: Arc<Reach>,
    target: watch::Sender<Arc<Target>>,
    version: AtomicU64,
    /// The run id seen last.
    run_id: Mutex<String>,
}

impl Node {
    pub fn new(id: usize, reach: &Arc<Reach>, info: ConnectionInfo) -> Result<Node, StoreError> {
        let name = info.addr().to_string();
        let client = reach.client(info)?;
        let target = Target {
            name,
            client,
            version: 0,
        };
        Ok(Node {
            id,
            reach: reach.clone(),
            target: watch::Sender::new(Arc::new(target)),
            version: AtomicU64::new(0),
            run_id: Mutex::default(),
        })
    }

    pub fn target(&self) -> Arc<Target> {
        self.target.borrow().clone()
    }

    /// Learns when the node has moved.
    pub fn moves(&self) -> watch::Receiver<Arc<Target>> {
        self.target.subscribe()
    }

    /// For people: never with a password.
    pub fn name(&self) -> String {
        self.target.borrow().name.clone()
    }

    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// The node is at `info` from now on; connections to where it was are not used again.
    pub fn move_to(&self, info: ConnectionInfo) -> Result<(), StoreError> {
        let name = info.addr().to_string();
        if self.target.borrow().name == name {
            return Ok(());
        }
        let client = self.reach.client(info)?;
        self.target.send_modify(|target| {
            tracing::warn!(from = %target.name, to = %name, "a node has moved");
            crate::metrics::get().node_left(&target.name);
            *target = Arc::new(Target {
                name,
                client,
                version: target.version + 1,
            });
        });
        self.version.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// Whether this is another process than the one seen before.
    pub fn saw(&self, run_id: &str) -> bool {
        let mut seen = self.run_id.lock().expect("no panic under this lock");
        if *seen == run_id {
            return false;
        }
        run_id.clone_into(&mut seen);
        true
    }
}

/// The process at the other end of a connection, as it was when the connection was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Of the server process, shortened: another one after every restart.
    pub run_id: String,
    /// Whether what it has answered is on its disk.
    pub fsync: bool,
    /// Whether WAITAOF is asked instead of WAIT.
    pub waitaof: bool,
    /// How far its clock is ahead of ours, ms, give or take half the time that asking took.
    pub clock_ahead_ms: i64,
}

pub fn short_run_id(run_id: &str) -> String {
    run_id.chars().take(RUN_ID_KEPT).collect()
}
