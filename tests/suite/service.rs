//! What systemd is told, what the log never says, and the files that a service is made of.

use std::collections::BTreeSet;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use hongbao::wire::CloseCode;
use hongbao::wire::server_frame::Message;

use crate::support::PATIENCE;
use crate::support::crowd::{assert_paid, crowd};
use crate::support::redis::Redis;
use crate::support::server::{Server, hongbao};
use crate::support::wire::Raw;

fn file(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A service manager: its socket, and what it was told, message by message.
struct Manager {
    dir: tempfile::TempDir,
    socket: UnixDatagram,
}

impl Manager {
    fn new() -> Manager {
        let dir = tempfile::tempdir().unwrap();
        let socket = UnixDatagram::bind(dir.path().join("notify")).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Manager { dir, socket }
    }

    fn serve(&self, watchdog: Duration) -> std::process::Child {
        hongbao()
            .env("NOTIFY_SOCKET", self.dir.path().join("notify"))
            .env("WATCHDOG_USEC", watchdog.as_micros().to_string())
            .arg("--data-dir")
            .arg(self.dir.path().join("data"))
            .args(["--set", "gateway.listen=127.0.0.1:0"])
            .args(["--set", "admin.listen=127.0.0.1:0"])
            .args(["--set", "store.managed_nodes=1", "serve"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    }

    fn next(&self) -> String {
        let mut bytes = [0; 4_096];
        let length = self.socket.recv(&mut bytes).expect("a message in time");
        String::from_utf8(bytes[..length].to_vec()).unwrap()
    }
}

#[test]
fn the_service_manager_hears_ready_then_alive_then_stopping() {
    let manager = Manager::new();
    let watchdog = Duration::from_millis(300);
    let mut child = manager.serve(watchdog);

    let first = manager.next();
    assert_eq!(
        first,
        "READY=1\nSTATUS=serving: gateway, settle, steward, admin\n"
    );
    // Whoever waited for it finds everything at work.
    let addresses = hongbao::serve::Addresses::read(&manager.dir.path().join("data")).unwrap();
    for address in [addresses.gateway, addresses.admin] {
        std::net::TcpStream::connect(address.unwrap()).unwrap();
    }

    let begun = Instant::now();
    for _ in 0..6 {
        assert_eq!(manager.next(), "WATCHDOG=1\n");
    }
    // The first comes at once; five more take half the watchdog's time each, so that one may be late.
    assert!(begun.elapsed() >= watchdog / 2 * 4, "{:?}", begun.elapsed());

    let pid = nix::unistd::Pid::from_raw(child.id() as i32);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    let said = std::iter::from_fn(|| Some(manager.next())).find(|text| text != "WATCHDOG=1\n");
    assert!(said.unwrap().starts_with("STOPPING=1\nSTATUS=draining"));
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_process_that_is_frozen_says_nothing_any_more() {
    let manager = Manager::new();
    let mut child = manager.serve(Duration::from_millis(100));
    while manager.next() != "WATCHDOG=1\n" {}
    let pid = nix::unistd::Pid::from_raw(child.id() as i32);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGSTOP).unwrap();
    // What it said before it was frozen is still to be read.
    manager.socket.set_nonblocking(true).unwrap();
    while manager.socket.recv(&mut [0; 64]).is_ok() {}
    manager.socket.set_nonblocking(false).unwrap();
    manager
        .socket
        .set_read_timeout(Some(Duration::from_millis(500)))
        .unwrap();
    let heard = manager.socket.recv(&mut [0; 64]);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGCONT).unwrap();
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    assert!(heard.is_err(), "systemd would not have noticed");
    assert!(child.wait().unwrap().success());
}

/// systemd itself reads the unit, where there is one.
#[test]
fn the_unit_is_one_that_systemd_understands_and_that_is_locked_down() {
    let unit = file("src/service/hongbao.service");
    for line in [
        "Type=notify",
        "NotifyAccess=main",
        "WatchdogSec=30",
        "LimitNOFILE=1048576",
        "Restart=on-failure",
        "NoNewPrivileges=yes",
    ] {
        assert!(unit.lines().any(|there| there == line), "{line}");
    }
    let installed = Command::new("systemd-analyze").arg("--version").output();
    let Some(version) = installed.ok().filter(|output| output.status.success()) else {
        eprintln!("not looked at: there is no systemd-analyze here");
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("hongbao.service");
    // The program is installed where the unit says, but not here.
    let program = env!("CARGO_BIN_EXE_hongbao");
    assert!(unit.contains("/usr/local/bin/hongbao"));
    std::fs::write(&path, unit.replace("/usr/local/bin/hongbao", program)).unwrap();
    let verified = Command::new("systemd-analyze")
        .args(["verify", "--man=no"])
        .arg(&path)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&verified.stderr).into_owned();
    let ours: Vec<&str> = text
        .lines()
        .filter(|line| line.contains("hongbao"))
        .collect();
    assert!(verified.status.success() && ours.is_empty(), "{text}");
    // 0 is a fortress, 10 is open; the offline look came with version 250.
    let number = String::from_utf8_lossy(&version.stdout).into_owned();
    let number: u32 = number.split_whitespace().nth(1).unwrap().parse().unwrap();
    if number >= 250 {
        let exposure = Command::new("systemd-analyze")
            .args(["security", "--offline=true", "--threshold=20", "--no-pager"])
            .arg(&path)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&exposure.stdout).into_owned();
        assert!(exposure.status.success(), "{text}");
    }
}

/// There is no curl in the image: a shell asks.
#[test]
fn the_containers_health_check_tells_alive_from_dead() {
    let container = file("src/service/Containerfile");
    let at = container.find("HEALTHCHECK").unwrap();
    let line = container[at..].lines().nth(1).unwrap().trim();
    let words: Vec<String> = serde_json::from_str(line.strip_prefix("CMD ").unwrap()).unwrap();
    let [bash, flag, script] = &words[..] else {
        panic!("{words:?}");
    };
    let check = |port: u16| {
        assert!(script.contains("/7701"), "{script}");
        Command::new(bash)
            .args([flag, &script.replace("/7701", &format!("/{port}"))])
            .stderr(Stdio::null())
            .status()
            .unwrap()
    };
    let mut server = Server::start(&["store.managed_nodes=1"]);
    let port = server.addresses.probes.port();
    assert!(check(port).success());
    server.kill();
    assert!(!check(port).success());
}

/// Settings that the guide and the container name exist.
#[test]
fn settings_named_in_the_service_files_exist() {
    let known = hongbao().arg("check-config").output().unwrap();
    let known = String::from_utf8(known.stdout).unwrap();
    let known: BTreeSet<&str> = known
        .lines()
        .filter_map(|line| line.split(" = ").next())
        .collect();
    let sections: BTreeSet<&str> = known
        .iter()
        .filter_map(|key| key.split('.').next())
        .collect();
    for name in [
        "src/service/README.md",
        "src/service/hongbao.toml",
        "src/service/Containerfile",
    ] {
        let text = file(name);
        let mut section = "";
        for line in text.lines().filter(|_| name.ends_with(".toml")) {
            let line = line.trim_start_matches("# ");
            match line
                .strip_prefix('[')
                .and_then(|line| line.strip_suffix(']'))
            {
                Some(heading) => section = heading,
                None => {
                    if let Some((key, _)) = line.split_once(" = ") {
                        let key = format!("{section}.{key}");
                        assert!(known.contains(&key[..]), "{name}: {key}");
                    }
                }
            }
        }
        for word in text.split(|c: char| !(c.is_ascii_lowercase() || c == '_' || c == '.')) {
            let word = word.trim_matches('.');
            let Some((section, key)) = word.split_once('.') else {
                continue;
            };
            let looks_like_one = sections.contains(section) && !key.contains('.');
            let is_file = ["sqlite", "toml", "service", "md", "rs", "json"].contains(&key);
            if looks_like_one && !is_file {
                assert!(known.contains(word), "{name}: {word}");
            }
        }
    }
}

/// At the chattiest level, with passwords to everything, wrong tokens and wrong keys: none of it may stand in the log, on standard output or
/// in the metrics, and nobody's name either.
#[tokio::test]
async fn no_secret_and_no_name_stands_in_the_log() {
    let password = "correct-horse-battery";
    let redis = Redis::fit().await;
    redis
        .call(&["CONFIG", "SET", "requirepass", password])
        .await;
    let ledger = crate::support::postgres::database().await;
    let ledger = ledger.replace("postgres@", &format!("postgres:{password}@"));
    let ledger = format!("ledger.url={ledger}");
    let nodes = format!(
        "store.nodes=[\"redis://:{password}@127.0.0.1:{}\"]",
        redis.port
    );
    let server = Server::start(&[
        "store.topology=nodes",
        &nodes,
        &ledger,
        "log.level=trace",
        "gateway.hello_timeout_ms=1000",
        "store.probe_interval_ms=20",
    ]);
    let rain = server.open_rain(30, 3_000).await;
    let told = crowd(&server, rain, 40).end().await;
    assert_paid(&server, rain, &told).await;

    let mut secrets = vec![
        password.to_owned(),
        server.api_key(),
        hex::encode(server.secret()),
    ];
    // Signatures are the secret half of a token; heads and bodies of different tokens are partly the same.
    let forged = format!("{}x", server.token("mallory"));
    for token in [server.token("user-0"), server.edge_token("tier"), forged] {
        let mut session = Raw::connect(&server).await;
        match session.hello(&token).await {
            Message::Welcome(_) => {}
            Message::Refused(refused) => {
                assert_eq!(refused.code, CloseCode::TokenInvalid as i32);
            }
            other => panic!("{other:?}"),
        }
        secrets.extend(token.split('.').skip(1).map(str::to_owned));
    }
    let wrong_key = "0123456789abcdef-wrong-key";
    secrets.push(wrong_key.to_owned());
    let admin = hongbao::client::admin::AdminClient::new(&server.admin_url(), wrong_key).unwrap();
    admin.rains().await.unwrap_err();
    let metrics = server.metrics().await;
    let running = std::fs::read_to_string(server.data_dir().join("running.json")).unwrap();
    let dir = server.dir.clone();
    let printed = server.printed.clone();
    server.stop().await;

    let log = std::fs::read_to_string(dir.path().join("server.log")).unwrap();
    assert!(
        log.contains("DEBUG") && log.contains("rain loaded"),
        "{log}"
    );
    for (place, text) in [
        ("log", &log),
        ("standard output", &printed),
        ("metrics", &metrics),
        ("running.json", &running),
    ] {
        for secret in &secrets {
            let line = text.lines().find(|line| line.contains(secret.as_str()));
            assert_eq!(line, None, "{secret} stands in the {place}");
        }
        let name = text.lines().find(|line| line.contains("user-"));
        assert_eq!(name, None, "somebody's name stands in the {place}");
    }
}

#[test]
fn a_fault_in_the_settings_is_shown_without_the_password() {
    let node = "store.nodes=[\"redis://anna:hunter2@127.0.0.1:6379\"]";
    for (setting, code) in [("store.topology=managed", 2), ("store.topology=nodes", 0)] {
        let output = hongbao()
            .args(["--set", node, "--set", setting, "check-config"])
            .output()
            .unwrap();
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8(text).unwrap();
        assert_eq!(output.status.code(), Some(code), "{text}");
        assert!(text.contains("store.nodes") && text.contains("127.0.0.1:6379"));
        assert!(!text.contains("hunter2"), "{text}");
    }
}

/// Every session is a descriptor.
#[test]
fn the_limit_of_descriptors_is_raised_at_the_start_and_reported() {
    let dir = tempfile::tempdir().unwrap();
    let output = Command::new("sh")
        .args(["-c", "ulimit -S -n 300; exec \"$@\"", "sh"])
        .arg(hongbao().get_program())
        .arg("--data-dir")
        .arg(dir.path())
        // A start that ends soon after that.
        .args(["--set", "tokens.keys_file=/nowhere", "serve"])
        .output()
        .unwrap();
    let log = String::from_utf8(output.stderr).unwrap();
    let said = log.split("descriptors=").nth(1).expect(&log);
    let raised: u64 = said.split_whitespace().next().unwrap().parse().unwrap();
    let hard = rlimit::Resource::NOFILE.get_hard().unwrap();
    assert!(raised >= hard && hard > 300, "{raised} of {hard}");
}

/// Whoever sets an address and hears nothing would look for the fault at the collector.
#[cfg(not(feature = "otel"))]
#[test]
fn a_program_that_cannot_send_traces_says_so_and_does_not_start() {
    let endpoint = "trace.endpoint=http://127.0.0.1:4318/v1/traces";
    let output = hongbao()
        .args(["--set", endpoint, "check-config"])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(
        text.contains("trace.endpoint") && text.contains("--features otel"),
        "{text}"
    );
}
