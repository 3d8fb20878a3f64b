//! B7: settlement in batches against one transaction a claim, by a process that does nothing else.

use std::path::Path;
use std::time::{Duration, Instant};

use hongbao::rain::Durability;
use hongbao::wire::Outcome;

use super::postgres::Postgres;
use super::redis::{Answer, Fsync, Redis};
use super::server::Server;
use super::table::{Figures, Goal, Row};
use super::{BenchError, Setup, all_are, edge_swarm};
use crate::swarm::Closed;

const NODES: usize = 3;
/// Won before anything is settled.
const CLAIMS: u32 = 400_000;
/// A round settles so many at most, so that claims are left for the others.
const ROUND_CLAIMS_MAX: u64 = 60_000;
/// After the first credit, before the clock starts.
const SETTLE_IN: Duration = Duration::from_millis(200);
/// How long the first credit may take.
const BEGIN_MAX: Duration = Duration::from_secs(15);

pub async fn b7(setup: &Setup) -> Result<Vec<Row>, BenchError> {
    let mut rows = vec![];
    rows.extend(on(setup, "SQLite", None).await?);
    let folder = setup.folder()?;
    let postgres = Postgres::start(folder.path())?;
    rows.extend(on(setup, "PostgreSQL", Some(postgres.url())).await?);
    Ok(rows)
}

async fn on(setup: &Setup, name: &str, ledger: Option<String>) -> Result<Vec<Row>, BenchError> {
    setup.tell(&format!("B7: settlement on {name}"));
    let folder = setup.folder()?;
    let mut nodes = vec![];
    for number in 0..NODES {
        let dir = folder.path().join(format!("node-{number}"));
        std::fs::create_dir_all(&dir).map_err(BenchError::io("make a folder"))?;
        nodes.push(Redis::start(&dir, Fsync::EverySecond)?);
    }
    let urls: Vec<String> = nodes.iter().map(|node| node.url.clone()).collect();
    let file = folder.path().join("ledger.sqlite");
    let url = ledger.unwrap_or_else(|| format!("sqlite:{}", file.display()));
    let ledger = format!("ledger.url={url}");
    let data = folder.path().join("hongbao");
    let settings = [ledger.clone()];
    let roles = "gateway,steward,admin";
    let server = Server::start(&setup.hongbao, &data, roles, &urls, &settings).await?;
    let packets = CLAIMS * 6 / 5;
    let rain = server
        .open_rain("b7", packets, NODES as u32, Durability::Memory)
        .await?;
    let mut swarm = edge_swarm(&server, rain, 50, "b7")?;
    let closed = Closed {
        in_flight: 16,
        warm_up: Duration::ZERO,
        length: Duration::from_secs(60),
        requests_max: CLAIMS.into(),
    };
    let tally = swarm.closed_loop(closed);
    let tally = tally.map_err(BenchError::io("run the generator"))?;
    all_are(&tally, Some(Outcome::Won))?;
    drop(swarm);

    let single = ["settle.batch_max=1", "settle.workers=1"].map(str::to_owned);
    let (mut batched, mut one_by_one) = (vec![], vec![]);
    for round in 0..setup.rounds {
        for (kind, more, rates) in [
            ("batched", &[][..], &mut batched),
            ("single", &single[..], &mut one_by_one),
        ] {
            let dir = folder.path().join(format!("{kind}-{round}"));
            let mut settings = vec![ledger.clone()];
            settings.extend_from_slice(more);
            rates.push(settled_per_second(setup, &dir, &mut nodes, &urls, &settings).await?);
        }
    }
    let what = format!("settlement, {name}");
    let batched = Figures::new("hongbao", "claims/s", batched);
    let single = Figures::new("one transaction a claim", "claims/s", one_by_one);
    Ok(vec![Row::ratio(
        "B7",
        &what,
        Goal::AtLeast(10.0),
        batched,
        single,
    )])
}

/// Starts a settler, watches claims go, stops it.
async fn settled_per_second(
    setup: &Setup,
    dir: &Path,
    nodes: &mut [Redis],
    urls: &[String],
    settings: &[String],
) -> Result<f64, BenchError> {
    let before = unsettled(nodes)?;
    let settler = Server::start(&setup.hongbao, dir, "settle", urls, settings).await?;
    let deadline = Instant::now() + BEGIN_MAX;
    while unsettled(nodes)? == before {
        if Instant::now() > deadline {
            return Err(BenchError::Odd("the settler settles nothing".to_owned()));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(SETTLE_IN);
    let (began, first) = (Instant::now(), unsettled(nodes)?);
    let (mut left, mut took) = (first, Duration::ZERO);
    while took < setup.length && before - left < ROUND_CLAIMS_MAX && left > 0 {
        std::thread::sleep(Duration::from_millis(20));
        left = unsettled(nodes)?;
        took = began.elapsed();
    }
    drop(settler);
    if first == left {
        return Err(BenchError::Odd(format!(
            "the settler was done with {before} claims too soon"
        )));
    }
    Ok((first - left) as f64 / took.as_secs_f64())
}

/// Claims that wait, are leased or retried, on all nodes.
fn unsettled(nodes: &mut [Redis]) -> Result<u64, BenchError> {
    let mut sum = 0;
    for node in nodes {
        for (pattern, count) in [
            ("hb:{*}:claims", "LLEN"),
            ("hb:{*}:leased", "ZCARD"),
            ("hb:{*}:retry", "ZCARD"),
        ] {
            // A handful of keys: one for each bucket of the one rain, and 300,000 inboxes beside them, so KEYS would not do.
            for key in bucket_keys(node, pattern)? {
                sum += node.count(&[count, &key])?;
            }
        }
    }
    Ok(sum)
}

/// The keys of this node's buckets that look like `pattern`, found by the rain's published record.
fn bucket_keys(node: &mut Redis, pattern: &str) -> Result<Vec<String>, BenchError> {
    let suffix = pattern.rsplit_once(':').map_or("", |(_, suffix)| suffix);
    Ok(node
        .buckets()?
        .iter()
        .map(|tag| format!("hb:{{{tag}}}:{suffix}"))
        .collect())
}

impl Redis {
    /// Hash tags of the buckets on this node.
    fn buckets(&mut self) -> Result<Vec<String>, BenchError> {
        if self.tags.is_empty() {
            let Answer::Many(keys) = self.call(&["KEYS", "hb:{*}:gate"])? else {
                return Ok(vec![]);
            };
            for key in keys {
                if let Answer::Text(key) = key
                    && let Some((tag, _)) = key.trim_start_matches("hb:{").split_once('}')
                {
                    self.tags.push(tag.to_owned());
                }
            }
        }
        Ok(self.tags.clone())
    }
}
