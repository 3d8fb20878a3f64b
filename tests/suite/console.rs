//! The console: what its files say to a browser, its sessions, and a browser that uses it.

/// A night in a real Chromium.
mod browser;
/// Webhooks, templates, schedules.
mod plans;
/// What the console says when something breaks.
mod sight;

use hongbao::admin::caller::Role;
use hongbao::client::admin::{IssuedKey, NewKey};
use reqwest::header::{HeaderMap, SET_COOKIE};
use serde_json::{Value, json};

use crate::support::eventually;
use crate::support::server::Server;
use crate::support::signed::Signed;

async fn key(server: &Server, name: &str, roles: &[Role]) -> IssuedKey {
    let new = NewKey {
        name: name.into(),
        roles: roles.to_vec(),
        expires_at_ms: None,
    };
    server.admin().create_key(&new, None).await.unwrap()
}

/// What came back.
struct Answer {
    status: u16,
    json: Value,
    headers: HeaderMap,
}

impl Answer {
    async fn of(request: reqwest::RequestBuilder) -> Answer {
        let answer = request.send().await.unwrap();
        let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
        let json = serde_json::from_str(&answer.text().await.unwrap()).unwrap_or_default();
        Answer {
            status,
            json,
            headers,
        }
    }

    fn title(&self) -> &str {
        self.json["title"].as_str().unwrap_or_default()
    }

    fn header(&self, name: &str) -> &str {
        self.headers[name].to_str().unwrap()
    }
}

fn login(server: &Server, body: Value) -> reqwest::RequestBuilder {
    let url = format!("{}/console/login", server.admin_url());
    let request = reqwest::Client::new().post(url);
    request
        .header("content-type", "application/json")
        .body(body.to_string())
}

/// A browser that is logged in, without the browser.
struct Session {
    url: String,
    cookie: String,
    csrf: String,
}

impl Session {
    async fn begin(server: &Server, body: Value) -> Session {
        let answer = Answer::of(login(server, body)).await;
        assert_eq!(answer.status, 200, "{}", answer.json);
        Session {
            url: server.admin_url(),
            cookie: answer
                .header("set-cookie")
                .split(';')
                .next()
                .unwrap()
                .into(),
            csrf: answer.json["csrf"].as_str().unwrap().into(),
        }
    }

    async fn of(server: &Server, roles: &[Role]) -> (Session, IssuedKey) {
        let key = key(server, "anna", roles).await;
        let body = json!({ "secret": key.credential });
        (Session::begin(server, body).await, key)
    }

    async fn get(&self, path: &str) -> Answer {
        let request = reqwest::Client::new().get(format!("{}{path}", self.url));
        Answer::of(request.header("cookie", &self.cookie)).await
    }

    fn post(&self, path: &str, body: Value) -> reqwest::RequestBuilder {
        let request = reqwest::Client::new().post(format!("{}{path}", self.url));
        request
            .header("cookie", &self.cookie)
            .header("content-type", "application/json")
            .body(body.to_string())
    }

    async fn write(&self, path: &str, body: Value, key: &str) -> Answer {
        let request = self.post(path, body).header("hongbao-csrf", &self.csrf);
        Answer::of(request.header("idempotency-key", key)).await
    }
}

