use serde_json::json;

use crate::rain::split::{Seed, Split};
use crate::rain::{Part, Rain, RainId, State, Step, TopUp};

use super::Ledger;
use super::accounts::{AccountName, checked_key};
use super::db::{Tx, Value};
use super::entry::{Entry, Kind, Recorded};
use super::error::LedgerError;
use super::rains::{CHANGE_TRIES_MAX, json_text, rain_id, sql_rain};

/// A rain after a top-up.
#[derive(Clone, Debug, PartialEq)]
pub struct ToppedUp {
    /// As it is now, which for a repeat may be later.
    pub rain: Rain,
    /// Which of its top-ups this is, from 1.
    pub number: u32,
}

impl Ledger {
    /// Adds a part to a rain that is not closed and moves its total from the sponsor into the escrow, all or nothing. The rain is not
    /// sold out any more.
    ///
    /// With `request_key` (1 to 128 printable ASCII characters) a repeat of the same request finds the top-up that was made first,
    /// whatever has become of the rain since, and another request with that key is refused.
    pub async fn top_up(
        &self,
        id: RainId,
        top_up: &TopUp,
        seed: Seed,
        at_ms: i64,
        request_key: &str,
    ) -> Result<ToppedUp, LedgerError> {
        let key = checked_key(request_key)?;
        let mut tx = self.db.begin("topping up a rain").await?;
        match tx.top_up(id, top_up, seed, at_ms, key).await {
            Ok(topped_up) => {
                tx.commit().await?;
                Ok(topped_up)
            }
            Err(error) => {
                tx.roll_back().await;
                if !matches!(error, LedgerError::Refused { .. }) {
                    return Err(error);
                }
                let sponsor = self.rain(id).await?.sponsor;
                let why = self.why_not_funded(&sponsor, "a top-up", top_up.total);
                Err(why.await?.unwrap_or(error))
            }
        }
    }

    /// Records that all packets of the rain's first `parts` parts have been in their pools; a rain that was created is then ready. What is
    /// recorded already, or of a rain that has been closed meanwhile, changes nothing.
    pub async fn loaded(&self, id: RainId, parts: u32) -> Result<Rain, LedgerError> {
        let mut tx = self.db.begin("recording a load").await?;
        let rain = tx.loaded(id, parts).await?;
        tx.commit().await?;
        Ok(rain)
    }
}

impl Tx {
    async fn top_up(
        &mut self,
        id: RainId,
        top_up: &TopUp,
        seed: Seed,
        at_ms: i64,
        key: &str,
    ) -> Result<ToppedUp, LedgerError> {
        let request = request_text(id, top_up);
        for _ in 0..CHANGE_TRIES_MAX {
            // The rain first: whoever makes this very top-up after our look at it changes its version, and we look again.
            let mut rain = self.rain(id).await?;
            if let Some(before) = self.top_up_made_before(key, &request).await? {
                return Ok(before);
            }
            let split = allowed(&mut rain, top_up, seed, at_ms)?;
            // The guard: nobody closes the rain, or tops it up, between our look at it and our commit.
            let sql = "UPDATE rains SET sold_out = 0, version = version + 1 WHERE id = $1 AND version = $2";
            let values = vec![sql_rain(id).into(), rain.version.into()];
            if self.execute(sql, values).await? == 0 {
                continue;
            }
            let number = rain.parts.top_ups().len() as u32;
            let sql = "INSERT INTO top_ups (rain_id, number, request_key, request, split, seed, created_at_ms)
                       VALUES ($1, $2, $3, $4, $5, $6, $7)
                       ON CONFLICT (request_key) DO NOTHING";
            let values = vec![
                sql_rain(id).into(),
                i64::from(number).into(),
                key.into(),
                request.as_str().into(),
                json_text(&split).into(),
                Value::Blob(seed.0.to_vec()),
                at_ms.into(),
            ];
            if self.execute(sql, values).await? == 0 {
                // Another rain's top-up was quicker with the key: an error, which takes the guard's change back.
                self.top_up_made_before(key, &request).await?;
                return Err(broken("making a top-up whose key came and went"));
            }
            self.fund_top_up(&rain, number, split, at_ms).await?;
            let rain = self.rain(id).await?;
            return Ok(ToppedUp { rain, number });
        }
        Err(LedgerError::Unavailable {
            doing: "topping up a rain that others keep changing",
            source: sqlx::Error::RowNotFound,
        })
    }

