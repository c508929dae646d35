//! What type a scalar has, and its value as a number or a truth value.
//!
//! The rules are those of the YAML 1.1/1.2 mixture that Fusefiles have always been read with: `0755` is an
//! octal number, `1_000` is one thousand, `yes` is text unless a truth value is wanted.

use super::{Content, Node, Tag};

/// A numeric scalar.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Number {
    Int(i64),
    /// Also integers too large for `Int`.
    Float(f64),
}

/// The type of a node: its tag if it has one, else what its text looks like. `None` for a broken node.
pub(crate) fn tag_of(node: &Node) -> Option<Tag> {
    match &node.content {
        Content::Broken => None,
        Content::List(_) => Some(Tag::List),
        Content::Map(_) => Some(Tag::Map),
        Content::Scalar { text, plain } => Some(match node.tag {
            Some(tag) => tag,
            None if *plain => resolve(text),
            None => Tag::Str,
        }),
    }
}

fn resolve(text: &str) -> Tag {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Tag::Null,
        "true" | "True" | "TRUE" | "false" | "False" | "FALSE" => Tag::Bool,
        "<<" => Tag::Merge,
        _ if !text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.')) => {
            Tag::Str
        }
        _ if is_timestamp(text) => Tag::Timestamp,
        _ => match as_number(text) {
            Some(Number::Int(_)) => Tag::Int,
            Some(Number::Float(_)) => Tag::Float,
            None => Tag::Str,
        },
    }
}

/// Whether `text` written plainly is read as that text by everybody: by these rules, and by readers for
/// which `yes` and `off` are truth values.
pub(crate) fn resolves_to_text(text: &str) -> bool {
    resolve(text) == Tag::Str && as_bool(text, true).is_none()
}

/// Whether a literal block or double quotes can hold every character of `text` as it is.
pub(crate) fn is_text(text: &str) -> bool {
    text.chars().all(|c| match c {
        '\n' | '\t' => true,
        '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}' => false,
        c => !c.is_control(),
    })
}

/// The number that `text` spells.
pub(crate) fn as_number(text: &str) -> Option<Number> {
    let (negative, body) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    match body {
        ".inf" | ".Inf" | ".INF" => {
            return Some(Number::Float(if negative {
                f64::NEG_INFINITY
            } else {
                f64::INFINITY
            }));
        }
        ".nan" | ".NaN" | ".NAN" if body.len() == text.len() => {
            return Some(Number::Float(f64::NAN));
        }
        _ => {}
    }
    // Underscores group digits; they may not lead, which leaves `_` and `__x` text.
    if !body.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return None;
    }
    let digits: String = body.chars().filter(|c| *c != '_').collect();
    integer(&digits, negative).or_else(|| {
        let value = is_float(&digits)
            .then(|| digits.parse::<f64>().ok())
            .flatten()?;
        Some(Number::Float(if negative { -value } else { value }))
    })
}

/// An integer in base 10, or in the base its prefix names.
fn integer(digits: &str, negative: bool) -> Option<Number> {
    let lower = digits.to_ascii_lowercase();
    let (radix, body) = if let Some(body) = lower.strip_prefix("0x") {
        (16, body)
    } else if let Some(body) = lower.strip_prefix("0b") {
        (2, body)
    } else if let Some(body) = lower.strip_prefix("0o") {
        (8, body)
    } else if lower.len() > 1 && lower.starts_with('0') {
        (8, &lower[1..])
    } else {
        (10, lower.as_str())
    };
    if body.is_empty() || !body.bytes().all(|b| char::from(b).is_digit(radix)) {
        return None;
    }
    match i128::from_str_radix(body, radix) {
        Ok(value) => {
            let value = if negative { -value } else { value };
            Some(match i64::try_from(value) {
                Ok(value) => Number::Int(value),
                #[expect(clippy::cast_precision_loss, reason = "only told from a whole i64")]
                Err(_) => Number::Float(value as f64),
            })
        }
        // More digits than any type holds.
        Err(_) => Some(Number::Float(f64::INFINITY)),
    }
}

