//! What many clients cost a gateway: a hundred thousand that are silent, and a few thousand that mean harm. A goal that is missed fails the run,
//! after all figures.

#[path = "suite/support/mod.rs"]
#[allow(dead_code, reason = "shared with the suite, which uses the rest")]
mod support;

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hongbao::wire::client_frame::Request;
use hongbao::wire::server_frame::Message;
use hongbao::wire::{ClientFrame, Grab, Hello, Ping, Watch, frame};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::LocalSet;

use support::server::Server;
use support::wire::Raw;

/// Sessions from one loopback address: it has 28,000 ports.
const PER_ADDRESS: u32 = 5_000;
/// Clients that connect at the same time.
const AT_ONCE: u32 = 100;
/// Of the whole process, for each idle session that is authenticated: the goal.
const IDLE_BYTES_MAX: u64 = 4_096;
const P99_RATIO_MAX: f64 = 1.5;
const ROUNDS: usize = 3;

/// The last line of a run.
fn judge(figures: String, reached: bool) {
    let verdict = if reached { "reached" } else { "MISSED" };
    println!("{figures}: {verdict})");
    assert!(reached, "the goal is missed");
}

fn number(variable: &str, default: u32) -> u32 {
    let text = std::env::var(variable).unwrap_or_default();
    text.parse().unwrap_or(default)
}

/// For sockets on this side; the server inherits it, and raises its own.
fn allow_descriptors(wanted: u32) {
    let wanted = u64::from(wanted) + 1_000;
    let (soft, hard) = rlimit::Resource::NOFILE.get().unwrap();
    if soft < wanted {
        let raised = rlimit::Resource::NOFILE.set(wanted, hard.max(wanted));
        raised.expect("root may raise the limit of descriptors");
    }
}

async fn connect(gateway: SocketAddr, source: Ipv4Addr) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?; // ports of an earlier run may still wait
    socket.bind((source, 0).into())?;
    let stream = socket.connect(gateway).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

fn hello(server: &Server, user: &str) -> Vec<u8> {
    let hello = Hello {
        token: server.token(user),
        protocol: 1,
        last_message_id: 0,
    };
    let request = Some(Request::Hello(hello));
    frame::encode(&ClientFrame {
        request_id: 1,
        request,
    })
    .to_vec()
}

/// An authenticated session that says nothing more.
async fn idle_session(server: &Server, number: u32) -> TcpStream {
    // Addresses of this run's own: the search for a free port is slow where those of an earlier run still wait.
    let run = (std::process::id() % 250) as u8;
    let source = Ipv4Addr::new(127, 1 + run, 1, 1 + (number / PER_ADDRESS) as u8);
    let mut stream = connect(server.gateway(), source).await.unwrap();
    let hello = hello(server, &format!("user-{number}"));
    stream.write_all(&hello).await.unwrap();
    let len = stream.read_u32().await.unwrap();
    let mut welcome = vec![0; len as usize];
    stream.read_exact(&mut welcome).await.unwrap();
    stream
}

#[tokio::test]
async fn idle_sessions() {
    let sessions = number("SESSIONS", 100_000);
    allow_descriptors(sessions);
    let server = Arc::new(Server::start(&[
        "gateway.idle_timeout_ms=3600000",
        "gateway.heartbeat_interval_ms=1800000",
    ]));
    let mut held = vec![];
    // The first ones find the allocator's and the runtime's memory.
    for n in 0..AT_ONCE {
        held.push(idle_session(&server, n).await);
    }
    let before = server.resident_kib();
    println!("idle: {before} KiB with {AT_ONCE} sessions");
    let started = Instant::now();
    let mut last = AT_ONCE;
    for part in 1..=5 {
        let until = sessions / 5 * part;
        let connecting = (0..AT_ONCE).map(|first| {
            let server = server.clone();
            async move {
                let mut held = vec![];
                for n in (last + first..until).step_by(AT_ONCE as usize) {
                    held.push(idle_session(&server, n).await);
                }
                held
            }
        });
        for part in futures_util::future::join_all(connecting).await {
            held.extend(part);
        }
        last = until;
        let each = (server.resident_kib() - before) * 1_024 / u64::from(until - AT_ONCE);
        println!("idle: {until} sessions, {each} bytes each");
    }
    let rate = f64::from(sessions) / started.elapsed().as_secs_f64();
    let metrics = server.metrics().await;
    let open = format!("hongbao_sessions {sessions}");
    assert!(metrics.lines().any(|line| line == open), "{metrics}");
    let each = (server.resident_kib() - before) * 1_024 / u64::from(sessions - AT_ONCE);
    println!("idle: {rate:.0} connects/s");
    let figures = format!(
        "idle: {sessions} authenticated plain sessions, {each} bytes of resident memory each (goal {IDLE_BYTES_MAX}"
    );
    judge(figures, each <= IDLE_BYTES_MAX);
}

