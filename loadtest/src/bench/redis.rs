//! A redis-server of the benchmarks' own, with the settings of a managed node, and just enough of its protocol to fill and to ask it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::BenchError;
use super::process::Process;

/// How long a server may take to answer its first PING.
const START_MAX: Duration = Duration::from_secs(10);
/// Packets pushed by one command.
const PUSH: u32 = 1_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fsync {
    EverySecond,
    Always,
}

pub struct Redis {
    pub process: Process,
    pub address: SocketAddr,
    /// As the gateway takes it: over a socket in the file system, as to a managed node.
    pub url: String,
    wire: BufReader<TcpStream>,
    /// Of the buckets on it, once somebody has asked.
    pub(super) tags: Vec<String>,
}

/// An answer, as text where it is text.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    Number(i64),
    Text(String),
    Nothing,
    Many(Vec<Answer>),
}

impl Redis {
    /// In `dir`, which must exist.
    pub fn start(dir: &Path, fsync: Fsync) -> Result<Redis, BenchError> {
        let dir: PathBuf = dir
            .canonicalize()
            .map_err(BenchError::io("find the folder"))?;
        // Somebody else might take the port in between; then the start fails, and says so.
        let free = TcpListener::bind("127.0.0.1:0").map_err(BenchError::io("find a free port"))?;
        let address = free
            .local_addr()
            .map_err(BenchError::io("find a free port"))?;
        drop(free);
        let fsync = match fsync {
            Fsync::EverySecond => "everysec",
            Fsync::Always => "always",
        };
        let (port, socket) = (address.port().to_string(), dir.join("redis.sock"));
        let arguments = [
            ("--bind", "127.0.0.1"),
            ("--port", &port),
            // On loopback only; but its clients come from all over 127.0.0.0/8, which it takes for the world.
            ("--protected-mode", "no"),
            ("--save", ""),
            ("--appendonly", "yes"),
            ("--appendfsync", fsync),
            ("--maxmemory-policy", "noeviction"),
            ("--maxclients", "4096"),
            ("--unixsocket", socket.to_str().unwrap_or_default()),
            ("--dir", dir.to_str().unwrap_or_default()),
            // A rewrite in the middle of one measurement and not of the other would be measured.
            ("--auto-aof-rewrite-percentage", "0"),
        ];
        let arguments = arguments.iter().flat_map(|(name, value)| [*name, *value]);
        let process = Process::start("redis-server", arguments, &dir.join("redis.log"))?;
        let deadline = Instant::now() + START_MAX;
        let stream = loop {
            match TcpStream::connect(address) {
                Ok(stream) => break stream,
                Err(_) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(5)),
                Err(error) => return Err(BenchError::io("reach redis-server")(error)),
            }
        };
        let _ = stream.set_nodelay(true);
        let mut redis = Redis {
            process,
            address,
            url: format!("redis+unix://{}", socket.display()),
            wire: BufReader::new(stream),
            tags: vec![],
        };
        redis.call(&["PING"])?;
        Ok(redis)
    }

    pub fn call(&mut self, command: &[&str]) -> Result<Answer, BenchError> {
        self.send(command.iter().copied())?;
        self.answer()
    }

    pub fn count(&mut self, command: &[&str]) -> Result<u64, BenchError> {
        match self.call(command)? {
            Answer::Number(number) => Ok(number.max(0) as u64),
            other => Err(BenchError::Odd(format!("{command:?} answered {other:?}"))),
        }
    }

    pub fn text(&mut self, command: &[&str]) -> Result<String, BenchError> {
        match self.call(command)? {
            Answer::Text(text) => Ok(text),
            other => Err(BenchError::Odd(format!("{command:?} answered {other:?}"))),
        }
    }

    /// Appends `count` packets to the list `key`.
    pub fn fill(
        &mut self,
        key: &str,
        count: u32,
        packet: impl Fn(u32) -> String,
    ) -> Result<(), BenchError> {
        for first in (0..count).step_by(PUSH as usize) {
            let packets: Vec<String> = (first..count.min(first + PUSH)).map(&packet).collect();
            let words = ["RPUSH", key].into_iter();
            self.send(words.chain(packets.iter().map(String::as_str)))?;
            self.answer()?;
        }
        Ok(())
    }

    fn send<'w>(&mut self, words: impl Iterator<Item = &'w str>) -> Result<(), BenchError> {
        let words: Vec<&str> = words.collect();
        let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            let _ = write!(bytes, "${}\r\n{word}\r\n", word.len()); // memory does not fail
        }
        let sent = self.wire.get_mut().write_all(&bytes);
        sent.map_err(BenchError::io("write to redis-server"))
    }

    fn answer(&mut self) -> Result<Answer, BenchError> {
        let io = BenchError::io("read from redis-server");
        let mut line = String::new();
        self.wire.read_line(&mut line).map_err(&io)?;
        let (kind, rest) = line.trim_end().split_at_checked(1).unwrap_or_default();
        let number = || rest.parse::<i64>().unwrap_or(-1);
        Ok(match kind {
            "+" => Answer::Text(rest.to_owned()),
            ":" => Answer::Number(number()),
            "$" if number() < 0 => Answer::Nothing,
            "$" => {
                let mut bytes = vec![0; number() as usize + 2];
                self.wire.read_exact(&mut bytes).map_err(&io)?;
                bytes.truncate(bytes.len() - 2);
                Answer::Text(String::from_utf8_lossy(&bytes).into_owned())
            }
            "*" => {
                let mut many = vec![];
                for _ in 0..number().max(0) {
                    many.push(self.answer()?);
                }
                Answer::Many(many)
            }
            _ => return Err(BenchError::Odd(format!("redis-server said {line:?}"))),
        })
    }
}
