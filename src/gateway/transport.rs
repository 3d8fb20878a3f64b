//! What a session reads from and writes to: the socket itself, or TLS over it. Neither waits; the session waits for the socket.
//!
//! A plain transport is the socket and nothing else, so an idle session costs no buffers. A TLS transport holds what rustls holds, and at most
//! [`RECORD_MAX`] bytes that it has encrypted and the socket did not take.

use std::cell::RefCell;
use std::io::{self, IoSlice, Read, Write};

use rustls::ServerConnection;
use tokio::io::Interest;
use tokio::net::TcpStream;

/// Plaintext that is encrypted at a time: one record of TLS. More is taken only when the socket has taken this.
const RECORD_MAX: usize = 16 * 1024;

pub enum Transport {
    Plain(TcpStream),
    /// Boxed: plain sessions do not pay for its size.
    Tls(Box<Tls>),
}

/// TLS after its handshake.
pub struct Tls {
    socket: TcpStream,
    connection: RefCell<ServerConnection>,
}

impl Transport {
    pub fn tls(socket: TcpStream, connection: ServerConnection) -> Transport {
        Transport::Tls(Box::new(Tls {
            socket,
            connection: RefCell::new(connection),
        }))
    }

    pub fn socket(&self) -> &TcpStream {
        match self {
            Transport::Plain(socket) => socket,
            Transport::Tls(tls) => &tls.socket,
        }
    }

    /// Like `TcpStream::try_read`. While anything is left to read, the socket stays marked as readable: rustls is emptied before the socket is
    /// asked, and only the socket's own `WouldBlock` takes the mark away.
    pub fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Transport::Plain(socket) => socket.try_read(buffer),
            Transport::Tls(tls) => tls.read(buffer),
        }
    }

    /// Whether what was read may have left something behind that no event of the socket will tell of.
    pub fn may_hold_more(&self) -> bool {
        matches!(self, Transport::Tls(_))
    }

    /// The last read left room in its buffer, so the plain socket was empty: it is asked again after the kernel's next word, and not only to hear
    /// `WouldBlock`. The end of the stream stays marked. Only where the runtime that polls the socket is on this very thread: elsewhere news that
    /// came since the read would be lost.
    pub fn is_drained(&self) {
        if let Transport::Plain(socket) = self {
            let nothing = || Err::<(), _>(io::ErrorKind::WouldBlock.into());
            let _ = socket.try_io(Interest::READABLE, nothing);
        }
    }

    /// Like `TcpStream::try_write`. What TLS took is on its way when [`Transport::holds_back`] says no.
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Transport::Plain(socket) => socket.try_write(bytes),
            Transport::Tls(tls) => tls.write(bytes),
        }
    }

    /// Whether bytes that were taken wait for the socket. They go with the next write, or with [`Transport::push_out`].
    pub fn holds_back(&self) -> bool {
        match self {
            Transport::Plain(_) => false,
            Transport::Tls(tls) => tls.connection.borrow().wants_write(),
        }
    }

    /// Gives the socket what was held back, as far as it takes it.
    pub fn push_out(&self) -> io::Result<()> {
        match self {
            Transport::Plain(_) => Ok(()),
            Transport::Tls(tls) => give(&mut tls.connection.borrow_mut(), &tls.socket).map(drop),
        }
    }

    /// Nothing more is written: the client reads the end after the last byte.
    pub fn finish(&self) {
        if let Transport::Tls(tls) = self {
            let mut connection = tls.connection.borrow_mut();
            connection.send_close_notify();
            let _ = give(&mut connection, &tls.socket);
        }
        let _ = socket2::SockRef::from(self.socket()).shutdown(std::net::Shutdown::Write);
    }
}

impl Tls {
    fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut connection = self.connection.borrow_mut();
        loop {
            match connection.reader().read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return read,
            }
            if connection.read_tls(&mut Raw(&self.socket))? == 0 {
                return Ok(0);
            }
            let processed = connection.process_new_packets();
            // An alert, or an answer of the protocol itself.
            give(&mut connection, &self.socket)?;
            processed.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        }
    }

    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut connection = self.connection.borrow_mut();
        if !give(&mut connection, &self.socket)? {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let taken = connection
            .writer()
            .write(&bytes[..bytes.len().min(RECORD_MAX)])?;
        give(&mut connection, &self.socket)?;
        Ok(taken)
    }
}

/// Writes what rustls has for the socket; false when the socket does not take all of it.
pub(super) fn give(connection: &mut ServerConnection, socket: &TcpStream) -> io::Result<bool> {
    while connection.wants_write() {
        match connection.write_tls(&mut Raw(socket)) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// A socket as rustls wants it: `WouldBlock` instead of waiting.
pub(super) struct Raw<'a>(pub &'a TcpStream);

impl Read for Raw<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.try_read(buffer)
    }
}

impl Write for Raw<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.try_write_vectored(parts)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
