//! Templates with opening times: create, list, show, end. Who creates their rains stands in `openings.rs`.

use axum::Json;
use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::openings::{self, OVERRIDES_REFUSED};
use super::page::{self, Limits};
use super::problem::Problem;
use super::write::IdempotencyKey;
use super::{Admin, Shared};
use crate::clock::now_ms;
use crate::ledger::{self, NewSchedule, Noted, Opening};
use crate::rain::{RainId, Times};

/// How long before its opening a rain is created and loaded, unless it is told.
const AHEAD_DEFAULT_MS: i64 = 600_000;
/// At least as long as loading a large rain takes, at most a month: the sponsor's money is held for so long.
const AHEAD_MIN_MS: i64 = 1_000;
const AHEAD_MAX_MS: i64 = 31 * 86_400_000;
/// Openings to come that are shown.
const NEXT_SHOWN: usize = 5;
/// Openings that have been looked at and are shown.
const NOTED_SHOWN: u32 = 50;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    template: String,
    /// Fields that take the place of the template's.
    #[serde(default)]
    overrides: Map<String, Value>,
    times: Times,
    ahead_ms: Option<i64>,
}

#[derive(Serialize)]
pub struct Schedule {
    id: i64,
    template: String,
    overrides: Value,
    times: Times,
    ahead_ms: i64,
    ended: bool,
    created_at_ms: i64,
    /// The openings that come next, at most five.
    next_openings_ms: Vec<i64>,
    /// Those that have been looked at, the latest first; only where one schedule was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    openings: Option<Vec<Looked>>,
}

/// What became of an opening.
#[derive(Serialize)]
pub struct Looked {
    opens_at_ms: i64,
    /// created, failed (tried again until its time comes) or missed.
    state: &'static str,
    rain_id: Option<RainId>,
    problem: Option<String>,
    tried_at_ms: i64,
}

impl From<Noted> for Looked {
    fn from(noted: Noted) -> Looked {
        let (state, rain_id, problem) = match noted.opening {
            Opening::Created(rain) => ("created", Some(rain), None),
            Opening::Failed(problem) => ("failed", None, Some(problem)),
            Opening::Missed(problem) => ("missed", None, Some(problem)),
        };
        Looked {
            opens_at_ms: noted.opens_at_ms,
            state,
            rain_id,
            problem,
            tried_at_ms: noted.tried_at_ms,
        }
    }
}

impl From<ledger::Schedule> for Schedule {
    fn from(schedule: ledger::Schedule) -> Schedule {
        let plan = schedule.plan;
        let now = now_ms();
        let next =
            std::iter::successors(plan.times.next_after(now), |at| plan.times.next_after(*at));
        let shown = if schedule.ended { 0 } else { NEXT_SHOWN };
        Schedule {
            next_openings_ms: next.take(shown).collect(),
            id: schedule.id,
            template: plan.template,
            overrides: plan.overrides,
            times: plan.times,
            ahead_ms: plan.ahead_ms,
            ended: schedule.ended,
            created_at_ms: schedule.created_at_ms,
            openings: None,
        }
    }
}

pub async fn create(
    State(admin): Shared,
    IdempotencyKey(key): IdempotencyKey,
    body: Result<Json<Plan>, JsonRejection>,
) -> Result<(StatusCode, Json<Schedule>), Problem> {
    let Json(plan) = body?;
    let new = checked(&admin, plan).await?;
    let schedule = admin.ledger.create_schedule(&new, now_ms(), &key).await?;
    Ok((StatusCode::CREATED, Json(schedule.into())))
}

/// Refuses what could never open.
async fn checked(admin: &Admin, plan: Plan) -> Result<NewSchedule, Problem> {
    plan.times
        .check()
        .map_err(|error| Problem::bad(error.to_string()))?;
    let ahead_ms = plan.ahead_ms.unwrap_or(AHEAD_DEFAULT_MS);
    if !(AHEAD_MIN_MS..=AHEAD_MAX_MS).contains(&ahead_ms) {
        return Err(Problem::bad(format!(
            "ahead_ms {ahead_ms} must be from {AHEAD_MIN_MS} to {AHEAD_MAX_MS}"
        )));
    }
    if let Some(field) = OVERRIDES_REFUSED
        .iter()
        .find(|field| plan.overrides.contains_key(**field))
    {
        let detail = format!("{field} of a schedule's rains follows from its times");
        return Err(Problem::bad(detail));
    }
    let Some(first_ms) = plan.times.next_after(now_ms()) else {
        return Err(Problem::bad("every opening of the schedule is past"));
    };
    let new = NewSchedule {
        template: plan.template,
        overrides: Value::Object(plan.overrides),
        times: plan.times,
        ahead_ms,
    };
    openings::rain_at(admin, &new, first_ms).await?;
    Ok(new)
}

#[derive(Serialize)]
pub struct Schedules {
    schedules: Vec<Schedule>,
    /// Pass it as `cursor` for the next page; null on the last.
    next_cursor: Option<String>,
}

/// Newest first.
pub async fn list(
    State(admin): Shared,
    page: Result<Query<Limits>, QueryRejection>,
) -> Result<Json<Schedules>, Problem> {
    let Query(page) = page?;
    let limit = page.limit(100, 1_000)?;
    let after = page.place("schedule")?;
    let found = admin.ledger.schedules(after, limit + 1).await?;
    let (found, next_cursor) = page::cut(found, limit, |last| page::cursor("schedule", last.id));
    Ok(Json(Schedules {
        schedules: found.into_iter().map(Schedule::from).collect(),
        next_cursor,
    }))
}

pub async fn show(State(admin): Shared, Path(id): Path<String>) -> Result<Json<Schedule>, Problem> {
    let schedule = admin.ledger.schedule(number(&id)?).await?;
    let openings = admin
        .ledger
        .openings(schedule.id, None, NOTED_SHOWN)
        .await?;
    let mut shown = Schedule::from(schedule);
    shown.openings = Some(openings.into_iter().map(Looked::from).collect());
    Ok(Json(shown))
}

/// Rains that it has created stay; no other follows.
pub async fn end(State(admin): Shared, Path(id): Path<String>) -> Result<Json<Schedule>, Problem> {
    let schedule = admin.ledger.end_schedule(number(&id)?).await?;
    Ok(Json(schedule.into()))
}

fn number(id: &str) -> Result<i64, Problem> {
    id.parse()
        .map_err(|_| Problem::not_found(format!("schedule id \"{id}\" is not a number")))
}
