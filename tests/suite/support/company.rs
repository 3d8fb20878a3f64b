//! A company's balance system: the reference server `proto/balance_server.rs`, behind a desk that misbehaves on command.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::StreamExt;
use hongbao::ledger::{Balance, Endpoint, EndpointSettings, HttpBalance, Ledger};
use hongbao::post::Trust;
use http_body_util::BodyExt;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use rustls::pki_types::PrivateKeyDer;
use serde_json::Value;
use socket2::{Domain, Socket, Type};
use sqlx::Row;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tower::ServiceExt;

#[path = "../../../proto/balance_server.rs"]
#[allow(dead_code)] // its main
pub mod reference;

use reference::Books;

pub const SECRET: [u8; 32] = [0x5e; 32];

/// A request as it came.
#[derive(Clone, Debug)]
pub struct Asked {
    /// From 0.
    pub number: usize,
    pub at: Instant,
    pub packets: Vec<String>,
    /// Requests under way, this one included.
    pub in_flight: usize,
}

pub enum Fault {
    /// As the contract says.
    Behave,
    /// Answers this instead, and pays nothing.
    Refuse(StatusCode),
    /// Pays, commits, and never answers.
    Silent,
    /// Never answers, and pays nothing.
    Slow,
    /// Pays, and answers with this body.
    Scribble(&'static str),
    /// Pays, and answers without end.
    Endless,
    /// Pays, and hangs up in the middle of the answer.
    HangUp,
    /// Pays, and changes what it says about it.
    Edit(fn(&mut Vec<Value>)),
    /// Does not even look before this is over.
    After(tokio::sync::oneshot::Receiver<()>),
}

type Script = Box<dyn FnMut(&Asked) -> Fault + Send>;

struct Desk {
    books: Arc<Books>,
    script: Mutex<Script>,
    asked: Mutex<Vec<Asked>>,
    in_flight: AtomicUsize,
    /// Bytes of endless answers that were taken.
    endless: AtomicUsize,
}

pub struct Company {
    desk: Arc<Desk>,
    pub books: Arc<Books>,
    pub address: SocketAddr,
    socket: Option<Socket>,
    _dir: TempDir,
}

impl Company {
    /// Serves, and asks `script` about each request how to behave.
    pub async fn start(script: impl FnMut(&Asked) -> Fault + Send + 'static) -> Company {
        let mut company = Company::closed(script).await;
        company.listen();
        company
    }

    /// Has an address, at which connections are refused until [`Company::listen`].
    pub async fn closed(script: impl FnMut(&Asked) -> Fault + Send + 'static) -> Company {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("balance.sqlite");
        let books = Books::open(file.to_str().unwrap(), SECRET.to_vec())
            .await
            .unwrap();
        let books = Arc::new(books);
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
        socket.bind(&loopback.into()).unwrap();
        socket.set_nonblocking(true).unwrap();
        let desk = Desk {
            books: books.clone(),
            script: Mutex::new(Box::new(script)),
            asked: Mutex::default(),
            in_flight: AtomicUsize::new(0),
            endless: AtomicUsize::new(0),
        };
        Company {
            desk: Arc::new(desk),
            books,
            address: socket.local_addr().unwrap().as_socket().unwrap(),
            socket: Some(socket),
            _dir: dir,
        }
    }

    pub fn listen(&mut self) {
        let socket = self.socket.take().unwrap();
        socket.listen(128).unwrap();
        let listener = TcpListener::from_std(socket.into()).unwrap();
        let router = self.router();
        tokio::spawn(async move { axum::serve(listener, router).await });
    }

