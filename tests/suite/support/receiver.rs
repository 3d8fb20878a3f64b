//! A receiver of webhooks that misbehaves on command.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http_body_util::BodyExt;
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::net::TcpListener;

/// A request as it came.
#[derive(Clone, Debug)]
pub struct Told {
    /// From 0.
    pub number: usize,
    pub headers: HeaderMap,
    pub text: String,
    pub body: Value,
}

impl Told {
    pub fn header(&self, name: &str) -> &str {
        self.headers[name].to_str().unwrap()
    }

    pub fn id(&self) -> &str {
        self.header("hongbao-event-id")
    }

    /// As `proto/webhooks.md` says, with an HMAC that is made by hand (RFC 2104): nothing here is the server's own code.
    pub fn is_signed_by(&self, secret: &str) -> bool {
        let time = self.header("hongbao-time");
        let wanted = hmac_sha256(
            secret.as_bytes(),
            format!("{time}.{}", self.text).as_bytes(),
        );
        let wanted = format!("v1={}", hex::encode(wanted));
        let age_ms = hongbao::clock::now_ms() - time.parse::<i64>().unwrap();
        let signatures = self.header("hongbao-signature").split(',');
        age_ms < 300_000 && signatures.into_iter().any(|given| given == wanted)
    }
}

fn hmac_sha256(key: &[u8], message: &[u8]) -> Vec<u8> {
    let mut block = [0u8; 64];
    if key.len() > block.len() {
        block[..32].copy_from_slice(&Sha256::digest(key));
    } else {
        block[..key.len()].copy_from_slice(key);
    }
    let inner = Sha256::new()
        .chain_update(block.map(|byte| byte ^ 0x36))
        .chain_update(message);
    let outer = Sha256::new()
        .chain_update(block.map(|byte| byte ^ 0x5c))
        .chain_update(inner.finalize());
    outer.finalize().to_vec()
}

pub enum Answer {
    Thanks,
    Refuse(StatusCode),
    /// To another path of the receiver, where it would be welcome.
    Redirect,
    /// Never.
    Silent,
    /// 200, and text without end.
    Endless,
}

type Script = Box<dyn FnMut(&Told) -> Answer + Send>;

struct Desk {
    script: Mutex<Script>,
    told: Mutex<Vec<Told>>,
    in_flight: AtomicUsize,
}

pub struct Receiver {
    desk: Arc<Desk>,
    pub address: SocketAddr,
}

impl Receiver {
    /// One that says thanks.
    pub async fn start() -> Receiver {
        Receiver::with(|_| Answer::Thanks).await
    }

    /// Asks `script` about each request how to behave.
    pub async fn with(script: impl FnMut(&Told) -> Answer + Send + 'static) -> Receiver {
        let desk = Arc::new(Desk {
            script: Mutex::new(Box::new(script)),
            told: Mutex::default(),
            in_flight: AtomicUsize::new(0),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().fallback(serve).with_state(desk.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        Receiver { desk, address }
    }

    pub fn url(&self) -> String {
        format!("http://{}/hongbao", self.address)
    }

    /// All requests so far.
    pub fn told(&self) -> Vec<Told> {
        self.desk.told.lock().unwrap().clone()
    }

    /// Ids of the events so far, in the order in which they came.
    pub fn ids(&self) -> Vec<String> {
        self.told()
            .iter()
            .map(|told| told.id().to_owned())
            .collect()
    }

    pub fn in_flight(&self) -> usize {
        self.desk.in_flight.load(Ordering::SeqCst)
    }
}

struct UnderWay(Arc<Desk>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn serve(State(desk): State<Arc<Desk>>, request: Request) -> Response {
    desk.in_flight.fetch_add(1, Ordering::SeqCst);
    let _under_way = UnderWay(desk.clone());
    let (head, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let answer = {
        let mut all = desk.told.lock().unwrap();
        let told = Told {
            number: all.len(),
            headers: head.headers,
            text: String::from_utf8(body.to_vec()).unwrap(),
            body: serde_json::from_slice(&body).unwrap(),
        };
        all.push(told.clone());
        (desk.script.lock().unwrap())(&told)
    };
    match answer {
        Answer::Thanks => StatusCode::NO_CONTENT.into_response(),
        Answer::Refuse(status) => (status, "no\nthanks").into_response(),
        Answer::Redirect => (StatusCode::FOUND, [(header::LOCATION, "/elsewhere")]).into_response(),
        Answer::Silent => std::future::pending().await,
        Answer::Endless => {
            let more = |_| Ok::<_, std::io::Error>(Bytes::from_static(&[b' '; 10_000]));
            let stream = futures_util::stream::iter((0..1_000_000).map(more));
            Body::from_stream(stream).into_response()
        }
    }
}
