//! The certificate of the gateway, read again when its files change.
//!
//! Handshakes run on the worker that accepted the connection: an ECDSA key signs in some 50 µs, an RSA key of 2048 bits takes a millisecond, in which
//! that worker answers no grab. Clients that come back within a day resume with a ticket and need no signature.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::ProducesTickets;
use tokio_util::sync::CancellationToken;

use crate::config;
use crate::metrics;

#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    #[error("{path}: {problem}")]
    File { path: PathBuf, problem: String },
    #[error("{cert} and {key} are not a pair that can be used: {problem}")]
    Pair {
        cert: PathBuf,
        key: PathBuf,
        problem: String,
    },
}

/// What a file looked like when it was read: a change of any part is a change of the file, also when a link is moved to another one.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    len: u64,
    seconds: i64,
    nanoseconds: i64,
    /// Owner and rights, too, decide whether it can be read.
    changed_seconds: i64,
    changed_nanoseconds: i64,
}

/// The last look at the files.
struct Seen {
    stamps: [Option<Stamp>; 2],
    /// Why they could not be used, as it was told.
    problem: Option<String>,
}

/// The certificate in use. A handshake takes what is there when it begins.
pub struct Certificates {
    files: config::Tls,
    current: ArcSwap<ServerConfig>,
    seen: Mutex<Seen>,
    /// One for all certificates, so that a reload does not cost every returning client a whole handshake.
    tickets: Arc<dyn ProducesTickets>,
}

impl Certificates {
    pub fn open(files: &config::Tls) -> Result<Certificates, CertificateError> {
        let tickets = ring::Ticketer::new().map_err(|error| CertificateError::File {
            path: files.key_file.clone(),
            problem: format!("no random bytes for session tickets: {error}"),
        })?;
        // Looked at before reading: a change in between is seen by the next look.
        let seen = Seen {
            stamps: stamps(files),
            problem: None,
        };
        Ok(Certificates {
            current: ArcSwap::from_pointee(read(files, &tickets)?),
            files: files.clone(),
            seen: Mutex::new(seen),
            tickets,
        })
    }

    pub fn current(&self) -> Arc<ServerConfig> {
        self.current.load_full()
    }

    /// Reads the files again if they have changed, or could not be used at the last look: what was in the way may have gone without a trace in them.
    /// A broken pair leaves the old one in use and is told once for each problem: the two files are rarely replaced in the same instant, and the
    /// second change repairs what the first one broke.
    pub fn reload_if_changed(&self) {
        let mut seen = self
            .seen
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        let now = stamps(&self.files);
        if seen.stamps == now && seen.problem.is_none() {
            return;
        }
        seen.stamps = now;
        match read(&self.files, &self.tickets) {
            Ok(config) => {
                self.current.store(Arc::new(config));
                seen.problem = None;
                metrics::get().tls_reloaded("loaded");
                tracing::info!(cert = %self.files.cert_file.display(), "certificate loaded again");
            }
            Err(error) => {
                metrics::get().tls_reloaded("broken"); // at each look: the alert lasts as long as the problem
                let problem = Some(error.to_string());
                if seen.problem != problem {
                    tracing::warn!(%error, "the certificate has changed and cannot be used; the old one stays");
                }
                seen.problem = problem;
            }
        }
    }

    pub async fn keep(self: Arc<Self>, stop: CancellationToken) {
        let mut look =
            tokio::time::interval(self.files.reload_interval.max(Duration::from_millis(1)));
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = look.tick() => {}
            }
            let certificates = self.clone();
            let _ = tokio::task::spawn_blocking(move || certificates.reload_if_changed()).await;
        }
    }
}

fn stamps(files: &config::Tls) -> [Option<Stamp>; 2] {
    [&files.cert_file, &files.key_file].map(|path| {
        let file = fs::metadata(path).ok()?;
        Some(Stamp {
            inode: file.ino(),
            len: file.len(),
            seconds: file.mtime(),
            nanoseconds: file.mtime_nsec(),
            changed_seconds: file.ctime(),
            changed_nanoseconds: file.ctime_nsec(),
        })
    })
}

fn read(
    files: &config::Tls,
    tickets: &Arc<dyn ProducesTickets>,
) -> Result<ServerConfig, CertificateError> {
    let chain = CertificateDer::pem_file_iter(&files.cert_file)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| fault(&files.cert_file, error))?;
    if chain.is_empty() {
        return Err(fault(&files.cert_file, "it holds no certificate"));
    }
    let key = PrivateKeyDer::from_pem_file(&files.key_file)
        .map_err(|error| fault(&files.key_file, error))?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("ring speaks TLS 1.2 and 1.3")
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(|error| CertificateError::Pair {
            cert: files.cert_file.clone(),
            key: files.key_file.clone(),
            problem: error.to_string(),
        })?;
    config.ticketer = tickets.clone();
    // One is enough for a client with one connection; each is written after the handshake and costs an encryption.
    config.send_tls13_tickets = 1;
    // Resumption is by tickets alone: nothing is kept here for a client that has gone.
    config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
    Ok(config)
}

fn fault(path: &Path, problem: impl ToString) -> CertificateError {
    CertificateError::File {
        path: path.to_owned(),
        problem: problem.to_string(),
    }
}

impl From<CertificateError> for io::Error {
    fn from(error: CertificateError) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidInput, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The second look found the files as they were when they could not be read, and no look after it read them again.
    #[test]
    fn what_could_not_be_read_is_read_again_although_the_files_look_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let files = config::Tls {
            cert_file: dir.path().join("cert.pem"),
            key_file: dir.path().join("key.pem"),
            reload_interval: Duration::from_secs(1),
        };
        let identity = || rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
        let (old, new) = (identity(), identity());
        let at = std::time::SystemTime::now() - Duration::from_secs(60);
        let put = |path: &Path, text: &str| {
            fs::write(path, text).unwrap();
            let file = fs::File::options().append(true).open(path).unwrap();
            file.set_modified(at).unwrap();
        };
        put(&files.cert_file, &old.cert.pem());
        put(&files.key_file, &old.signing_key.serialize_pem());
        let certificates = Certificates::open(&files).unwrap();
        let first = certificates.current();

        let key = new.signing_key.serialize_pem();
        put(&files.cert_file, &new.cert.pem());
        put(&files.key_file, &key.replace("PRIVATE", "PRIVATA"));
        certificates.reload_if_changed();
        assert!(Arc::ptr_eq(&first, &certificates.current()));
        let told = certificates.seen.lock().unwrap().problem.clone();
        assert!(told.is_some_and(|told| told.contains("key.pem")));
        put(&files.key_file, &key);
        // As if nothing had changed but what stood in the way.
        certificates.seen.lock().unwrap().stamps = stamps(&files);
        certificates.reload_if_changed();
        let second = certificates.current();
        assert!(!Arc::ptr_eq(&first, &second));
        assert!(certificates.seen.lock().unwrap().problem.is_none());
        certificates.reload_if_changed();
        assert!(Arc::ptr_eq(&second, &certificates.current()));
    }
}
