use std::fmt;
use std::iter::Sum;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// An amount of money in minor units (1.00 is `Cents(100)`).
///
/// Integers everywhere; decimal text only where people read or write it. JSON carries the integer in fields whose names end in
/// `_cents`. Arithmetic is checked: an overflow is `None`, never a wrapped amount.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Cents(pub i64);

impl Cents {
    pub const ZERO: Cents = Cents(0);

    pub fn checked_add(self, other: Cents) -> Option<Cents> {
        self.0.checked_add(other.0).map(Cents)
    }

    pub fn checked_sub(self, other: Cents) -> Option<Cents> {
        self.0.checked_sub(other.0).map(Cents)
    }
}

/// Sums saturate at the ends of the range instead of wrapping: a report with an absurd figure is seen, a wrapped one is believed.
impl Sum for Cents {
    fn sum<I: Iterator<Item = Cents>>(amounts: I) -> Cents {
        Cents(amounts.fold(0i64, |sum, amount| sum.saturating_add(amount.0)))
    }
}

impl fmt::Display for Cents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.0 < 0 { "-" } else { "" };
        let absolute = self.0.unsigned_abs();
        f.pad(&format!("{sign}{}.{:02}", absolute / 100, absolute % 100))
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("amount \"{0}\" is not money: write digits with at most two decimals, like 10000 or 8.88")]
pub struct ParseCentsError(String);

/// Reads decimal text: `10000`, `10000.5`, `10000.50`, `-3.00`.
impl FromStr for Cents {
    type Err = ParseCentsError;

    fn from_str(text: &str) -> Result<Cents, ParseCentsError> {
        let fault = || ParseCentsError(text.to_owned());
        let (negative, digits) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, "0"));
        let all_digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
        if !all_digits(whole) || !all_digits(fraction) || fraction.len() > 2 {
            return Err(fault());
        }
        let whole: i64 = whole.parse().map_err(|_| fault())?;
        let mut cents: i64 = fraction.parse().map_err(|_| fault())?;
        if fraction.len() == 1 {
            cents *= 10;
        }
        // "10000" arrives here with the fraction "0", which times ten is still zero.
        let amount = whole
            .checked_mul(100)
            .and_then(|hundreds| hundreds.checked_add(cents))
            .ok_or_else(fault)?;
        Ok(Cents(if negative { -amount } else { amount }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimal_text_and_cents_agree() {
        for (text, cents) in [
            ("0", 0),
            ("0.01", 1),
            ("8.88", 888),
            ("10000.5", 1_000_050),
            ("-3.00", -300),
            ("92233720368547758.07", i64::MAX),
        ] {
            assert_eq!(text.parse::<Cents>().unwrap(), Cents(cents), "{text}");
        }
        assert_eq!(Cents(1_000_050).to_string(), "10000.50");
        assert_eq!(Cents(-5).to_string(), "-0.05");
        assert_eq!(Cents(i64::MIN).to_string(), "-92233720368547758.08");
    }

    #[test]
    fn what_is_not_money_is_refused_by_name() {
        for text in [
            "",
            ".",
            "1.",
            ".5",
            "1.234",
            "1e3",
            "+1",
            " 1",
            "1,00",
            "92233720368547758.08",
            "--1",
        ] {
            let error = text.parse::<Cents>().unwrap_err();
            assert!(
                error.to_string().contains(&format!("\"{text}\"")),
                "{error}"
            );
        }
    }
}
