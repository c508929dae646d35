//! Finding the Fusefile.

use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::fs::{Kind, Tree};

/// The names that are looked for, in order.
pub const NAMES: [&str; 5] = [
    "Fusefile",
    "Fusefile.yaml",
    "Fusefile.yml",
    "fusefile.yaml",
    "fusefile.yml",
];

/// There is no Fusefile.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FindError {
    /// None in the working directory.
    #[error("no {} here; write one with fuse init, or name one with -f", NAMES.join(", "))]
    NoneHere,
    /// None in a directory that the user named.
    #[error("no {} in {}; name the file itself", NAMES.join(", "), .0.display())]
    NoneIn(PathBuf),
}

/// The file to read: `explicit` (`-f` or the argument) as given, or the first of [`NAMES`] in it when it is a
/// directory, or the first of them in the tree's root. Whether an explicit path exists is left to whoever
/// opens it.
///
/// # Errors
/// When a directory holds none of the names.
pub fn find(tree: &dyn Tree, explicit: Option<&Path>) -> Result<PathBuf, FindError> {
    match explicit {
        None => first_in(tree, Path::new("")).ok_or(FindError::NoneHere),
        Some(path) if tree.stat(path).is_ok_and(|found| found.kind == Kind::Dir) => {
            first_in(tree, path).ok_or_else(|| FindError::NoneIn(path.to_owned()))
        }
        Some(path) => Ok(path.to_owned()),
    }
}

/// The file that `init` writes: like [`find`], but with `Fusefile` where there is none yet.
#[must_use]
pub fn write_target(tree: &dyn Tree, explicit: Option<&Path>) -> PathBuf {
    find(tree, explicit).unwrap_or_else(|_| explicit.unwrap_or(Path::new("")).join(NAMES[0]))
}

fn first_in(tree: &dyn Tree, dir: &Path) -> Option<PathBuf> {
    NAMES
        .iter()
        .map(|name| dir.join(name))
        .find(|path| tree.stat(path).is_ok_and(|found| found.kind != Kind::Dir))
}
