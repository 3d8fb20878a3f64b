use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Openings that one list may name: a season of nightly shows.
pub const ONCE_MAX: usize = 366;

const DAY_MS: i64 = 86_400_000;
const MINUTE_MS: i64 = 60_000;
/// 1 January 1970 was a Thursday.
const FIRST_WEEKDAY: i64 = 3;

/// When rains of a plan open. In JSON `{"once": [ms, …]}`, `{"daily": {"at": "20:00", "utc_offset": "+08:00"}}` or
/// `{"weekly": {"days": ["friday", "saturday"], "at": "20:00", "utc_offset": "+08:00"}}`.
///
/// An offset is a number, not a place: it does not know of summer time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Times {
    /// These instants, ms since 1970.
    Once(Vec<i64>),
    Daily(Clock),
    Weekly(Weekly),
}

/// A time of day, somewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Clock {
    pub at: TimeOfDay,
    #[serde(default)]
    pub utc_offset: UtcOffset,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Weekly {
    pub days: Vec<Weekday>,
    pub at: TimeOfDay,
    #[serde(default)]
    pub utc_offset: UtcOffset,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Weekday {
    Monday,
    Tuesday,
    Wednesday,
    Thursday,
    Friday,
    Saturday,
    Sunday,
}

/// Minutes since midnight, as text `20:00`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TimeOfDay(u16);

/// Minutes east of Greenwich, as text `+08:00`, `-03:30` or `Z`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct UtcOffset(i16);

/// Why there are no such times. The texts are for the operator who asked for them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TimesError {
    #[error("time of day \"{0}\" is not from 00:00 to 23:59, like 20:15")]
    TimeOfDay(String),
    #[error("utc_offset \"{0}\" is not Z or from -14:00 to +14:00, like +08:00")]
    UtcOffset(String),
    #[error(
        "weekday \"{0}\" is not monday, tuesday, wednesday, thursday, friday, saturday or sunday"
    )]
    Weekday(String),
    #[error("once names {0} openings: it must name from 1 to {ONCE_MAX}")]
    Once(usize),
    #[error("once names the opening {0} twice")]
    OnceTwice(i64),
    #[error("the opening {0} must be a time in ms since 1970, before the year 3000")]
    Instant(i64),
    #[error("weekly names no day")]
    NoDay,
}

/// The year 3000: an instant in µs or ns would be beyond it.
const INSTANT_MAX_MS: i64 = 32_503_680_000_000;

impl Times {
    pub fn check(&self) -> Result<(), TimesError> {
        match self {
            Times::Once(instants) => {
                if instants.is_empty() || instants.len() > ONCE_MAX {
                    return Err(TimesError::Once(instants.len()));
                }
                let mut sorted = instants.clone();
                sorted.sort_unstable();
                if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
                    return Err(TimesError::OnceTwice(pair[0]));
                }
                let outside = |at: &&i64| !(0..INSTANT_MAX_MS).contains(*at);
                sorted
                    .iter()
                    .find(outside)
                    .map_or(Ok(()), |at| Err(TimesError::Instant(*at)))
            }
            Times::Daily(_) => Ok(()),
            Times::Weekly(weekly) if weekly.days.is_empty() => Err(TimesError::NoDay),
            Times::Weekly(_) => Ok(()),
        }
    }

    /// The first opening later than `after_ms`; `None` when there is none any more.
    pub fn next_after(&self, after_ms: i64) -> Option<i64> {
        match self {
            Times::Once(instants) => instants.iter().copied().filter(|at| *at > after_ms).min(),
            Times::Daily(clock) => first_after(after_ms, clock.at, clock.utc_offset, |_| true),
            Times::Weekly(weekly) => first_after(after_ms, weekly.at, weekly.utc_offset, |day| {
                weekly.days.contains(&day)
            }),
        }
    }
}

