//! Session tokens: JWTs made by the quiz's own login service.

/// The key set file.
mod keys;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use arc_swap::ArcSwap;
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use crate::rain::UserId;
use crate::wire::CloseCode;
pub use keys::KeySetError;
use keys::{FILE_MAX, Key, KeySet};

/// The word in a token's scope that makes its session an edge session.
pub const EDGE_SCOPE: &str = "edge";

/// Times are seconds since 1970, and may be broken ones (RFC 7519, NumericDate).
#[derive(Serialize, Deserialize)]
struct Payload {
    sub: String,
    exp: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    nbf: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    iat: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    jti: Option<String>,
    /// Words between blanks.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    scope: String,
}

/// Who a token speaks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub user: UserId,
    /// `user` is a trusted server that grabs for others.
    pub edge: bool,
    pub credentials: Credentials,
}

/// What an accepted token is known by as long as its session lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    pub kid: Arc<str>,
    pub expires_ms: i64,
    /// `iat`; the beginning of time if it does not say.
    pub issued_ms: i64,
    /// Hash of `jti`, if it has one.
    pub token: Option<u64>,
}

fn token_hash(id: &str) -> u64 {
    xxhash_rust::xxh3::xxh3_64(id.as_bytes())
}

/// Why a token was not accepted.
#[derive(Debug, PartialEq, Eq)]
pub struct TokenError {
    pub code: CloseCode,
    pub reason: String,
}

/// The keys of now.
pub struct TokenKeys {
    set: ArcSwap<KeySet>,
    /// Grows when the set changes.
    generation: AtomicU64,
    /// Clocks of login service and gateway may differ by this much.
    leeway_ms: i64,
    /// What the file held that the set was read from.
    file: Option<PathBuf>,
}

#[derive(Debug, thiserror::Error)]
#[error("tokens.keys_file {path}: {problem}")]
pub struct KeysFileError {
    path: PathBuf,
    problem: String,
}

impl TokenKeys {
    /// One secret, as `hongbao serve` makes it when there is no key set file.
    pub fn hs256(kid: &str, secret: &[u8], leeway: Duration) -> TokenKeys {
        TokenKeys::new(KeySet::one(Key::hs256(kid, secret)), None, leeway)
    }

    /// The keys of a file, which [`TokenKeys::keep`] reads again and again.
    pub fn from_file(path: &Path, leeway: Duration) -> Result<TokenKeys, KeysFileError> {
        let fault = |problem| KeysFileError {
            path: path.to_owned(),
            problem,
        };
        let text = read_file(path).map_err(fault)?;
        let set = KeySet::read(&text).map_err(|error| fault(error.to_string()))?;
        Ok(TokenKeys::new(set, Some(path.to_owned()), leeway))
    }

    fn new(set: KeySet, file: Option<PathBuf>, leeway: Duration) -> TokenKeys {
        crate::metrics::get().token_keys.set(set.len() as f64);
        TokenKeys {
            set: ArcSwap::from_pointee(set),
            generation: AtomicU64::new(0),
            leeway_ms: leeway.as_millis() as i64,
            file,
        }
    }

    /// Changes with the set: whoever was admitted before must be looked at again.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Reads the key set file again every `poll`, until `stop`. The bytes are compared and not the file's time, which some file systems keep in
    /// seconds. A file that cannot be used leaves the keys as they are, and the reason is logged once.
    pub async fn keep(self: Arc<Self>, poll: Duration, stop: CancellationToken) {
        let Some(path) = self.file.clone() else {
            return;
        };
        let mut seen: Option<Result<Vec<u8>, String>> = None;
        loop {
            let asked = path.clone();
            let read = tokio::task::spawn_blocking(move || read_file(&asked)).await;
            if let Ok(read) = read
                && seen.as_ref() != Some(&read)
            {
                // The first reading is what the set was made of, unless the file changed meanwhile.
                self.take(&path, &read, seen.is_none());
                seen = Some(read);
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(poll) => {}
            }
        }
    }

    fn take(&self, path: &Path, read: &Result<Vec<u8>, String>, first: bool) {
        let metrics = crate::metrics::get();
        let path = path.display();
        let set = read
            .as_deref()
            .map_err(String::clone)
            .and_then(|text| KeySet::read(text).map_err(|error| error.to_string()));
        match set {
            Ok(set) => {
                let (keys, passed_over) = (set.len(), set.passed_over);
                self.set.store(Arc::new(set));
                self.generation.fetch_add(1, Ordering::Release);
                metrics.token_keys.set(keys as f64);
                metrics.token_keys_loaded.increment(1);
                if !first {
                    tracing::info!(%path, keys, passed_over, "the token keys have changed");
                }
            }
            Err(problem) => {
                metrics.token_keys_broken.increment(1);
                tracing::warn!(%path, problem, "the token keys cannot be read: the old ones stay");
            }
        }
    }

