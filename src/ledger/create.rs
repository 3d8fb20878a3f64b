use serde_json::json;

use crate::rain::split::Seed;
use crate::rain::{Cents, NewRain, Rain, RainId, State};

use super::Ledger;
use super::accounts::{AccountName, checked_key};
use super::db::Tx;
use super::entry::{Entry, Kind, Recorded};
use super::error::LedgerError;
use super::rains::{Stepped, json_text, rain_id, sql_rain};

/// A creation that did not happen.
pub struct Rehearsed {
    /// As it would have been, but for its id; or the rain that the same key made before.
    pub rain: Rain,
    /// False: the same key has made it before.
    pub new: bool,
    /// Of the sponsor.
    pub balance_before: Cents,
    pub balance_after: Cents,
}

impl Ledger {
    /// Records a rain, opens its escrow account and moves the total into it from the sponsor, all or nothing.
    ///
    /// `salts` makes the salts of the buckets once the id is known; it must not block. With a `request_key` (1 to 128 printable ASCII
    /// characters) a repeat of the same request returns the rain that was made first, whatever `seed` says, and another request with
    /// that key is refused. Without one, a repeat makes another rain: after an outage, only a key makes it safe to try again.
    pub async fn create_rain(
        &self,
        new: &NewRain,
        seed: Seed,
        created_at_ms: i64,
        request_key: Option<&str>,
        salts: impl FnOnce(RainId) -> Vec<u32> + Send,
    ) -> Result<Rain, LedgerError> {
        let sponsor = AccountName::sponsor(&new.sponsor)?;
        let mut tx = self.begin_rain(new, request_key).await?;
        let created = tx
            .create_rain(new, seed, created_at_ms, request_key, &sponsor, salts)
            .await;
        match created {
            Ok(created) => {
                tx.commit().await?;
                Ok(created.rain)
            }
            Err(refused) => Err(self.refused_rain(new, tx, refused).await?),
        }
    }

    /// Everything that [`Ledger::create_rain`] does and refuses, taken back at the end.
    pub async fn rehearse_rain(
        &self,
        new: &NewRain,
        seed: Seed,
        created_at_ms: i64,
        request_key: Option<&str>,
        salts: impl FnOnce(RainId) -> Vec<u32> + Send,
    ) -> Result<Rehearsed, LedgerError> {
        let sponsor = AccountName::sponsor(&new.sponsor)?;
        let mut tx = self.begin_rain(new, request_key).await?;
        let rehearsed = async {
            let balance_before = tx.balance(&sponsor).await?;
            let created = tx
                .create_rain(new, seed, created_at_ms, request_key, &sponsor, salts)
                .await?;
            Ok(Rehearsed {
                rain: created.rain,
                new: created.new,
                balance_before,
                balance_after: tx.balance(&sponsor).await?,
            })
        };
        match rehearsed.await {
            Ok(rehearsed) => {
                tx.roll_back().await;
                Ok(rehearsed)
            }
            Err(refused) => Err(self.refused_rain(new, tx, refused).await?),
        }
    }

    async fn begin_rain(
        &self,
        new: &NewRain,
        request_key: Option<&str>,
    ) -> Result<Tx, LedgerError> {
        request_key.map(checked_key).transpose()?;
        if new.split.total.0 <= 0 {
            return Err(LedgerError::NotPositive {
                what: "total of a rain",
                cents: new.split.total,
            });
        }
        self.db.begin("creating a rain").await
    }

    /// Why the database said no, if that can be found out.
    async fn refused_rain(
        &self,
        new: &NewRain,
        tx: Tx,
        error: LedgerError,
    ) -> Result<LedgerError, LedgerError> {
        tx.roll_back().await;
        if !matches!(error, LedgerError::Refused { .. }) {
            return Ok(error);
        }
        let why = self.why_not_funded(&new.sponsor, "a rain", new.split.total);
        Ok(why.await?.unwrap_or(error))
    }

    pub(super) async fn why_not_funded(
        &self,
        sponsor: &str,
        what: &'static str,
        needed: Cents,
    ) -> Result<Option<LedgerError>, LedgerError> {
        let name = sponsor.to_owned();
        Ok(match self.account(&AccountName::sponsor(sponsor)?).await? {
            None => Some(LedgerError::NoSponsor(name)),
            Some(account) if account.balance < needed => Some(LedgerError::SponsorTooPoor {
                sponsor: name,
                balance: account.balance,
                what,
                needed,
            }),
            Some(_) => None,
        })
    }
}

