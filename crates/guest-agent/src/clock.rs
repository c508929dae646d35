//! The guest's clock, set by its host.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, Timespec};
use thiserror::Error;

/// Why the clock was not set.
#[derive(Debug, Error)]
pub(crate) enum ClockError {
    /// No clock can show this.
    #[error("unix_micros {0} is not a time after 1970")]
    Invalid(i64),
    /// The kernel refused.
    #[error("the guest's clock cannot be set")]
    Refused(#[source] std::io::Error),
}

/// Sets the clock; returns by how many microseconds it moved. One that is off by no more than
/// `tolerance` microseconds is left as it is: whoever measures by it is not disturbed.
///
/// # Errors
/// A time before 1970, or the kernel refuses.
pub(crate) fn set(unix_micros: i64, tolerance: u64) -> Result<i64, ClockError> {
    let invalid = ClockError::Invalid(unix_micros);
    let Ok(micros) = u64::try_from(unix_micros) else {
        return Err(invalid);
    };
    let time = Duration::from_micros(micros);
    let Ok(spec) = Timespec::try_from(time) else {
        return Err(invalid);
    };
    let before = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let before = i64::try_from(before.as_micros()).unwrap_or(i64::MAX);
    let offset = unix_micros.saturating_sub(before);
    if offset.unsigned_abs() <= tolerance {
        return Ok(0);
    }
    rustix::time::clock_settime(ClockId::Realtime, spec)
        .map_err(|e| ClockError::Refused(e.into()))?;
    Ok(offset)
}