#[tokio::test]
async fn the_files_forbid_what_is_not_theirs_and_are_sent_once() {
    let server = Server::start(&["store.managed_nodes=1"]);
    let url = server.admin_url();
    let client = reqwest::Client::new();
    let page = client.get(&url).send().await.unwrap();
    assert_eq!(page.status(), 200);
    let text = page.text().await.unwrap();
    assert!(!text.contains("<style") && !text.contains(" style=") && !text.contains("onclick"));
    let names = text.split('"').filter(|part| part.starts_with("/console/"));
    let mut files: Vec<String> = names.map(str::to_owned).collect();
    files.push("/".into());
    assert!(files.len() >= 5, "{files:?}");
    // What scripts import, and so on.
    let mut seen = 0;
    while let Some(file) = files.get(seen).cloned() {
        seen += 1;
        let first = client.get(format!("{url}{file}")).send().await.unwrap();
        assert_eq!(first.status(), 200, "{file}");
        let header = |name: &str| first.headers()[name].to_str().unwrap().to_owned();
        let policy = header("content-security-policy");
        assert!(policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self';"));
        assert!(!policy.contains("unsafe") && policy.contains("frame-ancestors 'none'"));
        assert_eq!(header("x-content-type-options"), "nosniff");
        assert_eq!(header("cache-control"), "no-cache");
        let again = client.get(format!("{url}{file}"));
        let again = again.header("if-none-match", header("etag")).send().await;
        assert_eq!(again.unwrap().status(), 304, "{file}");
        let text = first.text().await.unwrap();
        for import in text.split("from \"./").skip(1) {
            let name = format!("/console/{}", import.split('"').next().unwrap());
            if !files.contains(&name) {
                files.push(name);
            }
        }
    }
    let missing = client.get(format!("{url}/console/secrets.js")).send().await;
    assert_eq!(missing.unwrap().status(), 404);
}

#[tokio::test]
async fn a_session_does_what_its_key_may_and_no_more() {
    let server = Server::start(&["store.managed_nodes=1"]);
    // Whoever runs the server pastes what stands in the file.
    let admin = Session::begin(
        &server,
        json!({ "key": "bootstrap", "secret": server.api_key() }),
    )
    .await;
    let made = admin
        .write("/v1/accounts", json!({ "sponsor": "acme" }), "a")
        .await;
    assert_eq!(made.status, 201, "{}", made.json);
    let repeated = admin
        .write("/v1/accounts", json!({ "sponsor": "acme" }), "a")
        .await;
    assert_eq!(repeated.header("idempotency-replayed"), "true");
    assert_eq!(
        admin
            .write("/v1/accounts", json!({ "sponsor": "b" }), "")
            .await
            .status,
        400
    );
    let (viewer, key) = Session::of(&server, &[Role::Viewer]).await;
    assert_eq!(viewer.get("/v1/rains").await.status, 200);
    assert_eq!(viewer.get("/v1/keys").await.status, 403);
    let who = viewer.get("/console/session").await;
    assert_eq!(who.json["permissions"][0], "rains:read");
    assert_eq!(who.header("cache-control"), "no-store");
    let refused = viewer
        .write("/v1/accounts", json!({ "sponsor": "evil" }), "b")
        .await;
    assert_eq!(
        (refused.status, refused.title()),
        (403, "the key may not do this")
    );
    let log = server.admin().log(None, None, 1).await.unwrap().log;
    assert_eq!(
        log[0].caller, key.key.id,
        "a session writes in the name of its key"
    );
    // A signed request is what it was, with or without a cookie beside it.
    let signed = Signed::get("/v1/keys", &server.api_key())
        .send(&server)
        .await;
    assert_eq!(signed.status, 200);
}

#[tokio::test]
async fn a_cookie_is_for_this_site_and_writes_need_the_token_of_a_page() {
    let server = Server::start(&["store.managed_nodes=1"]);
    let body = json!({ "secret": server.api_key() });
    let plain = Answer::of(login(&server, body.clone())).await;
    let cookie = plain.header("set-cookie");
    for part in [
        "hongbao_console=",
        "; Path=/",
        "; HttpOnly",
        "; SameSite=Strict",
        "; Max-Age=43200",
    ] {
        assert!(cookie.contains(part), "{cookie}");
    }
    assert!(!cookie.contains("Secure"));
    let value = cookie.split(['=', ';']).nth(1).unwrap();
    assert_eq!(hex::decode(value).unwrap().len(), 32);
    let tls = login(&server, body.clone()).header("x-forwarded-proto", "https");
    assert!(
        Answer::of(tls)
            .await
            .header("set-cookie")
            .ends_with("; Secure")
    );
    // Neither the cookie nor anything that would open a session is stored.
    let file = std::fs::read(server.data_dir().join("ledger.sqlite-wal")).unwrap_or_default();
    let stored = |text: &str| {
        file.windows(text.len())
            .any(|window| window == text.as_bytes())
    };
    assert!(!stored(value));

    let session = Session::begin(&server, body).await;
    let other = Session::begin(&server, json!({ "secret": server.api_key() })).await;
    let write = || {
        session
            .post("/v1/accounts", json!({ "sponsor": "acme" }))
            .header("idempotency-key", "k")
    };
    for request in [
        write(),
        write().header("hongbao-csrf", "guessed"),
        write().header("hongbao-csrf", &other.csrf),
        session.post("/v1/rains/preview", json!({})),
        session.post("/console/logout", json!({})),
    ] {
        let refused = Answer::of(request).await;
        assert_eq!(
            (refused.status, refused.title()),
            (403, "not from a page of the console")
        );
    }
    assert_eq!(
        Answer::of(write().header("hongbao-csrf", &session.csrf))
            .await
            .status,
        201
    );
    // A form of another site cannot even log in.
    let form = reqwest::Client::new().post(format!("{}/console/login", server.admin_url()));
    let form = form
        .header("content-type", "text/plain")
        .body("{\"secret\":\"x\"}");
    assert_eq!(Answer::of(form).await.status, 415);
}

#[tokio::test]
async fn a_session_ends_by_logging_out_and_with_its_secret() {
    let server = Server::start(&["store.managed_nodes=1"]);
    let (session, _) = Session::of(&server, &[Role::Operator]).await;
    let out = session
        .post("/console/logout", json!({}))
        .header("hongbao-csrf", &session.csrf);
    let out = Answer::of(out).await;
    assert_eq!(out.status, 204);
    assert!(
        out.headers[SET_COOKIE]
            .to_str()
            .unwrap()
            .contains("Max-Age=0")
    );
    let after = session.get("/v1/rains").await;
    assert_eq!(
        (after.status, after.title()),
        (401, "the session has ended")
    );

    let admin = server.admin();
    let (session, key) = Session::of(&server, &[Role::Operator]).await;
    admin.revoke_key(&key.key.id).await.unwrap();
    assert_eq!(session.get("/v1/rains").await.title(), "the key is revoked");
    let again = Answer::of(login(&server, json!({ "secret": key.credential }))).await;
    assert_eq!(again.status, 401);

    let (session, key) = Session::of(&server, &[Role::Operator]).await;
    admin.rotate_key(&key.key.id, Some(0)).await.unwrap();
    let ended = session.get("/v1/rains").await;
    assert_eq!(
        (ended.status, ended.title()),
        (401, "the session has ended")
    );
}

#[tokio::test]
async fn a_session_ends_when_nobody_uses_it_and_after_its_longest_time() {
    let server = Server::start(&["store.managed_nodes=1", "admin.console_idle_ms=1500"]);
    let (idle, _) = Session::of(&server, &[Role::Viewer]).await;
    let (busy, _) = Session::of(&server, &[Role::Viewer]).await;
    // A page that asks by itself keeps nothing alive; a person does.
    eventually("the idle session to end", async || {
        let request = reqwest::Client::new().get(format!("{}/v1/rains", idle.url));
        let request = request
            .header("cookie", &idle.cookie)
            .header("hongbao-background", "1");
        assert_eq!(busy.get("/v1/rains").await.status, 200);
        (Answer::of(request).await.status == 401).then_some(())
    })
    .await;
    assert_eq!(busy.get("/v1/rains").await.status, 200);

    let server = Server::start(&["store.managed_nodes=1", "admin.console_session_ms=1500"]);
    let (session, _) = Session::of(&server, &[Role::Viewer]).await;
    assert_eq!(session.get("/v1/rains").await.status, 200);
    eventually("the session to end", async || {
        (session.get("/v1/rains").await.status == 401).then_some(())
    })
    .await;
}

#[tokio::test]
async fn whoever_guesses_has_to_wait_and_other_keys_do_not() {
    let server = Server::start(&["store.managed_nodes=1"]);
    let key = key(&server, "anna", &[Role::Viewer]).await;
    let (id, right) = key.credential.split_once('.').unwrap();
    for n in 0..10 {
        let wrong = json!({ "key": id, "secret": format!("guess-{n}") });
        let refused = Answer::of(login(&server, wrong)).await;
        assert_eq!((refused.status, refused.title()), (401, "the login failed"));
    }
    let unknown = Answer::of(login(&server, json!({ "key": "nobody", "secret": "x" }))).await;
    assert_eq!(
        unknown.title(),
        "the login failed",
        "the same for a key that is not there"
    );
    let throttled = Answer::of(login(&server, json!({ "key": id, "secret": right }))).await;
    assert_eq!(throttled.status, 429, "even with the right secret");
    Session::begin(&server, json!({ "secret": server.api_key() })).await;
    // An address that tries many keys.
    let mut last = 0;
    for n in 0..30 {
        let wrong = json!({ "key": format!("k{n}"), "secret": "x" });
        last = Answer::of(login(&server, wrong)).await.status;
    }
    assert_eq!(last, 429);
}
