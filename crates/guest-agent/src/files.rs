//! Writes files for the host.
//!
//! A file appears under its name whole or not at all: it is written beside its
//! place and renamed. `/fuse` holds credentials: files there are `0600`,
//! directories `0700`, whatever the caller asks for.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use thiserror::Error;

const RESERVED: &str = "/fuse";
const DEFAULT_MODE: u32 = 0o644;

/// Why a file was not written.
#[derive(Debug, Error)]
pub(crate) enum FileError {
    /// The path cannot name a file.
    #[error("path {path:?} {problem}")]
    Path {
        /// As it came.
        path: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The mode is not one.
    #[error("mode {0:?} is not an octal file mode such as 0644")]
    Mode(String),
    /// The guest's disk, or its temporary memory, is full.
    #[error("no space left in the guest for {}", .0.display())]
    NoSpace(PathBuf),
    /// Something on the way is not what it would have to be.
    #[error("cannot write {}: {reason}", path.display())]
    Obstacle {
        /// The target.
        path: PathBuf,
        /// What is in the way.
        reason: io::Error,
    },
}

impl FileError {
    fn io(path: &Path, error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Self::NoSpace(path.to_owned())
            }
            _ => Self::Obstacle {
                path: path.to_owned(),
                reason: error,
            },
        }
    }
}

/// Where a file goes and with which permissions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    path: PathBuf,
    mode: u32,
    reserved: bool,
}

impl Target {
    /// Reads a request's path and mode.
    ///
    /// # Errors
    /// The path is not absolute, names a directory or a reserved one, or the
    /// mode is not octal.
    pub(crate) fn parse(path: &str, mode: Option<&str>) -> Result<Self, FileError> {
        let refuse = |problem| {
            Err(FileError::Path {
                path: path.to_owned(),
                problem,
            })
        };
        if !path.starts_with('/') {
            return refuse("is not absolute");
        }
        if path.contains('\0') {
            return refuse("holds a NUL character");
        }
        if path.ends_with('/') || path.ends_with("/.") || path.ends_with("/..") {
            return refuse("names a directory");
        }
        let normal = normalise(path);
        if normal == Path::new("/") || normal == Path::new(RESERVED) {
            return refuse("names a directory that cannot be replaced");
        }
        let reserved = normal.starts_with(RESERVED);
        let asked = mode.map(parse_mode).transpose()?.unwrap_or(DEFAULT_MODE);
        Ok(Self {
            path: normal,
            mode: if reserved { 0o600 } else { asked },
            reserved,
        })
    }

    /// Starts to write. Blocks.
    ///
    /// # Errors
    /// A parent cannot be made, or there is no space.
    pub(crate) fn create(self) -> Result<Draft, FileError> {
        let failed = |error| FileError::io(&self.path, error);
        if self.path.is_dir() && !self.path.is_symlink() {
            return Err(failed(io::ErrorKind::IsADirectory.into()));
        }
        let parent = self.path.parent().unwrap_or(Path::new("/"));
        let dir_mode = if self.reserved { 0o700 } else { 0o755 };
        DirBuilder::new()
            .recursive(true)
            .mode(dir_mode)
            .create(parent)
            .map_err(failed)?;
        if self.reserved {
            fs::set_permissions(parent, Permissions::from_mode(0o700)).map_err(failed)?;
        }
        let temporary = parent.join(temporary_name());
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&temporary)
            .map_err(failed)?;
        Ok(Draft {
            file,
            temporary,
            target: self.path,
            mode: self.mode,
            placed: false,
        })
    }
}

/// A file on its way. Dropping it removes it.
#[derive(Debug)]
pub(crate) struct Draft {
    file: File,
    temporary: PathBuf,
    target: PathBuf,
    mode: u32,
    placed: bool,
}

