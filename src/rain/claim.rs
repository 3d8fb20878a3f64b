use std::fmt;
use std::str::FromStr;

use super::{Cents, PacketId, UserId};

/// One pre-split amount. As text `packet_id:cents`, the form it has in a pool and in the winners' hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Packet {
    pub id: PacketId,
    pub cents: Cents,
}

/// A won packet whose credit has not been confirmed. As text `packet_id:cents:user`, the form it has in Redis.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Claim {
    pub packet: Packet,
    pub user: UserId,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{text}\" is not a {kind}", kind = if *.claim { "claim (packet_id:cents:user)" } else { "packet (packet_id:cents)" })]
pub struct ParseClaimError {
    text: String,
    claim: bool,
}

fn parse_packet(id: &str, cents: &str) -> Option<Packet> {
    let cents: i64 = cents.parse().ok()?;
    let id = id.parse().ok()?;
    (cents > 0).then_some(Packet {
        id,
        cents: Cents(cents),
    })
}

impl FromStr for Packet {
    type Err = ParseClaimError;
    fn from_str(text: &str) -> Result<Packet, ParseClaimError> {
        text.split_once(':')
            .and_then(|(id, cents)| parse_packet(id, cents))
            .ok_or_else(|| ParseClaimError {
                text: text.to_owned(),
                claim: false,
            })
    }
}

impl fmt::Display for Packet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.id, self.cents.0)
    }
}

impl FromStr for Claim {
    type Err = ParseClaimError;
    fn from_str(text: &str) -> Result<Claim, ParseClaimError> {
        let mut parts = text.splitn(3, ':'); // a user id may hold colons itself
        let mut claim = || {
            let packet = parse_packet(parts.next()?, parts.next()?)?;
            let user = UserId::new(parts.next()?).ok()?;
            Some(Claim { packet, user })
        };
        claim().ok_or_else(|| ParseClaimError {
            text: text.to_owned(),
            claim: true,
        })
    }
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.packet, self.user)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_reads_back_as_written_even_with_colons_in_the_user() {
        let text = "30064771113:888:app:anna";
        let claim: Claim = text.parse().unwrap();
        assert_eq!(claim.user.as_str(), "app:anna");
        assert_eq!(claim.packet.cents, Cents(888));
        assert_eq!(claim.to_string(), text);
    }

    #[test]
    fn broken_claims_are_refused() {
        for text in [
            "",
            "1:2:u",
            "30064771113:0:u",
            "30064771113:-5:u",
            "30064771113:5:",
            "30064771113:5",
            "x:5:u",
            "30064771113:1e3:u",
        ] {
            assert!(text.parse::<Claim>().is_err(), "{text}");
        }
    }
}
