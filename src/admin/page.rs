//! Pages of lists: `limit` and `cursor` go in, `next_cursor` comes out.
//!
//! A cursor names the last item of its page by what the list is ordered by, so pages neither skip nor repeat anything when items are
//! added meanwhile. It is opaque: what is in it may change.

use std::fmt::Display;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;

use super::problem::Problem;

/// The query of a list that takes nothing else.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    limit: Option<u32>,
    cursor: Option<String>,
}

impl Limits {
    pub fn limit(&self, default: u32, most: u32) -> Result<u32, Problem> {
        limit(self.limit, default, most)
    }

    pub fn place<T: FromStr>(&self, list: &str) -> Result<Option<T>, Problem> {
        place(self.cursor.as_deref(), list)
    }
}

pub fn limit(asked: Option<u32>, default: u32, most: u32) -> Result<u32, Problem> {
    match asked {
        None => Ok(default),
        Some(limit) if (1..=most).contains(&limit) => Ok(limit),
        Some(limit) => Err(Problem::bad(format!(
            "limit {limit} must be from 1 to {most}"
        ))),
    }
}

/// The cursor behind the item at `place` of `list`.
pub fn cursor(list: &str, place: impl Display) -> String {
    URL_SAFE_NO_PAD.encode(format!("{list}:{place}"))
}

/// Where a cursor of `list` leads.
pub fn place<T: FromStr>(cursor: Option<&str>, list: &str) -> Result<Option<T>, Problem> {
    let Some(cursor) = cursor else {
        return Ok(None);
    };
    let read = || {
        let bytes = URL_SAFE_NO_PAD.decode(cursor).ok()?;
        let text = String::from_utf8(bytes).ok()?;
        let place = text.strip_prefix(list)?.strip_prefix(':')?;
        place.parse().ok()
    };
    let shown: String = cursor.chars().take(100).collect();
    let fault = || format!("cursor \"{shown}\" is not the next_cursor of a page of this list");
    read().map(Some).ok_or_else(|| Problem::bad(fault()))
}

/// Of one item more than asked for: the page, and the cursor of the next one if there is any.
pub fn cut<T>(
    mut items: Vec<T>,
    limit: u32,
    cursor: impl FnOnce(&T) -> String,
) -> (Vec<T>, Option<String>) {
    if items.len() <= limit as usize {
        return (items, None);
    }
    items.truncate(limit as usize);
    let next = items.last().map(cursor);
    (items, next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_leads_back_to_its_place_in_its_own_list_only() {
        let text = cursor("rain", 7);
        assert_eq!(place::<u32>(Some(&text), "rain").unwrap(), Some(7));
        assert_eq!(place::<u32>(None, "rain").unwrap(), None);
        for wrong in [text.as_str(), "", "!", "cmFpbjo3Cg"] {
            assert!(place::<u32>(Some(wrong), "key").is_err(), "{wrong}");
        }
    }

    #[test]
    fn only_a_full_page_with_more_behind_it_leads_on() {
        let name = |item: &u32| item.to_string();
        assert_eq!(cut(vec![1, 2], 2, name), (vec![1, 2], None));
        assert_eq!(cut(vec![1, 2, 3], 2, name), (vec![1, 2], Some("2".into())));
    }
}
