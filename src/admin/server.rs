//! The accept loop. A client that sends its headers slowly, reads no answers, or opens more connections than allowed, costs a bounded amount.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::patient::Patient;
use crate::config;
use crate::task;

#[derive(Debug, thiserror::Error)]
#[error("admin.listen {address}")]
pub struct ListenError {
    address: SocketAddr,
    source: std::io::Error,
}

/// The other end of the connection, among the extensions of each request.
#[derive(Clone, Copy, Debug)]
pub struct Peer(pub IpAddr);

pub struct Server {
    pub address: SocketAddr,
    listener: TcpListener,
    settings: config::Admin,
}

impl Server {
    pub async fn bind(settings: &config::Admin) -> Result<Server, ListenError> {
        let fault = |source| ListenError {
            address: settings.listen,
            source,
        };
        let listener = TcpListener::bind(settings.listen).await.map_err(fault)?;
        let address = listener.local_addr().map_err(fault)?;
        Ok(Server {
            address,
            listener,
            settings: settings.clone(),
        })
    }

    /// Serves until `stop`; requests under way are finished.
    pub fn serve(self, router: Router, tasks: &TaskTracker, stop: CancellationToken) {
        let places = Arc::new(Semaphore::new(self.settings.connections_max));
        let connections = tasks.clone();
        task::spawn(tasks, "admin.accept", async move {
            loop {
                let Ok(place) = places.clone().acquire_owned().await else {
                    return;
                };
                let accepted = tokio::select! {
                    () = stop.cancelled() => return,
                    accepted = self.listener.accept() => accepted,
                };
                let (stream, peer) = match accepted {
                    Ok((stream, from)) => (stream, Peer(from.ip())),
                    Err(error) => {
                        tracing::warn!(%error, "an admin connection cannot be accepted");
                        tokio::time::sleep(Duration::from_millis(20)).await;
                        continue;
                    }
                };
                let (router, stop) = (router.clone(), stop.clone());
                let header_timeout = self.settings.header_timeout;
                let stream = Patient::new(stream, self.settings.write_timeout);
                connections.spawn(async move {
                    let router = TowerToHyperService::new(router);
                    let service = service_fn(move |mut request: hyper::Request<_>| {
                        request.extensions_mut().insert(peer);
                        router.call(request)
                    });
                    let connection = http1::Builder::new()
                        .timer(TokioTimer::new())
                        .header_read_timeout(header_timeout)
                        .serve_connection(TokioIo::new(stream), service);
                    let mut connection = std::pin::pin!(connection);
                    tokio::select! {
                        _ = connection.as_mut() => {}
                        () = stop.cancelled() => {
                            connection.as_mut().graceful_shutdown();
                            let _ = tokio::time::timeout(Duration::from_secs(5), connection).await;
                        }
                    }
                    drop(place);
                });
            }
        });
    }
}
