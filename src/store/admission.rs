//! What a node must be before it is used: one that may evict keys or forgets everything at a restart would lose money silently.

use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisError, Value};

use super::StoreError;
use super::bucket::text;
use super::link::Address;
use crate::rain::Durability;

const VERSION_MIN: (u32, u32) = (7, 0);

/// Refuses a node with every reason at once. Returns the strongest durability that it offers.
pub async fn check(
    address: &Address,
    connection: &mut MultiplexedConnection,
) -> Result<Durability, StoreError> {
    let found = look(connection).await.map_err(|error| StoreError::Down {
        node: address.name.clone(),
        cause: error.to_string(),
    })?;
    let mut problems = vec![];
    if parse_version(&found.version).is_none_or(|version| version < VERSION_MIN) {
        problems.push(format!(
            "its version is {}, 7.0 or later is needed",
            found.version
        ));
    }
    if found.policy != "noeviction" {
        let policy = &found.policy;
        problems.push(format!(
            "maxmemory-policy is \"{policy}\", which may evict packets: set it to noeviction"
        ));
    }
    if found.append_only != "yes" {
        let append_only = &found.append_only;
        problems.push(format!(
            "appendonly is \"{append_only}\", wins would not survive a restart: set it to yes"
        ));
    }
    if found.fsync == "no" {
        problems.push(
            "appendfsync is \"no\", which leaves wins to chance: set it to everysec or always"
                .into(),
        );
    }
    if found.role != "master" {
        problems.push("it is a replica, not a primary".into());
    }
    if found.fsync != "always" && address.needs() == Durability::Fsync {
        problems.push(format!(
            "appendfsync is \"{}\", too weak for durability fsync: set it to always",
            found.fsync
        ));
    }
    if !problems.is_empty() {
        return Err(StoreError::Unfit {
            node: address.name.clone(),
            problems,
        });
    }
    Ok(if found.fsync == "always" {
        Durability::Fsync
    } else {
        Durability::Memory
    })
}

struct Found {
    version: String,
    policy: String,
    append_only: String,
    fsync: String,
    role: String,
}

async fn look(connection: &mut MultiplexedConnection) -> Result<Found, RedisError> {
    let mut ask = async |cmd: &mut Cmd| connection.send_packed_command(cmd).await?.extract_error();
    let info = ask(redis::cmd("INFO").arg("server")).await?;
    let names = ["maxmemory-policy", "appendonly", "appendfsync"];
    let settings = ask(redis::cmd("CONFIG").arg("GET").arg(&names)).await?;
    let role = ask(&mut redis::cmd("ROLE")).await?;
    let role = match &role {
        Value::Array(items) => items.first().and_then(text),
        _ => None,
    };
    let setting = |name| config(&settings, name).unwrap_or("unknown").to_owned();
    Ok(Found {
        version: info_field(&info, "redis_version")
            .unwrap_or("unknown")
            .to_owned(),
        policy: setting(names[0]),
        append_only: setting(names[1]),
        fsync: setting(names[2]),
        role: role.unwrap_or("unknown").to_owned(),
    })
}

/// RESP3 answers with a map, RESP2 with a flat list.
fn config<'a>(reply: &'a Value, name: &str) -> Option<&'a str> {
    match reply {
        Value::Map(pairs) => pairs
            .iter()
            .find(|(key, _)| text(key) == Some(name))
            .and_then(|(_, value)| text(value)),
        Value::Array(items) => items
            .chunks(2)
            .find(|pair| text(&pair[0]) == Some(name))
            .and_then(|pair| text(pair.get(1)?)),
        _ => None,
    }
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
