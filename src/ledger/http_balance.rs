//! The endpoint of a company's balance system. `proto/balance.md` is the contract; this is our side of it.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use axum::http::{Request, StatusCode, Uri, header};
use bytes::Bytes;
use futures_util::future::join_all;
use hmac::{Hmac, KeyInit, Mac};
use http_body_util::Full;
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use tokio::sync::Semaphore;

use crate::clock::now_ms;
use crate::metrics;
use crate::post::{PostError, Poster, Trust, TrustError};
use crate::rain::{Cents, Claim, PacketId, UserId};

use super::credit::Verdict;

/// An answer is read up to this many bytes a claim, and as many on top: several times what the contract's longest result takes.
const ANSWER_BYTES_PER_CLAIM: usize = 1_024;
/// Of a text that the other side sends, this much is kept: it ends in logs and dead letters.
const REASON_CHARS_MAX: usize = 160;

#[derive(Clone)]
pub struct EndpointSettings {
    pub url: Uri,
    pub secret: Vec<u8>,
    pub trust: Trust,
    /// For one request, from connecting to the last byte of the answer.
    pub timeout: Duration,
    /// After this long no further request of a batch is begun, so that the claims' lease does not run out under it.
    pub begin_max: Duration,
    /// Claims in one request.
    pub batch_max: usize,
    /// Requests of this process under way.
    pub concurrency_max: usize,
}

/// Cheap to clone; all clones share the connections and the bound on requests under way.
#[derive(Clone)]
pub struct Endpoint(Arc<Inner>);

struct Inner {
    settings: EndpointSettings,
    poster: Poster,
    places: Semaphore,
    /// Requests that came to nothing.
    troubles: AtomicU64,
}

/// What the other side said about one claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// Paid, now or before, to this user and with this amount.
    Confirmed,
    Not(Verdict),
}

/// Nothing is known about any claim of a request.
enum Trouble {
    Post(PostError),
    Status(StatusCode, String),
    Unreadable(String),
}

impl Trouble {
    /// For metrics.
    fn word(&self) -> &'static str {
        match self {
            Trouble::Post(PostError::Unreachable(_)) => "unreachable",
            Trouble::Post(PostError::TimedOut(_)) => "timed_out",
            Trouble::Post(PostError::Broken(_)) => "broken",
            Trouble::Post(PostError::TooLarge(_)) | Trouble::Unreadable(_) => "unreadable",
            Trouble::Status(status, _) if status.is_client_error() => "refused",
            Trouble::Status(..) => "failed",
        }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::Post(error) => error.fmt(f),
            Trouble::Status(status, text) => write!(f, "it answers {}: {text}", status.as_u16()),
            Trouble::Unreadable(problem) => write!(f, "its answer cannot be read: {problem}"),
        }
    }
}

#[derive(Serialize)]
struct Body<'a> {
    claims: Vec<BodyClaim<'a>>,
}

#[derive(Serialize)]
struct BodyClaim<'a> {
    packet_id: PacketId,
    user: &'a UserId,
    amount_cents: Cents,
}

#[derive(Deserialize)]
struct Results {
    results: Vec<serde_json::Value>,
}

#[derive(Deserialize)]
struct Item {
    result: Word,
    user: Option<UserId>,
    amount_cents: Option<Cents>,
    reason: Option<String>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Word {
    Credited,
    Existed,
    Conflict,
    Retry,
    Rejected,
}

impl Endpoint {
    pub fn new(settings: EndpointSettings) -> Result<Endpoint, TrustError> {
        let poster = Poster::new(settings.timeout, &settings.trust)?;
        let places = Semaphore::new(settings.concurrency_max);
        Ok(Endpoint(Arc::new(Inner {
            settings,
            poster,
            places,
            troubles: AtomicU64::new(0),
        })))
    }

    /// Has claims of different packets paid, in as many requests as it takes; one answer for each, in their order.
    pub(super) async fn pay(&self, claims: &[&Claim]) -> Vec<Answer> {
        let inner = &*self.0;
        let deadline = Instant::now() + inner.settings.begin_max;
        // Once a request came to nothing, no batch that is under way begins a further one: an outage costs a few requests, not all.
        let troubles = inner.troubles.load(Ordering::Relaxed);
        let parts = claims.chunks(inner.settings.batch_max);
        let answers = join_all(parts.map(|part| inner.pay_part(part, deadline, troubles))).await;
        answers.concat()
    }
}

impl Inner {
    async fn pay_part(&self, part: &[&Claim], deadline: Instant, troubles: u64) -> Vec<Answer> {
        let unknown = |reason: String| {
            let reason = format!("balance system: {reason}");
            vec![Answer::Not(Verdict::Unknown(reason)); part.len()]
        };
        let Ok(Ok(_place)) = tokio::time::timeout_at(deadline.into(), self.places.acquire()).await
        else {
            return unknown(
                "too slow: no request can be begun before the claims' lease runs out".into(),
            );
        };
        if self.troubles.load(Ordering::Relaxed) != troubles {
            return unknown("not asked, since another request failed".into());
        }
        let started = Instant::now();
        let answers = self.post(part).await;
        let result = answers.as_ref().map_or_else(Trouble::word, |_| "answered");
        metrics::get()
            .balance_request_seconds
            .record(started.elapsed());
        metrics::get().balance_requested(result);
        answers.unwrap_or_else(|trouble| {
            self.troubles.fetch_add(1, Ordering::Relaxed);
            unknown(trouble.to_string())
        })
    }

