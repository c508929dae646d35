//! The writable disk of a VM: a sparse ext4 file system that bounds what the VM can store.
//!
//! `mkfs.ext4` runs once per size, into a template; a VM gets a copy of the template's few hundred
//! KiB of metadata. The inode tables are marked as zeroed (they are: the file is new and sparse), so
//! that no guest spends its first minutes writing zeroes into the host's file.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

use thiserror::Error;

use crate::file_error::{FileError, failed};

use super::copy;

/// Largest overlay in GiB: what one ext4 file system of 4 KiB blocks holds on common hosts.
pub const MAX_GIB: u32 = 16 * 1024;
/// Raised when the way templates are made changes.
const TEMPLATE_VERSION: u32 = 1;

/// Makes overlays from templates kept in one directory.
#[derive(Debug)]
pub struct Overlays {
    templates: PathBuf,
    mkfs: PathBuf,
    /// One template is made at a time; copies do not wait for each other.
    making: Mutex<()>,
}

/// A failed overlay.
#[derive(Debug, Error)]
pub enum OverlayError {
    /// The program did not start.
    #[error("cannot run {}", .program.display())]
    Start {
        /// The program.
        program: PathBuf,
        /// The reason.
        #[source]
        source: io::Error,
    },
    /// The program failed.
    #[error("mkfs.ext4 failed: {message}")]
    Mkfs {
        /// What it said.
        message: String,
    },
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] FileError),
}

impl Overlays {
    /// Templates live in `templates`, which is made if missing.
    ///
    /// # Errors
    /// The directory cannot be made.
    pub fn new(templates: PathBuf, mkfs: PathBuf) -> Result<Self, OverlayError> {
        fs::create_dir_all(&templates).map_err(failed("create", &templates))?;
        Ok(Self {
            templates,
            mkfs,
            making: Mutex::new(()),
        })
    }

    /// Makes the template for `gib` unless it is there.
    ///
    /// # Errors
    /// `mkfs.ext4` or a file operation fails; no partial template is left under its name.
    pub fn prepare(&self, gib: u32) -> Result<PathBuf, OverlayError> {
        let path = self
            .templates
            .join(format!("overlay-v{TEMPLATE_VERSION}-{gib}g.ext4"));
        if path.exists() {
            return Ok(path);
        }
        // A panic while making one leaves nothing that the next would trip over.
        let _one = self
            .making
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        if path.exists() {
            return Ok(path);
        }
        let partial = path.with_extension("partial");
        let made = self.mkfs(&partial, gib).and_then(|()| {
            Ok(fs::rename(&partial, &path).map_err(failed("rename the template to", &path))?)
        });
        if made.is_err() {
            let _best_effort = fs::remove_file(&partial);
        }
        made.map(|()| path)
    }

    /// Makes the new overlay `to` of `gib` GiB.
    ///
    /// # Errors
    /// See [`Self::prepare`]; `to` exists or cannot be written.
    pub fn create(&self, to: &Path, gib: u32) -> Result<(), OverlayError> {
        let template = self.prepare(gib)?;
        Ok(copy::sparse(&template, to).map_err(failed("write", to))?)
    }

    /// Makes the new overlay `to` of `gib` GiB with the content of `from`, which is not larger. The
    /// guest grows the file system to the size of its disk.
    ///
    /// # Errors
    /// `to` exists or cannot be written.
    pub fn create_from(&self, from: &Path, to: &Path, gib: u32) -> Result<(), OverlayError> {
        copy::sparse(from, to).map_err(failed("write", to))?;
        let length = u64::from(gib) << 30;
        let grow = || {
            let file = fs::OpenOptions::new().write(true).open(to)?;
            if file.metadata()?.len() < length {
                file.set_len(length)?;
            }
            Ok(())
        };
        Ok(grow().map_err(failed("set the size of", to))?)
    }

    fn mkfs(&self, path: &Path, gib: u32) -> Result<(), OverlayError> {
        let image = File::create(path).map_err(failed("create", path))?;
        image
            .set_len(u64::from(gib) * 1024 * 1024 * 1024)
            .map_err(failed("set the size of", path))?;
        let done = Command::new(&self.mkfs)
            .args(["-q", "-F", "-m", "0", "-L", "fuse-overlay"])
            // Room to grow in place would cost 4 MiB in each overlay, and none is ever grown.
            .args([
                "-O",
                "^resize_inode",
                "-E",
                "lazy_itable_init=1,lazy_journal_init=1",
            ])
            .arg(path)
            .stdin(Stdio::null())
            .output()
            .map_err(|source| OverlayError::Start {
                program: self.mkfs.clone(),
                source,
            })?;
        if done.status.success() {
            return Ok(());
        }
        let message = String::from_utf8_lossy(&done.stderr);
        Err(OverlayError::Mkfs {
            message: message.lines().take(3).collect::<Vec<_>>().join("; "),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt as _;

    fn overlays(dir: &Path) -> Option<Overlays> {
        let Some(mkfs) = crate::tools::find("mkfs.ext4") else {
            crate::testing::skip("mkfs.ext4 is not installed");
            return None;
        };
        Some(Overlays::new(dir.join("templates"), mkfs).unwrap())
    }

    #[test]
    fn an_overlay_has_its_size_and_takes_no_space() {
        let dir = tempfile::tempdir().unwrap();
        let Some(overlays) = overlays(dir.path()) else {
            return;
        };
        let disk = dir.path().join("overlay.img");
        overlays.create(&disk, 10).unwrap();
        let meta = fs::metadata(&disk).unwrap();
        assert_eq!(meta.len(), 10 << 30);
        assert!(
            meta.blocks() * 512 < 2 << 20,
            "{} bytes",
            meta.blocks() * 512
        );
        assert_eq!(meta.mode() & 0o777, 0o600);
        // The superblock's magic number, at 1024 + 56.
        let mut magic = [0; 2];
        std::os::unix::fs::FileExt::read_exact_at(&File::open(&disk).unwrap(), &mut magic, 1080)
            .unwrap();
        assert_eq!(u16::from_le_bytes(magic), 0xef53);
    }

    #[test]
    fn a_failing_mkfs_leaves_no_template() {
        let dir = tempfile::tempdir().unwrap();
        let overlays = Overlays::new(dir.path().join("t"), "/bin/false".into()).unwrap();
        assert!(matches!(
            overlays.prepare(1),
            Err(OverlayError::Mkfs { .. })
        ));
        assert_eq!(fs::read_dir(dir.path().join("t")).unwrap().count(), 0);
    }
}
