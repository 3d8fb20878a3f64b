//! The smallest server that a rain can be run against, in this process. It keeps every promise, except the one it is told to break.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use axum::extract::{Path as Segment, State};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::routing::{get, post};
use axum::{Json, Router};
use bytes::{Bytes, BytesMut};
use hongbao::admin::signing::{self, Parts};
use hongbao::wire::client_frame::Request;
use hongbao::wire::server_frame::Message;
use hongbao::wire::{
    ClientFrame, CloseCode, GrabResult, InboxPage, Outcome, Pong, RainClosed, RainOpened,
    RainSoldOut, Refused, ServerFrame, Watching, Welcome, frame,
};
use jsonwebtoken::{Algorithm, DecodingKey, Validation};
use prost::Message as _;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::broadcast;

pub const API_KEY: &str = "key";
pub const SECRET_HEX: &str = "00112233445566778899aabbccddeeff";
const RAIN: u32 = 7;

/// The promise that is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lie {
    None,
    /// One packet goes to two users.
    SharedPacket,
    /// A repeated tap wins again.
    SecondPacket,
    /// A repeated tap is told WON again, for the same packet.
    WonAgain,
    /// One win is never credited.
    Unpaid,
    /// One win is credited with a cent less.
    Shaved,
    /// Somebody who is credited was told SOLD_OUT.
    FalseSoldOut,
    /// Nobody is told that the rain opened.
    SilentOpening,
    /// The audit finds a difference.
    Unbalanced,
    /// No token is good enough.
    NoEntry,
}

struct Engine {
    lie: Lie,
    pool: Vec<(u64, i64)>,
    /// user -> packet id, cents, credited at ms
    won: BTreeMap<String, (u64, i64, i64)>,
    told_sold_out: Option<String>,
    state: &'static str,
    packets: u64,
    total_cents: i64,
    refunded_cents: i64,
    room: String,
    pushes: broadcast::Sender<Message>,
}

type Shared = Arc<Mutex<Engine>>;

pub struct StandIn {
    pub gateway: SocketAddr,
    pub admin: SocketAddr,
}

impl StandIn {
    pub async fn start(lie: Lie) -> StandIn {
        let engine = Arc::new(Mutex::new(Engine {
            lie,
            pool: Vec::new(),
            won: BTreeMap::new(),
            told_sold_out: None,
            state: "created",
            packets: 0,
            total_cents: 0,
            refunded_cents: 0,
            room: String::new(),
            pushes: broadcast::channel(16).0,
        }));
        let gateway = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let admin = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addresses = (gateway.local_addr().unwrap(), admin.local_addr().unwrap());
        tokio::spawn(accept(gateway, engine.clone()));
        tokio::spawn(async move { axum::serve(admin, router(engine)).await });
        StandIn {
            gateway: addresses.0,
            admin: addresses.1,
        }
    }

    /// Command line of a small, quick rain against this server.
    pub fn args(&self, folder: &Path, more: &[&str]) -> Vec<String> {
        let secret = folder.join("secret");
        std::fs::write(&secret, SECRET_HEX).unwrap();
        let key = folder.join("key");
        std::fs::write(&key, API_KEY).unwrap();
        let json = folder.join("report.json");
        let mut args: Vec<String> = vec!["hongbao-load".into(), "rain".into()];
        for (name, value) in [
            ("--gateway", self.gateway.to_string()),
            ("--admin", format!("http://{}", self.admin)),
            ("--api-key-file", key.display().to_string()),
            ("--token-secret-file", secret.display().to_string()),
            ("--json", json.display().to_string()),
            ("--sessions", "60".into()),
            ("--packets", "40".into()),
            ("--total", "88.00".into()),
            ("--countdown", "20ms".into()),
            ("--duration", "3s".into()),
            ("--reaction", "150ms".into()),
            ("--seed", "5".into()),
            ("--patience", "8s".into()),
        ] {
            args.extend([name.to_owned(), value]);
        }
        args.push("--quiet".into());
        args.extend(more.iter().map(|arg| arg.to_string()));
        args
    }
}

// ---- the gateway ----

async fn accept(listener: TcpListener, engine: Shared) {
    while let Ok((stream, _)) = listener.accept().await {
        stream.set_nodelay(true).unwrap();
        tokio::spawn(serve(stream, engine.clone()));
    }
}

/// One connection, until its end.
async fn serve(mut stream: TcpStream, engine: Shared) -> Option<()> {
    let mut buffer = BytesMut::new();
    let mut pushes = engine.lock().unwrap().pushes.subscribe();
    let mut user = String::new();
    loop {
        while let Some(bytes) = frame::take(&mut buffer, frame::CLIENT_FRAME_MAX).ok()? {
            let asked = ClientFrame::decode(bytes).ok()?;
            for (request_id, message) in
                answer(&engine, &mut user, asked.request?, asked.request_id)
            {
                say(&mut stream, request_id, message).await?;
            }
        }
        tokio::select! {
            read = stream.read_buf(&mut buffer) => if read.ok()? == 0 { return None },
            push = pushes.recv() => if !user.is_empty() { say(&mut stream, 0, push.ok()?).await? },
        }
    }
}

