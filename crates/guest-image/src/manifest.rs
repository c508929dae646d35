//! `image.json`: what an image directory holds and what it was built from.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::{INITRAMFS, ImageError, KERNEL, MANIFEST, ROOTFS, digest};

/// Content of `image.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Changes whenever anything that the image is built from does.
    pub inputs_digest: String,
    /// Release of the kernel as `uname -r` shows it.
    pub kernel_version: String,
    /// Architecture in the distribution's words.
    pub arch: String,
    /// Files of the image by name.
    pub files: BTreeMap<String, FileEntry>,
    /// When it was built, RFC 3339 in UTC.
    pub built_at: String,
    /// Digest of the inputs of each part, which are rebuilt apart.
    pub parts: Parts,
}

/// One file of an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// SHA-256 in lower-case hex.
    pub sha256: String,
    /// Length in bytes; holes count.
    pub size: u64,
}

/// Digests of the inputs of the parts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parts {
    /// Kernel, modules and root file system.
    pub base: String,
    /// The initramfs.
    pub initramfs: String,
}

impl Parts {
    pub(crate) fn inputs_digest(&self) -> String {
        digest::of_inputs(&[&self.base, &self.initramfs])
    }
}

/// A complete image.
#[derive(Clone, Debug)]
pub struct Image {
    /// Where it is.
    pub dir: PathBuf,
    /// What it holds.
    pub manifest: Manifest,
}

impl Image {
    /// Opens an image directory. Checks that its files are there with the right
    /// sizes, not their digests.
    ///
    /// # Errors
    /// There is no image, or one that is not complete.
    pub fn open(dir: &Path) -> Result<Self, ImageError> {
        let incomplete = || ImageError::NoImage {
            dir: dir.to_owned(),
        };
        let text = fs::read(dir.join(MANIFEST)).map_err(|_| incomplete())?;
        let manifest: Manifest = serde_json::from_slice(&text).map_err(|_| incomplete())?;
        let whole = |(name, entry): (&String, &FileEntry)| {
            fs::metadata(dir.join(name)).is_ok_and(|meta| meta.len() == entry.size)
        };
        let named = [KERNEL, INITRAMFS, ROOTFS]
            .iter()
            .all(|name| manifest.files.contains_key(*name));
        if !named || !manifest.files.iter().all(whole) {
            return Err(incomplete());
        }
        Ok(Self {
            dir: dir.to_owned(),
            manifest,
        })
    }

    /// The uncompressed kernel.
    #[must_use]
    pub fn kernel(&self) -> PathBuf {
        self.dir.join(KERNEL)
    }

    /// The initramfs.
    #[must_use]
    pub fn initramfs(&self) -> PathBuf {
        self.dir.join(INITRAMFS)
    }

    /// The base root file system.
    #[must_use]
    pub fn rootfs(&self) -> PathBuf {
        self.dir.join(ROOTFS)
    }
}
