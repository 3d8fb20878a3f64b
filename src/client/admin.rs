//! A thin client of the admin HTTP API (v1): one method per operation, amounts as integers in cents.
//!
//! Everything that depends on the API's shape stands in this file. Answers may carry more fields than are read here.

use std::time::Duration;

use reqwest::{Method, Response, StatusCode, Url};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::rain::split::Rule;
use crate::rain::{Cents, Durability, PacketId, RainId, State, UserId};

/// One request, unless it is known to take longer.
const CALL: Duration = Duration::from_secs(15);
/// Audits and closing walk through every packet of a rain.
const LONG_CALL: Duration = Duration::from_secs(180);
/// Of an answer that is not JSON, this much is shown.
const SHOWN_MAX: usize = 200;

#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    #[error("\"{0}\" is no address of an admin API: write it like http://127.0.0.1:7080")]
    Address(String),
    #[error("the admin API at {url} cannot be reached: {reason}")]
    Unreachable { url: String, reason: String },
    /// The API refused, and says why (problem+json).
    #[error("{title} ({status}){}{detail}", if .detail.is_empty() { "" } else { ": " })]
    Problem {
        status: u16,
        title: String,
        detail: String,
    },
    #[error("{method} {path} answered something unexpected: {reason}")]
    Unreadable {
        method: Method,
        path: String,
        reason: String,
    },
}

impl AdminError {
    /// Nobody answered, or somebody who cannot do it now: the same call may succeed a moment later.
    ///
    /// A call that changes something may have been carried out all the same.
    pub fn may_pass(&self) -> bool {
        match self {
            AdminError::Unreachable { .. } => true,
            AdminError::Problem { status, .. } => matches!(status, 429 | 502 | 503 | 504),
            AdminError::Address(_) | AdminError::Unreadable { .. } => false,
        }
    }
}

/// A rain as an operator asks for it. What is `None` is left to the server's defaults.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NewRain {
    pub title: String,
    pub room: String,
    pub sponsor: String,
    pub rule: Rule,
    pub total_cents: Cents,
    pub packets: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_cents: Option<Cents>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_cents: Option<Cents>,
    /// ms since 1970; without it an operator opens the rain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub opens_at_ms: Option<i64>,
    /// How long it stays open.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub durability: Option<Durability>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub buckets: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refund_after_ms: Option<i64>,
    /// Grabs must carry a key that clients are told when the rain opens.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub key_required: bool,
    /// How long before its opening the room is told; without it as soon as the rain is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub announce_ms: Option<i64>,
    /// The caller's own name for this request: the same key makes one rain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// Packets and money for a rain that exists. What is `None` is as it was when the rain was created.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NewTopUp {
    pub packets: u32,
    pub total_cents: Cents,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<Rule>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_cents: Option<Cents>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_cents: Option<Cents>,
    /// The caller's own name for this request: the same key tops up once.
    pub key: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// Like `sponsor:demo`.
    pub name: String,
    pub balance_cents: Cents,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rain {
    pub id: RainId,
    pub state: State,
    #[serde(default)]
    pub title: String,
    #[serde(default)]
    pub room: String,
    /// With all top-ups.
    #[serde(default)]
    pub packets: Option<u32>,
    #[serde(default)]
    pub total_cents: Option<Cents>,
    /// How many of them are or have been in their pools.
    #[serde(default)]
    pub loaded_packets: Option<u32>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub top_ups: Vec<TopUp>,
    #[serde(default)]
    pub sold_out: bool,
    #[serde(default)]
    pub rule: Option<Rule>,
    #[serde(default)]
    pub opens_at_ms: Option<i64>,
    /// Unknown while the opening time is.
    #[serde(default)]
    pub closes_at_ms: Option<i64>,
    #[serde(default)]
    pub duration_ms: Option<u64>,
    #[serde(default)]
    pub buckets: Option<u32>,
    /// Only where one rain was asked for.
    #[serde(default)]
    pub live: Option<Live>,
}

/// What a rain was given after its creation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TopUp {
    /// Counted within the rain, from 1.
    pub number: u32,
    pub packets: u32,
    pub total_cents: Cents,
    pub rule: Rule,
    pub loaded: bool,
}

