//! A real Prometheus that scrapes a server of the tests, with the rules of `grafana/`.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use super::eventually;

/// Of `grafana/prometheus/`.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("grafana/prometheus")
}

/// `prometheus` or `promtool`: where `make need-prometheus` unpacks it, else from the PATH.
pub fn program(name: &str) -> PathBuf {
    let unpacked = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/usr/bin");
    Some(unpacked.join(name))
        .filter(|path| path.exists())
        .unwrap_or_else(|| name.into())
}

pub struct Prometheus {
    child: Child,
    dir: TempDir,
    url: String,
}

impl Prometheus {
    /// One that looks five times a second, so that a test has many points in little time. All else is as in `grafana/prometheus/`.
    pub async fn scraping(target: SocketAddr) -> Prometheus {
        let mut dir = tempfile::tempdir().unwrap();
        for file in std::fs::read_dir(folder()).unwrap() {
            let file = file.unwrap();
            std::fs::copy(file.path(), dir.path().join(file.file_name())).unwrap();
        }
        let config = dir.path().join("prometheus.yml");
        let mut text = std::fs::read_to_string(&config).unwrap();
        for (committed, changed) in [
            ("scrape_interval: 5s", "scrape_interval: 200ms"),
            ("scrape_timeout: 4s", "scrape_timeout: 200ms"),
            ("evaluation_interval: 5s", "evaluation_interval: 200ms"),
            ("127.0.0.1:7701", &target.to_string()),
        ] {
            assert!(text.contains(committed), "{committed}");
            text = text.replace(committed, changed);
        }
        std::fs::write(&config, text).unwrap();
        // The port is free when we ask; should somebody else take it before Prometheus does, it ends and we ask again.
        for _ in 0..10 {
            let free = TcpListener::bind(("127.0.0.1", 0)).unwrap();
            let address = free.local_addr().unwrap();
            drop(free);
            let mut prometheus = Prometheus {
                child: spawn(&dir, address),
                dir,
                url: format!("http://{address}"),
            };
            let ready = format!("{}/-/ready", prometheus.url);
            let started = eventually("Prometheus", async || {
                if prometheus.child.try_wait().unwrap().is_some() {
                    return Some(false);
                }
                let answer = reqwest::get(&ready).await.ok()?;
                answer.status().is_success().then_some(true)
            })
            .await;
            if started {
                return prometheus;
            }
            dir = prometheus.take_dir();
        }
        panic!("prometheus does not start");
    }

    async fn ask(&self, path: &str, parameters: &[(&str, &str)]) -> Result<Value, String> {
        let url = reqwest::Url::parse_with_params(&format!("{}{path}", self.url), parameters);
        let answer = reqwest::get(url.unwrap()).await.unwrap();
        let json: Value = serde_json::from_str(&answer.text().await.unwrap()).unwrap();
        match &json["status"] {
            status if status == "success" => Ok(json["data"].clone()),
            _ => Err(json["error"].to_string()),
        }
    }

    /// The values of an expression now, by their labels.
    pub async fn query(&self, expression: &str) -> Result<BTreeMap<String, f64>, String> {
        let data = self.ask("/api/v1/query", &[("query", expression)]).await?;
        let values = data["result"].as_array().unwrap().iter();
        Ok(values
            .map(|one| {
                let value = one["value"][1].as_str().unwrap().parse().unwrap();
                (one["metric"].to_string(), value)
            })
            .collect())
    }

    /// All rules with their state.
    pub async fn rules(&self) -> Vec<Value> {
        let data = self.ask("/api/v1/rules", &[]).await.unwrap();
        let groups = data["groups"].as_array().unwrap().iter();
        groups
            .flat_map(|group| group["rules"].as_array().unwrap().clone())
            .collect()
    }

    fn take_dir(mut self) -> TempDir {
        self.end();
        std::mem::replace(&mut self.dir, tempfile::tempdir().unwrap())
    }

    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        self.end();
    }
}

/// The kernel ends the server with the thread that started it, should the test be killed.
fn spawn(dir: &TempDir, address: SocketAddr) -> Child {
    Command::new("setpriv")
        .args(["--pdeathsig", "KILL"])
        .arg(program("prometheus"))
        .current_dir(dir.path())
        .args(["--config.file=prometheus.yml", "--storage.tsdb.path=data"])
        .arg(format!("--web.listen-address={address}"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}
