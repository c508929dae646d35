//! Reading the author's tree, as a trait.
//!
//! The crate itself opens nothing: whoever needs file contents (`files[].source`, `copy`, `inputs`,
//! `.fuseignore`) is handed a [`Tree`]. [`Disk`] is the one for a real directory; tests use one in memory.
//! Paths given to a tree are absolute, or relative to the directory of the Fusefile.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};

/// What a path names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Regular file.
    File,
    /// Directory.
    Dir,
    /// Symbolic link.
    Symlink,
    /// Socket, device or fifo.
    Other,
}

/// Facts about a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Meta {
    /// What it is.
    pub kind: Kind,
    /// Size in bytes.
    pub size: u64,
    /// Permission bits; 0 where the platform has none.
    pub mode: u32,
}

/// Access to the directory of a Fusefile.
pub trait Tree {
    /// Facts about `path` itself, symbolic links not followed.
    ///
    /// # Errors
    /// Whatever the file system says.
    fn lstat(&self, path: &Path) -> io::Result<Meta>;

    /// Facts about what `path` leads to, symbolic links followed.
    ///
    /// # Errors
    /// Whatever the file system says.
    fn stat(&self, path: &Path) -> io::Result<Meta>;

    /// Names and kinds in the directory `path`, in any order.
    ///
    /// # Errors
    /// Whatever the file system says.
    fn list(&self, path: &Path) -> io::Result<Vec<(OsString, Kind)>>;

    /// The contents of the file `path`.
    ///
    /// # Errors
    /// Whatever the file system says.
    fn open(&self, path: &Path) -> io::Result<Box<dyn Read + '_>>;
}

/// The file `path`, at most `limit` + 1 bytes of it, so that the caller can tell that there is more.
///
/// # Errors
/// Whatever the file system says.
pub fn read(tree: &dyn Tree, path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let mut out = Vec::new();
    tree.open(path)?
        .take(limit.saturating_add(1))
        .read_to_end(&mut out)?;
    Ok(out)
}

/// `path` without `.`, doubled or trailing separators, and with `..` resolved by text where it can be. A
/// trailing separator would make the system follow a symbolic link.
#[must_use]
pub fn clean(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir
                if matches!(out.components().next_back(), Some(Component::Normal(_))) =>
            {
                out.pop();
            }
            Component::ParentDir if out.has_root() => {}
            other => out.push(other),
        }
    }
    if out.as_os_str().is_empty() {
        PathBuf::from(".")
    } else {
        out
    }
}

/// A real directory.
#[derive(Debug, Clone)]
pub struct Disk {
    root: PathBuf,
}

impl Disk {
    /// The tree whose relative paths start at `root`.
    #[must_use]
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }
}

impl Tree for Disk {
    fn lstat(&self, path: &Path) -> io::Result<Meta> {
        Ok(meta(&fs::symlink_metadata(self.root.join(path))?))
    }

    fn stat(&self, path: &Path) -> io::Result<Meta> {
        Ok(meta(&fs::metadata(self.root.join(path))?))
    }

    fn list(&self, path: &Path) -> io::Result<Vec<(OsString, Kind)>> {
        fs::read_dir(self.root.join(path))?
            .map(|entry| {
                let entry = entry?;
                Ok((entry.file_name(), kind(entry.file_type()?)))
            })
            .collect()
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn Read + '_>> {
        Ok(Box::new(fs::File::open(self.root.join(path))?))
    }
}

fn meta(found: &fs::Metadata) -> Meta {
    Meta {
        kind: kind(found.file_type()),
        size: found.len(),
        mode: mode(found),
    }
}

fn kind(found: fs::FileType) -> Kind {
    if found.is_symlink() {
        Kind::Symlink
    } else if found.is_dir() {
        Kind::Dir
    } else if found.is_file() {
        Kind::File
    } else {
        Kind::Other
    }
}

#[cfg(unix)]
fn mode(found: &fs::Metadata) -> u32 {
    std::os::unix::fs::PermissionsExt::mode(&found.permissions())
}

#[cfg(not(unix))]
fn mode(_found: &fs::Metadata) -> u32 {
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cleaning() {
        for (path, expected) in [
            ("./a/", "a"),
            ("a//b/.", "a/b"),
            ("a/../b", "b"),
            ("../a", "../a"),
            ("../../a/..", "../.."),
            ("/../a", "/a"),
            (".", "."),
            ("", "."),
        ] {
            assert_eq!(clean(Path::new(path)), Path::new(expected), "{path:?}");
        }
    }
}
