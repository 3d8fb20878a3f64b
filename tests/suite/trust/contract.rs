//! The OpenAPI page against real answers: every operation answers as its schema says, with no field that is not in it, and every body
//! takes exactly the fields of its schema.

use std::collections::BTreeSet;

use serde_json::Value;

use super::*;
use crate::support::signed::Answer;

/// What is not as the schema says. Knows the words of JSON Schema that the page uses.
fn faults(page: &Value, schema: &Value, value: &Value, place: &str) -> Vec<String> {
    if let Some(name) = schema["$ref"].as_str() {
        let schema = page.pointer(name.strip_prefix('#').unwrap()).unwrap();
        return faults(page, schema, value, place);
    }
    for choice in ["oneOf", "anyOf"] {
        if let Some(choices) = schema[choice].as_array() {
            let fits = |schema: &Value| faults(page, schema, value, place).is_empty();
            return match choices.iter().any(fits) {
                true => vec![],
                false => vec![format!("{place}: {value} is none of {choice}")],
            };
        }
    }
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let is = |wanted: &Value| wanted == kind || (wanted == "number" && kind == "integer");
    let allowed = match &schema["type"] {
        Value::Null => true,
        Value::Array(types) => types.iter().any(is),
        one => is(one),
    };
    let mut found = vec![];
    if !allowed {
        found.push(format!("{place}: {value} is no {}", schema["type"]));
    }
    if let Some(values) = schema["enum"].as_array()
        && !values.contains(value)
    {
        found.push(format!("{place}: {value} is none of {values:?}"));
    }
    for item in value.as_array().into_iter().flatten() {
        found.extend(faults(page, &schema["items"], item, &format!("{place}[]")));
    }
    let (Some(fields), Some(properties)) = (value.as_object(), schema["properties"].as_object())
    else {
        return found;
    };
    for (name, value) in fields {
        match properties.get(name) {
            Some(schema) => found.extend(faults(page, schema, value, &format!("{place}.{name}"))),
            None if schema["additionalProperties"] == false => {
                found.push(format!("{place}.{name} is not in the schema"));
            }
            None => {}
        }
    }
    for name in schema["required"].as_array().into_iter().flatten() {
        if !fields.contains_key(name.as_str().unwrap()) {
            found.push(format!("{place}.{name} is missing"));
        }
    }
    found
}

/// The operation of a request on the page.
fn operation<'a>(page: &'a Value, method: &str, path: &str) -> &'a Value {
    let path: Vec<&str> = path.split('?').next().unwrap().split('/').collect();
    let fits = |pattern: &str| {
        let pattern: Vec<&str> = pattern.split('/').collect();
        let same = |(a, b): (&&str, &&str)| a == b || a.starts_with('{');
        pattern.len() == path.len() && pattern.iter().zip(&path).all(same)
    };
    let mut found: Vec<(&String, &Value)> = page["paths"]
        .as_object()
        .unwrap()
        .iter()
        .filter(|(pattern, methods)| fits(pattern) && !methods[method].is_null())
        .collect();
    // A literal path wins over a parameter.
    found.sort_by_key(|(pattern, _)| pattern.matches('{').count());
    &found[0].1[method]
}

/// A problem is one of the page's problems.
pub fn assert_problem(page: &Value, answer: &Answer) {
    let kind = answer.headers["content-type"].to_str().unwrap();
    assert_eq!(kind, "application/problem+json", "{}", answer.text);
    let schema = &page["components"]["schemas"]["Problem"];
    let found = faults(page, schema, &answer.json, "problem");
    assert!(found.is_empty(), "{found:?} in {}", answer.text);
    assert_eq!(answer.json["status"], answer.status);
}

pub async fn page(server: &Server) -> Value {
    let url = format!("{}/openapi.json", server.admin_url());
    let text = reqwest::get(url).await.unwrap().text().await.unwrap();
    assert_eq!(text, include_str!("../../../proto/openapi.json"));
    serde_json::from_str(&text).unwrap()
}

/// A claim that nobody can be paid for, in Redis as a settler would have buried it.
async fn dead_letters(server: &Server, rain: hongbao::rain::RainId, users: &[&str]) {
    for user in users {
        let mut raw = crate::support::wire::Raw::user(server, user).await;
        let _ = crate::support::wire::final_outcome(&mut raw, rain.get()).await;
    }
    server
        .until(rain, |rain| {
            rain.live
                .is_some_and(|live| live.dead == users.len() as u64)
        })
        .await;
}

