//! Reading the inventory files: line by line, bounded, and every complaint with its place.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::pci::PciAddressError;

/// Largest inventory that is read, in bytes.
const MAX_BYTES: u64 = 1024 * 1024;

/// An inventory that cannot be used.
#[derive(Debug, Error)]
pub enum InventoryError {
    /// It cannot be read.
    #[error("cannot read the inventory {}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The reason.
        #[source]
        source: io::Error,
    },
    /// A line is wrong.
    #[error("{}:{line}: {problem}; write the file anew with {script}", .path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Which line, from 1.
        line: usize,
        /// What is wrong with it.
        problem: Problem,
        /// What writes such files.
        script: &'static str,
    },
}

impl InventoryError {
    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        match self {
            Self::Read { path, .. } | Self::Line { path, .. } => path,
        }
    }
}

/// What is wrong with a line.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum Problem {
    /// Another number of words.
    #[error("expected {expected}")]
    Words {
        /// The form of a line.
        expected: &'static str,
    },
    /// A count that is none.
    #[error("{0:?} is not a number of GPUs from 1")]
    Count(String),
    /// More GPUs than functions.
    #[error("{count} GPUs cannot have {slots} PCI functions")]
    Slots {
        /// GPUs.
        count: u32,
        /// Functions.
        slots: usize,
    },
    /// Not an address.
    #[error(transparent)]
    Address(#[from] PciAddressError),
    /// Something is there twice.
    #[error("{0} was on an earlier line already")]
    Twice(String),
    /// Not the id of a mediated device.
    #[error("{0:?} is not the UUID of a mediated device (a MIG-... id is not one)")]
    Mdev(String),
    /// Control characters.
    #[error("it has control characters")]
    Control,
}

/// The lines of `path` that say something, with their numbers. A file that does not exist has none.
pub(super) fn lines(path: &Path) -> Result<Vec<(usize, String)>, InventoryError> {
    let failed = |source| InventoryError::Read {
        path: path.to_owned(),
        source,
    };
    let mut file = match File::open(path) {
        Ok(file) => file.take(MAX_BYTES + 1),
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(failed(e)),
    };
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > MAX_BYTES {
        return Err(failed(io::Error::other("it is larger than 1 MiB")));
    }
    let lines = text.lines().zip(1..);
    let said = lines.filter(|(line, _)| {
        let line = line.trim_start();
        !line.is_empty() && !line.starts_with('#')
    });
    Ok(said.map(|(line, n)| (n, line.trim().to_owned())).collect())
}

/// Parses every line with `parse`, and puts the place to its complaint.
pub(super) fn parse<T>(
    path: &Path,
    script: &'static str,
    mut parse: impl FnMut(&str, &[T]) -> Result<T, Problem>,
) -> Result<Vec<T>, InventoryError> {
    let mut parsed = Vec::new();
    for (line, text) in lines(path)? {
        let control = text.chars().any(|c| c.is_control() && c != '\t');
        let entry = if control {
            Err(Problem::Control)
        } else {
            parse(&text, &parsed)
        };
        let entry = entry.map_err(|problem| InventoryError::Line {
            path: path.to_owned(),
            line,
            problem,
            script,
        })?;
        parsed.push(entry);
    }
    Ok(parsed)
}
