//! Creates the rains of schedules ahead of their openings; stewards then load them.
//!
//! Every process with the role admin looks, and none needs to know of the others: a rain is created with the key `schedule:<id>:<opening>`, and one key makes
//! one rain. What became of an opening is written down afterwards, so a process may die between any two steps: the next look finds the rain by its key.
//!
//! ```text
//!   not yet ──ahead_ms before──▶ tried ──rain created──▶ created
//!                                 │ ▲ └── sponsor cannot pay, nodes too weak, … ──▶ failed ──opening──▶ missed
//!                                 │ └───────────── every few seconds ────────────────┘
//!                                 └── nobody was at work before its time came ──▶ missed
//! ```

use std::collections::HashMap;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::Admin;
use super::asked::{self, NewRain};
use super::problem::Problem;
use super::rains;
use super::templates::laid_over;
use crate::clock::now_ms;
use crate::ledger::{LedgerError, NewSchedule, Noted, Opening, Schedule};
use crate::rain::RainId;

/// Fields of a rain that follow from its schedule.
pub const OVERRIDES_REFUSED: [&str; 2] = ["opens_at_ms", "closes_at_ms"];
/// Keys of requests that begin so are those of openings.
pub const KEY_PREFIX: &str = "schedule:";
/// Openings of one schedule in one look: a list may have hundreds due at once.
const LOOKED_AT_MAX: usize = 50;
/// Between two tries.
const TRY_AGAIN_MS: i64 = 5_000;

/// Looks until `stop`.
pub async fn keep(admin: Arc<Admin>, stop: CancellationToken) {
    let mut round = tokio::time::interval(admin.settings.schedule_interval);
    round.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let looks = async {
        loop {
            round.tick().await;
            let schedules = match admin.ledger.running_schedules().await {
                Ok(schedules) => schedules,
                Err(error) => {
                    tracing::warn!(%error, "schedules cannot be read; their openings wait");
                    continue;
                }
            };
            for schedule in schedules {
                if let Err(error) = look_at(&admin, &schedule).await {
                    tracing::warn!(schedule = schedule.id, %error, "openings of a schedule wait");
                }
            }
        }
    };
    stop.run_until_cancelled(looks).await;
}

/// Tries every opening whose time to be created has come.
async fn look_at(admin: &Admin, schedule: &Schedule) -> Result<(), LedgerError> {
    let times = &schedule.plan.times;
    let due = now_ms().saturating_add(schedule.plan.ahead_ms);
    let next = |after: &i64| times.next_after(*after);
    let openings: Vec<i64> = std::iter::successors(next(&schedule.decided_ms), next)
        .take_while(|opens| *opens <= due)
        .take(LOOKED_AT_MAX)
        .collect();
    let Some(last) = openings.last() else {
        if times.next_after(schedule.decided_ms).is_none() {
            admin.ledger.end_schedule(schedule.id).await?;
        }
        return Ok(());
    };
    let noted = admin
        .ledger
        .openings(schedule.id, Some(last + 1), LOOKED_AT_MAX as u32)
        .await?;
    let noted: HashMap<i64, Noted> = noted.into_iter().map(|n| (n.opens_at_ms, n)).collect();
    let mut decided = schedule.decided_ms;
    let mut without_gap = true;
    for opens in openings {
        without_gap &= is_decided(admin, schedule, opens, noted.get(&opens)).await?;
        if without_gap {
            decided = opens;
        }
    }
    if decided > schedule.decided_ms {
        admin.ledger.decide_openings(schedule.id, decided).await?;
    }
    Ok(())
}

/// Whether the opening has its rain, or has been missed; tries to create the rain if not.
async fn is_decided(
    admin: &Admin,
    schedule: &Schedule,
    opens_at_ms: i64,
    noted: Option<&Noted>,
) -> Result<bool, LedgerError> {
    let now = now_ms();
    let before = match noted.map(|noted| (&noted.opening, noted.tried_at_ms)) {
        Some((Opening::Created(_) | Opening::Missed(_), _)) => return Ok(true),
        Some((Opening::Failed(_), at)) if now < opens_at_ms && now - at < TRY_AGAIN_MS => {
            return Ok(false);
        }
        Some((Opening::Failed(problem), _)) => Some(problem.clone()),
        None => None,
    };
    let key = format!("{KEY_PREFIX}{}:{opens_at_ms}", schedule.id);
    let (opening, is_decided) = match admin.ledger.rain_of_key(&key).await? {
        Some(rain) => (Opening::Created(rain), true),
        None if now >= opens_at_ms => {
            let nobody = || "no process was at work before its time came".to_owned();
            (Opening::Missed(before.clone().unwrap_or_else(nobody)), true)
        }
        None => match create(admin, schedule, opens_at_ms, &key).await {
            Ok(rain) => (Opening::Created(rain), true),
            Err(problem) => (Opening::Failed(problem.text()), false),
        },
    };
    tell(schedule.id, opens_at_ms, &opening, before.as_deref());
    let noted = Noted {
        opens_at_ms,
        opening,
        tried_at_ms: now,
    };
    admin.ledger.note_opening(schedule.id, &noted).await?;
    crate::crash::point("opening.noted");
    Ok(is_decided)
}

/// In log and metrics, once for each turn of things.
fn tell(schedule: i64, opens_at_ms: i64, opening: &Opening, before: Option<&str>) {
    let metrics = crate::metrics::get();
    match opening {
        Opening::Created(rain) => {
            tracing::info!(schedule, opens_at_ms, %rain, "the rain of an opening is there");
            metrics.opening("created");
        }
        Opening::Failed(problem) if before == Some(problem) => {}
        Opening::Failed(problem) => {
            tracing::warn!(schedule, opens_at_ms, problem, "an opening has no rain yet");
            metrics.opening("failed");
        }
        Opening::Missed(problem) => {
            tracing::error!(schedule, opens_at_ms, problem, "an opening was missed");
            metrics.opening("missed");
        }
    }
}

async fn create(
    admin: &Admin,
    schedule: &Schedule,
    opens_at_ms: i64,
    key: &str,
) -> Result<RainId, Problem> {
    let new = rain_at(admin, &schedule.plan, opens_at_ms).await?;
    let rain = rains::make(admin, new, key).await?;
    crate::crash::point("opening.created");
    Ok(rain.id)
}

/// The rain of an opening, checked but for its sponsor's balance.
pub async fn rain_at(
    admin: &Admin,
    plan: &NewSchedule,
    opens_at_ms: i64,
) -> Result<NewRain, Problem> {
    let template = admin.ledger.template(&plan.template).await?;
    let asked = || {
        let mut new = laid_over(&template.rain, &plan.overrides)?;
        new.opens_at_ms = Some(opens_at_ms);
        Ok::<NewRain, Problem>(new)
    };
    asked::checked(admin, asked()?).await?;
    asked()
}
