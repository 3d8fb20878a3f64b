//! Managed nodes: local `redis-server` children under the data directory, private to this process (a Unix socket in a directory that only
//! this user may enter, no port), stopped with it, started again when they die.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::StoreError;
use crate::config::AppendFsync;

/// A Unix socket's path holds 107 bytes and a zero.
const SOCKET_PATH_MAX: usize = 107;
/// How long a node may take to load its append-only file and answer.
const START_MAX: Duration = Duration::from_secs(60);
/// How long a node may take to write its append-only file and end.
const STOP_MAX: Duration = Duration::from_secs(10);

/// The children. Dropping it stops them.
pub struct Managed {
    keepers: Vec<Keeper>,
}

struct Keeper {
    stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Managed {
    /// Starts `count` nodes under `data_dir` and waits until each one answers. Returns their URLs.
    pub fn start(
        data_dir: &Path,
        count: usize,
        fsync: AppendFsync,
    ) -> Result<(Managed, Vec<String>), StoreError> {
        let fault = |problem: String| StoreError::Managed { problem };
        let (mut keepers, mut urls, mut started) = (vec![], vec![], vec![]);
        for index in 0..count {
            let dir = data_dir.join(format!("node-{index}"));
            let dir = prepare(&dir)
                .map_err(|error| fault(format!("cannot prepare {}: {error}", dir.display())))?;
            let socket = dir.join("redis.sock");
            if socket.as_os_str().len() > SOCKET_PATH_MAX {
                let len = socket.as_os_str().len();
                let path = socket.display();
                return Err(fault(format!(
                    "socket path {path} has {len} bytes, at most {SOCKET_PATH_MAX} work: use a shorter server.data_dir"
                )));
            }
            urls.push(format!("redis+unix://{}", socket.display()));
            let (tell, told) = mpsc::sync_channel(1);
            started.push((dir.clone(), told));
            keepers.push(Keeper::spawn(Node { dir, socket, fsync }, tell));
        }
        let managed = Managed { keepers };
        for (dir, told) in started {
            let outcome = told
                .recv()
                .unwrap_or_else(|_| Err("its keeper ended".into()));
            outcome.map_err(|problem| {
                fault(format!(
                    "node in {} did not start: {problem}",
                    dir.display()
                ))
            })?;
        }
        Ok((managed, urls))
    }
}

impl Drop for Managed {
    fn drop(&mut self) {
        for keeper in &self.keepers {
            keeper.stopping.store(true, Ordering::Release);
            keeper
                .thread
                .as_ref()
                .inspect(|thread| thread.thread().unpark());
        }
        for keeper in &mut self.keepers {
            let _ = keeper.thread.take().map(JoinHandle::join);
        }
    }
}

fn prepare(dir: &Path) -> io::Result<PathBuf> {
    fs::create_dir_all(dir)?;
    fs::set_permissions(dir, fs::Permissions::from_mode(0o700))?;
    dir.canonicalize()
}

struct Node {
    dir: PathBuf,
    socket: PathBuf,
    fsync: AppendFsync,
}

impl Keeper {
    /// The thread lives as long as the node: the kernel signals the child when the *thread* that started it ends, so it must not be one of
    /// a pool.
    fn spawn(node: Node, tell: mpsc::SyncSender<Result<(), String>>) -> Keeper {
        let stopping = Arc::new(AtomicBool::new(false));
        let stop = stopping.clone();
        let keep = move || node.keep(&stop, tell);
        let thread = std::thread::Builder::new()
            .name("node-keeper".into())
            .spawn(keep);
        Keeper {
            stopping,
            thread: Some(thread.expect("a thread can be started at start-up")),
        }
    }
}

impl Node {
    fn keep(&self, stopping: &AtomicBool, tell: mpsc::SyncSender<Result<(), String>>) {
        let mut tell = Some(tell);
        let mut pause = Duration::from_millis(50);
        while !stopping.load(Ordering::Acquire) {
            match self.start(stopping) {
                Ok(mut child) => {
                    let _ = tell.take().map(|tell| tell.send(Ok(())));
                    pause = Duration::from_millis(50);
                    if let Some(ended) = self.watch(&mut child, stopping) {
                        tracing::error!(dir = %self.dir.display(), %ended, "managed node ended by itself; starting it again");
                    }
                }
                Err(problem) => match tell.take() {
                    Some(tell) => {
                        let _ = tell.send(Err(problem));
                        return;
                    }
                    None => {
                        tracing::error!(dir = %self.dir.display(), problem, "managed node does not start; trying again");
                        std::thread::park_timeout(pause);
                        pause = (pause * 2).min(Duration::from_secs(5));
                    }
                },
            }
        }
    }

