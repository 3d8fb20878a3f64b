//! How long a bucket that had no claims is left alone.
//!
//! Where somebody can win the next look follows at once. Where nobody can, each look that finds nothing doubles the rest, up to
//! [`REST_MAX`]: a day's rains may be loaded long before they open. A rest is over early when the rain's record has changed, when claims were
//! found in another bucket of the rain, and when another process answers for the node.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::rain::{Rain, State};
use crate::store::admission::CLOCKS_APART_MAX_MS;
use crate::store::keys::Tag;

/// How often the rains are listed again, should no news of them have come.
pub const LIST_EVERY: Duration = Duration::from_millis(250);
/// A rain that is over gets no new claims: late ones are retries and expired leases.
const QUIET_WAIT: Duration = Duration::from_millis(500);
/// The longest rest: a settler looks 12 times a minute at a bucket in which nobody can win, instead of 3,000 times. It is also the longest
/// that a claim waits which should not be there, and of which nobody told.
const REST_MAX: Duration = Duration::from_secs(5);
/// From so long before its opening time a rain is looked at as one that is open: every rest is over by then.
const AWAKE_AHEAD: Duration = Duration::from_secs(10);

/// The opening is by the nodes' clocks, what is done here by this machine's.
const _: () = assert!(
    AWAKE_AHEAD.as_millis()
        > REST_MAX.as_millis() + LIST_EVERY.as_millis() + CLOCKS_APART_MAX_MS as u128
);

/// What a look at a bucket found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    Claims,
    /// Claims that others hold, or that are not due yet.
    UnderWay,
    Nothing,
    /// Nobody knows: the node is away.
    Failed,
}

/// How long buckets of a rain rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// After the first look that found nothing.
    first: Duration,
    /// After many.
    most: Duration,
}

impl Pace {
    /// Of a rain as it was listed last; `None`: it is not listed any more. No rest is shorter than `idle_wait`.
    pub fn of(rain: Option<&Rain>, idle_wait: Duration, now_ms: i64) -> Pace {
        let opening = rain.map(|rain| (rain.state, rain.window.opens_at_ms));
        Pace::at(opening, idle_wait, now_ms)
    }

    fn at(rain: Option<(State, Option<i64>)>, idle_wait: Duration, now_ms: i64) -> Pace {
        let (first, most) = match rain {
            Some((State::Open, _)) => (idle_wait, idle_wait),
            // Its gates open by the nodes' clocks, whether or not anybody records it.
            Some((State::Ready, Some(opens_at_ms)))
                if opens_at_ms.saturating_sub(now_ms) <= AWAKE_AHEAD.as_millis() as i64 =>
            {
                (idle_wait, idle_wait)
            }
            Some((State::Created | State::Ready | State::Paused, _)) => (idle_wait, REST_MAX),
            Some((State::Closed | State::Refunded | State::Finished, _)) | None => {
                (QUIET_WAIT, REST_MAX)
            }
        };
        let first = first.max(idle_wait);
        Pace {
            first,
            most: most.max(first),
        }
    }
}

struct Rest {
    until: Instant,
    length: Duration,
    /// Who had answered.
    process: Option<String>,
}

/// The buckets that rest.
#[derive(Default)]
pub struct Rests(HashMap<Tag, Rest>);

impl Rests {
    /// Whether a bucket rests; `process` is who answers for it now.
    pub fn has(&self, tag: &Tag, process: Option<&str>, now: Instant) -> bool {
        self.0
            .get(tag)
            .is_some_and(|rest| now < rest.until && rest.process.as_deref() == process)
    }

    /// A bucket was looked at. `process` is who answered for it before the look: should it be another one by now, the rest is over at once.
    pub fn looked(
        &mut self,
        tag: Tag,
        process: Option<String>,
        seen: Seen,
        pace: Pace,
        now: Instant,
    ) {
        let before = self.0.remove(&tag).map(|rest| rest.length);
        let length = match seen {
            Seen::Claims => {
                // Where nobody should win somebody has: perhaps in the rain's other buckets, too.
                if pace.most > pace.first {
                    self.wake(|other| other.rain == tag.rain);
                }
                return;
            }
            Seen::UnderWay | Seen::Failed => pace.first,
            Seen::Nothing => before.map_or(pace.first, |length| {
                (length * 2).clamp(pace.first, pace.most)
            }),
        };
        let rest = Rest {
            until: now + length,
            length,
            process,
        };
        self.0.insert(tag, rest);
    }

