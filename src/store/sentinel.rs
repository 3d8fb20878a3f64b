//! Redis Sentinel: where each watched primary is now.
//!
//! The sentinels are asked when one of them says that a primary has switched, when a node does not answer or turns out to be a replica, and
//! every second besides.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use redis::aio::MultiplexedConnection;
use redis::{Client, ConnectionAddr, ConnectionInfo, RedisError, Value};
use tokio::sync::Mutex;

use super::StoreError;
use super::bucket::text;
use super::node::Reach;
use super::nodes::Nodes;

const REFRESH: Duration = Duration::from_secs(1);
const REFRESH_MIN: Duration = Duration::from_millis(20);
const SWITCHED: &str = "+switch-master";

/// The sentinels, and the primaries that they watch for us.
pub struct Sentinels {
    reach: Arc<Reach>,
    sentinels: Vec<Sentinel>,
    /// By the node's number.
    watched: Vec<Watched>,
}

struct Watched {
    /// That the sentinels know it by.
    name: String,
    /// What it is reached with.
    info: ConnectionInfo,
    /// The latest configuration that was believed.
    epoch: AtomicU64,
}

struct Sentinel {
    client: Client,
    wire: Mutex<Option<MultiplexedConnection>>,
}

/// Where one sentinel says that a primary is.
struct Said {
    epoch: u64,
    host: String,
    port: u16,
}

impl Sentinels {
    /// `primaries` have the name instead of a host.
    pub fn new(
        reach: &Arc<Reach>,
        sentinels: &[String],
        primaries: &[String],
    ) -> Result<Sentinels, StoreError> {
        let sentinel = |url: &String| {
            Ok(Sentinel {
                client: reach.client(Reach::parse(url)?)?,
                wire: Mutex::default(),
            })
        };
        let primary = |url: &String| {
            let info = Reach::parse(url)?;
            match info.addr() {
                ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => Ok(Watched {
                    name: host.clone(),
                    info: info.clone(),
                    epoch: AtomicU64::new(0),
                }),
                _ => Err(StoreError::Address {
                    url: url.clone(),
                    problem: "under Sentinel it must name a primary, like redis://name".into(),
                }),
            }
        };
        Ok(Sentinels {
            reach: reach.clone(),
            sentinels: sentinels
                .iter()
                .map(sentinel)
                .collect::<Result<_, StoreError>>()?,
            watched: primaries.iter().map(primary).collect::<Result<_, _>>()?,
        })
    }

    /// Where all primaries are, in their order.
    pub async fn find(&self) -> Result<Vec<ConnectionInfo>, StoreError> {
        let places = self.watched.iter().map(|watched| self.locate(watched));
        join_all(places).await.into_iter().collect()
    }

    /// Asks all sentinels; the one with the latest configuration counts, since one that was cut off knows only the past. So fewer than
    /// half of them are not believed when what they say is older than what was known.
    async fn locate(&self, watched: &Watched) -> Result<ConnectionInfo, StoreError> {
        let Watched { name, info, epoch } = watched;
        let asked = self
            .sentinels
            .iter()
            .map(|sentinel| self.ask(sentinel, name));
        let (mut said, mut problem) = (vec![], String::new());
        for answer in join_all(asked).await {
            match answer {
                Ok(answer) => said.push(answer),
                Err(error) => problem = error,
            }
        }
        let most = said.len() > self.sentinels.len() / 2;
        let known = epoch.load(Ordering::Relaxed);
        let latest = said.into_iter().max_by_key(|said| said.epoch);
        if let Some(old) = latest.as_ref().filter(|said| said.epoch < known && !most) {
            problem = format!("what is said is of epoch {}, {known} was known", old.epoch);
        }
        let believed = latest.filter(|said| said.epoch >= known || most);
        let said = believed.ok_or_else(|| StoreError::Sentinel {
            primary: name.to_owned(),
            problem,
        })?;
        epoch.store(said.epoch, Ordering::Relaxed);
        let Said { host, port, .. } = said;
        let addr = match info.addr() {
            ConnectionAddr::TcpTls { insecure, .. } => ConnectionAddr::TcpTls {
                host,
                port,
                insecure: *insecure,
                tls_params: None,
            },
            _ => ConnectionAddr::Tcp(host, port),
        };
        Ok(info.clone().set_addr(addr))
    }

    async fn ask(&self, sentinel: &Sentinel, name: &str) -> Result<Said, String> {
        let asking = async {
            let mut kept = sentinel.wire.lock().await;
            let mut wire = match kept.take() {
                Some(wire) => wire,
                None => self.reach.connect(&sentinel.client).await?,
            };
            let mut cmd = redis::cmd("SENTINEL");
            cmd.arg("MASTER").arg(name);
            let reply = wire.send_packed_command(&cmd).await?;
            // Only a connection that answers is kept.
            *kept = Some(wire);
            reply.extract_error()
        };
        let reply = asking
            .await
            .map_err(|error: RedisError| error.to_string())?;
        let field = |wanted: &str| match &reply {
            Value::Map(pairs) => pairs
                .iter()
                .find(|(key, _)| text(key) == Some(wanted))
                .and_then(|(_, value)| text(value)),
            Value::Array(items) => items
                .chunks(2)
                .find(|pair| text(&pair[0]) == Some(wanted))
                .and_then(|pair| text(pair.get(1)?)),
            _ => None,
        };
        let said = || {
            Some(Said {
                epoch: field("config-epoch")?.parse().ok()?,
                host: field("ip")?.to_owned(),
                port: field("port")?.parse().ok()?,
            })
        };
        said().ok_or_else(|| format!("it answered {reply:?}").chars().take(200).collect())
    }

    /// Moves the nodes to where their primaries are, until it is dropped.
    pub async fn keep(self, nodes: Arc<Nodes>) {
        let refreshing = async {
            loop {
                let _ = tokio::time::timeout(REFRESH, nodes.doubted()).await;
                match self.find().await {
                    Ok(places) => {
                        for (link, place) in nodes.all().iter().zip(places) {
                            if let Err(error) = link.node.move_to(place) {
                                tracing::error!(%error, "the sentinels name a place that cannot be used");
                            }
                        }
                    }
                    Err(error) => tracing::debug!(%error, "the sentinels cannot be asked now"),
                }
                self.look_at_roles(&nodes).await;
                tokio::time::sleep(REFRESH_MIN).await;
            }
        };
        let listening = join_all(
            self.sentinels
                .iter()
                .map(|sentinel| self.listen(&sentinel.client, &nodes)),
        );
        tokio::join!(refreshing, listening);
    }

    /// An old primary that has become a replica keeps its connections: they are given up here.
    async fn look_at_roles(&self, nodes: &Nodes) {
        let look = |link: Arc<super::link::Link>| async move {
            let Ok(connection) = link.connect().await else {
                return;
            };
            let role = link.call_on(&connection, &redis::cmd("ROLE")).await;
            if let Ok(Value::Array(items)) = &role
                && items.first().and_then(text) != Some("master")
            {
                link.drop_connection(&connection, "it is a replica now");
            }
        };
        join_all(nodes.all().iter().cloned().map(look)).await;
    }

    async fn listen(&self, client: &Client, nodes: &Nodes) {
        loop {
            if let Ok(mut listener) = self.reach.subscribe(client, SWITCHED).await {
                let mut messages = listener.on_message();
                while messages.next().await.is_some() {
                    nodes.doubt();
                }
            }
            tokio::time::sleep(self.reach.probe_interval).await;
        }
    }
}