    /// Starts the server and waits until it answers PING on its socket, its append-only file loaded.
    fn start(&self, stopping: &AtomicBool) -> Result<Child, String> {
        let lock = self.lock()?;
        let fsync = match self.fsync {
            AppendFsync::EverySecond => "everysec",
            AppendFsync::Always => "always",
        };
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(self.dir.join("redis.log"));
        let log = log.map_err(|error| error.to_string())?;
        let log_too = log.try_clone().map_err(|error| error.to_string())?;
        // setpriv has the kernel end the server when its keeper dies, even by SIGKILL.
        let mut child = Command::new("setpriv")
            .args([
                "--pdeathsig",
                "TERM",
                "redis-server",
                "--port",
                "0",
                "--daemonize",
                "no",
                "--save",
                "",
            ])
            .args([
                "--unixsocketperm",
                "700",
                "--appendonly",
                "yes",
                "--appendfsync",
                fsync,
            ])
            .args([
                "--maxmemory-policy",
                "noeviction",
                "--aof-load-truncated",
                "yes",
                "--maxclients",
                "4096",
            ])
            .arg("--unixsocket")
            .arg(&self.socket)
            .arg("--dir")
            .arg(&self.dir)
            .stdin(Stdio::from(lock))
            .stdout(log)
            .stderr(log_too)
            .process_group(0) // Ctrl-C is for us; the nodes stop after we have settled.
            .spawn()
            .map_err(|error| {
                format!(
                    "setpriv cannot be run: {error} (Debian and Ubuntu: apt-get install util-linux)"
                )
            })?;
        let mut deadline = Instant::now() + START_MAX;
        loop {
            if let Ok(Some(status)) = child.try_wait() {
                return Err(self.why_it_ended(status));
            }
            match ping(&self.socket) {
                Some(Answer::Pong) => return Ok(child),
                // A big append-only file takes its time.
                Some(Answer::Loading) => deadline = Instant::now() + START_MAX,
                None => {}
            }
            if Instant::now() > deadline || stopping.load(Ordering::Acquire) {
                self.stop(&mut child);
                return Err(format!("no answer within {START_MAX:?}"));
            }
            std::thread::park_timeout(Duration::from_millis(5));
        }
    }

    fn why_it_ended(&self, status: std::process::ExitStatus) -> String {
        let log = fs::read_to_string(self.dir.join("redis.log")).unwrap_or_default();
        if log.contains("failed to execute redis-server")
            || log.contains("redis-server: No such file")
        {
            return "redis-server is not installed (Debian and Ubuntu: apt-get install redis-server)".into();
        }
        let last: Vec<&str> = log.lines().rev().take(3).collect();
        format!(
            "{status}: {}",
            last.into_iter().rev().collect::<Vec<_>>().join(" / ")
        )
    }

    /// After a kill -9 of ours the old server may still be writing its append-only file: two on one directory would spoil it. So a server holds a lock
    /// as its standard input, which ends exactly when it does.
    fn lock(&self) -> Result<fs::File, String> {
        let path = self.dir.join("lock");
        let lock =
            fs::File::create(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let deadline = Instant::now() + STOP_MAX;
        while lock.try_lock().is_err() {
            if Instant::now() > deadline {
                return Err(format!(
                    "another server still uses {}: end it first",
                    self.dir.display()
                ));
            }
            std::thread::park_timeout(Duration::from_millis(5));
        }
        Ok(lock)
    }

    /// Returns when the child has ended by itself (then how) or was stopped.
    fn watch(&self, child: &mut Child, stopping: &AtomicBool) -> Option<String> {
        loop {
            match child.try_wait() {
                Ok(Some(status)) => return Some(status.to_string()),
                Err(error) => return Some(error.to_string()),
                Ok(None) if stopping.load(Ordering::Acquire) => {
                    self.stop(child);
                    return None;
                }
                Ok(None) => std::thread::park_timeout(Duration::from_millis(50)),
            }
        }
    }

    /// SIGTERM has the server write its append-only file before it ends.
    fn stop(&self, child: &mut Child) {
        let pid = nix::unistd::Pid::from_raw(child.id() as i32);
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
        let deadline = Instant::now() + STOP_MAX;
        while matches!(child.try_wait(), Ok(None)) {
            if Instant::now() > deadline {
                let _ = child.kill();
                let _ = child.wait();
                return;
            }
            std::thread::park_timeout(Duration::from_millis(2));
        }
    }
}

enum Answer {
    Pong,
    Loading,
}

fn ping(socket: &Path) -> Option<Answer> {
    use std::io::{Read, Write};
    let mut stream = UnixStream::connect(socket).ok()?;
    stream
        .set_read_timeout(Some(Duration::from_millis(500)))
        .ok()?;
    stream.write_all(b"PING\r\n").ok()?;
    let mut answer = [0u8; 5];
    stream.read_exact(&mut answer).ok()?;
    match &answer {
        b"+PONG" => Some(Answer::Pong),
        b"-LOAD" => Some(Answer::Loading),
        _ => None,
    }
}
