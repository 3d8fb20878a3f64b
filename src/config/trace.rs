//! Settings of the traces.

use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::http::Uri;

use super::read::endpoint_url;
use super::source::Reader;

/// Whom to send traces to (`src/trace`). Only a program with the feature `otel` can.
#[derive(Clone, Debug)]
pub struct Trace {
    /// Takes OTLP over HTTP, protobuf.
    pub endpoint: Uri,
    /// PEM: who vouches for the endpoint, instead of whom this machine trusts.
    pub ca_file: Option<PathBuf>,
    /// What the spans are filed under. The same in all processes that work together: ids of traces follow from it.
    pub service: String,
    /// Of a million packets, and of a million grabs that the nodes answered with none, so many are looked at.
    pub grabs_per_million: u32,
    /// For one request.
    pub timeout: Duration,
    /// Between two requests.
    pub interval: Duration,
    /// Spans that wait to be sent; about 1 KiB each. More are lost.
    pub queue_max: usize,
}

impl Trace {
    pub(super) fn read(r: &mut Reader) -> Option<Trace> {
        let endpoint = r.text("trace.endpoint", "");
        let ca_file = PathBuf::from(r.text("trace.ca_file", ""));
        let trace = Trace {
            endpoint: Uri::default(),
            ca_file: Some(ca_file).filter(|path| path != Path::new("")),
            service: r.text("trace.service", "hongbao"),
            grabs_per_million: r.number("trace.grabs_per_million", 1_000, 0..=1_000_000) as u32,
            timeout: r.ms("trace.timeout_ms", 5_000, 10..=60_000),
            interval: r.ms("trace.interval_ms", 1_000, 10..=60_000),
            queue_max: r.count("trace.queue_max", 8_192, 16..=1_048_576),
        };
        if endpoint.is_empty() {
            return None;
        }
        if !crate::trace::BUILT_IN {
            let problem = "this program was built without traces: build it with `cargo build --release --features otel`, or leave it out";
            r.fault("trace.endpoint", problem.into());
            return None;
        }
        match endpoint_url(&endpoint) {
            Ok(endpoint) => Some(Trace { endpoint, ..trace }),
            Err(problem) => {
                r.fault("trace.endpoint", problem);
                None
            }
        }
    }
}
