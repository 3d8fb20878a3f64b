//! From the accepted connection to a session: limits, PROXY header, TLS handshake.
//!
//! ```text
//! accepted ── from a trusted proxy? ──yes──▶ PROXY header ─┐
//!    └───────────────── no ────────────────────────────────┴─▶ place in total and of its address ── TLS? ──yes──▶ handshake ─┐
//!                                                                             └────────────── no ────────────────────────────┴─▶ session
//! ```
//!
//! A plain connection becomes a session at once, without a task in between. The others have a task, and a turn, until `gateway.handshake_timeout_ms`.
//! Whoever is turned away costs a counter and a close; only a client of plain TCP that finds no place is told so, and not too many at a time.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use rustls::{HandshakeKind, ServerConnection};
use tokio::net::TcpStream;

use super::limits::{Place, Turned};
use super::proxy;
use super::session::Session;
use super::tls::Certificates;
use super::transport::{Raw, Transport, give};
use super::worker::{Turn, Worker};
use crate::metrics;
use crate::task;
use crate::wire::CloseCode;

/// Connections without a place that are told so at the same time; more are dropped without a word.
const TOLD_MAX: usize = 256;

impl Turned {
    fn name(self) -> &'static str {
        match self {
            Turned::GatewayFull => "gateway_full",
            Turned::AddressFull => "address_full",
            Turned::AddressRate => "address_rate",
            Turned::AddressHandshakes => "address_handshakes",
        }
    }
}

/// Why a connection did not get as far as a session.
enum Failure {
    Header(io::Error),
    Turned(Turned),
    Handshake(io::Error),
}

impl Worker {
    pub(super) fn accept(self: &Rc<Self>, socket: TcpStream, peer: SocketAddr) {
        metrics::get().connections.increment(1);
        let peer = peer.ip().to_canonical();
        let proxied = (self.settings.proxy_trusted.iter()).any(|network| network.contains(peer));
        let place = self.doors.enter().and_then(|mut place| {
            if !proxied {
                place.belongs_to(peer)?;
            }
            Ok(place)
        });
        match (place, &self.certificates) {
            (Ok(place), None) if !proxied => drop(self.open(Transport::Plain(socket), Some(place))),
            (Ok(place), certificates) => {
                self.receive(socket, place, peer, proxied, certificates.as_ref())
            }
            (Err(turned), None) if !proxied => self.turn_away(socket, turned),
            // In front of a handshake there is no way to tell.
            (Err(turned), _) => drop_silently(&socket, turned.name()),
        }
    }

    /// The ways that take more than a moment.
    fn receive(
        self: &Rc<Self>,
        socket: TcpStream,
        mut place: Place,
        peer: IpAddr,
        proxied: bool,
        certificates: Option<&std::sync::Arc<Certificates>>,
    ) {
        let Some(turn) = Turn::take(&self.handshakes, self.handshakes_max) else {
            return drop_silently(&socket, "handshakes_full");
        };
        let (worker, certificates) = (self.clone(), certificates.cloned());
        tokio::task::spawn_local(async move {
            let limit = worker.settings.handshake_timeout;
            let receiving = tokio::time::timeout(limit, async {
                if proxied {
                    let announced = proxy::announced(&socket).await.map_err(Failure::Header)?;
                    let address = announced.unwrap_or(peer);
                    place.belongs_to(address).map_err(Failure::Turned)?;
                }
                match certificates {
                    None => Ok(None),
                    Some(certificates) => {
                        let _share = place.handshake().map_err(Failure::Turned)?;
                        let handshake = handshake(&socket, &certificates).await;
                        handshake.map(Some).map_err(Failure::Handshake)
                    }
                }
            });
            let received = tokio::select! {
                received = task::contained("handshake", receiving) => received,
                () = worker.drain.cancelled() => return,
            };
            drop(turn);
            match received {
                Ok(Ok(Ok(tls))) => {
                    let transport = match tls {
                        None => Transport::Plain(socket),
                        Some(tls) => Transport::tls(socket, tls),
                    };
                    worker.open(transport, Some(place));
                }
                Ok(Ok(Err(failure))) => {
                    drop(place);
                    worker.fail(socket, failure);
                }
                Ok(Err(_)) => drop_silently(&socket, "late"),
                Err(_) => {}
            }
        });
    }

    fn fail(self: &Rc<Self>, socket: TcpStream, failure: Failure) {
        match failure {
            Failure::Header(error) => {
                tracing::debug!(%error, "a trusted proxy sent no PROXY header that can be read");
                drop_silently(&socket, "proxy_header");
            }
            Failure::Turned(turned) if self.certificates.is_none() => {
                self.turn_away(socket, turned)
            }
            Failure::Turned(turned) => drop_silently(&socket, turned.name()),
            Failure::Handshake(error) => {
                tracing::debug!(%error, "TLS handshake failed");
                // Not reset: the alert that says why is on its way.
                metrics::get().connection_refused("tls_handshake");
            }
        }
    }

    /// A session from here on. One without a place is only told that there is none.
    fn open(self: &Rc<Self>, transport: Transport, place: Option<Place>) -> Rc<Session> {
        let session = Rc::new(Session::new(self.next_session_id(), transport, place));
        metrics::get().sessions.increment(1);
        self.enter(&session);
        if self.draining() {
            // Everybody else has been told by now.
            let after = self.retry_after_ms();
            session.go_away(self, CloseCode::Draining, "this gateway stops", after);
        }
        let (worker, served) = (self.clone(), session.clone());
        tokio::task::spawn_local(async move {
            // What a session shares with others, it does not leave half done across a call that can panic.
            let _ = task::contained("session", served.run(&worker)).await;
            worker.forget(&served);
        });
        session
    }

    fn turn_away(self: &Rc<Self>, socket: TcpStream, turned: Turned) {
        let reason = match turned {
            Turned::GatewayFull => "the gateway is full",
            Turned::AddressFull => "too many connections from this address",
            // Whoever connects this fast does not listen, and where there are handshakes there is no way to tell.
            Turned::AddressRate | Turned::AddressHandshakes => {
                return drop_silently(&socket, turned.name());
            }
        };
        if self.told.get() >= TOLD_MAX {
            return drop_silently(&socket, turned.name());
        }
        metrics::get().connection_refused(turned.name());
        self.told.set(self.told.get() + 1);
        let session = self.open(Transport::Plain(socket), None);
        let after = self.retry_after_ms() * 10;
        session.go_away(self, CloseCode::TooManyConnections, reason, after);
        let _ = session.flush();
    }
}

/// Closed with a reset: the kernel keeps nothing of it.
fn drop_silently(socket: &TcpStream, reason: &'static str) {
    metrics::get().connection_refused(reason);
    let _ = socket2::SockRef::from(socket).set_linger(Some(Duration::ZERO));
}

async fn handshake(
    socket: &TcpStream,
    certificates: &Certificates,
) -> io::Result<ServerConnection> {
    let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, error);
    let mut connection = ServerConnection::new(certificates.current()).map_err(invalid)?;
    loop {
        if !give(&mut connection, socket)? {
            socket.writable().await?;
            continue;
        }
        if !connection.is_handshaking() {
            break;
        }
        socket.readable().await?;
        match connection.read_tls(&mut Raw(socket)) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => {
                if let Err(error) = connection.process_new_packets() {
                    let _ = give(&mut connection, socket); // the alert
                    return Err(invalid(error));
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    metrics::get().tls_handshake(match connection.handshake_kind() {
        Some(HandshakeKind::Resumed) => "resumed",
        _ => "full",
    });
    Ok(connection)
}
