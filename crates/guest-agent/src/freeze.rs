//! Holding the disk still while the host copies it.
//!
//! The file system of the VM's own disk is frozen: everything is written back and nobody can write
//! until it is thawed. A thread of its own holds it, and thaws at its deadline whatever happens to
//! the host, the channel or the runtime. Reading goes on meanwhile, and so does this agent, which
//! lives in memory.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::sync::mpsc;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use thiserror::Error;

use crate::sys;

/// A mount of the file system of the VM's own disk, and the disk.
const MOUNT: &str = "/var/lib/containers";
const DEVICE: &str = "/dev/vdb";

/// Longest freeze, whatever the host asks for.
const MAX_HOLD: Duration = Duration::from_secs(120);

/// Why the disk is not frozen.
#[derive(Debug, Error)]
pub(crate) enum FreezeError {
    /// The mount shows another file system.
    #[error("the disk's file system is not what is mounted at {MOUNT}")]
    Hidden,
    /// The kernel refused.
    #[error("the disk cannot be {0}")]
    Refused(&'static str, #[source] io::Error),
    /// Somebody else holds it.
    #[error("the disk is frozen already")]
    Frozen,
}

/// The one freeze that there can be.
#[derive(Debug, Default)]
pub(crate) struct Freezer {
    held: Mutex<Option<Hold>>,
}

#[derive(Debug)]
struct Hold {
    /// Dropping it ends the freeze.
    release: mpsc::Sender<()>,
    thread: std::thread::JoinHandle<bool>,
}

impl Freezer {
    /// Writes everything back and, for a `hold` above 0, freezes. Blocks.
    ///
    /// # Errors
    /// It is frozen already, or the kernel refuses.
    pub(crate) fn freeze(&self, hold: Duration) -> Result<bool, FreezeError> {
        let mut held = self.lock();
        if held.as_ref().is_some_and(|hold| !hold.thread.is_finished()) {
            return Err(FreezeError::Frozen);
        }
        let disk = disk()?;
        // Most is written while others still may, so that the freeze itself is short.
        rustix::fs::syncfs(&disk).map_err(|e| FreezeError::Refused("synced", e.into()))?;
        if hold.is_zero() {
            return Ok(false);
        }
        let refused = |e| FreezeError::Refused("frozen", e);
        let (release, released) = mpsc::channel();
        let (tell, told) = mpsc::channel();
        let hold = hold.min(MAX_HOLD);
        let thread = std::thread::Builder::new()
            .name("freeze".to_owned())
            .stack_size(64 * 1024)
            .spawn(move || keep_frozen(&disk, hold, &tell, &released));
        let thread = thread.map_err(refused)?;
        // The sender is gone without a word only if the thread is.
        told.recv()
            .unwrap_or(Err(io::ErrorKind::Interrupted.into()))
            .map_err(refused)?;
        *held = Some(Hold { release, thread });
        Ok(true)
    }

    /// Ends the freeze. Returns whether it lasted until now. Blocks for a moment.
    pub(crate) fn thaw(&self) -> bool {
        let Some(hold) = self.lock().take() else {
            return false;
        };
        drop(hold.release);
        hold.thread.join().unwrap_or(false)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Hold>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Freezes, says so, waits, thaws. Returns whether it was told to thaw before its time was over.
fn keep_frozen(
    disk: &File,
    hold: Duration,
    tell: &mpsc::Sender<io::Result<()>>,
    released: &mpsc::Receiver<()>,
) -> bool {
    let frozen = sys::freeze(disk);
    let go_on = frozen.is_ok();
    if tell.send(frozen).is_err() || !go_on {
        return false;
    }
    let in_time = released.recv_timeout(hold) != Err(mpsc::RecvTimeoutError::Timeout);
    // Nothing is better than trying again: a disk that stays frozen is the end of the guest.
    while let Err(error) = sys::thaw(disk) {
        if error.raw_os_error() == Some(rustix::io::Errno::INVAL.raw_os_error()) {
            // Somebody in the guest has thawed it.
            return false;
        }
        tracing::error!(%error, "the disk does not thaw");
        std::thread::sleep(Duration::from_millis(100));
    }
    in_time
}

fn disk() -> Result<File, FreezeError> {
    let refused = |e| FreezeError::Refused("found", e);
    let mount = File::open(MOUNT).map_err(refused)?;
    let device = std::fs::metadata(DEVICE).map_err(refused)?.rdev();
    if mount.metadata().map_err(refused)?.dev() != device {
        return Err(FreezeError::Hidden);
    }
    Ok(mount)
}
