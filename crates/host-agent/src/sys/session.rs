//! Starting a child in a session of its own.
#![expect(
    unsafe_code,
    reason = "pre_exec is unsafe; the closure makes async-signal-safe calls only"
)]

use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

/// Makes the child the leader of a new session and process group, and lets it join control groups
/// first, by their `cgroup.procs` files.
///
/// A VMM must not share the agent's group: signals for the agent (a terminal's ^C, a supervisor's
/// group kill) would end it, and its own helpers are killed by its group.
pub(crate) fn in_own_session(command: &mut Command, groups: Vec<OwnedFd>) -> &mut Command {
    // SAFETY: between fork and exec only async-signal-safe functions may run; write and setsid are,
    // and the closure neither allocates nor takes a lock.
    unsafe {
        command.pre_exec(move || {
            for group in &groups {
                // The kernel's name for whoever writes it.
                rustix::io::write(group, b"0")?;
            }
            rustix::process::setsid()?;
            Ok(())
        })
    }
}
