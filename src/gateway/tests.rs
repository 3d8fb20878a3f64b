use std::io::Write;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use rustls::crypto::ring;
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, ServerConnection};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::LocalSet;
use tokio_util::sync::CancellationToken;

use super::early::Early;
use super::limits::{Clock, Doors, UserRates};
use super::rains::Rains;
use super::roll::Roll;
use super::session::Session;
use super::token::TokenKeys;
use super::transport::Transport;
use super::worker::{Shared, Worker};
use crate::config::{Settings, Sources};
use crate::rain::Durability;
use crate::store::Store;

/// A worker that nobody has connected to, with these settings, in front of a node that nobody asks.
pub(super) async fn bench(flags: &[&str]) -> Rc<Worker> {
    let node = [
        "store.topology=nodes",
        "store.nodes=[\"redis://127.0.0.1:1\"]",
    ];
    let flags = node.iter().chain(flags).copied();
    let (settings, _) = Settings::read(Sources::default().flags(flags)).unwrap();
    let store = Store::connect(&settings.store, Path::new("."), Durability::Memory).await;
    let (store, clock) = (Arc::new(store.unwrap()), Clock::start());
    let settings = settings.gateway;
    Worker::new(Arc::new(Shared {
        tokens: Arc::new(TokenKeys::hs256("default", &[7; 32], Duration::ZERO)),
        roll: Roll::new(settings.sessions_per_user),
        early: Early::new(&settings),
        risk: None,
        rains: Arc::new(Rains::new(store.clone())),
        store,
        clock,
        doors: Doors::new(&settings, clock),
        user_rates: UserRates::new(&settings, clock),
        certificates: None,
        next_session: AtomicU64::new(1),
        drain: CancellationToken::new(),
        settings,
    }))
}

/// An accepted socket, and its client's end.
pub(super) async fn connection() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap());
    let (accepted, client) = tokio::join!(listener.accept(), client);
    (accepted.unwrap().0, client.unwrap())
}

/// Both ends of a TLS connection after its handshake.
fn tls() -> (ServerConnection, ClientConnection) {
    let identity = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(identity.cert.der().clone()).unwrap();
    let provider = Arc::new(ring::default_provider());
    let server = rustls::ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![identity.cert.der().clone()],
            identity.signing_key.into(),
        )
        .unwrap();
    let client = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let mut server = ServerConnection::new(Arc::new(server)).unwrap();
    let mut client = ClientConnection::new(Arc::new(client), name).unwrap();
    while server.wants_write() || client.wants_write() {
        let mut wire = vec![];
        while client.wants_write() {
            client.write_tls(&mut wire).unwrap();
        }
        server.read_tls(&mut &wire[..]).unwrap();
        server.process_new_packets().unwrap();
        wire.clear();
        while server.wants_write() {
            server.write_tls(&mut wire).unwrap();
        }
        client.read_tls(&mut &wire[..]).unwrap();
        client.process_new_packets().unwrap();
    }
    assert!(!server.is_handshaking() && !client.is_handshaking());
    (server, client)
}

/// Records of a byte never fill a turn, and whoever sent thousands of them kept the worker until they were read, every one of them.
#[tokio::test]
async fn a_session_over_tls_gives_others_their_turn_after_every_read() {
    // A frame that cannot be read: the session closes when it has read the last byte.
    let frame = [&2_000u32.to_be_bytes()[..], &[0xff; 2_000]].concat();
    let (server, mut encrypt) = tls();
    let mut records = vec![];
    for byte in frame {
        encrypt.writer().write_all(&[byte]).unwrap();
        encrypt.write_tls(&mut records).unwrap();
    }
    // rustls takes 4 KiB of records at a time.
    let reads = records.len() / 4_096;
    assert!(reads >= 10, "{} bytes", records.len());

    let (socket, client) = connection().await;
    client.writable().await.unwrap();
    assert_eq!(client.try_write(&records).unwrap(), records.len());
    socket.readable().await.unwrap();
    let worker = bench(&[]).await;
    let session = Rc::new(Session::new(1, Transport::tls(socket, server), None));
    let mut others = 0;
    let local = LocalSet::new();
    let served = (session.clone(), worker);
    local.spawn_local(async move { served.0.run(&served.1).await });
    local
        .run_until(async {
            while session.closing_since().is_none() {
                tokio::task::yield_now().await;
                others += 1;
            }
        })
        .await;
    assert!(others >= reads, "{others} turns in {reads} reads");
}
