//! How often somebody may guess a secret: per address and per key, in this process. Secrets have 256 bits, so this spares the server and
//! the log more than it protects the secrets; whoever has many addresses can keep a key from logging in here, but not from signing.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::super::problem::Problem;

/// Failed tries within [`WINDOW`] from its first one.
const PER_KEY: u32 = 10;
/// An office may be behind one address.
const PER_ADDRESS: u32 = 30;
const WINDOW: Duration = Duration::from_secs(60);
/// Keys and addresses remembered; about 150 bytes each, a key's text being at most [`KEY_MAX`] long. When all of them are fresh, nobody new logs in until the first is not.
const REMEMBERED_MAX: usize = 10_000;

/// Longer than the id of any key: such a text is refused before it is counted.
pub const KEY_MAX: usize = 64;

/// Tries that failed, or have not ended.
#[derive(Default)]
pub struct Logins(Mutex<Tries>);

#[derive(Default)]
struct Tries {
    by_key: HashMap<String, Count>,
    by_address: HashMap<IpAddr, Count>,
    /// When what is over was last forgotten.
    swept_at: Option<Instant>,
}

struct Count {
    since: Instant,
    tries: u32,
}

impl Logins {
    /// Counts a try before it is known how it ends, so that many at once are counted too.
    pub fn begin(&self, key: &str, address: IpAddr, now: Instant) -> Result<(), Problem> {
        let mut tries = self.0.lock().expect("no panic under this lock");
        tries.forget_old(now);
        let address = network(address);
        let wait = |wait: Duration| {
            let seconds = wait.as_secs() + 1;
            let detail = format!("too many logins failed: try again in {seconds} s");
            Problem::new(429, "too many logins", detail).retry_after(wait)
        };
        // The address first: whoever is over its own bound counts against no key.
        count(&mut tries.by_address, address, PER_ADDRESS, now).map_err(wait)?;
        count(&mut tries.by_key, key.to_owned(), PER_KEY, now).map_err(wait)
    }

    /// It was the right secret: the key's count begins again, and the address gets its try back.
    pub fn succeeded(&self, key: &str, address: IpAddr) {
        let mut tries = self.0.lock().expect("no panic under this lock");
        tries.by_key.remove(key);
        if let Some(count) = tries.by_address.get_mut(&network(address)) {
            count.tries = count.tries.saturating_sub(1);
        }
    }
}

impl Tries {
    /// Once a window, so that a login costs no walk through all of them.
    fn forget_old(&mut self, now: Instant) {
        let age = |since: Instant| now.saturating_duration_since(since);
        if self.swept_at.is_some_and(|at| age(at) < WINDOW) {
            return;
        }
        self.swept_at = Some(now);
        self.by_key.retain(|_, count| age(count.since) < WINDOW);
        self.by_address.retain(|_, count| age(count.since) < WINDOW);
    }
}

/// Counts one more, or says how long to wait.
fn count<K: Hash + Eq>(
    counts: &mut HashMap<K, Count>,
    of: K,
    most: u32,
    now: Instant,
) -> Result<(), Duration> {
    let over = |count: &Count| now.saturating_duration_since(count.since) >= WINDOW;
    if counts.len() >= REMEMBERED_MAX && !counts.contains_key(&of) {
        counts.retain(|_, count| !over(count));
        if counts.len() >= REMEMBERED_MAX {
            return Err(WINDOW);
        }
    }
    let fresh = Count {
        since: now,
        tries: 0,
    };
    let known = counts.entry(of).or_insert(fresh);
    if over(known) {
        *known = Count {
            since: now,
            tries: 0,
        };
    }
    if known.tries >= most {
        return Err(WINDOW - now.saturating_duration_since(known.since));
    }
    known.tries += 1;
    Ok(())
}

/// One subscriber of IPv6 has a /64.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => {
            let mut segments = address.segments();
            segments[4..].fill(0);
            IpAddr::from(segments)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_guessed_ten_times_a_minute_and_an_address_guesses_thirty_times() {
        let logins = Logins::default();
        let start = Instant::now();
        let here: IpAddr = "192.0.2.1".parse().unwrap();
        let there: IpAddr = "2001:db8::1".parse().unwrap();
        let beside: IpAddr = "2001:db8::2".parse().unwrap();
        for _ in 0..10 {
            logins.begin("a", here, start).unwrap();
        }
        assert!(logins.begin("a", here, start).is_err());
        assert!(logins.begin("a", there, start).is_err(), "from anywhere");
        logins.begin("b", here, start).unwrap();
        let later = start + WINDOW;
        logins.begin("a", here, later).unwrap();
        for n in 0..30 {
            let _ = logins.begin(&n.to_string(), there, later);
        }
        assert!(logins.begin("c", beside, later).is_err(), "the same /64");
        logins.begin("c", here, later).unwrap();
    }

    #[test]
    fn what_is_over_is_forgotten() {
        let logins = Logins::default();
        let start = Instant::now();
        for n in 0..20u8 {
            let address = IpAddr::from([192, 0, 2, n]);
            logins.begin(&n.to_string(), address, start).unwrap();
        }
        let here = IpAddr::from([192, 0, 2, 99]);
        logins.begin("late", here, start + WINDOW).unwrap();
        let tries = logins.0.lock().unwrap();
        assert_eq!((tries.by_key.len(), tries.by_address.len()), (1, 1));
    }

    #[test]
    fn who_logs_in_is_not_counted() {
        let logins = Logins::default();
        let (now, here) = (Instant::now(), IpAddr::from([127, 0, 0, 1]));
        for _ in 0..100 {
            logins.begin("a", here, now).unwrap();
            logins.succeeded("a", here);
        }
    }
}