/// The answer to a top-up.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToppedUp {
    /// The number of this top-up among those of the rain.
    pub top_up: u32,
    #[serde(flatten)]
    pub rain: Rain,
}

/// Where the packets of a rain are at this moment. Counts of packets and claims.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Live {
    pub pool: u64,
    pub claims_waiting: u64,
    pub leased: u64,
    pub retrying: u64,
    pub dead: u64,
    pub credited_count: u64,
    pub credited_cents: Cents,
}

impl Live {
    /// Claims on their way to a credit. Dead ones wait for a person.
    pub fn claims_moving(&self) -> u64 {
        self.claims_waiting + self.leased + self.retrying
    }
}

/// What a repair found and did, see `hongbao::steward::repair`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Repair {
    pub buckets: Vec<usize>,
    pub wins_restored: u64,
    pub packets_removed: u64,
    pub packets_returned: u64,
    pub not_restored_total: u64,
    pub not_restored: Vec<NotRestored>,
}

/// A paid win that could not be put back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotRestored {
    pub user: UserId,
    pub packet_id: PacketId,
    pub reason: String,
}

/// The verdict on a rain.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Audit {
    pub rain_id: RainId,
    pub balanced: bool,
    /// Packets that are neither in a pool nor at their end: more than 0 only while the rain lives.
    #[serde(default)]
    pub in_motion: u64,
    pub funded_cents: Cents,
    #[serde(default)]
    pub pool_cents: Cents,
    #[serde(default)]
    pub claims_cents: Cents,
    pub credited_cents: Cents,
    pub credited_count: u64,
    pub refunded_cents: Cents,
    #[serde(default)]
    pub differences: Vec<Difference>,
}

/// One thing that is not as it must be.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Difference {
    pub kind: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packet_id: Option<PacketId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cents: Option<Cents>,
    #[serde(default)]
    pub detail: String,
}

/// A credited win.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Winner {
    pub packet_id: PacketId,
    pub user: UserId,
    pub cents: Cents,
    pub credited_at_ms: i64,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct WinnersPage {
    pub winners: Vec<Winner>,
    /// Where the next page starts; `None` on the last one.
    #[serde(default)]
    pub next: Option<PacketId>,
}

