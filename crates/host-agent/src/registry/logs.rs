//! What VMs print: the console of one that is there, the log of its guest agent, and what is left of
//! creates that failed.

use std::collections::VecDeque;
use std::io::{self, SeekFrom};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use fuse_wire_host::logs::{FailedCreate, MAX_LOG_BYTES};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use rustix::fs::inotify;
use thiserror::Error;
use tokio::fs::File;
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _};
use tokio_util::sync::CancellationToken;

use super::error::{LeaseError, VmError};
use super::lease::Lease;
use super::vm::Vm;
use crate::file_error::{FileError, failed};
use crate::sys;
use crate::vmm::process::rotated;

/// Bytes handed over at a time.
const CHUNK: usize = 64 * 1024;
/// Failed creates that are remembered.
const MAX_FAILURES: usize = 16;

/// A log that cannot be read.
#[derive(Debug, Error)]
pub enum LogError {
    /// No such VM.
    #[error(transparent)]
    Vm(#[from] VmError),
    /// Its guest cannot be asked.
    #[error(transparent)]
    Lease(#[from] LeaseError),
    /// Its file cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// Its VMM was not started yet.
    #[error("vm {id} has not printed anything yet: its VMM is being started")]
    NotYet {
        /// Its id.
        id: String,
    },
}

/// A VM's console.
#[derive(Debug)]
pub(crate) struct Console {
    vm: Arc<Vm>,
    shutdown: CancellationToken,
    file: File,
    at: u64,
    /// Told about what is written; only a follower has it.
    watch: Option<AsyncFd<OwnedFd>>,
    /// The end of what was moved away when the log became too long.
    older: Vec<u8>,
    over: bool,
}

impl Console {
    pub(super) async fn open(
        vm: Arc<Vm>,
        follow: bool,
        shutdown: CancellationToken,
    ) -> Result<Self, LogError> {
        let path = vm.log().to_owned();
        let mut file = match File::open(&path).await {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                return Err(LogError::NotYet { id: vm.id.clone() });
            }
            Err(e) => return Err(failed("read", &path)(e).into()),
        };
        // Before the length is asked for, so that nothing is missed.
        let watch = if follow { Some(watch(&path)) } else { None };
        let watch = watch.transpose().map_err(failed("watch", &path))?;
        let begin = async {
            let length = file.metadata().await?.len();
            let at = length.saturating_sub(MAX_LOG_BYTES as u64);
            file.seek(SeekFrom::Start(at)).await?;
            let room = MAX_LOG_BYTES as u64 - (length - at);
            Ok((at, older(&rotated(&path), room).await?))
        };
        let (at, older) = begin.await.map_err(failed("read", &path))?;
        Ok(Self {
            vm,
            shutdown,
            file,
            at,
            watch,
            older,
            over: false,
        })
    }

    /// The next bytes; `None` when there are no more.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) async fn next(&mut self) -> io::Result<Option<Bytes>> {
        if !self.older.is_empty() {
            return Ok(Some(std::mem::take(&mut self.older).into()));
        }
        loop {
            if self.file.metadata().await?.len() < self.at {
                // Cut to size meanwhile.
                self.at = 0;
                self.file.rewind().await?;
            }
            let mut chunk = vec![0; CHUNK];
            let count = self.file.read(&mut chunk).await?;
            if count > 0 {
                self.at += count as u64;
                chunk.truncate(count);
                return Ok(Some(chunk.into()));
            }
            let Some(watch) = self.watch.as_ref().filter(|_| !self.over) else {
                return Ok(None);
            };
            tokio::select! {
                changed = changed(watch) => changed?,
                // What was written last is still read.
                () = self.vm.ended() => self.over = true,
                () = self.shutdown.cancelled() => self.over = true,
            }
        }
    }
}

/// The last `room` bytes of a file that need not be there.
async fn older(path: &Path, room: u64) -> io::Result<Vec<u8>> {
    let mut file = match File::open(path).await {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(e),
    };
    let length = file.metadata().await?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(room)))
        .await?;
    let mut tail = Vec::new();
    file.take(room).read_to_end(&mut tail).await?;
    Ok(tail)
}

fn watch(path: &Path) -> io::Result<AsyncFd<OwnedFd>> {
    let flags = inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC;
    let fd = inotify::init(flags)?;
    inotify::add_watch(&fd, path, inotify::WatchFlags::MODIFY)?;
    sys::readable(fd)
}

/// Resolves when something was written since the last time.
async fn changed(watch: &AsyncFd<OwnedFd>) -> io::Result<()> {
    let mut ready = watch.readable().await?;
    // What the events say does not matter, only that they are gone.
    let mut events = [0; 1024];
    while rustix::io::read(watch.get_ref(), &mut events).is_ok_and(|count| count > 0) {}
    ready.clear_ready();
    Ok(())
}

/// The log of a guest agent, from its guest.
#[derive(Debug)]
pub(crate) struct AgentLog {
    lease: Lease,
    shutdown: CancellationToken,
    body: Incoming,
}

impl AgentLog {
    pub(super) async fn open(
        lease: Lease,
        follow: bool,
        shutdown: CancellationToken,
    ) -> Result<Self, LogError> {
        let body = lease.log(follow).await?;
        Ok(Self {
            lease,
            shutdown,
            body,
        })
    }

    /// The next bytes; `None` when there are no more, or the guest is gone.
    ///
    /// # Errors
    /// The channel to the guest breaks.
    pub(crate) async fn next(&mut self) -> io::Result<Option<Bytes>> {
        loop {
            let frame = tokio::select! {
                frame = self.body.frame() => frame,
                () = self.lease.over() => None,
                () = self.shutdown.cancelled() => None,
            };
            match frame.transpose().map_err(io::Error::other)? {
                None => return Ok(None),
                Some(frame) => {
                    if let Ok(bytes) = frame.into_data() {
                        return Ok(Some(bytes));
                    }
                }
            }
        }
    }
}

/// What is remembered of creates that failed: everything else of them is undone.
#[derive(Debug, Default)]
pub(super) struct Failures {
    last: Mutex<VecDeque<FailedCreate>>,
}

impl Failures {
    /// Remembers one, in the place of an earlier one of the same name.
    pub(super) fn note(&self, failure: FailedCreate) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.retain(|known| known.vm_id != failure.vm_id);
        if last.len() == MAX_FAILURES {
            last.pop_front();
        }
        last.push_back(failure);
    }

    pub(super) fn get(&self, id: &str) -> Option<FailedCreate> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.iter().find(|known| known.vm_id == id).cloned()
    }
}

/// The end of a console as text; empty when there is none.
pub(super) async fn console_tail(log: PathBuf) -> String {
    let tail = older(&log, MAX_LOG_BYTES as u64).await.unwrap_or_default();
    String::from_utf8_lossy(&tail).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(id: usize, error: &str) -> FailedCreate {
        FailedCreate {
            vm_id: format!("vm-{id}"),
            error: error.to_owned(),
            ..FailedCreate::default()
        }
    }

    #[test]
    fn the_newest_failures_are_remembered_once_by_name() {
        let failures = Failures::default();
        failures.note(failure(0, "first"));
        for id in 1..MAX_FAILURES {
            failures.note(failure(id, "x"));
        }
        failures.note(failure(0, "second"));
        assert_eq!(failures.get("vm-0").unwrap().error, "second");
        failures.note(failure(MAX_FAILURES, "x"));
        assert!(failures.get("vm-1").is_none(), "the oldest goes");
        assert!(failures.get("vm-0").is_some());
        assert!(failures.get("vm-2").is_some());
    }
}
