//! The tests against real servers, in one binary: one link, one PostgreSQL for all.

/// Servers that the tests start for themselves.
#[allow(dead_code, reason = "shared with tests/crash.rs, which uses the rest")]
mod support;

/// The admin API and the command line.
mod admin;
/// A company's HTTP balance system that misbehaves on command.
mod balance;
/// What stands between a script and a packet.
mod bots;
/// The command line: all that the API does, output that nobody reads, what people read.
mod commands;
/// What moves money is asked for twice.
mod confirm;
/// What operators see in a browser.
mod console;
/// Claims that wait for a person.
mod dead_letters;
/// The doctor and the repair, as an operator uses them.
mod doctor;
/// Trusted servers that grab for many users over one connection.
mod edge;
/// Stores that go away, fill up, forget; settlers that freeze.
mod faults;
/// The wire: what a phone may send, and what it must not.
mod gateway;
/// Dashboards and alerts, asked of a real Prometheus.
mod grafana;
/// Rains in which nothing happens: what they cost.
mod idle;
/// What a user is told after the credit, whoever dies in between.
mod inbox;
/// One grab followed in the log, from its frame to its credit.
mod journey;
/// Rains with a key.
mod keyed;
/// Who may work at something now.
mod leases;
/// Every promise of the ledger, on both stores.
mod ledger;
/// A rain before it is paid for, while it falls, and when it is over, as an operator sees it.
mod operators;
/// What is told without being asked for.
mod pushes;
/// Whole rains, with crashes in the middle.
mod rains;
/// Nodes that come back as another process, with less than they had, or empty.
mod repair;
/// Rains by name, and those that come by themselves.
mod schedules;
/// What systemd is told, what the log never says, and the files of the service.
mod service;
/// Who may have a session, for how long, and how many.
mod sessions;
/// A steward and settlers in this process, on nodes that the test can spoil.
mod steward;
/// Scripts against a small model, slot numbers, nodes that are not fit.
mod store;
/// Packets and money added to a rain that lives.
mod top_ups;
/// Every shape of Redis, and what happens to nodes there.
mod topology;
/// Packets that are moved to where people tap.
mod transfers;
/// The trust of the admin API: keys, signatures, idempotency, the log.
mod trust;
/// Other people's servers that are told what happens.
mod webhooks;
