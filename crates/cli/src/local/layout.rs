//! Where everything of the local stack is: state, programs, guest image, ports.

use std::fs;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use super::Error;
use super::error::file_error;

/// Longest state directory below which sockets of VMs still fit: Unix socket paths end at 107 bytes.
const LONGEST_SOCKET_PARENT: usize = 40;

/// Name of the lock file.
pub(super) const LOCK: &str = "lock";

/// Ports of the two programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ports {
    /// Of the orchestrator.
    pub(crate) orchestrator: u16,
    /// Of the host agent.
    pub(crate) agent: u16,
}

/// The places.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    /// State directory.
    pub(crate) root: PathBuf,
    /// Directory with `orchestrator`, `fc-agent`, `fc-emulator`.
    pub(crate) programs: PathBuf,
    /// Directory with kernel, initramfs and base root file system.
    pub(crate) image: PathBuf,
}

impl Layout {
    /// Reads the overrides `FUSE_LOCAL_DIR`, `FUSE_LOCAL_BIN_DIR`, `FUSE_IMAGE_DIR`; otherwise
    /// `~/.fuse/local`, the directory of this program, and the user's cache.
    ///
    /// # Errors
    /// When the home directory is needed and unknown.
    pub(crate) fn from_environment() -> Result<Self, Error> {
        if !cfg!(target_os = "linux") {
            return Err(Error::NotLinux);
        }
        let given = |name| {
            std::env::var_os(name)
                .filter(|v| !v.is_empty())
                .map(PathBuf::from)
        };
        let absolute = |path: PathBuf| std::path::absolute(&path).unwrap_or(path);
        let home = || given("HOME").ok_or(Error::NoHome);
        let root = match given("FUSE_LOCAL_DIR") {
            Some(dir) => dir,
            None => home()?.join(".fuse/local"),
        };
        let beside = || {
            let program = std::env::current_exe().ok()?;
            Some(program.parent()?.to_owned())
        };
        let programs = given("FUSE_LOCAL_BIN_DIR")
            .or_else(beside)
            .unwrap_or_default();
        let image = match (given("FUSE_IMAGE_DIR"), given("XDG_CACHE_HOME")) {
            (Some(dir), _) => dir,
            (None, Some(cache)) => cache.join("fuse/image"),
            (None, None) => home()?.join(".cache/fuse/image"),
        };
        Ok(Self {
            root: absolute(root),
            programs: absolute(programs),
            image: absolute(image),
        })
    }

    /// A file of the state directory.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// A program of the stack.
    pub(crate) fn program(&self, name: &str) -> PathBuf {
        self.programs.join(name)
    }

    /// State directory of the host agent.
    pub(crate) fn agent_dir(&self) -> PathBuf {
        self.file("fc")
    }

    /// Directory for the sockets of VMs: in the state directory as long as their paths fit, else a
    /// short one that only root can make.
    pub(crate) fn socket_dir(&self) -> PathBuf {
        let inside = self.file("run");
        if inside.as_os_str().len() <= LONGEST_SOCKET_PARENT {
            return inside;
        }
        let digest = hex::encode(Sha256::digest(self.root.as_os_str().as_encoded_bytes()));
        Path::new("/run").join(format!("fuse-{}", &digest[..12]))
    }

    /// Makes the state directory, for its owner only.
    ///
    /// # Errors
    /// When it cannot be made, belongs to somebody else, or is full of something else.
    pub(crate) fn create(&self) -> Result<(), Error> {
        if !self.is_ours() && self.has_entries() {
            return Err(Error::NotOurs {
                dir: self.root.clone(),
            });
        }
        let failed = file_error("create", &self.root);
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.root)
            .map_err(failed)?;
        fs::set_permissions(&self.root, fs::Permissions::from_mode(0o700))
            .map_err(file_error("protect", &self.root))
    }

    /// Whether the directory is a local stack's: the lock is the first file made in it.
    pub(crate) fn is_ours(&self) -> bool {
        self.file(LOCK).is_file()
    }

    fn has_entries(&self) -> bool {
        fs::read_dir(&self.root).is_ok_and(|mut entries| entries.next().is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(root: &str) -> Layout {
        Layout {
            root: PathBuf::from(root),
            programs: PathBuf::new(),
            image: PathBuf::new(),
        }
    }

    #[test]
    fn a_directory_full_of_something_else_is_not_taken() {
        let dir = tempfile::tempdir().unwrap();
        let layout = layout(dir.path().to_str().unwrap());
        layout.create().unwrap();
        assert!(!layout.is_ours());
        fs::write(dir.path().join("thesis.tex"), "").unwrap();
        assert!(matches!(layout.create(), Err(Error::NotOurs { .. })));
        fs::write(dir.path().join(LOCK), "").unwrap();
        layout.create().unwrap();
        assert!(layout.is_ours());
    }

    #[test]
    fn sockets_stay_short() {
        assert_eq!(
            layout("/home/me/.fuse/local").socket_dir(),
            Path::new("/home/me/.fuse/local/run")
        );
        let long = layout(&format!("/home/{}/.fuse/local", "x".repeat(60))).socket_dir();
        assert!(long.starts_with("/run"), "{long:?}");
        assert!(long.as_os_str().len() <= LONGEST_SOCKET_PARENT);
    }
}
