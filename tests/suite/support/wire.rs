//! A client that speaks the wire byte by byte, so that it can also do it wrong.

use bytes::BytesMut;
use hongbao::wire::client_frame::Request;
use hongbao::wire::frame::{self, SERVER_FRAME_MAX};
use hongbao::wire::server_frame::Message;
use hongbao::wire::{ClientFrame, CloseCode, Grab, GrabResult, Hello, Outcome, ServerFrame, Watch};
use prost::Message as _;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use super::PATIENCE;
use super::server::Server;

/// A socket, or TLS over one.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

pub struct Raw {
    stream: Box<dyn Stream>,
    buffer: BytesMut,
    next_request: u64,
}

impl Raw {
    pub async fn connect(server: &Server) -> Raw {
        Raw::try_connect(server).await.expect("the gateway accepts")
    }

    /// `None` when the gateway has dropped the connection already.
    pub async fn try_connect(server: &Server) -> Option<Raw> {
        let stream = TcpStream::connect(server.gateway()).await.ok()?;
        stream.set_nodelay(true).ok()?;
        Some(Raw::over(stream))
    }

    /// From one of this machine's own addresses, like 127.0.0.9.
    pub async fn connect_from(server: &Server, source: &str) -> Raw {
        Raw::over(connect_from(server, source).await.unwrap())
    }

    pub fn over(stream: impl Stream + 'static) -> Raw {
        Raw {
            stream: Box::new(stream),
            buffer: BytesMut::new(),
            next_request: 1,
        }
    }

    /// Whether the gateway has closed the connection without a word, or closes it now.
    pub async fn dropped(&mut self) -> bool {
        self.receive().await.is_none()
    }

    /// As long as the gateway takes them; false when it has closed the connection.
    pub async fn try_bytes(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).await.is_ok()
    }

    /// Connected and welcomed.
    pub async fn user(server: &Server, user: &str) -> Raw {
        let mut raw = Raw::connect(server).await;
        match raw.hello(&server.token(user)).await {
            Message::Welcome(welcome) => assert_eq!(welcome.user, user),
            other => panic!("{other:?}"),
        }
        raw
    }

    /// An edge session, welcomed.
    pub async fn edge(server: &Server, name: &str) -> Raw {
        let mut raw = Raw::connect(server).await;
        match raw.hello(&server.edge_token(name)).await {
            Message::Welcome(welcome) => assert!(welcome.edge),
            other => panic!("{other:?}"),
        }
        raw
    }

    pub async fn bytes(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
    }

    pub async fn send(&mut self, request: Request) -> u64 {
        let request_id = self.next_request;
        self.next_request += 1;
        let bytes = frame::encode(&ClientFrame {
            request_id,
            request: Some(request),
        });
        self.stream.write_all(&bytes).await.unwrap();
        request_id
    }

    /// The next frame; `None` when the gateway has closed the connection.
    pub async fn receive(&mut self) -> Option<ServerFrame> {
        loop {
            if let Some(message) = frame::take(&mut self.buffer, SERVER_FRAME_MAX).unwrap() {
                return Some(ServerFrame::decode(message).unwrap());
            }
            let read = tokio::time::timeout(PATIENCE, self.stream.read_buf(&mut self.buffer)).await;
            match read.expect("no answer from the gateway") {
                Ok(0) | Err(_) => return None,
                Ok(_) => {}
            }
        }
    }

    /// The answer to a request; pushes that come before it are passed over.
    pub async fn ask(&mut self, request: Request) -> Message {
        let id = self.send(request).await;
        loop {
            let frame = self
                .receive()
                .await
                .expect("the connection was closed instead of an answer");
            if frame.request_id == id {
                return frame.message.unwrap();
            }
        }
    }

    pub async fn hello(&mut self, token: &str) -> Message {
        self.ask(Request::Hello(Hello {
            token: token.into(),
            protocol: 1,
            last_message_id: 0,
        }))
        .await
    }

    pub async fn grab(&mut self, rain_id: u32) -> GrabResult {
        self.grab_as(rain_id, "").await
    }

    /// An edge session's grab for `user`.
    pub async fn grab_as(&mut self, rain_id: u32, user: &str) -> GrabResult {
        let grab = Grab {
            rain_id,
            user: user.into(),
            ..Grab::default()
        };
        match self.ask(Request::Grab(grab)).await {
            Message::GrabResult(result) => result,
            other => panic!("{other:?}"),
        }
    }

    pub async fn watch(&mut self, room: &str) {
        let Message::Watching(watching) =
            self.ask(Request::Watch(Watch { room: room.into() })).await
        else {
            panic!("not watching");
        };
        assert_eq!(watching.room, room);
    }

    /// Everything until the gateway closes; the last frame must be a GoAway, whose code this is.
    pub async fn gone(&mut self) -> (CloseCode, String) {
        let mut last = None;
        while let Some(frame) = self.receive().await {
            last = frame.message;
        }
        match last {
            Some(Message::GoAway(away)) => (away.code(), away.reason),
            Some(Message::Refused(refused)) => (refused.code(), refused.reason),
            other => panic!("closed after {other:?}"),
        }
    }
}

/// From one of this machine's own addresses; an error when the gateway has dropped the connection already.
pub async fn connect_from(server: &Server, source: &str) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((source.parse::<std::net::Ipv4Addr>().unwrap(), 0).into())?;
    socket.connect(server.gateway()).await
}

/// Taps until the outcome is final.
pub async fn final_outcome(raw: &mut Raw, rain: u32) -> GrabResult {
    loop {
        let result = raw.grab(rain).await;
        match result.outcome() {
            Outcome::Missed => tokio::task::yield_now().await,
            Outcome::NotOpen
            | Outcome::Paused
            | Outcome::Busy
            | Outcome::Retry
            | Outcome::CoolingDown
            | Outcome::Checking => {
                let wait = std::time::Duration::from_millis(u64::from(result.retry_after_ms));
                tokio::time::sleep(wait).await; // the protocol asks for it
            }
            _ => return result,
        }
    }
}
