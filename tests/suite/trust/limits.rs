//! What one client may cost: slow bodies, bodies without end, answers that nobody reads, too many connections. (Slow headers are in `admin.rs`.)

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;
use crate::support::PATIENCE;

async fn connect(server: &Server) -> TcpStream {
    TcpStream::connect(server.addresses.admin.unwrap())
        .await
        .unwrap()
}

async fn whole_answer(stream: &mut TcpStream) -> String {
    let mut answer = String::new();
    let read = stream.read_to_string(&mut answer);
    let read = tokio::time::timeout(PATIENCE, read).await;
    read.expect("the server lets go of it").unwrap();
    answer
}

#[tokio::test]
async fn a_body_that_does_not_come_is_not_waited_for() {
    let server = Server::start(&["store.managed_nodes=1", "admin.body_timeout_ms=200"]);
    let signed = Signed::post("/v1/accounts", &server.api_key(), r#"{"sponsor":"acme"}"#);
    let mut stream = connect(&server).await;
    let head = format!(
        "POST /v1/accounts HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 18\r\n{}\r\n",
        signed.header_lines()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(br#"{"spons"#).await.unwrap();
    let answer = whole_answer(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    assert!(answer.contains("the body came too slowly"), "{answer}");
    // Strangers' bodies are not even begun.
    let mut stranger = connect(&server).await;
    let head =
        "POST /v1/accounts HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 18\r\n\r\n";
    stranger.write_all(head.as_bytes()).await.unwrap();
    let answer = whole_answer(&mut stranger).await;
    assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
}

#[tokio::test]
async fn a_body_without_a_length_is_bounded_too() {
    let server = Server::start(&["store.managed_nodes=1", "admin.body_max_bytes=1024"]);
    let signed = Signed::post("/v1/accounts", &server.api_key(), "x");
    let mut stream = connect(&server).await;
    let head = format!(
        "POST /v1/accounts HTTP/1.1\r\nhost: x\r\nconnection: close\r\ntransfer-encoding: chunked\r\n{}\r\n",
        signed.header_lines()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let chunk = format!("400\r\n{}\r\n", "x".repeat(1_024));
    for _ in 0..2 {
        stream.write_all(chunk.as_bytes()).await.unwrap();
    }
    let answer = whole_answer(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
}

#[tokio::test]
async fn connections_beyond_the_cap_wait_until_one_goes() {
    let settings = [
        "store.managed_nodes=1",
        "admin.connections_max=2",
        "admin.header_timeout_ms=60000",
    ];
    let server = Server::start(&settings);
    let request = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n";
    let mut answer = [0u8; 12];
    let mut held = vec![];
    for _ in 0..2 {
        let mut stream = connect(&server).await;
        stream.write_all(request).await.unwrap();
        stream.read_exact(&mut answer).await.unwrap();
        held.push(stream);
    }
    let mut third = connect(&server).await;
    third.write_all(request).await.unwrap();
    let patience = std::time::Duration::from_millis(300);
    let early = tokio::time::timeout(patience, third.read_exact(&mut answer)).await;
    assert!(early.is_err(), "a third connection was served beside two");
    held.pop();
    let late = tokio::time::timeout(PATIENCE, third.read_exact(&mut answer)).await;
    late.expect("it is its turn").unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200");
}

/// Whoever asks for much and reads nothing keeps a place until its time is over, and no longer.
#[tokio::test]
async fn answers_that_nobody_reads_do_not_hold_the_listener() {
    let settings = [
        "store.managed_nodes=1",
        "admin.connections_max=4",
        "admin.write_timeout_ms=300",
        "admin.header_timeout_ms=60000",
    ];
    let server = Server::start(&settings);
    let mut held = vec![];
    for _ in 0..4 {
        let mut stream = connect(&server).await;
        let request = "GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n".repeat(1_000);
        stream.write_all(request.as_bytes()).await.unwrap();
        held.push(stream);
    }
    let mut other = connect(&server).await;
    other
        .write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        .await
        .unwrap();
    let answer = whole_answer(&mut other).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    drop(held);
}
