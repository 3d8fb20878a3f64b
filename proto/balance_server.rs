//! A company's balance system, as `proto/balance.md` asks for it: the reference to read and to translate. It uses nothing of hongbao's.
//!
//! ```sh
//! openssl rand -hex 32 > secret.hex
//! cargo run --example balance_server -- 127.0.0.1:7800 secret.hex balance.sqlite
//! ```
//!
//! Its whole correctness is two lines of SQL: a primary key on the packet id, and one transaction that is committed before the answer.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::post;
use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use sqlx::Row;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool, SqlitePoolOptions, SqliteSynchronous};

/// A timestamp further from this machine's clock is refused.
const WINDOW_MS: i64 = 300_000;
/// 2,000 claims of at most 140 bytes, and room.
const REQUEST_BYTES_MAX: usize = 512 * 1024;

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS payments (
        packet_id    TEXT NOT NULL PRIMARY KEY, -- the idempotency key
        user         TEXT NOT NULL,
        amount_cents INTEGER NOT NULL CHECK (amount_cents > 0)
    ) STRICT;
    CREATE TABLE IF NOT EXISTS accounts (
        user          TEXT NOT NULL PRIMARY KEY,
        balance_cents INTEGER NOT NULL DEFAULT 0,
        closed        INTEGER NOT NULL DEFAULT 0
    ) STRICT;";

#[derive(Deserialize)]
struct Request {
    claims: Vec<Claim>,
}

#[derive(Deserialize)]
struct Claim {
    /// Text: it is above what a JavaScript number can hold.
    packet_id: String,
    user: String,
    amount_cents: i64,
}

#[derive(Serialize)]
struct Answer {
    results: Vec<Outcome>,
}

#[derive(Serialize)]
struct Outcome {
    packet_id: String,
    result: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    amount_cents: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
}

pub struct Books {
    pub database: SqlitePool,
    secret: Vec<u8>,
}

impl Books {
    pub async fn open(file: &str, secret: Vec<u8>) -> Result<Books, sqlx::Error> {
        let options = SqliteConnectOptions::new()
            .filename(file)
            .create_if_missing(true)
            .synchronous(SqliteSynchronous::Full); // what is committed survives a power cut
        let pool = SqlitePoolOptions::new().max_connections(1);
        let database = pool.connect_with(options).await?;
        sqlx::raw_sql(TABLES).execute(&database).await?;
        Ok(Books { database, secret })
    }

    /// Pays what can be paid, in one transaction: either all of it is on disk when this returns, or none of it.
    async fn pay(&self, claims: Vec<Claim>) -> Result<Vec<Outcome>, sqlx::Error> {
        let mut tx = self.database.begin_with("BEGIN IMMEDIATE").await?;
        let mut results = Vec::with_capacity(claims.len());
        for claim in claims {
            results.push(pay_one(&mut tx, claim).await?);
        }
        tx.commit().await?;
        Ok(results)
    }
}

