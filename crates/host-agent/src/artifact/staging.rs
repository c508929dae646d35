//! What is arriving: written and hashed by a thread of its own, under a name that nobody looks at.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use sha2::{Digest as _, Sha256};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::error::TransferError;
use crate::disk::overlay::MAX_GIB;
use crate::disk::sparse_form::{UnpackError, Unpacker};
use crate::file_error::{FileError, failed};

const PREFIX: &str = "pull-";
const SUFFIX: &str = ".tmp";
/// Chunks that may wait for the disk.
const WAITING: usize = 4;
/// Base images are not written to a block at a time that is all zero.
const HOLE: usize = 64 * 1024;

/// Removes what earlier agents left in `dir`.
pub(super) fn sweep(dir: &Path) -> Result<(), FileError> {
    let entries = match fs::read_dir(dir) {
        // It is made when it is needed.
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(failed("read", dir))?,
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with(PREFIX) && name.ends_with(SUFFIX) {
            let path = entry.path();
            fs::remove_file(&path).map_err(failed("remove", &path))?;
        }
    }
    Ok(())
}

/// How what arrives becomes a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// A disk in its sparse form.
    Disk,
    /// A base image as it is.
    Image,
}

impl Form {
    /// In messages.
    pub(super) fn what(self) -> &'static str {
        match self {
            Self::Disk => "the disk",
            Self::Image => "the base image",
        }
    }
}

/// A file that goes unless it is renamed.
#[derive(Debug)]
pub(super) struct Partial(pub(super) PathBuf);

impl Drop for Partial {
    fn drop(&mut self) {
        match fs::remove_file(&self.0) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                tracing::warn!(file = %self.0.display(), %error, "half an artifact not removed");
            }
            _ => {}
        }
    }
}

/// A file that is whole and durable, and its digest.
#[derive(Debug)]
pub(super) struct Written {
    pub(super) file: Partial,
    pub(super) digest: String,
    pub(super) length: u64,
}

/// An artifact that is being written. Dropping it removes the file.
#[derive(Debug)]
pub(super) struct Staging {
    sender: mpsc::Sender<Bytes>,
    /// Taken once it has ended.
    writer: Option<JoinHandle<Result<Written, TransferError>>>,
    pub(super) received: u64,
    total: u64,
}

impl Staging {
    /// Begins a file in `dir` for `total` bytes that are to arrive.
    pub(super) fn begin(dir: &Path, form: Form, total: u64) -> Self {
        let name = format!("{PREFIX}{:032x}{SUFFIX}", rand::random::<u128>());
        let path = dir.join(name);
        let (sender, receiver) = mpsc::channel(WAITING);
        let writer = tokio::task::spawn_blocking(move || write(path, form, receiver));
        Self {
            sender,
            writer: Some(writer),
            received: 0,
            total,
        }
    }

    /// Takes the next bytes.
    pub(super) async fn push(&mut self, bytes: Bytes) -> Result<(), TransferError> {
        let length = bytes.len() as u64;
        if self.sender.send(bytes).await.is_err() {
            // The writer has ended, and says why.
            let ended = self.ended().await;
            return Err(ended.err().unwrap_or(TransferError::Lost));
        }
        self.received += length;
        Ok(())
    }

    /// Waits until all of it is durable.
    pub(super) async fn finish(mut self) -> Result<Written, TransferError> {
        self.close();
        self.ended().await
    }

    /// Waits until nothing of it is left.
    pub(super) async fn discard(mut self) {
        self.close();
        drop(self.ended().await);
    }

    /// Tells the writer that nothing follows.
    fn close(&mut self) {
        (self.sender, _) = mpsc::channel(1);
    }

    async fn ended(&mut self) -> Result<Written, TransferError> {
        let writer = self.writer.take().ok_or(TransferError::Lost)?;
        let written = writer.await.map_err(|_| TransferError::Lost)?;
        written.map_err(|error| explain(error, self.missing_mib()))
    }

    fn missing_mib(&self) -> u64 {
        self.total
            .saturating_sub(self.received)
            .div_ceil(1 << 20)
            .max(1)
    }
}

/// Tells a full file system from other failures.
fn explain(error: TransferError, missing_mib: u64) -> TransferError {
    let kind = match &error {
        TransferError::Form(UnpackError::Io(e)) => e.kind(),
        TransferError::File(e) => e.source.kind(),
        _ => return error,
    };
    match kind {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => TransferError::Full { missing_mib },
        _ => error,
    }
}

fn write(
    path: PathBuf,
    form: Form,
    mut receiver: mpsc::Receiver<Bytes>,
) -> Result<Written, TransferError> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&path);
    let file = file.map_err(failed("create", &path))?;
    let partial = Partial(path);
    let path = &partial.0;
    let mut hash = Sha256::new();
    let (file, length) = match form {
        Form::Disk => {
            let mut unpacker = Unpacker::new(file, u64::from(MAX_GIB) << 30);
            while let Some(bytes) = receiver.blocking_recv() {
                hash.update(&bytes);
                unpacker.push(&bytes)?;
            }
            unpacker.finish()?
        }
        Form::Image => {
            let mut at = 0;
            while let Some(bytes) = receiver.blocking_recv() {
                hash.update(&bytes);
                write_image(&file, &bytes, at).map_err(failed("write", path))?;
                at += bytes.len() as u64;
            }
            file.set_len(at).map_err(failed("write", path))?;
            // VMMs read it under users of their own.
            let mode = fs::Permissions::from_mode(0o644);
            file.set_permissions(mode).map_err(failed("write", path))?;
            (file, at)
        }
    };
    file.sync_all().map_err(failed("sync", path))?;
    let digest = hex::encode(hash.finalize());
    Ok(Written {
        file: partial,
        digest,
        length,
    })
}

/// Writes what is not all zero.
fn write_image(file: &File, bytes: &[u8], mut at: u64) -> io::Result<()> {
    for part in bytes.chunks(HOLE) {
        if part.iter().any(|byte| *byte != 0) {
            file.write_all_at(part, at)?;
        }
        at += part.len() as u64;
    }
    Ok(())
}
