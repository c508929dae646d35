//! Firecracker behind its jailer: a root directory and a user of its own for every VM.
//!
//! ```text
//! <dir>/<name of the VMM>/<id>/root/     what the VMM sees as /
//!     run/api.sock run/v.sock            its sockets
//!     kernel initrd base overlay         links to what the VM is made of
//!     vmstate mem                        while a snapshot is written or loaded
//! ```
//!
//! Everything that a jail is, is data here: the jailer's arguments, and which file is lent under which
//! name with which right. Nothing in a jail is believed by the host: what it finds there is opened
//! without following links, and what it takes out of there is moved, not read.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};

use super::sockets::process_id;
use crate::net::Index;
use crate::vmm::Sockets;

/// Where VMMs are jailed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Jailer {
    /// The jailer.
    pub program: PathBuf,
    /// What holds the jails; on the file system of the VMs' disks, because links cross none.
    pub dir: PathBuf,
    /// The user of VM number 0; each VM has the user of its number.
    pub first_uid: u32,
}

/// The jail of one VM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Jail {
    root: PathBuf,
    id: String,
    uid: u32,
}

/// What a VMM may do with a file that it is lent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Right {
    Read,
    Write,
}

impl Jailer {
    /// The user of a VM, and its group.
    pub(super) fn uid(&self, number: Index) -> u32 {
        self.first_uid + u32::from(number)
    }

    /// The jail of a VM of this number that runs `vmm`.
    pub(super) fn jail(&self, vmm: &Path, vm_id: &str, number: Index) -> Jail {
        Jail {
            root: self.home(vmm, vm_id).join("root"),
            id: process_id(vm_id),
            uid: self.uid(number),
        }
    }

    /// What is to be removed with a VM.
    pub(super) fn home(&self, vmm: &Path, vm_id: &str) -> PathBuf {
        let name = vmm.file_name().unwrap_or_default();
        self.dir.join(name).join(process_id(vm_id))
    }

    /// Its sockets, as the host reaches them.
    pub(super) fn sockets(&self, vmm: &Path, vm_id: &str) -> Sockets {
        let run = self.home(vmm, vm_id).join("root/run");
        Sockets {
            api: run.join("api.sock"),
            channel: run.join("v.sock"),
        }
    }

    /// Arguments that make the jailer run `vmm` in `jail`. Control groups are the agent's: the jailer
    /// is started in the VM's and is told of none.
    pub(super) fn arguments(&self, jail: &Jail, vmm: &Path) -> Vec<OsString> {
        let uid = jail.uid.to_string();
        let pairs: [(&str, OsString); 5] = [
            ("--id", jail.id.clone().into()),
            ("--exec-file", vmm.into()),
            ("--uid", uid.clone().into()),
            ("--gid", uid.into()),
            ("--chroot-base-dir", self.dir.clone().into()),
        ];
        let mut arguments: Vec<OsString> = pairs
            .into_iter()
            .flat_map(|(name, value)| [name.into(), value])
            .collect();
        arguments.extend(["--", "--api-sock", "/run/api.sock"].map(OsString::from));
        arguments
    }
}

impl Jail {
    /// The jail that sockets are in. Enough for taking files out of it.
    pub(super) fn of(sockets: &Sockets) -> Option<Self> {
        let root = sockets.api.parent()?.parent()?.to_owned();
        let id = root.parent()?.file_name()?.to_str()?.to_owned();
        Some(Self { root, id, uid: 0 })
    }

    /// Makes the directory of the sockets, for its user alone.
    pub(super) fn prepare(&self) -> io::Result<()> {
        let run = self.root.join("run");
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(0o700).create(&run)?;
        for dir in [&self.root, &run] {
            chown(dir, Some(self.uid), Some(self.uid))?;
        }
        Ok(())
    }

    /// Puts `file` into the jail and returns the path that it has there.
    pub(super) fn lend(&self, file: &Path, name: &str, right: Right) -> io::Result<PathBuf> {
        let meta = fs::metadata(file)?;
        match right {
            // Nobody but root reaches it where it is.
            Right::Read => {
                let mode = meta.permissions().mode();
                if mode & 0o444 != 0o444 {
                    fs::set_permissions(file, fs::Permissions::from_mode(mode | 0o444))?;
                }
            }
            Right::Write => {
                chown(file, Some(self.uid), Some(self.uid))?;
                fs::set_permissions(file, fs::Permissions::from_mode(0o600))?;
            }
        }
        let lent = self.root.join(name);
        remove(&lent)?;
        // A link as a name of a kernel is fine, a link in the jail would lead nowhere.
        let file = fs::canonicalize(file)?;
        match fs::hard_link(&file, &lent) {
            // A kernel on another file system; a disk there would no longer be the VM's.
            Err(error) if error.kind() == io::ErrorKind::CrossesDevices && right == Right::Read => {
                fs::copy(&file, &lent)?;
                fs::set_permissions(&lent, fs::Permissions::from_mode(0o444))?;
            }
            linked => linked?,
        }
        Ok(Path::new("/").join(name))
    }

    /// Moves a file that the VMM wrote out of the jail.
    pub(super) fn take(&self, name: &str, to: &Path) -> io::Result<()> {
        let written = self.root.join(name);
        if !fs::symlink_metadata(&written)?.is_file() {
            return Err(io::Error::other(
                "the VMM has put something else in the file's place",
            ));
        }
        fs::rename(&written, to)?;
        let moved = fs::symlink_metadata(to)?;
        // Between the look and the move it may have been exchanged.
        if !moved.is_file() || moved.nlink() != 1 {
            fs::remove_file(to)?;
            return Err(io::Error::other("the VMM has exchanged the file"));
        }
        std::os::unix::fs::lchown(to, Some(0), Some(0))?;
        fs::set_permissions(to, fs::Permissions::from_mode(0o600))
    }

    /// Removes what is left of a file in the jail.
    pub(super) fn give_back(&self, name: &str) {
        if let Err(error) = remove(&self.root.join(name)) {
            tracing::warn!(name, %error, "a file stays in a jail");
        }
    }
}

fn remove(file: &Path) -> io::Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
