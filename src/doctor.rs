//! `hongbao doctor`: everything that has to be right, looked at without changing anything, each with what to do when it is not.

use std::path::Path;

use serde::Serialize;

use crate::config::{Settings, Topology};
use crate::ledger;
use crate::store::admission::{CLOCKS_APART_MAX_MS, Check, Verdict};
use crate::store::{Store, StoreError};

/// Sessions that a gateway should be able to hold at least: each is a descriptor.
const DESCRIPTORS_FEW: u64 = 20_000;

/// What was looked at, and what came out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The node, the ledger, or this machine.
    pub at: String,
    #[serde(flatten)]
    pub check: Check,
}

/// All findings. Bad ones have the verdict `no_start` or `refused`.
pub async fn examine(settings: &Settings) -> Vec<Finding> {
    let mut findings = machine();
    findings.extend(ledger_of(settings).await);
    findings.extend(nodes(settings).await);
    findings
}

pub fn is_bad(findings: &[Finding]) -> bool {
    let bad =
        |finding: &Finding| matches!(finding.check.verdict, Verdict::NoStart | Verdict::Refused);
    findings.iter().any(bad)
}

fn finding(at: &str, what: &'static str, found: String, verdict: Verdict, advice: &str) -> Finding {
    let advice = match verdict {
        Verdict::Ok => String::new(),
        Verdict::Warning | Verdict::NoStart | Verdict::Refused => advice.to_owned(),
    };
    Finding {
        at: at.to_owned(),
        check: Check {
            what,
            found,
            verdict,
            advice,
        },
    }
}

fn warn_if(wrong: bool) -> Verdict {
    if wrong { Verdict::Warning } else { Verdict::Ok }
}

/// An error and what caused it, in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

fn machine() -> Vec<Finding> {
    let mut findings = vec![];
    if let Ok((_, hard)) = rlimit::Resource::NOFILE.get() {
        findings.push(finding(
            "this machine",
            "descriptors",
            hard.to_string(),
            warn_if(hard < DESCRIPTORS_FEW),
            "each session needs one: raise the limit (ulimit -Hn, LimitNOFILE=)",
        ));
    }
    let number = |path: &str| -> Option<i64> {
        std::fs::read_to_string(Path::new("/proc/sys").join(path))
            .ok()?
            .trim()
            .parse()
            .ok()
    };
    if let Some(backlog) = number("net/core/somaxconn") {
        findings.push(finding(
            "this machine",
            "listen backlog",
            backlog.to_string(),
            warn_if(backlog < 1_024),
            "connections of a crowd wait here: sysctl net.core.somaxconn=4096",
        ));
    }
    if let Some(overcommit) = number("vm/overcommit_memory") {
        findings.push(finding(
            "this machine",
            "memory overcommit",
            overcommit.to_string(),
            warn_if(overcommit == 2),
            "a Redis on this machine could not rewrite its append-only file: sysctl vm.overcommit_memory=1",
        ));
    }
    findings
}

async fn ledger_of(settings: &Settings) -> Option<Finding> {
    let found = ledger::look(&settings.ledger_url()).await;
    Some(match found {
        Ok(found) => {
            let forgets = found.ends_with("fsync off");
            let advice = "after a loss of power, money that was paid may be gone: set fsync = on";
            finding("ledger", "database", found, warn_if(forgets), advice)
        }
        Err(error) => {
            let advice = "start it, or correct ledger.url";
            finding(
                "ledger",
                "database",
                chain(&error),
                Verdict::NoStart,
                advice,
            )
        }
    })
}

async fn nodes(settings: &Settings) -> Vec<Finding> {
    let mut store = settings.store.clone();
    if let Topology::Managed { nodes, .. } = store.topology {
        let socket = |n: usize| {
            settings
                .data_dir
                .join(format!("node-{n}"))
                .join("redis.sock")
        };
        let running: Vec<String> = (0..nodes)
            .map(socket)
            .filter(|socket| socket.exists())
            .filter_map(|socket| socket.canonicalize().ok())
            .map(|socket| format!("redis+unix://{}", socket.display()))
            .collect();
        if running.is_empty() {
            let found = format!("{nodes}, not running");
            return vec![
                finding("managed nodes", "nodes", found, Verdict::Ok, ""),
                redis_server(),
            ];
        }
        store.topology = Topology::Nodes { urls: running };
    }
    let store = match Store::connect(&store, &settings.data_dir, settings.steward.durability).await
    {
        Ok(store) => store,
        Err(error) => {
            let advice = match &error {
                StoreError::Sentinel { .. } => {
                    "start the sentinels, or correct store.sentinels and the names in store.nodes"
                }
                _ => "start the nodes, or correct store.nodes",
            };
            return vec![finding(
                "nodes",
                "connection",
                error.to_string(),
                Verdict::NoStart,
                advice,
            )];
        }
    };
    let (mut findings, mut clocks) = (vec![], vec![]);
    for (name, exam) in store.examine().await {
        match exam {
            Ok(exam) => {
                clocks.push(exam.clock_ahead_ms);
                let checks = exam.checks(settings.steward.durability);
                findings.extend(checks.into_iter().map(|check| Finding {
                    at: name.clone(),
                    check,
                }));
            }
            Err(error) => findings.push(finding(
                &name,
                "connection",
                error.to_string(),
                Verdict::Warning,
                "its users are answered RETRY until it is back: start it, or correct its address, user or password",
            )),
        }
    }
    if clocks.is_empty() {
        let advice = "no node answers: start the nodes, or correct store.nodes";
        findings.push(finding(
            "nodes",
            "connection",
            "none".into(),
            Verdict::NoStart,
            advice,
        ));
    }
    if let (Some(first), Some(last)) = (clocks.iter().min(), clocks.iter().max()) {
        let apart = last - first;
        let too_far = apart > CLOCKS_APART_MAX_MS;
        let verdict = if too_far {
            Verdict::NoStart
        } else {
            Verdict::Ok
        };
        let advice = "gates open and close by the nodes' clocks: synchronise them (chrony, ntpd)";
        findings.push(finding(
            "nodes",
            "clocks apart",
            format!("{apart} ms"),
            verdict,
            advice,
        ));
    }
    let unowned = store.slots_without_owner();
    if unowned > 0 {
        let advice = "rains there wait: give the slots to nodes (redis-cli --cluster fix)";
        let found = format!("{unowned} without a node");
        findings.push(finding("cluster", "slots", found, Verdict::Warning, advice));
    }
    findings
}

fn redis_server() -> Finding {
    let version = std::process::Command::new("redis-server")
        .arg("--version")
        .output();
    match version {
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
            finding("managed nodes", "redis-server", text, Verdict::Ok, "")
        }
        Err(error) => finding(
            "managed nodes",
            "redis-server",
            error.to_string(),
            Verdict::NoStart,
            "install it (apt-get install redis-server), or name nodes of your own in store.nodes",
        ),
    }
}
