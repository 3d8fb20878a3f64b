//! Real `redis-server` processes on free loopback ports, ended with the test.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use hongbao::config::{Settings, Sources};
use hongbao::rain::Durability;
use hongbao::store::Store;
use nix::sys::signal::Signal;
use redis::aio::MultiplexedConnection;
use redis::{RedisResult, Value};
use tempfile::TempDir;

use super::door::Door;

pub struct Redis {
    child: Child,
    dir: TempDir,
    arguments: Vec<String>,
    pub door: Arc<Door>,
    pub port: u16,
}

/// What every node of ours needs to be accepted.
pub const FIT: &[&str] = &["--appendonly", "yes", "--maxmemory-policy", "noeviction"];

impl Redis {
    /// A server with these arguments on top of a free port and a folder of its own.
    pub async fn start(arguments: &[&str]) -> Redis {
        Redis::start_behind(&Arc::default(), arguments).await
    }

    /// One that lets in whom its door lets in.
    pub async fn start_behind(door: &Arc<Door>, arguments: &[&str]) -> Redis {
        let arguments: Vec<String> = arguments.iter().map(|text| (*text).to_owned()).collect();
        Redis::start_with(door, |_| arguments.clone()).await
    }

    /// With arguments that depend on its port. The first may be a configuration file's contents: then it begins with `#`.
    pub async fn start_with(door: &Arc<Door>, arguments: impl Fn(u16) -> Vec<String>) -> Redis {
        let mut dir = tempfile::tempdir().unwrap();
        // The port is free when we ask; should somebody else take it before the server does, it says so and we ask again.
        for _ in 0..10 {
            let port = free_port();
            let mut arguments = arguments(port);
            if arguments
                .first()
                .is_some_and(|first| first.starts_with('#'))
            {
                let file = dir.path().join("redis.conf");
                std::fs::write(&file, &arguments[0]).unwrap();
                arguments[0] = file.display().to_string();
            }
            let mut redis = Redis {
                child: spawn(port, &dir, door, &arguments),
                dir,
                arguments,
                door: door.clone(),
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
        let door = Arc::new(Door::with_environment(vec![preload]));
        let redis = Redis::start_behind(&door, FIT).await;
        drop(dir);
        redis
    }

    pub async fn fit() -> Redis {
        Redis::start(FIT).await
    }

    /// As the program reaches it.
    pub fn url(&self) -> String {
        self.door.url(&format!("127.0.0.1:{}", self.port))
    }

    /// Answers nothing from now on, and forgets nothing.
    pub fn stop(&self) {
        self.signal(Signal::SIGSTOP);
    }

    /// Answers what was asked meanwhile.
    pub fn go_on(&self) {
        self.signal(Signal::SIGCONT);
    }

    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// SIGSTOP, SIGCONT.
    pub fn signal(&self, signal: Signal) {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(self.child.id() as i32), signal).unwrap();
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
        self.child = spawn(self.port, &self.dir, &self.door, &self.arguments);
        assert!(
            self.answers().await,
            "redis-server does not start again on port {}",
            self.port
        );
    }

    pub async fn call(&self, command: &[&str]) -> Value {
        let mut connection = self.connect().await.unwrap();
        connection.send_packed_command(&cmd(command)).await.unwrap()
    }

    /// Like [`Redis::call`], for a command that must succeed.
    pub async fn done(&self, command: &[&str]) -> Value {
        let value = self.call(command).await;
        value
            .extract_error()
            .unwrap_or_else(|error| panic!("{command:?} on {}: {error}", self.port))
    }

    /// What it says, if it is there and says it.
    pub async fn ask(&self, command: &[&str]) -> Option<Value> {
        let mut connection = self.connect().await.ok()?;
        let asked = connection.send_packed_command(&cmd(command)).await.ok()?;
        asked.extract_error().ok()
    }

    /// A line of INFO; empty if it is not there.
    pub async fn info(&self, field: &str) -> String {
        self.line_of(&["INFO"], field).await
    }

    /// A line `field:value` of an answer that has such lines; empty if it has it not.
    pub async fn line_of(&self, command: &[&str], field: &str) -> String {
        let answer = self.ask(command).await;
        let text = match &answer {
            Some(Value::BulkString(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
            Some(Value::VerbatimString { text, .. }) => text.to_string(),
            _ => String::new(),
        };
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        line.unwrap_or_default().trim().to_owned()
    }

    /// As somebody who may do everything.
    pub async fn connect(&self) -> RedisResult<MultiplexedConnection> {
        let client = self.door.client(self.port);
        client.get_multiplexed_async_connection().await
    }

    async fn answers(&mut self) -> bool {
        loop {
            if let Ok(Some(_)) = self.child.try_wait() {
                return false;
            }
            if self.ask(&["PING"]).await.is_some() {
                return true;
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

fn cmd(command: &[&str]) -> redis::Cmd {
    let mut cmd = redis::cmd(command[0]);
    command[1..].iter().for_each(|arg| {
        cmd.arg(*arg);
    });
    cmd
}

pub fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    listener.local_addr().unwrap().port()
}

/// The kernel ends the server with the thread that started it, should the test be killed.
fn spawn(port: u16, dir: &TempDir, door: &Door, arguments: &[String]) -> Child {
    let (file, arguments) = match arguments.first() {
        Some(first) if !first.starts_with("--") => arguments.split_at(1),
        _ => (&[][..], arguments),
    };
    Command::new("setpriv")
        .envs(door.environment())
        .args(["--pdeathsig", "KILL", "redis-server"])
        .args(file)
        .args(door.arguments(port))
        .args(["--bind", "127.0.0.1", "--save", "", "--dir"])
        .arg(dir.path())
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Settings of the program for these nodes.
pub fn flags(nodes: &[&Redis]) -> Vec<String> {
    let urls: Vec<String> = nodes.iter().map(|node| node.url()).collect();
    vec![
        "store.topology=nodes".into(),
        format!("store.nodes={urls:?}"),
        "store.call_timeout_ms=2000".into(),
        "store.probe_interval_ms=20".into(),
    ]
}

/// Store settings for these nodes.
pub fn settings(nodes: &[&Redis]) -> Settings {
    let flags = flags(nodes);
    let flags = flags.iter().map(String::as_str);
    Settings::read(Sources::default().flags(flags)).unwrap().0
}

pub async fn store(nodes: &[&Redis]) -> Store {
    let settings = settings(nodes);
    Store::open(&settings.store, &settings.data_dir, Durability::Memory)
        .await
        .unwrap()
}
