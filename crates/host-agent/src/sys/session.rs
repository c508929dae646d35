//! Starting a child in a session of its own.
#![expect(
    unsafe_code,
    reason = "pre_exec is unsafe; the closure makes one async-signal-safe call"
)]

use std::os::unix::process::CommandExt as _;
use std::process::Command;

/// Makes the child the leader of a new session and process group.
///
/// A VMM must not share the agent's group: signals for the agent (a terminal's ^C, a supervisor's
/// group kill) would end it, and its own helpers are killed by its group.
pub(crate) fn in_own_session(command: &mut Command) -> &mut Command {
    // SAFETY: between fork and exec only async-signal-safe functions may run; setsid is one, and the
    // closure neither allocates nor takes a lock.
    unsafe {
        command.pre_exec(|| {
            rustix::process::setsid()?;
            Ok(())
        })
    }
}
