//! The initramfs: `fused` as `/init`, and the modules.

use std::fs;
use std::io::Write as _;
use std::path::Path;

use crate::cpio::Archive;
use crate::elf;
use crate::{INITRAMFS, ImageError, MODULES};

/// Raised when the content changes for another reason than its inputs.
pub(crate) const VERSION: &str = "1";

/// Reads the guest agent and makes sure that it can be the first process.
pub(crate) fn read_fused(path: &Path) -> Result<Vec<u8>, ImageError> {
    let bad = |problem| ImageError::Fused {
        path: path.to_owned(),
        problem,
    };
    let fused = fs::read(path).map_err(|_| bad("is not there"))?;
    elf::check_static_program(&fused).map_err(bad)?;
    Ok(fused)
}

/// Writes the initramfs into `dir`, which holds the modules already.
///
/// It is not compressed: it is read from memory or the host's cache, where
/// unpacking costs more time than it saves.
pub(crate) fn write(fused: &[u8], dir: &Path) -> Result<(), ImageError> {
    let modules = dir.join(MODULES);
    let modules = fs::read(&modules).map_err(ImageError::file("read", &modules))?;
    let mut archive = Archive::default();
    for (name, mode) in [("dev", 0o755), ("proc", 0o555), ("sys", 0o555)] {
        archive.directory(name, mode)?;
    }
    // The kernel opens it for the first process before anything is mounted.
    archive.device("dev/console", 0o600, (5, 1))?;
    archive.file("init", 0o755, fused)?;
    let archive = archive.finish()?;
    let path = dir.join(INITRAMFS);
    let write = || {
        let mut file = fs::File::create(&path)?;
        file.write_all(&archive)?;
        file.write_all(&modules)
    };
    write().map_err(ImageError::file("write", &path))
}
