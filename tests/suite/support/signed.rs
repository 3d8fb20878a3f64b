//! Requests to the admin API, signed by hand: each part may be wrong.

use hongbao::admin::signing::{
    Credential, IDEMPOTENCY_KEY, KEY, NONCE, Parts, SIGNATURE, TIME, random_text,
};
use hongbao::clock::now_ms;
use serde_json::Value;

use super::server::Server;

/// A request that is right unless a test spoils it. What is signed and what is sent are two things.
#[derive(Clone)]
pub struct Signed {
    pub method: &'static str,
    /// With the query.
    pub path: String,
    pub body: String,
    pub content_type: Option<&'static str>,
    pub credential: Credential,
    pub time_ms: i64,
    pub nonce: String,
    pub idempotency_key: String,
    /// What the signature is for, where that is not what is sent.
    pub signed_path: Option<String>,
    pub signed_method: Option<&'static str>,
    pub signed_body: Option<String>,
    pub signed_idempotency_key: Option<String>,
    /// Headers that are left out, or sent as this.
    pub without: Vec<&'static str>,
    pub instead: Vec<(&'static str, String)>,
}

/// What came back.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub text: String,
    pub json: Value,
    pub headers: reqwest::header::HeaderMap,
}

impl Answer {
    pub fn title(&self) -> &str {
        self.json["title"].as_str().unwrap_or_default()
    }
}

impl Signed {
    pub fn new(method: &'static str, path: &str, credential: &str) -> Signed {
        let writes = method == "POST";
        Signed {
            method,
            path: path.to_owned(),
            body: if writes { "{}".into() } else { String::new() },
            content_type: writes.then_some("application/json"),
            credential: Credential::read(credential),
            time_ms: now_ms(),
            nonce: random_text(),
            idempotency_key: if writes { random_text() } else { String::new() },
            signed_path: None,
            signed_method: None,
            signed_body: None,
            signed_idempotency_key: None,
            without: vec![],
            instead: vec![],
        }
    }

    pub fn get(path: &str, credential: &str) -> Signed {
        Signed::new("GET", path, credential)
    }

    pub fn post(path: &str, credential: &str, body: impl Into<String>) -> Signed {
        let mut signed = Signed::new("POST", path, credential);
        signed.body = body.into();
        signed
    }

    pub fn keyed(mut self, idempotency_key: &str) -> Signed {
        self.idempotency_key = idempotency_key.to_owned();
        self
    }

    fn headers(&self) -> Vec<(&'static str, String)> {
        let path = self.signed_path.as_ref().unwrap_or(&self.path);
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let body = self.signed_body.as_ref().unwrap_or(&self.body);
        let idempotency_key = self.signed_idempotency_key.as_ref();
        let parts = Parts {
            method: self.signed_method.unwrap_or(self.method),
            path,
            query,
            time_ms: self.time_ms,
            nonce: &self.nonce,
            idempotency_key: idempotency_key.unwrap_or(&self.idempotency_key),
            body: body.as_bytes(),
        };
        let mut headers = vec![
            (KEY, self.credential.id.clone()),
            (TIME, self.time_ms.to_string()),
            (NONCE, self.nonce.clone()),
            (SIGNATURE, parts.sign(&self.credential.secret)),
        ];
        if !self.idempotency_key.is_empty() {
            headers.push((IDEMPOTENCY_KEY, self.idempotency_key.clone()));
        }
        headers.extend(
            self.content_type
                .map(|kind| ("Content-Type", kind.to_owned())),
        );
        headers.retain(|(name, _)| !self.without.contains(name));
        for (name, value) in &self.instead {
            headers.retain(|(sent, _)| sent != name);
            headers.push((name, value.clone()));
        }
        headers
    }

    /// For requests that are written byte by byte.
    pub fn header_lines(&self) -> String {
        let line = |(name, value): (&str, String)| format!("{name}: {value}\r\n");
        self.headers().into_iter().map(line).collect()
    }

    pub async fn send(&self, server: &Server) -> Answer {
        self.send_to(&server.admin_url()).await
    }

    pub async fn send_to(&self, url: &str) -> Answer {
        let method = self.method.parse().unwrap();
        let client = reqwest::Client::new();
        let mut request = client.request(method, format!("{url}{}", self.path));
        for (name, value) in self.headers() {
            request = request.header(name, value);
        }
        let response = request.body(self.body.clone()).send().await.unwrap();
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let text = response.text().await.unwrap();
        Answer {
            status,
            json: serde_json::from_str(&text).unwrap_or_default(),
            text,
            headers,
        }
    }
}
