//! What has to be installed: our own programs and a few of the system's.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use super::{Error, Layout};

/// Where administration programs live, also when a user's `PATH` leaves it out.
const ADMIN_DIRS: [&str; 3] = ["/usr/sbin", "/sbin", "/usr/local/sbin"];

/// Programs of the stack.
const PROGRAMS: [&str; 3] = ["orchestrator", "fc-agent", "fc-emulator"];

/// A program of the system, and the Debian and Ubuntu package with it.
type Tool = (&'static str, &'static str);

/// What the host agent runs.
const AGENT_TOOLS: [Tool; 2] = [("mkfs.ext4", "e2fsprogs"), ("nft", "nftables")];

/// What the emulator runs.
#[cfg(target_arch = "x86_64")]
const EMULATOR_TOOLS: [Tool; 1] = [("qemu-system-x86_64", "qemu-system-x86")];
#[cfg(not(target_arch = "x86_64"))]
const EMULATOR_TOOLS: [Tool; 1] = [("qemu-system-aarch64", "qemu-system-arm")];

/// The first executable of that name on `PATH` or where administration programs live.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = std::env::split_paths(&path).chain(ADMIN_DIRS.iter().map(PathBuf::from));
    dirs.map(|dir| dir.join(name))
        .find(|file| is_executable(file))
}

/// Whether it is a file that may be run.
pub(crate) fn is_executable(path: &Path) -> bool {
    path.metadata()
        .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// All programs of the stack are there.
///
/// # Errors
/// Naming all that are not.
pub(crate) fn check_programs(layout: &Layout) -> Result<(), Error> {
    let missing: Vec<_> = PROGRAMS
        .into_iter()
        .filter(|name| !is_executable(&layout.program(name)))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(Error::Programs {
        names: missing,
        dir: layout.programs.clone(),
    })
}

/// All tools are there.
///
/// # Errors
/// Naming all that are not, and their packages.
pub(crate) fn check_tools(emulated: bool) -> Result<(), Error> {
    let emulator: &[Tool] = if emulated { &EMULATOR_TOOLS } else { &[] };
    let missing: Vec<_> = AGENT_TOOLS
        .iter()
        .chain(emulator)
        .filter(|(tool, _)| find(tool).is_none())
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(Error::Tools {
        tools: missing.iter().map(|(tool, _)| *tool).collect(),
        packages: missing.iter().map(|(_, package)| *package).collect(),
    })
}
