//! The real program against a real server whose node is tampered with while it runs: a packet that is lost, or there twice, fails the run.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use hongbao::config::{Settings, Sources};
use hongbao::serve::{self, Running};

/// Takes the packet that is won next out of the first pool. 0 while there is none.
const LOSE: &str = "local pools = redis.call('KEYS', 'hb:*:pool')
if #pools == 0 then return 0 end
redis.call('RPOP', pools[1])
return 1";
/// Puts it there once more.
const DOUBLE: &str = "local pools = redis.call('KEYS', 'hb:*:pool')
if #pools == 0 then return 0 end
redis.call('RPUSH', pools[1], redis.call('LINDEX', pools[1], -1))
return 1";

struct Server {
    dir: tempfile::TempDir,
    running: Running,
}

impl Server {
    async fn start() -> Server {
        // The path of a node's socket has to fit into 107 bytes.
        let dir = tempfile::Builder::new().prefix("hl-").tempdir_in("/tmp");
        let dir = dir.unwrap();
        let data = Some(dir.path().display().to_string());
        let sources = Sources::default()
            .flag("test", "server.data_dir", data)
            .flags([
                "gateway.listen=127.0.0.1:0",
                "admin.listen=127.0.0.1:0",
                "store.managed_nodes=1",
            ]);
        let settings = Settings::read(sources).unwrap().0;
        let running = serve::start(&settings, None).await.unwrap();
        Server { dir, running }
    }

    fn command(&self, scenario: &str, more: &[&str]) -> Command {
        let addresses = &self.running.addresses;
        let mut command = Command::new(env!("CARGO_BIN_EXE_hongbao-load"));
        command
            .arg(scenario)
            .args(["--gateway", &addresses.gateway.unwrap().to_string()])
            .args(["--admin", &format!("http://{}", addresses.admin.unwrap())])
            .arg("--token-secret-file")
            .arg(self.dir.path().join("token-secret"))
            .arg("--api-key-file")
            .arg(self.dir.path().join("api-key"))
            .args(["--patience", "8s", "--quiet"])
            .args(more)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Runs the program, and the script as soon as there is a pool.
    async fn tampered(&self, scenario: &str, more: &[&str], script: &'static str) -> Output {
        let child = self.command(scenario, more).spawn().unwrap();
        let socket = self.dir.path().join("node-0/redis.sock");
        while eval(&socket, script) == ":0" {
            tokio::time::sleep(Duration::from_millis(5)).await; // nobody tells us that the pool is there
        }
        let waiting = tokio::task::spawn_blocking(|| child.wait_with_output());
        waiting.await.unwrap().unwrap()
    }
}

/// The first line of the node's answer.
fn eval(socket: &Path, script: &str) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    let length = script.len();
    let call = format!("*3\r\n$4\r\nEVAL\r\n${length}\r\n{script}\r\n$1\r\n0\r\n");
    stream.write_all(call.as_bytes()).unwrap();
    let mut answer = [0; 256];
    let read = stream.read(&mut answer).unwrap();
    let answer = String::from_utf8_lossy(&answer[..read]).into_owned();
    assert!(answer.starts_with(':'), "{answer}");
    answer.trim().to_owned()
}

fn text(output: &Output) -> String {
    let all = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&all).into_owned()
}

const RAIN: [&str; 12] = [
    "--sessions",
    "60",
    "--packets",
    "40",
    "--total",
    "88.00",
    "--countdown",
    "700ms",
    "--duration",
    "3s",
    "--crowd",
    "burst",
];
const GRABS: [&str; 8] = [
    "--closed",
    "1",
    "--sessions",
    "5",
    "--length",
    "1s",
    "--packets",
    "2000",
];

#[tokio::test(flavor = "multi_thread")]
async fn an_honest_run_ends_with_0_and_a_bound_that_does_not_hold_with_4() {
    let server = Server::start().await;
    let good = server.command("rain", &RAIN).output().unwrap();
    assert_eq!(good.status.code(), Some(0), "{}", text(&good));
    let bound = [&RAIN[..], &["--bound", "p50<=0.0001"]].concat();
    let slow = server.command("rain", &bound).output().unwrap();
    assert_eq!(slow.status.code(), Some(4), "{}", text(&slow));
    assert!(
        text(&slow).contains("✗ p50<=0.0001: measured"),
        "{}",
        text(&slow)
    );
    let wrong = server
        .command("rain", &["--rule", "lucky"])
        .output()
        .unwrap();
    assert_eq!(wrong.status.code(), Some(2), "{}", text(&wrong));
    let nobody = ["--gateway", "127.0.0.1:1", "--length", "1s"];
    let nobody = server.command("grabs", &nobody).output().unwrap();
    assert_eq!(nobody.status.code(), Some(3), "{}", text(&nobody));
    server.running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_packet_fails_the_run() {
    let server = Server::start().await;
    let rain = server.tampered("rain", &RAIN, LOSE).await;
    assert_eq!(rain.status.code(), Some(1), "{}", text(&rain));
    assert!(
        text(&rain).ends_with("audit: UNBALANCED\n"),
        "{}",
        text(&rain)
    );
    server.running.stop().await;
    let server = Server::start().await;
    let grabs = server.tampered("grabs", &GRABS, LOSE).await;
    assert_eq!(grabs.status.code(), Some(1), "{}", text(&grabs));
    assert!(
        text(&grabs).contains("✗ the audit is balanced: 1 difference"),
        "{}",
        text(&grabs)
    );
    server.running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_doubled_packet_fails_the_run() {
    let server = Server::start().await;
    let rain = server.tampered("rain", &RAIN, DOUBLE).await;
    assert_eq!(rain.status.code(), Some(1), "{}", text(&rain));
    assert!(
        text(&rain).contains("✗ no packet was won twice"),
        "{}",
        text(&rain)
    );
    server.running.stop().await;
    let server = Server::start().await;
    let grabs = server.tampered("grabs", &GRABS, DOUBLE).await;
    assert_eq!(grabs.status.code(), Some(1), "{}", text(&grabs));
    let wanted = "✗ every win that was told was credited once";
    assert!(text(&grabs).contains(wanted), "{}", text(&grabs));
    server.running.stop().await;
}
