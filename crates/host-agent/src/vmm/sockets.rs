//! Where a VM's sockets are, and when one is open.
//!
//! `<dir>/<vm_id>.sock`; a path over 100 characters uses a shortened id, because the kernel cuts
//! Unix socket paths at 107 bytes. The guest channel's own socket, and a vsock's `_<port>` listener,
//! lie beside it and are two characters longer at most.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use fuse_wire_guest::READY_PORT;
use fuse_wire_guest::vsock::listener_path;
use sha2::{Digest as _, Sha256};
use thiserror::Error;

use super::process::{Process, log_tail};
use super::{MachineSpec, Sockets, VmmError};
use crate::dir_watch::DirWatch;
use crate::unix_socket;

/// Longest control socket path before the id is shortened.
const LONG: usize = 100;
/// Longest path that a Unix socket can have.
const SUN_PATH_MAX: usize = 107;
/// How long a program may take to open its control socket.
const SOCKET_LIMIT: Duration = Duration::from_secs(10);
/// Pause between two looks at a socket that is there and does not listen.
const LOOK: Duration = Duration::from_millis(1);

/// A socket directory that cannot be used.
#[derive(Debug, Error)]
pub enum SocketDirError {
    /// Socket paths would not fit.
    #[error(
        "the socket directory {} is too long: paths in it would have {length} bytes and {SUN_PATH_MAX} \
         are possible; set {prefix}_SOCK_DIR to a shorter one", .dir.display()
    )]
    TooLong {
        /// The directory.
        dir: PathBuf,
        /// Length of the longest path.
        length: usize,
        /// Prefix of the program's variables.
        prefix: &'static str,
    },
    /// Somebody else could reach the sockets.
    #[error(
        "the socket directory {} must be a directory of this user without rights for others; \
         remove it or set {prefix}_SOCK_DIR", .dir.display()
    )]
    Shared {
        /// The directory.
        dir: PathBuf,
        /// Prefix of the program's variables.
        prefix: &'static str,
    },
    /// It cannot be made or read.
    #[error("cannot use the socket directory {}", .dir.display())]
    Io {
        /// The directory.
        dir: PathBuf,
        /// The reason.
        #[source]
        source: io::Error,
    },
}

/// Length of the longest path that can come up in `dir`.
#[must_use]
pub fn longest_path(dir: &Path) -> usize {
    let id = "x".repeat(fuse_wire_host::name::MAX_ID_LEN);
    let sockets = of(dir, &id);
    let shortened = at(dir, &short_id(&id));
    let length = |s: &Sockets| {
        files(s)
            .iter()
            .map(|f| f.as_os_str().len())
            .max()
            .unwrap_or(0)
    };
    length(&sockets).max(length(&shortened))
}

/// Makes the directory, for this user alone, and checks that it is usable. `prefix` is that of the
/// program's variables. Returns its name without links: sockets are opened without following any.
///
/// # Errors
/// It is too long, not ours alone, or cannot be made.
pub fn prepare_dir(dir: &Path, prefix: &'static str) -> Result<PathBuf, SocketDirError> {
    let length = longest_path(dir);
    if length > SUN_PATH_MAX {
        return Err(SocketDirError::TooLong {
            dir: dir.to_owned(),
            length,
            prefix,
        });
    }
    let io = |source| SocketDirError::Io {
        dir: dir.to_owned(),
        source,
    };
    match fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
    {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(io(e)),
        _ => {}
    }
    // In /tmp anybody could have made it, or a link of that name, before us.
    let meta = fs::symlink_metadata(dir).map_err(io)?;
    let own = meta.uid() == rustix::process::geteuid().as_raw();
    if !meta.is_dir() || !own || meta.mode() & 0o077 != 0 {
        return Err(SocketDirError::Shared {
            dir: dir.to_owned(),
            prefix,
        });
    }
    fs::canonicalize(dir).map_err(io)
}

/// Returns when the program of `spec` serves its control socket.
pub(super) async fn wait_open(spec: &MachineSpec, process: &Process) -> Result<(), VmmError> {
    let socket = &spec.sockets.api;
    let open = async {
        let opened = tokio::time::timeout(SOCKET_LIMIT, until_open(socket)).await;
        opened.map_err(|_| VmmError::NoSocket {
            socket: socket.clone(),
            seconds: SOCKET_LIMIT.as_secs(),
        })
    };
    unless_ended(spec, process, open).await
}

