//! Waiting for files that another program makes.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use tokio::io::unix::AsyncFd;

use crate::sys::readable;

/// A directory in which files appear.
#[derive(Debug)]
pub(crate) struct DirWatch {
    events: AsyncFd<OwnedFd>,
}

impl DirWatch {
    /// Watches `dir` from now on. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// There is no such directory, or this user has as many watches as it may have.
    pub(crate) fn of(dir: &Path) -> io::Result<Self> {
        let events = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        let appears = WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::ONLYDIR;
        inotify::add_watch(&events, dir, appears)?;
        Ok(Self {
            events: readable(events)?,
        })
    }

    /// Returns when something has appeared since it was watched, or since the last call.
    ///
    /// # Cancel safety
    /// What appears while nobody waits is told to the next call.
    ///
    /// # Errors
    /// The watch is broken.
    pub(crate) async fn changed(&self) -> io::Result<()> {
        // What has appeared is of no interest: the caller looks for what it needs.
        let mut told = [0; 4096];
        loop {
            let mut ready = self.events.readable().await?;
            let read = ready.try_io(|events| Ok(rustix::io::read(events, &mut told)?));
            if let Ok(read) = read {
                return read.map(drop);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt as _;

    #[tokio::test]
    async fn what_appears_is_told_once_and_nothing_is_missed() {
        let dir = tempfile::tempdir().unwrap();
        let watch = DirWatch::of(dir.path()).unwrap();
        assert!(watch.changed().now_or_never().is_none());
        std::fs::write(dir.path().join("one"), b"").unwrap();
        watch.changed().await.unwrap();
        assert!(watch.changed().now_or_never().is_none());
        // Moved there, which is how files appear that are complete.
        let other = tempfile::tempdir_in(dir.path().parent().unwrap()).unwrap();
        std::fs::write(other.path().join("two"), b"").unwrap();
        std::fs::rename(other.path().join("two"), dir.path().join("two")).unwrap();
        watch.changed().await.unwrap();
        assert!(DirWatch::of(&dir.path().join("none")).is_err());
    }
}