    async fn post(&self, part: &[&Claim]) -> Result<Vec<Answer>, Trouble> {
        let request = request(&self.settings, part, now_ms());
        let answer_max = ANSWER_BYTES_PER_CLAIM * (part.len() + 1);
        let (status, body) = self
            .poster
            .post(request, answer_max)
            .await
            .map_err(Trouble::Post)?;
        if status != StatusCode::OK {
            return Err(Trouble::Status(
                status,
                shown(&String::from_utf8_lossy(&body)),
            ));
        }
        read(part, &body).map_err(Trouble::Unreadable)
    }
}

fn request(settings: &EndpointSettings, part: &[&Claim], at_ms: i64) -> Request<Full<Bytes>> {
    let claims = part.iter().map(|claim| BodyClaim {
        packet_id: claim.packet.id,
        user: &claim.user,
        amount_cents: claim.packet.cents,
    });
    let body = Body {
        claims: claims.collect(),
    };
    let body = serde_json::to_vec(&body).expect("text and numbers are always JSON");
    Request::post(settings.url.clone())
        .header(header::CONTENT_TYPE, "application/json")
        .header(
            header::USER_AGENT,
            concat!("hongbao/", env!("CARGO_PKG_VERSION")),
        )
        .header("hongbao-timestamp", at_ms)
        .header(
            "hongbao-signature",
            signature(&settings.secret, at_ms, &body),
        )
        .body(Full::from(body))
        .expect("numbers and hex text are header values")
}

/// `v1=` and the HMAC-SHA256 (RFC 2104) of the timestamp's text, a full stop and the body, in hex.
fn signature(secret: &[u8], at_ms: i64, body: &[u8]) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).expect("HMAC takes keys of any length");
    mac.update(format!("{at_ms}.").as_bytes());
    mac.update(body);
    format!("v1={}", hex::encode(mac.finalize().into_bytes()))
}

/// One answer for each claim. An item that cannot be read spoils its own claim, not its neighbours.
fn read(part: &[&Claim], body: &[u8]) -> Result<Vec<Answer>, String> {
    let results: Results = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    let places: HashMap<PacketId, usize> = part
        .iter()
        .enumerate()
        .map(|(i, claim)| (claim.packet.id, i))
        .collect();
    let mut answers: Vec<Option<Answer>> = vec![None; part.len()];
    let mut strays = 0u64;
    for item in results.results {
        let packet = item
            .get("packet_id")
            .and_then(|id| id.as_str()?.parse().ok());
        let Some(&place) = packet.and_then(|id: PacketId| places.get(&id)) else {
            strays += 1;
            continue;
        };
        let answer = match serde_json::from_value::<Item>(item) {
            Ok(item) => judge(part[place], item),
            Err(error) => retry(format!("its result cannot be read: {error}")),
        };
        let known = &mut answers[place];
        *known = match known.take() {
            Some(other) if other != answer => Some(retry("two results that differ".into())),
            _ => Some(answer),
        };
    }
    if strays > 0 {
        tracing::warn!(
            items = strays,
            "the balance system answered for packets it was not asked about"
        );
    }
    if answers.iter().all(Option::is_none) {
        return Err(format!(
            "none of the {} packets asked for is in it",
            part.len()
        ));
    }
    let missing = || retry("its answer leaves this packet out".into());
    Ok(answers
        .into_iter()
        .map(|answer| answer.unwrap_or_else(missing))
        .collect())
}

fn judge(claim: &Claim, item: Item) -> Answer {
    let reason = || shown(item.reason.as_deref().unwrap_or("no reason given"));
    match (item.result, &item.user, item.amount_cents) {
        (Word::Credited | Word::Existed, Some(user), Some(cents))
            if *user == claim.user && cents == claim.packet.cents =>
        {
            Answer::Confirmed
        }
        // Paid, but not what was asked: as bad as a packet id that was used before for something else.
        (Word::Credited | Word::Existed | Word::Conflict, Some(user), Some(cents)) => {
            Answer::Not(Verdict::Conflict {
                user: user.clone(),
                cents,
            })
        }
        (Word::Credited | Word::Existed | Word::Conflict, ..) => {
            retry("a result without user and amount_cents".into())
        }
        (Word::Retry, ..) => retry(reason()),
        (Word::Rejected, ..) => Answer::Not(Verdict::Rejected(reason())),
    }
}

fn retry(reason: String) -> Answer {
    Answer::Not(Verdict::Retry(format!(
        "balance system: {}",
        shown(&reason)
    )))
}

