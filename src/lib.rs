//! hongbao: a red-packet rain engine.
//!
//! Read in this order: a rain and its packets, where they lie in Redis, how a grab reaches them, how a claim becomes money.

/// Where every cent lies: rains, accounts, credits in SQL.
pub mod ledger;
/// The nouns and rules, no I/O: ids, cents, life cycle, split.
pub mod rain;
/// The messages of `proto/hongbao.proto`.
pub mod wire;
