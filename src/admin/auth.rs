//! Who signed a request, and whether it is the first time.
//!
//! Everything that lets somebody in stands behind [`authenticate`]. In this order, the cheap before the dear and nothing told to
//! strangers: headers in their form, the time, the key, (the body is read,) the signature, the nonce, and only then whether the key
//! is revoked or has expired.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::http::{HeaderMap, Method, Uri};
use hmac::{Hmac, KeyInit, Mac};
use serde_json::json;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::Admin;
use super::caller::{Access, Caller, Module, Role};
use super::problem::Problem;
use super::refusal::Refusal;
use super::signing::{
    BOOTSTRAP, IDEMPOTENCY_KEY, KEY, NONCE, NONCE_LENGTH, Parts, SIGNATURE, TIME, WINDOW_MS,
};
use crate::clock::now_ms;
use crate::ledger::{ApiKey, LedgerError};

/// A nonce is kept until its request's time would be refused anyway: a window ahead, a window behind, and room for the node's clock.
const NONCE_KEPT_MS: u64 = 3 * WINDOW_MS as u64;
/// Nonces of one key that one process has seen within that time: 400 requests a second for 15 s. Beyond it the key's requests wait.
const NONCES_OF_KEY: usize = 6_000;
/// Of all keys, about 150 bytes each: no key has more than a quarter, so none locks the others out by itself.
const NONCES_MAX: usize = 4 * NONCES_OF_KEY;
/// How old what a process knows of the keys may be: this soon another process's revocation counts here.
const KEYS_AGE_MAX: Duration = Duration::from_millis(500);
/// How long a key that is gone is still told so.
const GONE_KNOWN_MS: i64 = 86_400_000;
/// How exactly the last use of a key is known.
const USE_NOTED_MS: i64 = 60_000;

/// What an admin process knows to tell callers apart.
pub struct Gate {
    /// Secrets of keys follow from it; it never leaves the process.
    key_secret: Vec<u8>,
    /// The secret of the key `bootstrap`.
    bootstrap: String,
    keys: tokio::sync::Mutex<Known>,
    nonces: Mutex<Nonces>,
}

/// When each was first seen, by key.
#[derive(Default)]
struct Nonces(HashMap<String, HashMap<String, Instant>>);

#[derive(Default)]
struct Known {
    read_at: Option<Instant>,
    keys: Arc<HashMap<String, ApiKey>>,
}

/// What is in the headers of a signed request.
pub struct Signed {
    key: String,
    time_ms: i64,
    nonce: String,
    signature: Vec<u8>,
    pub idempotency_key: String,
}

/// Of a key: the secrets that are good now.
struct Candidate {
    caller: Caller,
    secrets: Vec<String>,
    gone: Option<Problem>,
    last_used_at_ms: Option<i64>,
}

impl Gate {
    pub fn new(key_secret: Vec<u8>, bootstrap: String) -> Gate {
        Gate {
            key_secret,
            bootstrap,
            keys: Default::default(),
            nonces: Default::default(),
        }
    }

    pub(super) fn derive(&self, what: &str) -> String {
        let mut mac =
            Hmac::<Sha256>::new_from_slice(&self.key_secret).expect("HMAC takes keys of any size");
        mac.update(what.as_bytes());
        hex::encode(mac.finalize().into_bytes())
    }

    /// The secret of a key's generation. It is not kept anywhere: SQL alone lets nobody sign, and no key of encryption has to be looked
    /// after beside the one that it is derived from.
    pub fn secret(&self, id: &str, generation: u32) -> String {
        self.derive(&format!("secret {id} {generation}"))
    }

    /// The id of the key that is made by the request with this idempotency key: the same one when it is repeated.
    pub fn id_for(&self, idempotency_key: &str) -> String {
        format!("k{}", &self.derive(&format!("id {idempotency_key}"))[..16])
    }

    /// What the receiver of a webhook checks signatures with; like [`Gate::secret`] it is not kept anywhere.
    pub fn webhook_secret(&self, id: &str, generation: u32) -> String {
        self.derive(&format!("webhook secret {id} {generation}"))
    }

    /// The id of the webhook that is made by the request with this idempotency key.
    pub fn webhook_id_for(&self, idempotency_key: &str) -> String {
        let derived = self.derive(&format!("webhook id {idempotency_key}"));
        format!("w{}", &derived[..16])
    }

