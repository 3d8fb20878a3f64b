//! The writing side of a connection. Without TLS it is the socket; with TLS it also holds the keys for both directions.

use std::io::{self, IoSlice, Read, Write};
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedWriteHalf;

use crate::post::{self, Trust, TrustError};

/// Plaintext that is encrypted at a time: one record of TLS.
const RECORD_MAX: usize = 16 * 1024;

/// Whom sessions over TLS believe to be the gateway.
#[derive(Clone, Debug)]
pub struct Tls {
    config: Arc<ClientConfig>,
    name: Option<ServerName<'static>>,
}

impl Tls {
    /// Gateways must show a certificate for the host in their address, from somebody that is trusted.
    ///
    /// # Errors
    /// When there is nobody to trust, or the file cannot be read.
    pub fn new(trust: &Trust) -> Result<Tls, TrustError> {
        let config = Arc::new(post::tls(trust)?);
        Ok(Tls { config, name: None })
    }

    /// The name that certificates must show, whatever the addresses are.
    ///
    /// # Errors
    /// When it is no host name and no address.
    pub fn named(mut self, name: &str) -> io::Result<Tls> {
        self.name = Some(server_name(name)?);
        Ok(self)
    }
}

fn server_name(host: &str) -> io::Result<ServerName<'static>> {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let invalid = |error| {
        let problem = format!("{host} is no name that a certificate can show: {error}");
        io::Error::new(io::ErrorKind::InvalidInput, problem)
    };
    ServerName::try_from(host.to_owned()).map_err(invalid)
}

/// `gateway` is `host:port`.
pub(super) async fn shake_hands(
    stream: &TcpStream,
    tls: &Tls,
    gateway: &str,
) -> io::Result<Box<ClientConnection>> {
    let name = match &tls.name {
        Some(name) => name.clone(),
        None => server_name(gateway.rsplit_once(':').map_or(gateway, |(host, _)| host))?,
    };
    let connection = ClientConnection::new(tls.config.clone(), name).map_err(invalid)?;
    let mut connection = Box::new(connection);
    let mut socket = Raw(
        |bytes: &mut [u8]| stream.try_read(bytes),
        |parts: &[IoSlice<'_>]| stream.try_write_vectored(parts),
    );
    loop {
        if !give(&mut connection, &mut socket)? {
            stream.writable().await?;
            continue;
        }
        if !connection.is_handshaking() {
            return Ok(connection);
        }
        stream.readable().await?;
        match connection.read_tls(&mut socket) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => {
                let processed = connection.process_new_packets();
                if processed.is_err() {
                    let _ = give(&mut connection, &mut socket); // the alert
                }
                processed.map_err(invalid)?;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

pub(super) struct Socket {
    half: OwnedWriteHalf,
    tls: Option<Box<ClientConnection>>,
}

impl Socket {
    pub fn new(half: OwnedWriteHalf, tls: Option<Box<ClientConnection>>) -> Socket {
        Socket { half, tls }
    }

    /// Like `OwnedWriteHalf::try_write`.
    pub fn try_write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.tls.is_none() {
            return self.half.try_write(bytes);
        }
        self.push_out()?;
        let Some(tls) = self.tls.as_mut().filter(|tls| !tls.wants_write()) else {
            return Err(io::ErrorKind::WouldBlock.into());
        };
        let taken = tls.writer().write(&bytes[..bytes.len().min(RECORD_MAX)])?;
        self.push_out()?;
        Ok(taken)
    }

    /// Whether bytes that were taken wait for the socket.
    pub fn holds_back(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.wants_write())
    }

    /// Gives the socket what was held back, as far as it takes it.
    pub fn push_out(&mut self) -> io::Result<()> {
        let Some(tls) = &mut self.tls else {
            return Ok(());
        };
        let mut socket = Raw(
            |_: &mut [u8]| Ok::<usize, io::Error>(0),
            |parts: &[IoSlice<'_>]| self.half.try_write_vectored(parts),
        );
        give(tls, &mut socket).map(drop)
    }

    /// Takes from `bytes`, as they came, what it needs to put something into `plain`; 0 when they are used up.
    pub fn decrypt(&mut self, bytes: &mut &[u8], plain: &mut [u8]) -> io::Result<usize> {
        loop {
            let Some(tls) = &mut self.tls else {
                return Ok(0);
            };
            match tls.reader().read(plain) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return read,
            }
            if bytes.is_empty() {
                return Ok(0);
            }
            tls.read_tls(bytes)?;
            tls.process_new_packets().map_err(invalid)?;
            self.push_out()?;
        }
    }
}

fn invalid(error: rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// Writes what rustls has for the socket; false when the socket does not take all of it.
fn give(connection: &mut ClientConnection, socket: &mut impl Write) -> io::Result<bool> {
    while connection.wants_write() {
        match connection.write_tls(socket) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// How to read and how to write without waiting, as rustls wants it.
struct Raw<R, W>(R, W);

impl<R: FnMut(&mut [u8]) -> io::Result<usize>, W> Read for Raw<R, W> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        (self.0)(bytes)
    }
}

impl<R, W: FnMut(&[IoSlice<'_>]) -> io::Result<usize>> Write for Raw<R, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (self.1)(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        (self.1)(parts)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
