//! Real `hongbao serve` processes, each with a data directory, nodes and ports of its own.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use hongbao::client::admin::{AdminClient, NewRain, Rain};
use hongbao::gateway::token;
use hongbao::rain::split::Rule;
use hongbao::rain::{Cents, RainId, State, UserId};
use hongbao::serve::Addresses;
use tempfile::TempDir;

use super::eventually;

pub struct Server {
    child: Child,
    pub dir: Arc<TempDir>,
    pub addresses: Addresses,
    settings: Vec<String>,
    /// On standard output, until it was ready.
    pub printed: String,
}

/// The program under test.
pub fn hongbao() -> Command {
    Command::new(env!("CARGO_BIN_EXE_hongbao"))
}

impl Server {
    /// All roles, on free ports, with these settings (`key=value`) on top.
    pub fn start(settings: &[&str]) -> Server {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        let settings = with_free_ports(settings);
        Server::start_in(dir, settings, None)
    }

    /// One that dies at a crash point: see `src/crash.rs`.
    pub fn start_crashing(settings: &[&str], point: &str) -> Server {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        let crash = Some(("HONGBAO_CRASH_AT", point));
        Server::start_in(dir, with_free_ports(settings), crash)
    }

    /// One with a bug at a place that `src/crash.rs` names.
    pub fn start_with_bug(settings: &[&str], place: &str) -> Server {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        let bug = Some(("HONGBAO_BUG_AT", place));
        Server::start_in(dir, with_free_ports(settings), bug)
    }

