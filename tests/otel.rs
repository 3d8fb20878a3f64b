//! Traces, as a collector gets them: a real one's address, real processes, and messages read by the specification of OTLP.

#[path = "suite/support/mod.rs"]
#[allow(dead_code, reason = "shared with the suite, which uses the rest")]
mod support;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use hongbao::client::admin::{NewRain, NewWebhook};
use hongbao::rain::{Cents, State as RainState};
use hongbao::wire::Outcome;
use prost::Message as _;
use tokio::net::TcpListener;

use support::eventually;
use support::postgres;
use support::receiver::Receiver;
use support::redis::Redis;
use support::server::{Server, new_rain};
use support::wire::Raw;

/// What is looked at of opentelemetry/proto/collector/trace/v1/trace_service.proto and trace/v1/trace.proto, version 1.
mod otlp {
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Export {
        #[prost(message, repeated, tag = "1")]
        pub resource_spans: Vec<ResourceSpans>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct ResourceSpans {
        #[prost(message, optional, tag = "1")]
        pub resource: Option<Resource>,
        #[prost(message, repeated, tag = "2")]
        pub scope_spans: Vec<ScopeSpans>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Resource {
        #[prost(message, repeated, tag = "1")]
        pub attributes: Vec<KeyValue>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct ScopeSpans {
        #[prost(message, repeated, tag = "2")]
        pub spans: Vec<Span>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Span {
        #[prost(bytes = "vec", tag = "1")]
        pub trace_id: Vec<u8>,
        #[prost(bytes = "vec", tag = "2")]
        pub span_id: Vec<u8>,
        #[prost(bytes = "vec", tag = "4")]
        pub parent_span_id: Vec<u8>,
        #[prost(string, tag = "5")]
        pub name: String,
        #[prost(fixed64, tag = "7")]
        pub start_ns: u64,
        #[prost(fixed64, tag = "8")]
        pub end_ns: u64,
        #[prost(message, repeated, tag = "9")]
        pub attributes: Vec<KeyValue>,
        #[prost(message, repeated, tag = "13")]
        pub links: Vec<Link>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Link {
        #[prost(bytes = "vec", tag = "1")]
        pub trace_id: Vec<u8>,
        #[prost(bytes = "vec", tag = "2")]
        pub span_id: Vec<u8>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct KeyValue {
        #[prost(string, tag = "1")]
        pub key: String,
        #[prost(message, optional, tag = "2")]
        pub value: Option<AnyValue>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct AnyValue {
        #[prost(oneof = "Value", tags = "1, 3")]
        pub value: Option<Value>,
    }

    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum Value {
        #[prost(string, tag = "1")]
        Text(String),
        #[prost(int64, tag = "3")]
        Number(i64),
    }

    impl Span {
        /// An attribute as text.
        pub fn attribute(&self, key: &str) -> Option<String> {
            text_of(&self.attributes, key)
        }
    }

    pub fn text_of(attributes: &[KeyValue], key: &str) -> Option<String> {
        let found = attributes.iter().find(|attribute| attribute.key == key)?;
        match found.value.as_ref()?.value.as_ref()? {
            Value::Text(text) => Some(text.clone()),
            Value::Number(number) => Some(number.to_string()),
        }
    }
}

/// All that came in, as it came.
#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Vec<Bytes>>>);

impl Collector {
    async fn start() -> (Collector, SocketAddr) {
        let collector = Collector::default();
        let take = async |State(Collector(all)): State<Collector>, headers: HeaderMap, body| {
            assert_eq!(headers["content-type"], "application/x-protobuf");
            all.lock().unwrap().push(body);
            StatusCode::OK
        };
        let router = Router::new().route("/v1/traces", post(take));
        let router = router.with_state(collector.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, router).await });
        (collector, address)
    }

    fn raw(&self) -> Vec<Bytes> {
        self.0.lock().unwrap().clone()
    }

    fn resources(&self) -> Vec<otlp::ResourceSpans> {
        let messages = self.raw();
        let messages = messages
            .iter()
            .map(|body| otlp::Export::decode(&body[..]).unwrap());
        messages
            .flat_map(|message| message.resource_spans)
            .collect()
    }

    fn spans(&self) -> Vec<otlp::Span> {
        let resources = self.resources().into_iter();
        let scopes = resources.flat_map(|resource| resource.scope_spans);
        scopes.flat_map(|scope| scope.spans).collect()
    }

    /// The first span of this name that is as wanted.
    async fn span(&self, name: &str, wanted: impl Fn(&otlp::Span) -> bool) -> otlp::Span {
        eventually(name, async || {
            let mut spans = self.spans().into_iter();
            spans.find(|span| span.name == name && wanted(span))
        })
        .await
    }
}

/// A gateway, and a process for the rest, on the same stores; both send what they see at once.
async fn pair(redis: &Redis, collector: SocketAddr, grabs_per_million: u32) -> (Server, Server) {
    let nodes = format!("store.nodes=[\"redis://127.0.0.1:{}\"]", redis.port);
    let ledger = format!("ledger.url={}", postgres::database().await);
    let endpoint = format!("trace.endpoint=http://{collector}/v1/traces");
    let grabs = format!("trace.grabs_per_million={grabs_per_million}");
    let shared = [
        "store.topology=nodes",
        &nodes,
        &ledger,
        &endpoint,
        &grabs,
        "trace.service=quiz-test",
        "trace.interval_ms=20",
        "webhooks.interval_ms=20",
    ];
    let roles = "server.roles=[\"settle\",\"steward\",\"admin\"]";
    let rest = Server::start(&[&shared[..], &[roles]].concat());
    let secret = rest.data_dir().join("token-secret");
    let secret = format!("tokens.secret_file={}", secret.display());
    let roles = "server.roles=[\"gateway\"]";
    let gateway = Server::start(&[&shared[..], &[roles, &secret]].concat());
    (gateway, rest)
}

/// A session of `user` at the gateway, whose tokens the other process makes.
async fn enter(gateway: &Server, rest: &Server, user: &str) -> Raw {
    let mut raw = Raw::connect(gateway).await;
    raw.hello(&rest.token(user)).await;
    raw
}

#[tokio::test]
async fn a_collector_sees_a_rain_from_its_creation_to_its_audit_and_a_packet_from_grab_to_claim() {
    let (collector, address) = Collector::start().await;
    let redis = Redis::fit().await;
    let (gateway, rest) = pair(&redis, address, 1_000_000).await;
    let admin = rest.admin();
    let receiver = Receiver::start().await;
    let webhook = NewWebhook {
        url: receiver.url(),
        events: None,
    };
    admin.create_webhook(&webhook, None).await.unwrap();
    admin.create_sponsor("acme").await.unwrap();
    admin.deposit("acme", Cents(1_000), "d1").await.unwrap();
    let rain = NewRain {
        refund_after_ms: Some(0),
        opens_at_ms: Some(hongbao::clock::now_ms()),
        ..new_rain(10, 1_000)
    };
    let rain = admin.create_rain(&rain).await.unwrap().id;
    rest.until(rain, |rain| rain.state == RainState::Open).await;
    let mut anna = enter(&gateway, &rest, "anna-of-aachen").await;
    let won = anna.grab(rain.get()).await;
    assert_eq!(won.outcome(), Outcome::Won);
    let mut again = enter(&gateway, &rest, "anna-of-aachen").await;
    assert_eq!(again.grab(rain.get()).await.outcome(), Outcome::AlreadyWon);
    rest.until_settled(rain).await;
    admin.close_rain(rain).await.unwrap();
    rest.until(rain, |rain| rain.state == RainState::Finished)
        .await;

    // The packet's two ends, which two processes made without a word to each other.
    let packet = won.packet_id.to_string();
    let of_packet = |span: &otlp::Span| span.attribute("hongbao.packet") == Some(packet.clone());
    let grab = collector
        .span("grab", |span| {
            of_packet(span) && span.attribute("hongbao.outcome").as_deref() == Some("WON")
        })
        .await;
    assert_eq!(grab.attribute("hongbao.rain"), Some(rain.to_string()));
    assert_eq!(
        grab.attribute("hongbao.request").as_deref(),
        Some("2"),
        "the first was Hello"
    );
    assert!(grab.parent_span_id.is_empty() && grab.end_ns > grab.start_ns);
    let claim = collector.span("settle.claim", of_packet).await;
    assert_eq!(
        claim.attribute("hongbao.decision").as_deref(),
        Some("credited")
    );
    assert_eq!(
        (&claim.trace_id, &claim.parent_span_id),
        (&grab.trace_id, &grab.span_id)
    );
    assert!(claim.end_ns > grab.end_ns);
    let repeat = collector
        .span("grab", |span| {
            of_packet(span) && span.span_id != grab.span_id
        })
        .await;
    assert_eq!(
        repeat.attribute("hongbao.outcome").as_deref(),
        Some("ALREADY_WON")
    );
    assert_eq!(
        (&repeat.trace_id, &repeat.parent_span_id),
        (&grab.trace_id, &grab.span_id)
    );

    // The batch that it was in, and what that was made of.
    let batch = collector
        .span("settle.batch", |span| {
            span.span_id == claim.links[0].span_id
        })
        .await;
    assert_eq!(batch.attribute("hongbao.claims").as_deref(), Some("1"));
    let mut last = batch.start_ns;
    for name in ["settle.lease", "settle.credit", "settle.ack"] {
        let part = collector
            .span(name, |span| span.parent_span_id == batch.span_id)
            .await;
        assert_eq!(part.trace_id, batch.trace_id);
        assert!(
            last <= part.start_ns && part.end_ns <= batch.end_ns,
            "{name}"
        );
        last = part.start_ns;
    }

    let of_rain = |span: &otlp::Span| span.attribute("hongbao.rain") == Some(rain.to_string());
    for name in [
        "steward.load",
        "steward.open",
        "steward.close",
        "steward.refund",
        "steward.audit",
    ] {
        collector.span(name, of_rain).await;
    }
    let request = collector
        .span("admin.request", |span| {
            span.attribute("hongbao.operation").as_deref() == Some("create_rain")
        })
        .await;
    assert_eq!(
        request.attribute("http.route").as_deref(),
        Some("/v1/rains")
    );
    assert_eq!(
        request.attribute("http.response.status_code").as_deref(),
        Some("201")
    );
    collector
        .span("webhook.delivery", |span| {
            span.attribute("hongbao.event").as_deref() == Some("rain.closed")
        })
        .await;

    for resource in collector.resources() {
        let attributes = resource.resource.unwrap().attributes;
        assert_eq!(
            otlp::text_of(&attributes, "service.name").as_deref(),
            Some("quiz-test")
        );
    }
    let secrets = [
        "anna-of-aachen".to_owned(),
        rest.api_key(),
        rest.token("anna-of-aachen"),
    ];
    for body in collector.raw() {
        let text = String::from_utf8_lossy(&body);
        for secret in &secrets {
            assert!(!text.contains(secret.as_str()), "{secret} was sent");
        }
    }
}

/// What waits is sent before the end, however long the interval; and none of the grabs is looked at where the setting says so.
#[tokio::test]
async fn the_last_spans_are_sent_at_the_stop_and_no_grab_that_is_not_sampled() {
    let (collector, address) = Collector::start().await;
    let endpoint = format!("trace.endpoint=http://{address}/v1/traces");
    let server = Server::start(&[
        "store.managed_nodes=1",
        &endpoint,
        "trace.grabs_per_million=0",
        "trace.interval_ms=60000",
    ]);
    let rain = server.open_rain(10, 1_000).await;
    let won = Raw::user(&server, "anna").await.grab(rain.get()).await;
    assert_eq!(won.outcome(), Outcome::Won);
    server.until_settled(rain).await;
    assert!(collector.raw().is_empty(), "not before its time");
    assert!(server.stop().await.success());
    let names: Vec<String> = collector
        .spans()
        .into_iter()
        .map(|span| span.name)
        .collect();
    assert!(names.iter().any(|name| name == "settle.batch"), "{names:?}");
    assert!(
        names
            .iter()
            .all(|name| name != "grab" && name != "settle.claim"),
        "{names:?}"
    );
}

/// Nobody waits for a collector.
#[tokio::test]
async fn without_its_collector_all_goes_on_and_the_log_says_so_once() {
    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!(
        "trace.endpoint=http://{}/v1/traces",
        nobody.local_addr().unwrap()
    );
    drop(nobody);
    let server = Server::start(&[
        "store.managed_nodes=1",
        &endpoint,
        "trace.grabs_per_million=1000000",
        "trace.interval_ms=10",
    ]);
    let rain = server.open_rain(10, 1_000).await;
    for user in 0..5 {
        let mut raw = Raw::user(&server, &format!("user-{user}")).await;
        assert_eq!(raw.grab(rain.get()).await.outcome(), Outcome::Won);
    }
    server.until_settled(rain).await;
    let said = || server.log().matches("traces cannot be delivered").count();
    eventually("the log to say so", async || (said() > 0).then_some(())).await;
    server.admin().close_rain(rain).await.unwrap();
    assert_eq!(said(), 1);
    assert!(server.stop().await.success());
}
