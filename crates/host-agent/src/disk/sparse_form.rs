//! The sparse form of a file: what a disk's digest is taken of, and how it travels.
//!
//! ```text
//! "fuse-sparse/1\0\0\0" | length: u64 | { offset: u64 | 4096 bytes }*     (big-endian)
//! ```
//!
//! One record per block of 4 KiB that is not all zero, in order; the last block is filled up with
//! zeros. It depends on the content alone and not on where a file system happens to have holes, and
//! a disk of 10 GiB with 50 MB in it is 50 MB long.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt as _;

use thiserror::Error;

use super::copy::next_extent;

/// First bytes.
const MAGIC: &[u8; 16] = b"fuse-sparse/1\0\0\0";
/// Bytes in front of the records.
const HEADER: usize = 24;
/// Bytes of a block.
pub(super) const BLOCK: usize = 4096;
/// Bytes of a record.
const RECORD: usize = 8 + BLOCK;
/// Bytes that are read and written at a time.
pub(super) const CHUNK: usize = 256 * BLOCK;

/// Bytes of a form with so many blocks.
#[must_use]
pub fn length(blocks: u64) -> u64 {
    HEADER as u64 + blocks * RECORD as u64
}

/// Blocks of a form of so many bytes.
#[must_use]
pub fn blocks(length: u64) -> u64 {
    length.saturating_sub(HEADER as u64) / RECORD as u64
}

/// What the form of a file of `length` bytes begins with.
pub(super) fn header(length: u64) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..16].copy_from_slice(MAGIC);
    header[16..].copy_from_slice(&length.to_be_bytes());
    header
}