/// How the crowd behaves, per client.
const DRIP: Duration = Duration::from_millis(100);
const UNREAD: Duration = Duration::from_millis(50);
const GARBAGE: Duration = Duration::from_secs(1);
/// Between two requests of an honest client.
const HONEST: Duration = Duration::from_millis(200);

struct Crowd {
    gateway: SocketAddr,
    over: AtomicBool,
    /// Connections that the gateway ended.
    ended: AtomicU64,
}

impl Crowd {
    fn goes_on(&self) -> bool {
        !self.over.load(Ordering::Relaxed)
    }

    /// Connects, behaves badly until it is thrown out, and comes back.
    async fn again_and_again(&self, source: Ipv4Addr, behave: impl AsyncFn(TcpStream)) {
        while self.goes_on() {
            if let Ok(stream) = connect(self.gateway, source).await {
                behave(stream).await;
            }
            self.ended.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(DRIP).await; // even an attacker's machine has an end
        }
    }

    /// One byte of a long frame at a time.
    async fn loris(&self, mut stream: TcpStream) {
        let long = [&4_000u32.to_be_bytes()[..], &[0; 4_000]].concat();
        for byte in long {
            if !self.goes_on() || stream.write_all(&[byte]).await.is_err() {
                return;
            }
            tokio::time::sleep(DRIP).await; // slow by intent
        }
    }

    /// Asks, and never reads an answer.
    async fn slow_reader(&self, mut stream: TcpStream, hello: &[u8]) {
        let room = "a-room-with-a-name-that-is-as-long-as-a-name-of-a-room-may-be-64".to_owned();
        let request = Some(Request::Watch(Watch { room }));
        let asked = frame::encode(&ClientFrame {
            request_id: 2,
            request,
        })
        .repeat(2);
        if stream.write_all(hello).await.is_err() {
            return;
        }
        while self.goes_on() && stream.write_all(&asked).await.is_ok() {
            tokio::time::sleep(UNREAD).await; // below the rate of frames, which would end it sooner
        }
    }

    async fn garbage(&self, mut stream: TcpStream) {
        let bytes: Vec<u8> = (0..64u8).map(|n| n.wrapping_mul(151) ^ 0xA5).collect();
        let _ = stream.write_all(&bytes).await;
        let _ = stream.read_to_end(&mut vec![]).await;
        tokio::time::sleep(GARBAGE).await; // what a client of this bench may cost this machine
    }
}

/// A thread with clients of its own, so that those who are measured do not wait for the others' tasks.
fn thread_of<F: Future<Output = ()> + 'static>(
    name: &str,
    clients: impl FnOnce() -> Vec<F> + Send + 'static,
) -> std::thread::JoinHandle<()> {
    let run = move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        LocalSet::new().block_on(&runtime, async {
            let clients: Vec<_> = clients()
                .into_iter()
                .map(tokio::task::spawn_local)
                .collect();
            for client in clients {
                client.await.unwrap();
            }
        });
    };
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(run)
        .unwrap()
}

fn hostile_crowd(
    server: &Server,
    crowd: &Arc<Crowd>,
    each: u32,
) -> Vec<std::thread::JoinHandle<()>> {
    let hellos: Vec<Vec<u8>> = (0..each)
        .map(|n| hello(server, &format!("slow-{n}")))
        .collect();
    let of = |kind: u8| {
        let crowd = crowd.clone();
        let hellos = hellos.clone();
        move || {
            let client = |n: u32| {
                let (crowd, hello) = (crowd.clone(), hellos[n as usize].clone());
                let source = Ipv4Addr::new(127, 0, 10 + kind, 1 + (n % 20) as u8);
                async move {
                    let misbehave = async |stream| match kind {
                        0 => crowd.loris(stream).await,
                        1 => crowd.slow_reader(stream, &hello).await,
                        _ => crowd.garbage(stream).await,
                    };
                    // A crowd, not a choir.
                    tokio::time::sleep(GARBAGE.mul_f64(f64::from(n) / f64::from(each))).await; // spread over a second
                    crowd.again_and_again(source, misbehave).await;
                }
            };
            (0..each).map(client).collect::<Vec<_>>()
        }
    };
    vec![
        thread_of("loris", of(0)),
        thread_of("slow", of(1)),
        thread_of("garbage", of(2)),
    ]
}