async fn say(stream: &mut TcpStream, request_id: u64, message: Message) -> Option<()> {
    let message = Some(message);
    let frame = frame::encode(&ServerFrame {
        request_id,
        message,
    });
    stream.write_all(&frame).await.ok()
}

fn answer(engine: &Shared, user: &mut String, request: Request, id: u64) -> Vec<(u64, Message)> {
    let mut engine = engine.lock().unwrap();
    match request {
        Request::Hello(hello) => {
            let secret = hex::decode(SECRET_HEX).unwrap();
            let token = jsonwebtoken::decode::<HashMap<String, Value>>(
                &hello.token,
                &DecodingKey::from_secret(&secret),
                &Validation::new(Algorithm::HS256),
            );
            match token {
                Ok(token) if engine.lie != Lie::NoEntry => {
                    *user = token.claims["sub"].as_str().unwrap().to_owned();
                    let welcome = Welcome {
                        session_id: 1,
                        user: user.clone(),
                        server_time_ms: now_ms(),
                        heartbeat_interval_ms: 10_000,
                        ..Welcome::default()
                    };
                    vec![(id, Message::Welcome(welcome))]
                }
                _ => vec![(
                    id,
                    Message::Refused(Refused {
                        code: CloseCode::TokenInvalid.into(),
                        reason: "the signature is wrong".into(),
                    }),
                )],
            }
        }
        Request::Refresh(_) => vec![],
        Request::Ping(_) => vec![(
            id,
            Message::Pong(Pong {
                server_time_ms: now_ms(),
            }),
        )],
        Request::Watch(watch) => {
            let watching = Message::Watching(Watching { room: watch.room });
            let mut frames = vec![(id, watching)];
            if engine.state == "open" && engine.lie != Lie::SilentOpening {
                frames.push((0, engine.opened()));
            }
            frames
        }
        Request::Grab(_) => vec![(id, Message::GrabResult(engine.grab(user)))],
        Request::Inbox(_) => vec![(id, Message::InboxPage(InboxPage::default()))],
    }
}

impl Engine {
    fn opened(&self) -> Message {
        Message::RainOpened(RainOpened {
            rain_id: RAIN,
            room: self.room.clone(),
            title: "t".into(),
            closes_at_ms: 0,
            server_time_ms: now_ms(),
            ..RainOpened::default()
        })
    }

    fn grab(&mut self, user: &str) -> GrabResult {
        let reply = |outcome: Outcome, packet: Option<(u64, i64)>| GrabResult {
            outcome: outcome.into(),
            rain_id: RAIN,
            packet_id: packet.map_or(0, |packet| packet.0),
            cents: packet.map_or(0, |packet| packet.1),
            retry_after_ms: 20,
        };
        match self.state {
            "created" | "ready" => return reply(Outcome::NotOpen, None),
            "open" => {}
            _ => return reply(Outcome::Closed, None),
        }
        if let Some((id, cents, _)) = self.won.get(user).copied() {
            if self.lie == Lie::SecondPacket
                && let Some(packet) = self.pool.pop()
            {
                return reply(Outcome::Won, Some(packet));
            }
            let outcome = match self.lie {
                Lie::WonAgain => Outcome::Won,
                _ => Outcome::AlreadyWon,
            };
            return reply(outcome, Some((id, cents)));
        }
        if self.told_sold_out.as_deref() == Some(user) {
            return reply(Outcome::SoldOut, None);
        }
        let Some(mut packet) = self.pool.pop() else {
            return reply(Outcome::SoldOut, None);
        };
        if self.lie == Lie::SharedPacket && self.won.len() == 3 {
            packet.0 = self.won.values().next().unwrap().0;
        }
        self.won
            .insert(user.to_owned(), (packet.0, packet.1, now_ms()));
        if self.lie == Lie::FalseSoldOut && self.told_sold_out.is_none() {
            self.told_sold_out = Some(user.to_owned());
            self.won.insert("told".into(), (packet.0, packet.1, 0));
            return reply(Outcome::SoldOut, None);
        }
        if self.pool.is_empty() {
            let room = self.room.clone();
            let sold_out = RainSoldOut {
                rain_id: RAIN,
                room,
            };
            let _ = self.pushes.send(Message::RainSoldOut(sold_out));
        }
        reply(Outcome::Won, Some(packet))
    }

    fn credited(&self) -> Vec<Value> {
        let mut left_out = match self.lie {
            Lie::Unpaid => 1,
            _ => 0,
        };
        let mut shaved = i64::from(self.lie == Lie::Shaved);
        let mut winners: Vec<_> = self
            .won
            .iter()
            .filter(|(user, _)| *user != "told")
            .collect();
        winners.sort_by_key(|(_, won)| won.0);
        let mut credited = Vec::new();
        for (user, (id, cents, at_ms)) in winners {
            if std::mem::take(&mut left_out) == 0 {
                credited.push(json!({
                    "packet_id": id.to_string(), "user": user, "cents": cents - std::mem::take(&mut shaved),
                    "credited_at_ms": at_ms + 3, "more": true,
                }));
            }
        }
        credited
    }

