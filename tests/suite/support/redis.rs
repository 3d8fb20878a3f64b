//! Real `redis-server` processes on free loopback ports, ended with the test.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

use hongbao::config::{Settings, Sources};
use hongbao::rain::Durability;
use hongbao::store::Store;
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use redis::Value;
use tempfile::TempDir;

pub struct Redis {
    child: Child,
    dir: TempDir,
    arguments: Vec<String>,
    pub port: u16,
}

/// What every node of ours needs to be accepted.
pub const FIT: &[&str] = &["--appendonly", "yes", "--maxmemory-policy", "noeviction"];

impl Redis {
    /// A server with these arguments on top of a free port and a folder of its own.
    pub async fn start(arguments: &[&str]) -> Redis {
        let mut dir = tempfile::tempdir().unwrap();
        // The port is free when we ask; should somebody else take it before the server does, it says so and we ask again.
        for _ in 0..10 {
            let port = TcpListener::bind(("127.0.0.1", 0))
                .unwrap()
                .local_addr()
                .unwrap()
                .port();
            let arguments: Vec<String> = arguments.iter().map(|text| (*text).to_owned()).collect();
            let mut redis = Redis {
                child: spawn(port, &dir, &arguments),
                dir,
                arguments,
                port,
            };
            if redis.answers().await {
                return redis;
            }
            dir = redis.take_dir();
        }
        panic!("redis-server does not start: is Debian's package redis-server installed?");
    }

    pub async fn fit() -> Redis {
        Redis::start(FIT).await
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Answers nothing from now on, and forgets nothing.
    pub fn stop(&self) {
        self.signal(Signal::SIGSTOP);
    }

    /// Answers what was asked meanwhile.
    pub fn go_on(&self) {
        self.signal(Signal::SIGCONT);
    }

    fn signal(&self, signal: Signal) {
        nix::sys::signal::kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Starts it again on its port and its files.
    pub async fn restart(&mut self) {
        self.kill();
        self.child = spawn(self.port, &self.dir, &self.arguments);
        assert!(
            self.answers().await,
            "redis-server does not start again on port {}",
            self.port
        );
    }

    pub async fn call(&self, command: &[&str]) -> Value {
        let client = redis::Client::open(self.url()).unwrap();
        let mut connection = client.get_multiplexed_async_connection().await.unwrap();
        let mut cmd = redis::cmd(command[0]);
        command[1..].iter().for_each(|arg| {
            cmd.arg(*arg);
        });
        connection.send_packed_command(&cmd).await.unwrap()
    }

    async fn answers(&mut self) -> bool {
        loop {
            if let Ok(Some(_)) = self.child.try_wait() {
                return false;
            }
            let client = redis::Client::open(self.url()).unwrap();
            if let Ok(mut connection) = client.get_multiplexed_async_connection().await {
                let pong: redis::RedisResult<String> =
                    redis::cmd("PING").query_async(&mut connection).await;
                if pong.is_ok() {
                    return true;
                }
            }
            tokio::task::yield_now().await;
        }
    }

    fn take_dir(mut self) -> TempDir {
        self.kill();
        std::mem::replace(&mut self.dir, tempfile::tempdir().unwrap())
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The kernel ends the server with the thread that started it, should the test be killed.
fn spawn(port: u16, dir: &TempDir, arguments: &[String]) -> Child {
    Command::new("setpriv")
        .args([
            "--pdeathsig",
            "KILL",
            "redis-server",
            "--port",
            &port.to_string(),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
        ])
        .arg("--dir")
        .arg(dir.path())
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Store settings for these nodes.
pub fn settings(nodes: &[&Redis]) -> Settings {
    let urls: Vec<String> = nodes.iter().map(|node| node.url()).collect();
    let urls = format!("store.nodes={urls:?}");
    let flags = [
        "store.topology=nodes",
        &urls,
        "store.call_timeout_ms=2000",
        "store.probe_interval_ms=20",
    ];
    Settings::read(Sources::default().flags(flags)).unwrap().0
}

pub async fn store(nodes: &[&Redis]) -> Store {
    let settings = settings(nodes);
    Store::open(&settings.store, &settings.data_dir, Durability::Memory)
        .await
        .unwrap()
}