/// Calls `each` with the place and the bytes of every stretch of blocks that are not all zero.
pub(super) fn each_run<E: From<io::Error>>(
    source: &File,
    mut each: impl FnMut(u64, &[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let length = source.metadata()?.len();
    let mut at = 0;
    let mut buffer = vec![0; CHUNK];
    while let Some((start, end)) = next_extent(source, at, length)? {
        // Whole blocks: the form does not know where extents begin.
        at = at.max(start / BLOCK as u64 * BLOCK as u64);
        let end = end.next_multiple_of(BLOCK as u64);
        while at < end {
            let want = usize::try_from(end - at).unwrap_or(CHUNK).min(CHUNK);
            let chunk = &mut buffer[..want];
            fill(source, chunk, at)?;
            for (start, run) in runs(chunk) {
                each(at + start as u64, run)?;
            }
            at += want as u64;
        }
    }
    Ok(())
}

/// How many blocks of a file are not all zero.
///
/// # Errors
/// The file cannot be read.
pub fn count(source: &File) -> io::Result<u64> {
    let mut blocks = 0;
    each_run(source, |_, run| {
        blocks += (run.len() / BLOCK) as u64;
        Ok::<(), io::Error>(())
    })?;
    Ok(blocks)
}

/// Calls `emit` with the form of a file from its byte `from` on, a chunk at a time.
///
/// # Errors
/// The file cannot be read, or `emit` fails.
pub fn pack(
    source: &File,
    from: u64,
    mut emit: impl FnMut(Vec<u8>) -> io::Result<()>,
) -> io::Result<()> {
    let header = header(source.metadata()?.len());
    let begin = usize::try_from(from).unwrap_or(HEADER).min(HEADER);
    let mut chunk = header[begin..].to_vec();
    let mut at = HEADER as u64;
    each_run(source, |offset, run| {
        for (number, block) in run.chunks(BLOCK).enumerate() {
            let skip = usize::try_from(from.saturating_sub(at)).unwrap_or(RECORD);
            at += RECORD as u64;
            if skip >= RECORD {
                continue;
            }
            let place = (offset + (number * BLOCK) as u64).to_be_bytes();
            chunk.extend_from_slice(&place[skip.min(8)..]);
            chunk.extend_from_slice(&block[skip.saturating_sub(8)..]);
            if chunk.len() >= CHUNK {
                emit(std::mem::take(&mut chunk))?;
            }
        }
        Ok::<(), io::Error>(())
    })?;
    if chunk.is_empty() {
        Ok(())
    } else {
        emit(chunk)
    }
}

/// A form that is none, or a file that cannot be written.
#[derive(Debug, Error)]
pub enum UnpackError {
    /// The bytes are not of this form.
    #[error("it is not a disk in sparse form: {0}")]
    Form(&'static str),
    /// Writing failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Writes the file that a form describes, as the form arrives.
#[derive(Debug)]
pub struct Unpacker {
    file: File,
    /// Largest file that is accepted.
    max: u64,
    /// Length of the file, once the header is there.
    length: Option<u64>,
    /// What arrived of a header or record that is not whole.
    rest: Vec<u8>,
    /// Blocks that follow each other, and where they go.
    run: Vec<u8>,
    run_at: u64,
}

impl Unpacker {
    /// Writes to `file`, which is empty.
    #[must_use]
    pub fn new(file: File, max: u64) -> Self {
        Self {
            file,
            max,
            length: None,
            rest: Vec::new(),
            run: Vec::new(),
            run_at: 0,
        }
    }

    /// Takes what has arrived.
    ///
    /// # Errors
    /// It is not of this form, or writing fails.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), UnpackError> {
        let mut bytes = bytes;
        loop {
            let want = self.length.map_or(HEADER, |_| RECORD);
            if !self.rest.is_empty() || bytes.len() < want {
                let missing = want.saturating_sub(self.rest.len()).min(bytes.len());
                self.rest.extend_from_slice(&bytes[..missing]);
                bytes = &bytes[missing..];
                if self.rest.len() < want {
                    return Ok(());
                }
                let whole = std::mem::take(&mut self.rest);
                self.take(&whole)?;
            } else {
                self.take(&bytes[..want])?;
                bytes = &bytes[want..];
            }
        }
    }

    /// The end of the form. The file is whole then, but not yet durable.
    ///
    /// # Errors
    /// The form ends in the middle, or writing fails.
    pub fn finish(mut self) -> Result<(File, u64), UnpackError> {
        let Some(length) = self.length.filter(|_| self.rest.is_empty()) else {
            return Err(UnpackError::Form("it ends in the middle"));
        };
        self.flush()?;
        Ok((self.file, length))
    }

    /// A whole header, or a whole record.
    fn take(&mut self, part: &[u8]) -> Result<(), UnpackError> {
        let Some(length) = self.length else {
            return self.take_header(part);
        };
        let (place, block) = part.split_at(8);
        let place = number(place);
        let next = self.run_at + self.run.len() as u64;
        let is_ordered = place >= next && place.is_multiple_of(BLOCK as u64);
        if !is_ordered || place >= length {
            return Err(UnpackError::Form("a block is where none can be"));
        }
        if place != next || self.run.len() >= CHUNK {
            self.flush()?;
            self.run_at = place;
        }
        self.run.extend_from_slice(block);
        Ok(())
    }

    fn take_header(&mut self, header: &[u8]) -> Result<(), UnpackError> {
        let (magic, length) = header.split_at(MAGIC.len());
        if magic != MAGIC {
            return Err(UnpackError::Form("it begins with something else"));
        }
        let length = number(length);
        if length > self.max {
            return Err(UnpackError::Form("the disk is larger than any may be"));
        }
        self.file.set_len(length)?;
        self.length = Some(length);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        // The fill of the last block is not part of the file.
        let room = self.length.unwrap_or(0).saturating_sub(self.run_at);
        let room = usize::try_from(room).unwrap_or(usize::MAX);
        let run = &self.run[..self.run.len().min(room)];
        self.file.write_all_at(run, self.run_at)?;
        self.run_at += self.run.len() as u64;
        self.run.clear();
        Ok(())
    }
}

/// Eight bytes as a number.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |n, byte| n << 8 | u64::from(*byte))
}

/// Reads a whole chunk; beyond the end of the file there are zeros.
fn fill(source: &File, chunk: &mut [u8], mut at: u64) -> io::Result<()> {
    let mut rest = chunk;
    while !rest.is_empty() {
        match source.read_at(rest, at) {
            Ok(0) => {
                rest.fill(0);
                return Ok(());
            }
            Ok(read) => {
                at += read as u64;
                rest = &mut rest[read..];
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// The stretches of blocks that are not all zero, with their places.
pub(super) fn runs(chunk: &[u8]) -> Vec<(usize, &[u8])> {
    let mut runs = Vec::new();
    let mut begun = None;
    for at in (0..chunk.len()).step_by(BLOCK) {
        let block = &chunk[at..(at + BLOCK).min(chunk.len())];
        let zero = block.iter().all(|byte| *byte == 0);
        match (begun, zero) {
            (None, false) => begun = Some(at),
            (Some(start), true) => {
                runs.push((start, &chunk[start..at]));
                begun = None;
            }
            (None, true) | (Some(_), false) => {}
        }
    }
    if let Some(start) = begun {
        runs.push((start, &chunk[start..]));
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::fs;
    use std::os::unix::fs::MetadataExt as _;
    use std::path::Path;

    const MAX: u64 = 1 << 30;

    fn packed(path: &Path, from: u64) -> Vec<u8> {
        let mut form = Vec::new();
        let file = File::open(path).unwrap();
        pack(&file, from, |chunk| {
            form.extend(chunk);
            Ok(())
        })
        .unwrap();
        form
    }

    fn unpacker(path: &Path) -> Unpacker {
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(path);
        Unpacker::new(file.unwrap(), MAX)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn what_is_packed_is_unpacked_wherever_it_is_cut(
            stretches in proptest::collection::vec((0u64..3_000_000, 1usize..20_000, 0u8..3), 0..6),
            length in 1u64..4_000_000,
            cut in 0u64..200_000,
            piece in 1usize..9_000,
        ) {
            let dir = tempfile::tempdir().unwrap();
            let (from, to) = (dir.path().join("from"), dir.path().join("to"));
            let file = File::create(&from).unwrap();
            for (at, size, byte) in stretches {
                file.write_all_at(&vec![byte; size], at).unwrap();
            }
            let size = length.max(file.metadata().unwrap().len());
            file.set_len(size).unwrap();
            let whole = packed(&from, 0);
            let blocks = count(&File::open(&from).unwrap()).unwrap();
            prop_assert_eq!(whole.len() as u64, super::length(blocks));
            let cut = cut % (whole.len() as u64 + 1);
            let at = usize::try_from(cut).unwrap();
            prop_assert!(packed(&from, cut) == whole[at..]);
            let mut unpacker = unpacker(&to);
            for part in whole[..at].chunks(piece).chain(whole[at..].chunks(CHUNK + 1)) {
                unpacker.push(part).unwrap();
            }
            let (file, length) = unpacker.finish().unwrap();
            prop_assert_eq!(length, size);
            prop_assert!(fs::read(&from).unwrap() == fs::read(&to).unwrap());
            prop_assert!(file.metadata().unwrap().blocks() * 512 <= blocks * 4096 + 64 * 1024);
        }

        #[test]
        fn junk_is_refused_and_never_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..9000)) {
            let dir = tempfile::tempdir().unwrap();
            let mut unpacker = unpacker(&dir.path().join("to"));
            let refused = unpacker.push(&bytes).and_then(|()| unpacker.finish().map(drop));
            prop_assert!(refused.is_err());
        }
    }

    #[test]
    fn blocks_out_of_order_or_outside_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let record = |at: u64| [&at.to_be_bytes()[..], &[7; BLOCK]].concat();
        for (length, places) in [
            (8192, &[4096, 0][..]),
            (8192, &[0, 0]),
            (8192, &[8192]),
            (8192, &[1]),
            (8192, &[u64::MAX]),
            (MAX + 1, &[]),
        ] {
            let mut unpacker = unpacker(&dir.path().join("to"));
            let mut form = header(length).to_vec();
            form.extend(places.iter().flat_map(|at| record(*at)));
            let refused = unpacker.push(&form);
            assert!(matches!(refused, Err(UnpackError::Form(_))), "{places:?}");
        }
        let mut unpacker = unpacker(&dir.path().join("to"));
        unpacker.push(&header(8192)).unwrap();
        unpacker.push(&record(0)[..100]).unwrap();
        assert!(matches!(unpacker.finish(), Err(UnpackError::Form(_))));
    }
}
