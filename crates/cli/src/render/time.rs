//! Times, ages and durations, the way every command prints them.

use jiff::{Timestamp, tz::TimeZone};

/// `YYYY-MM-DD HH:MM` in the user's time zone; `-` for the zero time.
pub(crate) fn stamp(time: Timestamp) -> String {
    stamp_in(time, TimeZone::system())
}

fn stamp_in(time: Timestamp, zone: TimeZone) -> String {
    if is_zero(time) {
        return "-".to_owned();
    }
    time.to_zoned_datetime(zone)
        .strftime("%Y-%m-%d %H:%M")
        .to_string()
}

/// `just now`, `Nm`, `Nh`, `Nd`; `-` for the zero time. A clock that is ahead of ours is `just now`.
pub(crate) fn age(time: Timestamp, now: Timestamp) -> String {
    if is_zero(time) {
        return "-".to_owned();
    }
    let seconds = now.as_second() - time.as_second();
    match seconds {
        ..60 => "just now".to_owned(),
        60..3600 => format!("{}m", seconds / 60),
        3600..86400 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86400),
    }
}

/// Unset times arrive as the Unix epoch or as year 1.
fn is_zero(time: Timestamp) -> bool {
    time.as_second() <= 0
}

/// `-` for nothing, `%.1fs` under a minute, else `XmYYs`.
pub(crate) fn duration_ms(milliseconds: u64) -> String {
    match milliseconds {
        0 => "-".to_owned(),
        // Tenths, rounded half up; 59.95 s and more would round to a minute.
        1..59_950 => {
            let tenths = (milliseconds + 50) / 100;
            format!("{}.{}s", tenths / 10, tenths % 10)
        }
        _ => {
            let seconds = (milliseconds + 500) / 1000;
            format!("{}m{:02}s", seconds / 60, seconds % 60)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_and_ages() {
        let time: Timestamp = "2026-01-15T10:00:30Z".parse().unwrap();
        assert_eq!(stamp_in(time, TimeZone::UTC), "2026-01-15 10:00");
        assert_eq!(stamp(Timestamp::UNIX_EPOCH), "-");
        let after = |seconds: i64| {
            age(
                time,
                Timestamp::from_second(time.as_second() + seconds).unwrap(),
            )
        };
        assert_eq!(after(-5), "just now");
        assert_eq!(after(59), "just now");
        assert_eq!(after(60), "1m");
        assert_eq!(after(3599), "59m");
        assert_eq!(after(3600), "1h");
        assert_eq!(after(86400 * 3), "3d");
        assert_eq!(age(Timestamp::UNIX_EPOCH, time), "-");
    }

    #[test]
    fn durations() {
        assert_eq!(duration_ms(0), "-");
        assert_eq!(duration_ms(40), "0.0s");
        assert_eq!(duration_ms(1_250), "1.3s");
        assert_eq!(duration_ms(59_949), "59.9s");
        assert_eq!(duration_ms(59_950), "1m00s");
        assert_eq!(duration_ms(125_000), "2m05s");
    }
}
