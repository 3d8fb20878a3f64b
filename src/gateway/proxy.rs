//! The PROXY protocol, version 2: what a load balancer says about whom it forwards, before anything else.
//!
//! Source: the PROXY protocol specification, section 2.2 (haproxy.org/download/3.0/doc/proxy-protocol.txt). Only the binary version is spoken, only
//! by addresses in `gateway.proxy_trusted`, and they must: a connection from them that begins otherwise is closed.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tokio::net::TcpStream;

const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// Signature, version and command, family and transport, length of the rest.
const FIXED: usize = 16;
/// Addresses and whatever else a load balancer adds; the specification has senders stay below 536 bytes in all.
const REST_MAX: usize = 2_048;

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    #[error("it does not begin with the signature of version 2")]
    Signature,
    #[error("version {0} is not 2")]
    Version(u8),
    #[error("command {0} is neither LOCAL nor PROXY")]
    Command(u8),
    #[error("family and transport {0:#04x} are not TCP over IPv4 or IPv6")]
    Family(u8),
    #[error("{0} bytes after the fixed part are more than {REST_MAX}")]
    TooLong(usize),
    #[error("{len} bytes are too few for the addresses, {wanted}")]
    TooShort { len: usize, wanted: usize },
}

/// The fixed part: its command, and how long the rest is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fixed {
    local: bool,
    family: u8,
    rest: usize,
}

fn fixed(bytes: &[u8; FIXED]) -> Result<Fixed, HeaderError> {
    if bytes[..12] != SIGNATURE {
        return Err(HeaderError::Signature);
    }
    let (version, command, family) = (bytes[12] >> 4, bytes[12] & 0xF, bytes[13]);
    if version != 2 {
        return Err(HeaderError::Version(version));
    }
    let local = match command {
        0 => true,
        1 => false,
        other => return Err(HeaderError::Command(other)),
    };
    let rest = usize::from(u16::from_be_bytes([bytes[14], bytes[15]]));
    if rest > REST_MAX {
        return Err(HeaderError::TooLong(rest));
    }
    Ok(Fixed {
        local,
        family,
        rest,
    })
}

/// Who is forwarded; `None` when the connection is the load balancer's own (a health check), or it does not know.
fn source(fixed: Fixed, rest: &[u8]) -> Result<Option<IpAddr>, HeaderError> {
    // The specification: the receiver of LOCAL must accept the connection and pass over what is said about addresses.
    if fixed.local {
        return Ok(None);
    }
    let wanted = match fixed.family {
        0x00 => return Ok(None), // unspecified
        0x11 => 12,              // two IPv4 addresses and two ports
        0x21 => 36,
        other => return Err(HeaderError::Family(other)),
    };
    if rest.len() < wanted {
        let len = rest.len();
        return Err(HeaderError::TooShort { len, wanted });
    }
    let address = match rest.first_chunk::<16>() {
        Some(address) if wanted == 36 => IpAddr::from(Ipv6Addr::from(*address)),
        _ => IpAddr::from(Ipv4Addr::new(rest[0], rest[1], rest[2], rest[3])),
    };
    Ok(Some(address.to_canonical()))
}

/// Reads the header and not a byte of what follows it.
pub async fn announced(socket: &TcpStream) -> io::Result<Option<IpAddr>> {
    let invalid = |error: HeaderError| io::Error::new(io::ErrorKind::InvalidData, error);
    let mut head = [0; FIXED];
    read_exact(socket, &mut head).await?;
    let fixed = fixed(&head).map_err(invalid)?;
    let mut rest = vec![0; fixed.rest];
    read_exact(socket, &mut rest).await?;
    source(fixed, &rest).map_err(invalid)
}

async fn read_exact(socket: &TcpStream, mut wanted: &mut [u8]) -> io::Result<()> {
    while !wanted.is_empty() {
        socket.readable().await?;
        match socket.try_read(wanted) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => wanted = &mut wanted[n..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Signature, then these bytes.
    fn read(hex: &str) -> Result<Option<String>, HeaderError> {
        let mut bytes = SIGNATURE.to_vec();
        bytes.extend(hex::decode(hex.replace(' ', "")).unwrap());
        let fixed = fixed(bytes.first_chunk().unwrap())?;
        let rest = &bytes[FIXED..];
        assert_eq!(rest.len(), fixed.rest, "the example is whole");
        Ok(source(fixed, rest)?.map(|address| address.to_string()))
    }

    // Bytes put together by hand from section 2.2.
    const V4: &str = "21 11 000c  cb007109 c0000201 3039 1e14"; // 203.0.113.9:12345 to 192.0.2.1:7700
    const V6: &str =
        "21 21 0024  20010db8000000010000000000000009 20010db8000000000000000000000001 3039 1e14";

    #[test]
    fn the_source_is_what_the_header_says() {
        assert_eq!(read(V4), Ok(Some("203.0.113.9".into())));
        assert_eq!(read(V6), Ok(Some("2001:db8:0:1::9".into())));
        // With an ALPN of three bytes behind the addresses.
        let more = "21 11 0012  cb007109 c0000201 3039 1e14  01 0003 616263";
        assert_eq!(read(more), Ok(Some("203.0.113.9".into())));
        let mapped = "21 21 0024  00000000000000000000ffffcb007109 00000000000000000000ffffc0000201 3039 1e14";
        assert_eq!(read(mapped), Ok(Some("203.0.113.9".into())));
    }

    #[test]
    fn a_health_check_and_an_unknown_source_announce_nobody() {
        assert_eq!(read("20 00 0000"), Ok(None));
        // LOCAL with addresses: they are passed over, whatever they are.
        assert_eq!(read("20 11 000c  cb007109 c0000201 3039 1e14"), Ok(None));
        assert_eq!(read("20 31 0001 00"), Ok(None));
        assert_eq!(read("21 00 0000"), Ok(None));
    }

    proptest::proptest! {
        #[test]
        fn no_header_is_read_beyond_its_end_or_without_its_signature(head: [u8; FIXED], rest in proptest::collection::vec(0u8.., 0..80)) {
            let mut signed = head;
            signed[..12].copy_from_slice(&SIGNATURE);
            for head in [head, signed] {
                if let Ok(fixed) = fixed(&head) {
                    assert!(head.starts_with(&SIGNATURE) && fixed.rest <= REST_MAX);
                    let _ = source(fixed, &rest[..fixed.rest.min(rest.len())]);
                }
            }
        }
    }

    #[test]
    fn what_is_malformed_is_refused() {
        assert_eq!(read("11 11 0000"), Err(HeaderError::Version(1)));
        assert_eq!(read("22 11 0000"), Err(HeaderError::Command(2)));
        assert_eq!(read("21 12 0000"), Err(HeaderError::Family(0x12)));
        assert_eq!(read("21 31 0000"), Err(HeaderError::Family(0x31)));
        assert_eq!(
            read("21 11 000b  cb007109 c0000201 3039 1e"),
            Err(HeaderError::TooShort {
                len: 11,
                wanted: 12
            })
        );
        assert_eq!(
            read("21 21 000c  cb007109 c0000201 3039 1e14"),
            Err(HeaderError::TooShort {
                len: 12,
                wanted: 36
            })
        );
        assert_eq!(read("21 11 ffff"), Err(HeaderError::TooLong(65_535)));
        assert_eq!(fixed(b"PROXY TCP4 203.0"), Err(HeaderError::Signature));
    }
}
