//! Log lines: for people or as JSON, levels by module, counted.
//!
//! What must never stand in one: tokens, keys, passwords, and what people are called. Packets and rains have ids; those may.

use std::io::IsTerminal;

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

use crate::config;

/// The target of the lines that follow one packet from the grab's frame to its credit, at the level TRACE: `info,hongbao::journey=trace`.
///
/// Nothing travels with a grab for their sake. Both ends know the packet id, which is the claim's own; the gateway's end adds what the client
/// knows, session and request id. While they are off a line costs a winner one comparison of levels.
pub const JOURNEY: &str = "hongbao::journey";

/// Starts logging to stderr. Once a process.
pub fn start(settings: &config::Log) {
    let filter = EnvFilter::new(&settings.level);
    let lines = tracing_subscriber::fmt::layer()
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    let log = tracing_subscriber::registry().with(Counted).with(filter);
    if settings.json {
        log.with(lines.json()).init()
    } else {
        log.with(lines).init()
    }
}

/// Counts what goes wrong, so that an alert can say when the log is worth reading.
struct Counted;

impl<S: Subscriber> Layer<S> for Counted {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let metrics = crate::metrics::get();
        match *event.metadata().level() {
            Level::ERROR => metrics.log_errors.increment(1),
            Level::WARN => metrics.log_warnings.increment(1),
            _ => {}
        }
    }
}
