//! Standard input that is a terminal is left as it was found.
//!
//! QEMU puts it into raw, non-blocking mode for the guest's console and restores
//! it when it ends by itself; when it is killed, nobody else would.

use std::io::stdin;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::termios::{SetArg, Termios, tcgetattr, tcsetattr};

/// The terminal's mode at the start; restored when dropped.
#[derive(Debug)]
pub(crate) struct TerminalMode(Option<(Termios, OFlag)>);

impl TerminalMode {
    /// Remembers the present mode. Does nothing without a terminal.
    pub(crate) fn remember() -> Self {
        let mode = tcgetattr(stdin()).and_then(|mode| {
            let flags = fcntl(stdin(), FcntlArg::F_GETFL)?;
            Ok((mode, OFlag::from_bits_retain(flags)))
        });
        Self(mode.ok())
    }
}

impl Drop for TerminalMode {
    fn drop(&mut self) {
        let Some((mode, flags)) = &self.0 else { return };
        let restored = tcsetattr(stdin(), SetArg::TCSANOW, mode)
            .and_then(|()| fcntl(stdin(), FcntlArg::F_SETFL(*flags)));
        if let Err(error) = restored {
            tracing::debug!(%error, "the terminal's mode was not restored");
        }
    }
}
