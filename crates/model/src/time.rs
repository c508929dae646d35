//! Time as the fleet stores it: microseconds since the Unix epoch, UTC.

use jiff::Timestamp;

/// This machine's clock, cut to microseconds so that a stored time reads back
/// equal to the one that was written.
pub fn now() -> Timestamp {
    truncate_to_micros(Timestamp::now())
}

/// Drops what is below a microsecond.
pub fn truncate_to_micros(at: Timestamp) -> Timestamp {
    // Every microsecond count taken from a timestamp is a valid timestamp.
    Timestamp::from_microsecond(at.as_microsecond()).unwrap_or(at)
}

/// Microseconds in a duration, saturating at `i64::MAX`.
pub fn to_micros(duration: std::time::Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use jiff::Unit;

    use super::*;

    #[test]
    fn now_has_no_sub_microsecond_part() {
        let at = now();
        assert_eq!(at.round(Unit::Microsecond).expect("in range"), at);
    }
}
