//! The tests against real servers, in one binary: one link, one PostgreSQL for all.

/// Every promise of the ledger, on both stores.
mod ledger;
/// Servers that the tests start for themselves.
mod support;
