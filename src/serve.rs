//! All roles of one process, started and stopped.
//!
//! Start: data directory, secrets, ledger, nodes, settlers, steward, admin, gateway last: when a client can connect, everything behind it works.
//! Stop: the reverse. The gateway drains first, so that settlers still see the last claims; nodes stop last.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use metrics_exporter_prometheus::PrometheusHandle;
use rlimit::Resource;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::admin::webhooks::courier::Courier;
use crate::admin::{self, Admin, Live, Server, Turns};
use crate::config::{self, Role, SECRET_BYTES, Settings};
use crate::gateway::risk::{Risk, RiskError};
use crate::gateway::token::{KeysFileError, TokenKeys};
use crate::gateway::{self, Gateway};
use crate::ledger::{Balance, Endpoint, EndpointSettings, HttpBalance};
use crate::ledger::{Ledger, LedgerError, LedgerSettings, without_password};
use crate::metrics;
use crate::post::{Trust, TrustError};
use crate::settle;
use crate::steward::{self, Steward};
use crate::store::{Store, StoreError};
use crate::task;

/// How long tasks may take to end after they were told to.
const STOP_MAX: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("{doing} {path}")]
    File {
        doing: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error(
        "data directory {0} is used by another hongbao process: stop it, or choose another server.data_dir"
    )]
    InUse(PathBuf),
    #[error("secret file {path} does not hold {bytes} bytes as hex text")]
    Secret { path: PathBuf, bytes: usize },
    #[error("ledger.balance_secret_file {0}")]
    BalanceSecret(String),
    #[error("ledger.balance_url: {0}")]
    BalanceTrust(#[from] TrustError),
    #[error("webhooks.ca_file: {0}")]
    WebhookTrust(#[source] TrustError),
    #[error(transparent)]
    Risk(#[from] RiskError),
    #[error(transparent)]
    TokenKeys(#[from] KeysFileError),
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Gateway(#[from] gateway::ListenError),
    #[error(transparent)]
    Admin(#[from] admin::ListenError),
}

/// Where a running server can be reached; stands in `running.json` in its data directory for the command line and for tests.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Addresses {
    pub pid: u32,
    pub gateway: Option<SocketAddr>,
    /// The whole API, in a process with the role admin.
    pub admin: Option<SocketAddr>,
    /// `/healthz`, `/readyz` and `/metrics`, in every process.
    pub probes: SocketAddr,
    /// Redis URLs.
    pub nodes: Vec<String>,
    pub ledger: String,
}

impl Addresses {
    pub fn file(data_dir: &Path) -> PathBuf {
        data_dir.join("running.json")
    }

    pub fn read(data_dir: &Path) -> io::Result<Addresses> {
        let text = fs::read_to_string(Addresses::file(data_dir))?;
        serde_json::from_str(&text).map_err(io::Error::from)
    }
}

/// A process at work.
pub struct Running {
    pub addresses: Addresses,
    /// The admin API's key if it was made by this start: it is shown once.
    pub new_api_key: Option<String>,
    gateway: Option<Gateway>,
    draining: CancellationToken,
    stop: CancellationToken,
    tasks: TaskTracker,
    ledger: Ledger,
    store: Arc<Store>,
    data_dir: PathBuf,
    _lock: File,
}

pub async fn start(
    settings: &Settings,
    recorder: Option<PrometheusHandle>,
) -> Result<Running, ServeError> {
    let lock = lock_data_dir(&settings.data_dir)?;
    raise_descriptor_limit();
    let tokens = token_keys(&settings.tokens)?;
    let (api_key, new) = secret(&settings.admin.api_key_file)?;
    let (key_secret, _) = secret(&settings.admin.key_secret_file)?;
    let ledger_settings = LedgerSettings {
        create_user_accounts: settings.ledger.create_user_accounts,
        ..LedgerSettings::default()
    };
    let ledger = Ledger::open_with(&settings.ledger_url(), ledger_settings).await?;
    let store = Arc::new(
        Store::open(
            &settings.store,
            &settings.data_dir,
            settings.steward.durability,
        )
        .await?,
    );
    let (tasks, stop, draining) = (
        TaskTracker::new(),
        CancellationToken::new(),
        CancellationToken::new(),
    );
    // A start that fails half-way leaves nothing at work.
    let failing = stop.clone().drop_guard();
    let has = |role| settings.roles.contains(&role);
    if has(Role::Settle) {
        settle::start(
            &settings.settle,
            store.clone(),
            balance(settings, &ledger)?,
            &tasks,
            &stop,
        );
    }
    let steward = Arc::new(Steward::new(
        &settings.steward,
        store.clone(),
        ledger.clone(),
    ));
    if has(Role::Steward) {
        steward::start(steward.clone(), &tasks, &stop);
    }
    let mut addresses = Addresses {
        pid: std::process::id(),
        gateway: None,
        admin: None,
        probes: settings.admin.listen,
        nodes: store.links().iter().map(|link| link.name()).collect(),
        ledger: without_password(&settings.ledger_url()),
    };
    metrics::get().started(settings.roles.iter().map(|role| role.as_str()));
    let admin = Arc::new(Admin {
        settings: settings.admin.clone(),
        webhooks: settings.webhooks.clone(),
        defaults: settings.steward.clone(),
        gate: admin::auth::Gate::new(key_secret, hex::encode(&api_key)),
        store: store.clone(),
        ledger: ledger.clone(),
        steward,
        metrics: recorder,
        draining: draining.clone(),
        pipeline: Default::default(),
        previews: Turns::of_previews(),
        audits: Turns::of_audits(),
        live: Live::new(settings.admin.live_streams_max),
        nodes: Default::default(),
        roles: settings.roles.iter().map(|role| role.as_str()).collect(),
        logins: Default::default(),
        tasks: tasks.clone(),
    });
    let server = Server::bind(&settings.admin).await?;
    addresses.probes = server.address;
    if has(Role::Admin) {
        addresses.admin = Some(server.address);
        let watching = admin::pipeline::watch(admin.clone(), stop.clone());
        task::spawn(&tasks, "admin.pipeline", watching);
        let openings = admin::openings::keep(admin.clone(), stop.clone());
        task::spawn(&tasks, "admin.openings", openings);
        let sweeping = admin::write::sweep(admin.clone(), stop.clone());
        task::spawn(&tasks, "admin.sweep", sweeping);
        let courier = Courier::new(admin.clone()).map_err(ServeError::WebhookTrust)?;
        let delivering = Arc::new(courier).run(stop.clone());
        task::spawn(&tasks, "admin.courier", delivering);
        server.serve(admin::router(admin), &tasks, stop.clone());
    } else {
        // A load balancer asks a gateway's machine too, and somebody wants its numbers.
        server.serve(admin::probes(admin), &tasks, stop.clone());
    }
    let mut gateway = None;
    if has(Role::Gateway) {
        let risk = match &settings.risk {
            Some(risk) => Some(Risk::start(risk, &tasks, &stop)?),
            None => None,
        };
        let started = Gateway::start(&settings.gateway, tokens, risk, store.clone(), &tasks)?;
        addresses.gateway = Some(started.address);
        gateway = Some(started);
    }
    let path = Addresses::file(&settings.data_dir);
    let json = serde_json::to_string_pretty(&addresses).expect("addresses are plain data");
    write_whole(&path, json.as_bytes()).map_err(|source| ServeError::File {
        doing: "cannot write",
        path,
        source,
    })?;
    let new_api_key = (new && has(Role::Admin)).then(|| hex::encode(api_key));
    let data_dir = settings.data_dir.clone();
    failing.disarm();
    Ok(Running {
        addresses,
        new_api_key,
        gateway,
        draining,
        stop,
        tasks,
        ledger,
        store,
        data_dir,
        _lock: lock,
    })
}

impl Running {
    /// Drains and stops everything; returns when nothing of it runs any more.
    pub async fn stop(self) {
        self.draining.cancel();
        if let Some(gateway) = self.gateway {
            gateway.drain().await;
        }
        self.stop.cancel();
        self.tasks.close();
        if tokio::time::timeout(STOP_MAX, self.tasks.wait())
            .await
            .is_err()
        {
            tracing::warn!(tasks = self.tasks.len(), named = ?task::at_work(), "tasks did not end in time");
        }
        let _ = tokio::time::timeout(STOP_MAX, self.ledger.close()).await;
        let _ = fs::remove_file(Addresses::file(&self.data_dir));
        // The last owner stops the managed nodes, which waits for their files.
        let store = self.store;
        let _ = tokio::task::spawn_blocking(move || drop(store)).await;
    }
}

/// Who pays claims, as the settings say.
fn balance(settings: &Settings, ledger: &Ledger) -> Result<Balance, ServeError> {
    let http = match &settings.ledger.balance {
        config::Balance::Ledger => return Ok(ledger.clone().into()),
        config::Balance::Http(http) => http,
    };
    let encrypted = http.url.scheme_str() == Some("https");
    if !encrypted {
        tracing::warn!(url = %http.url, "the balance system is asked without TLS: whoever is on the way could answer in its place");
    }
    let endpoint = Endpoint::new(EndpointSettings {
        url: http.url.clone(),
        secret: config::read_secret(&http.secret_file).map_err(ServeError::BalanceSecret)?,
        trust: match &http.ca_file {
            _ if !encrypted => Trust::Nobody,
            Some(file) => Trust::File(file.clone()),
            None => Trust::System,
        },
        timeout: http.timeout,
        // A request begun at half of the lease ends before five sixths of it (checked in config), which leaves time to record and ack.
        begin_max: settings.settle.lease / 2,
        batch_max: http.batch_max,
        concurrency_max: http.concurrency_max,
    })?;
    Ok(Balance::Http(HttpBalance::new(ledger.clone(), endpoint)))
}

/// One process a data directory: two would start nodes on the same files. The lock goes with the process, however it ends.
fn lock_data_dir(dir: &Path) -> Result<File, ServeError> {
    let fault = |doing| {
        move |source| ServeError::File {
            doing,
            path: dir.to_owned(),
            source,
        }
    };
    fs::create_dir_all(dir).map_err(fault("cannot make the data directory"))?;
    fs::set_permissions(dir, fs::Permissions::from_mode(0o700))
        .map_err(fault("cannot protect the data directory"))?;
    let lock =
        File::create(dir.join("lock")).map_err(fault("cannot write in the data directory"))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(fs::TryLockError::WouldBlock) => Err(ServeError::InUse(dir.to_owned())),
        Err(fs::TryLockError::Error(source)) => {
            Err(fault("cannot lock the data directory")(source))
        }
    }
}

/// The key set file if there is one; otherwise a secret, made at the first start.
fn token_keys(settings: &config::Tokens) -> Result<TokenKeys, ServeError> {
    match &settings.keys_file {
        Some(file) => Ok(TokenKeys::from_file(file, settings.leeway)?),
        None => {
            let (secret, _) = secret(&settings.secret_file)?;
            Ok(TokenKeys::hs256(&settings.kid, &secret, settings.leeway))
        }
    }
}

/// Reads a secret, or makes it (file mode 0600). Tells whether it was made.
fn secret(path: &Path) -> Result<(Vec<u8>, bool), ServeError> {
    let fault = |doing| {
        move |source| ServeError::File {
            doing,
            path: path.to_owned(),
            source,
        }
    };
    let made = !path.exists();
    if made {
        let mut bytes = [0u8; SECRET_BYTES];
        getrandom::fill(&mut bytes)
            .map_err(|error| fault("no random bytes for")(io::Error::other(error.to_string())))?;
        // Whole or not at all: a start that dies here must not leave half a secret.
        write_whole(path, hex::encode(bytes).as_bytes())
            .map_err(fault("cannot write the secret file"))?;
    }
    let text = fs::read_to_string(path).map_err(fault("cannot read the secret file"))?;
    let bytes = hex::decode(text.trim())
        .ok()
        .filter(|bytes| bytes.len() >= SECRET_BYTES);
    let bytes = bytes.ok_or_else(|| ServeError::Secret {
        path: path.to_owned(),
        bytes: SECRET_BYTES,
    })?;
    Ok((bytes, made))
}

fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let draft = path.with_extension("draft");
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&draft)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(draft, path)
}

/// Every session is a descriptor.
fn raise_descriptor_limit() {
    // Root may go beyond the hard limit, up to what the kernel allows one process; others get what their hard limit allows.
    let most = fs::read_to_string("/proc/sys/fs/nr_open")
        .ok()
        .and_then(|text| text.trim().parse().ok());
    let beyond = most.is_some_and(|most| rlimit::setrlimit(Resource::NOFILE, most, most).is_ok());
    let raised = match most.filter(|_| beyond) {
        Some(most) => Ok(most),
        None => rlimit::increase_nofile_limit(u64::MAX),
    };
    match raised {
        Ok(limit) => tracing::info!(descriptors = limit, "descriptor limit"),
        Err(error) => tracing::warn!(%error, "the descriptor limit cannot be raised"),
    }
}
