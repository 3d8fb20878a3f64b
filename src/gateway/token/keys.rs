//! The key set: a JWKS file (RFC 7517), as login services publish it, with three members of ours that take keys, users and tokens back.
//!
//! ```json
//! {
//!   "keys": [
//!     {"kid": "2026-07", "kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"},
//!     {"kid": "old", "kty": "oct", "k": "base64url of at least 32 secret bytes"}
//!   ],
//!   "revoked_keys": ["2026-01"],
//!   "revoked_users": {"anna": 1784500000},
//!   "revoked_tokens": ["a token's jti"]
//! }
//! ```
//!
//! The kind of a key says its algorithm, whatever a token's header claims: OKP with Ed25519 is EdDSA, oct is HS256. Keys of other kinds are passed over, as
//! the RFC asks. A key that is no longer in the file admits nobody new, and the sessions that it admitted go on to their `exp`; one in `revoked_keys` ends
//! them at once. `revoked_users`: the user's tokens issued (`iat`) up to that time, seconds since 1970, and those that do not say.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, DecodingKey, Validation};
use serde::Deserialize;

use super::{Credentials, token_hash};
use crate::config::SECRET_BYTES;
use crate::rain::UserId;

/// Bytes of an Ed25519 public key.
const ED25519_BYTES: usize = 32;
/// Bytes of a key set file.
pub const FILE_MAX: u64 = 4 * 1024 * 1024;

/// What is wrong with a key set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct KeySetError(String);

/// A key with its algorithm.
pub struct Key {
    pub kid: Arc<str>,
    pub decoding: DecodingKey,
    pub validation: Validation,
}

/// The keys that tokens may be signed with, by `kid`, and what was taken back.
pub struct KeySet {
    keys: HashMap<Arc<str>, Key>,
    revoked_keys: HashSet<String>,
    /// Until when issued, ms since 1970.
    revoked_users: HashMap<UserId, i64>,
    revoked_tokens: HashSet<u64>,
    /// Kinds of keys that were passed over.
    pub passed_over: usize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)] // a misspelt revocation would revoke nothing
struct File {
    keys: Vec<Jwk>,
    #[serde(default)]
    revoked_keys: HashSet<String>,
    #[serde(default)]
    revoked_users: HashMap<String, i64>,
    #[serde(default)]
    revoked_tokens: Vec<String>,
}

/// Members that we do not use (`use`, `key_ops`, `x5c`, …) may stand there.
#[derive(Deserialize)]
struct Jwk {
    kty: String,
    #[serde(default)]
    kid: String,
    alg: Option<String>,
    crv: Option<String>,
    x: Option<String>,
    k: Option<String>,
    /// A private key, which has no business here.
    d: Option<serde::de::IgnoredAny>,
}

impl Key {
    pub fn hs256(kid: &str, secret: &[u8]) -> Key {
        Key::new(kid, DecodingKey::from_secret(secret), Algorithm::HS256)
    }

    fn new(kid: &str, decoding: DecodingKey, algorithm: Algorithm) -> Key {
        let mut validation = Validation::new(algorithm);
        // Times are checked by us, with our leeway.
        validation.required_spec_claims.clear();
        (validation.validate_exp, validation.validate_aud) = (false, false);
        Key {
            kid: kid.into(),
            decoding,
            validation,
        }
    }

    /// `None` for a kind of key that is not ours.
    fn read(jwk: &Jwk) -> Result<Option<Key>, KeySetError> {
        let fault = |text: &str| Err(KeySetError(format!("key \"{}\" {text}", jwk.kid)));
        let (algorithm, alg, encoded) = match (jwk.kty.as_str(), jwk.crv.as_deref()) {
            ("OKP", Some("Ed25519")) => (Algorithm::EdDSA, ["EdDSA", "Ed25519"].as_slice(), &jwk.x),
            ("oct", _) => (Algorithm::HS256, ["HS256"].as_slice(), &jwk.k),
            _ => return Ok(None),
        };
        if jwk
            .alg
            .as_deref()
            .is_some_and(|named| !alg.contains(&named))
        {
            // Another use of the same kind of key: HS512, for one.
            return Ok(None);
        }
        if jwk.kid.is_empty() {
            return fault("has no kid");
        }
        let Some(encoded) = encoded else {
            return fault(match algorithm {
                Algorithm::EdDSA => "has no x, its public key",
                _ => "has no k, its secret",
            });
        };
        let Ok(bytes) = URL_SAFE_NO_PAD.decode(encoded.trim_end_matches('=')) else {
            return fault("is not base64url text");
        };
        if algorithm == Algorithm::EdDSA {
            if jwk.d.is_some() {
                return fault("is a private key (d): the gateway must have its public part only");
            }
            if bytes.len() != ED25519_BYTES {
                return fault("is no Ed25519 public key of 32 bytes");
            }
            let Ok(decoding) = DecodingKey::from_ed_components(encoded) else {
                return fault("is no Ed25519 public key");
            };
            return Ok(Some(Key::new(&jwk.kid, decoding, algorithm)));
        }
        if bytes.len() < SECRET_BYTES {
            return fault(&format!(
                "has {} secret bytes, fewer than {SECRET_BYTES}",
                bytes.len()
            ));
        }
        Ok(Some(Key::hs256(&jwk.kid, &bytes)))
    }
}