    /// The same test event when the request with this idempotency key is repeated.
    pub fn test_name_for(&self, idempotency_key: &str) -> String {
        self.derive(&format!("webhook test {idempotency_key}"))[..16].to_owned()
    }

    /// Has the next request look at the keys anew.
    pub async fn forget_keys(&self) {
        self.keys.lock().await.read_at = None;
    }

    async fn keys(&self, admin: &Admin) -> Result<Arc<HashMap<String, ApiKey>>, LedgerError> {
        let mut known = self.keys.lock().await;
        if known.read_at.is_none_or(|at| at.elapsed() > KEYS_AGE_MAX) {
            let read_at = Instant::now();
            let now = now_ms();
            let known_since = now - GONE_KNOWN_MS;
            let keys = admin.ledger.known_api_keys(now, known_since).await?;
            known.keys = Arc::new(keys.into_iter().map(|key| (key.id.clone(), key)).collect());
            known.read_at = Some(read_at);
        }
        Ok(known.keys.clone())
    }

    async fn candidate(&self, admin: &Admin, id: &str) -> Result<Option<Candidate>, LedgerError> {
        if id == BOOTSTRAP {
            // Without SQL: whoever runs the server can look when the ledger is away.
            return Ok(Some(Candidate {
                caller: bootstrap_caller(),
                secrets: vec![self.bootstrap.clone()],
                gone: None,
                last_used_at_ms: Some(i64::MAX),
            }));
        }
        let keys = self.keys(admin).await?;
        let Some(key) = keys.get(id) else {
            return Ok(None);
        };
        let now = now_ms();
        let mut secrets = vec![self.secret(id, key.generation)];
        let foreign = hash_of(&secrets[0]) != key.secret_hash;
        if key.generation > 1 && now < key.overlap_until_ms {
            secrets.push(self.secret(id, key.generation - 1));
        }
        if foreign {
            tracing::warn!(
                key = id,
                "a key was made by a server with another admin.key_secret_file"
            );
        }
        let gone = match (key.revoked_at_ms, key.expires_at_ms) {
            (Some(at), _) => Some(Problem::refused(
                Refusal::KeyRevoked,
                format!("key {id} was revoked at {at} ms"),
            )),
            (None, Some(at)) if at <= now => Some(Problem::refused(
                Refusal::KeyExpired,
                format!("key {id} expired at {at} ms"),
            )),
            (None, _) => None,
        };
        Ok(Some(Candidate {
            caller: caller_of(key),
            secrets,
            gone,
            last_used_at_ms: key.last_used_at_ms,
        }))
    }

    /// Whose key that is; `None` if it is nobody's.
    pub async fn named(&self, admin: &Admin, id: &str) -> Result<Option<Caller>, LedgerError> {
        let candidate = self.candidate(admin, id).await?;
        Ok(candidate.map(|candidate| candidate.caller))
    }

    /// Whose secret this is, and its hash; `None` for a key that is not known and for a wrong secret alike.
    pub async fn holder(
        &self,
        admin: &Admin,
        id: &str,
        secret: &str,
    ) -> Result<Option<(Caller, String)>, Problem> {
        let given = hash_of(secret);
        let candidate = self.candidate(admin, id).await?;
        let Some(candidate) = candidate.filter(|known| known.holds(&given)) else {
            return Ok(None);
        };
        note_use(admin, &candidate).await;
        match candidate.gone {
            Some(gone) => Err(gone),
            None => Ok(Some((candidate.caller, given))),
        }
    }

    /// The holder of a secret that was good before, with the roles of now; a problem when it is good no more.
    pub async fn still_holds(
        &self,
        admin: &Admin,
        id: &str,
        secret_hash: &str,
    ) -> Result<Caller, Problem> {
        let candidate = self.candidate(admin, id).await?;
        let Some(candidate) = candidate.filter(|known| known.holds(secret_hash)) else {
            let detail = format!("key {id} has another secret by now: log in with that");
            return Err(Problem::refused(Refusal::Session, detail));
        };
        note_use(admin, &candidate).await;
        candidate.gone.map_or(Ok(candidate.caller), Err)
    }

    /// Whether a key that was let in is good still, and may do this still.
    pub async fn still_may(
        &self,
        admin: &Admin,
        id: &str,
        module: Module,
        access: Access,
    ) -> Result<bool, LedgerError> {
        let candidate = self.candidate(admin, id).await?;
        Ok(candidate.is_some_and(|known| known.gone.is_none() && known.caller.may(module, access)))
    }

