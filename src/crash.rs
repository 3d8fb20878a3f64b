//! Named points at which a test lets the process die as by `kill -9`. Compiled in with the feature `crash-points`, which only tests turn on;
//! without it a point is nothing.
//!
//! `HONGBAO_CRASH_AT=settle.credited` dies at the first passage, `settle.credited:3` at the third.

/// Every point, in the order in which a rain passes them.
pub const POINTS: &[&str] = &[
    "opening.created",
    "opening.noted",
    "write.begun",
    "write.done",
    "create.recorded",
    "load.before",
    "load.after",
    "load.done",
    "load.recorded",
    "event.written",
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
    "dead.seen",
    "dead.written",
    "dead.recorded",
    "requeue.before",
    "requeue.after",
    "discard.recorded",
    "sold_out.seen",
    "sold_out.written",
    "sold_out.recorded",
    "close.recorded",
    "close.before",
    "close.after",
    "restore.before",
    "restore.after",
    "repair.before",
    "repair.after",
    "repair.done",
    "refund.counted",
    "refund.written",
    "refund.recorded",
    "delivery.held",
    "delivery.sent",
    "delivery.recorded",
    "finish.expired",
    "finish.unlisted",
];

/// Places where a test may let a bug be: `HONGBAO_BUG_AT=session:2` panics at the second passage.
pub const BUGS: &[&str] = &[
    "session",
    "lane",
    "lane_take",
    "worker",
    "risk",
    "risk_desk",
    "look_up",
    "inbox",
];

#[cfg(feature = "crash-points")]
struct Wanted {
    name: String,
    passage: u32,
    passed: std::sync::atomic::AtomicU32,
}

#[cfg(feature = "crash-points")]
impl Wanted {
    fn read(variable: &str) -> Option<Wanted> {
        let text = std::env::var(variable).ok()?;
        let (name, passage) = text.split_once(':').unwrap_or((&text, "1"));
        Some(Wanted {
            name: name.to_owned(),
            passage: passage.parse().ok()?,
            passed: 0.into(),
        })
    }

    fn is_it(&self, name: &str) -> bool {
        let passed = || {
            self.passed
                .fetch_add(1, std::sync::atomic::Ordering::Relaxed)
                + 1
        };
        self.name == name && passed() == self.passage
    }
}

/// Panics here if the test wants it.
#[cfg(feature = "crash-points")]
pub fn bug(name: &str) {
    static WANTED: std::sync::LazyLock<Option<Wanted>> =
        std::sync::LazyLock::new(|| Wanted::read("HONGBAO_BUG_AT"));
    debug_assert!(BUGS.contains(&name), "{name} is not in the list of bugs");
    if WANTED.as_ref().is_some_and(|wanted| wanted.is_it(name)) {
        panic!("a bug at {name}, because the test wants one");
    }
}

#[cfg(not(feature = "crash-points"))]
#[inline(always)]
pub fn bug(_name: &str) {}

/// Dies here if the test wants it.
#[cfg(feature = "crash-points")]
pub fn point(name: &str) {
    static WANTED: std::sync::LazyLock<Option<Wanted>> =
        std::sync::LazyLock::new(|| Wanted::read("HONGBAO_CRASH_AT"));
    debug_assert!(
        POINTS.contains(&name),
        "{name} is not in the list of crash points"
    );
    if WANTED.as_ref().is_some_and(|wanted| wanted.is_it(name)) {
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
