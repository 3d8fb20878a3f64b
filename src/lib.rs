//! hongbao: a red-packet rain engine.
//!
//! Read in this order: a rain and its packets, where they lie in Redis, how a grab reaches them, how a claim becomes money, who moves a
//! rain through its life, and how people steer it.

/// The nouns and rules, no I/O: ids, cents, life cycle, split.
pub mod rain;

/// Every setting and limit.
pub mod config;

/// Buckets on Redis nodes: the only code that speaks Redis.
pub mod store;

/// What travels between a client and the gateway: messages and framing.
pub mod wire;

/// accept → frame → session → admission → batch → reply, and pushes.
pub mod gateway;

/// claim → credit → ack.
pub mod settle;

/// Accounts, credits, rains: the only code that speaks SQL.
pub mod ledger;

/// Load, open, close, refund, audit.
pub mod steward;

/// The HTTP API of operators.
pub mod admin;

/// What has to be right, and what to do when it is not.
pub mod doctor;

/// All roles of one process, started and stopped.
pub mod serve;

/// The client side: sessions with the gateway, and the admin API.
pub mod client;

/// Tasks with names; panics that stay where they happen.
pub mod task;

/// POST to other people's servers.
pub mod post;

/// Chance that spreads people and retries in time.
pub mod jitter;

/// Log lines: for people or as JSON, counted.
pub mod log;

/// A process that systemd looks after; its unit, container and production guide.
pub mod service;

/// What this process uses of the machine.
pub mod process;

/// Grabs of this process by rain, for those who watch one fall.
pub mod tally;

/// Every metric once.
pub mod metrics;

/// Where tests let the process die.
pub mod crash;

/// How numbers look on a terminal.
pub mod paint;

/// This machine's wall clock.
pub mod clock;