    /// Who a token speaks for.
    pub fn verify(&self, token: &str, now_ms: i64) -> Result<Identity, TokenError> {
        let refused = |code, reason: String| TokenError { code, reason };
        let invalid = |reason| refused(CloseCode::TokenInvalid, reason);
        if token.is_empty() {
            let reason = "there is no token".to_owned();
            return Err(refused(CloseCode::TokenMissing, reason));
        }
        let header = jsonwebtoken::decode_header(token)
            .map_err(|error| invalid(not_a_header(error.kind())))?;
        let Some(kid) = header.kid else {
            return Err(invalid("the token's header names no key (kid)".into()));
        };
        let set = self.set.load();
        let Some(key) = set.get(&kid) else {
            let shown: String = kid.chars().take(40).collect();
            return Err(invalid(format!(
                "the token's kid {shown:?} names no key of ours"
            )));
        };
        // The key's own algorithm: what the header says must be the same, and chooses nothing.
        let payload = jsonwebtoken::decode::<Payload>(token, &key.decoding, &key.validation)
            .map_err(|error| match error.kind() {
                ErrorKind::InvalidSignature => invalid("the token's signature is wrong".into()),
                ErrorKind::InvalidAlgorithm => invalid(format!(
                    "the token's alg is {:?}, its key is for {:?}",
                    header.alg, key.validation.algorithms[0]
                )),
                ErrorKind::Json(problem) => {
                    invalid(format!("the token's payload cannot be read: {problem}"))
                }
                _ => invalid(format!("the token is not accepted: {error}")),
            })?
            .claims;
        let expires_ms = ms(payload.exp);
        if now_ms > expires_ms.saturating_add(self.leeway_ms) {
            let reason = "the token has expired".to_owned();
            return Err(refused(CloseCode::TokenExpired, reason));
        }
        if let Some(nbf) = payload.nbf
            && now_ms.saturating_add(self.leeway_ms) < ms(nbf)
        {
            return Err(invalid("the token is not valid yet (nbf)".into()));
        }
        let user = UserId::new(&payload.sub).map_err(|error| invalid(error.to_string()))?;
        let credentials = Credentials {
            kid: key.kid.clone(),
            expires_ms,
            issued_ms: payload.iat.map_or(i64::MIN, ms),
            token: payload.jti.as_deref().map(token_hash),
        };
        if let Some(reason) = set.revoked(&user, &credentials) {
            return Err(refused(CloseCode::TokenRevoked, reason.to_owned()));
        }
        let mut words = payload.scope.split_ascii_whitespace();
        Ok(Identity {
            user,
            edge: words.any(|word| word == EDGE_SCOPE),
            credentials,
        })
    }

    /// When a session with these credentials must end if nothing else happens, ms since 1970.
    pub fn lapses_ms(&self, credentials: &Credentials) -> i64 {
        (credentials.expires_ms.saturating_add(self.leeway_ms)).saturating_add(1)
    }

    /// Why a session with these credentials must end now.
    pub fn lapsed(
        &self,
        user: &UserId,
        credentials: &Credentials,
        now_ms: i64,
    ) -> Option<(CloseCode, &'static str)> {
        if now_ms > credentials.expires_ms.saturating_add(self.leeway_ms) {
            return Some((CloseCode::SessionExpired, "the session's token has expired"));
        }
        let reason = self.set.load().revoked(user, credentials)?;
        Some((CloseCode::TokenRevoked, reason))
    }
}

/// Why there is no header to be read. The library names algorithms that no key here can have.
fn not_a_header(problem: &ErrorKind) -> String {
    match problem {
        ErrorKind::InvalidToken => {
            "the token is not a JWT: it must have three parts between dots".to_owned()
        }
        ErrorKind::Json(_) => {
            "the token's header cannot be read, or its alg is neither EdDSA nor HS256".to_owned()
        }
        other => format!("the token is not a JWT: {other:?}"),
    }
}

/// A number that is no time becomes the end or the beginning of time, or 1970.
fn ms(seconds: f64) -> i64 {
    (seconds * 1_000.0) as i64
}

fn read_file(path: &Path) -> Result<Vec<u8>, String> {
    let size = std::fs::metadata(path)
        .map_err(|error| error.to_string())?
        .len();
    if size > FILE_MAX {
        return Err(format!("{size} bytes are more than {FILE_MAX}"));
    }
    std::fs::read(path).map_err(|error| error.to_string())
}

/// Makes an HS256 token for `user` that is valid for `lifetime`: for the command line, tests and trying things out.
pub fn issue(user: &UserId, kid: &str, secret: &[u8], lifetime: Duration) -> String {
    issue_scoped(user, "", kid, secret, lifetime)
}

/// The same with a scope, like [`EDGE_SCOPE`].
pub fn issue_scoped(
    user: &UserId,
    scope: &str,
    kid: &str,
    secret: &[u8],
    lifetime: Duration,
) -> String {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let payload = Payload {
        sub: user.to_string(),
        exp: (now + lifetime).as_secs_f64(),
        nbf: None,
        iat: Some(now.as_secs_f64()),
        jti: None,
        scope: scope.to_owned(),
    };
    let header = Header {
        kid: Some(kid.to_owned()),
        ..Header::new(Algorithm::HS256)
    };
    jsonwebtoken::encode(&header, &payload, &EncodingKey::from_secret(secret))
        .expect("HS256 signs any payload")
}

#[cfg(test)]
mod tests;