/// A claim that waits for a person.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadLetter {
    pub packet_id: PacketId,
    pub rain_id: RainId,
    pub user: UserId,
    pub cents: Cents,
    pub at_ms: i64,
    pub attempts: u32,
    /// A kind, a colon, and the detail.
    pub reason: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadLettersPage {
    pub dead_letters: Vec<DeadLetter>,
    /// Where the next page starts; `None` on the last one.
    #[serde(default)]
    pub next: Option<PacketId>,
    /// Texts among them that nobody can read.
    #[serde(default)]
    pub unreadable: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Discarded {
    pub packet_id: PacketId,
    pub cents: Cents,
    pub returned: bool,
    pub detail: String,
}

/// Cheap to clone; clones share their connections.
#[derive(Clone)]
pub struct AdminClient {
    http: reqwest::Client,
    base: Url,
    authorization: String,
}

impl AdminClient {
    /// `base_url` like `http://127.0.0.1:7080`, with or without a path in front of `/v1`.
    ///
    /// # Errors
    /// [`AdminError::Address`], also for https, which this client does not speak; whether somebody answers there is found out by the first call.
    pub fn new(base_url: &str, api_key: &str) -> Result<AdminClient, AdminError> {
        let fault = || AdminError::Address(base_url.to_owned());
        let base = Url::parse(base_url).map_err(|_| fault())?;
        if base.scheme() != "http" || !base.has_host() {
            return Err(fault());
        }
        let http = reqwest::Client::builder()
            .connect_timeout(Duration::from_secs(5))
            .no_proxy() // the admin listener is on loopback or a private network
            .build()
            .map_err(|error| AdminError::Unreachable {
                url: base_url.to_owned(),
                reason: chain(&error),
            })?;
        Ok(AdminClient {
            http,
            base,
            authorization: format!("Bearer {}", api_key.trim()),
        })
    }

    /// Makes the account `sponsor:<sponsor>`, or finds it.
    pub async fn create_sponsor(&self, sponsor: &str) -> Result<Account, AdminError> {
        self.post(&["accounts"], json!({ "sponsor": sponsor }))
            .await
    }

    /// Moves `cents` from outside onto a sponsor's account. The same `key` deposits once, however often it is sent.
    pub async fn deposit(
        &self,
        sponsor: &str,
        cents: Cents,
        key: &str,
    ) -> Result<Account, AdminError> {
        let body = json!({ "cents": cents, "key": key });
        self.post(&["accounts", sponsor, "deposits"], body).await
    }

    /// By full name: `sponsor:demo`, `user:anna`, `escrow:7`.
    pub async fn account(&self, name: &str) -> Result<Account, AdminError> {
        self.get(&["accounts", name], &[]).await
    }

    pub async fn create_rain(&self, rain: &NewRain) -> Result<Rain, AdminError> {
        self.call(Method::POST, &["rains"], &[], Some(json!(rain)), CALL)
            .await
    }

    /// All rains, as the API orders them.
    pub async fn rains(&self) -> Result<Vec<Rain>, AdminError> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Answer {
            Plain(Vec<Rain>),
            Wrapped { rains: Vec<Rain> },
        }
        Ok(match self.get(&["rains"], &[]).await? {
            Answer::Plain(rains) | Answer::Wrapped { rains } => rains,
        })
    }

    /// With its live numbers.
    pub async fn rain(&self, id: RainId) -> Result<Rain, AdminError> {
        self.get(&["rains", &id.to_string()], &[]).await
    }

    pub async fn open_rain(&self, id: RainId) -> Result<Rain, AdminError> {
        self.post(&["rains", &id.to_string(), "open"], json!({}))
            .await
    }

    /// Adds packets and money to a rain that is not closed. Repeating it with the same key changes nothing.
    pub async fn top_up_rain(&self, id: RainId, top_up: &NewTopUp) -> Result<ToppedUp, AdminError> {
        self.post(&["rains", &id.to_string(), "top-up"], json!(top_up))
            .await
    }

    /// Closes every gate and refunds what is left.
    pub async fn close_rain(&self, id: RainId) -> Result<Rain, AdminError> {
        let path = ["rains", &id.to_string(), "close"];
        self.call(Method::POST, &path, &[], Some(json!({})), LONG_CALL)
            .await
    }

    pub async fn audit(&self, id: RainId) -> Result<Audit, AdminError> {
        let path = ["rains", &id.to_string(), "audit"];
        self.call(Method::GET, &path, &[], None, LONG_CALL).await
    }

    /// Compares suspect buckets, or `all`, with the ledger now; `None` when none was suspect, or somebody else has repaired them.
    pub async fn repair(&self, id: RainId, all: bool) -> Result<Option<Repair>, AdminError> {
        #[derive(Deserialize)]
        struct Repaired {
            repaired: Option<Repair>,
        }
        let path = ["rains", &id.to_string(), "repair"];
        let body = Some(json!({ "all": all }));
        let answer: Repaired = self.call(Method::POST, &path, &[], body, LONG_CALL).await?;
        Ok(answer.repaired)
    }

    /// One page of credited winners by packet id, those after `after`. `limit`: 1 to 1000.
    pub async fn winners(
        &self,
        id: RainId,
        after: Option<PacketId>,
        limit: u32,
    ) -> Result<WinnersPage, AdminError> {
        let mut query = vec![("limit", limit.to_string())];
        query.extend(after.map(|after| ("after", after.to_string())));
        self.get(&["rains", &id.to_string(), "winners"], &query)
            .await
    }

    /// Every credited winner, page by page.
    pub async fn all_winners(&self, id: RainId) -> Result<Vec<Winner>, AdminError> {
        let mut all: Vec<Winner> = Vec::new();
        let mut after = None;
        loop {
            let page = self.winners(id, after, 1_000).await?;
            all.extend(page.winners);
            // A page that does not lead on would be asked for without end.
            match page.next {
                Some(next) if Some(next) > after => after = Some(next),
                Some(_) | None => return Ok(all),
            }
        }
    }

    /// Dead letters by packet id, those after `after`; of one rain or all, with one kind of reason or any. `limit`: 1 to 1000.
    pub async fn dead_letters(
        &self,
        rain: Option<RainId>,
        reason: Option<&str>,
        after: Option<PacketId>,
        limit: u32,
    ) -> Result<DeadLettersPage, AdminError> {
        let mut query = vec![("limit", limit.to_string())];
        query.extend(rain.map(|rain| ("rain", rain.to_string())));
        query.extend(reason.map(|reason| ("reason", reason.to_owned())));
        query.extend(after.map(|after| ("after", after.to_string())));
        self.get(&["dead-letters"], &query).await
    }

    pub async fn dead_letter(&self, packet: PacketId) -> Result<DeadLetter, AdminError> {
        self.get(&["dead-letters", &packet.to_string()], &[]).await
    }

    /// Has the settlers try again: one packet, or all that the filter names. Returns how many.
    pub async fn requeue(
        &self,
        packet: Option<PacketId>,
        rain: Option<RainId>,
        reason: Option<&str>,
    ) -> Result<u64, AdminError> {
        #[derive(Deserialize)]
        struct Answer {
            requeued: u64,
        }
        let answer: Answer = match packet {
            Some(packet) => {
                self.post(&["dead-letters", &packet.to_string(), "requeue"], json!({}))
                    .await?
            }
            None => {
                let body = json!({ "rain": rain, "reason": reason });
                self.call(
                    Method::POST,
                    &["dead-letters", "requeue"],
                    &[],
                    Some(body),
                    LONG_CALL,
                )
                .await?
            }
        };
        Ok(answer.requeued)
    }

    /// Gives the money of a dead letter back to the sponsor, for good.
    pub async fn discard(&self, packet: PacketId, reason: &str) -> Result<Discarded, AdminError> {
        self.post(
            &["dead-letters", &packet.to_string(), "discard"],
            json!({ "reason": reason }),
        )
        .await
    }

    pub(super) async fn get<T: DeserializeOwned>(
        &self,
        path: &[&str],
        query: &[(&str, String)],
    ) -> Result<T, AdminError> {
        self.call(Method::GET, path, query, None, CALL).await
    }

    pub(super) async fn post<T: DeserializeOwned>(
        &self,
        path: &[&str],
        body: Value,
    ) -> Result<T, AdminError> {
        self.call(Method::POST, path, &[], Some(body), CALL).await
    }

    pub(super) async fn post_long<T: DeserializeOwned>(
        &self,
        path: &[&str],
        query: &[(&str, String)],
        body: Value,
    ) -> Result<T, AdminError> {
        self.call(Method::POST, path, query, Some(body), LONG_CALL)
            .await
    }

    async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &[&str],
        query: &[(&str, String)],
        body: Option<Value>,
        limit: Duration,
    ) -> Result<T, AdminError> {
        let response = self
            .send(method.clone(), path, query, body, Some(limit))
            .await?;
        let path = response.url().path().to_owned();
        let bytes = response.bytes().await.map_err(|error| self.lost(&error))?;
        serde_json::from_slice(&bytes).map_err(|error| AdminError::Unreadable {
            method,
            path,
            reason: format!("{error} in {}", shown(&bytes)),
        })
    }

    /// An answer that is no problem, its body still to be read. `path` below `/v1`, one element each: they are percent-encoded, so a name may hold any
    /// character. Without a `limit` the body may take as long as it takes.
    pub(super) async fn send(
        &self,
        method: Method,
        path: &[&str],
        query: &[(&str, String)],
        body: Option<Value>,
        limit: Option<Duration>,
    ) -> Result<Response, AdminError> {
        let mut request = self
            .http
            .request(method, self.url(path, query))
            .header("authorization", &self.authorization);
        if let Some(limit) = limit {
            request = request.timeout(limit);
        }
        if let Some(body) = body {
            request = request.json(&body);
        }
        let response = request.send().await.map_err(|error| self.lost(&error))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let bytes = response.bytes().await.map_err(|error| self.lost(&error))?;
        Err(problem(status, &bytes))
    }

    fn lost(&self, error: &reqwest::Error) -> AdminError {
        AdminError::Unreachable {
            url: self.base.to_string(),
            reason: chain(error),
        }
    }

    fn url(&self, path: &[&str], query: &[(&str, String)]) -> Url {
        let mut url = self.base.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().push("v1").extend(path);
        }
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        url
    }
}

