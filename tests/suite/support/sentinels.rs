//! Primaries with a replica each, and sentinels that watch over them: real processes.

use std::sync::Arc;

use redis::Value;

use super::door::Door;
use super::eventually;
use super::redis::{FIT, Redis};

/// A primary is taken to be dead after this time, ms: long enough for a machine that has other things to do.
const DOWN_AFTER_MS: u32 = 700;

pub struct Sentinels {
    /// As they were in the beginning.
    pub primaries: Vec<Redis>,
    pub replicas: Vec<Redis>,
    pub sentinels: Vec<Redis>,
    door: Arc<Door>,
    /// Of the sentinels.
    gate: Arc<Door>,
}

/// Under which sentinels know a primary.
pub fn name(primary: usize) -> String {
    format!("rain-{primary}")
}

impl Sentinels {
    /// Three sentinels.
    pub async fn start(primaries: usize) -> Sentinels {
        Sentinels::start_behind(Arc::default(), Arc::default(), primaries, &[]).await
    }

    /// Nodes behind `door`, sentinels behind `gate`.
    pub async fn start_behind(
        door: Arc<Door>,
        gate: Arc<Door>,
        primaries: usize,
        extra: &[&str],
    ) -> Sentinels {
        let (mut firsts, mut seconds) = (vec![], vec![]);
        for _ in 0..primaries {
            let primary = Redis::start_behind(&door, &arguments(extra)).await;
            seconds.push(replica_of(&door, primary.port, extra).await);
            firsts.push(primary);
        }
        let addresses: Vec<u16> = firsts.iter().map(|primary| primary.port).collect();
        Sentinels::watch([door, gate], firsts, seconds, &addresses).await
    }

    /// Sentinels that know the primaries by these ports.
    pub async fn watch(
        [door, gate]: [Arc<Door>; 2],
        primaries: Vec<Redis>,
        replicas: Vec<Redis>,
        ports: &[u16],
    ) -> Sentinels {
        let mut sentinels = vec![];
        for _ in 0..3 {
            sentinels.push(sentinel(&door, &gate, ports).await);
        }
        let watched = Sentinels {
            primaries,
            replicas,
            sentinels,
            door,
            gate,
        };
        watched.until_well().await;
        watched
    }

    /// Every sentinel knows the others and a replica of each primary that has its data.
    pub async fn until_well(&self) {
        for sentinel in &self.sentinels {
            for primary in 0..self.primaries.len() {
                eventually("sentinels that know each other", async || {
                    let others = self
                        .said(sentinel, "MASTER", primary, "num-other-sentinels")
                        .await?;
                    let link = self
                        .said(sentinel, "REPLICAS", primary, "master-link-status")
                        .await?;
                    (others == "2" && link == "ok").then_some(())
                })
                .await;
            }
        }
    }

    /// Where the sentinels say that a primary is.
    pub async fn port_of(&self, primary: usize) -> Option<u16> {
        let port = self
            .said(&self.sentinels[2], "MASTER", primary, "port")
            .await?;
        port.parse().ok()
    }

    pub async fn until_switched(&self, primary: usize, port: u16) {
        eventually("the sentinels to switch", async || {
            (self.port_of(primary).await? == port).then_some(())
        })
        .await;
    }

    async fn said(
        &self,
        sentinel: &Redis,
        what: &str,
        primary: usize,
        field: &str,
    ) -> Option<String> {
        let answer = sentinel.ask(&["SENTINEL", what, &name(primary)]).await?;
        // REPLICAS answers with a list of what MASTER answers with.
        let answer = match answer {
            Value::Array(mut replicas) if what == "REPLICAS" => {
                (!replicas.is_empty()).then(|| replicas.remove(0))?
            }
            answer => answer,
        };
        let fields: std::collections::HashMap<String, String> =
            redis::from_redis_value(answer).ok()?;
        fields.get(field).cloned()
    }

    /// Settings of the program.
    pub fn flags(&self) -> Vec<String> {
        let sentinels: Vec<String> = self.sentinels.iter().map(Redis::url).collect();
        let names = 0..self.primaries.len();
        let primaries: Vec<String> = names.map(|n| self.door.url(&name(n))).collect();
        let mut flags = self.door.flags();
        flags.extend([
            "store.topology=sentinel".into(),
            format!("store.nodes={primaries:?}"),
            format!("store.sentinels={sentinels:?}"),
            "store.call_timeout_ms=1000".into(),
            "store.probe_interval_ms=20".into(),
            "gateway.retry_after_ms=20".into(),
        ]);
        flags
    }
}

fn arguments<'a>(extra: &[&'a str]) -> Vec<&'a str> {
    let own = [
        "--repl-diskless-sync-delay",
        "0",
        "--repl-ping-replica-period",
        "1",
    ];
    FIT.iter().chain(&own).chain(extra).copied().collect()
}

pub async fn replica_of(door: &Arc<Door>, port: u16, extra: &[&str]) -> Redis {
    let mut all: Vec<String> = arguments(extra)
        .iter()
        .map(|text| (*text).to_owned())
        .collect();
    all.extend(["--replicaof".into(), format!("127.0.0.1 {port}")]);
    all.extend(door.login_of_servers("--masteruser", "--masterauth"));
    Redis::start_with(door, |_| all.clone()).await
}

async fn sentinel(door: &Door, gate: &Arc<Door>, ports: &[u16]) -> Redis {
    let mut file = "# of a test\n".to_owned();
    for (number, port) in ports.iter().enumerate() {
        let name = name(number);
        file += &format!(
            "sentinel monitor {name} 127.0.0.1 {port} 2\n\
             sentinel down-after-milliseconds {name} {DOWN_AFTER_MS}\n\
             sentinel failover-timeout {name} 3000\n"
        );
        if let [_, user, _, password] = &door.login_of_servers("", "")[..] {
            file += &format!("sentinel auth-user {name} {user}\n");
            file += &format!("sentinel auth-pass {name} {password}\n");
        }
    }
    if let [_, user, _, password] = &gate.login_of_servers("", "")[..] {
        file += &format!("sentinel sentinel-user {user}\nsentinel sentinel-pass {password}\n");
    }
    Redis::start_with(gate, |_| vec![file.clone(), "--sentinel".into()]).await
}