impl KeySet {
    pub fn one(key: Key) -> KeySet {
        KeySet {
            keys: HashMap::from([(key.kid.clone(), key)]),
            revoked_keys: HashSet::new(),
            revoked_users: HashMap::new(),
            revoked_tokens: HashSet::new(),
            passed_over: 0,
        }
    }

    /// Reads a key set file's text.
    pub fn read(text: &[u8]) -> Result<KeySet, KeySetError> {
        let file: File =
            serde_json::from_slice(text).map_err(|error| KeySetError(error.to_string()))?;
        let mut keys = HashMap::new();
        let mut passed_over = 0;
        for jwk in &file.keys {
            match Key::read(jwk)? {
                None => passed_over += 1,
                Some(key) => {
                    if keys.insert(key.kid.clone(), key).is_some() {
                        let kid = &jwk.kid;
                        return Err(KeySetError(format!("key \"{kid}\" stands there twice")));
                    }
                }
            }
        }
        if keys.is_empty() {
            let text = "has no key that we can use: Ed25519 (OKP) or HS256 (oct)";
            return Err(KeySetError(text.to_owned()));
        }
        let mut revoked_users = HashMap::new();
        for (user, until_s) in file.revoked_users {
            let user = UserId::new(&user).map_err(|error| {
                KeySetError(format!("revoked_users names no user of ours: {error}"))
            })?;
            revoked_users.insert(user, until_s.saturating_mul(1_000));
        }
        Ok(KeySet {
            keys,
            revoked_keys: file.revoked_keys,
            revoked_users,
            revoked_tokens: file
                .revoked_tokens
                .iter()
                .map(|id| token_hash(id))
                .collect(),
            passed_over,
        })
    }

    pub fn get(&self, kid: &str) -> Option<&Key> {
        self.keys.get(kid)
    }

    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Why tokens of that key, of that user, or this one token, are not accepted any more.
    pub fn revoked(&self, user: &UserId, credentials: &Credentials) -> Option<&'static str> {
        let key = self.revoked_keys.contains(&*credentials.kid);
        let until = self.revoked_users.get(user);
        let of_user = until.is_some_and(|until| credentials.issued_ms <= *until);
        let token = credentials
            .token
            .is_some_and(|token| self.revoked_tokens.contains(&token));
        match (key, of_user, token) {
            (true, ..) => Some("the key of the token was revoked"),
            (_, true, _) => Some("the user's tokens of that time were revoked"),
            (.., true) => Some("the token was revoked"),
            (false, false, false) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ED: &str = r#"{"kid":"ed","kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}"#;
    const OCT: &str = r#"{"kid":"hs","kty":"oct","k":"MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY","alg":"HS256","use":"sig"}"#;
    const RSA: &str = r#"{"kid":"rsa","kty":"RSA","n":"AQAB","e":"AQAB"}"#;

    #[test]
    fn keys_that_we_can_use_are_taken_and_others_passed_over() {
        let set = KeySet::read(format!(r#"{{"keys":[{ED},{OCT},{RSA}]}}"#).as_bytes()).unwrap();
        assert_eq!((set.len(), set.passed_over), (2, 1));
        assert_eq!(
            set.get("ed").unwrap().validation.algorithms,
            [Algorithm::EdDSA]
        );
        assert_eq!(
            set.get("hs").unwrap().validation.algorithms,
            [Algorithm::HS256]
        );
        assert!(set.get("rsa").is_none());
    }

    #[test]
    fn a_broken_set_says_what_is_wrong_with_it() {
        let private = ED.replace(
            "}",
            r#","d":"nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A"}"#,
        );
        for (text, fault) in [
            ("", "EOF"),
            (r#"{"keys":[]}"#, "no key that we can use"),
            (&format!(r#"{{"keys":[{RSA}]}}"#), "no key that we can use"),
            (
                &format!(r#"{{"keys":[{ED},{ED}]}}"#),
                "\"ed\" stands there twice",
            ),
            (
                &format!(r#"{{"keys":[{ED}],"revoked_kid":[]}}"#),
                "revoked_kid",
            ),
            (
                &format!(r#"{{"keys":[{ED}],"revoked_users":{{"two words":1}}}}"#),
                "two words",
            ),
            (&format!(r#"{{"keys":[{private}]}}"#), "private key"),
            (
                r#"{"keys":[{"kid":"k","kty":"oct","k":"AAAA"}]}"#,
                "has 3 secret bytes, fewer than 32",
            ),
            (
                r#"{"keys":[{"kid":"k","kty":"OKP","crv":"Ed25519","x":"AAAA"}]}"#,
                "no Ed25519 public key",
            ),
            (r#"{"keys":[{"kid":"k","kty":"oct"}]}"#, "has no k"),
            (
                &OCT.replace("\"kid\":\"hs\"", "\"kid\":\"\"")
                    .replace('{', "{\"keys\":[{")
                    .replace('}', "}]}"),
                "has no kid",
            ),
        ] {
            let error = KeySet::read(text.as_bytes())
                .err()
                .map(|error| error.to_string());
            assert!(
                error.as_ref().is_some_and(|error| error.contains(fault)),
                "{text}: {error:?}"
            );
        }
    }
}
