//! accept → frame → session → admission → batch → reply, and pushes.

/// What is answered without Redis.
mod admission;
/// When to look at which session again.
mod deadlines;
/// Those who tap before the opening, too often.
mod early;
/// Servers that grab for many users over one connection.
mod edge;
/// From the accepted connection to a session: limits, PROXY header, TLS handshake.
mod entry;
/// Requests that take more than a moment.
mod errand;
/// A user's messages: pages that are asked for, and pushes.
mod inbox;
/// Batches on their way to a node.
mod lane;
/// How many may come in, from where, and how much each may ask.
mod limits;
/// Hello, Refresh, and the end of what they allowed.
mod login;
/// How many packets are left.
mod progress;
/// What a load balancer says about whom it forwards.
mod proxy;
/// The rains this gateway knows, and when to tell clients of them.
mod rains;
/// An external service is asked about users.
pub mod risk;
/// Who has how many sessions.
mod roll;
/// Who watches what.
mod rooms;
/// One client connection.
mod session;
/// The certificate, read again when it changes.
mod tls;
/// Who a session speaks for.
pub mod token;
/// The socket itself, or TLS over it.
mod transport;
/// Which sessions are a user's.
mod users;
/// One thread with its own runtime, sessions and lanes.
mod worker;

/// A worker and its sessions without a listener and without a node.
#[cfg(test)]
mod tests;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread::JoinHandle;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use tokio::sync::mpsc;
use tokio::task::LocalSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config;
use crate::store::Store;
use crate::task;
use early::Early;
use limits::{Clock, Doors, UserRates};
use rains::Rains;
use risk::Risk;
use roll::Roll;
use tls::Certificates;
use token::TokenKeys;
use worker::{Inputs, Shared, Worker};

/// Connections that wait to be accepted.
const BACKLOG: i32 = 4_096;
/// Pushes that wait for a worker: far more than the changes of all rains in a second.
const PUSHES_MAX: usize = 1_024;
/// News of credits that wait for a worker, 500 credits each and shared by all workers.
const NEWS_MAX: usize = 64;

#[derive(Debug, thiserror::Error)]
#[error("gateway.listen {address}")]
pub struct ListenError {
    address: SocketAddr,
    source: io::Error,
}

/// A running gateway.
pub struct Gateway {
    pub address: SocketAddr,
    drain: CancellationToken,
    drain_delay: Duration,
    workers: Vec<JoinHandle<()>>,
}

impl Gateway {
    /// Listens and serves. Must be called inside a tokio runtime, which keeps the rain directory; sessions live on threads of their own.
    pub fn start(
        settings: &config::Gateway,
        tokens: TokenKeys,
        risk: Option<Arc<Risk>>,
        store: Arc<Store>,
        tasks: &TaskTracker,
    ) -> Result<Gateway, ListenError> {
        let certificates = match &settings.tls {
            None => None,
            Some(files) => Some(Arc::new(Certificates::open(files).map_err(|error| {
                ListenError {
                    address: settings.listen,
                    source: error.into(),
                }
            })?)),
        };
        let listeners = listen(settings)?;
        let address = listeners[0].local_addr().map_err(|source| ListenError {
            address: settings.listen,
            source,
        })?;
        let drain = CancellationToken::new();
        let rains = Arc::new(Rains::new(store.clone()));
        let clock = Clock::start();
        let shared = Arc::new(Shared {
            settings: settings.clone(),
            tokens: Arc::new(tokens),
            roll: Roll::new(settings.sessions_per_user),
            early: Early::new(settings),
            risk,
            rains: rains.clone(),
            store,
            clock,
            doors: Doors::new(settings, clock),
            user_rates: UserRates::new(settings, clock),
            certificates: certificates.clone(),
            next_session: AtomicU64::new(1),
            drain: drain.clone(),
        });
        let keys = shared.tokens.clone();
        let keep = keys.keep(settings.keys_poll, drain.clone());
        task::spawn(tasks, "gateway.keys", keep);
        let news = shared.store.watch_credited(tasks, drain.clone());
        let (mut senders, mut news_senders, mut workers) = (vec![], vec![], vec![]);
        for (number, listener) in listeners.into_iter().enumerate() {
            let (sender, pushes) = mpsc::channel(PUSHES_MAX);
            senders.push(sender);
            let (sender, news) = mpsc::channel(NEWS_MAX);
            news_senders.push(sender);
            let shared = shared.clone();
            let serve = move || serve(shared, listener, Inputs { pushes, news });
            let thread = std::thread::Builder::new()
                .name(format!("gateway-{number}"))
                .spawn(serve);
            workers.push(thread.map_err(|source| ListenError { address, source })?);
        }
        let tracker = tasks.clone();
        if let Some(certificates) = certificates {
            task::spawn(
                tasks,
                "gateway.certificates",
                certificates.keep(drain.clone()),
            );
        }
        task::spawn(tasks, "gateway.rains", async move {
            rains.keep(senders, &tracker, drain).await
        });
        task::spawn(tasks, "gateway.news", inbox::hand_on(news, news_senders));
        Ok(Gateway {
            address,
            drain: shared.drain.clone(),
            drain_delay: settings.drain_delay,
            workers,
        })
    }

    /// Waits for load balancers to notice, stops accepting, sends everyone away, lets grabs in flight finish, and returns when all workers have ended.
    pub async fn drain(self) {
        tokio::time::sleep(self.drain_delay).await;
        self.drain.cancel();
        let join = move || {
            self.workers
                .into_iter()
                .for_each(|worker| drop(worker.join()))
        };
        let _ = tokio::task::spawn_blocking(join).await;
    }
}

fn serve(shared: Arc<Shared>, listener: std::net::TcpListener, inputs: Inputs) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.expect("a runtime can be built at start-up");
    LocalSet::new().block_on(&runtime, async move {
        let listener =
            tokio::net::TcpListener::from_std(listener).expect("the listener does not block");
        Worker::new(shared).run(listener, inputs).await;
    });
}

/// One listener a worker on the same address: the kernel spreads the connections.
fn listen(settings: &config::Gateway) -> Result<Vec<std::net::TcpListener>, ListenError> {
    let mut address = settings.listen;
    let mut listeners = vec![];
    for _ in 0..settings.workers {
        let listener = bind(address, settings.workers > 1)
            .map_err(|source| ListenError { address, source })?;
        // Port 0 is chosen once, for all.
        address = listener
            .local_addr()
            .map_err(|source| ListenError { address, source })?;
        listeners.push(listener);
    }
    Ok(listeners)
}

fn bind(address: SocketAddr, shared: bool) -> io::Result<std::net::TcpListener> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    socket.set_reuse_address(true)?;
    if shared {
        socket.set_reuse_port(true)?;
    }
    socket.set_nonblocking(true)?;
    // Connections inherit it: one call for all of them.
    socket.set_tcp_nodelay(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}