/// `[digits][.digits][e[+-]digits]` with at least one digit before the exponent.
fn is_float(text: &str) -> bool {
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (text, None),
    };
    let all_digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    let mantissa_ok = match mantissa.split_once('.') {
        Some((whole, fraction)) => {
            all_digits(whole) && all_digits(fraction) && !(whole.is_empty() && fraction.is_empty())
        }
        None => !mantissa.is_empty() && all_digits(mantissa),
    };
    let exponent_ok = exponent.is_none_or(|e| {
        let digits = e.strip_prefix(['+', '-']).unwrap_or(e);
        !digits.is_empty() && all_digits(digits)
    });
    mantissa_ok && exponent_ok
}

/// `2001-01-31`, with or without a time after it.
fn is_timestamp(text: &str) -> bool {
    let date = text.split(['T', 't', ' ']).next().unwrap_or_default();
    let mut parts = date.split('-');
    let mut digits = |range: std::ops::RangeInclusive<usize>| {
        parts
            .next()
            .is_some_and(|p| range.contains(&p.len()) && p.bytes().all(|b| b.is_ascii_digit()))
    };
    digits(4..=4) && digits(1..=2) && digits(1..=2) && parts.next().is_none()
}

/// The truth value of a scalar where one is wanted.
pub(crate) fn as_bool(text: &str, plain: bool) -> Option<bool> {
    match text {
        "true" | "True" | "TRUE" if plain => Some(true),
        "false" | "False" | "FALSE" if plain => Some(false),
        "y" | "Y" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" => Some(true),
        "n" | "N" | "no" | "No" | "NO" | "off" | "Off" | "OFF" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_by_text() {
        for (text, tag) in [
            ("", Tag::Null),
            ("~", Tag::Null),
            ("null", Tag::Null),
            ("nulL", Tag::Str),
            ("true", Tag::Bool),
            ("yes", Tag::Str),
            ("<<", Tag::Merge),
            ("5", Tag::Int),
            ("-0x1F", Tag::Int),
            ("0755", Tag::Int),
            ("0o17", Tag::Int),
            ("1_000", Tag::Int),
            ("08", Tag::Float),
            ("2.0", Tag::Float),
            (".5", Tag::Float),
            ("1e3", Tag::Float),
            (".inf", Tag::Float),
            ("-", Tag::Str),
            (".", Tag::Str),
            ("5432/tcp", Tag::Str),
            ("1.2.3", Tag::Str),
            ("infinity", Tag::Str),
            ("_1", Tag::Str),
            ("2001-01-31", Tag::Timestamp),
            ("2001-01-31T10:00:00Z", Tag::Timestamp),
            ("2001-01", Tag::Str),
        ] {
            assert_eq!(resolve(text), tag, "{text:?}");
        }
    }

    #[test]
    fn numbers() {
        for (text, value) in [
            ("0755", Number::Int(493)),
            ("-5", Number::Int(-5)),
            ("+5", Number::Int(5)),
            ("0b101", Number::Int(5)),
            ("08", Number::Float(8.0)),
            ("2.", Number::Float(2.0)),
            ("-9223372036854775808", Number::Int(i64::MIN)),
        ] {
            assert_eq!(as_number(text), Some(value), "{text:?}");
        }
        assert!(matches!(
            as_number("9223372036854775808"),
            Some(Number::Float(_))
        ));
        assert!(matches!(as_number(&"9".repeat(500)), Some(Number::Float(f)) if f.is_infinite()));
        for text in ["", "-", "0x", "1e", "e5", "..", "+_1", "nan"] {
            assert_eq!(as_number(text), None, "{text:?}");
        }
    }

    #[test]
    fn truth_values() {
        assert_eq!(as_bool("true", true), Some(true));
        assert_eq!(as_bool("true", false), None);
        assert_eq!(as_bool("off", false), Some(false));
        assert_eq!(as_bool("oFF", true), None);
    }
}