impl Tx {
    async fn create_rain(
        &mut self,
        new: &NewRain,
        seed: Seed,
        created_at_ms: i64,
        request_key: Option<&str>,
        sponsor: &AccountName,
        salts: impl FnOnce(RainId) -> Vec<u32>,
    ) -> Result<Stepped, LedgerError> {
        let request = request_text(new);
        let sql = "INSERT INTO rains (request_key, request, title, room, sponsor, split, seed, salts, opens_at_ms, duration_ms,
                                      durability, refund_after_ms, state, version, created_at_ms, key_required, announce_at_ms)
                   VALUES ($1, $2, $3, $4, $5, $6, $7, '[]', $8, $9, $10, $11, $12, 1, $13, $14, $15)
                   ON CONFLICT (request_key) DO NOTHING
                   RETURNING id";
        let values = vec![
            request_key.map(str::to_owned).into(),
            request.as_str().into(),
            new.title.as_str().into(),
            new.room.as_str().into(),
            new.sponsor.as_str().into(),
            json_text(&new.split).into(),
            super::db::Value::Blob(seed.0.to_vec()),
            new.window.opens_at_ms.into(),
            new.window.duration_ms.into(),
            new.durability.to_string().into(),
            new.refund_after_ms.into(),
            State::Created.as_str().into(),
            created_at_ms.into(),
            i64::from(new.key_required).into(),
            new.announce_at_ms.into(),
        ];
        let Some(row) = self.row(sql, values).await? else {
            let key = request_key.unwrap_or_default();
            let rain = self.rain_made_before(key, &request).await?;
            return Ok(Stepped { rain, new: false });
        };
        let id = rain_id(&row, 0)?;
        let salts = json_text(&salts(id));
        self.execute(
            "UPDATE rains SET salts = $2 WHERE id = $1",
            vec![sql_rain(id).into(), salts.into()],
        )
        .await?;

        let escrow = AccountName::Escrow(id);
        self.open_account(&escrow).await?;
        let fund = Entry {
            key: format!("fund:{id}"),
            kind: Kind::Fund,
            from: sponsor.clone(),
            to: escrow,
            cents: new.split.total,
            rain: Some(id),
            packet: None,
            at_ms: created_at_ms,
            note: None,
        };
        match self.record(&fund).await? {
            Recorded::New => Ok(Stepped {
                rain: self.rain(id).await?,
                new: true,
            }),
            Recorded::Earlier(_) => Err(LedgerError::Broken {
                doing: "funding a rain whose id was used before",
                source: sqlx::Error::RowNotFound,
            }),
        }
    }

    /// Nothing for an account that does not exist.
    async fn balance(&mut self, account: &AccountName) -> Result<Cents, LedgerError> {
        let sql = "SELECT balance_cents FROM accounts WHERE name = $1";
        let row = self.row(sql, vec![account.to_string().into()]).await?;
        row.map_or(Ok(Cents::ZERO), |row| row.i64(0).map(Cents))
    }

    async fn rain_made_before(&mut self, key: &str, request: &str) -> Result<Rain, LedgerError> {
        let sql = "SELECT id, request FROM rains WHERE request_key = $1";
        let row = self
            .row(sql, vec![key.into()])
            .await?
            .ok_or(LedgerError::Broken {
                doing: "reading a rain that was there",
                source: sqlx::Error::RowNotFound,
            })?;
        let id = rain_id(&row, 0)?;
        if row.text(1)? != request {
            return Err(LedgerError::RequestKeyReused {
                key: key.to_owned(),
                rain: id,
            });
        }
        self.rain(id).await
    }
}

/// What was asked for. Kept apart from the columns, which change during the rain's life (opened early, closed early).
fn request_text(new: &NewRain) -> String {
    let mut request = json!({
        "title": new.title,
        "room": new.room,
        "sponsor": new.sponsor,
        "split": new.split,
        "opens_at_ms": new.window.opens_at_ms,
        "duration_ms": new.window.duration_ms,
        "durability": new.durability,
        "refund_after_ms": new.refund_after_ms,
    });
    // Only where it is asked for: requests that were recorded before there were keys stay the same.
    if new.key_required {
        request["key_required"] = true.into();
    }
    if let Some(announce_at_ms) = new.announce_at_ms {
        request["announce_at_ms"] = announce_at_ms.into();
    }
    request.to_string()
}
