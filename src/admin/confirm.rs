//! What moves money is asked for twice: the first answer says what would happen and holds a token, the second request brings the token and is carried out.
//!
//! A token is good for one caller, one request to the byte and its idempotency key, for two minutes. Nothing is stored: whoever has `admin.key_secret_file` can
//! tell a token of ours, so the second request may go to another process than the first.

use axum::http::HeaderMap;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::guard::Admitted;
use super::problem::Problem;
use crate::clock::now_ms;
use crate::rain::Cents;

/// Brings the token.
pub const CONFIRM: &str = "Hongbao-Confirm";
/// Time to read what would happen, and to think.
const GOOD_FOR_MS: i64 = 120_000;

/// Whether a route is asked for twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confirms {
    Never,
    /// Where the amount is above `admin.confirm_above_cents`.
    LargeAmounts,
    Always,
}

/// Refuses a request that has to be confirmed, with the token that confirms it.
pub async fn confirmed(admitted: &Admitted) -> Result<(), Problem> {
    let settings = &admitted.admin.settings;
    if !settings.confirm {
        return Ok(());
    }
    let body: Value = serde_json::from_slice(&admitted.body).unwrap_or_default();
    let cents = match admitted.route.confirms {
        Confirms::Never => return Ok(()),
        Confirms::Always => amount_in(&body),
        Confirms::LargeAmounts => match amount_of_rain(admitted, &body).await {
            Some(cents) if cents > settings.confirm_above => Some(cents),
            // What has no amount is refused by its handler.
            Some(_) | None => return Ok(()),
        },
    };
    let now = now_ms();
    let given = token_in(&admitted.parts.headers);
    if given.is_some_and(|token| is_good(admitted, token, now)) {
        return Ok(());
    }
    let what = what_happens(admitted, cents);
    let wrong = match given {
        Some(_) => "; the token that came is too old, or of another request",
        None => "",
    };
    let seconds = GOOD_FOR_MS / 1_000;
    let detail =
        format!("{what}: to do it send the same request within {seconds} s with {CONFIRM}{wrong}");
    let expires_at_ms = now + GOOD_FOR_MS;
    Err(Problem::new(428, "this moves money", detail)
        .with("what", json!(what))
        .with("cents", json!(cents))
        .with("confirm", json!(token(admitted, expires_at_ms)))
        .with("expires_at_ms", json!(expires_at_ms)))
}

fn token_in(headers: &HeaderMap) -> Option<&str> {
    headers.get(CONFIRM)?.to_str().ok()
}

/// `<expiry>.<MAC>`.
fn token(admitted: &Admitted, expires_at_ms: i64) -> String {
    let parts = &admitted.parts;
    let (caller, key) = (&admitted.caller.id, &admitted.idempotency_key);
    let (method, uri) = (&parts.method, &parts.uri);
    let body = hex::encode(Sha256::digest(&admitted.body));
    let request = format!("confirm {expires_at_ms}\n{caller}\n{method}\n{uri}\n{key}\n{body}");
    format!("{expires_at_ms}.{}", admitted.admin.gate.derive(&request))
}

fn is_good(admitted: &Admitted, given: &str, now_ms: i64) -> bool {
    let expires_at_ms = given.split_once('.').and_then(|(at, _)| at.parse().ok());
    let in_time = |at: &i64| (now_ms..=now_ms + GOOD_FOR_MS).contains(at);
    expires_at_ms.filter(in_time).is_some_and(|at| {
        token(admitted, at)
            .as_bytes()
            .ct_eq(given.as_bytes())
            .into()
    })
}

fn amount_in(body: &Value) -> Option<Cents> {
    let cents = body["total_cents"].as_i64().or(body["cents"].as_i64());
    cents.map(Cents)
}

/// What a rain is worth that is made from the body, from a template, or again and again from a schedule; of a changed template, what its
/// rains are worth from then on, since schedules that are there make them without asking.
async fn amount_of_rain(admitted: &Admitted, body: &Value) -> Option<Cents> {
    let own = amount_in(body)
        .or_else(|| amount_in(&body["overrides"]))
        .or_else(|| amount_in(&body["rain"]));
    if own.is_some() {
        return own;
    }
    let name = body["template"].as_str().unwrap_or(&admitted.parameter);
    let template = admitted.admin.ledger.template(name).await.ok()?;
    amount_in(&template.rain)
}

/// For the person who decides.
fn what_happens(admitted: &Admitted, cents: Option<Cents>) -> String {
    let (of, amount) = (&admitted.parameter, cents.unwrap_or_default());
    match admitted.route.operation {
        "deposit" => format!("records {amount} paid in by sponsor {of}"),
        "create_rain" => format!("takes {amount} from the sponsor for a new rain"),
        "create_rain_from_template" => {
            format!("takes {amount} from the sponsor for a rain from template {of}")
        }
        "create_schedule" => format!("takes {amount} from the sponsor for each opening"),
        "update_template" => format!(
            "has every rain made from template {of} take {amount} from the sponsor, those of its schedules too"
        ),
        "top_up_rain" => format!("takes {amount} from the sponsor for rain {of}"),
        "close_rain" => format!("closes rain {of} now and gives what is left back to its sponsor"),
        "discard_dead_letter" => {
            format!("gives the money of packet {of} back to the sponsor, for good")
        }
        other => format!("carries out {other}"),
    }
}
