//! Spans are collected and sent in batches by a thread of the exporter's own; who makes one never waits. What the queue does not hold is lost.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Instant, SystemTime};

use axum::http::{Request, Response};
use bytes::Bytes;
use http_body_util::Full;
use opentelemetry::trace::{
    Link, Span as _, SpanBuilder, SpanContext, SpanId, SpanKind, Status, TraceContextExt,
    TraceFlags, TraceId, TraceState, Tracer, TracerProvider,
};
use opentelemetry::{Context, KeyValue, Value};
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_otlp::{Protocol, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, IdGenerator, RandomIdGenerator, Sampler, SdkTracer,
    SdkTracerProvider,
};

use super::{Grab, Noted};
use crate::config;
use crate::post::{PostError, Poster, Trust, TrustError};
use crate::rain::PacketId;

/// Of a collector's answer, which is not read.
const ANSWER_MAX: usize = 64 << 10;

static ON: OnceLock<On> = OnceLock::new();

/// What a process that sends traces needs for them.
struct On {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
    timeout: std::time::Duration,
    sampling: Sampling,
}

/// Begins to send, if there are settings. Once a process, in a runtime that lives as long as it.
pub fn start(settings: &Option<config::Trace>) -> Result<(), TrustError> {
    let Some(settings) = settings else {
        return Ok(());
    };
    let trust = match &settings.ca_file {
        _ if settings.endpoint.scheme_str() == Some("http") => Trust::Nobody,
        Some(file) => Trust::File(file.clone()),
        None => Trust::System,
    };
    let client = Client {
        poster: Poster::new(settings.timeout, &trust)?.into(),
        runtime: tokio::runtime::Handle::current(),
        failing: AtomicBool::new(false),
    };
    let exporter = opentelemetry_otlp::SpanExporter::builder()
        .with_http()
        .with_http_client(client)
        .with_protocol(Protocol::HttpBinary)
        .with_endpoint(settings.endpoint.to_string())
        .with_timeout(settings.timeout)
        .build()
        .expect("a client and a checked address are all it needs");
    let batches = BatchConfigBuilder::default()
        .with_max_queue_size(settings.queue_max)
        .with_max_export_batch_size(settings.queue_max.min(512))
        .with_scheduled_delay(settings.interval)
        .build();
    let batches = BatchSpanProcessor::builder(exporter)
        .with_batch_config(batches)
        .build();
    let process = [
        KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
        KeyValue::new("process.pid", i64::from(std::process::id())),
    ];
    let resource = Resource::builder()
        .with_service_name(settings.service.clone())
        .with_attributes(process)
        .build();
    let provider = SdkTracerProvider::builder()
        .with_span_processor(batches)
        .with_resource(resource)
        .with_id_generator(Ids::default())
        .with_sampler(Sampler::AlwaysOn) // what is sampled is decided before a span is made
        .build();
    let on = On {
        tracer: provider.tracer("hongbao"),
        provider,
        timeout: settings.timeout,
        sampling: Sampling::new(&settings.service, settings.grabs_per_million),
    };
    if ON.set(on).is_ok() {
        tracing::info!(endpoint = %settings.endpoint, "traces are sent");
    }
    Ok(())
}

/// Sends what waits.
pub async fn stop() {
    if let Some(on) = ON.get() {
        // It waits for the exporter's thread, which needs this runtime for its request.
        let last = move || on.provider.shutdown_with_timeout(on.timeout);
        match tokio::task::spawn_blocking(last).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "the last spans are lost"),
            Err(error) => tracing::debug!(%error, "the last spans are lost"),
        }
    }
}

/// The exporter's thread asks, the runtime sends.
struct Client {
    poster: std::sync::Arc<Poster>,
    runtime: tokio::runtime::Handle,
    failing: AtomicBool,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Client")
    }
}

impl Client {
    /// Once when it begins, once when it ends.
    fn tell(&self, problem: Option<String>) {
        let was_failing = self.failing.swap(problem.is_some(), Ordering::Relaxed);
        match problem {
            Some(problem) if !was_failing => {
                tracing::warn!(
                    problem,
                    "traces cannot be delivered, and are lost meanwhile"
                );
            }
            None if was_failing => tracing::info!("traces are delivered again"),
            Some(_) | None => {}
        }
    }
}

