//! Noticing that the host's clock was set, or that the host slept.

use std::io;
use std::os::fd::OwnedFd;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tokio::io::unix::AsyncFd;

use crate::sys;

/// A time that never comes, in seconds since 1970.
const NEVER: i64 = 1 << 40;

/// Watches the time of day.
#[derive(Debug)]
pub(crate) struct ClockSet {
    timer: AsyncFd<OwnedFd>,
}

impl ClockSet {
    /// Watches from now on.
    ///
    /// # Errors
    /// The kernel has no such timers.
    pub(crate) fn watch() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Realtime, flags)?;
        let zero = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let never = Itimerspec {
            it_interval: zero,
            it_value: Timespec {
                tv_sec: NEVER,
                ..zero
            },
        };
        // A timer for a time of day is cancelled by whatever changes how far off that is.
        let flags = TimerfdTimerFlags::ABSTIME | TimerfdTimerFlags::CANCEL_ON_SET;
        timerfd_settime(&timer, flags, &never)?;
        let timer = sys::readable(timer)?;
        Ok(Self { timer })
    }

    /// Completes when the clock was set since the last time.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub(crate) async fn next(&self) -> io::Result<()> {
        loop {
            let mut ready = self.timer.readable().await?;
            let read = ready.try_io(|timer| {
                let read = rustix::io::read(timer, &mut [0u8; 8]);
                read.map_err(io::Error::from)
            });
            match read {
                // Cancelled: as far as the timer goes it is armed as before.
                Ok(Err(error)) if error.raw_os_error() == Some(libc::ECANCELED) => return Ok(()),
                Ok(Err(error)) => return Err(error),
                Ok(Ok(_)) | Err(_) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::skip;
    use std::time::Duration;

    #[tokio::test]
    async fn a_clock_that_is_set_is_noticed_each_time() {
        let clock = ClockSet::watch().unwrap();
        let quiet = tokio::time::timeout(Duration::from_millis(50), clock.next()).await;
        assert!(quiet.is_err(), "nobody has set it: {quiet:?}");
        for _ in 0..2 {
            if let Err(error) = sys::nudge_clock() {
                return skip(&format!("the clock cannot be set here: {error}"));
            }
            let seen = tokio::time::timeout(Duration::from_secs(10), clock.next()).await;
            seen.expect("it was not noticed").unwrap();
        }
    }
}
