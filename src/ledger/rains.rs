use crate::rain::split::Seed;
use crate::rain::{Part, Parts, Rain, RainId, Step, Window};

use super::db::{Row, Tx};
use super::error::LedgerError;
use super::events::Event;
use super::{Ledger, page_rows};

/// Rains with all their parts, in one statement and so of one instant: a row for each top-up, or one for a rain without, in the columns
/// that `read_rains` takes. `$rains` is the table or a choice from it, `$order` must keep the rows of a rain together.
macro_rules! select_rains {
    ($rains:literal, $order:literal) => {
        concat!(
            "SELECT r.id, r.title, r.room, r.sponsor, r.split, r.seed, r.salts, r.opens_at_ms, r.duration_ms, r.durability,
                    r.refund_after_ms, r.state, r.loaded, r.sold_out, r.version, r.created_at_ms, t.split, t.seed, t.loaded,
                    r.key_required, r.announce_at_ms
             FROM ",
            $rains,
            " AS r LEFT JOIN top_ups AS t ON t.rain_id = r.id ORDER BY ",
            $order,
            ", t.number"
        )
    };
}

const ONE_RAIN: &str = select_rains!("(SELECT * FROM rains WHERE id = $1)", "r.id");

/// Another process may change a rain between our look at it and our write. Each time it does, the rain has moved on; its life has
/// seven states, so more tries than this mean that something else is wrong.
pub(super) const CHANGE_TRIES_MAX: u32 = 20;

impl Ledger {
    pub async fn rain(&self, id: RainId) -> Result<Rain, LedgerError> {
        let rows = self
            .db
            .rows("reading a rain", ONE_RAIN, vec![sql_rain(id).into()])
            .await?;
        read_rains(&rows)?.pop().ok_or(LedgerError::NoRain(id))
    }

    /// Newest first; `after` is the last rain of the page before.
    pub async fn rains(&self, after: Option<RainId>, limit: u32) -> Result<Vec<Rain>, LedgerError> {
        let sql = select_rains!(
            "(SELECT * FROM rains WHERE id < $1 ORDER BY id DESC LIMIT $2)",
            "r.id DESC"
        );
        let below = after.map_or(i64::MAX, sql_rain);
        let rows = self
            .db
            .rows(
                "listing rains",
                sql,
                vec![below.into(), page_rows(limit).into()],
            )
            .await?;
        read_rains(&rows)
    }

    /// Every rain that somebody still has to work on, oldest first.
    pub async fn unfinished_rains(&self) -> Result<Vec<Rain>, LedgerError> {
        let sql = select_rains!("(SELECT * FROM rains WHERE state <> 'finished')", "r.id");
        let rows = self
            .db
            .rows("listing unfinished rains", sql, vec![])
            .await?;
        read_rains(&rows)
    }

    /// Takes a rain from one state to the next and returns it as it then is. A step that has been taken already changes nothing, not
    /// even the version; a step that the rain's state does not allow is `LedgerError::Step`.
    ///
    /// `Step::Load` records the packets of the creation; for those of top-ups there is `Ledger::loaded`. Not for `Step::Refund` and
    /// `Step::TopUp`, which move money: those are `Ledger::refund` and `Ledger::top_up`, and are refused here.
    pub async fn step(&self, id: RainId, step: Step) -> Result<Rain, LedgerError> {
        self.change(id, step, None, |window| window).await
    }

    /// `Step::Open`. A rain that is opened before its time, or has none, opens now: its window begins at `at_ms`, and lasts as long as
    /// it was to last.
    pub async fn open_rain(&self, id: RainId, at_ms: i64) -> Result<Rain, LedgerError> {
        self.change(id, Step::Open, Some(at_ms), |window| Window {
            opens_at_ms: Some(
                window
                    .opens_at_ms
                    .map_or(at_ms, |planned| planned.min(at_ms)),
            ),
            ..window
        })
        .await
    }

    /// `Step::Close`. A rain that is closed before its time has its window cut off at `at_ms`, so that `Window::closes_at_ms` says when
    /// it did close; one that never opened keeps its window.
    pub async fn close_rain(&self, id: RainId, at_ms: i64) -> Result<Rain, LedgerError> {
        self.change(id, Step::Close, Some(at_ms), |window| {
            match window.opens_at_ms {
                Some(opens_at_ms) if opens_at_ms < at_ms => Window {
                    duration_ms: window.duration_ms.min(at_ms - opens_at_ms),
                    ..window
                },
                Some(_) | None => window,
            }
        })
        .await
    }

