//! The terminal of this process in another mode.
//!
//! Invariant: the terminal gets its mode back when this is dropped, on every way out that runs
//! destructors: an end, an error, a signal that is caught, a panic.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;

use rustix::fs::OFlags;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::net::unix::pipe::Receiver;

/// Rows and columns of a terminal that does not say.
const DEFAULT_SIZE: (u16, u16) = (24, 80);

/// See the module.
pub(crate) struct Tty {
    /// The terminal, opened anew: the non-blocking mode of its descriptor is ours alone, whereas
    /// the one on stdin is shared with the shell that started us.
    input: Receiver,
    saved: Termios,
}

impl std::fmt::Debug for Tty {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tty").finish_non_exhaustive()
    }
}

impl Tty {
    /// Takes the terminal that this process belongs to and changes its mode.
    pub(crate) fn open(change: impl FnOnce(&mut Termios)) -> io::Result<Self> {
        let flags = i32::try_from((OFlags::NONBLOCK | OFlags::NOCTTY).bits()).unwrap_or_default();
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(flags)
            .open("/dev/tty")?;
        let saved = tcgetattr(&file)?;
        let mut mode = saved.clone();
        change(&mut mode);
        // A terminal can be waited for like the pipe that this type is made for.
        let input = Receiver::from_file_unchecked(file)?;
        tcsetattr(&input, OptionalActions::Now, &mode)?;
        Ok(Self { input, saved })
    }

    /// Reads what was typed; 0 when the terminal is gone.
    ///
    /// # Cancel safety
    /// Nothing is read by a future that is dropped.
    pub(crate) async fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            self.input.readable().await?;
            match self.input.try_read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                outcome => return outcome,
            }
        }
    }
}

impl Drop for Tty {
    fn drop(&mut self) {
        tcsetattr(&self.input, OptionalActions::Drain, &self.saved).ok();
    }
}

/// Rows and columns of the terminal on stdout.
pub(crate) fn size() -> (u16, u16) {
    match tcgetwinsize(io::stdout()) {
        Ok(size) if size.ws_row > 0 && size.ws_col > 0 => (size.ws_row, size.ws_col),
        _ => DEFAULT_SIZE,
    }
}
