//! Create, list, show, open, pause, resume, top up, close, audit.

use std::time::Duration;

use axum::Json;
use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};

use super::asked::{self, NewRain};
use super::openings::KEY_PREFIX;
use super::page::{self, Limits};
use super::problem::Problem;
use super::write::IdempotencyKey;
use super::{Admin, Shared};
use crate::clock::now_ms;
use crate::rain::split::Rule;
use crate::rain::{self, Cents, Durability, RainId, State as RainState, Step};
use crate::steward::StewardError;
use crate::steward::audit::Report;
use crate::steward::repair::Repair;
use crate::store::bucket::Census;

/// What is added to a rain. Rule and bounds are those of its creation unless they are given.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewTopUp {
    packets: u32,
    total_cents: Cents,
    rule: Option<Rule>,
    min_cents: Option<Cents>,
    max_cents: Option<Cents>,
}

/// A rain as it is shown. Its seeds are not: they tell where the big packets are.
#[derive(Serialize)]
pub struct Rain {
    id: RainId,
    title: String,
    room: String,
    sponsor: String,
    /// Rule and bounds of its creation.
    rule: Rule,
    /// With all top-ups, as everywhere in the API.
    total_cents: Cents,
    packets: u32,
    /// Packets that are or have been in their pools for certain.
    loaded_packets: u32,
    min_cents: Cents,
    max_cents: Cents,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    top_ups: Vec<TopUp>,
    state: RainState,
    sold_out: bool,
    opens_at_ms: Option<i64>,
    closes_at_ms: Option<i64>,
    duration_ms: i64,
    durability: Durability,
    buckets: usize,
    refund_after_ms: i64,
    key_required: bool,
    /// From when on the room is told of it; null: since it was known.
    announce_at_ms: Option<i64>,
    created_at_ms: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    live: Option<Live>,
    /// Why there are no live numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    live_problem: Option<String>,
}

/// One top-up, in the order of their packets. Its money moved by the ledger entry `fund:<rain>:<number>`.
#[derive(Serialize)]
pub struct TopUp {
    number: u32,
    rule: Rule,
    total_cents: Cents,
    packets: u32,
    min_cents: Cents,
    max_cents: Cents,
    loaded: bool,
}

/// The answer to a top-up.
#[derive(Serialize)]
pub struct ToppedUp {
    /// The number of this top-up among those of the rain.
    top_up: u32,
    #[serde(flatten)]
    rain: Rain,
}

#[derive(Serialize)]
pub struct Live {
    #[serde(flatten)]
    census: Census,
    credited_count: u64,
    credited_cents: Cents,
}

impl From<rain::Rain> for Rain {
    fn from(rain: rain::Rain) -> Rain {
        let created = &rain.parts.first().split;
        let top_up = |(number, part): (u32, &rain::Part)| TopUp {
            number,
            rule: part.split.rule.clone(),
            total_cents: part.split.total,
            packets: part.split.packets,
            min_cents: part.split.min,
            max_cents: part.split.max,
            loaded: part.loaded,
        };
        Rain {
            rule: created.rule.clone(),
            min_cents: created.min,
            max_cents: created.max,
            top_ups: (1..).zip(rain.parts.top_ups()).map(top_up).collect(),
            total_cents: rain.parts.total(),
            packets: rain.parts.packets(),
            loaded_packets: rain.parts.loaded_packets(),
            id: rain.id,
            title: rain.title,
            room: rain.room,
            sponsor: rain.sponsor,
            state: rain.state,
            sold_out: rain.sold_out,
            opens_at_ms: rain.window.opens_at_ms,
            closes_at_ms: rain.window.closes_at_ms(),
            duration_ms: rain.window.duration_ms,
            durability: rain.durability,
            buckets: rain.salts.len(),
            refund_after_ms: rain.refund_after_ms,
            key_required: rain.key_required,
            announce_at_ms: rain.announce_at_ms,
            created_at_ms: rain.created_at_ms,
            live: None,
            live_problem: None,
        }
    }
}

pub async fn create(
    State(admin): Shared,
    IdempotencyKey(key): IdempotencyKey,
    how: Result<Query<HowToCreate>, QueryRejection>,
    body: Result<Json<NewRain>, JsonRejection>,
) -> Result<Response, Problem> {
    let Query(how) = how?;
    let Json(new) = body?;
    if how.dry_run {
        let key = Some(key.as_str()).filter(|key| !key.is_empty());
        return Ok(Json(rehearse(&admin, new, key).await?).into_response());
    }
    let rain = make_asked(&admin, new, &key).await?;
    crate::crash::point("create.recorded");
    Ok((StatusCode::CREATED, Json(Rain::from(rain))).into_response())
}

/// [`make`] for a caller, whose key must not be one of a schedule's.
pub(super) async fn make_asked(
    admin: &Admin,
    new: NewRain,
    key: &str,
) -> Result<rain::Rain, Problem> {
    if key.starts_with(KEY_PREFIX) {
        return Err(Problem::bad(format!(
            "Idempotency-Key \"{key}\" begins like those of schedules' rains: choose another"
        )));
    }
    make(admin, new, key).await
}

