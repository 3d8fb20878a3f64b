//! How a delivery is signed: HMAC-SHA256 over the time, a full stop and the body. `proto/webhooks.md` has a worked example.

use axum::http::{Request, Uri, header};
use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use http_body_util::Full;
use sha2::Sha256;

/// What the event is: a receiver that has seen it before answers 200 and does nothing.
pub const EVENT_ID: &str = "hongbao-event-id";
/// Like `rain.opened`.
pub const EVENT: &str = "hongbao-event";
/// Number of the delivery, as the API shows it.
pub const DELIVERY: &str = "hongbao-delivery";
/// From 1; grows with each try.
pub const ATTEMPT: &str = "hongbao-attempt";
/// When it was signed, ms since 1970.
pub const TIME: &str = "hongbao-time";
/// `v1=` and the signature, hex; while a secret is replaced two of them with a comma between.
pub const SIGNATURE: &str = "hongbao-signature";

/// What is sent.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    pub event_id: &'a str,
    pub event: &'a str,
    pub delivery: i64,
    pub attempt: u32,
    pub at_ms: i64,
    pub body: &'a str,
}

impl Message<'_> {
    /// Signed by each of the secrets.
    pub fn request(&self, url: Uri, secrets: &[String]) -> Request<Full<Bytes>> {
        let signatures: Vec<String> = secrets.iter().map(|secret| self.sign(secret)).collect();
        Request::post(url)
            .header(header::CONTENT_TYPE, "application/json")
            .header(
                header::USER_AGENT,
                concat!("hongbao/", env!("CARGO_PKG_VERSION")),
            )
            .header(EVENT_ID, self.event_id)
            .header(EVENT, self.event)
            .header(DELIVERY, self.delivery)
            .header(ATTEMPT, self.attempt)
            .header(TIME, self.at_ms)
            .header(SIGNATURE, signatures.join(","))
            .body(Full::from(self.body.to_owned()))
            .expect("ids, numbers and hex text are header values")
    }

    fn sign(&self, secret: &str) -> String {
        let mut mac =
            Hmac::<Sha256>::new_from_slice(secret.as_bytes()).expect("HMAC takes keys of any size");
        mac.update(format!("{}.", self.at_ms).as_bytes());
        mac.update(self.body.as_bytes());
        format!("v1={}", hex::encode(mac.finalize().into_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The signature there was computed by `openssl dgst`.
    #[test]
    fn a_delivery_is_byte_by_byte_the_one_in_the_contract() {
        let body = r#"{"at_ms":1790000000000,"data":{"closes_at_ms":1790000030000,"opens_at_ms":1790000000000,"packets":100000,"room":"quiz-1","sponsor":"acme","title":"Question 5","total_cents":1000000},"event":"rain.opened","id":"opened:7","rain_id":7}"#;
        let message = Message {
            event_id: "opened:7",
            event: "rain.opened",
            delivery: 41,
            attempt: 1,
            at_ms: 1_790_000_000_250,
            body,
        };
        let secret = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
        let url = "https://events.example/hongbao".parse().unwrap();
        let (head, _) = message.request(url, &[secret.to_owned()]).into_parts();
        let mut text = format!("{} {} HTTP/1.1\n", head.method, head.uri.path());
        for (name, value) in &head.headers {
            text += &format!("{name}: {}\n", value.to_str().unwrap());
        }
        text += &format!("\n{body}\n");
        let contract = include_str!("../../../proto/webhooks.md");
        assert!(
            contract.contains(&text),
            "{text}is not in proto/webhooks.md"
        );
    }
}