/// Templates and schedules.
async fn plans(call: &mut impl AsyncFnMut(&'static str, &str, &str) -> Value) {
    let rain =
        r#""rain":{"room":"quiz","sponsor":"acme","rule":"even","total_cents":10,"packets":10}"#;
    let named = format!(r#"{{"name":"daily",{rain}}}"#);
    call("POST", "/v1/templates", &named).await;
    call("GET", "/v1/templates", "").await;
    call("GET", "/v1/templates/daily", "").await;
    call("POST", "/v1/templates/daily/update", &format!("{{{rain}}}")).await;
    call("POST", "/v1/templates/daily/rains", r#"{"room":"final"}"#).await;
    let plan = r#"{"template":"daily","times":{"weekly":{"days":["friday"],"at":"20:00","utc_offset":"+08:00"}}}"#;
    let made = call("POST", "/v1/schedules", plan).await;
    let schedule = format!("/v1/schedules/{}", made["id"]);
    call("GET", "/v1/schedules", "").await;
    call("GET", &schedule, "").await;
    call("POST", &format!("{schedule}/end"), "{}").await;
    let gone = r#"{"name":"gone","rain":{"room":"quiz","sponsor":"acme","rule":"even","total_cents":10,"packets":10}}"#;
    call("POST", "/v1/templates", gone).await;
    call("POST", "/v1/templates/gone/delete", "{}").await;
}

#[tokio::test]
async fn every_operation_answers_as_the_page_says() {
    let server = Server::start(&["store.managed_nodes=1", "ledger.create_user_accounts=false"]);
    let page = page(&server).await;
    let key = server.api_key();
    let mut seen = BTreeSet::new();
    let mut call = async |method: &'static str, path: &str, body: &str| {
        let mut request = Signed::new(method, path, &key);
        if method == "POST" {
            request.body = body.to_owned();
        }
        let answer = request.send(&server).await;
        let operation = operation(&page, &method.to_ascii_lowercase(), path);
        let responses = operation["responses"].as_object().unwrap();
        let response = responses.get(&answer.status.to_string());
        let response = response.unwrap_or_else(|| panic!("{method} {path}: {}", answer.text));
        let (media_type, content) = response["content"]
            .as_object()
            .unwrap()
            .iter()
            .next()
            .unwrap();
        let kind = answer.headers["content-type"].to_str().unwrap();
        assert!(kind.starts_with(media_type.as_str()), "{path}: {kind}");
        seen.insert(operation["operationId"].as_str().unwrap().to_owned());
        if media_type != "application/json" {
            return Value::Null;
        }
        let schema = &content["schema"];
        let found = faults(&page, schema, &answer.json, "answer");
        assert!(
            found.is_empty(),
            "{method} {path}: {found:#?}\nin {}",
            answer.text
        );
        answer.json
    };
    call("POST", "/v1/accounts", r#"{"sponsor":"acme"}"#).await;
    call("POST", "/v1/accounts/acme/deposits", r#"{"cents":5000}"#).await;
    call("GET", "/v1/accounts?prefix=sponsor:&limit=5", "").await;
    call("GET", "/v1/accounts/sponsor:acme", "").await;
    call("GET", "/v1/accounts/sponsor:acme/statement", "").await;
    let new = r#"{"room":"quiz","sponsor":"acme","rule":"even","total_cents":1000,"packets":10,"duration_ms":600000}"#;
    let made = call("POST", "/v1/rains", new).await;
    let id = hongbao::rain::RainId::new(made["id"].as_u64().unwrap() as u32).unwrap();
    let more = r#"{"packets":2,"total_cents":20,"rule":{"tiers":[{"count":2,"cents":10}]}}"#;
    call("POST", "/v1/rains/1/top-up", more).await;
    server
        .until(id, |rain| rain.loaded_packets == Some(12))
        .await;
    call("POST", "/v1/rains/1/announce", "{}").await;
    call("GET", "/v1/rains?limit=3", "").await;
    call("POST", "/v1/rains/preview", new).await;
    call("POST", "/v1/rains?dry_run=true", new).await;
    for step in ["open", "pause", "resume"] {
        call("POST", &format!("/v1/rains/1/{step}"), "{}").await;
    }
    dead_letters(&server, id, &["anna", "ben", "cleo"]).await;
    let letters = call("GET", "/v1/dead-letters?rain=1", "").await;
    let packet = |n: usize| {
        letters["dead_letters"][n]["packet_id"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let one = format!("/v1/dead-letters/{}", packet(0));
    call("GET", &one, "").await;
    call("POST", &format!("{one}/discard"), r#"{"reason":"left"}"#).await;
    let two = format!("/v1/dead-letters/{}/requeue", packet(1));
    call("POST", &two, "{}").await;
    call("POST", "/v1/dead-letters/requeue", r#"{"rain":1}"#).await;
    call("GET", "/v1/rains/1", "").await;
    call("GET", "/v1/rains/1/audit", "").await;
    for list in ["winners", "winners.csv", "winners.ndjson"] {
        call("GET", &format!("/v1/rains/1/{list}"), "").await;
    }
    call("GET", "/v1/pipeline", "").await;
    call("GET", "/v1/nodes", "").await;
    call("POST", "/v1/rains/1/repair", r#"{"all":true}"#).await;
    call("POST", "/v1/rains/1/close", "{}").await;
    // Once it is over the stream of its numbers ends.
    server
        .until(id, |rain| rain.state >= hongbao::rain::State::Refunded)
        .await;
    call("GET", "/v1/rains/1/live", "").await;
    plans(&mut call).await;
    let new = r#"{"name":"ops","roles":["operator","finance"],"expires_at_ms":4000000000000}"#;
    let made = call("POST", "/v1/keys", new).await;
    let of_key = format!("/v1/keys/{}", made["id"].as_str().unwrap());
    call(
        "POST",
        &format!("{of_key}/rotate"),
        r#"{"overlap_ms":1000}"#,
    )
    .await;
    call("GET", &of_key, "").await;
    call("POST", &format!("{of_key}/revoke"), "{}").await;
    call("GET", "/v1/keys", "").await;
    let new =
        r#"{"url":"http://127.0.0.1:9/","events":["rain.opened","claim.dead"],"enabled":true}"#;
    let made = call("POST", "/v1/webhooks", new).await;
    let hook = format!("/v1/webhooks/{}", made["id"].as_str().unwrap());
    call(
        "POST",
        &format!("{hook}/update"),
        r#"{"events":["rain.closed"]}"#,
    )
    .await;
    call("POST", &format!("{hook}/rotate"), r#"{"overlap_ms":1000}"#).await;
    let sent = call("POST", &format!("{hook}/test"), "{}").await;
    let sent = format!("/v1/deliveries/{}", sent["id"]);
    call("GET", &sent, "").await;
    call("GET", "/v1/deliveries?state=pending&limit=5", "").await;
    call("POST", &format!("{sent}/resend"), "{}").await;
    call("POST", "/v1/deliveries/resend", "{}").await;
    call("GET", &hook, "").await;
    call("GET", "/v1/webhooks", "").await;
    call("POST", &format!("{hook}/delete"), "{}").await;
    call("GET", "/v1/log", "").await;

    let all: BTreeSet<String> = page["paths"]
        .as_object()
        .unwrap()
        .values()
        .flat_map(|methods| methods.as_object().unwrap().values())
        .map(|operation| operation["operationId"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(seen, all, "every operation was called");
}

#[tokio::test]
async fn every_body_takes_exactly_the_fields_of_its_schema() {
    let server = Server::start(&["store.managed_nodes=1"]);
    let page = page(&server).await;
    let mut bodies = 0;
    for (path, methods) in page["paths"].as_object().unwrap() {
        let body = &methods["post"]["requestBody"]["content"]["application/json"]["schema"];
        let Some(name) = body["$ref"].as_str() else {
            continue;
        };
        let schema = page.pointer(name.strip_prefix('#').unwrap()).unwrap();
        if schema["properties"].is_null() {
            continue; // any field of another schema
        }
        bodies += 1;
        let path = path
            .replace("{id}", "1")
            .replace("{name}", "acme")
            .replace("{packet}", "4294967296");
        let request = Signed::post(&path, &server.api_key(), r#"{"colour":1}"#);
        let answer = request.send(&server).await;
        assert_eq!(answer.status, 422, "{path}: {}", answer.text);
        // serde lists what it would have taken: expected `a`, expected `a` or `b`, expected one of `a`, `b`, `c`.
        let detail = answer.json["detail"].as_str().unwrap();
        let (_, expected) = detail.split_once("expected").unwrap();
        let taken: BTreeSet<&str> = expected.split('`').skip(1).step_by(2).collect();
        let named: BTreeSet<&str> = schema["properties"]
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();
        assert_eq!(taken, named, "{path}");
    }
    assert!(bodies >= 9, "{bodies}");
}