    /// A closed rain whose left-over packets need not wait for their time: an operator has looked.
    pub async fn refund_now(&self, id: RainId) -> Result<Rain, LedgerError> {
        let sql = "UPDATE rains SET refund_after_ms = 0, version = version + 1
                   WHERE id = $1 AND state = 'closed' AND refund_after_ms <> 0";
        self.update(id, sql, vec![sql_rain(id).into()]).await
    }

    /// Records that all packets were seen won by somebody who knew the rain as `version`. If it has changed since, that may have been a
    /// top-up, and nothing is recorded.
    pub async fn set_sold_out_if(
        &self,
        id: RainId,
        version: i64,
        at_ms: i64,
    ) -> Result<Rain, LedgerError> {
        let sql = "UPDATE rains SET sold_out = 1, version = version + 1 WHERE id = $1 AND version = $2 AND sold_out = 0";
        let values = vec![sql_rain(id).into(), version.into()];
        let mut tx = self.db.begin("recording that a rain is sold out").await?;
        let new = tx.execute(sql, values).await? == 1;
        let rain = tx.rain(id).await?;
        if new {
            tx.tell(&Event::sold_out(&rain, at_ms)).await?;
            crate::crash::point("sold_out.written");
        }
        tx.commit().await?;
        crate::crash::point("sold_out.recorded");
        Ok(rain)
    }

    /// Records that packets have come back: a node that had forgotten them was repaired.
    pub async fn set_not_sold_out(&self, id: RainId) -> Result<Rain, LedgerError> {
        let sql =
            "UPDATE rains SET sold_out = 0, version = version + 1 WHERE id = $1 AND sold_out <> 0";
        self.update(id, sql, vec![sql_rain(id).into()]).await
    }

    /// A rain whose room was to be told later is told of it from `at_ms` on.
    pub async fn announce(&self, id: RainId, at_ms: i64) -> Result<Rain, LedgerError> {
        let sql = "UPDATE rains SET announce_at_ms = $2, version = version + 1 WHERE id = $1 AND announce_at_ms > $2";
        self.update(id, sql, vec![sql_rain(id).into(), at_ms.into()])
            .await
    }

    /// A change that is no step. One that has been made already changes nothing.
    async fn update(
        &self,
        id: RainId,
        sql: &'static str,
        values: Vec<super::db::Value>,
    ) -> Result<Rain, LedgerError> {
        let mut tx = self.db.begin("changing a rain").await?;
        tx.execute(sql, values).await?;
        let rain = tx.rain(id).await?;
        tx.commit().await?;
        Ok(rain)
    }

    async fn change(
        &self,
        id: RainId,
        step: Step,
        at_ms: Option<i64>,
        window: impl Fn(Window) -> Window + Send,
    ) -> Result<Rain, LedgerError> {
        let mut tx = self.db.begin("changing the state of a rain").await?;
        let changed = match step {
            Step::Refund | Step::TopUp => Err(LedgerError::Broken {
                doing: "taking a step without its money",
                source: sqlx::Error::InvalidArgument(
                    "call Ledger::refund or Ledger::top_up".into(),
                ),
            }),
            Step::Load | Step::Open | Step::Pause | Step::Resume | Step::Close | Step::Finish => {
                tx.step(id, step, at_ms, window).await
            }
        };
        match changed {
            Ok(stepped) => {
                tx.commit().await?;
                Ok(stepped.rain)
            }
            Err(error) => {
                tx.roll_back().await;
                Err(error)
            }
        }
    }
}

/// A rain after a step.
pub(super) struct Stepped {
    pub(super) rain: Rain,
    /// False: the step had been taken before.
    pub(super) new: bool,
}

impl Tx {
    pub(super) async fn rain(&mut self, id: RainId) -> Result<Rain, LedgerError> {
        let rows = self.rows(ONE_RAIN, vec![sql_rain(id).into()]).await?;
        read_rains(&rows)?.pop().ok_or(LedgerError::NoRain(id))
    }

