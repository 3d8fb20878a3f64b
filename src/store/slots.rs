//! Hash slots, as Redis Cluster computes them.

/// Slots of a Redis Cluster; the other topologies split the same number between their nodes.
pub const SLOTS: u16 = 16_384;

const CRC16_TABLE: [u16; 256] = crc16_table();

/// CRC16/XMODEM (polynomial 0x1021), as the Redis Cluster specification defines it.
const fn crc16_table() -> [u16; 256] {
    let mut table = [0u16; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 != 0 {
                (crc << 1) ^ 0x1021
            } else {
                crc << 1
            };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
}

fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (crc << 8) ^ CRC16_TABLE[usize::from((crc >> 8) as u8 ^ byte)]
    })
}

/// The slot of a key: of what stands between its first `{` and the next `}` if that is not empty, else of the whole key.
pub fn slot_of(key: &str) -> u16 {
    let tag = key
        .split_once('{')
        .and_then(|(_, rest)| rest.split_once('}'))
        .map(|(tag, _)| tag);
    crc16(tag.filter(|tag| !tag.is_empty()).unwrap_or(key).as_bytes()) % SLOTS
}

/// The node of a slot when `nodes` share all slots evenly in their order.
pub fn even_owner(slot: u16, nodes: usize) -> usize {
    usize::from(slot) * nodes / usize::from(SLOTS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_redis_cluster() {
        // The check value of CRC16/XMODEM, and slots printed by CLUSTER KEYSLOT of Redis 7.0.15.
        assert_eq!(crc16(b"123456789"), 0x31C3);
        for (key, slot) in [
            ("foo", 12182),
            ("foo{}{bar}", 8363),
            ("foo{{bar}}zap", 4015),
        ] {
            assert_eq!(slot_of(key), slot, "{key}");
        }
    }

    #[test]
    fn nodes_share_the_slots_evenly() {
        for nodes in 1..=9 {
            let mut counts = vec![0u16; nodes];
            (0..SLOTS).for_each(|slot| counts[even_owner(slot, nodes)] += 1);
            assert!(
                counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1,
                "{counts:?}"
            );
        }
    }
}
