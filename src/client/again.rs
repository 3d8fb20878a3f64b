//! A request of the client's own, which nobody waits for: refused for the moment, it is asked again later. No I/O.

use std::time::Duration;

use tokio::time::Instant;

/// After a refusal that passes. The gateway's rates allow two seconds' worth at once, so half of a burst is paid for by then.
const REFUSED_WAIT: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(super) enum Again {
    #[default]
    No,
    Due(Instant),
    /// On its way under this id.
    Asked(u64),
}

impl Again {
    pub fn due(&self) -> Option<Instant> {
        match self {
            Again::Due(due) => Some(*due),
            Again::No | Again::Asked(_) => None,
        }
    }

    /// Now, if it is not to be asked already. What is on its way may have been asked too early.
    pub fn now(&mut self) {
        match self {
            Again::Due(_) => {}
            Again::No | Again::Asked(_) => *self = Again::Due(Instant::now()),
        }
    }

    /// Whether it is to be asked now, as the request of this id.
    pub fn take_due(&mut self, now: Instant, request_id: u64) -> bool {
        let due = self.due().is_some_and(|due| due <= now);
        if due {
            *self = Again::Asked(request_id);
        }
        due
    }

    /// This request was refused, and may not be the next time.
    pub fn refused(&mut self, request_id: u64) {
        match self {
            Again::Asked(asked) if *asked == request_id => {
                *self = Again::Due(Instant::now() + REFUSED_WAIT);
            }
            Again::No | Again::Due(_) | Again::Asked(_) => {}
        }
    }
}
