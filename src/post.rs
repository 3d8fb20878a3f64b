//! POST to other people's servers: TLS, one time-out for the whole exchange, a bounded answer.
//!
//! No redirects (a POST that follows one may arrive as a GET, or elsewhere) and no proxy from the environment.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::http::{Request, StatusCode};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

/// Connections that wait for the next request are closed after this; most servers and load balancers wait longer.
const IDLE: Duration = Duration::from_secs(20);

/// Whose certificates are believed.
#[derive(Clone, Debug)]
pub enum Trust {
    /// Nobody's: for plain HTTP.
    Nobody,
    /// Those of this machine.
    System,
    /// Those in a PEM file.
    File(PathBuf),
}

#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    #[error("this machine has no certificates to trust: install ca-certificates{0}")]
    Nothing(String),
    #[error("certificates in {path}: {problem}")]
    File { path: PathBuf, problem: String },
}

/// Why there is no answer. In every case it is unknown whether the server has done what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    #[error("cannot be reached: {0}")]
    Unreachable(String),
    #[error("no answer within {} ms", .0.as_millis())]
    TimedOut(Duration),
    #[error("the connection broke: {0}")]
    Broken(String),
    #[error("its answer exceeds {0} bytes")]
    TooLarge(usize),
}

pub struct Poster {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    timeout: Duration,
}

impl Poster {
    /// `timeout` is for a whole exchange, from looking up the name to the last byte of the answer.
    pub fn new(timeout: Duration, trust: &Trust) -> Result<Poster, TrustError> {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false); // the connector around it checks the scheme
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(timeout / 2)); // shared by the addresses of the name: a dead one leaves time for the next
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls(trust)?)
            .https_or_http()
            .enable_http1()
            .wrap_connector(tcp);
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .build(connector);
        Ok(Poster { client, timeout })
    }

    /// The status and the body, of which at most `answer_max` bytes are read.
    pub async fn post(
        &self,
        request: Request<Full<Bytes>>,
        answer_max: usize,
    ) -> Result<(StatusCode, Bytes), PostError> {
        let exchange = async {
            let answer = self.client.request(request).await.map_err(|error| {
                if error.is_connect() {
                    PostError::Unreachable(chain(&error))
                } else {
                    PostError::Broken(chain(&error))
                }
            })?;
            let (head, body) = answer.into_parts();
            let body = Limited::new(body, answer_max).collect().await;
            let body = body.map_err(|error| match error.downcast::<LengthLimitError>() {
                Ok(_) => PostError::TooLarge(answer_max),
                Err(error) => PostError::Broken(chain(&*error)),
            })?;
            Ok((head.status, body.to_bytes()))
        };
        match tokio::time::timeout(self.timeout, exchange).await {
            Ok(answer) => answer,
            Err(_) => Err(PostError::TimedOut(self.timeout)),
        }
    }
}

pub(crate) fn tls(trust: &Trust) -> Result<ClientConfig, TrustError> {
    let mut roots = RootCertStore::empty();
    match trust {
        Trust::Nobody => {}
        Trust::System => {
            let found = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(found.certs);
            if roots.is_empty() {
                let errors = found.errors.iter().map(|error| format!("; {error}"));
                return Err(TrustError::Nothing(errors.collect()));
            }
        }
        Trust::File(path) => add_file(&mut roots, path)?,
    }
    let ring = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    Ok(ClientConfig::builder_with_provider(ring)
        .with_safe_default_protocol_versions()
        .expect("ring speaks TLS 1.2 and 1.3")
        .with_root_certificates(roots)
        .with_no_client_auth())
}

fn add_file(roots: &mut RootCertStore, path: &Path) -> Result<(), TrustError> {
    let fault = |problem: String| TrustError::File {
        path: path.to_owned(),
        problem,
    };
    for certificate in
        CertificateDer::pem_file_iter(path).map_err(|error| fault(error.to_string()))?
    {
        let certificate = certificate.map_err(|error| fault(error.to_string()))?;
        roots
            .add(certificate)
            .map_err(|error| fault(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(fault("there are none".into()));
    }
    Ok(())
}

/// An error with its causes: the outermost text ("client error") says least.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
