//! Values on the command line. A fault names the value and what is allowed.

use std::time::Duration;

use hongbao::rain::split::{Rule, Tier};

/// Beyond this a JSON reader that knows only floats would change a number.
const SEED_MAX: u64 = (1 << 53) - 1;
/// Requests a second: more than any generator can plan.
const RATE_MAX: f64 = 10_000_000.0;
/// Longest latency that is told apart, ms.
const MS_MAX: f64 = 120_000.0;

/// `30s`, `1500ms`, `2m`, and `30` for seconds.
pub fn duration(text: &str) -> Result<Duration, String> {
    let fault = || {
        format!(
            "\"{text}\" is not a time like 30s, 1500ms or 2m, of at least 1 ms and at most 24 hours"
        )
    };
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit_ms = match &text[digits.len()..] {
        "ms" => 1,
        "s" | "" => 1_000,
        "m" => 60_000,
        _ => return Err(fault()),
    };
    let count: u64 = digits.parse().map_err(|_| fault())?;
    count
        .checked_mul(unit_ms)
        .filter(|ms| (1..=86_400_000).contains(ms))
        .map(Duration::from_millis)
        .ok_or_else(fault)
}

pub fn duration_or_zero(text: &str) -> Result<Duration, String> {
    match text {
        "0" | "0s" | "0ms" => Ok(Duration::ZERO),
        text => duration(text),
    }
}

/// `150ms..400ms`: the shortest and the longest.
pub fn range(text: &str) -> Result<(Duration, Duration), String> {
    let fault =
        || format!("\"{text}\" is not a range of times like 150ms..400ms, the shorter one first");
    let (short, long) = text.split_once("..").ok_or_else(fault)?;
    let (short, long) = (duration(short)?, duration(long)?);
    if short > long {
        return Err(fault());
    }
    Ok((short, long))
}

/// Requests a second.
pub fn rate(text: &str) -> Result<f64, String> {
    positive(text, RATE_MAX, "requests a second")
}

/// A latency.
pub fn milliseconds(text: &str) -> Result<f64, String> {
    positive(text, MS_MAX, "milliseconds")
}

pub fn factor(text: &str) -> Result<f64, String> {
    positive(text, 1_000_000.0, "times")
}

fn positive(text: &str, most: f64, unit: &str) -> Result<f64, String> {
    let value: Option<f64> = text.parse().ok();
    value
        .filter(|value| *value > 0.0 && *value <= most)
        .ok_or_else(|| {
            format!("\"{text}\" is not a number of {unit} above 0 and of at most {most}")
        })
}

pub fn seed(text: &str) -> Result<u64, String> {
    let value: Option<u64> = text.parse().ok();
    value
        .filter(|value| *value <= SEED_MAX)
        .ok_or_else(|| format!("\"{text}\" is not a whole number from 0 to {SEED_MAX}"))
}

pub fn rule(text: &str) -> Result<Rule, String> {
    match text {
        "even" => return Ok(Rule::Even),
        "double_mean" => return Ok(Rule::DoubleMean),
        "line_cut" => return Ok(Rule::LineCut),
        _ => {}
    }
    let fault = || {
        format!(
            "\"{text}\" is not even, double_mean, line_cut or a prize table like tiers:1x888.00,100x8.88"
        )
    };
    let rows = text.strip_prefix("tiers:").ok_or_else(fault)?.split(',');
    let row = |row: &str| {
        let (count, amount) = row.split_once('x')?;
        Some(Tier {
            count: count.trim().parse().ok().filter(|count| *count > 0)?,
            cents: amount.trim().parse().ok()?,
        })
    };
    let rows: Option<Vec<Tier>> = rows.map(row).collect();
    rows.map(Rule::Tiers).ok_or_else(fault)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hongbao::rain::Cents;

    #[test]
    fn times_ranges_and_rules_read_as_people_write_them() {
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(duration("7"), Ok(Duration::from_secs(7)));
        let ms = Duration::from_millis;
        assert_eq!(range("150ms..1s"), Ok((ms(150), ms(1_000))));
        let tier = |count, cents| Tier {
            count,
            cents: Cents(cents),
        };
        let wanted = Rule::Tiers(vec![tier(1, 88_800), tier(100, 888)]);
        assert_eq!(rule("tiers:1x888.00,100x8.88"), Ok(wanted));
        assert_eq!(seed("9007199254740991"), Ok(9_007_199_254_740_991));
    }

    #[test]
    fn a_fault_names_the_value_and_what_is_allowed() {
        for (fault, value, allowed) in [
            (duration("soon").err(), "\"soon\"", "30s, 1500ms or 2m"),
            (duration("25000m").err(), "\"25000m\"", "24 hours"),
            (range("9s..1s").err(), "\"9s..1s\"", "the shorter one first"),
            (rate("nan").err(), "\"nan\"", "at most 10000000"),
            (rate("0").err(), "\"0\"", "above 0"),
            (rate("inf").err(), "\"inf\"", "at most 10000000"),
            (milliseconds("-1").err(), "\"-1\"", "milliseconds above 0"),
            (
                seed("9007199254740992").err(),
                "2\"",
                "from 0 to 9007199254740991",
            ),
            (rule("lucky").err(), "\"lucky\"", "double_mean"),
            (rule("tiers:0x1.00").err(), "0x1.00", "tiers:1x888.00"),
        ] {
            let fault = fault.unwrap_or_else(|| panic!("{value} was accepted"));
            assert!(fault.contains(value) && fault.contains(allowed), "{fault}");
        }
    }
}
