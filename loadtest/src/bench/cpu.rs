//! B8: what a winning grab costs in processor time, gateway and nodes together, as nodes are added.

use hongbao::rain::Durability;
use hongbao::wire::Outcome;
use tempfile::TempDir;

use super::redis::{Fsync, Redis};
use super::server::Server;
use super::table::{Figures, Goal, Row};
use super::{BenchError, Setup, Side, all_are, edge_swarm};
use crate::swarm::dialect::Gateway;
use crate::swarm::{Closed, Swarm};

const NODES: [usize; 4] = [1, 2, 4, 8];
/// 400 for each of 8 nodes, as much as one is given in a hot rain.
const SESSIONS: usize = 3_200;
/// As phones do. With more in flight on a session its answers share writes, the more the fewer nodes they come from: that would measure the
/// sharing.
const IN_FLIGHT: u32 = 1;
/// Enough that a tick of the processor clock, 10 ms, is a small part of what they cost.
const WINS: u32 = 200_000;

struct System {
    swarm: Swarm<Gateway>,
    server: Server,
    nodes: Vec<Redis>,
}

pub async fn b8(setup: &Setup) -> Result<Vec<Row>, BenchError> {
    setup.tell("B8: processor time with 1, 2, 4 and 8 nodes");
    let folder = setup.folder()?;
    let mut systems = vec![];
    for count in NODES {
        systems.push(System::start(setup, &folder, count).await?);
    }
    let mut sides: Vec<Side> = systems
        .iter_mut()
        .map(|system| Box::new(|| system.round(setup)) as Side)
        .collect();
    let figures = setup.alternate(&mut sides)?;
    drop(sides);
    let side = |at: usize| {
        let plural = if NODES[at] == 1 { "" } else { "s" };
        let name = format!("{} node{plural}", NODES[at]);
        Figures::new(&name, "µs", figures[at].clone())
    };
    let row = |at: usize| {
        let what = format!("processor time of a winning grab, {} nodes", NODES[at]);
        Row::ratio("B8", &what, Goal::AtMost(1.15), side(at), side(0))
    };
    Ok((1..NODES.len()).map(row).collect())
}

impl System {
    async fn start(setup: &Setup, folder: &TempDir, count: usize) -> Result<System, BenchError> {
        let mut nodes = vec![];
        for number in 0..count {
            let dir = folder.path().join(format!("{count}-{number}"));
            std::fs::create_dir_all(&dir).map_err(BenchError::io("make a folder"))?;
            nodes.push(Redis::start(&dir, Fsync::EverySecond)?);
        }
        let urls: Vec<String> = nodes.iter().map(|node| node.url.clone()).collect();
        let data = folder.path().join(format!("hongbao-{count}"));
        let roles = "gateway,steward,admin";
        let server = Server::start(&setup.hongbao, &data, roles, &urls, &[]).await?;
        // Users do not spread evenly over the buckets: with a fifth more, none runs dry.
        let packets = WINS * setup.rounds as u32 * 6 / 5;
        let rain = server.open_rain("b8", packets, count as u32, Durability::Memory);
        let rain = rain.await?;
        // The generator is phones, which have processors of their own: it must not be what limits, or batches are as small as it is slow.
        server.process.give_way()?;
        nodes
            .iter()
            .try_for_each(|node: &Redis| node.process.give_way())?;
        Ok(System {
            swarm: edge_swarm(&server, rain, SESSIONS, "b8")?,
            server,
            nodes,
        })
    }

    /// Processor time of one winning grab, µs.
    fn round(&mut self, setup: &Setup) -> Result<f64, BenchError> {
        let before = self.cpu_seconds();
        let closed = Closed {
            in_flight: IN_FLIGHT,
            warm_up: std::time::Duration::ZERO,
            length: setup.length * 10,
            requests_max: WINS.into(),
        };
        let tally = self.swarm.closed_loop(closed);
        let tally = tally.map_err(BenchError::io("run the generator"))?;
        all_are(&tally, Some(Outcome::Won))?;
        Ok((self.cpu_seconds() - before) * 1e6 / tally.answered as f64)
    }

    fn cpu_seconds(&self) -> f64 {
        let nodes = self.nodes.iter().map(|node| node.process.cpu_seconds());
        nodes.sum::<f64>() + self.server.process.cpu_seconds()
    }
}
