//! Copies of disks that carry a digest.
//!
//! The digest is taken of the *sparse form* of a file ([`super::sparse_form`]), so a disk of 10 GiB
//! with 50 MB in it is 50 MB to hash. The copy is hashed while it is written, and has a hole wherever
//! a block is all zero.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::ioctl_ficlone;
use sha2::{Digest as _, Sha256};
use thiserror::Error;

use super::sparse_form::{BLOCK, each_run, header};

/// A finished copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sealed {
    /// Lower-case hex SHA-256 of the sparse form.
    pub digest: String,
    /// Bytes written; none where the file system shares blocks.
    pub copied: u64,
    /// Bytes that the copy takes in its file system.
    pub stored: u64,
    /// Blocks of the sparse form.
    pub blocks: u64,
}

/// A copy that was not made.
#[derive(Debug, Error)]
pub enum SealError {
    /// It was to end early.
    #[error("the copy was cancelled")]
    Cancelled,
    /// The file system is full.
    #[error(
        "the disk of the host filled up during the copy: {} MiB more were needed",
        .missing.div_ceil(1024 * 1024)
    )]
    Full {
        /// Bytes that there was no room for, at most.
        missing: u64,
    },
    /// Reading or writing failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Copies `from` to the new file `to` (mode 0600), durably. `on_held` is called as soon as `from`
/// may change again: after the blocks are shared, else at the end.
///
/// # Errors
/// `to` exists, `cancel` was set, or reading or writing fails; `to` may then be incomplete.
pub fn copy(
    from: &Path,
    to: &Path,
    cancel: &AtomicBool,
    on_held: impl FnOnce(),
) -> Result<Sealed, SealError> {
    let source = File::open(from)?;
    let target = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(to)?;
    let shared = ioctl_ficlone(&target, &source).is_ok();
    let mut sealed = if shared {
        on_held();
        pass(&target, None, cancel)?
    } else {
        let done = pass(&source, Some(&target), cancel)?;
        on_held();
        done
    };
    target.sync_all()?;
    sealed.stored = target.metadata()?.blocks() * 512;
    Ok(sealed)
}

/// Hashes `source` and writes it to `target`.
fn pass(source: &File, target: Option<&File>, cancel: &AtomicBool) -> Result<Sealed, SealError> {
    let length = source.metadata()?.len();
    if let Some(target) = target {
        target.set_len(length)?;
    }
    let mut hash = Sha256::new();
    hash.update(header(length));
    let (mut blocks, mut copied) = (0, 0);
    each_run(source, |offset, run| {
        if cancel.load(Ordering::Relaxed) {
            return Err(SealError::Cancelled);
        }
        for (number, block) in run.chunks(BLOCK).enumerate() {
            hash.update((offset + (number * BLOCK) as u64).to_be_bytes());
            hash.update(block);
            blocks += 1;
        }
        let Some(target) = target else { return Ok(()) };
        // The fill of the last block is not part of the file.
        let room = usize::try_from(length.saturating_sub(offset)).unwrap_or(usize::MAX);
        let run = &run[..run.len().min(room)];
        let written = target.write_all_at(run, offset);
        written.map_err(|e| full(e, source, copied))?;
        copied += run.len() as u64;
        Ok(())
    })?;
    Ok(Sealed {
        digest: hex::encode(hash.finalize()),
        copied,
        stored: 0,
        blocks,
    })
}

/// Tells a full file system from other failures.
fn full(error: io::Error, source: &File, copied: u64) -> SealError {
    let is_full = matches!(
        error.kind(),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded
    );
    match source.metadata() {
        Ok(meta) if is_full => SealError::Full {
            missing: (meta.blocks() * 512).saturating_sub(copied).max(1),
        },
        _ => SealError::Io(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::fs;

    static GO_ON: AtomicBool = AtomicBool::new(false);

    fn sealed(from: &Path, to: &Path) -> Sealed {
        copy(from, to, &GO_ON, || ()).unwrap()
    }

    /// The form, written down the slow way.
    fn form(content: &[u8]) -> Vec<u8> {
        let mut form = b"fuse-sparse/1\0\0\0".to_vec();
        form.extend((content.len() as u64).to_be_bytes());
        for (number, block) in content.chunks(BLOCK).enumerate() {
            if block.iter().any(|byte| *byte != 0) {
                form.extend(((number * BLOCK) as u64).to_be_bytes());
                form.extend(block);
                form.extend(vec![0; BLOCK - block.len()]);
            }
        }
        form
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn content_decides_the_digest_and_zeros_become_holes(
            chunks in proptest::collection::vec((0u64..3_000_000, 1usize..9000, 0u8..3), 0..6),
            length in 1u64..4_000_000,
        ) {
            let dir = tempfile::tempdir().unwrap();
            let (from, to) = (dir.path().join("from"), dir.path().join("to"));
            let file = File::create(&from).unwrap();
            for (at, size, byte) in chunks {
                file.write_all_at(&vec![byte; size], at).unwrap();
            }
            let length = length.max(file.metadata().unwrap().len());
            file.set_len(length).unwrap();
            let content = fs::read(&from).unwrap();
            let first = sealed(&from, &to);
            prop_assert!(content == fs::read(&to).unwrap());
            prop_assert_eq!(&first.digest, &hex::encode(Sha256::digest(form(&content))));
            // A copy without any holes has the same digest.
            let dense = dir.path().join("dense");
            fs::write(&dense, &content).unwrap();
            let second = sealed(&dense, &dir.path().join("again"));
            prop_assert_eq!(first.digest, second.digest);
            prop_assert!(second.stored <= first.stored + 64 * 1024);
        }
    }

    #[test]
    fn a_cancelled_copy_says_so_and_nothing_is_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        fs::write(&from, vec![1; 10_000]).unwrap();
        let cancelled = copy(&from, &to, &AtomicBool::new(true), || ());
        assert!(
            matches!(cancelled, Err(SealError::Cancelled)),
            "{cancelled:?}"
        );
        let again = copy(&from, &to, &GO_ON, || ()).unwrap_err();
        let SealError::Io(error) = again else {
            panic!("{again:?}")
        };
        assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    }
}
