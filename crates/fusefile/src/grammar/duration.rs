//! Durations as Go writes them: `1h30m`, `1500ms`, `.5s`, `-2m`. No days, no spaces.

use std::fmt;

use thiserror::Error;

/// A signed duration of at most ±(2^63 − 1) nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Duration {
    nanos: i64,
}

/// The text is not a duration, or one out of range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum DurationError {
    /// Not in the grammar.
    #[error("expected a duration such as 90s, 1h30m or 500ms")]
    Malformed,
    /// Beyond about 292 years.
    #[error("out of range")]
    OutOfRange,
}

/// Units with their nanoseconds; the longer name first where one starts another.
const UNITS: [(&str, u64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000), // U+00B5, micro sign
    ("μs", 1_000), // U+03BC, Greek mu
    ("ms", 1_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("h", 3_600_000_000_000),
];

const SECOND: i64 = 1_000_000_000;
const MAX: u64 = i64::MAX as u64;

impl Duration {
    /// One minute.
    pub const MINUTE: Self = Self { nanos: 60 * SECOND };
    /// No time at all.
    pub const ZERO: Self = Self { nanos: 0 };

    /// Nanoseconds.
    #[must_use]
    pub const fn from_nanos(nanos: i64) -> Self {
        Self { nanos }
    }

    /// Reads `[+|-] ("0" | (decimal unit)+)`.
    ///
    /// # Errors
    /// When the text is not in the grammar or the sum is out of range.
    pub fn parse(text: &str) -> Result<Self, DurationError> {
        let (negative, mut rest) = match text.as_bytes().first() {
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            _ => (false, text),
        };
        if rest == "0" {
            return Ok(Self::ZERO);
        }
        if rest.is_empty() {
            return Err(DurationError::Malformed);
        }
        let mut total: u64 = 0;
        while !rest.is_empty() {
            let (nanos, after) = term(rest)?;
            total = total.checked_add(nanos).ok_or(DurationError::OutOfRange)?;
            if total > MAX {
                return Err(DurationError::OutOfRange);
            }
            rest = after;
        }
        let nanos = i64::try_from(total).map_err(|_| DurationError::OutOfRange)?;
        Ok(Self {
            nanos: if negative { -nanos } else { nanos },
        })
    }

    /// Nanoseconds.
    #[must_use]
    pub const fn as_nanos(self) -> i64 {
        self.nanos
    }

    /// Whole seconds, rounded down (towards zero for the durations the format allows, which are ≥ 0).
    #[must_use]
    pub const fn seconds_floor(self) -> i64 {
        self.nanos.div_euclid(SECOND)
    }

    /// Whole seconds, rounded up.
    #[must_use]
    pub const fn seconds_ceil(self) -> i64 {
        self.nanos.div_euclid(SECOND) + (self.nanos.rem_euclid(SECOND) != 0) as i64
    }
}

/// One `decimal unit` at the start of `text`: its nanoseconds and what follows.
fn term(text: &str) -> Result<(u64, &str), DurationError> {
    let (whole, rest) = take_digits(text);
    let (fraction, rest) = match rest.strip_prefix('.') {
        Some(rest) => take_digits(rest),
        None => ("", rest),
    };
    if whole.is_empty() && fraction.is_empty() {
        return Err(DurationError::Malformed);
    }
    let (unit, nanos) = UNITS
        .into_iter()
        .find(|(unit, _)| rest.starts_with(unit))
        .ok_or(DurationError::Malformed)?;
    let rest = &rest[unit.len()..];
    // What follows a unit is a number or the end: `5msx` and `5hh` are not durations.
    if !(rest.is_empty() || rest.starts_with(|c: char| c.is_ascii_digit() || c == '.')) {
        return Err(DurationError::Malformed);
    }
    let whole: u64 = if whole.is_empty() {
        0
    } else {
        whole.parse().map_err(|_| DurationError::OutOfRange)?
    };
    let total = whole
        .checked_mul(nanos)
        .and_then(|n| n.checked_add(fraction_nanos(fraction, nanos)))
        .ok_or(DurationError::OutOfRange)?;
    Ok((total, rest))
}

fn take_digits(text: &str) -> (&str, &str) {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    text.split_at(end)
}

/// `0.<digits>` of a unit in nanoseconds, rounded down. The product is taken in floating point, digits
/// times nanoseconds per last digit, because seconds derived from it must equal the ones that other
/// compilers of the format derive.
fn fraction_nanos(digits: &str, unit: u64) -> u64 {
    // Eighteen digits fit u64 and are far below a nanosecond of the largest unit.
    let digits = &digits[..digits.len().min(18)];
    let Ok(value) = digits.parse::<u64>() else {
        return 0;
    };
    let scale = digits.bytes().fold(1.0_f64, |scale, _| scale * 10.0);
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "rounding down is meant, and the result is below one unit"
    )]
    {
        (value as f64 * (unit as f64 / scale)) as u64
    }
}

