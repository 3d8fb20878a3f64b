//! A Redis Cluster of real processes: primaries that share the slots evenly, replicas if wanted.

use std::sync::Arc;
use std::time::Duration;

use hongbao::store::slots::SLOTS;
use redis::Value;

use super::door::Door;
use super::eventually;
use super::redis::{FIT, Redis, free_port};

/// A node is taken to be dead after this time: long enough for a machine that has other things to do.
pub const NODE_TIMEOUT: Duration = Duration::from_millis(1_500);

pub struct Cluster {
    /// First the primaries, then the replicas of the first, of the second, …
    pub nodes: Vec<Redis>,
    primaries: usize,
    replicas_each: usize,
    extra: Vec<String>,
    door: Arc<Door>,
}

impl Cluster {
    pub async fn start(primaries: usize, replicas_each: usize) -> Cluster {
        Cluster::start_behind(Arc::default(), primaries, replicas_each, &[]).await
    }

    pub async fn start_behind(
        door: Arc<Door>,
        primaries: usize,
        replicas_each: usize,
        extra: &[&str],
    ) -> Cluster {
        let mut cluster = Cluster {
            nodes: vec![],
            primaries,
            replicas_each,
            extra: extra.iter().map(|text| (*text).to_owned()).collect(),
            door,
        };
        for _ in 0..primaries * (1 + replicas_each) {
            cluster.add().await;
        }
        for primary in 0..primaries {
            let first = SLOTS as usize * primary / primaries;
            let last = SLOTS as usize * (primary + 1) / primaries - 1;
            let range = [first.to_string(), last.to_string()];
            cluster.nodes[primary]
                .done(&["CLUSTER", "ADDSLOTSRANGE", &range[0], &range[1]])
                .await;
        }
        cluster.until_known().await;
        for primary in 0..primaries {
            let id = cluster.id(primary).await;
            for replica in cluster.replicas_of(primary) {
                cluster.nodes[replica]
                    .done(&["CLUSTER", "REPLICATE", &id])
                    .await;
            }
        }
        cluster.until_well().await;
        cluster
    }

    /// One more node, without slots, that has met the first; its number.
    pub async fn add(&mut self) -> usize {
        let node = Redis::start_with(&self.door, |_| self.arguments()).await;
        if let Some(first) = self.nodes.first() {
            let (port, bus) = (first.port.to_string(), bus_of(first).await);
            node.done(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus])
                .await;
        }
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    fn arguments(&self) -> Vec<String> {
        let timeout = NODE_TIMEOUT.as_millis().to_string();
        let bus = free_port().to_string();
        let own = [
            "--cluster-enabled",
            "yes",
            "--cluster-port",
            &bus,
            "--cluster-node-timeout",
            &timeout,
            "--repl-diskless-sync-delay",
            "0",
            // However long it has heard nothing, a replica may follow its primary.
            "--cluster-replica-validity-factor",
            "0",
        ];
        let own = FIT.iter().chain(&own).map(|text| (*text).to_owned());
        own.chain(self.door.login_of_servers("--masteruser", "--masterauth"))
            .chain(self.extra.iter().cloned())
            .collect()
    }

    pub fn replicas_of(&self, primary: usize) -> impl Iterator<Item = usize> {
        let first = self.primaries + primary * self.replicas_each;
        first..first + self.replicas_each
    }

    pub async fn id(&self, node: usize) -> String {
        match self.nodes[node].done(&["CLUSTER", "MYID"]).await {
            Value::BulkString(id) => String::from_utf8(id).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    /// Everybody knows everybody.
    pub async fn until_known(&self) {
        let count = self.nodes.len().to_string();
        for node in &self.nodes {
            eventually("the nodes to know each other", async || {
                let known = node.line_of(&["CLUSTER", "INFO"], "cluster_known_nodes");
                (known.await == count).then_some(())
            })
            .await;
        }
    }

    /// Every node that lives finds the cluster well, and every replica has its primary's data.
    pub async fn until_well(&self) {
        for node in &self.nodes {
            eventually("a cluster that is well", async || {
                let state = node.line_of(&["CLUSTER", "INFO"], "cluster_state").await;
                let link = node.info("master_link_status").await;
                (matches!(&*state, "ok") && matches!(&*link, "" | "up")).then_some(())
            })
            .await;
        }
        for primary in 0..self.primaries {
            let wanted = self.replicas_each.to_string();
            eventually("a primary's replicas", async || {
                let replicas = self.nodes[primary].info("connected_slaves").await;
                (replicas == wanted).then_some(())
            })
            .await;
        }
    }

    pub async fn until_primary(&self, node: usize) {
        eventually("a replica to be promoted", async || {
            let info = self.nodes[node].info("role").await;
            (info == "master").then_some(())
        })
        .await;
    }

    /// Settings of the program.
    pub fn flags(&self) -> Vec<String> {
        let urls: Vec<String> = self.nodes[..2].iter().map(Redis::url).collect();
        let mut flags = self.door.flags();
        flags.extend([
            "store.topology=cluster".into(),
            format!("store.nodes={urls:?}"),
            "store.call_timeout_ms=1000".into(),
            "store.probe_interval_ms=20".into(),
            "gateway.retry_after_ms=20".into(),
        ]);
        flags
    }

    /// Says who owns a slot, without moving anything.
    pub async fn assign(&self, slot: u16, to: usize) {
        let (slot, id) = (slot.to_string(), self.id(to).await);
        // The new owner first, so that nobody sends a client to one that does not know yet.
        let mut nodes: Vec<&Redis> = self.nodes.iter().collect();
        nodes.swap(0, to);
        for node in nodes {
            if node.info("role").await == "master" {
                node.done(&["CLUSTER", "SETSLOT", &slot, "NODE", &id]).await;
            }
        }
    }

    /// The slot is on its way: whoever has a key answers for it.
    pub async fn begin_move(&self, slot: u16, from: usize, to: usize) {
        let slot = slot.to_string();
        let (source, target) = (self.id(from).await, self.id(to).await);
        self.nodes[to]
            .done(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source])
            .await;
        self.nodes[from]
            .done(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target])
            .await;
    }

    /// Keys of a slot that are still there.
    pub async fn keys_in(&self, slot: u16, node: usize) -> Vec<String> {
        let slot = slot.to_string();
        let answer = self.nodes[node]
            .done(&["CLUSTER", "GETKEYSINSLOT", &slot, "1000"])
            .await;
        redis::from_redis_value(answer).unwrap()
    }

    pub async fn move_key(&self, key: &str, from: usize, to: usize) {
        let port = self.nodes[to].port.to_string();
        self.nodes[from]
            .done(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000"])
            .await;
    }
}

async fn bus_of(node: &Redis) -> String {
    let answer = node.done(&["CONFIG", "GET", "cluster-port"]).await;
    let pairs: Vec<(String, String)> = redis::from_redis_value(answer).unwrap();
    pairs[0].1.clone()
}