impl Draft {
    /// Adds content. Blocks.
    ///
    /// # Errors
    /// There is no space.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), FileError> {
        self.file
            .write_all(bytes)
            .map_err(|error| FileError::io(&self.target, error))
    }

    /// Gives the file its name and permissions, replacing what was there. Blocks.
    ///
    /// # Errors
    /// A directory of that name has appeared.
    pub(crate) fn place(mut self) -> Result<(), FileError> {
        let failed = |error| FileError::io(&self.target, error);
        self.file
            .set_permissions(Permissions::from_mode(self.mode))
            .map_err(failed)?;
        fs::rename(&self.temporary, &self.target).map_err(failed)?;
        self.placed = true;
        Ok(())
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.placed {
            // Nothing more can be done; the name says what it is.
            drop(fs::remove_file(&self.temporary));
        }
    }
}

/// Writes a whole file. Blocks.
///
/// # Errors
/// See [`Target::create`] and [`Draft::place`].
pub(crate) fn write(target: Target, content: &[u8]) -> Result<(), FileError> {
    let mut draft = target.create()?;
    draft.write(content)?;
    draft.place()
}

/// Resolves `.`, `..` and repeated slashes by the text alone.
fn normalise(path: &str) -> PathBuf {
    let mut normal = PathBuf::from("/");
    for part in Path::new(path).components() {
        match part {
            Component::Normal(name) => normal.push(name),
            Component::ParentDir => {
                normal.pop();
            }
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
    normal
}

fn parse_mode(text: &str) -> Result<u32, FileError> {
    let digits = !text.is_empty() && text.chars().all(|c| c.is_digit(8));
    let mode = digits.then(|| u32::from_str_radix(text, 8).ok()).flatten();
    mode.filter(|mode| *mode <= 0o7777)
        .ok_or_else(|| FileError::Mode(text.to_owned()))
}

/// Unique within this boot; leftovers of an earlier one are on tmpfs or carry another number.
fn temporary_name() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now = now.map_or(0, |since| since.as_nanos());
    format!(".fuse-upload-{now:x}-{number}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode_of(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn paths_are_normalised_before_the_reserved_test() {
        let target = |path| Target::parse(path, Some("0755")).unwrap();
        assert_eq!(target("/fuse/../etc/x").path, Path::new("/etc/x"));
        assert_eq!(
            (target("//fuse//x").mode, target("//fuse/x").reserved),
            (0o600, true)
        );
        assert_eq!((target("/a/./../fuse/tls/key").mode), 0o600);
        assert_eq!(
            (target("/fused/x").mode, target("/fuse-backup/x").reserved),
            (0o755, false)
        );
        for bad in [
            "",
            "x",
            "/",
            "/fuse",
            "/fuse/",
            "/fuse/.",
            "//fuse/a/..",
            "/a/b/",
            "/a\0b",
        ] {
            assert!(Target::parse(bad, None).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn modes_are_octal() {
        let mode = |text| Target::parse("/x", Some(text)).map(|target| target.mode);
        assert_eq!(mode("755").unwrap(), 0o755);
        assert_eq!(mode("0400").unwrap(), 0o400);
        for bad in ["", "8", "-1", "+1", "0x1", "10000"] {
            assert!(mode(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_file_replaces_what_was_there_and_parents_are_made() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b/c");
        let target = |mode| Target::parse(path.to_str().unwrap(), mode).unwrap();
        write(target(None), b"one").unwrap();
        assert_eq!(mode_of(&path), 0o644);
        write(target(Some("0755")), b"two\0\xff").unwrap();
        assert_eq!(
            (fs::read(&path).unwrap(), mode_of(&path)),
            (b"two\0\xff".to_vec(), 0o755)
        );
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn an_unfinished_file_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        let mut draft = Target::parse(path.to_str().unwrap(), None)
            .unwrap()
            .create()
            .unwrap();
        draft.write(b"half").unwrap();
        drop(draft);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_directory_is_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("d")).unwrap();
        let target = Target::parse(dir.path().join("d").to_str().unwrap(), None).unwrap();
        assert!(matches!(
            write(target, b""),
            Err(FileError::Obstacle { .. })
        ));
    }
}
