//! `--token-file`: a token that no list of processes and no history of a shell shows.
//!
//! Invariant: no error repeats what the file holds.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use clap::Args;

/// Much longer than any token, and much shorter than a file that somebody names by mistake.
const LARGEST: usize = 16 * 1024;

/// Where a token may come from instead of `--token`.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct TokenFileArgs {
    /// File with the token instead, - for standard input; command lines are seen by others.
    #[arg(long, value_name = "FILE", conflicts_with = "token")]
    token_file: Option<PathBuf>,
}

/// Why there is no token.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The file cannot be read.
    #[error("could not read the token from {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It is not one line, or far too long.
    #[error(
        "{} holds no token: it must be one line of text without blanks, 16 KiB at most; what is in it \
         is not repeated here", path.display()
    )]
    NoToken {
        /// The file.
        path: PathBuf,
    },
}

impl TokenFileArgs {
    /// The token of the file; `None` when none is named.
    ///
    /// # Errors
    /// The file cannot be read, or is not one line of text of a token's length.
    pub(crate) fn read(&self) -> Result<Option<String>, Error> {
        let Some(path) = &self.token_file else {
            return Ok(None);
        };
        let bytes = if path == Path::new("-") {
            bounded(io::stdin().lock())
        } else {
            File::open(path).and_then(bounded)
        };
        let bytes = bytes.map_err(|source| Error::Read {
            path: path.clone(),
            source,
        })?;
        let text = std::str::from_utf8(&bytes).unwrap_or_default().trim();
        let is_token =
            bytes.len() <= LARGEST && !text.is_empty() && !text.contains(char::is_whitespace);
        is_token
            .then(|| Some(text.to_owned()))
            .ok_or_else(|| Error::NoToken { path: path.clone() })
    }
}

/// One byte too many says that there is more.
fn bounded(file: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(LARGEST as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}
