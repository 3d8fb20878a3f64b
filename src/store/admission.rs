//! What a node must be before it is used: one that may evict keys or forgets everything at a restart would lose money silently.

use redis::Value;

use super::StoreError;
use super::bucket::text;
use super::link::Link;
use crate::rain::Durability;

const VERSION_MIN: (u32, u32) = (7, 0);

/// Refuses a node with every reason at once. Returns the strongest durability that it offers.
pub async fn check(link: &Link, durability: Durability) -> Result<Durability, StoreError> {
    let mut problems = vec![];
    let info = link.call(redis::cmd("INFO").arg("server")).await?;
    let version = info_field(&info, "redis_version")
        .unwrap_or("unknown")
        .to_owned();
    if parse_version(&version).is_none_or(|found| found < VERSION_MIN) {
        problems.push(format!("its version is {version}, 7.0 or later is needed"));
    }
    let policy = config(link, "maxmemory-policy").await?;
    if policy != "noeviction" {
        problems.push(format!(
            "maxmemory-policy is \"{policy}\", which may evict packets: set it to noeviction"
        ));
    }
    let append_only = config(link, "appendonly").await?;
    if append_only != "yes" {
        problems.push(format!(
            "appendonly is \"{append_only}\", wins would not survive a restart: set it to yes"
        ));
    }
    let fsync = config(link, "appendfsync").await?;
    let enough = match durability {
        Durability::Memory | Durability::Replicas(_) => fsync != "no",
        Durability::Fsync => fsync == "always",
    };
    if !enough {
        problems.push(format!(
            "appendfsync is \"{fsync}\", too weak for durability {durability}"
        ));
    }
    let role = link.call(&redis::cmd("ROLE")).await?;
    if let Value::Array(items) = &role
        && items.first().and_then(text) != Some("master")
    {
        problems.push("it is a replica, not a primary".into());
    }
    if problems.is_empty() {
        return Ok(if fsync == "always" {
            Durability::Fsync
        } else {
            Durability::Memory
        });
    }
    Err(StoreError::Unfit {
        node: link.address.name.clone(),
        problems,
    })
}

async fn config(link: &Link, name: &str) -> Result<String, StoreError> {
    let reply = link.call(redis::cmd("CONFIG").arg("GET").arg(name)).await?;
    let value = match &reply {
        Value::Map(pairs) => pairs.first().and_then(|(_, value)| text(value)),
        Value::Array(items) => items.get(1).and_then(text),
        _ => None,
    };
    Ok(value.unwrap_or("unknown").to_owned())
}

fn info_field<'a>(info: &'a Value, name: &str) -> Option<&'a str> {
    let text = match info {
        Value::VerbatimString { text, .. } => text,
        other => text(other)?,
    };
    text.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
}

fn parse_version(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}
