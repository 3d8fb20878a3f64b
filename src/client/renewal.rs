//! When a session must show a new token. No I/O.

use std::time::Duration;

use tokio::time::Instant;

/// A token is renewed when a fifth of its life is left, give or take a quarter of that, or this long before its end.
const LEAD_MAX: Duration = Duration::from_secs(60);
/// With less left, a new session will have to do.
const LEFT_MIN: Duration = Duration::from_millis(100);

#[derive(Default)]
pub(super) struct Renewal {
    /// By the server's clock; 0: it did not say.
    expires_at_ms: i64,
    due: Option<Instant>,
    /// The request on its way; 0: none.
    asked: u64,
    /// Part of what is left that is the lead, %.
    lead_percent: u32,
}

impl Renewal {
    /// Welcome, or an accepted renewal. `jitter`: those who came together must not renew together.
    pub fn valid_until(&mut self, expires_at_ms: i64, server_now_ms: i64, jitter: u64) {
        self.expires_at_ms = expires_at_ms;
        self.lead_percent = 15 + (jitter % 11) as u32;
        self.look_again(server_now_ms);
    }

    /// Nothing new yet: once more before the end.
    pub fn look_again(&mut self, server_now_ms: i64) {
        self.asked = 0;
        let left_ms = self.expires_at_ms.saturating_sub(server_now_ms).max(0);
        let left = Duration::from_millis(left_ms as u64);
        let lead = (left * self.lead_percent / 100).min(LEAD_MAX);
        let wait = Instant::now().checked_add(left - lead);
        self.due = wait.filter(|_| left >= LEFT_MIN);
    }

    pub fn connection_lost(&mut self) {
        (self.due, self.asked) = (None, 0);
    }

    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    pub fn take_due(&mut self, now: Instant) -> bool {
        self.due.take_if(|due| *due <= now).is_some()
    }

    pub fn asked(&mut self, request_id: u64) {
        self.asked = request_id;
    }

    pub fn is_answer(&self, request_id: u64) -> bool {
        self.asked == request_id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_token_is_renewed_a_while_before_its_end_and_never_without_end() {
        let mut renewal = Renewal::default();
        let now = Instant::now();
        renewal.valid_until(0, 1_000_000, 0);
        assert_eq!(renewal.due(), None, "no end, no renewal");
        // 100 s with a lead of 15 %, then one of 25 %; a day with at most a minute.
        for (life_s, jitter, due_s) in [(100, 0, 85), (100, 10, 75), (86_400, 3, 86_340)] {
            renewal.valid_until(1_000_000 + life_s * 1_000, 1_000_000, jitter);
            assert_eq!(
                renewal.due(),
                Some(now + Duration::from_secs(due_s)),
                "{life_s}"
            );
        }
        // The same old token again and again: the looks end.
        let mut server_ms = 1_000_000;
        renewal.valid_until(server_ms + 60_000, server_ms, 5);
        let mut looks = 0;
        while let Some(due) = renewal.due() {
            server_ms += (due - Instant::now()).as_millis() as i64;
            tokio::time::advance(due - Instant::now()).await;
            assert!(renewal.take_due(Instant::now()));
            renewal.look_again(server_ms);
            looks += 1;
        }
        assert!((2..10).contains(&looks), "{looks}");
    }
}