impl HttpClient for Client {
    fn send_bytes<'a, 'out>(
        &'a self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'out>>
    where
        'a: 'out,
        Self: 'out,
    {
        Box::pin(async move {
            let poster = self.poster.clone();
            let sending = async move { poster.post(request.map(Full::new), ANSWER_MAX).await };
            let answer = match self.runtime.spawn(sending).await {
                Ok(answer) => answer,
                Err(error) => Err(PostError::Broken(error.to_string())),
            };
            self.tell(match &answer {
                Ok((status, _)) if status.is_success() => None,
                Ok((status, _)) => Some(format!("it answers {status}")),
                Err(error) => Some(error.to_string()),
            });
            let (status, body) = answer?;
            let mut response = Response::new(body);
            *response.status_mut() = status;
            Ok(response)
        })
    }
}

/// Which packets are looked at, and what their traces are called.
struct Sampling {
    salt: u64,
    /// Of 2^32.
    below: u64,
}

impl Sampling {
    fn new(service: &str, per_million: u32) -> Sampling {
        // Two systems that send to one collector have packets of the same ids.
        let salt = xxhash_rust::xxh3::xxh3_64(service.as_bytes());
        let below = (u64::from(per_million) << 32) / 1_000_000;
        Sampling { salt, below }
    }

    fn takes(&self, id: u64) -> bool {
        mixed(id ^ self.salt) >> 32 < self.below
    }

