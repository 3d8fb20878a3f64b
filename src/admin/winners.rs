//! Who has been paid: page by page, or whole as CSV or NDJSON.
//!
//! A whole list is read and sent a page at a time, as fast as its reader takes it: a million rows need no more memory than two thousand. Winners come by
//! packet id; those who are credited while a list is sent stand in it if their place is yet to come.

use std::borrow::Cow;
use std::fmt::Write;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde::Serialize;

use super::page::{self, Limits};
use super::problem::Problem;
use super::rains::find;
use super::{Admin, Shared};
use crate::ledger::{Credit, Ledger, LedgerError};
use crate::rain::{Cents, PacketId, RainId, UserId};

/// Rows read at once for a whole list: 60 to 180 KiB of text, and a few megabytes before they are text.
const ROWS_AT_ONCE: u32 = 2_000;

#[derive(Serialize)]
pub struct Winners {
    winners: Vec<Winner>,
    next_cursor: Option<String>,
}

#[derive(Serialize)]
pub struct Winner {
    packet_id: PacketId,
    user: UserId,
    cents: Cents,
    credited_at_ms: i64,
}

/// Credited winners by packet id.
pub async fn list(
    State(admin): Shared,
    Path(id): Path<String>,
    page: Result<Query<Limits>, QueryRejection>,
) -> Result<Json<Winners>, Problem> {
    let Query(page) = page?;
    let rain = find(&admin, &id).await?;
    let (limit, after) = (page.limit(1_000, 10_000)?, page.place("winner")?);
    let credits = admin
        .ledger
        .credits_after(rain.id, after.map(PacketId::index), limit + 1)
        .await?;
    let (credits, next_cursor) = page::cut(credits, limit, |credit| {
        page::cursor("winner", credit.packet.id)
    });
    Ok(Json(Winners {
        winners: credits.into_iter().map(Winner::from).collect(),
        next_cursor,
    }))
}

impl From<Credit> for Winner {
    fn from(credit: Credit) -> Winner {
        Winner {
            packet_id: credit.packet.id,
            user: credit.user,
            cents: credit.packet.cents,
            credited_at_ms: credit.at_ms,
        }
    }
}

/// A table for spreadsheets. A user id that one would take for a formula has an apostrophe before it.
pub async fn csv(State(admin): Shared, Path(id): Path<String>) -> Result<Response, Problem> {
    let format = Format {
        kind: "text/csv; charset=utf-8; header=present",
        ending: "csv",
        head: "packet_id,user,cents,amount,credited_at_ms\r\n",
        row: |text, winner| {
            let (packet, cents, at_ms) = (winner.packet_id, winner.cents, winner.credited_at_ms);
            let user = csv_field(winner.user.as_str());
            let _ = write!(text, "{packet},{user},{},{cents},{at_ms}\r\n", cents.0); // into a String
        },
    };
    whole(&admin, &id, format).await
}

/// A JSON object a line, like those of [`list`].
pub async fn ndjson(State(admin): Shared, Path(id): Path<String>) -> Result<Response, Problem> {
    let format = Format {
        kind: "application/x-ndjson",
        ending: "ndjson",
        head: "",
        row: |text, winner| {
            text.push_str(&serde_json::to_string(winner).expect("a winner is plain data"));
            text.push('\n');
        },
    };
    whole(&admin, &id, format).await
}

#[derive(Clone, Copy)]
struct Format {
    kind: &'static str,
    ending: &'static str,
    head: &'static str,
    row: fn(&mut String, &Winner),
}

async fn whole(admin: &Admin, id: &str, format: Format) -> Result<Response, Problem> {
    let rain = find(admin, id).await?.id;
    let pages = Pages {
        ledger: admin.ledger.clone(),
        rain,
        place: Place::Start,
        format,
    };
    let name = format!(
        "attachment; filename=\"rain-{rain}-winners.{}\"",
        format.ending
    );
    let headers = [
        (header::CONTENT_TYPE, format.kind.to_owned()),
        (header::CONTENT_DISPOSITION, name),
    ];
    // An error in the middle ends the connection before the end of the body, which every client sees.
    let body = Body::from_stream(stream::try_unfold(pages, Pages::next));
    Ok((headers, body).into_response())
}

/// A list that is being sent.
struct Pages {
    ledger: Ledger,
    rain: RainId,
    place: Place,
    format: Format,
}

enum Place {
    Start,
    After(PacketId),
    End,
}

impl Pages {
    /// The text of the next page, read when the one before has been taken.
    async fn next(mut self) -> Result<Option<(Bytes, Pages)>, LedgerError> {
        let (after, mut text) = match self.place {
            Place::Start => (None, self.format.head.to_owned()),
            Place::After(packet) => (Some(packet.index()), String::new()),
            Place::End => return Ok(None),
        };
        let credits = self
            .ledger
            .credits_after(self.rain, after, ROWS_AT_ONCE)
            .await?;
        self.place = match credits.last() {
            Some(last) if credits.len() == ROWS_AT_ONCE as usize => Place::After(last.packet.id),
            Some(_) | None => Place::End,
        };
        for credit in credits {
            (self.format.row)(&mut text, &credit.into());
        }
        Ok(Some((text.into(), self)))
    }
}

/// RFC 4180, and nothing that a spreadsheet would carry out: it takes what begins with one of these for a formula.
fn csv_field(text: &str) -> Cow<'_, str> {
    let formula = text.starts_with(['=', '+', '-', '@', '\t', '\r']);
    let quoted = text.contains([',', '"', '\r', '\n']);
    match (formula, quoted) {
        (false, false) => text.into(),
        (true, false) => format!("'{text}").into(),
        (formula, true) => {
            let apostrophe = if formula { "'" } else { "" };
            format!("\"{apostrophe}{}\"", text.replace('"', "\"\"")).into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::csv_field;

    #[test]
    fn a_field_of_a_table_is_one_field_and_no_formula() {
        for (text, field) in [
            ("anna", "anna"),
            ("a@b.example", "a@b.example"),
            ("=1+1", "'=1+1"),
            ("+49", "'+49"),
            ("-1", "'-1"),
            ("@sum", "'@sum"),
            ("\tx", "'\tx"),
            ("a,b", "\"a,b\""),
            ("say \"hi\"", "\"say \"\"hi\"\"\""),
            ("=a,\nb", "\"'=a,\nb\""),
        ] {
            assert_eq!(csv_field(text), field);
        }
    }
}
