use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// From now on Ctrl-C asks long loops to end, so that servers are stopped and folders removed; a second one ends the process.
pub fn watch() {
    tokio::spawn(async {
        let _ = tokio::signal::ctrl_c().await;
        INTERRUPTED.store(true, Relaxed);
        let _ = tokio::signal::ctrl_c().await;
        std::process::exit(130);
    });
}

pub fn is_set() -> bool {
    INTERRUPTED.load(Relaxed)
}
