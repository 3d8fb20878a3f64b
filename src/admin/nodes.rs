//! Ledger and nodes, one by one: whether they answer and how fast, what each holds, and what to do about one that is not as it should be.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use tokio::sync::Mutex;

use super::{Admin, Shared};
use crate::store::admission::{Check, Exam, Verdict};

/// All who ask within this time share one look: it opens a connection to every node.
const FRESH: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, Serialize)]
pub struct Nodes {
    /// The process that answers is being stopped.
    draining: bool,
    ledger: Ledger,
    nodes: Vec<Node>,
    /// Slots that no node owns, in a cluster.
    slots_without_owner: usize,
    /// Roles of the process that answers.
    roles: Vec<&'static str>,
}

#[derive(Clone, Debug, Serialize)]
struct Ledger {
    up: bool,
    latency_seconds: f64,
    /// Why it is not up.
    problem: Option<String>,
}

#[derive(Clone, Debug, Serialize)]
struct Node {
    name: String,
    up: bool,
    /// Why it is not.
    problem: Option<String>,
    slots: usize,
    /// Nothing where the node does not answer.
    #[serde(flatten)]
    said: Option<Said>,
    /// What is not as it should be, each with what to do.
    checks: Vec<Check>,
}

/// What a node says of itself.
#[derive(Clone, Debug, Serialize)]
struct Said {
    version: String,
    role: String,
    /// One command, there and back.
    latency_seconds: f64,
    memory_bytes: u64,
    /// 0: no limit but the machine's.
    memory_max_bytes: u64,
    /// When what it has answered is on its disk, as Redis calls it: everysec or always.
    appendfsync: String,
    replicas: u32,
    clients: u32,
    commands_per_second: u64,
    clock_ahead_ms: i64,
}

impl From<&Exam> for Said {
    fn from(exam: &Exam) -> Said {
        Said {
            version: exam.version.clone(),
            role: exam.role.clone(),
            latency_seconds: exam.round_trip.as_secs_f64(),
            memory_bytes: exam.used_memory,
            memory_max_bytes: exam.max_memory,
            appendfsync: exam.fsync.clone(),
            replicas: exam.replicas,
            clients: exam.clients,
            commands_per_second: exam.commands_per_second,
            clock_ahead_ms: exam.clock_ahead_ms,
        }
    }
}

/// The last look, and when it was taken.
#[derive(Default)]
pub struct Look(Mutex<Option<(Instant, Nodes)>>);

pub async fn show(State(admin): Shared) -> Json<Nodes> {
    let mut last = admin.nodes.0.lock().await;
    match &*last {
        Some((at, nodes)) if at.elapsed() < FRESH => Json(nodes.clone()),
        _ => {
            let nodes = look(&admin).await;
            *last = Some((Instant::now(), nodes.clone()));
            Json(nodes)
        }
    }
}

async fn look(admin: &Arc<Admin>) -> Nodes {
    let (ledger, exams) = tokio::join!(ledger(admin), admin.store.examine());
    let owned = admin.store.slots_by_node();
    let needs = admin.defaults.durability;
    let nodes = exams.into_iter().map(|(name, exam)| {
        let slots = owned.get(&name).copied().unwrap_or(0);
        match exam {
            Ok(exam) => {
                let mut checks = exam.checks(needs);
                checks.retain(|check| check.verdict != Verdict::Ok);
                Node {
                    up: true,
                    problem: None,
                    slots,
                    said: Some(Said::from(&exam)),
                    checks,
                    name,
                }
            }
            Err(error) => Node {
                up: false,
                problem: Some(error.to_string()),
                slots,
                said: None,
                checks: vec![],
                name,
            },
        }
    });
    Nodes {
        draining: admin.draining.is_cancelled(),
        ledger,
        nodes: nodes.collect(),
        slots_without_owner: admin.store.slots_without_owner(),
        roles: admin.roles.clone(),
    }
}

async fn ledger(admin: &Admin) -> Ledger {
    let asked = Instant::now();
    let answer = admin.ledger.ping().await;
    Ledger {
        up: answer.is_ok(),
        latency_seconds: asked.elapsed().as_secs_f64(),
        problem: answer.err().map(|error| error.to_string()),
    }
}
