//! hongbao: a red-packet rain engine.
//!
//! Read in this order: a rain and its packets, where they lie in Redis, how a grab reaches them, how a claim becomes money.

/// The client side: sessions with the gateway, and the admin API.
pub mod client;
/// The nouns and rules, no I/O: ids, cents, life cycle, split.
pub mod rain;
/// What travels between a client and the gateway: messages and framing.
pub mod wire;
