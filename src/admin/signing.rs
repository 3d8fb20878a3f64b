//! How requests are signed: the canonical form, the headers, the key that a caller holds. Both sides use this file.
//!
//! The signature is HMAC-SHA256 over seven lines with a line feed between them and none at the end:
//!
//! ```text
//! method                POST
//! path                  /v1/rains                 as sent, percent-encoding and all
//! query                 limit=3                   as sent, without the question mark; empty if there is none
//! time                  1763700000000             ms since 1970, as in Hongbao-Time
//! nonce                 0f1e2d3c4b5a6978          as in Hongbao-Nonce
//! idempotency key       pay-run-17                as in Idempotency-Key; empty if there is none
//! body hash             e3b0c442…                 SHA-256 of the body, hex; of nothing if there is none
//! ```
//!
//! The idempotency key is signed too: whoever could change it on the way could have a write done twice. `proto/admin.md` has a worked
//! example.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

/// Id of the key that asks.
pub const KEY: &str = "Hongbao-Key";
/// When the request was signed, ms since 1970.
pub const TIME: &str = "Hongbao-Time";
/// Another text for each request.
pub const NONCE: &str = "Hongbao-Nonce";
/// The signature, hex.
pub const SIGNATURE: &str = "Hongbao-Signature";
/// The caller's own name for a write.
pub const IDEMPOTENCY_KEY: &str = "Idempotency-Key";

/// How far a request's time may be from the server's, ms, either way.
pub const WINDOW_MS: i64 = 5_000;
/// A nonce's length, characters. Sixteen hex digits drawn at random are enough: they need to differ for ten seconds.
pub const NONCE_LENGTH: std::ops::RangeInclusive<usize> = 16..=64;

/// The id of the key whose secret stands in the API key file.
pub const BOOTSTRAP: &str = "bootstrap";

/// What is signed.
#[derive(Clone, Copy, Debug)]
pub struct Parts<'a> {
    pub method: &'a str,
    pub path: &'a str,
    pub query: &'a str,
    pub time_ms: i64,
    pub nonce: &'a str,
    pub idempotency_key: &'a str,
    pub body: &'a [u8],
}

impl Parts<'_> {
    pub fn canonical(&self) -> String {
        let hash = hex::encode(Sha256::digest(self.body));
        let Parts {
            method,
            path,
            query,
            time_ms,
            nonce,
            idempotency_key,
            ..
        } = self;
        format!("{method}\n{path}\n{query}\n{time_ms}\n{nonce}\n{idempotency_key}\n{hash}")
    }

    /// Hex.
    pub fn sign(&self, secret: &str) -> String {
        hex::encode(self.mac(secret).finalize().into_bytes())
    }

    /// In constant time.
    pub fn verify(&self, secret: &str, signature: &[u8]) -> bool {
        self.mac(secret).verify_slice(signature).is_ok()
    }

    fn mac(&self, secret: &str) -> Hmac<Sha256> {
        let mut mac =
            Hmac::<Sha256>::new_from_slice(secret.as_bytes()).expect("HMAC takes keys of any size");
        mac.update(self.canonical().as_bytes());
        mac
    }
}

/// A key as its holder keeps it: one text, `<id>.<secret>`. A text without a dot is the secret of the key [`BOOTSTRAP`].
#[derive(Clone, PartialEq, Eq)]
pub struct Credential {
    pub id: String,
    /// Its characters are the HMAC's key, as they stand.
    pub secret: String,
}

impl Credential {
    pub fn read(text: &str) -> Credential {
        let text = text.trim();
        let (id, secret) = text.split_once('.').unwrap_or((BOOTSTRAP, text));
        Credential {
            id: id.to_owned(),
            secret: secret.to_owned(),
        }
    }

    /// As its holder keeps it.
    pub fn to_text(&self) -> String {
        format!("{}.{}", self.id, self.secret)
    }
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credential({})", self.id)
    }
}

/// Sixteen random bytes, hex: nonces, request ids, idempotency keys that a program makes.
pub fn random_text() -> String {
    let mut bytes = [0u8; 16];
    getrandom::fill(&mut bytes).expect("the operating system has random bytes");
    hex::encode(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The worked example of `proto/admin.md`; the signature was computed with `openssl dgst -sha256 -hmac`.
    #[test]
    fn the_worked_example_is_signed_like_this() {
        let parts = Parts {
            method: "POST",
            path: "/v1/accounts/acme/deposits",
            query: "",
            time_ms: 1_763_700_000_000,
            nonce: "0f1e2d3c4b5a69788796a5b4c3d2e1f0",
            idempotency_key: "bank-ref-1",
            body: br#"{"cents":1000000}"#,
        };
        let canonical = "POST\n/v1/accounts/acme/deposits\n\n1763700000000\n0f1e2d3c4b5a69788796a5b4c3d2e1f0\nbank-ref-1\n08610d404cb3cd5d60977a70f2b62da6c4eead3a9d3fec736e9b8c19b71f9f5b";
        assert_eq!(parts.canonical(), canonical);
        let secret = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
        let signature = "6fa1dcd3d1fb65765d4d48a41956d03904b35d2581940bc52474a50531a1d16e";
        assert_eq!(parts.sign(secret), signature);
        assert!(parts.verify(secret, &hex::decode(signature).unwrap()));
        assert!(!parts.verify("another", &hex::decode(signature).unwrap()));
        assert!(include_str!("../../proto/admin.md").contains(signature));
    }

    #[test]
    fn a_key_reads_back_as_written() {
        let key = Credential::read("k12.abc\n");
        assert_eq!((key.id.as_str(), key.secret.as_str()), ("k12", "abc"));
        assert_eq!(Credential::read(&key.to_text()), key);
        assert_eq!(Credential::read("abc").id, BOOTSTRAP);
        assert_eq!(format!("{key:?}"), "Credential(k12)");
    }
}
