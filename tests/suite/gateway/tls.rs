//! Certificates, handshakes, sessions over TLS.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hongbao::client::{BackoffBounds, Client, ClientError, Login, Settings, Tls};
use hongbao::post::Trust;
use hongbao::wire::client_frame::Request;
use hongbao::wire::server_frame::Message;
use hongbao::wire::{Outcome, Ping};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::support::eventually;
use crate::support::server::Server;
use crate::support::wire::{Raw, Stream, connect_from};

/// A certificate for 127.0.0.1 that vouches for itself, and its key.
struct Identity(rcgen::CertifiedKey<rcgen::KeyPair>);

impl Identity {
    fn new() -> Identity {
        Identity(rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap())
    }

    fn pem(&self) -> String {
        self.0.cert.pem()
    }

    fn key(&self) -> String {
        self.0.signing_key.serialize_pem()
    }
}

struct Files {
    dir: TempDir,
}

impl Files {
    fn new(identity: &Identity) -> Files {
        let files = Files {
            dir: tempfile::tempdir().unwrap(),
        };
        files.put("cert.pem", &identity.pem());
        files.put("key.pem", &identity.key());
        files
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// In one step, as certificate managers do it.
    fn put(&self, name: &str, text: &str) {
        std::fs::write(self.path("draft"), text).unwrap();
        std::fs::rename(self.path("draft"), self.path(name)).unwrap();
    }

    fn settings(&self) -> [String; 3] {
        [
            format!("gateway.tls_cert_file={}", self.path("cert.pem").display()),
            format!("gateway.tls_key_file={}", self.path("key.pem").display()),
            "gateway.tls_reload_interval_ms=20".to_owned(),
        ]
    }

    fn server(&self, more: &[&str]) -> Server {
        let files = self.settings();
        let settings: Vec<&str> = files
            .iter()
            .map(String::as_str)
            .chain(more.iter().copied())
            .collect();
        Server::start(&settings)
    }
}

fn client_settings(server: &Server, ca: &Path) -> Arc<Settings> {
    Arc::new(Settings {
        tls: Some(Tls::new(&Trust::File(ca.to_owned())).unwrap()),
        first_session_ms: 2_000,
        reconnect: BackoffBounds {
            first_ms: 10,
            max_ms: 50,
        },
        ..Settings::new(vec![server.gateway().to_string()])
    })
}

/// A handshake that believes only `trusted`.
async fn connect(server: &Server, trusted: &Identity) -> std::io::Result<Raw> {
    connect_over(TcpStream::connect(server.gateway()).await?, trusted).await
}

async fn connect_over(socket: impl Stream + 'static, trusted: &Identity) -> std::io::Result<Raw> {
    let mut roots = rustls::RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(trusted.pem().as_bytes()).unwrap())
        .unwrap();
    let ring = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(ring)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let tls = tokio_rustls::TlsConnector::from(Arc::new(config))
        .connect(name, socket)
        .await?;
    Ok(Raw::over(tls))
}

#[tokio::test]
async fn a_session_over_tls_is_like_any_other_and_only_with_whom_the_client_trusts() {
    let (ours, foreign) = (Identity::new(), Identity::new());
    let files = Files::new(&ours);
    files.put("foreign.pem", &foreign.pem());
    let server = files.server(&[]);
    let rain = server.open_rain(10, 1_000).await;
    let login = || Login::with_token(server.token("anna"));
    let settings = client_settings(&server, &files.path("cert.pem"));
    let (client, _events) = Client::connect(settings.clone(), login()).await.unwrap();
    client.watch("quiz").await.unwrap();
    let first = client.grab(rain).await.unwrap();
    assert_eq!(first.known(), Some(Outcome::Won));
    client.reconnect();
    let again = client.grab(rain).await.unwrap();
    assert_eq!(
        (again.known(), again.packet),
        (Some(Outcome::AlreadyWon), first.packet)
    );
    eventually("the second handshake to be counted", async || {
        let resumed = server
            .metric("hongbao_tls_handshakes_total{kind=\"resumed\"}")
            .await;
        (resumed == 1.0).then_some(())
    })
    .await;

    let settings = client_settings(&server, &files.path("foreign.pem"));
    let Err(ClientError::Unreachable { last, .. }) = Client::connect(settings, login()).await
    else {
        panic!("connected to somebody it does not trust")
    };
    assert!(last.contains("certificate"), "{last}");
    let settings = Settings {
        first_session_ms: 500,
        ..Settings::new(vec![server.gateway().to_string()])
    };
    let plain = Client::connect(Arc::new(settings), login()).await;
    assert!(
        matches!(plain, Err(ClientError::Unreachable { .. })),
        "TLS is not optional here"
    );
    let failed = server
        .metric("hongbao_connections_refused_total{reason=\"tls_handshake\"}")
        .await;
    assert!(failed >= 2.0, "{failed}");
    assert_eq!(
        client.ping().await.map(drop),
        Ok(()),
        "the good session lives on"
    );
}

