//! Unix sockets in directories that a VMM may write to.
//!
//! A VMM that a guest has taken over could put links where the host expects its sockets, and have
//! the host talk to somebody else's. So nothing here follows one. Paths may be longer than the
//! address of a socket: what the kernel is given is a descriptor.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, ResolveFlags, Uid};
use tokio::net::{UnixListener, UnixStream};

/// Connects to the socket at `path`, no part of which may be a link.
///
/// # Errors
/// It is not there, is reached through a link, or nobody listens.
pub(crate) async fn connect(path: &Path) -> io::Result<UnixStream> {
    let socket = open(path, OFlags::empty())?;
    UnixStream::connect(named(&socket)).await
}

/// Listens at `path`, for this process and for whoever owns the directory. What is there already goes.
///
/// # Errors
/// The directory is reached through a link, or the socket cannot be made.
pub(crate) fn listen(path: &Path) -> io::Result<UnixListener> {
    let (dir, name) = parent(path)?;
    let _stale = rustix::fs::unlinkat(&dir, name, AtFlags::empty());
    let listener = UnixListener::bind(named(&dir).join(name))?;
    let socket = open(path, OFlags::empty())?;
    let (made, owner) = (rustix::fs::fstat(&socket)?, rustix::fs::fstat(&dir)?);
    // By descriptor: the name may be another file's by now.
    if FileType::from_raw_mode(made.st_mode) != FileType::Socket {
        return Err(io::Error::other(
            "somebody has put another file in the socket's place",
        ));
    }
    if made.st_uid != owner.st_uid {
        let (uid, gid) = (Uid::from_raw(owner.st_uid), Gid::from_raw(owner.st_gid));
        rustix::fs::chownat(&socket, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH)?;
    }
    Ok(listener)
}

/// Removes the socket at `path`.
///
/// # Errors
/// It is not there, or its directory is reached through a link.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    let (dir, name) = parent(path)?;
    Ok(rustix::fs::unlinkat(&dir, name, AtFlags::empty())?)
}

/// Takes the rights of others at a socket away.
///
/// # Errors
/// It is not there, or is no socket.
pub(crate) fn make_private(path: &Path) -> io::Result<()> {
    let socket = open(path, OFlags::empty())?;
    let made = rustix::fs::fstat(&socket)?;
    if FileType::from_raw_mode(made.st_mode) != FileType::Socket {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    std::fs::set_permissions(
        named(&socket),
        std::os::unix::fs::PermissionsExt::from_mode(0o600),
    )
}

fn parent(path: &Path) -> io::Result<(OwnedFd, &OsStr)> {
    match (path.parent(), path.file_name()) {
        (Some(dir), Some(name)) => Ok((open(dir, OFlags::DIRECTORY)?, name)),
        _ => Err(io::Error::from(io::ErrorKind::InvalidInput)),
    }
}

fn open(path: &Path, more: OFlags) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC | more;
    let resolve = ResolveFlags::NO_SYMLINKS;
    Ok(rustix::fs::openat2(
        CWD,
        path,
        flags,
        Mode::empty(),
        resolve,
    )?)
}

fn named(fd: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, symlink};

    use super::*;

    #[tokio::test]
    async fn a_long_path_is_served_and_private() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("d".repeat(120));
        std::fs::create_dir(&deep).unwrap();
        let path = deep.join("s");
        std::fs::write(&path, "stale").unwrap();
        let listener = listen(&path).unwrap();
        make_private(&path).unwrap();
        let (accepted, connected) = tokio::join!(listener.accept(), connect(&path));
        accepted.unwrap();
        connected.unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    }

    #[tokio::test]
    async fn links_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let [victim, jail] = ["victim", "jail"].map(|name| {
            let path = dir.path().join(name);
            std::fs::create_dir(&path).unwrap();
            path
        });
        let _victim = listen(&victim.join("s")).unwrap();
        // The socket itself is one, and then the directory that it is in.
        symlink(victim.join("s"), jail.join("s")).unwrap();
        symlink(&victim, jail.join("run")).unwrap();
        for path in [jail.join("s"), jail.join("run/s")] {
            assert!(connect(&path).await.is_err(), "{}", path.display());
            assert!(make_private(&path).is_err());
        }
        assert!(listen(&jail.join("run/new")).is_err());
        assert!(!victim.join("new").exists());
        // A link in the place of a new socket goes, and what it leads to stays.
        let _own = listen(&jail.join("s")).unwrap();
        connect(&victim.join("s")).await.unwrap();
    }

    #[tokio::test]
    async fn the_owner_of_the_directory_may_dial() {
        if !nix::unistd::geteuid().is_root() {
            return crate::testing::skip("needs root to give a directory away");
        }
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::chown(dir.path(), Some(4242), Some(4242)).unwrap();
        let _listener = listen(&dir.path().join("s")).unwrap();
        let made = std::fs::metadata(dir.path().join("s")).unwrap();
        assert_eq!((made.uid(), made.gid()), (4242, 4242));
    }
}