/// Go's form: `1m30s`, `2m0s`, `1.5s`, `100ms`, `0s`.
impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nanos < 0 {
            f.write_str("-")?;
        }
        let nanos = self.nanos.unsigned_abs();
        if nanos == 0 {
            return f.write_str("0s");
        }
        let second = SECOND.unsigned_abs();
        for (unit, size) in [("ns", 1), ("µs", 1_000), ("ms", 1_000_000)] {
            if nanos < size * 1_000 {
                return decimal(f, nanos, size, unit);
            }
        }
        let (hours, minutes) = (nanos / (3_600 * second), nanos / (60 * second) % 60);
        if hours > 0 {
            write!(f, "{hours}h")?;
        }
        if hours > 0 || minutes > 0 {
            write!(f, "{minutes}m")?;
        }
        decimal(f, nanos % (60 * second), second, "s")
    }
}

/// `nanos / size` as a decimal without trailing zeros, then the unit.
fn decimal(f: &mut fmt::Formatter<'_>, nanos: u64, size: u64, unit: &str) -> fmt::Result {
    write!(f, "{}", nanos / size)?;
    let rest = nanos % size;
    if rest > 0 {
        let width = usize::try_from(size.ilog10()).unwrap_or(0);
        let digits = format!("{rest:0width$}");
        write!(f, ".{}", digits.trim_end_matches('0'))?;
    }
    f.write_str(unit)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn nanos(text: &str) -> Result<i64, DurationError> {
        Duration::parse(text).map(Duration::as_nanos)
    }

    #[test]
    fn accepts_the_grammar() {
        for (text, expected) in [
            ("0", 0),
            ("+0", 0),
            ("-0", 0),
            ("0s", 0),
            ("5s", 5 * SECOND),
            ("1500ms", 1_500_000_000),
            ("1m30s", 90 * SECOND),
            ("1h0m0.9s", 3_600_900_000_000),
            (".5s", 500_000_000),
            ("1.s", SECOND),
            ("-1.5h", -5_400 * SECOND),
            ("1µs", 1_000),
            ("1μs", 1_000),
            ("1us2ns", 1_002),
            ("1h1h", 7_200 * SECOND),
            ("1ms1s", 1_001_000_000),
            ("0.3333333333333333333h", 1_200 * SECOND - 1),
            ("9223372036854775807ns", i64::MAX),
            ("-9223372036854775807ns", -i64::MAX),
            ("0.9999999999s", 999_999_999),
        ] {
            assert_eq!(nanos(text), Ok(expected), "{text:?}");
        }
    }

    #[test]
    fn refuses_the_rest() {
        use DurationError::{Malformed, OutOfRange};
        for text in [
            "", "-", "+", "5", "1d", " 5s", "5s ", "5 s", "s", ".s", "1h-5m", "1.2.3s", "1e3s",
            "5S", "1hh", "1w", "٣s", "--1s", "1msx",
        ] {
            assert_eq!(nanos(text), Err(Malformed), "{text:?}");
        }
        for text in [
            "9223372036854775808ns",
            "-9223372036854775808ns",
            "99999999999999999999s",
            "2562048h",
            "2562047h47m17s",
        ] {
            assert_eq!(nanos(text), Err(OutOfRange), "{text:?}");
        }
    }

    #[test]
    fn renders_as_go_does() {
        for (nanos, text) in [
            (0, "0s"),
            (1, "1ns"),
            (1_100, "1.1µs"),
            (2_200_000, "2.2ms"),
            (SECOND, "1s"),
            (90 * SECOND, "1m30s"),
            (120 * SECOND, "2m0s"),
            (3_600 * SECOND, "1h0m0s"),
            (3_605_500_000_000, "1h0m5.5s"),
            (-1_500_000_000, "-1.5s"),
            (i64::MAX, "2562047h47m16.854775807s"),
            (i64::MIN, "-2562047h47m16.854775808s"),
        ] {
            assert_eq!(Duration::from_nanos(nanos).to_string(), text);
        }
    }

    #[test]
    fn rounds_to_seconds() {
        for (text, floor, ceil) in [
            ("0", 0, 0),
            ("1ns", 0, 1),
            ("1200ms", 1, 2),
            ("2s", 2, 2),
            ("59.9s", 59, 60),
        ] {
            let d = Duration::parse(text).unwrap();
            assert_eq!(
                (d.seconds_floor(), d.seconds_ceil()),
                (floor, ceil),
                "{text}"
            );
        }
    }

    proptest! {
        #[test]
        fn display_round_trips(nanos in -i64::MAX..=i64::MAX) {
            let d = Duration::from_nanos(nanos);
            // A fraction is read through a float, which is exact up to 2^53 of its last digit.
            prop_assert_eq!(Duration::parse(&d.to_string()), Ok(d));
        }

        #[test]
        fn never_panics(text in "[-+]?[0-9.]{0,30}(ns|µs|ms|s|m|h|\\PC){0,4}") {
            if let Ok(d) = Duration::parse(&text) {
                prop_assert_eq!(Duration::parse(&d.to_string()), Ok(d));
            }
        }
    }
}