/// The file appears when the program binds, which the directory tells. Connections are refused until it
/// listens, right afterwards: there is no event for that, so it is looked at.
async fn until_open(socket: &Path) {
    // Before the first look, so that nothing is missed.
    let watch = socket.parent().map(DirWatch::of);
    while let Err(error) = unix_socket::connect(socket).await {
        let told = match &watch {
            Some(Ok(watch)) if error.kind() == io::ErrorKind::NotFound => {
                watch.changed().await.is_ok()
            }
            // Listening is awaited, or this user has no watches left.
            _ => false,
        };
        if !told {
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// A call's own error says less than the last words of a program that has ended.
pub(super) async fn unless_ended(
    spec: &MachineSpec,
    process: &Process,
    work: impl Future<Output = Result<(), VmmError>>,
) -> Result<(), VmmError> {
    tokio::select! {
        result = work => result,
        () = process.ended() => {
            Err(VmmError::Ended { during: "its set-up", log: log_tail(&spec.log) })
        }
    }
}

pub(super) fn of(dir: &Path, vm_id: &str) -> Sockets {
    let sockets = at(dir, vm_id);
    if sockets.api.as_os_str().len() > LONG {
        at(dir, &short_id(vm_id))
    } else {
        sockets
    }
}

pub(super) fn files(sockets: &Sockets) -> Vec<PathBuf> {
    let ready = listener_path(&sockets.channel, READY_PORT);
    vec![sockets.api.clone(), sockets.channel.clone(), ready]
}

fn at(dir: &Path, stem: &str) -> Sockets {
    Sockets {
        api: dir.join(format!("{stem}.sock")),
        channel: dir.join(format!("{stem}.v")),
    }
}

/// The id as Firecracker takes it, 64 characters at most.
pub(super) fn process_id(vm_id: &str) -> String {
    if vm_id.len() > 64 {
        short_id(vm_id)
    } else {
        vm_id.to_owned()
    }
}

fn short_id(vm_id: &str) -> String {
    let head: String = vm_id.chars().take(24).collect();
    let digest = hex::encode(Sha256::digest(vm_id.as_bytes()));
    format!("{head}-{}", &digest[..12])
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt as _;
    use proptest::prelude::*;
    use std::pin::pin;

    #[test]
    fn a_long_path_is_shortened_by_rule() {
        let short = of(Path::new("/tmp/fuse-fc-socks"), "vm-1");
        assert_eq!(short.api, Path::new("/tmp/fuse-fc-socks/vm-1.sock"));
        let id = "a".repeat(63);
        let long = of(
            Path::new("/var/lib/somewhere/rather/deep/fuse-fc-socks"),
            &id,
        );
        let stem = long.api.file_stem().unwrap().to_str().unwrap();
        assert_eq!(stem.len(), 24 + 1 + 12);
        assert!(stem.starts_with(&id[..24]));
    }

    #[tokio::test]
    async fn a_socket_is_open_once_somebody_listens() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().canonicalize().unwrap().join("s");
        let mut opened = pin!(until_open(&socket));
        assert!(opened.as_mut().now_or_never().is_none());
        // Another file, and one of the name that nobody listens at, are not it.
        fs::write(dir.path().join("other"), b"").unwrap();
        assert!(opened.as_mut().now_or_never().is_none());
        drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
        assert!(opened.as_mut().now_or_never().is_none());
        fs::remove_file(&socket).unwrap();
        let _listener = tokio::net::UnixListener::bind(&socket).unwrap();
        opened.await;
        // One that is there already.
        until_open(&socket).await;
    }

    #[test]
    fn a_directory_of_others_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("socks");
        prepare_dir(&dir, "FC").unwrap();
        prepare_dir(&dir, "FC").unwrap();
        let open: fs::Permissions = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(&dir, open).unwrap();
        assert!(matches!(
            prepare_dir(&dir, "FC"),
            Err(SocketDirError::Shared { .. })
        ));
        let deep = root.path().join("d".repeat(90));
        let error = prepare_dir(&deep, "QEMU").unwrap_err();
        assert!(error.to_string().contains("QEMU_SOCK_DIR"), "{error}");
        assert!(!deep.exists());
    }

    proptest! {
        #[test]
        fn every_path_of_an_accepted_directory_fits(dir in "/[a-z]{1,90}", id in "[a-z0-9]{1,100}") {
            let dir = Path::new(&dir);
            prop_assume!(longest_path(dir) <= SUN_PATH_MAX);
            for file in files(&of(dir, &id)) {
                prop_assert!(file.as_os_str().len() <= SUN_PATH_MAX);
            }
        }
    }
}