    /// What pages of a session send with their writes: it cannot be guessed, and no other site can read it.
    pub fn csrf_token(&self, session_hash: &str) -> String {
        self.derive(&format!("csrf {session_hash}"))
    }

    /// The nonces of this process; `false` when it was used. Spares the node a call, and is all there is for a read while the node is away.
    fn first_use_here(&self, key: &str, nonce: &str) -> Result<bool, Problem> {
        let mut nonces = self.nonces.lock().expect("no panic under this lock");
        nonces.first_use(key, nonce, Instant::now())
    }
}

impl Nonces {
    fn first_use(&mut self, key: &str, nonce: &str, now: Instant) -> Result<bool, Problem> {
        let kept = Duration::from_millis(NONCE_KEPT_MS);
        let fresh = |seen: &mut Instant| now.saturating_duration_since(*seen) < kept;
        let too_many = |most: usize, whose: &str| {
            let detail = format!("{most} requests {whose} within {kept:?} are the most: wait");
            Problem::new(429, "too many requests", detail).retry_after(kept)
        };
        if self.0.values().map(HashMap::len).sum::<usize>() >= NONCES_MAX {
            self.0.retain(|_, nonces| {
                nonces.retain(|_, seen| fresh(seen));
                !nonces.is_empty()
            });
            if self.0.values().map(HashMap::len).sum::<usize>() >= NONCES_MAX {
                return Err(too_many(NONCES_MAX, "of all keys"));
            }
        }
        let nonces = self.0.entry(key.to_owned()).or_default();
        if nonces.len() >= NONCES_OF_KEY {
            nonces.retain(|_, seen| fresh(seen));
            if nonces.len() >= NONCES_OF_KEY {
                return Err(too_many(NONCES_OF_KEY, "of one key"));
            }
        }
        let before = nonces.insert(nonce.to_owned(), now);
        Ok(before.is_none_or(|mut seen| !fresh(&mut seen)))
    }
}

impl Candidate {
    /// In constant time.
    fn holds(&self, secret_hash: &str) -> bool {
        let hashes = self.secrets.iter().map(|secret| hash_of(secret));
        hashes.fold(false, |found, hash| {
            found | bool::from(hash.as_bytes().ct_eq(secret_hash.as_bytes()))
        })
    }
}

/// SHA-256, hex: what SQL holds of a secret.
pub fn hash_of(secret: &str) -> String {
    hex::encode(Sha256::digest(secret))
}

pub fn bootstrap_caller() -> Caller {
    Caller {
        id: BOOTSTRAP.into(),
        name: "API key file".into(),
        roles: vec![Role::Admin],
    }
}

fn caller_of(key: &ApiKey) -> Caller {
    // A role that a later version of the program knows allows nothing here.
    let roles = key.roles.split(',').filter_map(|role| role.parse().ok());
    Caller {
        id: key.id.clone(),
        name: key.name.clone(),
        roles: roles.collect(),
    }
}

impl Signed {
    /// What can be told before the body is read: all headers are there, and the time is right.
    pub fn read(headers: &HeaderMap) -> Result<Signed, Problem> {
        let unsigned = |detail: String| Problem::refused(Refusal::Unsigned, detail);
        let header = |name: &'static str| {
            let mut values = headers.get_all(name).iter();
            let value = values.next().filter(|_| values.next().is_none());
            let text = value.and_then(|value| value.to_str().ok());
            text.ok_or_else(|| unsigned(format!("send the header {name} once; see proto/admin.md")))
        };
        let (key, time, nonce, signature) = (
            header(KEY)?,
            header(TIME)?,
            header(NONCE)?,
            header(SIGNATURE)?,
        );
        let time_ms: i64 = time
            .parse()
            .map_err(|_| unsigned(format!("{TIME} {time:?} is not a time in ms since 1970")))?;
        let allowed = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if !NONCE_LENGTH.contains(&nonce.len()) || !nonce.chars().all(allowed) {
            let problem = format!("{NONCE} must be 16 to 64 characters from A-Z a-z 0-9 _ -");
            return Err(unsigned(problem));
        }
        let signature = hex::decode(signature)
            .ok()
            .filter(|bytes| bytes.len() == 32)
            .ok_or_else(|| unsigned(format!("{SIGNATURE} must be 64 hex digits")))?;
        let idempotency_key = match headers.contains_key(IDEMPOTENCY_KEY) {
            true => header(IDEMPOTENCY_KEY)?,
            false => "",
        };
        let now = now_ms();
        if now.saturating_sub(time_ms).saturating_abs() > WINDOW_MS {
            let (apart, side) = match now.saturating_sub(time_ms) {
                late if late > 0 => (late, "behind"),
                early => (early.saturating_neg(), "ahead of"),
            };
            let detail = format!(
                "{TIME} {time_ms} is {apart} ms {side} the server's clock, which says {now}; {WINDOW_MS} ms are allowed: set the clock of the machine that signs (timedatectl set-ntp true)"
            );
            let problem = Problem::refused(Refusal::Clock, detail);
            return Err(problem.with("server_time_ms", json!(now)));
        }
        Ok(Signed {
            key: key.to_owned(),
            time_ms,
            nonce: nonce.to_owned(),
            signature,
            idempotency_key: idempotency_key.to_owned(),
        })
    }
}

