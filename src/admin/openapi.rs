//! The OpenAPI page: the table of routes, and the shapes of `schemas.json`.
//!
//! It is committed as `proto/openapi.json`, so that a change of the API shows in its diff. Tests hold the shapes against real answers.

use std::sync::LazyLock;

use serde_json::{Map, Value, json};

use super::caller::Access;
use super::confirm::{CONFIRM, Confirms};
use super::routes::{self, Gives, Route};
use super::signing::{IDEMPOTENCY_KEY, KEY, NONCE, SIGNATURE, TIME};

const JSON: &str = "application/json";

/// Schemas and query parameters by name.
static SHAPES: LazyLock<Value> = LazyLock::new(|| {
    serde_json::from_str(include_str!("schemas.json")).expect("schemas.json is JSON")
});

/// The page, as it is served and committed.
pub fn page() -> &'static str {
    static PAGE: LazyLock<String> = LazyLock::new(|| {
        let text = serde_json::to_string_pretty(&document()).expect("a value is JSON");
        text + "\n"
    });
    &PAGE
}

fn document() -> Value {
    let mut paths = Map::new();
    for (route, _) in routes::all() {
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        path[route.method.to_ascii_lowercase()] = operation(&route);
    }
    let header = |name: &str, text: &str| json!({ "type": "apiKey", "in": "header", "name": name, "description": text });
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "hongbao admin API",
            "version": "1",
            "description": "Amounts are integers in cents. Every request is signed; every write has an Idempotency-Key. See proto/admin.md.",
            "license": { "name": "MIT", "identifier": "MIT" },
        },
        "servers": [{ "url": "http://127.0.0.1:7701" }],
        "security": [{ "key": [], "time": [], "nonce": [], "signature": [] }],
        "paths": paths,
        "components": {
            "schemas": SHAPES["schemas"],
            "parameters": SHAPES["parameters"],
            "securitySchemes": {
                "key": header(KEY, "Id of the key."),
                "time": header(TIME, "ms since 1970, within 5,000 of the server's."),
                "nonce": header(NONCE, "16 to 64 characters from A-Z a-z 0-9 _ -, another text for each request."),
                "signature": header(SIGNATURE, "HMAC-SHA256 of the canonical form, hex."),
            },
            "responses": { "Problem": {
                "description": "Refused or failed.",
                "content": { "application/problem+json": { "schema": schema("Problem") } },
            } },
        },
    })
}

fn schema(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

fn operation(route: &Route) -> Value {
    let permission = format!("{}:{}", route.module.as_str(), route.access.as_str());
    let mut operation = json!({
        "operationId": route.operation,
        "summary": route.summary,
        "description": format!("Needs the permission {permission}."),
        "tags": [route.module.as_str()],
        "x-permission": permission,
        "parameters": parameters(route),
        "responses": { "default": { "$ref": "#/components/responses/Problem" } },
    });
    let answered = |description: &str, media_type: &str, schema: Value| json!({ "description": description, "content": { media_type: { "schema": schema } } });
    let (status, answer) = match route.gives {
        Gives::Json(status, name) => (status, answered("Done.", JSON, schema(name))),
        Gives::Stream(media_type) => {
            let text = json!({ "type": "string" });
            (200, answered("As long as it takes.", media_type, text))
        }
    };
    operation["responses"][status.to_string()] = answer;
    if route.rehearses {
        let rehearsed = answered(
            "With dry_run=true: what would happen.",
            JSON,
            schema("Rehearsal"),
        );
        operation["responses"]["200"] = rehearsed;
    }
    if let Some(body) = route.takes {
        operation["requestBody"] = json!({
            "required": true,
            "content": { JSON: { "schema": schema(body) } },
        });
    }
    operation
}

fn parameters(route: &Route) -> Vec<Value> {
    let in_path = route.path.split('/').filter_map(|part| {
        let name = part.strip_prefix('{')?.strip_suffix('}')?;
        Some(
            json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } }),
        )
    });
    let rehearsal = route.rehearses.then_some("dry_run");
    let in_query = route
        .query
        .iter()
        .copied()
        .chain(rehearsal)
        .map(|name| json!({ "$ref": format!("#/components/parameters/{name}") }));
    let key = (route.access == Access::Write).then(|| {
        json!({
            "name": IDEMPOTENCY_KEY, "in": "header", "required": true,
            "description": "The caller's own name for the request: the same key with the same request is answered as the first time.",
            "schema": { "type": "string", "minLength": 1, "maxLength": crate::ledger::KEY_BYTES_MAX },
        })
    });
    let confirm = (route.confirms != Confirms::Never).then(|| {
        json!({
            "name": CONFIRM, "in": "header",
            "description": "The member confirm of the problem 428 that the same request was answered without it.",
            "schema": { "type": "string" },
        })
    });
    in_path.chain(in_query).chain(key).chain(confirm).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every `$ref` of the page leads somewhere in it.
    fn refs<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
        match value {
            Value::Object(fields) => {
                found.extend(fields.get("$ref").and_then(Value::as_str));
                fields.values().for_each(|value| refs(value, found));
            }
            Value::Array(items) => items.iter().for_each(|value| refs(value, found)),
            _ => {}
        }
    }

    #[test]
    fn the_committed_page_is_the_one_that_is_served() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/proto/openapi.json");
        if std::env::var_os("HONGBAO_WRITE_OPENAPI").is_some() {
            std::fs::write(path, page()).unwrap();
        }
        let committed = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            committed == page(),
            "proto/openapi.json is of another table: HONGBAO_WRITE_OPENAPI=1 cargo test openapi writes it"
        );
    }

    #[test]
    fn every_shape_is_there_and_every_one_is_used() {
        let document = document();
        let mut found = vec![];
        refs(&document, &mut found);
        for name in &found {
            let pointer = name.strip_prefix('#').unwrap();
            assert!(document.pointer(pointer).is_some(), "{name}");
        }
        for kind in ["schemas", "parameters"] {
            for name in SHAPES[kind].as_object().unwrap().keys() {
                let used = format!("#/components/{kind}/{name}");
                assert!(found.contains(&used.as_str()), "{used} is not used");
            }
        }
    }

    #[test]
    fn every_route_is_on_the_page_once_under_a_name_of_its_own() {
        let document = document();
        let routes = routes::all();
        let mut names: Vec<&str> = routes.iter().map(|(route, _)| route.operation).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), routes.len());
        let on_page: usize = document["paths"]
            .as_object()
            .unwrap()
            .values()
            .map(|methods| methods.as_object().unwrap().len())
            .sum();
        assert_eq!(on_page, routes.len());
        for (route, _) in routes {
            assert!(!route.summary.is_empty(), "{}", route.path);
            assert!(route.path.starts_with("/v1/"));
        }
    }
}
