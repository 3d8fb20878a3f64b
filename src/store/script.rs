//! The scripts: one `.lua` file a verb, named by its SHA-1, loaded when a node does not know it.

use redis::{Cmd, Value};

use super::StoreError;

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
    REPAIR = "repair";
    RESTORE = "restore";
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

    /// What to say when a script answers something that it does not document.
    pub fn misread(&self, reply: &Value) -> StoreError {
        StoreError::Reply {
            verb: self.verb,
            reply: format!("{reply:?}").chars().take(200).collect(),
        }
    }
}