/// Half pings, half grabs, at a steady pace; a late answer does not make the next question later.
async fn honest_for(people: &mut VecDeque<Raw>, rain: u32, time: Duration) -> Vec<Duration> {
    let end = Instant::now() + time;
    let each = people.drain(..).enumerate().map(|(n, mut raw)| async move {
        let mut next = tokio::time::Instant::now() + HONEST.mul_f64(n as f64 / 1_000.0 % 1.0);
        let mut waited = vec![];
        let mut turn = n;
        while Instant::now() < end {
            tokio::time::sleep_until(next).await; // the pace of people
            let request = match turn % 2 {
                0 => Request::Ping(Ping {}),
                _ => Request::Grab(Grab {
                    rain_id: rain,
                    ..Grab::default()
                }),
            };
            let answer = raw.ask(request).await;
            assert!(matches!(answer, Message::Pong(_) | Message::GrabResult(_)));
            waited.push(next.elapsed());
            next += HONEST;
            turn += 1;
        }
        (raw, waited)
    });
    let mut all = vec![];
    for (raw, waited) in futures_util::future::join_all(each).await {
        people.push_back(raw);
        all.extend(waited);
    }
    all.sort_unstable();
    all
}

fn shown(name: &str, waited: &[Duration]) -> Duration {
    let at = |part: f64| waited[((waited.len() - 1) as f64 * part) as usize];
    let (p50, p99, max) = (at(0.5), at(0.99), at(1.0));
    println!(
        "hostile: {name}: {} answers, p50 {p50:.2?}, p99 {p99:.2?}, max {max:.2?}",
        waited.len()
    );
    p99
}

#[test]
fn hostile_crowd_and_honest_people() {
    let each = number("CROWD", 1_000);
    let time = Duration::from_secs(u64::from(number("SECONDS", 10)));
    allow_descriptors(each * 8);
    let server = Server::start(&[
        "gateway.frame_timeout_ms=3000",
        "gateway.hello_timeout_ms=3000",
        "gateway.connections_per_address_max=2000",
        "gateway.connects_per_address_per_second=1000",
    ]);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let people = async {
        let rain = server.open_rain(each, i64::from(each) * 100).await;
        let mut people = VecDeque::new();
        for n in 0..each {
            people.push_back(Raw::user(&server, &format!("honest-{n}")).await);
        }
        (rain.get(), people)
    };
    let (rain, mut people) = runtime.block_on(people);
    runtime.block_on(honest_for(&mut people, rain, time / 5)); // everybody knows their outcome
    let (mut calm, mut beset, mut ended) = (vec![], vec![], 0);
    // In turns, and the median of each: whatever else this machine does strikes both.
    for _ in 0..ROUNDS {
        let waited = runtime.block_on(honest_for(&mut people, rain, time));
        calm.push(shown("calm", &waited));
        let crowd = Arc::new(Crowd {
            gateway: server.gateway(),
            over: AtomicBool::new(false),
            ended: AtomicU64::new(0),
        });
        let threads = hostile_crowd(&server, &crowd, each);
        runtime.block_on(honest_for(&mut people, rain, time / 5)); // until the crowd is there
        let waited = runtime.block_on(honest_for(&mut people, rain, time));
        beset.push(shown("beset", &waited));
        crowd.over.store(true, Ordering::Relaxed);
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
        ended += crowd.ended.load(Ordering::Relaxed);
    }
    println!(
        "hostile: {each} slow-loris, {each} slow-reader and {each} garbage clients, whose connections were ended {ended} times"
    );
    let metrics = runtime.block_on(server.metrics());
    let counted = |line: &&str| {
        line.starts_with("hongbao_connections_closed")
            || line.starts_with("hongbao_connections_refused")
    };
    (metrics.lines().filter(counted)).for_each(|line| println!("hostile: {line}"));
    calm.sort_unstable();
    beset.sort_unstable();
    let (calm, beset) = (calm[ROUNDS / 2], beset[ROUNDS / 2]);
    let ratio = beset.as_secs_f64() / calm.as_secs_f64();
    let figures = format!(
        "hostile: p99 of {each} honest clients {beset:.2?} / {calm:.2?} = {ratio:.2} (goal {P99_RATIO_MAX}"
    );
    judge(figures, ratio <= P99_RATIO_MAX);
}
