//! Rains by name: list, show, create, update, delete, and create a rain from one.
//!
//! A template holds what `POST /v1/rains` takes, without times. Whoever makes a rain from it may give fields that take the place of its own; `null` takes
//! one away.

use axum::Json;
use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::asked::{self, NewRain};
use super::page::{self, Limits};
use super::problem::Problem;
use super::rains::{self, Rain};
use super::write::IdempotencyKey;
use super::{Admin, Shared};
use crate::clock::now_ms;
use crate::ledger;
use crate::rain::UserId;

/// Fields of a rain that a template cannot have: they are of one rain only.
const OF_ONE_RAIN: [&str; 2] = ["opens_at_ms", "closes_at_ms"];

#[derive(Serialize)]
pub struct Template {
    name: String,
    rain: Value,
    created_at_ms: i64,
    changed_at_ms: i64,
}

impl From<ledger::Template> for Template {
    fn from(template: ledger::Template) -> Template {
        Template {
            name: template.name,
            rain: template.rain,
            created_at_ms: template.created_at_ms,
            changed_at_ms: template.changed_at_ms,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewTemplate {
    name: String,
    rain: Map<String, Value>,
}

pub async fn create(
    State(admin): Shared,
    body: Result<Json<NewTemplate>, JsonRejection>,
) -> Result<(StatusCode, Json<Template>), Problem> {
    let Json(new) = body?;
    // The same alphabet as everywhere a name becomes part of a path.
    if !UserId::fits(&new.name) {
        return Err(Problem::bad(format!(
            "template name {:?} must be 1 to {} characters from A-Z a-z 0-9 . _ @ : + = / -",
            new.name
                .chars()
                .take(UserId::MAX_BYTES + 1)
                .collect::<String>(),
            UserId::MAX_BYTES
        )));
    }
    asked::as_path("template", &new.name)?;
    let rain = Value::Object(new.rain);
    check(&admin, &rain).await?;
    let template = admin
        .ledger
        .create_template(&new.name, &rain, now_ms())
        .await?;
    Ok((StatusCode::CREATED, Json(template.into())))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Changed {
    rain: Map<String, Value>,
}

pub async fn update(
    State(admin): Shared,
    Path(name): Path<String>,
    body: Result<Json<Changed>, JsonRejection>,
) -> Result<Json<Template>, Problem> {
    let Json(Changed { rain }) = body?;
    let rain = Value::Object(rain);
    check(&admin, &rain).await?;
    let template = admin.ledger.change_template(&name, &rain, now_ms()).await?;
    Ok(Json(template.into()))
}

#[derive(Serialize)]
pub struct Deleted {
    deleted: String,
}

pub async fn delete(
    State(admin): Shared,
    Path(name): Path<String>,
) -> Result<Json<Deleted>, Problem> {
    admin.ledger.delete_template(&name).await?;
    Ok(Json(Deleted { deleted: name }))
}

pub async fn show(
    State(admin): Shared,
    Path(name): Path<String>,
) -> Result<Json<Template>, Problem> {
    Ok(Json(admin.ledger.template(&name).await?.into()))
}

#[derive(Serialize)]
pub struct Templates {
    templates: Vec<Template>,
    /// Pass it as `cursor` for the next page; null on the last.
    next_cursor: Option<String>,
}

/// By name.
pub async fn list(
    State(admin): Shared,
    page: Result<Query<Limits>, QueryRejection>,
) -> Result<Json<Templates>, Problem> {
    let Query(page) = page?;
    let limit = page.limit(100, 1_000)?;
    let after: Option<String> = page.place("template")?;
    let found = admin.ledger.templates(after.as_deref(), limit + 1).await?;
    let (found, next_cursor) = page::cut(found, limit, |last| page::cursor("template", &last.name));
    Ok(Json(Templates {
        templates: found.into_iter().map(Template::from).collect(),
        next_cursor,
    }))
}

/// Creates a rain. The body holds the fields that take the place of the template's.
pub async fn create_rain(
    State(admin): Shared,
    Path(name): Path<String>,
    IdempotencyKey(key): IdempotencyKey,
    body: Result<Json<Map<String, Value>>, JsonRejection>,
) -> Result<(StatusCode, Json<Rain>), Problem> {
    let overrides = Value::Object(body?.0);
    let template = admin.ledger.template(&name).await?;
    let new = of_now(laid_over(&template.rain, &overrides)?, &overrides);
    let rain = rains::make_asked(&admin, new, &key).await?;
    Ok((StatusCode::CREATED, Json(rain.into())))
}

/// A template's rain with fields of its own.
pub fn laid_over(template: &Value, overrides: &Value) -> Result<NewRain, Problem> {
    let mut rain = template.as_object().cloned().unwrap_or_default();
    for (field, value) in overrides.as_object().into_iter().flatten() {
        match value {
            Value::Null => rain.remove(field),
            value => rain.insert(field.clone(), value.clone()),
        };
    }
    serde_json::from_value(Value::Object(rain)).map_err(|error| Problem::bad(error.to_string()))
}

/// A template says how long before its opening a rain is announced. A rain that an operator will open has no such moment; whoever asks for one of this rain is
/// told so.
fn of_now(mut new: NewRain, overrides: &Value) -> NewRain {
    if new.opens_at_ms.is_none() && overrides.get("announce_ms").is_none() {
        new.announce_ms = None;
    }
    new
}

/// Refuses a template from which no rain could be made today, whoever pays.
async fn check(admin: &Admin, rain: &Value) -> Result<(), Problem> {
    if let Some(field) = OF_ONE_RAIN.iter().find(|field| rain.get(*field).is_some()) {
        return Err(Problem::bad(format!(
            "{field} is of one rain only: give it when a rain is made from the template, or in a schedule"
        )));
    }
    let mut new = laid_over(rain, &Value::Null)?;
    // Some of what it says is about an opening, which every rain made from it may have.
    new.opens_at_ms = new.announce_ms.map(|_| now_ms());
    asked::checked(admin, new).await.map(drop)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{laid_over, of_now};
    use crate::rain::Cents;

    #[test]
    fn fields_take_the_place_of_a_templates_and_null_takes_one_away() {
        let template = json!({"room": "quiz", "sponsor": "acme", "rule": "even", "total_cents": 100, "packets": 10, "max_cents": 20});
        let overrides =
            json!({"room": "final", "total_cents": 500, "max_cents": null, "opens_at_ms": 7});
        let rain = laid_over(&template, &overrides).unwrap();
        assert_eq!(
            (rain.room.as_str(), rain.sponsor.as_str()),
            ("final", "acme")
        );
        assert_eq!((rain.total_cents, rain.packets), (Cents(500), 10));
        assert_eq!((rain.max_cents, rain.opens_at_ms), (None, Some(7)));
        assert!(laid_over(&template, &json!({"packetz": 5})).is_err());
    }

    #[test]
    fn a_templates_announcement_is_of_rains_with_an_opening() {
        let template = json!({"room": "quiz", "rule": "even", "total_cents": 100, "packets": 10, "announce_ms": 30_000});
        for (overrides, wanted) in [
            (json!({}), None),
            (json!({"opens_at_ms": 7}), Some(30_000)),
            // It was asked for of this very rain, so it is refused and not forgotten.
            (json!({"announce_ms": 5}), Some(5)),
        ] {
            let new = of_now(laid_over(&template, &overrides).unwrap(), &overrides);
            assert_eq!(new.announce_ms, wanted, "{overrides}");
        }
    }
}
