//! Moments as people read them. Machines are given ms since 1970.

const DAY_MS: i64 = 86_400_000;
/// Days from 1 March of the year 0 to 1970, and those of 400 years, after which the calendar repeats itself.
const DAYS_BEFORE_1970: i64 = 719_468;
const DAYS_OF_400_YEARS: i64 = 146_097;

/// ms since 1970 as RFC 3339, in UTC: 2026-11-22T20:00:00.000Z.
pub fn utc(at_ms: i64) -> String {
    let (days, of_day) = (at_ms.div_euclid(DAY_MS), at_ms.rem_euclid(DAY_MS));
    let (year, month, day) = date(days);
    let (seconds, ms) = (of_day / 1_000, of_day % 1_000);
    let (hour, minute, second) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}

/// Years are counted from March here, so that a leap day is the last of its year.
fn date(days: i64) -> (i64, i64, i64) {
    let days = days + DAYS_BEFORE_1970;
    let (cycle, day) = (
        days.div_euclid(DAYS_OF_400_YEARS),
        days.rem_euclid(DAYS_OF_400_YEARS),
    );
    // Every 4th year has a day more, every 100th has not, the 400th has.
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    // From March on the months are 31, 30, 31, 30, 31 days long, and again: 153 in five.
    let from_march = (5 * day + 2) / 153;
    let day = day - (153 * from_march + 2) / 5 + 1;
    let month = (from_march + 2) % 12 + 1;
    (400 * cycle + year + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::utc;

    #[test]
    fn moments_are_those_of_the_calendar() {
        for (at_ms, wanted) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (-1, "1969-12-31T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_709_251_199_007, "2024-02-29T23:59:59.007Z"),
            (1_709_251_200_000, "2024-03-01T00:00:00.000Z"),
            (1_795_262_400_000, "2026-11-21T12:00:00.000Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(utc(at_ms), wanted);
        }
    }
}