    fn start_in(dir: Arc<TempDir>, settings: Vec<String>, wish: Option<(&str, &str)>) -> Server {
        let log = File::options()
            .create(true)
            .append(true)
            .open(dir.path().join("server.log"))
            .unwrap();
        // The kernel ends the server with the thread that started it, should the test be killed.
        let mut command = Command::new("setpriv");
        command
            .args([
                "--pdeathsig",
                "KILL",
                env!("CARGO_BIN_EXE_hongbao"),
                "--data-dir",
            ])
            .arg(dir.path().join("data"));
        settings.iter().for_each(|setting| {
            command.args(["--set", setting]);
        });
        wish.inspect(|(variable, place)| {
            command.env(variable, place);
        });
        let mut child = command
            .arg("serve")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap())
            .lines()
            .map_while(Result::ok);
        let mut printed = vec![];
        let ready = lines.any(|line| {
            printed.push(line);
            printed.last().is_some_and(|line| line == "ready")
        });
        if !ready {
            panic!(
                "the server did not start: {}",
                std::fs::read_to_string(dir.path().join("server.log")).unwrap()
            );
        }
        let addresses = Addresses::read(&dir.path().join("data")).unwrap();
        Server {
            child,
            dir,
            addresses,
            settings,
            printed: printed.join("\n"),
        }
    }

    pub fn data_dir(&self) -> std::path::PathBuf {
        self.dir.path().join("data")
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("server.log")).unwrap()
    }

    /// SIGKILL, as a crash would.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Whether it has died by itself.
    pub fn has_died(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Starts it again on the same data and the same addresses, with these settings on top, to die at a crash point if it has not yet.
    pub fn restart_crashing(mut self, settings: &[&str], point: Option<&str>) -> Server {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let mut settings: Vec<String> = self
            .settings
            .iter()
            .map(String::as_str)
            .chain(settings.iter().copied())
            .map(str::to_owned)
            .collect();
        if let Some(gateway) = self.addresses.gateway {
            settings.push(format!("gateway.listen={gateway}"));
        }
        settings.push(format!("admin.listen={}", self.addresses.probes));
        let crash = point.map(|point| ("HONGBAO_CRASH_AT", point));
        Server::start_in(self.dir.clone(), settings, crash)
    }

    /// Starts it again on the same data and the same addresses.
    pub fn restart(self) -> Server {
        self.restart_crashing(&[], None)
    }

    /// SIGTERM, and wait for its end.
    pub async fn stop(mut self) -> ExitStatus {
        self.terminate();
        self.ended().await
    }

    /// After its end, on the same data and the same addresses.
    pub fn start_again(&mut self) {
        let addresses = self
            .addresses
            .gateway
            .map(|gateway| format!("gateway.listen={gateway}"));
        let probes = format!("admin.listen={}", self.addresses.probes);
        let settings = self
            .settings
            .iter()
            .cloned()
            .chain(addresses)
            .chain([probes]);
        *self = Server::start_in(self.dir.clone(), settings.collect(), None);
    }

    /// SIGTERM.
    pub fn terminate(&self) {
        let pid = nix::unistd::Pid::from_raw(self.child.id() as i32);
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    }

    pub async fn ended(&mut self) -> ExitStatus {
        eventually("the server to stop", async || {
            self.child.try_wait().unwrap()
        })
        .await
    }

    pub fn gateway(&self) -> std::net::SocketAddr {
        self.addresses.gateway.unwrap()
    }

    pub fn secret(&self) -> Vec<u8> {
        hex::decode(read(&self.data_dir().join("token-secret"))).unwrap()
    }

    pub fn token(&self, user: &str) -> String {
        token::issue(
            &UserId::new(user).unwrap(),
            "default",
            &self.secret(),
            Duration::from_secs(600),
        )
    }

    pub fn edge_token(&self, name: &str) -> String {
        token::issue_scoped(
            &UserId::new(name).unwrap(),
            token::EDGE_SCOPE,
            "default",
            &self.secret(),
            Duration::from_secs(600),
        )
    }

    pub fn api_key(&self) -> String {
        read(&self.data_dir().join("api-key"))
    }

    pub fn admin_url(&self) -> String {
        format!("http://{}", self.addresses.admin.unwrap())
    }

    /// What `/metrics` says.
    pub async fn metrics(&self) -> String {
        let url = format!("http://{}/metrics", self.addresses.probes);
        reqwest::get(url).await.unwrap().text().await.unwrap()
    }

    /// The value of a metric, with its labels as they are rendered; 0 when it has not been counted yet.
    pub async fn metric(&self, name: &str) -> f64 {
        let page = self.metrics().await;
        let value = |line: &str| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok();
        page.lines().find_map(value).unwrap_or(0.0)
    }

    /// Memory of the process.
    pub fn resident_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status
            .lines()
            .find(|line| line.starts_with("VmRSS"))
            .unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    pub fn admin(&self) -> AdminClient {
        AdminClient::new(&self.admin_url(), &self.api_key()).unwrap()
    }

    /// A funded, loaded rain that waits to be opened.
    pub async fn ready_rain(&self, packets: u32, total: i64) -> RainId {
        self.ready(&new_rain(packets, total)).await
    }

    pub async fn ready(&self, rain: &NewRain) -> RainId {
        let admin = self.admin();
        admin.create_sponsor("acme").await.unwrap();
        let key = format!("{}", hongbao::jitter::Jitter::default().next_u64());
        let deposit = admin.deposit("acme", rain.total_cents, &key).await;
        deposit.unwrap();
        let rain = admin.create_rain(rain).await.unwrap();
        self.until(rain.id, |rain| rain.state == State::Ready).await;
        rain.id
    }

    pub async fn open_rain(&self, packets: u32, total: i64) -> RainId {
        let id = self.ready_rain(packets, total).await;
        self.admin().open_rain(id).await.unwrap();
        id
    }

    pub async fn until(&self, id: RainId, wanted: impl Fn(&Rain) -> bool) -> Rain {
        let admin = self.admin();
        eventually(&format!("rain {id}"), async || {
            admin.rain(id).await.ok().filter(|rain| wanted(rain))
        })
        .await
    }

    /// Every win of the rain has been credited.
    pub async fn until_settled(&self, id: RainId) -> Rain {
        self.until(id, |rain| {
            rain.live.is_some_and(|live| live.claims_moving() == 0)
        })
        .await
    }
}

fn with_free_ports(settings: &[&str]) -> Vec<String> {
    let free = [
        "gateway.listen=127.0.0.1:0",
        "admin.listen=127.0.0.1:0",
        "steward.interval_ms=20",
        // Requests that tests write by hand are carried out at once; those of the confirmation say otherwise.
        "admin.confirm=false",
        // A killed server takes its managed nodes with it, and a killed Redis may lose what it has answered unless it flushes first.
        "store.managed_appendfsync=always",
        // Tests tap faster than people; those of the limits say their own.
        "gateway.frames_per_second=100000",
        "gateway.user_frames_per_second=100000",
    ];
    free.iter()
        .chain(settings)
        .map(|text| (*text).to_owned())
        .collect()
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            let last = &lines[lines.len().saturating_sub(40)..];
            eprintln!("the last that the server said:\n{}", last.join("\n"));
        }
    }
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

/// A double-mean rain of acme in the room "quiz" that stays open for ten minutes.
pub fn new_rain(packets: u32, total: i64) -> NewRain {
    NewRain {
        title: "test".into(),
        room: "quiz".into(),
        sponsor: "acme".into(),
        rule: Rule::DoubleMean,
        total_cents: Cents(total),
        packets,
        min_cents: None,
        max_cents: None,
        opens_at_ms: None,
        duration_ms: Some(600_000),
        durability: None,
        buckets: None,
        refund_after_ms: None,
        key_required: false,
        announce_ms: None,
        key: None,
    }
}
