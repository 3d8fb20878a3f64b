use serde_json::{Value as Json, json};

use crate::rain::{RainId, Times};

use super::accounts::checked_key;
use super::db::{Row, Value};
use super::error::LedgerError;
use super::rains::{json_text, rain_id, sql_rain};
use super::{Ledger, page_rows};

/// A rain by name, from which rains are made.
#[derive(Clone, Debug, PartialEq)]
pub struct Template {
    pub name: String,
    /// A JSON object, as the admin API takes a rain.
    pub rain: Json,
    /// ms since 1970.
    pub created_at_ms: i64,
    pub changed_at_ms: i64,
}

/// What a schedule is made of.
#[derive(Clone, Debug, PartialEq)]
pub struct NewSchedule {
    pub template: String,
    /// A JSON object, laid over the template's rain.
    pub overrides: Json,
    pub times: Times,
    /// How long before its opening a rain is created and loaded, ms.
    pub ahead_ms: i64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    pub id: i64,
    pub plan: NewSchedule,
    /// Openings up to this instant have their rain, or have been missed. ms since 1970.
    pub decided_ms: i64,
    /// Nothing is created from it any more.
    pub ended: bool,
    pub created_at_ms: i64,
}

/// What became of an opening.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Opening {
    Created(RainId),
    /// Tried in vain, and tried again until its time comes.
    Failed(String),
    /// Its time came, and there was no rain.
    Missed(String),
}

/// An opening that has been looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Noted {
    pub opens_at_ms: i64,
    pub opening: Opening,
    pub tried_at_ms: i64,
}

macro_rules! select_schedules {
    ($where:literal) => {
        concat!(
            "SELECT id, template, overrides, times, ahead_ms, decided_ms, ended, created_at_ms FROM schedules ",
            $where
        )
    };
}

impl Ledger {
    /// Records a template. The same once more changes nothing; another one by that name is refused.
    pub async fn create_template(
        &self,
        name: &str,
        rain: &Json,
        at_ms: i64,
    ) -> Result<Template, LedgerError> {
        let sql = "INSERT INTO templates (name, rain, created_at_ms, changed_at_ms) VALUES ($1, $2, $3, $3)
                   ON CONFLICT (name) DO NOTHING";
        let values = vec![name.into(), rain.to_string().into(), at_ms.into()];
        self.write_plan("recording a template", sql, values).await?;
        let template = self.template(name).await?;
        if template.rain != *rain {
            return Err(LedgerError::TemplateExists(name.to_owned()));
        }
        Ok(template)
    }

    /// Rains that were made from it stay as they are; those of schedules that are yet to be made are made from the new one.
    pub async fn change_template(
        &self,
        name: &str,
        rain: &Json,
        at_ms: i64,
    ) -> Result<Template, LedgerError> {
        let sql = "UPDATE templates SET rain = $2, changed_at_ms = $3 WHERE name = $1";
        let values = vec![name.into(), rain.to_string().into(), at_ms.into()];
        self.write_plan("changing a template", sql, values).await?;
        self.template(name).await
    }

    /// One that is not there any more is no error. Refused while a schedule that has not ended uses it.
    pub async fn delete_template(&self, name: &str) -> Result<(), LedgerError> {
        let mut tx = self.db.begin("deleting a template").await?;
        let sql = "SELECT id FROM schedules WHERE template = $1 AND ended = 0 ORDER BY id LIMIT 1";
        if let Some(row) = tx.row(sql, vec![name.into()]).await? {
            let schedule = row.i64(0)?;
            tx.roll_back().await;
            let name = name.to_owned();
            return Err(LedgerError::TemplateInUse { name, schedule });
        }
        tx.execute("DELETE FROM templates WHERE name = $1", vec![name.into()])
            .await?;
        tx.commit().await
    }

    pub async fn template(&self, name: &str) -> Result<Template, LedgerError> {
        let sql = "SELECT name, rain, created_at_ms, changed_at_ms FROM templates WHERE name = $1";
        let row = self
            .db
            .row("reading a template", sql, vec![name.into()])
            .await?;
        let row = row.ok_or_else(|| LedgerError::NoTemplate(name.to_owned()))?;
        read_template(&row)
    }

