//! A pseudo-terminal: the command holds one end, its caller the other.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;

use rustix::fs::OFlags;
use tokio::io::unix::AsyncFd;

use crate::sys;

/// Size where the caller names none.
const DEFAULT_SIZE: (u16, u16) = (24, 80);

/// The caller's end.
#[derive(Debug)]
pub(super) struct Terminal {
    master: AsyncFd<OwnedFd>,
}

/// The command's end, once for each standard stream.
#[derive(Debug)]
pub(super) struct Side(File);

impl Side {
    pub(super) fn descriptor(&self) -> io::Result<OwnedFd> {
        Ok(self.0.try_clone()?.into())
    }
}

impl Terminal {
    /// Makes one of `rows` and `cols`. Must be called within the runtime.
    ///
    /// # Errors
    /// The guest has no more terminals.
    pub(super) fn open(rows: Option<u16>, cols: Option<u16>) -> io::Result<(Self, Side)> {
        let flags = OFlags::NOCTTY | OFlags::CLOEXEC;
        let flags = flags.bits().cast_signed();
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        let nonblocking = flags | OFlags::NONBLOCK.bits().cast_signed();
        let master = options.custom_flags(nonblocking).open("/dev/ptmx")?;
        let number = sys::unlock_terminal(&master)?;
        let side = options
            .custom_flags(flags)
            .open(format!("/dev/pts/{number}"))?;
        let terminal = Self {
            master: sys::watch_fd(master.into())?,
        };
        terminal.resize(
            rows.unwrap_or(DEFAULT_SIZE.0),
            cols.unwrap_or(DEFAULT_SIZE.1),
        )?;
        Ok((terminal, Side(side)))
    }

    /// Gives it another size; the command is told.
    pub(super) fn resize(&self, rows: u16, cols: u16) -> io::Result<()> {
        sys::set_terminal_size(self.master.get_ref(), rows, cols)
    }

    /// Output of the command; `None` when nobody holds the other end any more.
    pub(super) async fn read(&self, buffer: &mut [u8]) -> Option<usize> {
        loop {
            let mut ready = self.master.readable().await.ok()?;
            match ready.try_io(|fd| Ok(rustix::io::read(fd, &mut *buffer)?)) {
                // The kernel answers EIO when the other end is closed by all.
                Ok(Ok(0) | Err(_)) => return None,
                Ok(Ok(count)) => return Some(count),
                Err(_not_ready) => {}
            }
        }
    }

    /// Input for the command.
    pub(super) async fn write(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let mut ready = self.master.writable().await?;
            match ready.try_io(|fd| Ok(rustix::io::write(fd, bytes)?)) {
                Ok(written) => bytes = &bytes[written?..],
                Err(_not_ready) => {}
            }
        }
        Ok(())
    }
}

/// The login shell of root.
pub(super) fn login_shell() -> String {
    let mut accounts = String::new();
    let read = File::open("/etc/passwd")
        .and_then(|file| file.take(1024 * 1024).read_to_string(&mut accounts));
    let shell = accounts
        .lines()
        .find_map(|line| line.strip_prefix("root:")?.rsplit(':').next())
        .filter(|shell| read.is_ok() && shell.starts_with('/'));
    shell.unwrap_or("/bin/sh").to_owned()
}
