//! A file operation that failed: what was tried, on which file, why.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// A failed file operation.
#[derive(Debug, Error)]
#[error("cannot {what} {}", .path.display())]
pub struct FileError {
    /// What was tried, as a verb.
    pub what: &'static str,
    /// On which file.
    pub path: PathBuf,
    /// The reason.
    #[source]
    pub source: io::Error,
}

/// For `map_err`.
pub(crate) fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> FileError {
    let path = path.to_owned();
    move |source| FileError { what, path, source }
}
