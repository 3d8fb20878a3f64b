use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    #[error("rain id \"{0}\" is not a number from 1 to {max}", max = RainId::MAX)]
    Rain(String),
    #[error("packet id \"{0}\" is not a number from {min} to {max}", min = 1u64 << 32, max = i64::MAX)]
    Packet(String),
    #[error("user id {0:?} must be 1 to {max} characters from A-Z a-z 0-9 . _ @ : + = / -", max = UserId::MAX_BYTES)]
    User(String),
}

/// A rain: 1 to 2³¹−1, so that every packet id is a positive SQL BIGINT.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct RainId(u32);

impl RainId {
    pub const MAX: u32 = i32::MAX as u32;

    pub fn new(id: u32) -> Result<RainId, IdError> {
        if id == 0 || id > Self::MAX {
            return Err(IdError::Rain(id.to_string()));
        }
        Ok(RainId(id))
    }

    pub fn get(self) -> u32 {
        self.0
    }

    /// The packet at `index` of this rain's allocation.
    pub fn packet(self, index: u32) -> PacketId {
        PacketId(u64::from(self.0) << 32 | u64::from(index))
    }
}

impl TryFrom<u32> for RainId {
    type Error = IdError;
    fn try_from(id: u32) -> Result<RainId, IdError> {
        RainId::new(id)
    }
}

impl From<RainId> for u32 {
    fn from(id: RainId) -> u32 {
        id.0
    }
}

impl FromStr for RainId {
    type Err = IdError;
    fn from_str(text: &str) -> Result<RainId, IdError> {
        let id = text.parse().map_err(|_| IdError::Rain(text.to_owned()))?;
        RainId::new(id).map_err(|_| IdError::Rain(text.to_owned()))
    }
}

impl fmt::Display for RainId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A packet: `rain_id << 32 | index`. Decimal text outside Rust, since a Lua or JavaScript number loses it above 2⁵³.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PacketId(u64);

impl PacketId {
    pub fn new(id: u64) -> Result<PacketId, IdError> {
        RainId::new((id >> 32) as u32)
            .map(|_| PacketId(id))
            .map_err(|_| IdError::Packet(id.to_string()))
    }

    pub fn get(self) -> u64 {
        self.0
    }

    pub fn rain(self) -> RainId {
        RainId((self.0 >> 32) as u32)
    }

    /// The packet's place in its rain's allocation, from 0.
    pub fn index(self) -> u32 {
        self.0 as u32
    }
}

impl FromStr for PacketId {
    type Err = IdError;
    fn from_str(text: &str) -> Result<PacketId, IdError> {
        let id = text.parse().map_err(|_| IdError::Packet(text.to_owned()))?;
        PacketId::new(id)
    }
}

impl fmt::Display for PacketId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl Serialize for PacketId {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PacketId {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<PacketId, D::Error> {
        String::deserialize(from)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

/// A user, as the quiz's own login service names them (the token's `sub`). Cheap to clone.
///
/// The alphabet leaves out what has a meaning somewhere on the way: braces (hash tags), blanks, quotes, commas (exports).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct UserId(Arc<str>);

impl UserId {
    pub const MAX_BYTES: usize = 64;

    /// Whether `id` may name a user.
    pub fn fits(id: &str) -> bool {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || b"._@:+=/-".contains(&b);
        !id.is_empty() && id.len() <= Self::MAX_BYTES && id.bytes().all(allowed)
    }

    pub fn new(id: &str) -> Result<UserId, IdError> {
        if !Self::fits(id) {
            let shown: String = id.chars().take(Self::MAX_BYTES + 1).collect();
            return Err(IdError::User(shown));
        }
        Ok(UserId(id.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for UserId {
    type Error = IdError;
    fn try_from(id: String) -> Result<UserId, IdError> {
        UserId::new(&id)
    }
}

impl From<UserId> for String {
    fn from(id: UserId) -> String {
        id.0.as_ref().to_owned()
    }
}

impl FromStr for UserId {
    type Err = IdError;
    fn from_str(id: &str) -> Result<UserId, IdError> {
        UserId::new(id)
    }
}

impl fmt::Display for UserId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_id_is_its_rain_and_index() {
        let packet = RainId::new(7).unwrap().packet(41);
        assert_eq!(packet.get(), 30_064_771_113); // 7 * 4294967296 + 41
        assert_eq!((packet.rain().get(), packet.index()), (7, 41));
        assert_eq!("30064771113".parse::<PacketId>().unwrap(), packet);
    }

    #[test]
    fn ids_out_of_range_are_refused_by_name() {
        assert!("0".parse::<RainId>().is_err());
        assert!(
            "2147483648"
                .parse::<RainId>()
                .unwrap_err()
                .to_string()
                .contains("2147483648")
        );
        assert!("41".parse::<PacketId>().is_err(), "rain 0 does not exist");
        assert!(PacketId::new(u64::MAX).is_err());
        for user in ["", "two words", "{tag}", "a,b", "\"", &"x".repeat(65)] {
            assert!(UserId::new(user).is_err(), "{user}");
        }
        assert!(UserId::new("anna.li+1@example.com:ab/9=").is_ok());
    }
}