/// The API's own words if it sent any, what the status says otherwise.
fn problem(status: StatusCode, body: &[u8]) -> AdminError {
    #[derive(Deserialize)]
    struct Problem {
        title: String,
        #[serde(default)]
        detail: String,
    }
    let problem = serde_json::from_slice(body).unwrap_or_else(|_| Problem {
        title: status
            .canonical_reason()
            .unwrap_or("the admin API refused")
            .to_owned(),
        detail: shown(body),
    });
    AdminError::Problem {
        status: status.as_u16(),
        title: problem.title,
        detail: problem.detail,
    }
}

fn shown(body: &[u8]) -> String {
    String::from_utf8_lossy(body)
        .chars()
        .take(SHOWN_MAX)
        .collect()
}

/// reqwest's own text stops short of the cause ("error sending request").
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = error.to_string();
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rain::split::Tier;

    fn client(base: &str) -> AdminClient {
        AdminClient::new(base, "key\n").unwrap()
    }

    #[test]
    fn names_in_a_path_are_encoded() {
        let url = client("http://127.0.0.1:7080/")
            .url(&["accounts", "user:a/b ?"], &[("limit", "3".to_owned())]);
        assert_eq!(
            url.as_str(),
            "http://127.0.0.1:7080/v1/accounts/user:a%2Fb%20%3F?limit=3"
        );
        let url = client("http://admin.example/hongbao").url(&["rains"], &[]);
        assert_eq!(url.as_str(), "http://admin.example/hongbao/v1/rains");
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for text in ["", "127.0.0.1:7080", "https://a.example", "file:///etc"] {
            assert!(AdminClient::new(text, "k").is_err(), "{text}");
        }
    }

    #[test]
    fn a_new_rain_is_this_json() {
        let rain = NewRain {
            title: "t".into(),
            room: "r".into(),
            sponsor: "demo".into(),
            rule: Rule::Tiers(vec![Tier {
                count: 2,
                cents: Cents(888),
            }]),
            total_cents: Cents(1_776),
            packets: 2,
            min_cents: None,
            max_cents: None,
            opens_at_ms: None,
            duration_ms: Some(30_000),
            durability: Some(Durability::Replicas(1)),
            buckets: None,
            refund_after_ms: None,
            key_required: false,
            announce_ms: None,
            key: None,
        };
        let wanted = json!({
            "title": "t", "room": "r", "sponsor": "demo", "rule": {"tiers": [{"count": 2, "cents": 888}]},
            "total_cents": 1776, "packets": 2, "duration_ms": 30000, "durability": "replicas:1",
        });
        assert_eq!(json!(rain), wanted);
        assert_eq!(json!(Rule::DoubleMean), json!("double_mean"));
    }

    #[test]
    fn answers_with_more_fields_than_we_know_are_read() {
        let rain: Rain = serde_json::from_value(json!({
            "id": 7, "state": "open", "opens_at_ms": null, "closes_at_ms": 5, "buckets": 3, "colour": "red",
            "live": {"pool": 9, "claims_waiting": 1, "leased": 2, "retrying": 3, "in_transfer": 4},
        }))
        .unwrap();
        assert_eq!((rain.id.get(), rain.state), (7, State::Open));
        assert_eq!(rain.live.unwrap().claims_moving(), 6);
        let page: WinnersPage = serde_json::from_value(json!({
            "winners": [{"packet_id": "30064771113", "user": "anna", "cents": 888, "credited_at_ms": 4, "x": 1}],
            "next": null,
        }))
        .unwrap();
        assert_eq!(page.winners[0].packet_id.index(), 41);
    }

    #[test]
    fn a_problem_reads_as_a_sentence() {
        let told = problem(
            StatusCode::CONFLICT,
            br#"{"type":"x","title":"sponsor too poor","detail":"demo has 1.00","status":409}"#,
        );
        assert_eq!(told.to_string(), "sponsor too poor (409): demo has 1.00");
        let bare = problem(StatusCode::BAD_GATEWAY, b"");
        assert_eq!(bare.to_string(), "Bad Gateway (502)");
        assert!(bare.may_pass() && !told.may_pass());
    }
}