#[tokio::test]
async fn many_bytes_in_both_directions_pass_through_tls_whole_and_in_order() {
    let ours = Identity::new();
    let server = Files::new(&ours).server(&["gateway.write_backlog_max_bytes=1048576"]);
    let mut anna = connect(&server, &ours).await.unwrap();
    anna.hello(&server.token("anna")).await;
    // 2 KiB of padding the protocol passes over: an unknown field 15 of that length.
    let mut ids = vec![];
    for _ in 0..500 {
        ids.push(anna.send(Request::Ping(Ping {})).await);
        let id = ids.len() as u64 + 100_000;
        let mut frame = vec![0x08];
        prost::encoding::encode_varint(id, &mut frame);
        frame.extend([0x1A, 0x00]); // field 3, Ping, empty
        frame.extend([0x7A, 0x80, 0x10]); // field 15, 2,048 bytes
        frame.extend([0xAA; 2_048]);
        let len = u32::try_from(frame.len()).unwrap().to_be_bytes();
        anna.bytes(&[&len[..], &frame].concat()).await;
        ids.push(id);
    }
    for id in ids {
        let frame = anna.receive().await.unwrap();
        assert_eq!(frame.request_id, id);
        assert!(matches!(frame.message, Some(Message::Pong(_))));
    }
}

#[tokio::test]
async fn a_new_certificate_is_used_without_a_restart_and_a_broken_one_is_not() {
    let (old, new) = (Identity::new(), Identity::new());
    let files = Files::new(&old);
    let server = files.server(&[]);
    let mut session = connect(&server, &old).await.unwrap();
    session.hello(&server.token("anna")).await;

    // The certificate before its key: not a pair.
    files.put("cert.pem", &new.pem());
    let counted = async |name: &'static str| {
        eventually(name, async || {
            (server.metric(name).await > 0.0).then_some(())
        })
        .await
    };
    counted("hongbao_tls_reloads_total{result=\"broken\"}").await;
    assert!(
        server.log().contains("the old one stays"),
        "{}",
        server.log()
    );
    assert!(connect(&server, &old).await.is_ok());
    files.put("key.pem", &new.key());
    counted("hongbao_tls_reloads_total{result=\"loaded\"}").await;
    assert!(connect(&server, &new).await.is_ok());
    assert!(connect(&server, &old).await.is_err());

    std::fs::remove_file(files.path("key.pem")).unwrap();
    eventually("the missing file to be noticed", async || {
        server.log().contains("key.pem: ").then_some(())
    })
    .await;
    assert!(connect(&server, &new).await.is_ok());
    assert!(
        matches!(session.ask(Request::Ping(Ping {})).await, Message::Pong(_)),
        "sessions live on"
    );
}

#[tokio::test]
async fn handshakes_have_a_deadline_and_a_cap() {
    let ours = Identity::new();
    let files = Files::new(&ours);
    let server = files.server(&[
        "gateway.handshakes_max=2",
        "gateway.handshakes_per_address_max=2",
        "gateway.handshake_timeout_ms=300",
    ]);
    let refused = async |reason: &str| {
        server
            .metric(&format!(
                "hongbao_connections_refused_total{{reason=\"{reason}\"}}"
            ))
            .await
    };
    let mut first = Raw::connect(&server).await;
    let mut second = Raw::connect(&server).await;
    // The beginning of a ClientHello, and no more.
    second.bytes(&[0x16, 0x03, 0x01, 0x02, 0x00]).await;
    if let Some(mut third) = Raw::try_connect(&server).await {
        assert!(third.dropped().await);
    }
    assert_eq!(refused("handshakes_full").await, 1.0);
    assert!(first.dropped().await && second.dropped().await);
    assert_eq!(refused("late").await, 2.0);
    assert!(
        connect(&server, &ours).await.is_ok(),
        "the places are free again"
    );
}

