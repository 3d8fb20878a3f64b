//! The scripts: one `.lua` file a verb, named by its SHA-1, loaded when a node does not know it.

use redis::{Cmd, Pipeline, Value};

use super::StoreError;
use super::link::Link;

/// A script, with the SHA-1 that EVALSHA names it by.
pub struct Script {
    pub verb: &'static str,
    pub source: &'static str,
    sha1: std::sync::LazyLock<String>,
}

macro_rules! scripts {
    ($($name:ident = $verb:literal;)*) => {
        $(pub static $name: Script = Script {
            verb: $verb,
            source: include_str!(concat!($verb, ".lua")),
            sha1: std::sync::LazyLock::new(|| redis::Script::new(include_str!(concat!($verb, ".lua"))).get_hash().to_owned()),
        };)*
        pub static ALL: &[&Script] = &[$(&$name),*];
    };
}

scripts! {
    GRAB = "grab";
    LOAD = "load";
    GATE = "gate";
    CLOSE = "close";
    LEASE = "lease";
    ACK = "ack";
    RETRY = "retry";
    BURY = "bury";
    REQUEUE = "requeue";
    GIVE = "give";
    TAKE = "take";
    GIVEN = "given";
    PUBLISH = "publish";
    INBOX = "inbox";
    ACQUIRE = "acquire";
    RENEW = "renew";
    RELEASE = "release";
}

impl Script {
    /// EVALSHA with its keys; the caller adds the arguments.
    pub fn call(&self, keys: &[&str]) -> Cmd {
        let mut cmd = Cmd::with_capacity(8 + keys.len(), 256);
        cmd.arg("EVALSHA").arg(self.sha1.as_str()).arg(keys.len());
        for key in keys {
            cmd.arg(*key);
        }
        cmd
    }

    /// Runs a call made by [`Script::call`]. A node that does not know the script (restart, failover, SCRIPT FLUSH) is taught it, and
    /// asked once more: the refused call ran nothing.
    pub async fn run(&self, link: &Link, call: &Cmd) -> Result<Value, StoreError> {
        match link.call(call).await {
            Err(StoreError::Refused { code, .. }) if code == "NOSCRIPT" => {
                link.call(redis::cmd("SCRIPT").arg("LOAD").arg(self.source))
                    .await?;
                link.call(call).await
            }
            result => result,
        }
    }

    /// Runs many calls in one round trip, each with a result of its own. `Err` means that nothing is known of any of them.
    pub async fn run_all(
        &self,
        link: &Link,
        calls: &Pipeline,
    ) -> Result<Vec<Result<Value, StoreError>>, StoreError> {
        let mut results = link.call_all(calls).await?;
        let forgotten = |result: &Result<Value, StoreError>| matches!(result, Err(StoreError::Refused { code, .. }) if code == "NOSCRIPT");
        let refused: Vec<usize> = (0..results.len())
            .filter(|&i| forgotten(&results[i]))
            .collect();
        if !refused.is_empty() {
            link.call(redis::cmd("SCRIPT").arg("LOAD").arg(self.source))
                .await?;
            let mut again = Pipeline::with_capacity(refused.len());
            for (_, call) in calls
                .cmd_iter()
                .enumerate()
                .filter(|(i, _)| refused.binary_search(i).is_ok())
            {
                again.add_command(call.clone());
            }
            for (i, result) in refused.into_iter().zip(link.call_all(&again).await?) {
                results[i] = result;
            }
        }
        Ok(results)
    }

    /// What to say when a script answers something that it does not document.
    pub fn misread(&self, reply: &Value) -> StoreError {
        StoreError::Reply {
            verb: self.verb,
            reply: format!("{reply:?}").chars().take(200).collect(),
        }
    }
}