    async fn fund_top_up(
        &mut self,
        rain: &Rain,
        number: u32,
        split: Split,
        at_ms: i64,
    ) -> Result<(), LedgerError> {
        let fund = Entry {
            key: format!("fund:{}:{number}", rain.id),
            kind: Kind::Fund,
            from: AccountName::Sponsor(rain.sponsor.clone()),
            to: AccountName::Escrow(rain.id),
            cents: split.total,
            rain: Some(rain.id),
            packet: None,
            at_ms,
            note: None,
        };
        match self.record(&fund).await? {
            Recorded::New => Ok(()),
            Recorded::Earlier(_) => Err(broken("funding a top-up whose number was used before")),
        }
    }

    async fn top_up_made_before(
        &mut self,
        key: &str,
        request: &str,
    ) -> Result<Option<ToppedUp>, LedgerError> {
        let sql = "SELECT rain_id, number, request FROM top_ups WHERE request_key = $1";
        let Some(row) = self.row(sql, vec![key.into()]).await? else {
            return Ok(None);
        };
        let (rain, number) = (rain_id(&row, 0)?, row.i64(1)? as u32);
        if row.text(2)? != request {
            return Err(LedgerError::TopUpKeyReused {
                key: key.to_owned(),
                rain,
                number,
            });
        }
        let rain = self.rain(rain).await?;
        Ok(Some(ToppedUp { rain, number }))
    }

    async fn loaded(&mut self, id: RainId, parts: u32) -> Result<Rain, LedgerError> {
        for _ in 0..CHANGE_TRIES_MAX {
            let rain = self.rain(id).await?;
            if rain.state.is_closed() || rain.parts.loaded_parts() >= parts {
                return Ok(rain);
            }
            let state = match rain.state {
                State::Created => rain
                    .state
                    .after(Step::Load)
                    .map_err(|source| LedgerError::Step { rain: id, source })?,
                later => later,
            };
            let sql = "UPDATE rains SET state = $3, loaded = 1, version = version + 1
                       WHERE id = $1 AND version = $2";
            let values = vec![
                sql_rain(id).into(),
                rain.version.into(),
                state.as_str().into(),
            ];
            if self.execute(sql, values).await? == 1 {
                let sql = "UPDATE top_ups SET loaded = 1 WHERE rain_id = $1 AND number < $2 AND loaded = 0";
                self.execute(sql, vec![sql_rain(id).into(), i64::from(parts).into()])
                    .await?;
                return self.rain(id).await;
            }
        }
        Err(LedgerError::Unavailable {
            doing: "recording the load of a rain that others keep changing",
            source: sqlx::Error::RowNotFound,
        })
    }
}

/// Adds the part to `rain`, or says why not.
fn allowed(rain: &mut Rain, top_up: &TopUp, seed: Seed, at_ms: i64) -> Result<Split, LedgerError> {
    let id = rain.id;
    let refused = |source| LedgerError::TopUp { rain: id, source };
    rain.state
        .after(Step::TopUp)
        .map_err(|source| LedgerError::Step { rain: id, source })?;
    // Its gates are shut by the nodes' clocks, although the steward may not have recorded it yet.
    if let Some(closes_at_ms) = rain.window.closes_at_ms().filter(|closes| *closes <= at_ms) {
        return Err(LedgerError::Over {
            rain: id,
            closes_at_ms,
        });
    }
    let split = top_up.split(&rain.parts.first().split).map_err(refused)?;
    let part = Part {
        split: split.clone(),
        seed,
        loaded: false,
    };
    rain.parts.push(part).map_err(refused)?;
    Ok(split)
}

fn broken(doing: &'static str) -> LedgerError {
    LedgerError::Broken {
        doing,
        source: sqlx::Error::RowNotFound,
    }
}

/// What was asked for, and of which rain.
fn request_text(id: RainId, top_up: &TopUp) -> String {
    json!({
        "rain": id,
        "packets": top_up.packets,
        "total_cents": top_up.total,
        "rule": top_up.rule,
        "min_cents": top_up.min,
        "max_cents": top_up.max,
    })
    .to_string()
}
