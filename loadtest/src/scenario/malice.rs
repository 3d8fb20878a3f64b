//! Clients that mean harm: what each of them does, again and again.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use hongbao::wire::client_frame::Request;
use hongbao::wire::{ClientFrame, Hello, Ping, frame};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::Field;
use super::args::HostileArgs;
use crate::LoadError;

/// Between two bytes of a slow loris.
const DRIP: Duration = Duration::from_millis(500);
/// What a slow reader asks between two drips: 80 Pings a second, below the default limit.
const UNREAD: u64 = 40;
/// What its kernel takes for it, bytes: the rest is the gateway's to keep, or to drop.
const ROOM: u32 = 4_096;
/// Between two attacks of one client: enough that a thousand of them are a nuisance, and bounded.
const PAUSE: Duration = Duration::from_secs(1);
/// One connection may take so long.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// They come from addresses of their own, so that limits by address hit them and not the honest: 127.1.0.1 and up.
const PER_ADDRESS: u32 = 50;

/// What one hostile client does, again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Malice {
    SlowLoris,
    SlowReader,
    Garbage,
}

/// What all of them did.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct Score {
    pub connects: u64,
    /// Connections that the gateway ended.
    pub ended: u64,
    pub bytes: u64,
}

impl Score {
    pub fn add(&mut self, other: &Score) {
        self.connects += other.connects;
        self.ended += other.ended;
        self.bytes += other.bytes;
    }
}

#[derive(Default)]
struct Counts {
    connects: AtomicU64,
    ended: AtomicU64,
    bytes: AtomicU64,
}

/// All of them, until `enough`.
pub async fn crowd(
    field: &Field,
    args: &HostileArgs,
    enough: impl Future<Output = ()>,
) -> Result<Score, LoadError> {
    let counts = Arc::new(Counts::default());
    let mut clients = JoinSet::new();
    let kinds = [
        (Malice::SlowLoris, args.slow_loris),
        (Malice::SlowReader, args.slow_readers),
        (Malice::Garbage, args.garbage),
    ];
    let signer = field.signer()?;
    let mut number = 0;
    for (malice, count) in kinds {
        for _ in 0..count {
            number += 1;
            let client = Client {
                malice,
                number,
                gateway: field.gateways[number as usize % field.gateways.len()],
                token: signer.token(&format!("{}h{number}", field.prefix)),
                random: ChaCha8Rng::seed_from_u64(field.seed ^ u64::from(number)),
                counts: counts.clone(),
            };
            clients.spawn(client.run());
        }
    }
    enough.await;
    clients.shutdown().await;
    Ok(Score {
        connects: counts.connects.load(Relaxed),
        ended: counts.ended.load(Relaxed),
        bytes: counts.bytes.load(Relaxed),
    })
}

struct Client {
    malice: Malice,
    number: u32,
    gateway: SocketAddr,
    token: String,
    random: ChaCha8Rng,
    counts: Arc<Counts>,
}

impl Client {
    /// Until it is aborted.
    async fn run(mut self) {
        // A crowd, not a choir.
        sleep(PAUSE.mul_f64(self.chance())).await;
        loop {
            if let Ok(Ok(stream)) = timeout(CONNECT_MAX, self.connect()).await {
                self.counts.connects.fetch_add(1, Relaxed);
                if self.attack(stream).await.is_err() {
                    self.counts.ended.fetch_add(1, Relaxed);
                }
            }
            sleep(PAUSE.mul_f64(0.5 + self.chance())).await;
        }
    }

    /// From 0 to 1.
    fn chance(&mut self) -> f64 {
        f64::from(self.random.next_u32() % 1_000) / 1_000.0
    }

    async fn connect(&self) -> std::io::Result<TcpStream> {
        if !(self.gateway.is_ipv4() && self.gateway.ip().is_loopback()) {
            return TcpStream::connect(self.gateway).await;
        }
        let socket = TcpSocket::new_v4()?;
        let address = 1 + self.number / PER_ADDRESS;
        let source = Ipv4Addr::new(127, 1, (address >> 8) as u8, address as u8);
        socket.bind(SocketAddr::new(IpAddr::V4(source), 0))?;
        if self.malice == Malice::SlowReader {
            socket.set_recv_buffer_size(ROOM)?;
        }
        socket.connect(self.gateway).await
    }

    async fn attack(&mut self, mut stream: TcpStream) -> std::io::Result<()> {
        match self.malice {
            Malice::SlowLoris => {
                // The beginning of a frame of 4,096 bytes, which is allowed, and then a drop at a time.
                self.send(&mut stream, &[0, 0, 0x10, 0]).await?;
                loop {
                    let byte = self.random.next_u32() as u8;
                    self.send(&mut stream, &[byte]).await?;
                    let mut answer = [0; 64];
                    if let Ok(read) = timeout(DRIP, stream.read(&mut answer)).await
                        && read? == 0
                    {
                        return Err(std::io::ErrorKind::UnexpectedEof.into());
                    }
                }
            }
            Malice::SlowReader => {
                let hello = Request::Hello(Hello {
                    token: self.token.clone(),
                    protocol: hongbao::client::PROTOCOL,
                    last_message_id: 0,
                });
                self.send(&mut stream, &one(1, hello)).await?;
                // Never reads, and asks no faster than a gateway lets people ask.
                loop {
                    let asked: Vec<u8> = (0..UNREAD)
                        .flat_map(|id| one(2 + id, Request::Ping(Ping {})))
                        .collect();
                    if let Ok(sent) = timeout(DRIP, self.send(&mut stream, &asked)).await {
                        sent?;
                    }
                    sleep(DRIP).await;
                }
            }
            Malice::Garbage => {
                let mut bytes = [0; 512];
                self.random.fill_bytes(&mut bytes);
                self.send(&mut stream, &bytes).await?;
                let mut answer = [0; 512];
                while timeout(CONNECT_MAX, stream.read(&mut answer)).await?? > 0 {}
                Err(std::io::ErrorKind::UnexpectedEof.into())
            }
        }
    }

    async fn send(&self, stream: &mut TcpStream, bytes: &[u8]) -> std::io::Result<()> {
        self.counts.bytes.fetch_add(bytes.len() as u64, Relaxed);
        stream.write_all(bytes).await
    }
}

fn one(request_id: u64, request: Request) -> Vec<u8> {
    let request = Some(request);
    frame::encode(&ClientFrame {
        request_id,
        request,
    })
    .to_vec()
}
