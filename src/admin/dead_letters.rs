//! Dead letters: list, show, requeue one or all, discard with a reason.

use axum::Json;
use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use serde::{Deserialize, Serialize};

use super::page;
use super::problem::Problem;
use super::{Admin, Shared};
use crate::clock::now_ms;
use crate::ledger::Discard;
use crate::rain::{Cents, PacketId, RainId, UserId};
use crate::store::bucket::{Bucket, DeadLetter};
use crate::store::dead::{self, Filter};

const REASON_MAX: usize = 200;

#[derive(Serialize)]
pub struct Letter {
    packet_id: PacketId,
    rain_id: RainId,
    user: UserId,
    cents: Cents,
    /// When it was buried.
    at_ms: i64,
    attempts: u32,
    reason: String,
}

impl From<DeadLetter> for Letter {
    fn from(letter: DeadLetter) -> Letter {
        Letter {
            packet_id: letter.claim.packet.id,
            rain_id: letter.claim.packet.id.rain(),
            user: letter.claim.user,
            cents: letter.claim.packet.cents,
            at_ms: letter.at_ms,
            attempts: letter.attempts,
            reason: letter.reason,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Page {
    /// One rain; without it all that are not finished.
    rain: Option<RainId>,
    /// The kind of the reason: what stands before its colon.
    reason: Option<String>,
    limit: Option<u32>,
    cursor: Option<String>,
}

#[derive(Serialize)]
pub struct Letters {
    dead_letters: Vec<Letter>,
    next_cursor: Option<String>,
    /// Texts among the dead letters that nobody can read.
    unreadable: Vec<String>,
}

/// By packet id, and so by rain.
pub async fn list(
    State(admin): Shared,
    page: Result<Query<Page>, QueryRejection>,
) -> Result<Json<Letters>, Problem> {
    let Query(page) = page?;
    let limit = page::limit(page.limit, 100, 1_000)? as usize;
    let after: Option<PacketId> = page::place(page.cursor.as_deref(), "dead letter")?;
    let filter = Filter {
        reason: page.reason,
    };
    let (mut found, mut unreadable) = (vec![], vec![]);
    let mut more = false;
    for rain in rains(&admin, page.rain).await? {
        let passed = after.is_some_and(|after| after.rain() > rain.id);
        if passed {
            continue;
        }
        let buckets = admin.store.buckets(&rain);
        let letters = dead::list(&buckets, &filter, after, limit - found.len()).await?;
        more |= letters.more;
        found.extend(letters.letters);
        unreadable.extend(letters.unreadable);
        if found.len() == limit {
            break;
        }
    }
    let next_cursor = found
        .last()
        .filter(|_| more || found.len() == limit)
        .map(|letter: &DeadLetter| page::cursor("dead letter", letter.claim.packet.id));
    Ok(Json(Letters {
        dead_letters: found.into_iter().map(Letter::from).collect(),
        next_cursor,
        unreadable,
    }))
}

/// A finished rain has no dead letters: it does not finish while one is left. Oldest first.
async fn rains(admin: &Admin, only: Option<RainId>) -> Result<Vec<crate::rain::Rain>, Problem> {
    match only {
        Some(id) => Ok(vec![admin.ledger.rain(id).await?]),
        None => Ok(admin.ledger.unfinished_rains().await?),
    }
}

/// A dead letter as it is shown.
pub async fn letter(admin: &Admin, packet: &str) -> Result<Letter, Problem> {
    find(admin, packet).await.map(|(_, letter)| letter.into())
}

async fn find(admin: &Admin, packet: &str) -> Result<(Bucket, DeadLetter), Problem> {
    let packet: PacketId = packet
        .parse()
        .map_err(|error: crate::rain::IdError| Problem::not_found(error.to_string()))?;
    let rain = admin.ledger.rain(packet.rain()).await?;
    let found = dead::find(&admin.store.buckets(&rain), packet).await?;
    found.ok_or_else(|| Problem::not_found(format!("packet {packet} has no dead letter")))
}

pub async fn show(
    State(admin): Shared,
    Path(packet): Path<String>,
) -> Result<Json<Letter>, Problem> {
    letter(&admin, &packet).await.map(Json)
}

#[derive(Serialize)]
pub struct Requeued {
    requeued: u64,
}

pub async fn requeue(
    State(admin): Shared,
    Path(packet): Path<String>,
) -> Result<Json<Requeued>, Problem> {
    let (bucket, letter) = find(&admin, &packet).await?;
    told(&admin, std::slice::from_ref(&letter)).await?;
    let requeued = bucket.requeue(None, &[letter.field]).await?;
    Ok(Json(Requeued { requeued }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Which {
    rain: Option<RainId>,
    reason: Option<String>,
}

pub async fn requeue_all(
    State(admin): Shared,
    body: Result<Json<Which>, JsonRejection>,
) -> Result<Json<Requeued>, Problem> {
    let Json(which) = body?;
    let filter = Filter {
        reason: which.reason,
    };
    let mut requeued = 0;
    for rain in rains(&admin, which.rain).await? {
        for bucket in admin.store.buckets(&rain) {
            requeued += requeue_bucket(&admin, &bucket, &filter).await?;
        }
    }
    Ok(Json(Requeued { requeued }))
}

async fn requeue_bucket(admin: &Admin, bucket: &Bucket, filter: &Filter) -> Result<u64, Problem> {
    let (mut taken, mut cursor) = (0, Some(0));
    while let Some(at) = cursor {
        let (next, letters) = dead::page(bucket, filter, at).await?;
        told(admin, &letters).await?;
        let fields: Vec<String> = letters.into_iter().map(|letter| letter.field).collect();
        taken += bucket.requeue(None, &fields).await?;
        cursor = next;
    }
    Ok(taken)
}

/// Webhooks hear of a claim that died, even if its letter is gone before the steward has seen it.
async fn told(admin: &Admin, letters: &[DeadLetter]) -> Result<(), Problem> {
    Ok(crate::steward::dead::record(&admin.ledger, letters).await?)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Why {
    reason: String,
}

#[derive(Serialize)]
pub struct Discarded {
    packet_id: PacketId,
    cents: Cents,
    /// False: its money had gone back before, or it was credited after all.
    returned: bool,
    detail: &'static str,
}

/// Gives the money back to the sponsor, then lets the letter go: the other way round a crash would lose both.
pub async fn discard(
    State(admin): Shared,
    Path(packet): Path<String>,
    body: Result<Json<Why>, JsonRejection>,
) -> Result<Json<Discarded>, Problem> {
    let Json(why) = body?;
    let reason = why.reason.trim();
    if reason.is_empty()
        || reason.chars().count() > REASON_MAX
        || reason.chars().any(char::is_control)
    {
        return Err(Problem::bad(format!(
            "reason must be one line of 1 to {REASON_MAX} characters"
        )));
    }
    let (bucket, letter) = find(&admin, &packet).await?;
    told(&admin, std::slice::from_ref(&letter)).await?;
    let (returned, detail) = match admin
        .ledger
        .discard(&letter.claim, reason, now_ms())
        .await?
    {
        Discard::Done => (true, "the money went back to the sponsor"),
        Discard::Existed => (false, "the money had gone back to the sponsor before"),
        Discard::Credited { user, cents }
            if user == letter.claim.user && cents == letter.claim.packet.cents =>
        {
            (false, "the user had been credited; nothing was taken back")
        }
        Discard::Credited { user: _, cents } => {
            // The packet was paid, only not to this claim: the claim is what is given up, and no money is there to give back. The ledger
            // keeps who gave it up and why, and the audit finds it there.
            admin
                .ledger
                .drop_claim(&letter.claim, reason, now_ms())
                .await?;
            tracing::warn!(packet = %letter.claim.packet.id, %cents, "a claim in conflict with a credit was discarded");
            (
                false,
                "the packet is credited to another claim; this one was dropped",
            )
        }
        Discard::Different { cents } => {
            let detail = format!("packet {packet} was discarded before with {cents}");
            return Err(Problem::new(409, "discarded with another amount", detail));
        }
    };
    crate::crash::point("discard.recorded");
    bucket.ack(std::slice::from_ref(&letter.claim)).await?;
    Ok(Json(Discarded {
        packet_id: letter.claim.packet.id,
        cents: letter.claim.packet.cents,
        returned,
        detail,
    }))
}
