//! Reading single keys while something else is going on.

use std::io;

use rustix::termios::LocalModes;

use crate::tty::Tty;

/// The keyboard, one key at a time, without echo. Signals stay with the terminal driver, so Ctrl-C
/// keeps working.
#[derive(Debug)]
pub(crate) struct Keys(Tty);

impl Keys {
    /// Takes the terminal that this process belongs to.
    pub(crate) fn open() -> io::Result<Self> {
        let one_by_one = |mode: &mut rustix::termios::Termios| {
            mode.local_modes
                .remove(LocalModes::ICANON | LocalModes::ECHO);
        };
        Tty::open(one_by_one).map(Self)
    }

    /// Resolves when `q` or Esc is pressed; never, when the terminal goes away.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing but keys that mean nothing.
    pub(crate) async fn quit(&self) {
        let mut keys = [0; 16];
        while let Ok(count @ 1..) = self.0.read(&mut keys).await {
            // A lone Esc is a key; Esc with more behind it is an arrow or a function key.
            if keys[..count].contains(&b'q') || keys[..count] == [0x1b] {
                return;
            }
        }
        std::future::pending::<()>().await;
    }
}