    /// Serves TLS with this certificate as well.
    pub async fn listen_tls(&self, identity: &rcgen::CertifiedKey<rcgen::KeyPair>) -> SocketAddr {
        let key = PrivateKeyDer::try_from(identity.signing_key.serialize_der()).unwrap();
        let ring = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(ring)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![identity.cert.der().clone()], key)
            .unwrap();
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = self.router();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                // A client that does not trust us hangs up here.
                if let Ok(stream) = acceptor.accept(stream).await {
                    let service = TowerToHyperService::new(router.clone());
                    let serving =
                        http1::Builder::new().serve_connection(TokioIo::new(stream), service);
                    tokio::spawn(serving);
                }
            }
        });
        address
    }

    fn router(&self) -> Router {
        Router::new().fallback(serve).with_state(self.desk.clone())
    }

    pub fn asked(&self) -> Vec<Asked> {
        self.desk.asked.lock().unwrap().clone()
    }

    pub fn endless_bytes(&self) -> usize {
        self.desk.endless.load(Ordering::Relaxed)
    }

    /// What it has paid: packet, user, cents, by packet.
    pub async fn paid(&self) -> Vec<(String, String, i64)> {
        let sql = "SELECT packet_id, user, amount_cents FROM payments ORDER BY CAST(packet_id AS INTEGER)";
        let rows = sqlx::query(sql).fetch_all(&self.books.database).await;
        let paid = |row: &sqlx::sqlite::SqliteRow| (row.get(0), row.get(1), row.get(2));
        rows.unwrap().iter().map(paid).collect()
    }

    pub async fn close_account(&self, user: &str) {
        sqlx::query("INSERT INTO accounts (user, closed) VALUES (?, 1)")
            .bind(user)
            .execute(&self.books.database)
            .await
            .unwrap();
    }

    pub fn settings(&self) -> EndpointSettings {
        let url = format!("http://{}/hongbao", self.address);
        EndpointSettings {
            url: url.parse().unwrap(),
            secret: SECRET.to_vec(),
            trust: Trust::Nobody,
            timeout: Duration::from_secs(10), // long enough on a busy machine; tests of time-outs shorten it
            begin_max: Duration::from_secs(15),
            batch_max: 100,
            concurrency_max: 4,
        }
    }

    /// The balance system as hongbao sees it.
    pub fn balance(&self, ledger: &Ledger) -> Balance {
        balance(ledger, self.settings())
    }
}

pub fn balance(ledger: &Ledger, settings: EndpointSettings) -> Balance {
    Balance::Http(HttpBalance::new(
        ledger.clone(),
        Endpoint::new(settings).unwrap(),
    ))
}

struct UnderWay<'a>(&'a AtomicUsize);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn serve(State(desk): State<Arc<Desk>>, request: Request) -> Response {
    let in_flight = desk.in_flight.fetch_add(1, Ordering::SeqCst) + 1;
    let _under_way = UnderWay(&desk.in_flight);
    let (head, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let fault = note(&desk, &body, in_flight);
    let pay = async || {
        let request = Request::from_parts(head, Body::from(body));
        let paying = reference::app(desk.books.clone()).oneshot(request);
        paying.await.unwrap()
    };
    match fault {
        Fault::Behave => pay().await,
        Fault::Refuse(status) => status.into_response(),
        Fault::Slow => std::future::pending().await,
        Fault::Silent => {
            pay().await;
            std::future::pending().await
        }
        Fault::Scribble(text) => {
            pay().await;
            text.into_response()
        }
        Fault::Endless => {
            pay().await;
            let desk = desk.clone();
            let more = move |_| {
                desk.endless.fetch_add(10_000, Ordering::Relaxed);
                Ok::<_, std::io::Error>(Bytes::from_static(&[b' '; 10_000]))
            };
            let stream = futures_util::stream::iter(0..1_000_000).map(more);
            Body::from_stream(stream).into_response()
        }
        Fault::HangUp => {
            pay().await;
            let parts = [
                Ok("{\"results\":["),
                Err(std::io::Error::other("the plug is pulled")),
            ];
            Body::from_stream(futures_util::stream::iter(parts)).into_response()
        }
        Fault::Edit(edit) => {
            let answer = pay().await.into_body().collect().await.unwrap();
            let mut answer: Value = serde_json::from_slice(&answer.to_bytes()).unwrap();
            edit(answer["results"].as_array_mut().unwrap());
            answer.to_string().into_response()
        }
        Fault::After(signal) => {
            signal.await.unwrap();
            pay().await
        }
    }
}

fn note(desk: &Desk, body: &[u8], in_flight: usize) -> Fault {
    let body: Value = serde_json::from_slice(body).unwrap();
    let claims = body["claims"].as_array().unwrap();
    let packet = |claim: &Value| claim["packet_id"].as_str().unwrap().to_owned();
    let mut all = desk.asked.lock().unwrap();
    let asked = Asked {
        number: all.len(),
        at: Instant::now(),
        packets: claims.iter().map(packet).collect(),
        in_flight,
    };
    all.push(asked.clone());
    drop(all);
    (desk.script.lock().unwrap())(&asked)
}
