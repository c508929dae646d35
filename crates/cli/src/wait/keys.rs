//! Reading single keys while something else is going on.
//!
//! Invariant: the terminal gets its mode back when this is dropped, on every way out that runs
//! destructors. Signals stay with the terminal driver, so Ctrl-C keeps working.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;

use rustix::fs::OFlags;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use tokio::net::unix::pipe::Receiver;

/// The keyboard, one key at a time, without echo.
pub(crate) struct Keys {
    /// The terminal, opened anew: the non-blocking mode of its descriptor is ours alone, whereas
    /// the one on stdin is shared with the shell.
    terminal: Receiver,
    saved: Termios,
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keys").finish_non_exhaustive()
    }
}

impl Keys {
    /// Takes the terminal that this process belongs to.
    pub(crate) fn open() -> io::Result<Self> {
        let flags = i32::try_from((OFlags::NONBLOCK | OFlags::NOCTTY).bits()).unwrap_or_default();
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(flags)
            .open("/dev/tty")?;
        let saved = tcgetattr(&file)?;
        let mut raw = saved.clone();
        raw.local_modes
            .remove(LocalModes::ICANON | LocalModes::ECHO);
        // A terminal can be waited for like the pipe that this type is made for.
        let terminal = Receiver::from_file_unchecked(file)?;
        tcsetattr(&terminal, OptionalActions::Now, &raw)?;
        Ok(Self { terminal, saved })
    }

    /// Resolves when `q` or Esc is pressed; never, when the terminal goes away.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing but keys that mean nothing.
    pub(crate) async fn quit(&self) {
        while self.terminal.readable().await.is_ok() {
            let mut keys = [0; 16];
            match self.terminal.try_read(&mut keys) {
                // A lone Esc is a key; Esc with more behind it is an arrow or a function key.
                Ok(count) if keys[..count].contains(&b'q') || keys[..count] == [0x1b] => return,
                Ok(0) => break,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => break,
            }
        }
        std::future::pending::<()>().await;
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        tcsetattr(&self.terminal, OptionalActions::Drain, &self.saved).ok();
    }
}
