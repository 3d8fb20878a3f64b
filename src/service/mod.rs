//! A process that a service manager looks after: systemd is told that it is ready, alive, stopping (sd_notify(3)).
//!
//! Without `NOTIFY_SOCKET` in the environment nothing happens. Beside this file: the unit, the container file and the production guide.

use std::time::Duration;

use sd_notify::NotifyState;

/// Everything behind the listeners works: units that wait for this one may start.
pub fn ready(status: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// A stop has begun: the manager waits for the drain.
pub fn stopping() {
    let status = NotifyState::Status("draining: grabs in flight finish");
    tell(&[NotifyState::Stopping, status]);
}

/// Says that the process is alive, twice in the time that the unit's `WatchdogSec` allows, for as long as it is polled. To be polled by the
/// runtime that settlers, stewards and the admin API run in: when nothing runs there any more, nothing is said, and the manager starts the
/// process again. A node or a ledger that is away is no reason for that.
pub async fn keep_alive() {
    let Some(period) = sd_notify::watchdog_enabled() else {
        return;
    };
    let mut turn = tokio::time::interval((period / 2).max(Duration::from_millis(1)));
    turn.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        turn.tick().await;
        tell(&[NotifyState::Watchdog]);
    }
}

fn tell(state: &[NotifyState]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!(%error, "the service manager cannot be told");
    }
}
