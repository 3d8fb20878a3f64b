//! Named points at which a test lets the process die as by `kill -9`. Compiled in with the feature `crash-points`, which only tests turn on;
//! without it a point is nothing.
//!
//! `HONGBAO_CRASH_AT=settle.credited` dies at the first passage, `settle.credited:3` at the third.

/// Every point, in the order in which a rain passes them.
pub const POINTS: &[&str] = &[
    "create.recorded",
    "load.before",
    "load.after",
    "load.done",
    "load.recorded",
    "open.recorded",
    "gate.before",
    "gate.after",
    "top_up.recorded",
    "top_up.chunk",
    "top_up.loaded",
    "top_up.done",
    "grab.before",
    "grab.after",
    "lease.after",
    "credit.before",
    "credit.open",
    "credit.after",
    "inbox.before",
    "inbox.after",
    "ack.before",
    "ack.after",
    "give.before",
    "give.after",
    "take.before",
    "take.after",
    "given.before",
    "given.after",
    "retry.before",
    "retry.after",
    "bury.before",
    "bury.after",
    "requeue.before",
    "requeue.after",
    "discard.recorded",
    "close.recorded",
    "close.before",
    "close.after",
    "restore.before",
    "restore.after",
    "repair.before",
    "repair.after",
    "repair.done",
    "refund.counted",
    "refund.recorded",
    "finish.expired",
    "finish.unlisted",
];

/// Dies here if the test wants it.
#[cfg(feature = "crash-points")]
pub fn point(name: &str) {
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU32, Ordering};
    static WANTED: LazyLock<Option<(String, u32)>> = LazyLock::new(|| {
        let text = std::env::var("HONGBAO_CRASH_AT").ok()?;
        let (name, passage) = text.split_once(':').unwrap_or((&text, "1"));
        Some((name.to_owned(), passage.parse().ok()?))
    });
    static PASSED: AtomicU32 = AtomicU32::new(0);
    debug_assert!(
        POINTS.contains(&name),
        "{name} is not in the list of crash points"
    );
    if let Some((wanted, passage)) = &*WANTED
        && wanted == name
        && PASSED.fetch_add(1, Ordering::Relaxed) + 1 == *passage
    {
        eprintln!("crash point {name}");
        let _ = nix::sys::signal::kill(nix::unistd::Pid::this(), nix::sys::signal::Signal::SIGKILL);
        loop {
            std::thread::park();
        }
    }
}

/// The points before and after a script: `ack.before`, `ack.after`.
pub fn script(verb: &str, when: &str) {
    // A settler that looks in vain is no step.
    if cfg!(feature = "crash-points") && verb != "lease" {
        point(&format!("{verb}.{when}"));
    }
}

#[cfg(not(feature = "crash-points"))]
#[inline(always)]
pub fn point(_name: &str) {}
