use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use hongbao::wire::client_frame::Request;
use hongbao::wire::{ClientFrame, Hello, Ping, frame};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::args::HostileArgs;
use super::{Field, finish, generator};
use crate::LoadError;
use crate::record::{Record, Verdict};
use crate::swarm::IN_FLIGHT_MAX;
use crate::swarm::dialect::{Ask, Who};
use crate::swarm::plan::Plan;

/// Between two bytes of a slow loris.
const DRIP: Duration = Duration::from_millis(500);
/// Between two attacks of one client: enough that a thousand of them are a nuisance, and bounded.
const PAUSE: Duration = Duration::from_millis(500);
/// Before the honest are measured with the others, all of those are at work.
const GATHER: Duration = Duration::from_secs(2);
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
#[derive(Default)]
struct Score {
    connects: AtomicU64,
    /// Connections that the gateway ended.
    ended: AtomicU64,
    bytes: AtomicU64,
}

/// Honest sessions by plan, first alone and then among hostile clients: their p99 must not move by more than it may.
pub async fn hostile(args: HostileArgs) -> Result<Verdict, LoadError> {
    let field = Field::new(&args.target, &args.output)?;
    let hostile = args.slow_loris + args.slow_readers + args.garbage;
    crate::limits::allow_descriptors(u64::from(args.sessions + hostile) + 1_000);
    let mut swarm = field.swarm(field.dialect(Who::Own, Ask::Ping)?, args.length)?;
    field.connect_all(&mut swarm, args.sessions)?;
    let plan = |seed| Plan::new(args.rate, args.length, Duration::ZERO, Some(seed));
    let alone = swarm.open_loop(plan(field.seed), IN_FLIGHT_MAX);
    let alone = alone.map_err(generator("run the generator"))?;

    field.tell(&format!("{hostile} hostile clients join"));
    let score = Arc::new(Score::default());
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
                score: score.clone(),
            };
            clients.spawn(client.run());
        }
    }
    let gathered = swarm.listen(GATHER, |_| false);
    gathered.map_err(generator("listen"))?;
    let among = swarm.open_loop(plan(field.seed + 1), IN_FLIGHT_MAX);
    clients.shutdown().await;
    let among = among.map_err(generator("run the generator"))?;

    let (before, after) = (alone.quantile_ms(0.99), among.quantile_ms(0.99));
    let lost = alone.lost + among.lost;
    let title = format!(
        "{} honest sessions among {hostile} hostile clients",
        args.sessions
    );
    let mut record = Record::new("hostile", &title, field.seed, among);
    record.sessions = args.sessions as usize;
    record.figure("p99 of the honest alone, ms", before);
    record.figure("p99 of the honest among the others, ms", after);
    record.figure("hostile connections", score.connects.load(Relaxed) as f64);
    record.figure(
        "of them ended by the gateway",
        score.ended.load(Relaxed) as f64,
    );
    record.figure("hostile bytes", score.bytes.load(Relaxed) as f64);
    let most = args.factor_max;
    record.check("the honest hardly notice", after <= before * most, || {
        format!("p99 went from {before:.2} ms to {after:.2} ms, more than {most} times as much")
    });
    record.check("no honest session was lost", lost == 0, || {
        format!("{lost} were")
    });
    finish(record, &args.output)
}

struct Client {
    malice: Malice,
    number: u32,
    gateway: SocketAddr,
    token: String,
    random: ChaCha8Rng,
    score: Arc<Score>,
}

impl Client {
    /// Until it is aborted.
    async fn run(mut self) {
        loop {
            if let Ok(Ok(stream)) = timeout(CONNECT_MAX, self.connect()).await {
                self.score.connects.fetch_add(1, Relaxed);
                if self.attack(stream).await.is_err() {
                    self.score.ended.fetch_add(1, Relaxed);
                }
            }
            sleep(PAUSE.mul_f64(0.5 + (self.random.next_u32() % 1_000) as f64 / 1_000.0)).await;
        }
    }

    async fn connect(&self) -> std::io::Result<TcpStream> {
        if !(self.gateway.is_ipv4() && self.gateway.ip().is_loopback()) {
            return TcpStream::connect(self.gateway).await;
        }
        let socket = TcpSocket::new_v4()?;
        let address = 1 + self.number / PER_ADDRESS;
        let source = Ipv4Addr::new(127, 1, (address >> 8) as u8, address as u8);
        socket.bind(SocketAddr::new(IpAddr::V4(source), 0))?;
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
                let mut bytes = one(1, hello);
                for id in 2..200 {
                    bytes.extend(one(id, Request::Ping(Ping {})));
                }
                // Never reads: sooner or later both sides' buffers are full, or the gateway has had enough.
                loop {
                    let sent = timeout(DRIP, self.send(&mut stream, &bytes)).await;
                    if let Ok(sent) = sent {
                        sent?;
                        bytes = (2..200)
                            .flat_map(|id| one(id, Request::Ping(Ping {})))
                            .collect();
                    }
                    sleep(DRIP / 5).await;
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
        self.score.bytes.fetch_add(bytes.len() as u64, Relaxed);
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