/// Funds a rain, once for each key. A steward loads it.
pub(super) async fn make(admin: &Admin, new: NewRain, key: &str) -> Result<rain::Rain, Problem> {
    let buckets = new.buckets;
    let new = asked::checked(admin, new).await?;
    let buckets = buckets.unwrap_or_else(|| admin.store.buckets_for(new.split.packets));
    let seed = asked::fresh_seed()?;
    let salts = |id| admin.store.salts(id, buckets);
    let made = admin
        .ledger
        .create_rain(&new, seed, now_ms(), Some(key), salts);
    Ok(made.await?)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HowToCreate {
    /// Say what would happen, and let nothing happen.
    #[serde(default)]
    dry_run: bool,
}

/// What a creation would do.
#[derive(Serialize)]
pub struct Rehearsal {
    /// Always true: nothing was stored.
    dry_run: bool,
    /// The rain that the same key made before: it would be the answer, and no money would move.
    existing: Option<RainId>,
    sponsor_balance_cents: Cents,
    sponsor_balance_after_cents: Cents,
    /// Without an id unless it exists.
    rain: serde_json::Value,
}

/// The transaction of a creation, taken back at its end: whatever would refuse it refuses this.
async fn rehearse(admin: &Admin, new: NewRain, key: Option<&str>) -> Result<Rehearsal, Problem> {
    let buckets = new.buckets;
    let new = asked::checked(admin, new).await?;
    let buckets = buckets.unwrap_or_else(|| admin.store.buckets_for(new.split.packets));
    let seed = asked::fresh_seed()?;
    let salts = |id| admin.store.salts(id, buckets);
    let rehearsed = admin
        .ledger
        .rehearse_rain(&new, seed, now_ms(), key, salts)
        .await?;
    let mut shown = serde_json::to_value(Rain::from(rehearsed.rain.clone()))
        .map_err(|error| Problem::new(500, "the rain cannot be shown", error.to_string()))?;
    let existing = (!rehearsed.new).then_some(rehearsed.rain.id);
    if let (None, Some(shown)) = (existing, shown.as_object_mut()) {
        shown.remove("id");
    }
    Ok(Rehearsal {
        dry_run: true,
        existing,
        sponsor_balance_cents: rehearsed.balance_before,
        sponsor_balance_after_cents: rehearsed.balance_after,
        rain: shown,
    })
}

#[derive(Serialize)]
pub struct Rains {
    rains: Vec<Rain>,
    next_cursor: Option<String>,
}

/// Newest first.
pub async fn list(
    State(admin): Shared,
    page: Result<Query<Limits>, QueryRejection>,
) -> Result<Json<Rains>, Problem> {
    let Query(page) = page?;
    let (limit, after) = (page.limit(100, 1_000)?, page.place("rain")?);
    let rains = admin.ledger.rains(after, limit + 1).await?;
    let (rains, next_cursor) = page::cut(rains, limit, |rain| page::cursor("rain", rain.id));
    Ok(Json(Rains {
        rains: rains.into_iter().map(Rain::from).collect(),
        next_cursor,
    }))
}

pub(super) async fn find(admin: &Admin, id: &str) -> Result<rain::Rain, Problem> {
    let id: RainId = id
        .parse()
        .map_err(|error: rain::IdError| Problem::not_found(error.to_string()))?;
    Ok(admin.ledger.rain(id).await?)
}

/// With its live numbers; if a node does not answer, with the reason instead of them.
pub async fn show(State(admin): Shared, Path(id): Path<String>) -> Result<Json<Rain>, Problem> {
    let rain = find(&admin, &id).await?;
    let totals = admin.ledger.rain_totals(rain.id).await?;
    let buckets = admin.store.buckets(&rain);
    let counts =
        futures_util::future::try_join_all(buckets.iter().map(|bucket| bucket.census())).await;
    let mut shown = Rain::from(rain);
    match counts {
        Ok(counts) => {
            let census = counts.into_iter().fold(Census::default(), Census::plus);
            shown.live = Some(Live {
                census,
                credited_count: totals.credited_count,
                credited_cents: totals.credited,
            });
        }
        Err(error) => shown.live_problem = Some(error.to_string()),
    }
    Ok(Json(shown))
}

/// Opens it now, whatever time was planned.
pub async fn open(State(admin): Shared, Path(id): Path<String>) -> Result<Json<Rain>, Problem> {
    let rain = find(&admin, &id).await?;
    admin
        .store
        .offers(rain.durability)
        .await
        .map_err(|problem| Problem::new(409, "the nodes are too weak", problem))?;
    let rain = admin.ledger.open_rain(rain.id, now_ms()).await?;
    crate::crash::point("open.recorded");
    carried_out(&admin, rain).await
}

/// Tells the room now of a rain that it was to be told of later.
pub async fn announce(State(admin): Shared, Path(id): Path<String>) -> Result<Json<Rain>, Problem> {
    let rain = find(&admin, &id).await?;
    let rain = admin.ledger.announce(rain.id, now_ms()).await?;
    carried_out(&admin, rain).await
}

pub async fn pause(State(admin): Shared, Path(id): Path<String>) -> Result<Json<Rain>, Problem> {
    let rain = find(&admin, &id).await?;
    let rain = admin.ledger.step(rain.id, Step::Pause).await?;
    carried_out(&admin, rain).await
}

pub async fn resume(State(admin): Shared, Path(id): Path<String>) -> Result<Json<Rain>, Problem> {
    let rain = find(&admin, &id).await?;
    let rain = admin.ledger.step(rain.id, Step::Resume).await?;
    carried_out(&admin, rain).await
}

/// Funds more packets. The steward loads them from its next round on, as it does with a new rain: ten million take a while.
pub async fn top_up(
    State(admin): Shared,
    Path(id): Path<String>,
    IdempotencyKey(key): IdempotencyKey,
    body: Result<Json<NewTopUp>, JsonRejection>,
) -> Result<(StatusCode, Json<ToppedUp>), Problem> {
    let Json(new) = body?;
    let rain = find(&admin, &id).await?;
    let top_up = rain::TopUp {
        packets: new.packets,
        total: new.total_cents,
        rule: new.rule,
        min: new.min_cents,
        max: new.max_cents,
    };
    let done = admin
        .ledger
        .top_up(rain.id, &top_up, asked::fresh_seed()?, now_ms(), &key)
        .await?;
    crate::crash::point("top_up.recorded");
    let shown = ToppedUp {
        top_up: done.number,
        rain: done.rain.into(),
    };
    Ok((StatusCode::CREATED, Json(shown)))
}

/// Closes every gate now and refunds what is left.
pub async fn close(State(admin): Shared, Path(id): Path<String>) -> Result<Json<Rain>, Problem> {
    let rain = find(&admin, &id).await?;
    admin.ledger.close_rain(rain.id, now_ms()).await?;
    crate::crash::point("close.recorded");
    let rain = admin.ledger.refund_now(rain.id).await?;
    carried_out(&admin, rain).await
}

/// The record stands; the steward would carry it out at its next round. Doing it here spares the operator the wait. If a node is down
/// the steward goes on trying, and the operator is told so.
async fn carried_out(admin: &Admin, rain: rain::Rain) -> Result<Json<Rain>, Problem> {
    let id = rain.id;
    admin.steward.advance(rain).await?;
    Ok(Json(admin.ledger.rain(id).await?.into()))
}

pub async fn audit(State(admin): Shared, Path(id): Path<String>) -> Result<Json<Report>, Problem> {
    let rain = find(&admin, &id).await?;
    let _turn = admin.audits.wait().await?;
    Ok(Json(
        crate::steward::audit::audit(&admin.store, &admin.ledger, &rain).await?,
    ))
}

/// How long a request waits for a repair.
const REPAIR_PATIENCE: Duration = Duration::from_secs(30);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RepairOf {
    /// Compare every bucket, not only those whose node came back: nothing is given anywhere in the rain until that is done.
    #[serde(default)]
    all: bool,
}

/// What a repair did; null when nothing was to be repaired.
#[derive(Serialize)]
pub struct Repaired {
    repaired: Option<crate::steward::repair::Report>,
}

/// Compares buckets whose node came back as another process, or empty, with the ledger. The steward does it by itself; this does it now.
pub async fn repair(
    State(admin): Shared,
    Path(id): Path<String>,
    body: Result<Json<RepairOf>, JsonRejection>,
) -> Result<Json<Repaired>, Problem> {
    let Json(RepairOf { all }) = body?;
    let rain = find(&admin, &id).await?;
    if rain.state == rain::State::Finished {
        let problem =
            format!("rain {id} is finished: its keys expire, and the ledger has all of it");
        return Err(Problem::new(409, "nothing to repair", &problem));
    }
    if all {
        admin.steward.distrust(&rain).await?;
    }
    let repairing = async {
        loop {
            let pause = match admin.steward.repair(&rain).await? {
                Repair::Nothing => return Ok(None),
                Repair::Done(report) => return Ok(Some(report)),
                Repair::Later(wait) => wait,
                Repair::Again => Duration::from_millis(20),
            };
            tokio::time::sleep(pause).await;
        }
    };
    match tokio::time::timeout(REPAIR_PATIENCE, repairing).await {
        Ok(repaired) => Ok(Json(Repaired {
            repaired: repaired.map_err(|error: StewardError| Problem::from(error))?,
        })),
        Err(_) => {
            let problem = "packets are on the move; the steward goes on trying";
            Err(Problem::new(503, "not repaired yet", problem))
        }
    }
}