/// Who sent this: the one way in. `body` is asked for only when the rest is right so far.
pub async fn authenticate(
    admin: &Admin,
    method: &Method,
    uri: &Uri,
    signed: &Signed,
    body: impl Future<Output = Result<axum::body::Bytes, Problem>>,
) -> Result<(Caller, axum::body::Bytes), Problem> {
    let candidate = admin.gate.candidate(admin, &signed.key).await?;
    let wrong = || {
        let detail = "the key is not known, its secret is another, or the request was changed on the way; see proto/admin.md";
        Problem::refused(Refusal::Signature, detail)
    };
    let candidate = candidate.ok_or_else(wrong)?;
    let body = body.await?;
    let parts = Parts {
        method: method.as_str(),
        path: uri.path(),
        query: uri.query().unwrap_or_default(),
        time_ms: signed.time_ms,
        nonce: &signed.nonce,
        idempotency_key: &signed.idempotency_key,
        body: &body,
    };
    let matches = |secret: &String| parts.verify(secret, &signed.signature);
    if !candidate.secrets.iter().any(matches) {
        return Err(wrong());
    }
    once(admin, signed, method.is_safe()).await?;
    if let Some(gone) = candidate.gone {
        return Err(gone);
    }
    note_use(admin, &candidate).await;
    Ok((candidate.caller, body))
}

/// The nonce works once, on all admin processes together. While its node is away nothing is written (fail closed); a read is let through
/// on this process's memory alone, since an operator must see just then what is wrong. Whoever replays that read within its window, through
/// another process, learns what they overheard anyway.
async fn once(admin: &Admin, signed: &Signed, reads: bool) -> Result<(), Problem> {
    // Two keys' nonces are two nonces.
    let nonce = format!("{}.{}", signed.key, signed.nonce);
    let used = || Problem::refused(Refusal::Replayed, "sign every request with a new nonce");
    if !admin.gate.first_use_here(&signed.key, &signed.nonce)? {
        return Err(used());
    }
    match admin.store.first_use(&nonce, NONCE_KEPT_MS).await {
        Ok(true) => Ok(()),
        Ok(false) => Err(used()),
        Err(_) if reads => Ok(()),
        Err(error) => {
            let detail = format!("nothing was done, try again: {error}");
            Err(Problem::new(503, "the nonce cannot be checked", detail))
        }
    }
}

async fn note_use(admin: &Admin, candidate: &Candidate) {
    let now = now_ms();
    if candidate
        .last_used_at_ms
        .unwrap_or(0)
        .saturating_add(USE_NOTED_MS)
        > now
    {
        return;
    }
    let id = &candidate.caller.id;
    match admin.ledger.used_api_key(id, now).await {
        Ok(()) => admin.gate.forget_keys().await,
        // Nobody is refused for that.
        Err(error) => tracing::debug!(key = id, %error, "the use of a key cannot be noted"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_asks_too_often_waits_and_the_others_do_not() {
        let mut nonces = Nonces::default();
        let start = Instant::now();
        for n in 0..NONCES_OF_KEY {
            let first = nonces.first_use("loud", &n.to_string(), start);
            assert!(first.unwrap());
        }
        let problem = nonces.first_use("loud", "one more", start).unwrap_err();
        assert_eq!(problem.status(), 429);
        assert!(nonces.first_use("quiet", "1", start).unwrap());
        assert!(!nonces.first_use("quiet", "1", start).unwrap(), "a replay");
        let later = start + Duration::from_millis(NONCE_KEPT_MS);
        assert!(nonces.first_use("loud", "one more", later).unwrap());
    }
}