/// The first day there from that of `after_ms` on: within a week and a day.
fn first_after(
    after_ms: i64,
    at: TimeOfDay,
    offset: UtcOffset,
    is_a_day: impl Fn(Weekday) -> bool,
) -> Option<i64> {
    let offset_ms = i64::from(offset.0) * MINUTE_MS;
    let today = (after_ms + offset_ms).div_euclid(DAY_MS);
    (today..=today + 7)
        .filter(|day| is_a_day(Weekday::of(*day)))
        .map(|day| day * DAY_MS + i64::from(at.0) * MINUTE_MS - offset_ms)
        .find(|at| *at > after_ms)
}

impl Weekday {
    const ALL: [Weekday; 7] = [
        Weekday::Monday,
        Weekday::Tuesday,
        Weekday::Wednesday,
        Weekday::Thursday,
        Weekday::Friday,
        Weekday::Saturday,
        Weekday::Sunday,
    ];

    /// Of a day, counted from 1 January 1970.
    fn of(day: i64) -> Weekday {
        Weekday::ALL[(day + FIRST_WEEKDAY).rem_euclid(7) as usize]
    }
}

impl FromStr for Weekday {
    type Err = TimesError;
    fn from_str(text: &str) -> Result<Weekday, TimesError> {
        let name = |day: &Weekday| format!("{day:?}").eq_ignore_ascii_case(text);
        let found = Weekday::ALL.into_iter().find(name);
        found.ok_or_else(|| TimesError::Weekday(text.to_owned()))
    }
}

/// `HH:MM` as minutes, each of two digits.
fn minutes(text: &str) -> Option<(u16, u16)> {
    let (hours, minutes) = text.split_once(':')?;
    let digits = |text: &str| text.len() == 2 && text.bytes().all(|b| b.is_ascii_digit());
    if !digits(hours) || !digits(minutes) {
        return None;
    }
    let minutes = minutes.parse().ok().filter(|minutes| *minutes < 60)?;
    Some((hours.parse().ok()?, minutes))
}

impl FromStr for TimeOfDay {
    type Err = TimesError;
    fn from_str(text: &str) -> Result<TimeOfDay, TimesError> {
        let found = minutes(text).filter(|(hours, _)| *hours < 24);
        found
            .map(|(hours, minutes)| TimeOfDay(hours * 60 + minutes))
            .ok_or_else(|| TimesError::TimeOfDay(text.to_owned()))
    }
}

impl fmt::Display for TimeOfDay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02}:{:02}", self.0 / 60, self.0 % 60)
    }
}

impl FromStr for UtcOffset {
    type Err = TimesError;
    fn from_str(text: &str) -> Result<UtcOffset, TimesError> {
        if text == "Z" {
            return Ok(UtcOffset(0));
        }
        let read = || {
            let (sign, rest) = text.split_at_checked(1)?;
            let (hours, minutes) = minutes(rest)?;
            let offset = (hours * 60 + minutes) as i16;
            let offset = match sign {
                "+" => offset,
                "-" => -offset,
                _ => return None,
            };
            (-840..=840).contains(&offset).then_some(UtcOffset(offset))
        };
        read().ok_or_else(|| TimesError::UtcOffset(text.to_owned()))
    }
}

impl fmt::Display for UtcOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.0 < 0 { '-' } else { '+' };
        let minutes = self.0.unsigned_abs();
        write!(f, "{sign}{:02}:{:02}", minutes / 60, minutes % 60)
    }
}

impl TryFrom<String> for TimeOfDay {
    type Error = TimesError;
    fn try_from(text: String) -> Result<TimeOfDay, TimesError> {
        text.parse()
    }
}

impl From<TimeOfDay> for String {
    fn from(time: TimeOfDay) -> String {
        time.to_string()
    }
}

impl TryFrom<String> for UtcOffset {
    type Error = TimesError;
    fn try_from(text: String) -> Result<UtcOffset, TimesError> {
        text.parse()
    }
}