    /// Takes the step if nobody else has changed the rain since we looked at it, and looks again if somebody has: the version is the
    /// guard, and `State::after` the only rule. An opening and a close are told to webhooks; `at_ms` is when they happened, if not by the
    /// rain's own window.
    pub(super) async fn step(
        &mut self,
        id: RainId,
        step: Step,
        at_ms: Option<i64>,
        window: impl Fn(Window) -> Window,
    ) -> Result<Stepped, LedgerError> {
        for _ in 0..CHANGE_TRIES_MAX {
            let mut rain = self.rain(id).await?;
            let state = rain
                .state
                .after(step)
                .map_err(|source| LedgerError::Step { rain: id, source })?;
            if state == rain.state {
                return Ok(Stepped { rain, new: false });
            }
            let sql = "UPDATE rains SET state = $3, opens_at_ms = $4, duration_ms = $5, loaded = $6, version = version + 1
                       WHERE id = $1 AND version = $2";
            let window = window(rain.window);
            let loaded = rain.parts.first().loaded || step == Step::Load;
            let values = vec![
                sql_rain(id).into(),
                rain.version.into(),
                state.as_str().into(),
                window.opens_at_ms.into(),
                window.duration_ms.into(),
                i64::from(loaded).into(),
            ];
            if self.execute(sql, values).await? == 1 {
                rain.parts.first_mut().loaded = loaded;
                (rain.state, rain.window, rain.version) = (state, window, rain.version + 1);
                if let Some(event) = event_of(&rain, step, at_ms) {
                    self.tell(&event).await?;
                    crate::crash::point("event.written");
                }
                return Ok(Stepped { rain, new: true });
            }
        }
        Err(LedgerError::Unavailable {
            doing: "changing a rain that others keep changing",
            source: sqlx::Error::RowNotFound,
        })
    }
}

/// What a step is for those who wait for news. A refund is told with its money.
fn event_of(rain: &Rain, step: Step, at_ms: Option<i64>) -> Option<Event> {
    let (window, created) = (rain.window, rain.created_at_ms);
    match step {
        Step::Open => {
            let at_ms = at_ms.or(window.opens_at_ms).unwrap_or(created);
            Some(Event::opened(rain, at_ms))
        }
        Step::Close => {
            let at_ms = at_ms.or(window.closes_at_ms()).unwrap_or(created);
            Some(Event::closed(rain, at_ms))
        }
        Step::Load | Step::Pause | Step::Resume => None,
        Step::TopUp | Step::Refund | Step::Finish => None,
    }
}

pub(super) fn sql_rain(id: RainId) -> i64 {
    i64::from(id.get())
}

pub(super) fn rain_id(row: &Row, column: usize) -> Result<RainId, LedgerError> {
    let id = row.i64(column)?;
    id.to_string().parse().map_err(|e| row.broken(e))
}

pub(super) fn json_text(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).expect("plain structures are always JSON")
}

/// The rows of `select_rains`.
fn read_rains(rows: &[Row]) -> Result<Vec<Rain>, LedgerError> {
    let mut rains: Vec<Rain> = vec![];
    for row in rows {
        let id = rain_id(row, 0)?;
        if rains.last().is_none_or(|rain| rain.id != id) {
            rains.push(read_rain(row)?);
        }
        if let (Some(rain), Some(loaded)) = (rains.last_mut(), row.i64_or_null(18)?) {
            let top_up = read_part(row, 16, 17, loaded)?;
            rain.parts.push(top_up).map_err(|e| row.broken(e))?;
        }
    }
    Ok(rains)
}

fn read_part(row: &Row, split: usize, seed: usize, loaded: i64) -> Result<Part, LedgerError> {
    Ok(Part {
        split: serde_json::from_str(&row.text(split)?).map_err(|e| row.broken(e))?,
        seed: Seed(
            row.blob(seed)?
                .try_into()
                .map_err(|_| row.broken(SeedError))?,
        ),
        loaded: loaded != 0,
    })
}

/// Without its top-ups.
fn read_rain(row: &Row) -> Result<Rain, LedgerError> {
    Ok(Rain {
        id: rain_id(row, 0)?,
        title: row.text(1)?,
        room: row.text(2)?,
        sponsor: row.text(3)?,
        parts: Parts::new(read_part(row, 4, 5, row.i64(12)?)?),
        salts: serde_json::from_str(&row.text(6)?).map_err(|e| row.broken(e))?,
        window: Window {
            opens_at_ms: row.i64_or_null(7)?,
            duration_ms: row.i64(8)?,
        },
        durability: row.parse(9)?,
        refund_after_ms: row.i64(10)?,
        state: row.parse(11)?,
        sold_out: row.i64(13)? != 0,
        version: row.i64(14)?,
        created_at_ms: row.i64(15)?,
        key_required: row.i64(19)? != 0,
        announce_at_ms: row.i64_or_null(20)?,
    })
}

#[derive(Debug, thiserror::Error)]
#[error("the seed does not have 32 bytes")]
struct SeedError;
