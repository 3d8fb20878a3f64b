//! A bare echo server on tokio: the least that any server of these frames has to do.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::BenchError;
use super::process::Process;

const START_MAX: Duration = Duration::from_secs(10);

/// Serves until the process ends; says its address on standard output first. On one thread, as one worker of the gateway.
pub fn serve() -> std::io::Result<()> {
    let serve = || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(accept())
    };
    let thread = std::thread::spawn(serve);
    thread.join().unwrap_or(Ok(()))
}

async fn accept() -> std::io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    loop {
        let (mut stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        tokio::spawn(async move {
            let mut buffer = [0; 2_048];
            while let Ok(read @ 1..) = stream.read(&mut buffer).await {
                if stream.write_all(&buffer[..read]).await.is_err() {
                    return;
                }
            }
        });
    }
}

/// This very program as an echo server.
pub fn start(dir: &Path) -> Result<(Process, SocketAddr), BenchError> {
    let this = std::env::current_exe().map_err(BenchError::io("find this program"))?;
    let log = dir.join("echo.log");
    let process = Process::start(&this.display().to_string(), ["echo"], &log)?;
    let deadline = Instant::now() + START_MAX;
    loop {
        let said = std::fs::read_to_string(&log).unwrap_or_default();
        if let Some(Ok(address)) = said.lines().next().map(str::parse) {
            return Ok((process, address));
        }
        if Instant::now() > deadline {
            return Err(BenchError::Odd(format!("the echo server said {said:?}")));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
