//! hongbao: a red-packet rain engine.
//!
//! Read in this order: a rain and its packets, where they lie in Redis, how a grab reaches them, how a claim becomes money.

/// This machine's wall clock.
pub mod clock;
/// Every setting and limit.
pub mod config;
/// accept → frame → session → admission → batch → reply, and pushes.
pub mod gateway;
/// Every metric once.
pub mod metrics;
/// The nouns and rules, no I/O: ids, cents, life cycle, split.
pub mod rain;
/// Buckets on Redis nodes: the only code that speaks Redis.
pub mod store;
/// What travels between a client and the gateway: messages and framing.
pub mod wire;
