//! Nonces of signed requests: each may be used once, whichever admin process sees it first.

use redis::Value;

use super::{Store, StoreError, keys};

impl Store {
    /// Whether this is the first use of `nonce` within `keep_ms`. An error means that nobody knows: refuse the request.
    pub async fn first_use(&self, nonce: &str, keep_ms: u64) -> Result<bool, StoreError> {
        let key = keys::nonce(nonce);
        let mut set = redis::cmd("SET");
        set.arg(&key).arg(1).arg("NX").arg("PX").arg(keep_ms);
        match self.route_of(&key).call(&set).await? {
            Value::Okay => Ok(true),
            Value::Nil => Ok(false),
            other => Err(StoreError::Reply {
                verb: "SET",
                reply: format!("{other:?}"),
            }),
        }
    }
}