/// Begins so many handshakes and ends none of them.
async fn begin_handshakes(server: &Server, source: &str, count: usize) -> Vec<TcpStream> {
    let mut begun = vec![];
    for _ in 0..count {
        // Whoever is refused may have been reset by now.
        if let Ok(mut socket) = connect_from(server, source).await {
            // The beginning of a ClientHello.
            let _ = socket.write_all(&[0x16, 0x03, 0x01, 0x02, 0x00]).await;
            begun.push(socket);
        }
    }
    begun
}

/// Once one address could take every turn, and then nobody came in.
#[tokio::test]
async fn handshakes_that_one_address_never_ends_keep_nobody_else_out() {
    let ours = Identity::new();
    let files = Files::new(&ours);
    let server = files.server(&[
        "gateway.handshakes_max=8",
        "gateway.handshakes_per_address_max=3",
        "gateway.handshake_timeout_ms=60000",
    ]);
    let refused = async || {
        let name = "hongbao_connections_refused_total{reason=\"address_handshakes\"}";
        server.metric(name).await
    };
    let hostile = begin_handshakes(&server, "127.0.0.66", 40).await;
    eventually("37 to be refused", async || {
        (refused().await == 37.0).then_some(())
    })
    .await;
    for source in ["127.0.0.99", "127.0.0.100"] {
        let socket = connect_from(&server, source).await.unwrap();
        let mut honest = connect_over(socket, &ours).await.unwrap();
        honest.hello(&server.token("anna")).await;
    }
    // Whoever else is behind that address waits for it.
    let neighbour = async || {
        let socket = connect_from(&server, "127.0.0.66").await?;
        connect_over(socket, &ours).await
    };
    assert!(neighbour().await.is_err());
    drop(hostile);
    eventually("the address to have its share again", async || {
        neighbour().await.ok()
    })
    .await;
}

#[tokio::test]
async fn behind_a_load_balancer_the_share_is_that_of_whom_it_announces() {
    let ours = Identity::new();
    let files = Files::new(&ours);
    let server = files.server(&[
        "gateway.proxy_trusted=[\"127.0.0.1\"]",
        "gateway.handshakes_per_address_max=1",
        "gateway.handshake_timeout_ms=60000",
    ]);
    // In 2001:db8:0:<network>::/64.
    let announced = async |network: u8, host: u8| {
        let mut socket = TcpStream::connect(server.gateway()).await.unwrap();
        let header = super::proxy::v6(network, host);
        socket.write_all(&header).await.unwrap();
        socket
    };
    let _hostile = announced(1, 1).await;
    let _second = announced(1, 2).await;
    eventually("the same customer's network to be refused", async || {
        let name = "hongbao_connections_refused_total{reason=\"address_handshakes\"}";
        (server.metric(name).await == 1.0).then_some(())
    })
    .await;
    let honest = announced(2, 1).await;
    connect_over(honest, &ours).await.unwrap();
}

#[tokio::test]
async fn a_server_does_not_start_with_a_certificate_that_it_cannot_use() {
    let (ours, other) = (Identity::new(), Identity::new());
    let files = Files::new(&ours);
    files.put("key.pem", &other.key());
    let mut command = crate::support::server::hongbao();
    let dir = tempfile::tempdir().unwrap();
    command.arg("--data-dir").arg(dir.path());
    for setting in files
        .settings()
        .iter()
        .map(String::as_str)
        .chain(["gateway.listen=127.0.0.1:0", "admin.listen=127.0.0.1:0"])
    {
        command.args(["--set", setting]);
    }
    let output = tokio::task::spawn_blocking(move || command.arg("serve").output().unwrap());
    let output = tokio::time::timeout(Duration::from_secs(60), output)
        .await
        .unwrap()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && text.contains("are not a pair"),
        "{text}"
    );
}