/// Other people's text, on one line of bounded length.
fn shown(text: &str) -> String {
    let plain = text
        .trim()
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c });
    plain.take(REASON_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(text: &str) -> Claim {
        text.parse().unwrap()
    }

    fn settings() -> EndpointSettings {
        EndpointSettings {
            url: "http://127.0.0.1/hongbao".parse().unwrap(),
            secret: (0..32).collect(),
            trust: Trust::Nobody,
            timeout: Duration::from_secs(1),
            begin_max: Duration::from_secs(1),
            batch_max: 10,
            concurrency_max: 1,
        }
    }

    /// The signature there was computed by openssl.
    #[tokio::test]
    async fn a_request_is_byte_by_byte_the_one_in_the_contract() {
        let claims = [claim("30064771113:888:anna"), claim("30064771114:1:app:li")];
        let claims: Vec<&Claim> = claims.iter().collect();
        let request = request(&settings(), &claims, 1_790_000_000_000);
        let (head, body) = request.into_parts();
        let body = http_body_util::BodyExt::collect(body).await.unwrap();
        let mut text = format!("{} {} HTTP/1.1\n", head.method, head.uri.path());
        for (name, value) in &head.headers {
            text += &format!("{name}: {}\n", value.to_str().unwrap());
        }
        text += &format!("\n{}\n", str::from_utf8(&body.to_bytes()).unwrap());
        let contract = include_str!("../../proto/balance.md");
        assert!(contract.contains(&text), "{text}is not in proto/balance.md");
    }

    fn answers(body: &str) -> Result<Vec<Answer>, String> {
        let claims = [claim("30064771113:888:anna"), claim("30064771114:1:app:li")];
        read(&claims.iter().collect::<Vec<_>>(), body.as_bytes())
    }

    fn conflict(user: &str, cents: i64) -> Answer {
        Answer::Not(Verdict::Conflict {
            user: UserId::new(user).unwrap(),
            cents: Cents(cents),
        })
    }

    #[test]
    fn the_answer_in_the_contract_pays_one_and_rejects_one() {
        let contract = include_str!("../../proto/balance.md");
        let body = contract
            .lines()
            .find(|line| line.starts_with("{\"results\""))
            .unwrap();
        let rejected = Answer::Not(Verdict::Rejected("account closed".into()));
        assert_eq!(answers(body).unwrap(), [Answer::Confirmed, rejected]);
    }

    #[test]
    fn an_item_that_makes_no_sense_spoils_only_its_own_claim() {
        let li =
            r#"{"packet_id":"30064771114","result":"existed","user":"app:li","amount_cents":1}"#;
        for (anna, said) in [
            (
                r#"{"packet_id":"30064771113","result":"paid"}"#,
                "cannot be read",
            ),
            (
                r#"{"packet_id":"30064771113","result":"credited","user":"anna","amount_cents":888.0}"#,
                "cannot be read",
            ),
            (
                r#"{"packet_id":"30064771113","result":"credited","user":"anna"}"#,
                "without user and amount_cents",
            ),
            (
                r#"{"packet_id":"30064771113","result":"retry","reason":"locked\naccount"}"#,
                "balance system: locked account",
            ),
            (
                r#"{"packet_id":"30064771113","result":"retry"}"#,
                "no reason given",
            ),
            (
                r#"{"packet_id":30064771113,"result":"retry"}"#,
                "leaves this packet out",
            ),
            (
                r#"{"packet_id":"99999999999","result":"credited"}, 7, null"#,
                "leaves this packet out",
            ),
            (
                r#"{"packet_id":"30064771113","result":"retry"},{"packet_id":"30064771113","result":"rejected"}"#,
                "two results that differ",
            ),
        ] {
            let read = answers(&format!(r#"{{"results":[{li},{anna}],"more":1}}"#)).unwrap();
            assert_eq!(read[1], Answer::Confirmed, "{anna}");
            let Answer::Not(Verdict::Retry(reason)) = &read[0] else {
                panic!("{anna}: {:?}", read[0])
            };
            assert!(reason.contains(said), "{anna}: {reason}");
        }
    }

    #[test]
    fn what_was_paid_otherwise_than_asked_is_a_conflict_whatever_it_is_called() {
        for word in ["credited", "existed", "conflict"] {
            for (user, cents) in [("anna", 887), ("bert", 888)] {
                let body = format!(
                    r#"{{"results":[{{"packet_id":"30064771113","result":"{word}","user":"{user}","amount_cents":{cents}}}]}}"#
                );
                assert_eq!(answers(&body).unwrap()[0], conflict(user, cents), "{body}");
            }
        }
    }

    #[test]
    fn an_answer_without_any_packet_asked_for_is_an_outage() {
        for body in [
            "",
            "garbage",
            "[]",
            "{}",
            r#"{"results":[]}"#,
            r#"{"results":[{"packet_id":"5"}]}"#,
        ] {
            assert!(answers(body).is_err(), "{body}");
        }
    }
}
