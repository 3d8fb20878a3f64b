//! A gateway made of one listener and the test's own words, so that a test can say anything at any moment, wrong things included.

use std::sync::Arc;

use bytes::BytesMut;
use prost::Message as _;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::{BackoffBounds, Settings};
use crate::wire::client_frame::Request;
use crate::wire::server_frame::Message;
use crate::wire::{ClientFrame, GrabResult, Outcome, ServerFrame, Welcome, frame};

pub struct StandIn {
    listener: TcpListener,
    pub settings: Settings,
}

impl StandIn {
    pub async fn start() -> StandIn {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let mut settings = Settings::new(vec![address]);
        settings.reconnect = BackoffBounds {
            first_ms: 2,
            max_ms: 10,
        };
        settings.repeat = settings.reconnect;
        StandIn { listener, settings }
    }

    pub fn settings(&self) -> Arc<Settings> {
        Arc::new(self.settings.clone())
    }

    pub async fn accept(&self) -> Peer {
        let (stream, _) = self.listener.accept().await.unwrap();
        stream.set_nodelay(true).unwrap();
        Peer {
            stream,
            buffer: BytesMut::new(),
        }
    }

    /// Accepts and answers Hello.
    pub async fn welcome(&self) -> Peer {
        let mut peer = self.accept().await;
        let (id, request) = peer.hear().await;
        assert!(matches!(request, Request::Hello(_)), "{request:?}");
        peer.say(id, welcome(30_000)).await;
        peer
    }
}

pub fn welcome(heartbeat_interval_ms: u32) -> Message {
    Message::Welcome(Welcome {
        session_id: 1,
        user: "anna".into(),
        server_time_ms: 1_000_000,
        heartbeat_interval_ms,
        ..Welcome::default()
    })
}

pub fn result(outcome: Outcome, packet_id: u64, cents: i64) -> Message {
    Message::GrabResult(GrabResult {
        outcome: outcome.into(),
        rain_id: 7,
        packet_id,
        cents,
        retry_after_ms: 0,
    })
}

/// One connection, seen from the gateway.
pub struct Peer {
    pub stream: TcpStream,
    buffer: BytesMut,
}

impl Peer {
    /// The next request; panics when the client has gone.
    pub async fn hear(&mut self) -> (u64, Request) {
        self.hear_or_end().await.expect("the client went away")
    }

    /// `None` when the client has closed the connection.
    pub async fn hear_or_end(&mut self) -> Option<(u64, Request)> {
        loop {
            if let Some(bytes) = frame::take(&mut self.buffer, frame::CLIENT_FRAME_MAX).unwrap() {
                let frame = ClientFrame::decode(bytes).unwrap();
                return Some((frame.request_id, frame.request.unwrap()));
            }
            match self.stream.read_buf(&mut self.buffer).await {
                Ok(0) | Err(_) => return None,
                Ok(_) => {}
            }
        }
    }

    /// The next request, which is a grab of rain 7. Returns its id.
    pub async fn hear_grab(&mut self) -> u64 {
        match self.hear().await {
            (id, Request::Grab(grab)) if grab.rain_id == 7 => id,
            other => panic!("{other:?} where a grab of rain 7 was expected"),
        }
    }

    pub async fn say(&mut self, request_id: u64, message: Message) {
        let frame = frame::encode(&ServerFrame {
            request_id,
            message: Some(message),
        });
        self.stream.write_all(&frame).await.unwrap();
    }
}
