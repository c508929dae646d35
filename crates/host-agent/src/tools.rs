//! Programs of the host that the agent runs.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// Where administration programs live, also when `PATH` of a service or a user leaves it out.
const ADMIN_DIRS: [&str; 3] = ["/usr/sbin", "/sbin", "/usr/local/sbin"];

/// The first executable called `name` on `PATH` or in the administration directories.
#[must_use]
pub fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(ADMIN_DIRS.iter().map(PathBuf::from))
        .map(|dir| dir.join(name))
        .find(|file| is_executable(file))
}

/// Whether `path` is a file that somebody may execute.
#[must_use]
pub fn is_executable(path: &Path) -> bool {
    std::fs::metadata(path)
        .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}
