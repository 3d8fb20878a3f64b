use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::split::Split;
use super::{Parts, RainId, State};

/// How durable a win is before `WON` is sent (DESIGN.md section 6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Durability {
    /// The script has run.
    #[default]
    Memory,
    /// The node's append-only file is on disk.
    Fsync,
    /// This many replicas have acknowledged.
    Replicas(u8),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("durability \"{0}\" is not memory, fsync or replicas:N with N from 1 to 9")]
pub struct ParseDurabilityError(String);

impl FromStr for Durability {
    type Err = ParseDurabilityError;
    fn from_str(text: &str) -> Result<Durability, ParseDurabilityError> {
        match text {
            "memory" => Ok(Durability::Memory),
            "fsync" => Ok(Durability::Fsync),
            _ => match text.strip_prefix("replicas:").map(str::parse) {
                Some(Ok(n @ 1..=9)) => Ok(Durability::Replicas(n)),
                _ => Err(ParseDurabilityError(text.to_owned())),
            },
        }
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Durability::Memory => f.write_str("memory"),
            Durability::Fsync => f.write_str("fsync"),
            Durability::Replicas(n) => write!(f, "replicas:{n}"),
        }
    }
}

impl TryFrom<String> for Durability {
    type Error = ParseDurabilityError;
    fn try_from(text: String) -> Result<Durability, ParseDurabilityError> {
        text.parse()
    }
}

impl From<Durability> for String {
    fn from(durability: Durability) -> String {
        durability.to_string()
    }
}

/// When grabs may win. Without an opening time the rain waits for an operator to open it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// ms since 1970.
    pub opens_at_ms: Option<i64>,
    /// How long it stays open, at least 1 ms.
    pub duration_ms: i64,
}

impl Window {
    /// ms since 1970; unknown until the opening time is known.
    pub fn closes_at_ms(&self) -> Option<i64> {
        self.opens_at_ms
            .map(|opens| opens.saturating_add(self.duration_ms))
    }
}

/// A secret of a rain that its grabs must carry. 32 hex digits as text.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct GrabKey(pub [u8; 16]);

impl GrabKey {
    /// In a time that does not tell how much of it is right.
    pub fn opens_with(&self, given: &[u8]) -> bool {
        use subtle::ConstantTimeEq;
        self.0.ct_eq(given).into()
    }
}

/// Not in a log before it is told.
impl fmt::Debug for GrabKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GrabKey(…)")
    }
}

impl TryFrom<String> for GrabKey {
    type Error = hex::FromHexError;
    fn try_from(text: String) -> Result<GrabKey, hex::FromHexError> {
        let mut key = [0; 16];
        hex::decode_to_slice(text, &mut key)?;
        Ok(GrabKey(key))
    }
}

impl From<GrabKey> for String {
    fn from(key: GrabKey) -> String {
        hex::encode(key.0)
    }
}

/// A rain as an operator asks for it.
#[derive(Clone, Debug, PartialEq)]
pub struct NewRain {
    pub title: String,
    /// Who watches: pushes of this rain go to the sessions in this room.
    pub room: String,
    pub sponsor: String,
    pub split: Split,
    pub window: Window,
    pub durability: Durability,
    /// After closing time, how long until what is left goes back to the sponsor by itself, ms.
    pub refund_after_ms: i64,
    /// A grab must carry a key that is first told when the rain opens.
    pub key_required: bool,
    /// From when on the room is told of it, ms since 1970; without it as soon as the rain is known.
    pub announce_at_ms: Option<i64>,
}

/// A rain as it is recorded: SQL holds it, steward and settlers work from it.
#[derive(Clone, Debug, PartialEq)]
pub struct Rain {
    pub id: RainId,
    pub title: String,
    pub room: String,
    pub sponsor: String,
    /// Everything about the allocation follows from them. Their seeds are secret until the rain is closed.
    pub parts: Parts,
    /// One salt per bucket: they place the buckets on the nodes.
    pub salts: Vec<u32>,
    pub window: Window,
    pub durability: Durability,
    pub refund_after_ms: i64,
    pub key_required: bool,
    /// From when on the room is told of it, ms since 1970; without it as soon as the rain is known.
    pub announce_at_ms: Option<i64>,
    pub state: State,
    /// All packets were found to be won. Holds until a top-up.
    pub sold_out: bool,
    /// Grows with every recorded change; the published snapshot carries it.
    pub version: i64,
    pub created_at_ms: i64,
}

impl Rain {
    /// What a grab must carry, if anything: from the seed, which is random, and secret until the rain is closed.
    pub fn grab_key(&self) -> Option<GrabKey> {
        use sha2::{Digest, Sha256};
        let hash = || {
            Sha256::new()
                .chain_update(b"grab key")
                .chain_update(self.parts.first().seed.0)
        };
        self.key_required.then(|| {
            GrabKey(
                hash().finalize()[..16]
                    .try_into()
                    .expect("16 bytes are 16 bytes"),
            )
        })
    }

    /// Marks the rain's buckets in Redis, so that those of another ledger's rain with the same number are told apart. The seed stays
    /// secret: it cannot be found from its hash.
    pub fn fingerprint(&self) -> String {
        use sha2::{Digest, Sha256};
        hex::encode(&Sha256::digest(self.parts.first().seed.0)[..8])
    }
}
