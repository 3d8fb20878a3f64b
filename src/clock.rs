//! This machine's wall clock.

use std::time::{SystemTime, UNIX_EPOCH};

/// ms since 1970.
pub fn now_ms() -> i64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    since.as_millis() as i64
}
