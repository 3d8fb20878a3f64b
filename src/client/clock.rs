use tokio::time::Instant;

/// Estimates the server's clock by Cristian's method: a reply that took *rtt* was stamped somewhere within it, so half of it is the error
/// at most; the sample with the smallest error is kept.
///
/// Anchored to this machine's monotonic clock: its wall clock may be wrong, or set while we run.
#[derive(Debug, Default)]
pub(super) struct ServerClock {
    best: Option<Sample>,
}

#[derive(Debug, Clone, Copy)]
struct Sample {
    received: Instant,
    /// The server's time at `received`.
    server_us: i64,
    /// Half the round trip.
    error_us: i64,
}

/// How much two crystals may drift apart, parts per million: a sample's error grows with its age until a newer one is better.
const DRIFT_PPM: i64 = 100;
/// A stamp is cut to whole milliseconds: on average it is half a one late, and wrong by half a one at most.
const STAMP_ERROR_US: i64 = 500;

impl Sample {
    fn error_us_at(&self, now: Instant) -> i64 {
        let age_us = now.duration_since(self.received).as_micros() as i64;
        self.error_us + age_us * DRIFT_PPM / 1_000_000
    }

    fn server_us_at(&self, now: Instant) -> i64 {
        self.server_us
            .saturating_add(now.duration_since(self.received).as_micros() as i64)
    }
}

impl ServerClock {
    /// A request sent at `sent` was answered at `received` with the stamp `server_time_ms`; 0 means that the server set none.
    pub fn observe(&mut self, sent: Instant, received: Instant, server_time_ms: i64) {
        if server_time_ms <= 0 {
            return;
        }
        let error_us = received.duration_since(sent).as_micros() as i64 / 2;
        let sample = Sample {
            received,
            server_us: server_time_ms
                .saturating_mul(1_000)
                .saturating_add(STAMP_ERROR_US + error_us),
            error_us,
        };
        let keep = self.best.is_some_and(|best| {
            let apart_us = best.server_us_at(received).abs_diff(sample.server_us) as i64;
            let possible_us = best.error_us_at(received) + sample.error_us + 2 * STAMP_ERROR_US;
            // Further apart than both errors allow: the clock was set, or another gateway answers. The newer one is right.
            apart_us <= possible_us && best.error_us_at(received) < sample.error_us
        });
        if !keep {
            self.best = Some(sample);
        }
    }

    /// ms since 1970, `None` before the first sample.
    pub fn now_ms(&self, now: Instant) -> Option<i64> {
        self.best.map(|best| best.server_us_at(now) / 1_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_quickest_reply_sets_the_clock() {
        let start = Instant::now();
        let mut clock = ServerClock::default();
        assert_eq!(clock.now_ms(start), None);
        // Sent at 0, stamped 1,000,030 at an unknown moment, received at 100: about 1,000,080 at that moment.
        clock.observe(start, start + 100 * MS, 1_000_030);
        assert_eq!(clock.now_ms(start + 100 * MS), Some(1_000_080));
        // A round trip of 4 ms says more: stamped 1,000,202 at 202 ms.
        clock.observe(start + 200 * MS, start + 204 * MS, 1_000_202);
        assert_eq!(clock.now_ms(start + 204 * MS), Some(1_000_204));
        // A slow one does not spoil it.
        clock.observe(start + 300 * MS, start + 390 * MS, 1_000_301);
        assert_eq!(clock.now_ms(start + 1_000 * MS), Some(1_001_000));
    }

    #[test]
    fn a_clock_that_was_set_is_followed_at_once() {
        let start = Instant::now();
        let mut clock = ServerClock::default();
        clock.observe(start, start + 2 * MS, 5_000_001);
        clock.observe(start + 10 * MS, start + 30 * MS, 9_000_000);
        assert_eq!(clock.now_ms(start + 30 * MS), Some(9_000_010));
    }

    #[test]
    fn an_old_sample_gives_way_when_it_may_have_drifted_further() {
        let start = Instant::now();
        let mut clock = ServerClock::default();
        clock.observe(start, start + 2 * MS, 1_000_001);
        // 100 ppm of 10 minutes are 60 ms: a 20 ms round trip is now the better witness.
        let later = start + Duration::from_secs(600);
        clock.observe(later, later + 20 * MS, 1_600_030);
        assert_eq!(clock.now_ms(later + 20 * MS), Some(1_600_040));
    }

    #[test]
    fn a_stamp_that_was_not_set_is_no_sample() {
        let mut clock = ServerClock::default();
        clock.observe(Instant::now(), Instant::now(), 0);
        assert_eq!(clock.now_ms(Instant::now()), None);
    }
}
