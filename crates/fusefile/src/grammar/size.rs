//! Sizes: `1.5GB`, `512 MiB`, `2T`. All units are binary; the value is whole MiB.

use thiserror::Error;

/// Largest size in MiB; what the wire's 32-bit field holds.
pub const MAX_MIB: i64 = i32::MAX as i64;

/// Why a text is not a size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum SizeError {
    /// Not `<number><unit>`; a bare number is the usual case.
    #[error("expected a number and a unit such as 512MB, 2GB or 1TB")]
    Malformed,
    /// A fraction of a MiB.
    #[error("not a whole number of MiB")]
    NotWhole,
    /// Over [`MAX_MIB`].
    #[error("too large")]
    TooLarge,
}

/// The size in MiB.
///
/// # Errors
/// When `text` is not in the grammar, not whole MiB, or too large. Empty text is malformed here; the
/// format's "empty = absent" is the caller's.
pub fn parse(text: &str) -> Result<i64, SizeError> {
    let upper = text.trim().to_uppercase();
    let unit_at = upper.find(|c: char| !(c.is_ascii_digit() || c == '.'));
    let (number, unit) = upper.split_at(unit_at.ok_or(SizeError::Malformed)?);
    if !is_decimal(number) {
        return Err(SizeError::Malformed);
    }
    let factor = match unit.trim_start_matches([' ', '\t', '\n', '\u{c}', '\r']) {
        "M" | "MB" | "MIB" => 1.0,
        "G" | "GB" | "GIB" => 1024.0,
        "T" | "TB" | "TIB" => 1_048_576.0,
        _ => return Err(SizeError::Malformed),
    };
    let mib = number.parse::<f64>().map_err(|_| SizeError::Malformed)? * factor;
    // Too large is decided before wholeness: infinity and huge floats have no useful fraction.
    #[expect(clippy::cast_precision_loss, reason = "2^31 is exact in f64")]
    if mib > MAX_MIB as f64 {
        return Err(SizeError::TooLarge);
    }
    if mib.fract() != 0.0 {
        return Err(SizeError::NotWhole);
    }
    #[expect(
        clippy::cast_possible_truncation,
        reason = "whole and at most 2^31 - 1"
    )]
    Ok(mib as i64)
}

/// GiB, rounded up, of a size in MiB.
#[must_use]
pub fn gib_ceil(mib: i64) -> i64 {
    mib / 1024 + i64::from(mib % 1024 != 0)
}

/// `digits[.digits]`
fn is_decimal(text: &str) -> bool {
    let digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    match text.split_once('.') {
        Some((whole, fraction)) => digits(whole) && digits(fraction),
        None => digits(text),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn accepts_every_spelling() {
        for (text, mib) in [
            ("1M", 1),
            ("512MB", 512),
            ("512 MiB", 512),
            ("1.5GB", 1536),
            ("4 GiB", 4096),
            (" 2g\t", 2048),
            ("0.09765625TB", 102_400),
            ("100GB", 102_400),
            ("0.5g", 512),
            ("0M", 0),
            ("2147483647M", MAX_MIB),
            ("0001t", 1_048_576),
            ("1\t \tmib", 1),
        ] {
            assert_eq!(parse(text), Ok(mib), "{text:?}");
        }
    }

    #[test]
    fn refuses_with_the_reason() {
        use SizeError::{Malformed, NotWhole, TooLarge};
        for (text, error) in [
            ("", Malformed),
            ("512", Malformed),
            ("GB", Malformed),
            ("-1GB", Malformed),
            ("+1GB", Malformed),
            ("1.GB", Malformed),
            (".5GB", Malformed),
            ("1e3MB", Malformed),
            ("1 G B", Malformed),
            ("1KB", Malformed),
            ("1\u{a0}GB", Malformed),
            ("١GB", Malformed),
            ("0.25MB", NotWhole),
            ("1.0001GB", NotWhole),
            ("2147483648M", TooLarge),
            ("3000T", TooLarge),
        ] {
            assert_eq!(parse(text), Err(error), "{text:?}");
        }
        assert_eq!(parse(&format!("{}M", "9".repeat(400))), Err(TooLarge));
    }

    #[test]
    fn gib_rounds_up() {
        for (mib, gib) in [
            (0, 0),
            (1, 1),
            (512, 1),
            (1024, 1),
            (1025, 2),
            (102_400, 100),
        ] {
            assert_eq!(gib_ceil(mib), gib);
        }
    }

    proptest! {
        #[test]
        fn whole_mib_round_trips(mib in 0..=MAX_MIB) {
            prop_assert_eq!(parse(&format!("{mib}MiB")), Ok(mib));
        }

        #[test]
        fn whole_gib_round_trips(gib in 0..=MAX_MIB / 1024) {
            prop_assert_eq!(parse(&format!("{gib} g")), Ok(gib * 1024));
            prop_assert_eq!(gib_ceil(gib * 1024), gib);
        }

        #[test]
        fn never_panics(text in "\\PC*") {
            if let Ok(mib) = parse(&text) {
                prop_assert!((0..=MAX_MIB).contains(&mib));
            }
        }
    }
}
