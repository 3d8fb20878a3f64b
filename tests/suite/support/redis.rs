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
    environment: Vec<String>,
    arguments: Vec<String>,
    pub port: u16,
}

/// What every node of ours needs to be accepted.
pub const FIT: &[&str] = &["--appendonly", "yes", "--maxmemory-policy", "noeviction"];

impl Redis {
    /// A server with these arguments on top of a free port and a folder of its own.
    pub async fn start(arguments: &[&str]) -> Redis {
        Redis::start_with(&[], arguments).await
    }

    /// With these environment variables (`NAME=value`).
    async fn start_with(environment: &[&str], arguments: &[&str]) -> Redis {
        let mut dir = tempfile::tempdir().unwrap();
        // The port is free when we ask; should somebody else take it before the server does, it says so and we ask again.
        for _ in 0..10 {
            let port = TcpListener::bind(("127.0.0.1", 0))
                .unwrap()
                .local_addr()
                .unwrap()
                .port();
            let arguments: Vec<String> = arguments.iter().map(|text| (*text).to_owned()).collect();
            let environment: Vec<String> =
                environment.iter().map(|text| (*text).to_owned()).collect();
            let mut redis = Redis {
                child: spawn(port, &dir, &environment, &arguments),
                dir,
                environment,
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

    /// A fit server whose clock is ahead of the machine's: it is started with a `gettimeofday` of our own before the C library's.
    pub async fn with_clock_ahead(ms: i64) -> Redis {
        let dir = tempfile::tempdir().unwrap();
        let (source, library) = (dir.path().join("ahead.c"), dir.path().join("ahead.so"));
        let text = format!(
            "#include <sys/time.h>\n#include <time.h>\n\
             int gettimeofday(struct timeval *now, void *zone) {{\n\
                 struct timespec t; (void)zone; clock_gettime(CLOCK_REALTIME, &t);\n\
                 long long us = t.tv_sec * 1000000LL + t.tv_nsec / 1000 + {ms} * 1000LL;\n\
                 now->tv_sec = us / 1000000; now->tv_usec = us % 1000000; return 0; }}\n"
        );
        std::fs::write(&source, text).unwrap();
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-o"])
            .args([&library, &source])
            .status();
        assert!(built.unwrap().success());
        let preload = format!("LD_PRELOAD={}", library.display());
        let redis = Redis::start_with(&[&preload], FIT).await;
        drop(dir);
        redis
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

    /// How long its append-only file is now: what [`Redis::roll_back`] cuts it to.
    pub fn aof_len(&self) -> u64 {
        std::fs::metadata(self.aof()).unwrap().len()
    }

    /// Kills it and starts it again as after a loss of power that took everything written since its file was `len` bytes long.
    pub async fn roll_back(&mut self, len: u64) {
        self.kill();
        let file = std::fs::File::options().write(true).open(self.aof());
        file.unwrap().set_len(len).unwrap();
        self.restart().await;
    }

    /// Kills it and starts it again without its files.
    pub async fn restart_empty(&mut self) {
        self.kill();
        std::fs::remove_dir_all(self.dir.path().join("appendonlydir")).unwrap();
        self.restart().await;
    }

    /// The part of its append-only file that grows.
    fn aof(&self) -> std::path::PathBuf {
        let files = std::fs::read_dir(self.dir.path().join("appendonlydir")).unwrap();
        let mut paths = files.map(|file| file.unwrap().path());
        let grows = |path: &std::path::PathBuf| path.to_string_lossy().ends_with(".incr.aof");
        paths.find(grows).unwrap()
    }

    /// Starts it again on its port and its files.
    pub async fn restart(&mut self) {
        self.kill();
        self.child = spawn(self.port, &self.dir, &self.environment, &self.arguments);
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
fn spawn(port: u16, dir: &TempDir, environment: &[String], arguments: &[String]) -> Child {
    Command::new("setpriv")
        .envs(environment.iter().filter_map(|text| text.split_once('=')))
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