    /// By name; `after` is the last one of the page before.
    pub async fn templates(
        &self,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<Template>, LedgerError> {
        let sql = "SELECT name, rain, created_at_ms, changed_at_ms FROM templates WHERE name > $1 ORDER BY name LIMIT $2";
        let values = vec![after.unwrap_or_default().into(), page_rows(limit).into()];
        let rows = self.db.rows("listing templates", sql, values).await?;
        rows.iter().map(read_template).collect()
    }

    /// Records a schedule, whose openings begin after `created_at_ms`. With the same `request_key` the same request finds the schedule that was
    /// made first, and another request is refused.
    pub async fn create_schedule(
        &self,
        new: &NewSchedule,
        created_at_ms: i64,
        request_key: &str,
    ) -> Result<Schedule, LedgerError> {
        let key = checked_key(request_key)?;
        let request = request_text(new);
        let sql = "INSERT INTO schedules (request_key, request, template, overrides, times, ahead_ms, decided_ms, created_at_ms)
                   SELECT $1, $2, name, $4, $5, $6, $7, $7 FROM templates WHERE name = $3
                   ON CONFLICT (request_key) DO NOTHING";
        let values = vec![
            key.into(),
            request.as_str().into(),
            new.template.as_str().into(),
            new.overrides.to_string().into(),
            json_text(&new.times).into(),
            new.ahead_ms.into(),
            created_at_ms.into(),
        ];
        self.write_plan("recording a schedule", sql, values).await?;
        let sql = "SELECT id, request FROM schedules WHERE request_key = $1";
        let row = self
            .db
            .row("reading a schedule", sql, vec![key.into()])
            .await?;
        let row = row.ok_or_else(|| LedgerError::NoTemplate(new.template.clone()))?;
        let id = row.i64(0)?;
        if row.text(1)? != request {
            let key = key.to_owned();
            return Err(LedgerError::ScheduleKeyReused { key, schedule: id });
        }
        self.schedule(id).await
    }

    pub async fn schedule(&self, id: i64) -> Result<Schedule, LedgerError> {
        let sql = select_schedules!("WHERE id = $1");
        let row = self
            .db
            .row("reading a schedule", sql, vec![id.into()])
            .await?;
        row.as_ref()
            .map_or(Err(LedgerError::NoSchedule(id)), read_schedule)
    }

    /// Newest first; `after` is the last one of the page before.
    pub async fn schedules(
        &self,
        after: Option<i64>,
        limit: u32,
    ) -> Result<Vec<Schedule>, LedgerError> {
        let sql = select_schedules!("WHERE id < $1 ORDER BY id DESC LIMIT $2");
        let values = vec![after.unwrap_or(i64::MAX).into(), page_rows(limit).into()];
        let rows = self.db.rows("listing schedules", sql, values).await?;
        rows.iter().map(read_schedule).collect()
    }

    /// Those that have not ended.
    pub async fn running_schedules(&self) -> Result<Vec<Schedule>, LedgerError> {
        let sql = select_schedules!("WHERE ended = 0 ORDER BY id");
        let rows = self.db.rows("listing schedules", sql, vec![]).await?;
        rows.iter().map(read_schedule).collect()
    }

    /// Creates nothing from it any more. Rains that it has created stay.
    pub async fn end_schedule(&self, id: i64) -> Result<Schedule, LedgerError> {
        let sql = "UPDATE schedules SET ended = 1 WHERE id = $1";
        self.write_plan("ending a schedule", sql, vec![id.into()])
            .await?;
        self.schedule(id).await
    }

    /// Openings that have been looked at, the latest first; `before_ms` is the last one of the page before.
    pub async fn openings(
        &self,
        schedule: i64,
        before_ms: Option<i64>,
        limit: u32,
    ) -> Result<Vec<Noted>, LedgerError> {
        let sql = "SELECT opens_at_ms, rain_id, problem, missed, tried_at_ms FROM openings
                   WHERE schedule_id = $1 AND opens_at_ms < $2 ORDER BY opens_at_ms DESC LIMIT $3";
        let before = before_ms.unwrap_or(i64::MAX);
        let values = vec![schedule.into(), before.into(), page_rows(limit).into()];
        let rows = self.db.rows("listing openings", sql, values).await?;
        rows.iter().map(read_opening).collect()
    }

    /// Says what became of an opening. Once it has its rain that is never unsaid, whoever comes late.
    pub async fn note_opening(&self, schedule: i64, noted: &Noted) -> Result<(), LedgerError> {
        let sql = "INSERT INTO openings (schedule_id, opens_at_ms, rain_id, problem, missed, tried_at_ms) VALUES ($1, $2, $3, $4, $5, $6)
                   ON CONFLICT (schedule_id, opens_at_ms) DO UPDATE
                   SET rain_id = excluded.rain_id, problem = excluded.problem, missed = excluded.missed, tried_at_ms = excluded.tried_at_ms
                   WHERE openings.rain_id IS NULL";
        let (rain, problem, missed) = match &noted.opening {
            Opening::Created(rain) => (Some(sql_rain(*rain)), None, 0),
            Opening::Failed(problem) => (None, Some(problem.clone()), 0),
            Opening::Missed(problem) => (None, Some(problem.clone()), 1),
        };
        let values = vec![
            schedule.into(),
            noted.opens_at_ms.into(),
            rain.into(),
            problem.into(),
            missed.into(),
            noted.tried_at_ms.into(),
        ];
        self.write_plan("noting an opening", sql, values).await
    }

    /// Nobody looks at openings up to this instant again.
    pub async fn decide_openings(&self, schedule: i64, up_to_ms: i64) -> Result<(), LedgerError> {
        let sql = "UPDATE schedules SET decided_ms = $2 WHERE id = $1 AND decided_ms < $2";
        let values = vec![schedule.into(), up_to_ms.into()];
        self.write_plan("deciding an opening", sql, values).await
    }

    /// The rain that was created with a request key.
    pub async fn rain_of_key(&self, request_key: &str) -> Result<Option<RainId>, LedgerError> {
        let sql = "SELECT id FROM rains WHERE request_key = $1";
        let row = self
            .db
            .row("looking for a rain", sql, vec![request_key.into()])
            .await?;
        row.map(|row| rain_id(&row, 0)).transpose()
    }

    async fn write_plan(
        &self,
        doing: &'static str,
        sql: &'static str,
        values: Vec<Value>,
    ) -> Result<(), LedgerError> {
        let mut tx = self.db.begin(doing).await?;
        tx.execute(sql, values).await?;
        tx.commit().await
    }
}

fn request_text(new: &NewSchedule) -> String {
    json!({
        "template": new.template,
        "overrides": new.overrides,
        "times": new.times,
        "ahead_ms": new.ahead_ms,
    })
    .to_string()
}

fn read_json<T: serde::de::DeserializeOwned>(row: &Row, column: usize) -> Result<T, LedgerError> {
    serde_json::from_str(&row.text(column)?).map_err(|e| row.broken(e))
}

fn read_template(row: &Row) -> Result<Template, LedgerError> {
    Ok(Template {
        name: row.text(0)?,
        rain: read_json(row, 1)?,
        created_at_ms: row.i64(2)?,
        changed_at_ms: row.i64(3)?,
    })
}

fn read_schedule(row: &Row) -> Result<Schedule, LedgerError> {
    Ok(Schedule {
        id: row.i64(0)?,
        plan: NewSchedule {
            template: row.text(1)?,
            overrides: read_json(row, 2)?,
            times: read_json(row, 3)?,
            ahead_ms: row.i64(4)?,
        },
        decided_ms: row.i64(5)?,
        ended: row.i64(6)? != 0,
        created_at_ms: row.i64(7)?,
    })
}

fn read_opening(row: &Row) -> Result<Noted, LedgerError> {
    let rain = row.i64_or_null(1)?.map(|_| rain_id(row, 1)).transpose()?;
    let problem = row.text_or_null(2)?.unwrap_or_default();
    Ok(Noted {
        opens_at_ms: row.i64(0)?,
        opening: match (rain, row.i64(3)?) {
            (Some(rain), _) => Opening::Created(rain),
            (None, 0) => Opening::Failed(problem),
            (None, _) => Opening::Missed(problem),
        },
        tried_at_ms: row.i64(4)?,
    })
}
