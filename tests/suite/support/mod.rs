/// Store, ledger and steward in this process.
pub mod bench;
/// A real Chromium.
pub mod browser;
/// A Redis Cluster.
pub mod cluster;
/// A company's balance system that misbehaves on command.
pub mod company;
/// People who tap.
pub mod crowd;
/// TLS and users of Redis.
pub mod door;
/// A private PostgreSQL for the test process.
pub mod postgres;
/// A real Prometheus.
pub mod prometheus;
/// A link that can be cut.
pub mod proxy;
/// A receiver of webhooks that misbehaves on command.
pub mod receiver;
/// Real `redis-server` processes.
pub mod redis;
/// Primaries, their replicas, and sentinels.
pub mod sentinels;
/// Real `hongbao serve` processes.
pub mod server;
/// Requests to the admin API, each part of which may be wrong.
pub mod signed;
/// The wire, byte by byte.
pub mod wire;

use std::time::Duration;

/// Longer than anything here takes on a busy machine: a wait that is never over is a failure with a name.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Asks again and again until `ask` has an answer.
pub async fn eventually<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let asking = async {
        loop {
            if let Some(answer) = ask().await {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(5)).await; // between two questions, not instead of a signal
        }
    };
    match tokio::time::timeout(PATIENCE, asking).await {
        Ok(answer) => answer,
        Err(_) => panic!("waited {PATIENCE:?} in vain for {what}"),
    }
}
