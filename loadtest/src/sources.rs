use std::net::{IpAddr, Ipv4Addr};

/// Addresses at most: 127.0.0.2 to 127.0.0.251.
pub const SOURCES_MAX: u32 = 250;
/// Sessions per address when nobody says how many: a storm from one address would run out of ports.
const PER_SOURCE: usize = 2_000;

/// The loopback addresses that sessions come from. 127.0.0.1 is left to everybody else on this machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Sources {
    /// One more for each 2,000 sessions.
    #[default]
    AsNeeded,
    /// This many, in turn; at most [`SOURCES_MAX`].
    InTurn(u32),
}

impl Sources {
    /// From the command line, where 0 leaves it to us.
    pub fn asked(count: u32) -> Sources {
        match count {
            0 => Sources::AsNeeded,
            count => Sources::InTurn(count.min(SOURCES_MAX)),
        }
    }

    pub fn of(self, session: usize) -> IpAddr {
        let turn = match self {
            Sources::AsNeeded => session / PER_SOURCE % SOURCES_MAX as usize,
            Sources::InTurn(count) => session % count as usize,
        };
        IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2 + turn as u8))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_are_spread_over_as_many_addresses_as_asked() {
        let last = |sources: Sources, session| match sources.of(session) {
            IpAddr::V4(address) => address.octets()[3],
            IpAddr::V6(address) => panic!("{address}"),
        };
        let asked = Sources::asked(3);
        assert_eq!([0, 1, 2, 3].map(|n| last(asked, n)), [2, 3, 4, 2]);
        let needed = Sources::asked(0);
        assert_eq!(
            [0, 1_999, 2_000, 4_000].map(|n| last(needed, n)),
            [2, 2, 3, 4]
        );
        assert_eq!(last(needed, 2_000 * 250), 2, "then from the first again");
        assert_eq!(last(Sources::asked(250), 249), 251);
    }
}