    fn rain(&self) -> Value {
        let credited = self.won.len() - usize::from(self.won.contains_key("told"));
        json!({
            "id": RAIN, "state": self.state, "room": self.room, "packets": self.packets, "opens_at_ms": null,
            "closes_at_ms": null, "buckets": 1, "unknown": {},
            "live": {"pool": self.pool.len(), "claims_waiting": 0, "leased": 0, "retrying": 0, "dead": 0,
                "credited_count": credited, "credited_cents": 0},
        })
    }
}

fn now_ms() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_millis() as i64
}

// ---- the admin API ----

type Answer = Result<Json<Value>, (StatusCode, Json<Value>)>;

fn router(engine: Shared) -> Router {
    Router::new()
        .route("/v1/accounts", post(account))
        .route("/v1/accounts/{sponsor}/deposits", post(account))
        .route("/v1/rains", post(create))
        .route("/v1/rains/{id}", get(show))
        .route("/v1/rains/{id}/open", post(open))
        .route("/v1/rains/{id}/close", post(close))
        .route("/v1/rains/{id}/audit", get(audit))
        .route("/v1/rains/{id}/winners", get(winners))
        .with_state(engine)
}

/// Looks at the signature, as the real one does for every request.
async fn account(uri: Uri, headers: HeaderMap, body: Bytes) -> Answer {
    let header = |name: &str| headers[name].to_str().unwrap();
    let parts = Parts {
        method: "POST",
        path: uri.path(),
        query: "",
        time_ms: header(signing::TIME).parse().unwrap(),
        nonce: header(signing::NONCE),
        idempotency_key: header(signing::IDEMPOTENCY_KEY),
        body: &body,
    };
    if header(signing::SIGNATURE) != parts.sign(API_KEY) {
        let problem = json!({"title": "wrong API key", "status": 401, "detail": "it is not known"});
        return Err((StatusCode::UNAUTHORIZED, Json(problem)));
    }
    Ok(Json(json!({"name": "sponsor:demo", "balance_cents": 0})))
}

async fn create(State(engine): State<Shared>, Json(new): Json<Value>) -> (StatusCode, Json<Value>) {
    let mut engine = engine.lock().unwrap();
    engine.packets = new["packets"].as_u64().unwrap();
    engine.total_cents = new["total_cents"].as_i64().unwrap();
    engine.room = new["room"].as_str().unwrap().to_owned();
    let each = engine.total_cents / engine.packets as i64;
    assert_eq!(each * engine.packets as i64, engine.total_cents);
    engine.pool = (0..engine.packets)
        .map(|index| (u64::from(RAIN) << 32 | index, each))
        .collect();
    let created = engine.rain();
    engine.state = "ready";
    (StatusCode::CREATED, Json(created))
}

async fn show(State(engine): State<Shared>) -> Json<Value> {
    Json(engine.lock().unwrap().rain())
}

async fn open(State(engine): State<Shared>) -> Json<Value> {
    let mut engine = engine.lock().unwrap();
    engine.state = "open";
    if engine.lie != Lie::SilentOpening {
        let _ = engine.pushes.send(engine.opened());
    }
    Json(engine.rain())
}

async fn close(State(engine): State<Shared>) -> Json<Value> {
    let mut engine = engine.lock().unwrap();
    engine.state = "refunded";
    engine.refunded_cents = engine.pool.drain(..).map(|packet| packet.1).sum();
    let room = engine.room.clone();
    let closed = RainClosed {
        rain_id: RAIN,
        room,
    };
    let _ = engine.pushes.send(Message::RainClosed(closed));
    Json(engine.rain())
}

async fn audit(State(engine): State<Shared>) -> Json<Value> {
    let engine = engine.lock().unwrap();
    let credited = engine.credited();
    let cents: i64 = credited.iter().map(|w| w["cents"].as_i64().unwrap()).sum();
    let balanced = engine.lie != Lie::Unbalanced;
    let differences = match balanced {
        true => json!([]),
        false => json!([{"kind": "packet_missing", "packet_id": "30064771073", "cents": 220}]),
    };
    Json(json!({
        "rain_id": RAIN, "balanced": balanced, "in_motion": 0, "funded_cents": engine.total_cents, "pool_cents": 0,
        "claims_cents": 0, "credited_cents": cents, "credited_count": credited.len(),
        "refunded_cents": engine.refunded_cents, "differences": differences,
    }))
}

/// Pages of 7, so that paging is needed.
async fn winners(
    State(engine): State<Shared>,
    Segment(_): Segment<u32>,
    axum::extract::Query(query): axum::extract::Query<HashMap<String, String>>,
) -> Json<Value> {
    let id = |winner: &Value| -> u64 { winner["packet_id"].as_str().unwrap().parse().unwrap() };
    let after: u64 = query
        .get("cursor")
        .map_or(0, |cursor| cursor.parse().unwrap());
    let mut page = engine.lock().unwrap().credited();
    page.retain(|winner| id(winner) > after);
    page.truncate(7);
    let next = page.last().map(|last| id(last).to_string());
    Json(json!({"winners": page, "next_cursor": next}))
}
