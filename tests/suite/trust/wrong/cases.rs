//! Every way to be wrong that we could think of, with status and title of its answer.

use hongbao::admin::signing::{IDEMPOTENCY_KEY, KEY, NONCE, SIGNATURE, TIME, random_text};

use super::*;

const UNSIGNED: (u16, &str) = (401, "the request is not signed");
pub const TIME_OFF: (u16, &str) = (401, "the request's time is off");
const FORGED: (u16, &str) = (401, "the signature does not match");
pub const REPLAYED: (u16, &str) = (401, "the nonce was used before");
const REVOKED: (u16, &str) = (401, "the key is revoked");
const EXPIRED: (u16, &str) = (401, "the key has expired");
pub const DENIED: (u16, &str) = (403, "the key may not do this");
const NAMELESS: (u16, &str) = (400, "no idempotency key");
const REUSED: (u16, &str) = (409, "the key was used for something else");
const POOR: (u16, &str) = (409, "not enough money");
const STATE: (u16, &str) = (409, "the rain's state does not allow it");
const TOO_LARGE: (u16, &str) = (413, "the body is too large");
const NO_JSON: (u16, &str) = (415, "the body is not JSON");
const BAD: (u16, &str) = (422, "the request cannot work");
const NOT_FOUND: (u16, &str) = (404, "not found");
const METHOD: (u16, &str) = (405, "method not allowed");

