//! How a total becomes packets.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::Cents;

/// 32 secret bytes from the operating system's generator: the whole allocation of a rain follows from them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Seed(pub [u8; 32]);

/// Never printed: whoever knows the seed knows where the big packets are.
impl fmt::Debug for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seed(secret)")
    }
}

/// One row of a prize table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tier {
    pub count: u32,
    pub cents: Cents,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    Even,
    DoubleMean,
    LineCut,
    Tiers(Vec<Tier>),
}

/// What is to be split, and how.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Split {
    pub rule: Rule,
    pub total: Cents,
    pub packets: u32,
    pub min: Cents,
    pub max: Cents,
}
