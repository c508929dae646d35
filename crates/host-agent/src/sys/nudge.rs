//! Setting the host's clock, for tests.
#![expect(unsafe_code, reason = "no crate wraps the call")]

use std::io;

/// Sets the clock of the machine, by the least that can be: a nanosecond.
pub(crate) fn nudge_clock() -> io::Result<()> {
    // SAFETY: the struct is plain numbers, for which zero is a value.
    let mut by: libc::timex = unsafe { std::mem::zeroed() };
    by.modes = libc::ADJ_SETOFFSET | libc::ADJ_NANO;
    by.time.tv_usec = 1;
    // SAFETY: it points to a struct of the kind that the kernel reads and writes.
    let state = unsafe { libc::adjtimex(&raw mut by) };
    if state < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