impl From<UtcOffset> for String {
    fn from(offset: UtcOffset) -> String {
        offset.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(json: &str) -> Times {
        let times: Times = serde_json::from_str(json).unwrap();
        assert_eq!(
            serde_json::from_str::<Times>(&serde_json::to_string(&times).unwrap()).unwrap(),
            times
        );
        times.check().unwrap();
        times
    }

    /// Instants by `date -d '2026-11-21 20:00 +0800' +%s` and the like; 21 November 2026 is a Saturday.
    const SATURDAY_20_00_IN_SHANGHAI: i64 = 1_795_262_400_000;

    #[test]
    fn a_daily_opening_comes_every_day_at_that_time_there() {
        let times = times(r#"{"daily": {"at": "20:00", "utc_offset": "+08:00"}}"#);
        let tonight = SATURDAY_20_00_IN_SHANGHAI;
        assert_eq!(times.next_after(tonight - 1), Some(tonight));
        assert_eq!(times.next_after(tonight), Some(tonight + DAY_MS));
        assert_eq!(times.next_after(tonight - DAY_MS), Some(tonight));
        // 01:30 in St John's is 05:00 UTC.
        let west = self::times(r#"{"daily": {"at": "01:30", "utc_offset": "-03:30"}}"#);
        assert_eq!(west.next_after(tonight), Some(tonight + 17 * 3_600_000));
    }

    #[test]
    fn a_weekly_opening_comes_on_its_days_there_not_here() {
        let json = r#"{"weekly": {"days": ["sunday", "wednesday"], "at": "00:30", "utc_offset": "+14:00"}}"#;
        let times = times(json);
        // Sunday 00:30 at +14:00 is Saturday 10:30 UTC.
        let saturday_noon_utc = SATURDAY_20_00_IN_SHANGHAI;
        let sunday_there = saturday_noon_utc - 90 * MINUTE_MS;
        assert_eq!(times.next_after(sunday_there - 1), Some(sunday_there));
        let wednesday_there = sunday_there + 3 * DAY_MS;
        assert_eq!(times.next_after(saturday_noon_utc), Some(wednesday_there));
        assert_eq!(
            times.next_after(wednesday_there),
            Some(sunday_there + 7 * DAY_MS)
        );
    }

    #[test]
    fn listed_openings_come_in_their_order_and_end() {
        let times = times(r#"{"once": [500, 100, 300]}"#);
        assert_eq!(times.next_after(0), Some(100));
        assert_eq!(times.next_after(100), Some(300));
        assert_eq!(times.next_after(300), Some(500));
        assert_eq!(times.next_after(500), None);
    }

    #[test]
    fn times_that_cannot_be_are_refused_by_name() {
        for (json, part) in [
            (r#"{"daily": {"at": "24:00"}}"#, "24:00"),
            (r#"{"daily": {"at": "8:00"}}"#, "8:00"),
            (r#"{"daily": {"at": "20:60"}}"#, "20:60"),
            (
                r#"{"daily": {"at": "20:00", "utc_offset": "8"}}"#,
                "utc_offset \"8\"",
            ),
            (
                r#"{"daily": {"at": "20:00", "utc_offset": "+15:00"}}"#,
                "+15:00",
            ),
            (
                r#"{"weekly": {"days": ["fryday"], "at": "20:00"}}"#,
                "fryday",
            ),
            (r#"{"monthly": {"at": "20:00"}}"#, "monthly"),
        ] {
            let error = serde_json::from_str::<Times>(json).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
        for (times, error) in [
            (Times::Once(vec![]), TimesError::Once(0)),
            (Times::Once(vec![7, 7]), TimesError::OnceTwice(7)),
            (Times::Once(vec![-1]), TimesError::Instant(-1)),
            (
                Times::Once(vec![1_795_262_400_000_000]),
                TimesError::Instant(1_795_262_400_000_000),
            ),
        ] {
            assert_eq!(times.check(), Err(error));
        }
    }
}
