//! Redis Cluster: the map of slots as the cluster says. MOVED corrects single slots at once (see `route.rs`); this keeps the whole.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use redis::Value;

use super::StoreError;
use super::bucket::text;
use super::link::Link;
use super::nodes::Nodes;

/// How often the map is read although nobody doubts it.
const REFRESH: Duration = Duration::from_secs(1);
/// The least time between two readings.
const REFRESH_MIN: Duration = Duration::from_millis(20);

type Ranges = Vec<(u16, u16, Arc<Link>)>;

/// Keeps the map, until it is dropped.
pub async fn keep(nodes: Arc<Nodes>) {
    loop {
        let _ = tokio::time::timeout(REFRESH, nodes.doubted()).await;
        if let Err(error) = refresh(&nodes).await {
            tracing::debug!(%error, "the map of slots cannot be read now");
        }
        tokio::time::sleep(REFRESH_MIN).await;
    }
}

/// Asks every node, since one that is cut off from the rest knows only the past: the latest view of one that the cluster is well for
/// counts.
pub async fn refresh(nodes: &Nodes) -> Result<(), StoreError> {
    let known = nodes.all();
    let views = join_all(known.iter().map(|link| view(nodes, link))).await;
    let (mut best, mut failed): (Option<(bool, u64, Ranges)>, _) = (None, None);
    for view in views {
        match view {
            Ok(view) => {
                let newer =
                    |(well, epoch, _): &(bool, u64, Ranges)| (view.0, view.1) > (*well, *epoch);
                if best.as_ref().is_none_or(newer) {
                    best = Some(view);
                }
            }
            Err(error) => failed = Some(error),
        }
    }
    match (best, failed) {
        (Some((_, _, ranges)), _) if !ranges.is_empty() => {
            nodes.set_map(&ranges);
            Ok(())
        }
        (Some(_), _) => Err(StoreError::Cluster {
            problem: "no node owns any slot: create the cluster first".into(),
        }),
        (None, Some(error)) => Err(error),
        (None, None) => Err(StoreError::Cluster {
            problem: "no node is known".into(),
        }),
    }
}

/// One node's view: whether the cluster is well for it, how new it is, who owns what.
async fn view(nodes: &Nodes, link: &Link) -> Result<(bool, u64, Ranges), StoreError> {
    let info = ask(link, "INFO").await?;
    let info = match &info {
        Value::VerbatimString { text, .. } => text.as_str(),
        other => text(other).unwrap_or_default(),
    };
    let field = |name| {
        info.lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
            .map(str::trim)
    };
    let well = field("cluster_state") == Some("ok");
    let epoch = field("cluster_current_epoch").and_then(|epoch| epoch.parse().ok());
    let slots = ask(link, "SLOTS").await?;
    let ranges = read_slots(&slots, nodes, link)?;
    Ok((well, epoch.unwrap_or_default(), ranges))
}

/// A replica has a view, too: it is asked without the checks that a primary has to pass.
async fn ask(link: &Link, what: &str) -> Result<Value, StoreError> {
    let reach = &link.node.reach;
    let target = link.node.target();
    let mut cmd = redis::cmd("CLUSTER");
    cmd.arg(what);
    match link.connect().await {
        Ok(connection) => link.call_on(&connection, &cmd).await,
        Err(StoreError::Down { .. }) if link.node.reach.roles_change => {
            let down = |error: redis::RedisError| StoreError::Down {
                node: target.name.clone(),
                cause: error.to_string(),
            };
            let mut wire = reach.connect(&target.client).await.map_err(down)?;
            let answer = wire.send_packed_command(&cmd).await.map_err(down)?;
            answer.extract_error().map_err(down)
        }
        Err(error) => Err(error),
    }
}

/// CLUSTER SLOTS: first slot, last slot, the primary's host, port and id, then replicas.
fn read_slots(reply: &Value, nodes: &Nodes, told_by: &Link) -> Result<Ranges, StoreError> {
    let fault = || StoreError::Reply {
        verb: "CLUSTER SLOTS",
        reply: format!("{reply:?}").chars().take(200).collect(),
    };
    let Value::Array(ranges) = reply else {
        return Err(fault());
    };
    let range = |range: &Value| {
        let Value::Array(parts) = range else {
            return Err(fault());
        };
        let [
            Value::Int(first),
            Value::Int(last),
            Value::Array(primary),
            ..,
        ] = &parts[..]
        else {
            return Err(fault());
        };
        let host = primary.first().and_then(text).unwrap_or_default();
        let Some(Value::Int(port)) = primary.get(1) else {
            return Err(fault());
        };
        let link = nodes.at(&format!("{host}:{port}"), told_by)?;
        Ok((*first as u16, *last as u16, link))
    };
    ranges.iter().map(range).collect()
}
