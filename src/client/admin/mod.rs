//! A thin client of the admin HTTP API (v1): one method per operation, amounts as integers in cents.
//!
//! Every request is signed, and every write has an idempotency key, so that it may be sent again: see `proto/admin.md`.

/// Sponsors, deposits, balances, statements.
mod accounts;
/// Signed, sent, sent again.
mod send;
/// What goes in and comes out.
mod shapes;
/// Webhooks and their deliveries.
mod webhooks;

use std::time::Duration;

use reqwest::{Method, Url};
use serde::Deserialize;
use serde_json::json;

use crate::admin::signing::Credential;
use crate::rain::{PacketId, RainId};
pub use accounts::*;
pub(super) use send::chain;
pub use shapes::*;
pub use webhooks::*;

/// One request, unless it is known to take longer.
pub(in crate::client) const CALL: Duration = Duration::from_secs(15);
/// Audits and closing walk through every packet of a rain.
const LONG_CALL: Duration = Duration::from_secs(180);

#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    #[error("\"{0}\" is no address of an admin API: write it like http://127.0.0.1:7701")]
    Address(String),
    #[error(
        "{0}: TLS is not spoken here; go through ssh (ssh -L 7701:127.0.0.1:7701 SERVER) and write http://127.0.0.1:7701"
    )]
    Tls(String),
    #[error("the admin API at {url} cannot be reached: {reason}")]
    Unreachable { url: String, reason: String },
    /// The API refused, and says why (problem+json).
    #[error("{title} ({status}){}{detail}", if .detail.is_empty() { "" } else { ": " })]
    Problem {
        status: u16,
        title: String,
        detail: String,
    },
    /// It moves money, and whoever was asked did not say yes. Nothing happened.
    #[error("it was not confirmed: the request {what}")]
    Unconfirmed {
        what: String,
        /// Confirms this very request.
        token: String,
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
            AdminError::Address(_) | AdminError::Tls(_) => false,
            AdminError::Unconfirmed { .. } | AdminError::Unreadable { .. } => false,
        }
    }

    /// The same write was begun before, and has no answer yet.
    fn is_at_work(&self) -> bool {
        matches!(self, AdminError::Problem { status: 409, title, .. } if title == crate::admin::write::AT_WORK)
    }
}

/// Cheap to clone; clones share their connections.
#[derive(Clone)]
pub struct AdminClient {
    http: reqwest::Client,
    base: Url,
    credential: Credential,
    /// Says yes or no to what moves money.
    ask: fn(&str) -> bool,
}

