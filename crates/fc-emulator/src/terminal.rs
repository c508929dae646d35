//! Standard input that is a terminal is left as it was found.
//!
//! QEMU puts it into raw mode for the guest's console and restores it when it
//! ends by itself; when it is killed, nobody else would.

use std::io::stdin;

use nix::sys::termios::{SetArg, Termios, tcgetattr, tcsetattr};

/// The terminal's mode at the start; restored when dropped.
#[derive(Debug)]
pub(crate) struct TerminalMode(Option<Termios>);

impl TerminalMode {
    /// Remembers the present mode. Does nothing without a terminal.
    pub(crate) fn remember() -> Self {
        Self(tcgetattr(stdin()).ok())
    }
}

impl Drop for TerminalMode {
    fn drop(&mut self) {
        if let Some(mode) = &self.0
            && let Err(error) = tcsetattr(stdin(), SetArg::TCSANOW, mode)
        {
            tracing::debug!(%error, "the terminal's mode was not restored");
        }
    }
}
