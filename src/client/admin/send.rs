//! Requests on their way: signed, sent, and sent again where that is safe.

use std::time::Duration;

use reqwest::{Method, Response, StatusCode, Url};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{AdminClient, AdminError, CALL, LONG_CALL};
use crate::admin::confirm::CONFIRM;
use crate::admin::signing::{self, Parts, random_text};
use crate::clock::now_ms;
use crate::jitter::Jitter;

/// A request whose answer was lost, or that is still at work, is sent again this often …
const TRIES: u32 = 3;
/// … after about this long.
const PAUSE: Duration = Duration::from_millis(150);
/// Of an answer that is not JSON, this much is shown.
const SHOWN_MAX: usize = 200;

impl AdminClient {
    pub(in crate::client) async fn get<T: DeserializeOwned>(
        &self,
        path: &[&str],
        query: &[(&str, String)],
    ) -> Result<T, AdminError> {
        self.read(path, query, CALL).await
    }

    pub(in crate::client) async fn post<T: DeserializeOwned>(
        &self,
        path: &[&str],
        body: Value,
    ) -> Result<T, AdminError> {
        self.write(path, body, None, CALL).await
    }

    /// Asks something that takes a while and changes nothing. `key`: the name of the write that it is about, or nothing.
    pub(in crate::client) async fn ask<T: DeserializeOwned>(
        &self,
        path: &[&str],
        query: &[(&str, String)],
        body: Value,
        key: &str,
    ) -> Result<T, AdminError> {
        let (url, body) = (self.url(path, query), body.to_string());
        let request = self.signed(&Method::POST, &url, body.as_bytes(), key);
        self.call(&Method::POST, request.timeout(LONG_CALL)).await
    }

    /// An answer whose body is still to be read, and may take as long as it takes.
    pub(in crate::client) async fn stream(&self, path: &[&str]) -> Result<Response, AdminError> {
        let url = self.url(path, &[]);
        self.send(self.signed(&Method::GET, &url, &[], "")).await
    }

    pub(super) async fn read<T: DeserializeOwned>(
        &self,
        path: &[&str],
        query: &[(&str, String)],
        limit: Duration,
    ) -> Result<T, AdminError> {
        let url = self.url(path, query);
        let request = self.signed(&Method::GET, &url, &[], "");
        self.call(&Method::GET, request.timeout(limit)).await
    }

    /// With the caller's own name for it, or one made up. Sent again while it is at work or its answer was lost: it happens once.
    pub(in crate::client) async fn write<T: DeserializeOwned>(
        &self,
        path: &[&str],
        body: Value,
        key: Option<&str>,
        limit: Duration,
    ) -> Result<T, AdminError> {
        let made_up = random_text();
        let key = key.unwrap_or(&made_up);
        let (url, body) = (self.url(path, &[]), body.to_string());
        let deadline = tokio::time::Instant::now() + limit;
        let jitter = Jitter::default();
        let (mut lost, mut confirmed) = (0, None);
        loop {
            let mut request = self.signed(&Method::POST, &url, body.as_bytes(), key);
            if let Some(token) = &confirmed {
                request = request.header(CONFIRM, token);
            }
            match self.call(&Method::POST, request.timeout(limit)).await {
                Err(AdminError::Unconfirmed { what, token })
                    if confirmed.is_none() && (self.ask)(&what) =>
                {
                    confirmed = Some(token);
                    continue;
                }
                Err(error) if error.is_at_work() && tokio::time::Instant::now() < deadline => {}
                Err(AdminError::Unreachable { .. }) if lost + 1 < TRIES => lost += 1,
                answer => return answer,
            }
            tokio::time::sleep(jitter.around(PAUSE)).await;
        }
    }

    /// Sends a signed request once.
    async fn call<T: DeserializeOwned>(
        &self,
        method: &Method,
        request: reqwest::RequestBuilder,
    ) -> Result<T, AdminError> {
        let response = self.send(request).await?;
        let path = response.url().path().to_owned();
        let bytes = response.bytes().await.map_err(|error| self.lost(&error))?;
        serde_json::from_slice(&bytes).map_err(|error| AdminError::Unreadable {
            method: method.clone(),
            path,
            reason: format!("{error} in {}", shown(&bytes)),
        })
    }

    /// An answer that is no problem, its body still to be read.
    async fn send(&self, request: reqwest::RequestBuilder) -> Result<Response, AdminError> {
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

    fn signed(
        &self,
        method: &Method,
        url: &Url,
        body: &[u8],
        idempotency_key: &str,
    ) -> reqwest::RequestBuilder {
        let (time_ms, nonce) = (now_ms(), random_text());
        let parts = Parts {
            method: method.as_str(),
            path: url.path(),
            query: url.query().unwrap_or_default(),
            time_ms,
            nonce: &nonce,
            idempotency_key,
            body,
        };
        let mut request = self
            .http
            .request(method.clone(), url.clone())
            .header(signing::KEY, &self.credential.id)
            .header(signing::TIME, time_ms)
            .header(signing::NONCE, &nonce)
            .header(signing::SIGNATURE, parts.sign(&self.credential.secret));
        if !idempotency_key.is_empty() {
            request = request.header(signing::IDEMPOTENCY_KEY, idempotency_key);
        }
        if !body.is_empty() {
            let json = "application/json";
            request = request.header("content-type", json).body(body.to_vec());
        }
        request
    }

    /// `path` below `/v1`, one element each: they are percent-encoded, so a name may hold any character.
    pub(super) fn url(&self, path: &[&str], query: &[(&str, String)]) -> Url {
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
pub(super) fn problem(status: StatusCode, body: &[u8]) -> AdminError {
    #[derive(Deserialize)]
    struct Problem {
        title: String,
        #[serde(default)]
        detail: String,
        what: Option<String>,
        confirm: Option<String>,
    }
    let problem: Problem = serde_json::from_slice(body).unwrap_or_else(|_| Problem {
        title: status
            .canonical_reason()
            .unwrap_or("the admin API refused")
            .to_owned(),
        detail: shown(body),
        what: None,
        confirm: None,
    });
    if let (Some(what), Some(token)) = (problem.what, problem.confirm) {
        return AdminError::Unconfirmed { what, token };
    }
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
pub(in crate::client) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = error.to_string();
        cause = error.source();
    }
    text
}