impl AdminClient {
    /// `base_url` like `http://127.0.0.1:7701`; `api_key` is a key's `<id>.<secret>`, or the text of the server's API key file.
    ///
    /// # Errors
    /// [`AdminError::Address`], and [`AdminError::Tls`] for https, which this client does not speak; whether somebody answers there is found out by the first call.
    pub fn new(base_url: &str, api_key: &str) -> Result<AdminClient, AdminError> {
        let fault = || AdminError::Address(base_url.to_owned());
        let base = Url::parse(base_url).map_err(|_| fault())?;
        if base.scheme() == "https" {
            return Err(AdminError::Tls(base_url.to_owned()));
        }
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
            credential: Credential::read(api_key),
            ask: |_| true,
        })
    }

    /// Asks before money is moved, with what the request does, like "records 7.00 paid in by sponsor acme". Without it the answer is yes: the program that calls a
    /// method means it.
    pub fn asking(mut self, ask: fn(&str) -> bool) -> AdminClient {
        self.ask = ask;
        self
    }

    pub async fn create_rain(&self, rain: &NewRain) -> Result<Rain, AdminError> {
        self.write(&["rains"], json!(rain), rain.key.as_deref(), CALL)
            .await
    }

    /// All rains, newest first, page by page.
    pub async fn rains(&self) -> Result<Vec<Rain>, AdminError> {
        #[derive(Deserialize)]
        struct Page {
            rains: Vec<Rain>,
            #[serde(default)]
            next_cursor: Option<String>,
        }
        let (mut all, mut query) = (vec![], vec![("limit", "1000".to_owned())]);
        loop {
            let page: Page = self.get(&["rains"], &query).await?;
            all.extend(page.rains);
            query.truncate(1);
            match page.next_cursor {
                Some(next) => query.push(("cursor", next)),
                None => return Ok(all),
            }
        }
    }

    /// With its live numbers.
    pub async fn rain(&self, id: RainId) -> Result<Rain, AdminError> {
        self.get(&["rains", &id.to_string()], &[]).await
    }

    pub async fn open_rain(&self, id: RainId) -> Result<Rain, AdminError> {
        self.post(&["rains", &id.to_string(), "open"], json!({}))
            .await
    }

    /// Gives nothing until it is resumed.
    pub async fn pause_rain(&self, id: RainId) -> Result<Rain, AdminError> {
        self.post(&["rains", &id.to_string(), "pause"], json!({}))
            .await
    }

    /// Goes on after a pause.
    pub async fn resume_rain(&self, id: RainId) -> Result<Rain, AdminError> {
        self.post(&["rains", &id.to_string(), "resume"], json!({}))
            .await
    }

    /// Adds packets and money to a rain that is not closed. Repeating it with the same key changes nothing.
    pub async fn top_up_rain(&self, id: RainId, top_up: &NewTopUp) -> Result<ToppedUp, AdminError> {
        let path = ["rains", &id.to_string(), "top-up"];
        self.write(&path, json!(top_up), Some(&top_up.key), CALL)
            .await
    }

    /// Closes every gate and refunds what is left.
    pub async fn close_rain(&self, id: RainId) -> Result<Rain, AdminError> {
        let path = ["rains", &id.to_string(), "close"];
        self.write(&path, json!({}), None, LONG_CALL).await
    }

    pub async fn audit(&self, id: RainId) -> Result<Audit, AdminError> {
        let path = ["rains", &id.to_string(), "audit"];
        self.read(&path, &[], LONG_CALL).await
    }

    /// Compares suspect buckets, or `all`, with the ledger now; `None` when none was suspect, or somebody else has repaired them.
    pub async fn repair(&self, id: RainId, all: bool) -> Result<Option<Repair>, AdminError> {
        #[derive(Deserialize)]
        struct Repaired {
            repaired: Option<Repair>,
        }
        let path = ["rains", &id.to_string(), "repair"];
        let body = json!({ "all": all });
        let answer: Repaired = self.write(&path, body, None, LONG_CALL).await?;
        Ok(answer.repaired)
    }

    /// One page of credited winners by packet id, from `cursor` on. `limit`: 1 to 10,000.
    pub async fn winners(
        &self,
        id: RainId,
        cursor: Option<&str>,
        limit: u32,
    ) -> Result<WinnersPage, AdminError> {
        let mut query = vec![("limit", limit.to_string())];
        query.extend(cursor.map(|cursor| ("cursor", cursor.to_owned())));
        self.get(&["rains", &id.to_string(), "winners"], &query)
            .await
    }

    /// Every credited winner, page by page.
    pub async fn all_winners(&self, id: RainId) -> Result<Vec<Winner>, AdminError> {
        let mut all: Vec<Winner> = Vec::new();
        let mut cursor: Option<String> = None;
        loop {
            let page = self.winners(id, cursor.as_deref(), 1_000).await?;
            all.extend(page.winners);
            // A page that does not lead on would be asked for without end.
            match page.next_cursor {
                Some(next) if Some(&next) != cursor.as_ref() => cursor = Some(next),
                Some(_) | None => return Ok(all),
            }
        }
    }

    /// Dead letters by packet id, from `cursor` on; of one rain or all, with one kind of reason or any. `limit`: 1 to 1000.
    pub async fn dead_letters(
        &self,
        rain: Option<RainId>,
        reason: Option<&str>,
        cursor: Option<&str>,
        limit: u32,
    ) -> Result<DeadLettersPage, AdminError> {
        let mut query = vec![("limit", limit.to_string())];
        query.extend(rain.map(|rain| ("rain", rain.to_string())));
        query.extend(reason.map(|reason| ("reason", reason.to_owned())));
        query.extend(cursor.map(|cursor| ("cursor", cursor.to_owned())));
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
                let path = ["dead-letters", "requeue"];
                self.write(&path, body, None, LONG_CALL).await?
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

    /// One page of keys, from `cursor` on.
    pub async fn keys(&self, cursor: Option<&str>) -> Result<KeysPage, AdminError> {
        let query = cursor.map(|cursor| ("cursor", cursor.to_owned()));
        self.get(&["keys"], query.as_slice()).await
    }

    pub async fn key(&self, id: &str) -> Result<Key, AdminError> {
        self.get(&["keys", id], &[]).await
    }

    /// `name` is this request's own name: the same one makes one key. `None`: one is made up.
    pub async fn create_key(
        &self,
        new: &NewKey,
        name: Option<&str>,
    ) -> Result<IssuedKey, AdminError> {
        self.write(&["keys"], json!(new), name, CALL).await
    }

    /// A new secret; the old one is good for `overlap_ms` more, as long as the server says if `None`.
    pub async fn rotate_key(
        &self,
        id: &str,
        overlap_ms: Option<i64>,
    ) -> Result<IssuedKey, AdminError> {
        let body = overlap_ms.map_or(json!({}), |ms| json!({ "overlap_ms": ms }));
        self.post(&["keys", id, "rotate"], body).await
    }

    pub async fn revoke_key(&self, id: &str) -> Result<Key, AdminError> {
        self.post(&["keys", id, "revoke"], json!({})).await
    }

    /// How claims flow, as the process that answers saw it within the last second or so.
    pub async fn pipeline(&self) -> Result<PipelineSeen, AdminError> {
        self.get(&["pipeline"], &[]).await
    }

    /// Ledger and nodes as the server sees them.
    pub async fn nodes(&self) -> Result<NodesSeen, AdminError> {
        self.get(&["nodes"], &[]).await
    }

    /// One page of the log, newest first, from `cursor` on; of one target (like `rain:7`) or all. `limit`: 1 to 1000.
    pub async fn log(
        &self,
        target: Option<&str>,
        cursor: Option<&str>,
        limit: u32,
    ) -> Result<LogPage, AdminError> {
        let mut query = vec![("limit", limit.to_string())];
        query.extend(target.map(|target| ("target", target.to_owned())));
        query.extend(cursor.map(|cursor| ("cursor", cursor.to_owned())));
        self.get(&["log"], &query).await
    }
}

#[cfg(test)]
mod tests {
    use reqwest::StatusCode;

    use super::send::problem;
    use super::*;
    use crate::rain::split::{Rule, Tier};
    use crate::rain::{Cents, Durability, State};

    fn client(base: &str) -> AdminClient {
        AdminClient::new(base, "key\n").unwrap()
    }

    #[test]
    fn names_in_a_path_are_encoded() {
        let url = client("http://127.0.0.1:7701/")
            .url(&["accounts", "user:a/b ?"], &[("limit", "3".to_owned())]);
        assert_eq!(
            url.as_str(),
            "http://127.0.0.1:7701/v1/accounts/user:a%2Fb%20%3F?limit=3"
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
