//! A rain as an operator asks for it, and whether it can be had.

use serde::Deserialize;

use super::Admin;
use super::problem::Problem;
use crate::clock::now_ms;
use crate::config::BUCKETS_MAX;
use crate::rain::split::{Rule, Seed, Split};
use crate::rain::{self, Cents, Durability, UserId, Window};

/// How long a rain stays open unless it is told.
const DURATION_DEFAULT_MS: i64 = 30_000;
/// A year: longer is a slip of the keyboard.
const DURATION_MAX_MS: i64 = 365 * 86_400_000;
/// The end of the year 9999.
const TIME_MAX_MS: i64 = 253_402_300_799_999;
const TITLE_MAX: usize = 200;

/// A rain as it is asked for. A preview needs no more of it than rule, total, packets and bounds.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewRain {
    #[serde(default)]
    pub title: String,
    #[serde(default)]
    pub room: String,
    #[serde(default)]
    pub sponsor: String,
    pub rule: Rule,
    pub total_cents: Cents,
    pub packets: u32,
    pub min_cents: Option<Cents>,
    pub max_cents: Option<Cents>,
    pub opens_at_ms: Option<i64>,
    pub closes_at_ms: Option<i64>,
    pub duration_ms: Option<i64>,
    pub durability: Option<Durability>,
    pub buckets: Option<u32>,
    pub refund_after_ms: Option<i64>,
    /// Grabs must carry a key that clients are told when the rain opens.
    #[serde(default)]
    pub key_required: bool,
    /// How long before its opening the room is told of it; without it as soon as the rain is known.
    pub announce_ms: Option<i64>,
}

impl NewRain {
    pub fn split(&self) -> Split {
        Split {
            rule: self.rule.clone(),
            total: self.total_cents,
            packets: self.packets,
            min: self.min_cents.unwrap_or(Cents(1)),
            max: self.max_cents.unwrap_or(Cents(i64::MAX)),
        }
    }
}

/// Refuses names that every client takes out of a path.
pub fn as_path(what: &str, name: &str) -> Result<(), Problem> {
    match name {
        "." | ".." => Err(Problem::bad(format!(
            "{what} name \"{name}\" is a step in a path"
        ))),
        _ => Ok(()),
    }
}

/// From the operating system's generator.
pub fn fresh_seed() -> Result<Seed, Problem> {
    let mut seed = [0u8; 32];
    getrandom::fill(&mut seed)
        .map_err(|error| Problem::new(500, "no random seed", error.to_string()))?;
    Ok(Seed(seed))
}

/// Refuses a rain whose numbers cannot work.
pub async fn checked(admin: &Admin, new: NewRain) -> Result<rain::NewRain, Problem> {
    let split = new.split();
    split.check()?;
    UserId::new(&new.room).map_err(|_| {
        Problem::bad(format!(
            "room \"{}\" must be 1 to 64 characters from A-Z a-z 0-9 . _ @ : + = / -",
            new.room
        ))
    })?;
    if new.title.chars().count() > TITLE_MAX || new.title.chars().any(char::is_control) {
        return Err(Problem::bad(format!(
            "title must be one line of at most {TITLE_MAX} characters"
        )));
    }
    if let Some(buckets) = new.buckets
        && !(1..=BUCKETS_MAX.min(split.packets)).contains(&buckets)
    {
        let most = BUCKETS_MAX.min(split.packets);
        return Err(Problem::bad(format!(
            "buckets {buckets} must be from 1 to {most} for {} packets",
            split.packets
        )));
    }
    let refund_after_ms = new
        .refund_after_ms
        .unwrap_or(admin.defaults.refund_after.as_millis() as i64);
    if !(0..=DURATION_MAX_MS).contains(&refund_after_ms) {
        return Err(Problem::bad(format!(
            "refund_after_ms {refund_after_ms} must be from 0 to {DURATION_MAX_MS}"
        )));
    }
    let announce_at_ms = announcement(new.opens_at_ms, new.announce_ms)?;
    let durability = new.durability.unwrap_or(admin.defaults.durability);
    admin.store.offers(durability).await.map_err(Problem::bad)?;
    Ok(rain::NewRain {
        title: new.title,
        room: new.room,
        sponsor: new.sponsor,
        window: window(new.opens_at_ms, new.closes_at_ms, new.duration_ms)?,
        split,
        durability,
        refund_after_ms,
        key_required: new.key_required,
        announce_at_ms,
    })
}

fn announcement(opens: Option<i64>, announce_ms: Option<i64>) -> Result<Option<i64>, Problem> {
    match (opens, announce_ms) {
        (_, None) => Ok(None),
        (_, Some(ms)) if !(0..=DURATION_MAX_MS).contains(&ms) => Err(Problem::bad(format!(
            "announce_ms {ms} must be from 0 to {DURATION_MAX_MS}"
        ))),
        (Some(opens), Some(ms)) => Ok(Some(opens.saturating_sub(ms))),
        (None, Some(_)) => Err(Problem::bad(
            "announce_ms needs opens_at_ms: it says how long before the opening the room is told",
        )),
    }
}

fn window(
    opens: Option<i64>,
    closes: Option<i64>,
    duration: Option<i64>,
) -> Result<Window, Problem> {
    for (name, at) in [("opens_at_ms", opens), ("closes_at_ms", closes)] {
        if let Some(at) = at.filter(|at| !(0..=TIME_MAX_MS).contains(at)) {
            return Err(Problem::bad(format!(
                "{name} {at} must be from 0 to {TIME_MAX_MS}"
            )));
        }
    }
    let duration_ms = match (opens, closes, duration) {
        (_, Some(_), Some(_)) => {
            return Err(Problem::bad(
                "closes_at_ms and duration_ms exclude each other: give one",
            ));
        }
        (None, Some(_), None) => {
            return Err(Problem::bad(
                "closes_at_ms needs opens_at_ms; for a rain that an operator opens give duration_ms",
            ));
        }
        (Some(opens), Some(closes), None) => {
            if closes <= opens {
                return Err(Problem::bad(format!(
                    "closes_at_ms {closes} must be after opens_at_ms {opens}"
                )));
            }
            closes - opens
        }
        (_, None, Some(duration)) => duration,
        (_, None, None) => DURATION_DEFAULT_MS,
    };
    if !(1..=DURATION_MAX_MS).contains(&duration_ms) {
        return Err(Problem::bad(format!(
            "a duration of {duration_ms} ms must be from 1 to {DURATION_MAX_MS} ms"
        )));
    }
    if let Some(opens) = opens
        && opens.saturating_add(duration_ms) <= now_ms()
    {
        return Err(Problem::bad(format!(
            "the rain would close at {} ms, which is past",
            opens.saturating_add(duration_ms)
        )));
    }
    Ok(Window {
        opens_at_ms: opens,
        duration_ms,
    })
}