    /// Of a packet: the trace, and the span of the grab that won it. Neither may be 0.
    fn ids(&self, packet: PacketId) -> (TraceId, SpanId) {
        let part = |n: u64| mixed(mixed(packet.get() ^ self.salt).wrapping_add(n));
        let trace = u128::from(part(1)) << 64 | u128::from(part(2)) | 1;
        (TraceId::from(trace), SpanId::from(part(3) | 1))
    }
}

/// The last step of SplitMix64 (Steele, Lea, Flood 2014): every bit of the id decides about every bit of the result.
fn mixed(id: u64) -> u64 {
    let id = (id ^ (id >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let id = (id ^ (id >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    id ^ (id >> 31)
}

/// At random, but for a span whose ids are said.
#[derive(Debug, Default)]
struct Ids(RandomIdGenerator);

thread_local! {
    /// For the next span that this thread makes.
    static SAID: Cell<Option<(TraceId, SpanId)>> = const { Cell::new(None) };
}

impl IdGenerator for Ids {
    fn new_trace_id(&self) -> TraceId {
        match SAID.get() {
            Some((trace, _)) => trace,
            None => self.0.new_trace_id(),
        }
    }

    fn new_span_id(&self) -> SpanId {
        match SAID.get() {
            Some((_, span)) => span,
            None => self.0.new_span_id(),
        }
    }
}

type Recorded = <SdkTracer as Tracer>::Span;

/// A piece of work, from its making to its drop. Empty while no traces are sent.
pub struct Span(Option<Recorded>);

impl Span {
    pub fn begin(name: &'static str) -> Span {
        Span::make(name, None, None)
    }

    /// One of this kind that began earlier.
    pub fn begun(name: &'static str, began: Instant) -> Span {
        Span::make(name, Some(began), None)
    }

    /// A part of this work.
    pub fn part(&self, name: &'static str) -> Span {
        Span::make(name, None, Some(self))
    }

    /// A part of this work that is over by now.
    pub fn past(&self, name: &'static str, began: Instant) {
        drop(Span::make(name, Some(began), Some(self)));
    }

    fn make(name: &'static str, began: Option<Instant>, whole: Option<&Span>) -> Span {
        let Some(on) = ON.get() else {
            return Span(None);
        };
        let mut builder = on.tracer.span_builder(name);
        if let Some(began) = began {
            builder = builder.with_start_time(as_time(began));
        }
        let whole = whole.and_then(|whole| whole.0.as_ref());
        let around = whole.map_or_else(Context::new, |whole| under(whole.span_context().clone()));
        Span(Some(on.tracer.build_with_context(builder, &around)))
    }

    pub fn note<'a>(&mut self, key: &'static str, value: impl Into<Noted<'a>>) {
        if let Some(span) = &mut self.0 {
            let value = match value.into() {
                Noted::Text(text) => Value::from(text.to_owned()),
                Noted::Number(number) => Value::from(number),
            };
            span.set_attribute(KeyValue::new(key, value));
        }
    }

    /// It came to nothing. The text must not name anybody.
    pub fn failed(&mut self, why: &str) {
        if let Some(span) = &mut self.0 {
            span.set_status(Status::error(why.to_owned()));
        }
    }

    /// Now, rather than at its drop.
    pub fn end(self) {}
}

fn as_time(instant: Instant) -> SystemTime {
    SystemTime::now() - instant.elapsed()
}

fn under(span: SpanContext) -> Context {
    Context::new().with_remote_span_context(span)
}

/// One gateway's end of a packet's trace, or a grab in vain.
pub fn grab(grab: &Grab) {
    if let Some(on) = ON.get() {
        let id = match grab.packet {
            Some(packet) => packet.get(),
            None => mixed(grab.session).wrapping_add(grab.request),
        };
        if on.sampling.takes(id) {
            on.record(grab);
        }
    }
}

impl On {
    #[cold]
    fn record(&self, grab: &Grab) {
        let mut attributes = vec![
            KeyValue::new("hongbao.rain", i64::from(grab.rain.get())),
            KeyValue::new("hongbao.session", grab.session as i64),
            KeyValue::new("hongbao.request", grab.request as i64),
            KeyValue::new("hongbao.outcome", grab.outcome),
        ];
        attributes.extend(grab.packet.map(packet_attribute));
        let builder = SpanBuilder::from_name("grab")
            .with_kind(SpanKind::Server)
            .with_start_time(as_time(grab.since))
            .with_attributes(attributes);
        let ids = grab.packet.map(|packet| self.sampling.ids(packet));
        let won = grab.outcome == crate::wire::Outcome::Won.as_str_name();
        let around = match ids {
            // A repeat belongs to the first grab, whoever answered that.
            Some((trace, first)) if !won => under(elsewhere(trace, first)),
            _ => Context::new(),
        };
        SAID.set(ids.filter(|_| won));
        drop(self.tracer.build_with_context(builder, &around));
        SAID.set(None);
    }
}

fn packet_attribute(packet: PacketId) -> KeyValue {
    // Text, as everywhere outside Rust.
    KeyValue::new("hongbao.packet", packet.to_string())
}

/// A span that another process has made, or will.
fn elsewhere(trace: TraceId, span: SpanId) -> SpanContext {
    SpanContext::new(trace, span, TraceFlags::SAMPLED, true, TraceState::NONE)
}

/// Claims of a batch whose packets are sampled.
#[derive(Default)]
pub struct Claims(Vec<(PacketId, &'static str)>);

impl Claims {
    pub fn add(&mut self, packet: PacketId, decision: &'static str) {
        if ON.get().is_some_and(|on| on.sampling.takes(packet.get())) {
            self.0.push((packet, decision));
        }
    }

    /// The batch has done with them: the settler's end of each packet's trace.
    pub fn end(self, batch: &Span, began: Instant) {
        let (Some(on), Some(batch)) = (ON.get(), &batch.0) else {
            return;
        };
        for (packet, decision) in self.0 {
            let (trace, grab) = on.sampling.ids(packet);
            let of_batch = Link::new(batch.span_context().clone(), vec![], 0);
            let builder = SpanBuilder::from_name("settle.claim")
                .with_kind(SpanKind::Consumer)
                .with_start_time(as_time(began))
                .with_links(vec![of_batch])
                .with_attributes(vec![
                    packet_attribute(packet),
                    KeyValue::new("hongbao.decision", decision),
                ]);
            let around = under(elsewhere(trace, grab));
            drop(on.tracer.build_with_context(builder, &around));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rain::RainId;

    #[test]
    fn as_many_packets_are_looked_at_as_the_setting_says_and_each_has_a_trace_of_its_own() {
        let packets = || (0..1_000_000).map(|index| RainId::new(7).unwrap().packet(index));
        let taken = |sampling: &Sampling| {
            let taken = packets().filter(|packet| sampling.takes(packet.get()));
            taken.count()
        };
        assert_eq!(taken(&Sampling::new("hongbao", 0)), 0);
        assert_eq!(taken(&Sampling::new("hongbao", 1_000_000)), 1_000_000);
        let sampling = Sampling::new("hongbao", 1_000);
        // Six standard deviations of 32 around what chance would take.
        assert!(
            (810..1_190).contains(&taken(&sampling)),
            "{}",
            taken(&sampling)
        );

        let ids = |sampling: &Sampling| -> std::collections::HashSet<_> {
            let ids = packets().take(10_000).map(|packet| sampling.ids(packet));
            ids.flat_map(|(trace, span)| [trace.to_string(), span.to_string()])
                .collect()
        };
        let here = ids(&sampling);
        assert_eq!(here.len(), 20_000);
        let elsewhere = ids(&Sampling::new("staging", 1_000));
        assert!(here.is_disjoint(&elsewhere), "two systems, one collector");
    }
}
