//! Copying a file without reading its holes.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::fs::{SeekFrom, copy_file_range, ioctl_ficlone, seek};
use rustix::io::Errno;

/// Copies `from` to the new file `to` (mode 0600): shares the blocks where the file system can,
/// else copies only the parts that hold data. The holes of `from` are holes in `to`.
///
/// # Errors
/// `to` exists, or reading or writing fails; `to` may then be incomplete.
pub fn sparse(from: &Path, to: &Path) -> io::Result<()> {
    let source = File::open(from)?;
    let target = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(to)?;
    if ioctl_ficlone(&target, &source).is_ok() {
        return Ok(());
    }
    let length = source.metadata()?.len();
    target.set_len(length)?;
    let mut offset = 0;
    while let Some((start, end)) = next_extent(&source, offset, length)? {
        copy_range(&source, &target, start, end)?;
        offset = end;
    }
    Ok(())
}

/// The next stretch of data at or after `offset`. A file system that knows no holes answers with
/// everything up to the end.
pub(super) fn next_extent(file: &File, offset: u64, length: u64) -> io::Result<Option<(u64, u64)>> {
    let start = match seek(file, SeekFrom::Data(offset)) {
        Ok(start) => start,
        Err(Errno::NXIO) => return Ok(None),
        Err(e) => return Err(e.into()),
    };
    if start >= length {
        return Ok(None);
    }
    Ok(Some((start, seek(file, SeekFrom::Hole(start))?)))
}

fn copy_range(source: &File, target: &File, start: u64, end: u64) -> io::Result<()> {
    let (mut from, mut to) = (start, start);
    while from < end {
        let chunk = usize::try_from(end - from).unwrap_or(usize::MAX);
        match copy_file_range(source, Some(&mut from), target, Some(&mut to), chunk) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) | Err(Errno::INTR) => {}
            // Another file system, or one without the call.
            Err(Errno::XDEV | Errno::NOSYS | Errno::OPNOTSUPP | Errno::INVAL) => {
                return copy_bytes(source, target, from, end);
            }
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

fn copy_bytes(source: &File, target: &File, mut at: u64, end: u64) -> io::Result<()> {
    use std::os::unix::fs::FileExt as _;
    let mut buffer = vec![0; 256 * 1024];
    while at < end {
        let want = usize::try_from(end - at)
            .unwrap_or(usize::MAX)
            .min(buffer.len());
        let read = source.read_at(&mut buffer[..want], at)?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        target.write_all_at(&buffer[..read], at)?;
        at += read as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::fs::{FileExt as _, MetadataExt as _};

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn content_and_holes_are_kept(
            chunks in proptest::collection::vec((0u64..4_000_000, 1usize..9000), 0..6),
            length in 1u64..5_000_000,
        ) {
            let dir = tempfile::tempdir().unwrap();
            let (from, to) = (dir.path().join("from"), dir.path().join("to"));
            let file = File::create(&from).unwrap();
            for (at, size) in chunks {
                file.write_all_at(&vec![0xa5; size], at).unwrap();
            }
            let length = length.max(file.metadata().unwrap().len());
            file.set_len(length).unwrap();
            sparse(&from, &to).unwrap();
            prop_assert!(std::fs::read(&from).unwrap() == std::fs::read(&to).unwrap());
            let blocks = |path: &Path| std::fs::metadata(path).unwrap().blocks();
            prop_assert!(blocks(&to) <= blocks(&from) + 64);
        }
    }

    #[test]
    fn an_existing_target_is_not_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        std::fs::write(&from, b"new").unwrap();
        std::fs::write(&to, b"old").unwrap();
        assert_eq!(
            sparse(&from, &to).unwrap_err().kind(),
            io::ErrorKind::AlreadyExists
        );
        assert_eq!(std::fs::read(&to).unwrap(), b"old");
    }
}
