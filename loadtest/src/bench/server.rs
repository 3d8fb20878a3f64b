//! `hongbao serve` in a process of its own, on nodes of the benchmarks' own.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use hongbao::client::admin::AdminClient;
use hongbao::rain::{Durability, RainId};
use hongbao::serve::Addresses;

use super::BenchError;
use super::process::Process;
use crate::rains::{self, Order};
use crate::tokens::Signer;

/// How long a server may take to be reachable, and a rain to be loaded.
const START_MAX: Duration = Duration::from_secs(30);
const LOAD_MAX: Duration = Duration::from_secs(120);

pub struct Server {
    pub process: Process,
    pub data_dir: PathBuf,
    addresses: Addresses,
}

impl Server {
    /// `data_dir` must not be used by another one; `settings` like `gateway.workers=1`.
    pub async fn start(
        program: &Path,
        data_dir: &Path,
        roles: &str,
        nodes: &[String],
        settings: &[String],
    ) -> Result<Server, BenchError> {
        std::fs::create_dir_all(data_dir).map_err(BenchError::io("make a data directory"))?;
        let nodes = serde_json::to_string(nodes).expect("a list of texts");
        let mut arguments = vec![
            "serve".to_owned(),
            "--roles".to_owned(),
            roles.to_owned(),
            "--data-dir".to_owned(),
            data_dir.display().to_string(),
        ];
        let fixed = [
            "gateway.listen=127.0.0.1:0".to_owned(),
            "admin.listen=127.0.0.1:0".to_owned(),
            "store.topology=nodes".to_owned(),
            // Limits against abuse, which a benchmark looks like.
            "gateway.frames_per_second=10000000".to_owned(),
            "gateway.user_frames_per_second=10000000".to_owned(),
            "gateway.edge_frames_per_second=10000000".to_owned(),
            "gateway.accepts_per_second=10000000".to_owned(),
            "gateway.connects_per_address_per_second=1000000".to_owned(),
            "log.level=warn".to_owned(),
            format!("store.nodes={nodes}"),
        ];
        for setting in fixed.iter().chain(settings) {
            arguments.extend(["--set".to_owned(), setting.clone()]);
        }
        let log = data_dir.join("hongbao.log");
        let program = program.display().to_string();
        let mut process = Process::start(&program, arguments, &log)?;
        let deadline = Instant::now() + START_MAX;
        let addresses = loop {
            if let Ok(addresses) = Addresses::read(data_dir)
                && addresses.pid == process.pid()
            {
                break addresses;
            }
            let ended = process.ended();
            if ended.is_some() || Instant::now() > deadline {
                let log = std::fs::read_to_string(&log).unwrap_or_default();
                let how = ended.unwrap_or("no answer in time".to_owned());
                return Err(BenchError::Odd(format!("hongbao serve: {how}\n{log}")));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        };
        Ok(Server {
            process,
            data_dir: data_dir.to_owned(),
            addresses,
        })
    }

    pub fn gateway(&self) -> Result<SocketAddr, BenchError> {
        let gateway = self.addresses.gateway;
        gateway.ok_or_else(|| BenchError::Odd("this server has no gateway".to_owned()))
    }

    pub fn signer(&self) -> Result<Signer, BenchError> {
        Ok(Signer::from_file(
            &self.data_dir.join("token-secret"),
            "default",
        )?)
    }

    pub fn admin(&self) -> Result<AdminClient, BenchError> {
        let address = self.addresses.admin.map(|at| format!("http://{at}"));
        let key = std::fs::read_to_string(self.data_dir.join("api-key"));
        let key = key.map_err(BenchError::io("read the API key"))?;
        Ok(AdminClient::new(&address.unwrap_or_default(), &key)?)
    }

    /// Funded and loaded; not open.
    pub async fn ready_rain(
        &self,
        room: &str,
        packets: u32,
        buckets: u32,
        durability: Durability,
    ) -> Result<RainId, BenchError> {
        let order = Order {
            key: room,
            room,
            packets,
            buckets: Some(buckets),
            durability: Some(durability),
            patience: LOAD_MAX,
        };
        Ok(rains::ready(&self.admin()?, &order).await?)
    }

    pub async fn open_rain(
        &self,
        room: &str,
        packets: u32,
        buckets: u32,
        durability: Durability,
    ) -> Result<RainId, BenchError> {
        let id = self.ready_rain(room, packets, buckets, durability).await?;
        rains::open(&self.admin()?, id, LOAD_MAX).await?;
        Ok(id)
    }
}
