//! The nodes, and which of them owns which slot.

use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};

use arc_swap::ArcSwap;
use redis::{ConnectionAddr, ConnectionInfo};
use tokio::sync::Notify;

use super::StoreError;
use super::link::Link;
use super::node::{Node, Reach};
use super::slots::{SLOTS, even_owner};

const NOBODY: u16 = u16::MAX;

/// Nodes come and are never forgotten: a number stays a node's own as long as the process runs.
pub struct Nodes {
    pub reach: Arc<Reach>,
    links: ArcSwap<Vec<Arc<Link>>>,
    growing: Mutex<()>,
    /// By slot: the owner's number.
    owners: Box<[AtomicU16]>,
    /// In a cluster: what a node that is found later is reached with.
    like: Option<ConnectionInfo>,
    /// Somebody was told, or has reason to think, that the map is old.
    doubt: Notify,
}

impl Nodes {
    /// Nodes that share the slots evenly in their order.
    pub fn fixed(reach: Arc<Reach>, infos: Vec<ConnectionInfo>) -> Result<Nodes, StoreError> {
        let nodes = Nodes::empty(reach, None);
        for info in infos {
            nodes.grow(info)?;
        }
        let count = nodes.links.load().len();
        for slot in 0..SLOTS {
            nodes.owners[usize::from(slot)]
                .store(even_owner(slot, count) as u16, Ordering::Relaxed);
        }
        Ok(nodes)
    }

    /// Nodes of a Redis Cluster, of which a few are known and the slots not yet.
    pub fn cluster(reach: Arc<Reach>, seeds: Vec<ConnectionInfo>) -> Result<Nodes, StoreError> {
        let nodes = Nodes::empty(reach, seeds.first().cloned());
        for seed in seeds {
            nodes.grow(seed)?;
        }
        Ok(nodes)
    }

    fn empty(reach: Arc<Reach>, like: Option<ConnectionInfo>) -> Nodes {
        Nodes {
            reach,
            links: ArcSwap::default(),
            growing: Mutex::default(),
            owners: (0..SLOTS).map(|_| AtomicU16::new(NOBODY)).collect(),
            like,
            doubt: Notify::new(),
        }
    }

    fn grow(&self, info: ConnectionInfo) -> Result<Arc<Link>, StoreError> {
        let _only_one = self.growing.lock().expect("no panic under this lock");
        let name = info.addr().to_string();
        let mut links = self.links.load().as_ref().clone();
        if let Some(link) = links.iter().find(|link| link.name() == name) {
            return Ok(link.clone());
        }
        let link = Arc::new(Link::new(Arc::new(Node::new(
            links.len(),
            &self.reach,
            info,
        )?)));
        links.push(link.clone());
        self.links.store(Arc::new(links));
        Ok(link)
    }

    /// Whether this is a cluster: then slots change their owners.
    pub fn is_cluster(&self) -> bool {
        self.like.is_some()
    }

    /// Every node ever known, by its number.
    pub fn all(&self) -> Arc<Vec<Arc<Link>>> {
        self.links.load_full()
    }

    /// The nodes that own slots now, by their numbers; all that are known as long as nobody is known to own any.
    pub fn owners(&self) -> Vec<Arc<Link>> {
        let links = self.links.load();
        if !self.is_cluster() {
            return links.as_ref().clone();
        }
        let mut owns = vec![false; links.len()];
        for owner in &self.owners {
            if let Some(owns) = owns.get_mut(usize::from(owner.load(Ordering::Relaxed))) {
                *owns = true;
            }
        }
        if !owns.contains(&true) {
            return links.as_ref().clone();
        }
        links
            .iter()
            .zip(owns)
            .filter(|(_, owns)| *owns)
            .map(|(link, _)| link.clone())
            .collect()
    }

    /// The number of a slot's owner. A slot that nobody owns is asked for at the first node, which says where it is, or why it is nowhere.
    pub fn owner(&self, slot: u16) -> usize {
        match self.owners[usize::from(slot)].load(Ordering::Relaxed) {
            NOBODY => 0,
            owner => usize::from(owner),
        }
    }

    pub fn is_owned(&self, slot: u16) -> bool {
        self.owners[usize::from(slot)].load(Ordering::Relaxed) != NOBODY
    }

    pub fn unowned(&self) -> usize {
        let nobody = |owner: &&AtomicU16| owner.load(Ordering::Relaxed) == NOBODY;
        self.owners.iter().filter(nobody).count()
    }

    pub fn link(&self, node: usize) -> Arc<Link> {
        self.links.load()[node].clone()
    }

    /// The node at `address`, `host:port`; an empty host is that of `told_by`.
    pub fn at(&self, address: &str, told_by: &Link) -> Result<Arc<Link>, StoreError> {
        let fault = || StoreError::Address {
            url: address.to_owned(),
            problem: format!("{} names no host and port", told_by.name()),
        };
        let (host, port) = address.rsplit_once(':').ok_or_else(fault)?;
        let port: u16 = port.parse().map_err(|_| fault())?;
        let info = self.like.clone().ok_or_else(fault)?;
        let teller = told_by.name();
        let host = match host {
            "" | "?" => teller.rsplit_once(':').ok_or_else(fault)?.0,
            host => host,
        };
        let addr = match info.addr() {
            ConnectionAddr::TcpTls { insecure, .. } => ConnectionAddr::TcpTls {
                host: host.to_owned(),
                port,
                insecure: *insecure,
                tls_params: None,
            },
            _ => ConnectionAddr::Tcp(host.to_owned(), port),
        };
        self.grow(info.set_addr(addr))
    }

    pub fn set_owner(&self, slot: u16, owner: &Link) {
        self.owners[usize::from(slot)].store(owner.node.id as u16, Ordering::Relaxed);
    }

    /// Replaces the whole map: ranges of slots and their owners. A slot in none of them is nobody's.
    pub fn set_map(&self, ranges: &[(u16, u16, Arc<Link>)]) {
        let mut map = vec![NOBODY; usize::from(SLOTS)];
        for (first, last, link) in ranges {
            for slot in *first..=(*last).min(SLOTS - 1) {
                map[usize::from(slot)] = link.node.id as u16;
            }
        }
        for (owner, now) in self.owners.iter().zip(map) {
            owner.store(now, Ordering::Relaxed);
        }
    }

    /// The map, or where a node is, may be old: whoever keeps it looks again at once.
    pub fn doubt(&self) {
        self.doubt.notify_one();
    }

    pub async fn doubted(&self) {
        self.doubt.notified().await;
    }
}
