//! Load balancers that say whom they forward.

use hongbao::wire::CloseCode;
use hongbao::wire::server_frame::Message;

use crate::support::server::Server;
use crate::support::wire::Raw;

const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

/// A PROXY header for TCP over IPv4 from this address.
fn v4(address: [u8; 4]) -> Vec<u8> {
    let rest: &[u8] = &[&address[..], &[192, 0, 2, 1], &[0x30, 0x39, 0x1E, 0x14]].concat();
    [SIGNATURE, &[0x21, 0x11, 0, 12], rest].concat()
}

/// Likewise over IPv6, from this host of 2001:db8:0:<network>::/64.
pub fn v6(network: u8, host: u8) -> Vec<u8> {
    let mut source = [0; 16];
    source[..4].copy_from_slice(&[0x20, 0x01, 0x0D, 0xB8]);
    (source[7], source[15]) = (network, host);
    [
        SIGNATURE,
        &[0x21, 0x21, 0, 36],
        &source,
        &[0; 16],
        &[0x30, 0x39, 0x1E, 0x14],
    ]
    .concat()
}

async fn forwarded(server: &Server, header: &[u8]) -> Raw {
    let mut raw = Raw::connect(server).await;
    raw.bytes(header).await;
    raw
}

async fn is_welcome(server: &Server, raw: &mut Raw, user: &str) -> bool {
    matches!(raw.hello(&server.token(user)).await, Message::Welcome(_))
}

async fn refused(server: &Server, reason: &str) -> f64 {
    let name = format!("hongbao_connections_refused_total{{reason=\"{reason}\"}}");
    server.metric(&name).await
}

#[tokio::test]
async fn limits_per_address_count_whom_a_trusted_proxy_announces() {
    let server = Server::start(&[
        "gateway.proxy_trusted=[\"127.0.0.0/8\", \"::1\"]",
        "gateway.connections_per_address_max=1",
    ]);
    let mut anna = forwarded(&server, &v4([203, 0, 113, 9])).await;
    assert!(is_welcome(&server, &mut anna, "anna").await);
    let mut ben = forwarded(&server, &v4([203, 0, 113, 10])).await;
    assert!(is_welcome(&server, &mut ben, "ben").await);
    let mut second = forwarded(&server, &v4([203, 0, 113, 9])).await;
    assert_eq!(second.gone().await.0, CloseCode::TooManyConnections);
    let mut carl = forwarded(&server, &v6(1, 1)).await;
    assert!(is_welcome(&server, &mut carl, "carl").await);
    let mut neighbour = forwarded(&server, &v6(1, 2)).await;
    assert_eq!(neighbour.gone().await.0, CloseCode::TooManyConnections);
    let mut dora = forwarded(&server, &v6(2, 1)).await;
    assert!(is_welcome(&server, &mut dora, "dora").await);
    assert_eq!(refused(&server, "address_full").await, 2.0);

    // A health check is the proxy itself. The header may come in pieces, and the first frame right behind it.
    let mut check = Raw::connect(&server).await;
    let local = [SIGNATURE, &[0x20, 0, 0, 0]].concat();
    for piece in local.chunks(5) {
        check.bytes(piece).await;
    }
    assert!(is_welcome(&server, &mut check, "check").await);
}

#[tokio::test]
async fn a_trusted_proxy_must_announce_and_in_time_and_well_formed() {
    let server = Server::start(&[
        "gateway.proxy_trusted=[\"127.0.0.1\"]",
        "gateway.handshake_timeout_ms=200",
    ]);
    let mut raw = Raw::connect(&server).await;
    raw.bytes(&[0, 0, 0, 3, 1, 2, 3, 0, 0, 0, 3, 1, 2, 3, 0, 0, 0])
        .await;
    assert!(raw.dropped().await);
    let mut lie = v4([203, 0, 113, 9]);
    lie[15] = 4; // an IPv4 source of four bytes in all
    let too_long = [SIGNATURE, &[0x21, 0x11, 0xFF, 0xFF]].concat();
    let version_1 = b"PROXY TCP4 203.0.113.9 192.0.2.1 12345 7700\r\n".to_vec();
    for header in [lie, too_long, version_1] {
        let mut raw = forwarded(&server, &header).await;
        assert!(raw.dropped().await);
    }
    assert_eq!(refused(&server, "proxy_header").await, 4.0);
    let mut cut = forwarded(&server, &v4([203, 0, 113, 9])[..20]).await;
    assert!(cut.dropped().await);
    assert_eq!(refused(&server, "late").await, 1.0);

    // Nobody else is believed: the signature reads as the length of a frame that is far too long.
    let mut stranger = Raw::connect_from(&server, "127.0.0.77").await;
    stranger.bytes(&v4([203, 0, 113, 9])).await;
    let (code, reason) = stranger.gone().await;
    assert_eq!(code, CloseCode::FrameTooLong);
    assert!(reason.contains("gateway.proxy_trusted"), "{reason}");
    let mut stranger = Raw::connect_from(&server, "127.0.0.77").await;
    assert!(is_welcome(&server, &mut stranger, "anna").await);
}