async fn pay_one(tx: &mut sqlx::SqliteConnection, claim: Claim) -> Result<Outcome, sqlx::Error> {
    // The packet id first, before any other check: what was paid stays paid, whatever has happened to the account since.
    let paid = sqlx::query("SELECT user, amount_cents FROM payments WHERE packet_id = ?")
        .bind(&claim.packet_id)
        .fetch_optional(&mut *tx)
        .await?;
    if let Some(paid) = paid {
        let (user, amount_cents): (String, i64) = (paid.get(0), paid.get(1));
        let same = user == claim.user && amount_cents == claim.amount_cents;
        return Ok(Outcome {
            packet_id: claim.packet_id,
            result: if same { "existed" } else { "conflict" },
            user: Some(user),
            amount_cents: Some(amount_cents),
            reason: None,
        });
    }
    let closed = sqlx::query("SELECT 1 FROM accounts WHERE user = ? AND closed = 1")
        .bind(&claim.user)
        .fetch_optional(&mut *tx)
        .await?;
    if closed.is_some() || claim.amount_cents <= 0 {
        return Ok(Outcome {
            packet_id: claim.packet_id,
            result: "rejected",
            user: None,
            amount_cents: None,
            reason: Some("the account is closed, or the amount is not above zero"),
        });
    }
    sqlx::query("INSERT INTO payments (packet_id, user, amount_cents) VALUES (?, ?, ?)")
        .bind(&claim.packet_id)
        .bind(&claim.user)
        .bind(claim.amount_cents)
        .execute(&mut *tx)
        .await?;
    sqlx::query(
        "INSERT INTO accounts (user, balance_cents) VALUES (?, ?)
         ON CONFLICT (user) DO UPDATE SET balance_cents = balance_cents + excluded.balance_cents",
    )
    .bind(&claim.user)
    .bind(claim.amount_cents)
    .execute(&mut *tx)
    .await?;
    Ok(Outcome {
        packet_id: claim.packet_id,
        result: "credited",
        user: Some(claim.user),
        amount_cents: Some(claim.amount_cents),
        reason: None,
    })
}

/// Whether the holder of the secret sent this body, and lately. The error is for the operators of both sides.
pub fn verify(
    secret: &[u8],
    headers: &HeaderMap,
    body: &[u8],
    now_ms: i64,
) -> Result<(), &'static str> {
    let header = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let timestamp = header("hongbao-timestamp").ok_or("hongbao-timestamp is missing")?;
    let signature = header("hongbao-signature").ok_or("hongbao-signature is missing")?;
    let signature = signature
        .strip_prefix("v1=")
        .and_then(|digits| hex::decode(digits).ok())
        .ok_or("hongbao-signature is not v1= and hex digits")?;
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).expect("HMAC takes keys of any length");
    mac.update(timestamp.as_bytes());
    mac.update(b".");
    mac.update(body);
    mac.verify_slice(&signature) // in constant time
        .map_err(|_| "hongbao-signature is wrong")?;
    let sent_ms: i64 = timestamp
        .parse()
        .map_err(|_| "hongbao-timestamp is no number")?;
    if now_ms.abs_diff(sent_ms) > WINDOW_MS as u64 {
        return Err("hongbao-timestamp is too far from this machine's clock");
    }
    Ok(())
}

async fn pay(State(books): State<Arc<Books>>, headers: HeaderMap, body: Bytes) -> Response {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now_ms = now.unwrap_or(Duration::ZERO).as_millis() as i64;
    // The bytes as they came, before anything else is made of them.
    if let Err(problem) = verify(&books.secret, &headers, &body, now_ms) {
        return (StatusCode::UNAUTHORIZED, problem).into_response();
    }
    let request: Request = match serde_json::from_slice(&body) {
        Ok(request) => request,
        Err(error) => return (StatusCode::BAD_REQUEST, error.to_string()).into_response(),
    };
    match books.pay(request.claims).await {
        Ok(results) => Json(Answer { results }).into_response(),
        // Rolled back, and even if it was not: the repeat finds out.
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, error.to_string()).into_response(),
    }
}

pub fn app(books: Arc<Books>) -> Router {
    Router::new()
        .route("/hongbao", post(pay))
        .layer(DefaultBodyLimit::max(REQUEST_BYTES_MAX))
        .with_state(books)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [listen, secret_file, database] = arguments.as_slice() else {
        return Err(
            "usage: balance_server <address:port> <file with the secret as hex> <SQLite file>"
                .into(),
        );
    };
    let secret = hex::decode(std::fs::read_to_string(secret_file)?.trim())?;
    let books = Books::open(database, secret).await?;
    let listener = tokio::net::TcpListener::bind(listen).await?;
    println!("http://{}/hongbao", listener.local_addr()?);
    axum::serve(listener, app(Arc::new(books))).await?;
    Ok(())
}
