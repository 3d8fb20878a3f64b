//! What takes how long, as traces for an OpenTelemetry collector (OTLP over HTTP). Only with the feature `otel`, and only if
//! `trace.endpoint` is set; without the feature all of this is empty, and the compiler leaves it out.
//!
//! | span | in it | is a try to |
//! |---|---|---|
//! | `admin.request` | | answer one request of an operator |
//! | `steward.load`, `.open`, `.close`, `.refund`, `.audit` | | take that step of a rain |
//! | `webhook.delivery` | | send one event |
//! | `settle.batch` | `settle.lease`, `settle.credit`, `settle.ack` | bring a batch of claims from lease to ack |
//! | `grab` | `settle.claim` | win a packet: from the frame to the reply, then from the lease to the ack |
//!
//! **Grabs are sampled by their packet**, and nothing travels with them: the id of the trace, that of the grab's span, and whether it is looked
//! at at all follow from the packet id. Gateway and settler come to the same result without a word, so one trace has both ends. A grab
//! that found no packet is sampled by its session and request id.
//!
//! No span names a user, or holds a token or text of somebody else's.

/// Without the feature.
#[cfg(not(feature = "otel"))]
mod off;
/// With it: spans are collected and sent in batches.
#[cfg(feature = "otel")]
mod otel;

use std::time::Instant;

use crate::rain::{PacketId, RainId};
#[cfg(not(feature = "otel"))]
pub use off::{Claims, Span, grab, start, stop};
#[cfg(feature = "otel")]
pub use otel::{Claims, Span, grab, start, stop};

/// Whether this program can send traces.
pub const BUILT_IN: bool = cfg!(feature = "otel");

/// A grab that a node has answered.
pub struct Grab {
    pub session: u64,
    pub request: u64,
    pub rain: RainId,
    pub packet: Option<PacketId>,
    pub outcome: &'static str,
    /// When its frame was there.
    pub since: Instant,
}

/// What can be noted of a span.
pub enum Noted<'a> {
    Text(&'a str),
    Number(i64),
}

impl<'a> From<&'a str> for Noted<'a> {
    fn from(text: &'a str) -> Noted<'a> {
        Noted::Text(text)
    }
}

impl From<u32> for Noted<'_> {
    fn from(number: u32) -> Self {
        Noted::Number(number.into())
    }
}

impl From<i64> for Noted<'_> {
    fn from(number: i64) -> Self {
        Noted::Number(number)
    }
}

impl From<usize> for Noted<'_> {
    fn from(number: usize) -> Self {
        Noted::Number(number as i64)
    }
}

impl Span {
    /// The step of a rain that `work` is. Its failure is the span's.
    pub async fn of_rain<T, E: std::error::Error>(
        name: &'static str,
        rain: RainId,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let mut span = Span::begin(name);
        span.note("hongbao.rain", rain.get());
        let outcome = work.await;
        if let Err(error) = &outcome {
            span.failed(&error.to_string());
        }
        outcome
    }
}