    /// These buckets are looked at next.
    pub fn wake(&mut self, which: impl Fn(&Tag) -> bool) {
        self.0.retain(|tag, _| !which(tag));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rain::RainId;

    const IDLE: Duration = Duration::from_millis(20);
    /// ms since 1970.
    const NOW: i64 = 1_800_000_000_000;

    fn pace(state: State, opens_in: Option<Duration>) -> Pace {
        let opens_at_ms = opens_in.map(|wait| NOW + wait.as_millis() as i64);
        Pace::at(Some((state, opens_at_ms)), IDLE, NOW)
    }

    fn tag(rain: u32, bucket: u32) -> Tag {
        Tag {
            rain: rain.to_string().parse::<RainId>().unwrap(),
            bucket,
            salt: 0,
        }
    }

    #[test]
    fn buckets_rest_long_only_where_nobody_can_win() {
        let always = Pace {
            first: IDLE,
            most: IDLE,
        };
        let (soon, later) = (AWAKE_AHEAD, AWAKE_AHEAD + Duration::from_millis(1));
        assert_eq!(pace(State::Open, None), always);
        assert_eq!(pace(State::Ready, Some(soon)), always);
        assert_eq!(pace(State::Ready, Some(later)).most, REST_MAX);
        assert_eq!(pace(State::Ready, None).most, REST_MAX);
        assert_eq!(pace(State::Paused, None).most, REST_MAX);
        assert_eq!(pace(State::Closed, None).first, QUIET_WAIT);
        assert_eq!(Pace::at(None, IDLE, NOW).first, QUIET_WAIT);
        let slow = Duration::from_secs(10);
        let open = Pace::at(Some((State::Open, None)), slow, NOW);
        assert_eq!((open.first, open.most), (slow, slow), "as the settings say");
    }

    #[test]
    fn looks_that_find_nothing_become_rare_and_any_claim_ends_that() {
        let (mut rests, mut now) = (Rests::default(), Instant::now());
        let dormant = pace(State::Ready, None);
        let bucket = tag(7, 0);
        let mut waits = vec![];
        for _ in 0..11 {
            rests.looked(bucket, None, Seen::Nothing, dormant, now);
            let rested = rests.0[&bucket].length;
            assert!(rests.has(&bucket, None, now + rested - Duration::from_millis(1)));
            now += rested;
            assert!(!rests.has(&bucket, None, now));
            waits.push(rested.as_millis());
        }
        let doubled = [20, 40, 80, 160, 320, 640, 1280, 2560, 5000, 5000, 5000];
        assert_eq!(waits, doubled);
        rests.looked(bucket, None, Seen::UnderWay, dormant, now);
        assert_eq!(rests.0[&bucket].length, IDLE, "somebody has claims of it");
        rests.looked(bucket, None, Seen::Nothing, dormant, now);
        rests.looked(tag(7, 1), None, Seen::Nothing, dormant, now);
        rests.looked(tag(8, 0), None, Seen::Nothing, dormant, now);
        rests.looked(bucket, None, Seen::Claims, dormant, now);
        assert!(!rests.has(&bucket, None, now));
        assert!(!rests.has(&tag(7, 1), None, now), "of the same rain");
        assert!(rests.has(&tag(8, 0), None, now), "of another one");
    }

    #[test]
    fn a_rest_ends_when_another_process_answers_and_when_somebody_says_so() {
        let (mut rests, now) = (Rests::default(), Instant::now());
        let by = |process: &str| Some(process.to_owned());
        let dormant = pace(State::Ready, None);
        rests.looked(tag(7, 0), by("one"), Seen::Nothing, dormant, now);
        assert!(rests.has(&tag(7, 0), Some("one"), now));
        assert!(!rests.has(&tag(7, 0), Some("two"), now));
        assert!(!rests.has(&tag(7, 0), None, now), "the node is away");
        rests.looked(tag(8, 0), by("one"), Seen::Nothing, dormant, now);
        rests.wake(|tag| tag.rain.get() == 7);
        assert!(!rests.has(&tag(7, 0), Some("one"), now));
        assert!(rests.has(&tag(8, 0), Some("one"), now));
    }
}