pub struct Case {
    pub what: String,
    pub request: Signed,
    pub wanted: (u16, &'static str),
}

fn case(what: impl Into<String>, request: Signed, wanted: (u16, &'static str)) -> Case {
    Case {
        what: what.into(),
        request,
        wanted,
    }
}

fn spoiled(mut request: Signed, spoil: impl FnOnce(&mut Signed)) -> Signed {
    spoil(&mut request);
    request
}

pub fn unsigned(key: &str) -> Vec<Case> {
    let get = || Signed::get("/v1/rains", key);
    let all = vec![KEY, TIME, NONCE, SIGNATURE];
    let mut cases = vec![
        case(
            "no header at all",
            spoiled(get(), |r| r.without = all.clone()),
            UNSIGNED,
        ),
        case(
            "a bearer token",
            spoiled(get(), |r| {
                r.without = all.clone();
                r.instead = vec![("Authorization", format!("Bearer {key}"))];
            }),
            UNSIGNED,
        ),
    ];
    for name in all {
        let request = spoiled(get(), |r| r.without = vec![name]);
        cases.push(case(format!("without {name}"), request, UNSIGNED));
    }
    for (name, value) in [
        (TIME, "soon"),
        (TIME, "1763700000000.5"),
        (TIME, ""),
        (TIME, "99999999999999999999"),
        (NONCE, "short"),
        (NONCE, "two words in a nonce"),
        (
            NONCE,
            "nonce-of-sixty-five-characters-is-one-more-than-the-most-allowed-",
        ),
        (SIGNATURE, "none"),
        (SIGNATURE, "00ff"),
        (SIGNATURE, ""),
    ] {
        let request = spoiled(get(), |r| r.instead = vec![(name, value.to_owned())]);
        cases.push(case(format!("{name}: {value}"), request, UNSIGNED));
    }
    for off in [
        -5_500,
        -3_600_000,
        8_000,
        3_600_000,
        -4_000_000_000_000,
        4_000_000_000_000,
    ] {
        let request = spoiled(get(), |r| r.time_ms += off);
        cases.push(case(format!("{off} ms off"), request, TIME_OFF));
    }
    cases
}

pub fn forged(key: &str) -> Vec<Case> {
    let get = || Signed::get("/v1/rains?limit=5", key);
    let post = || Signed::post("/v1/accounts/acme/deposits", key, r#"{"cents":500}"#);
    let signed_path = |path: &str| {
        let path = Some(path.to_owned());
        spoiled(get(), |r| r.signed_path = path)
    };
    let instead = |request: Signed, name: &'static str, value: &str| {
        spoiled(request, |r| r.instead = vec![(name, value.to_owned())])
    };
    vec![
        case("another path", signed_path("/v1/accounts?limit=5"), FORGED),
        case("another query", signed_path("/v1/rains?limit=6"), FORGED),
        case("no query", signed_path("/v1/rains"), FORGED),
        case(
            "another method",
            spoiled(get(), |r| r.signed_method = Some("POST")),
            FORGED,
        ),
        case(
            "another body",
            spoiled(post(), |r| r.signed_body = Some(r#"{"cents":5}"#.into())),
            FORGED,
        ),
        case(
            "a body with a blank more",
            spoiled(post(), |r| r.signed_body = Some(r#"{"cents": 500}"#.into())),
            FORGED,
        ),
        case(
            "no body",
            spoiled(post(), |r| r.signed_body = Some(String::new())),
            FORGED,
        ),
        case(
            "another idempotency key",
            spoiled(post(), |r| r.signed_idempotency_key = Some("x".into())),
            FORGED,
        ),
        case(
            "an idempotency key taken away",
            spoiled(post(), |r| r.without = vec![IDEMPOTENCY_KEY]),
            FORGED,
        ),
        case(
            "an idempotency key put in",
            instead(get(), IDEMPOTENCY_KEY, "x"),
            FORGED,
        ),
        case(
            "another time",
            instead(get(), TIME, &(hongbao::clock::now_ms() + 1).to_string()),
            FORGED,
        ),
        case(
            "another nonce",
            instead(get(), NONCE, &random_text()),
            FORGED,
        ),
        case(
            "another key",
            instead(get(), KEY, "k0123456789abcdef"),
            FORGED,
        ),
        case("no key", instead(get(), KEY, ""), FORGED),
        case(
            "a signature of zeros",
            instead(get(), SIGNATURE, &"0".repeat(64)),
            FORGED,
        ),
        case(
            "another secret",
            Signed::get("/v1/rains", "guessed"),
            FORGED,
        ),
        case("a secret of nothing", Signed::get("/v1/rains", ""), FORGED),
        case(
            "an unknown key",
            Signed::get("/v1/rains", "k0123456789abcdef.secret"),
            FORGED,
        ),
    ]
}

/// Keys that were good once, and requests that were.
pub async fn gone(server: &Server) -> Vec<Case> {
    let admin = server.admin();
    let revoked = key(server, "revoked", &[Role::Admin]).await;
    admin.revoke_key(&revoked.key.id).await.unwrap();
    let old = key(server, "rotated", &[Role::Admin]).await;
    admin.rotate_key(&old.key.id, Some(0)).await.unwrap();
    let new = NewKey {
        name: "expired".into(),
        roles: vec![Role::Admin],
        expires_at_ms: Some(hongbao::clock::now_ms() + 500),
    };
    let expired = admin.create_key(&new, None).await.unwrap();
    let expiring = client(server, &expired.credential);
    eventually("the key to expire", async || expiring.rains().await.err()).await;
    let sent = Signed::get("/v1/rains", &server.api_key());
    assert_eq!(sent.send(server).await.status, 200);
    let used = Signed::post("/v1/accounts", &server.api_key(), r#"{"sponsor":"acme"}"#);
    let used = used.keyed("used");
    assert_eq!(used.send(server).await.status, 201);
    let renewed = |spoil: fn(&mut Signed)| {
        let mut request = used.clone();
        request.nonce = random_text();
        spoil(&mut request);
        request
    };
    vec![
        case(
            "a revoked key",
            Signed::get("/v1/rains", &revoked.credential),
            REVOKED,
        ),
        case(
            "a revoked key that writes",
            Signed::post("/v1/rains", &revoked.credential, "{}"),
            REVOKED,
        ),
        case(
            "a secret that was rotated away",
            Signed::get("/v1/rains", &old.credential),
            FORGED,
        ),
        case(
            "an expired key",
            Signed::get("/v1/rains", &expired.credential),
            EXPIRED,
        ),
        case("a replay", sent.clone(), REPLAYED),
        case("a replay once more", sent, REPLAYED),
        case("a replayed write", used.clone(), REPLAYED),
        case(
            "a name used for another body",
            renewed(|r| r.body = r#"{"sponsor":"evil"}"#.into()),
            REUSED,
        ),
        case(
            "a name used for another path",
            renewed(|r| r.path = "/v1/keys".into()),
            REUSED,
        ),
        case("no name", renewed(|r| r.idempotency_key.clear()), NAMELESS),
        case(
            "a long name",
            renewed(|r| r.idempotency_key = "x".repeat(129)),
            NAMELESS,
        ),
    ]
}

/// Every route that each role may not use. The README's table, and not the program's, says which.
pub async fn under_privileged(server: &Server) -> Vec<Case> {
    let may_write = |role: Role, module: &str| match role {
        Role::Viewer => false,
        Role::Operator => ["rains", "dead_letters", "audits", "webhooks"].contains(&module),
        Role::Finance => ["accounts", "dead_letters"].contains(&module),
        Role::Admin => true,
    };
    let mut cases = vec![];
    for role in [Role::Viewer, Role::Operator, Role::Finance] {
        let issued = key(server, role.as_str(), &[role]).await;
        for (route, _) in hongbao::admin::routes::all() {
            let module = route.module.as_str();
            let allowed = match route.access {
                hongbao::admin::caller::Access::Read => module != "keys",
                hongbao::admin::caller::Access::Write => may_write(role, module),
            };
            if allowed {
                continue;
            }
            let path = route.path.replace("{id}", "1").replace("{name}", "acme");
            let path = path.replace("{packet}", "4294967296");
            let request = Signed::new(route.method, &path, &issued.credential);
            let what = format!("{role}: {} {path}", route.method);
            cases.push(case(what, request, DENIED));
        }
    }
    cases
}

/// Bodies that are no rain.
pub fn bodies(key: &str) -> Vec<Case> {
    let rain = |fields: &str| {
        let whole =
            r#"{"room":"quiz","sponsor":"acme","rule":"even","total_cents":10,"packets":10"#;
        format!("{whole}{fields}}}")
    };
    let broken = [
        "",
        "{",
        "[]",
        "null",
        "7",
        "\"rain\"",
        "{}",
        "{} x",
        r#"{"room":"quiz""#,
        "{'room':'quiz'}",
    ];
    let mut wrong: Vec<(String, (u16, &'static str))> = broken
        .iter()
        .map(|body| ((*body).to_owned(), BAD))
        .collect();
    wrong.push(("[".repeat(10_000), BAD));
    for fields in [
        r#","colour":"red""#,
        r#","key":"k""#,
        r#","room":"again""#,
        r#","title":7"#,
        r#","min_cents":"1""#,
        r#","min_cents":1.5"#,
        r#","min_cents":2"#,
        r#","max_cents":0"#,
        r#","opens_at_ms":"tomorrow""#,
        r#","opens_at_ms":1"#,
        r#","closes_at_ms":4000000000000"#,
        r#","opens_at_ms":4000000000000,"closes_at_ms":4000000000000"#,
        r#","duration_ms":0"#,
        r#","duration_ms":-1"#,
        r#","duration_ms":99999999999999"#,
        r#","durability":"always""#,
        r#","durability":"replicas:9""#,
        r#","buckets":0"#,
        r#","buckets":11"#,
        r#","buckets":-1"#,
        r#","refund_after_ms":-1"#,
        r#","key_required":"yes""#,
    ] {
        wrong.push((rain(fields), BAD));
    }
    let swapped = |from: &str, to: &str| rain("").replace(from, to);
    for body in [
        swapped("\"packets\":10", "\"packets\":0"),
        swapped("\"packets\":10", "\"packets\":11"),
        swapped("\"packets\":10", "\"packets\":\"10\""),
        swapped("\"packets\":10", "\"packets\":1e3"),
        swapped("\"packets\":10", "\"packets\":4294967296"),
        swapped("\"total_cents\":10", "\"total_cents\":-10"),
        swapped("\"total_cents\":10", "\"total_cents\":\"0.10\""),
        swapped("\"total_cents\":10", "\"total_cents\":1e30"),
        swapped("\"even\"", "\"odd\""),
        swapped("\"even\"", "{\"tiers\":[]}"),
        swapped("\"even\"", "{\"tiers\":[{\"count\":1,\"cents\":10}]}"),
        swapped("\"quiz\"", "\"two words\""),
        swapped("\"quiz\"", "\"\""),
        swapped("\"acme\"", "\"no/such sponsor\""),
        swapped("\"quiz\"", "\"quiz\",\"title\":\"two\\nlines\""),
    ] {
        wrong.push((body, BAD));
    }
    wrong.push((swapped("\"acme\"", "\"nobody\""), NOT_FOUND));
    wrong.push((
        swapped("\"total_cents\":10", "\"total_cents\":9999999"),
        POOR,
    ));
    wrong.push((
        rain(&format!(",\"title\":\"{}\"", "x".repeat(40_000))),
        TOO_LARGE,
    ));
    let post = |(body, wanted): (String, _)| {
        let what = format!(
            "POST /v1/rains {}",
            body.chars().take(120).collect::<String>()
        );
        case(what, Signed::post("/v1/rains", key, body), wanted)
    };
    let mut cases: Vec<Case> = wrong.into_iter().map(post).collect();
    for kind in [
        None,
        Some("text/plain"),
        Some("application/x-www-form-urlencoded"),
    ] {
        let request = spoiled(Signed::post("/v1/rains", key, rain("")), |r| {
            r.content_type = kind
        });
        cases.push(case(format!("content type {kind:?}"), request, NO_JSON));
    }
    cases
}

/// Writes elsewhere, bodies that do not fit their paths.
pub fn writes(key: &str) -> Vec<Case> {
    let long = format!(r#"{{"reason":"{}"}}"#, "x".repeat(201));
    let name = format!(r#"{{"name":"{}","roles":["viewer"]}}"#, "x".repeat(65));
    let cases: Vec<(&str, &str, (u16, &'static str))> = vec![
        ("/v1/accounts", r#"{"sponsor":""}"#, BAD),
        ("/v1/accounts", r#"{"sponsor":"two words"}"#, BAD),
        ("/v1/accounts", r#"{"sponsor":["acme"]}"#, BAD),
        ("/v1/accounts/acme/deposits", r#"{"cents":0}"#, BAD),
        ("/v1/accounts/acme/deposits", r#"{"cents":-5}"#, BAD),
        ("/v1/accounts/acme/deposits", r#"{"cents":"5"}"#, BAD),
        (
            "/v1/accounts/acme/deposits",
            r#"{"cents":5,"key":"k"}"#,
            BAD,
        ),
        (
            "/v1/accounts/acme/deposits",
            r#"{"cents":9223372036854775808}"#,
            BAD,
        ),
        ("/v1/accounts/nobody/deposits", r#"{"cents":5}"#, NOT_FOUND),
        ("/v1/rains/0/open", "{}", NOT_FOUND),
        ("/v1/rains/99/open", "{}", NOT_FOUND),
        ("/v1/rains/abc/close", "{}", NOT_FOUND),
        ("/v1/rains/-1/pause", "{}", NOT_FOUND),
        ("/v1/rains/2147483648/resume", "{}", NOT_FOUND),
        ("/v1/rains/%ff/open", "{}", NOT_FOUND),
        ("/v1/rains/1/resume", "{}", STATE),
        ("/v1/rains/1/top-up", "{}", BAD),
        (
            "/v1/rains/1/top-up",
            r#"{"packets":1,"total_cents":9999999}"#,
            POOR,
        ),
        ("/v1/rains/1/repair", r#"{"all":"yes"}"#, BAD),
        ("/v1/rains/99/repair", r#"{"all":true}"#, NOT_FOUND),
        ("/v1/dead-letters/4294967296/requeue", "{}", NOT_FOUND),
        ("/v1/dead-letters/7/requeue", "{}", NOT_FOUND),
        ("/v1/dead-letters/x/discard", r#"{"reason":"r"}"#, NOT_FOUND),
        (
            "/v1/dead-letters/4294967296/discard",
            r#"{"reason":" "}"#,
            BAD,
        ),
        ("/v1/dead-letters/4294967296/discard", &long, BAD),
        (
            "/v1/dead-letters/4294967296/discard",
            r#"{"reason":"two\nlines"}"#,
            BAD,
        ),
        ("/v1/dead-letters/requeue", r#"{"rain":"one"}"#, BAD),
        ("/v1/dead-letters/requeue", r#"{"rain":99}"#, NOT_FOUND),
        ("/v1/keys", r#"{"name":"x"}"#, BAD),
        ("/v1/keys", r#"{"name":"x","roles":[]}"#, BAD),
        ("/v1/keys", r#"{"name":"x","roles":["king"]}"#, BAD),
        ("/v1/keys", r#"{"name":" ","roles":["viewer"]}"#, BAD),
        (
            "/v1/keys",
            r#"{"name":"x","roles":["viewer"],"expires_at_ms":1}"#,
            BAD,
        ),
        ("/v1/keys", &name, BAD),
        ("/v1/keys/none/rotate", "{}", NOT_FOUND),
        ("/v1/keys/none/revoke", "{}", NOT_FOUND),
        ("/v1/keys/none/rotate", r#"{"overlap_ms":-1}"#, BAD),
        ("/v1/keys/none/rotate", r#"{"overlap_ms":9999999999}"#, BAD),
        (
            "/v1/keys/bootstrap/revoke",
            "{}",
            (409, "the key is a file's"),
        ),
        (
            "/v1/keys/bootstrap/rotate",
            "{}",
            (409, "the key is a file's"),
        ),
    ];
    let post = |(path, body, wanted): (&str, &str, _)| {
        let what = format!("POST {path} {}", body.chars().take(120).collect::<String>());
        case(what, Signed::post(path, key, body), wanted)
    };
    cases.into_iter().map(post).collect()
}

/// Reads of what is not there, pages that are none, methods that are not taken.
pub fn reads(key: &str, rains_cursor: &str) -> Vec<Case> {
    let other_list = format!("/v1/keys?cursor={rains_cursor}");
    let mut cases: Vec<Case> = [
        ("/v1/rains?limit=0", BAD),
        ("/v1/rains?limit=1001", BAD),
        ("/v1/rains?limit=many", BAD),
        ("/v1/rains?limit=-1", BAD),
        ("/v1/rains?cursor=", BAD),
        ("/v1/rains?cursor=7", BAD),
        ("/v1/rains?cursor=%00", BAD),
        ("/v1/rains?after=7", BAD),
        ("/v1/rains?limit=5&limit=6", BAD),
        (other_list.as_str(), BAD),
        ("/v1/accounts?cursor=x", BAD),
        ("/v1/accounts?limit=0", BAD),
        ("/v1/log?limit=0", BAD),
        ("/v1/log?cursor=bm9uZQ", BAD),
        ("/v1/rains/1/winners?cursor=x", BAD),
        ("/v1/rains/1/winners?limit=10001", BAD),
        ("/v1/dead-letters?rain=x", BAD),
        ("/v1/dead-letters?rain=99", NOT_FOUND),
        ("/v1/dead-letters?cursor=x", BAD),
        ("/v1/accounts/nonsense", BAD),
        ("/v1/accounts/user:nobody", NOT_FOUND),
        ("/v1/rains/99", NOT_FOUND),
        ("/v1/rains/x", NOT_FOUND),
        ("/v1/rains/99/audit", NOT_FOUND),
        ("/v1/rains/99/winners", NOT_FOUND),
        ("/v1/dead-letters/4294967296", NOT_FOUND),
        ("/v1/keys/none", NOT_FOUND),
        ("/v1/nothing", NOT_FOUND),
        ("/v1", NOT_FOUND),
        ("/v1/", NOT_FOUND),
        ("/v1/rains/", NOT_FOUND),
        ("/v2/rains", NOT_FOUND),
        ("/v1/rains/1/open", METHOD),
    ]
    .into_iter()
    .map(|(path, wanted)| case(format!("GET {path}"), Signed::get(path, key), wanted))
    .collect();
    for (method, path) in [
        ("DELETE", "/v1/rains"),
        ("PUT", "/v1/rains"),
        ("PATCH", "/v1/rains/1"),
        ("DELETE", "/v1/keys/k1"),
        ("POST", "/v1/pipeline"),
        ("POST", "/v1/log"),
        ("DELETE", "/v1/log"),
    ] {
        let request = Signed::new(method, path, key);
        cases.push(case(format!("{method} {path}"), request, METHOD));
    }
    cases
}
