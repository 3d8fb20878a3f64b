//! Every key in Redis is made here. All keys of a bucket share one hash tag, so each script stays in one slot.

use std::fmt;

use super::slots::slot_of;
use crate::rain::{RainId, UserId};

/// Hash tag of a bucket, `<rain>.<bucket>.<salt>`: the salt places the bucket on its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tag {
    pub rain: RainId,
    pub bucket: u32,
    pub salt: u32,
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.rain, self.bucket, self.salt)
    }
}

impl Tag {
    pub fn slot(&self) -> u16 {
        slot_of(&self.to_string())
    }

    /// The tag of `bucket` with the smallest salt whose slot `wanted` accepts. One salt in N fits when N nodes share the slots.
    pub fn place(rain: RainId, bucket: u32, wanted: impl Fn(u16) -> bool) -> Option<Tag> {
        (0..100_000)
            .map(|salt| Tag { rain, bucket, salt })
            .find(|tag| wanted(tag.slot()))
    }
}

/// The keys of one bucket.
#[derive(Clone, Debug)]
pub struct BucketKeys {
    /// HASH state, opens_at_ms, closes_at_ms, chunks, epoch, version, fingerprint, run_id, incarnation, hungry, winners (how many there were when it was shut)
    pub gate: String,
    /// LIST packet_id:cents
    pub pool: String,
    /// HASH user → packet_id:cents
    pub winners: String,
    /// LIST packet_id:cents:user, pushed on the left, taken from the right
    pub claims: String,
    /// ZSET claim → lease deadline ms
    pub leased: String,
    /// ZSET claim → due ms
    pub retry: String,
    /// HASH packet_id → attempts:deaths:last error
    pub attempts: String,
    /// HASH packet_id → the dead letter
    pub dead: String,
    /// HASH transfer id → target bucket, its incarnation and packets
    pub outbox: String,
    /// HASH transfer ids already received
    pub applied: String,
}

impl BucketKeys {
    pub fn new(tag: &Tag) -> BucketKeys {
        let key = |name: &str| format!("hb:{{{tag}}}:{name}");
        BucketKeys {
            gate: key("gate"),
            pool: key("pool"),
            winners: key("winners"),
            claims: key("claims"),
            leased: key("leased"),
            retry: key("retry"),
            attempts: key("attempts"),
            dead: key("dead"),
            outbox: key("outbox"),
            applied: key("applied"),
        }
    }

    /// LIST packet_id:cents: the pool that repair number `repair` puts together.
    pub fn rebuilt(&self, repair: u64) -> String {
        format!(
            "{}:rebuilt:{repair:016x}",
            self.pool.trim_end_matches(":pool")
        )
    }

    pub fn all(&self) -> [&str; 10] {
        [
            &self.gate,
            &self.pool,
            &self.winners,
            &self.claims,
            &self.leased,
            &self.retry,
            &self.attempts,
            &self.dead,
            &self.outbox,
            &self.applied,
        ]
    }
}

/// HASH: the published snapshot of a rain that gateways read.
pub fn rain(id: RainId) -> String {
    format!("hb:rain:{id}")
}

/// ZSET of rain ids, scored by themselves: the rains that a gateway should know.
pub const RAINS: &str = "hb:rains";

/// Channel on which a rain's id is published when its snapshot changes.
pub const RAIN_CHANNEL: &str = "hb:rains";

/// The two keys of a named lease share the name's tag: STRING fencing number and holder, which expires with the lease, and STRING the
/// fencing number given last, which outlives it.
pub fn lease(name: &str) -> [String; 2] {
    [
        format!("hb:lease:{{{name}}}"),
        format!("hb:lease:{{{name}}}:fence"),
    ]
}

/// The name of the lease of the steward that is at work on a rain.
pub fn rain_lease(id: RainId) -> String {
    format!("rain:{id}")
}

/// Channel on which the name of a lease is published when it is released.
pub const LEASE_CHANNEL: &str = "hb:leases";

/// Channel on which the steward at work on a rain says how many packets are left: `rain:packets:remaining`.
pub const PROGRESS_CHANNEL: &str = "hb:progress";

/// Channel on which settlers tell the gateways who was credited.
pub const CREDITED_CHANNEL: &str = "hb:credited";

/// ZSET message → message id.
///
/// One key and not two (ids, contents): a message says all in a few bytes, and a second key would cost half as much time again and twice the
/// memory. With a million winners that is 200 MB instead of 400.
pub fn inbox(user: &UserId) -> String {
    format!("hb:{{u:{user}}}:inbox")
}

/// STRING: a signed request with this nonce was seen; expires when its time would be refused anyway.
pub fn nonce(nonce: &str) -> String {
    format!("hb:nonce:{nonce}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::slots::even_owner;

    #[test]
    fn all_keys_of_a_bucket_lie_in_one_slot() {
        let tag = Tag {
            rain: RainId::new(7).unwrap(),
            bucket: 2,
            salt: 9,
        };
        for key in BucketKeys::new(&tag).all() {
            assert_eq!(slot_of(key), tag.slot(), "{key}");
        }
        let [held, fence] = lease("rain:7");
        assert_eq!(slot_of(&held), slot_of(&fence));
    }

    #[test]
    fn salts_put_bucket_b_on_node_b_mod_n() {
        let rain = RainId::new(41).unwrap();
        for nodes in [1, 2, 3, 8] {
            for bucket in 0..32 {
                let wanted = bucket as usize % nodes;
                let tag =
                    Tag::place(rain, bucket, |slot| even_owner(slot, nodes) == wanted).unwrap();
                assert_eq!(even_owner(tag.slot(), nodes), wanted);
            }
        }
    }
}
