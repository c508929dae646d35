//! What is stored of a VM: `vms/<vm_id>/meta.json`.
//!
//! A VM's directory appears in one step, meta included, and a meta is replaced in one step. So a
//! directory without a readable meta is damage, not a state, and everything a VM may own on the
//! host follows from its meta alone.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use fuse_wire_host::start_agent::Protocol;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::fail_point::place;
use crate::file_error::{FileError, failed};
use crate::gpu::Claim;
use crate::net::Slot;
use crate::vmm::ProcessId;

/// Name of the file.
const META: &str = "meta.json";
/// Directories being made are called like this until they are whole.
const STAGED: &str = ".new-";

/// How far a VM has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Its create has not been answered.
    Creating,
    /// Its guest has answered once.
    Ready,
    /// It is being removed.
    Deleting,
}

/// Everything stored of a VM. Field names in the file are compatibility facts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Meta {
    /// Id.
    pub vm_id: String,
    /// How far it has come. Files of earlier versions hold finished VMs only.
    #[serde(default = "Phase::ready")]
    pub phase: Phase,
    /// What was asked for.
    #[serde(flatten)]
    pub spec: Spec,
    /// Its number and what follows from it.
    #[serde(flatten)]
    pub slot: Slot,
    /// Its disks.
    #[serde(flatten)]
    pub disks: Disks,
    /// Its GPUs.
    #[serde(flatten)]
    pub gpus: Claim,
    /// UTC, seconds.
    pub created_at: String,
    /// Its VMM, if one was started.
    #[serde(flatten)]
    pub process: Option<ProcessId>,
    /// The guest kernel's id of its last boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_id: Option<String>,
    /// Release of the agent in its guest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest_version: Option<String>,
    /// The snapshot that its disk began with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed_snapshot: Option<String>,
    /// The VMM's control socket.
    pub sock: PathBuf,
    /// Whether the public surface has been started and its port leads to it.
    #[serde(default)]
    pub surface_published: bool,
    /// Published ports.
    #[serde(default)]
    pub expose_endpoints: Vec<Published>,
}

/// What was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// Name as requested.
    pub name: String,
    /// Virtual CPUs.
    pub cpus: u32,
    /// Memory in MiB.
    pub memory_mb: u32,
    /// Size of the writable disk in GiB.
    pub storage_gb: u32,
    /// Free text.
    #[serde(default)]
    pub region: String,
    /// Named image, if one was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Fleet that owns the VM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Memory in 2 MiB pages of the host.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub huge_pages: bool,
}

/// Disks of a VM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disks {
    /// The shared read-only base.
    pub rootfs: PathBuf,
    /// Its digest.
    pub image_digest: String,
    /// The VM's own disk.
    pub overlay: PathBuf,
}

/// A published port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Published {
    /// Name of the endpoint; may be empty.
    #[serde(rename = "as")]
    pub name: String,
    /// Port in the guest.
    pub port: u16,
    /// Port on the host.
    pub host_port: u16,
    /// Transport.
    #[serde(default)]
    pub protocol: Protocol,
}

impl Phase {
    fn ready() -> Self {
        Self::Ready
    }
}

/// State that cannot be read or written.
#[derive(Debug, Error)]
pub enum MetaError {
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// A meta that does not parse.
    #[error("{} does not parse", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The reason.
        #[source]
        source: serde_json::Error,
    },
}

/// What lies in the directory of VMs.
#[derive(Debug)]
pub enum Found {
    /// A VM.
    Vm(Box<Meta>),
    /// A directory that is not, or no longer, a VM's.
    Damaged {
        /// Its name.
        name: String,
        /// What is wrong.
        error: MetaError,
    },
}

/// The directory of VMs.
#[derive(Debug)]
pub struct Metas {
    root: PathBuf,
}

impl Metas {
    /// Opens `root` and removes directories that were never finished: they own nothing else.
    ///
    /// # Errors
    /// The directory cannot be made or read.
    pub fn open(root: PathBuf) -> Result<Self, MetaError> {
        fs::create_dir_all(&root).map_err(failed("create", &root))?;
        for entry in fs::read_dir(&root)
            .map_err(failed("read", &root))?
            .flatten()
        {
            if entry
                .file_name()
                .to_str()
                .is_some_and(|name| name.starts_with(STAGED))
            {
                fs::remove_dir_all(entry.path()).map_err(failed("remove", &entry.path()))?;
            }
        }
        Ok(Self { root })
    }

    /// Directory of a VM.
    #[must_use]
    pub fn dir(&self, vm_id: &str) -> PathBuf {
        self.root.join(vm_id)
    }

    /// Makes the directory of a new VM with its meta inside.
    ///
    /// # Errors
    /// The directory exists or a file operation fails.
    pub fn create(&self, meta: &Meta) -> Result<(), MetaError> {
        let staged = self.root.join(format!("{STAGED}{}", meta.vm_id));
        let dir = self.dir(&meta.vm_id);
        fs::create_dir(&staged).map_err(failed("create", &staged))?;
        // Not synced: after a crash of the host nothing else of the VM exists either.
        let made = write(&staged.join(META), meta, Sync::No)
            .and_then(|()| Ok(fs::rename(&staged, &dir).map_err(failed("create", &dir))?));
        if made.is_err() {
            let _best_effort = fs::remove_dir_all(&staged);
        }
        made
    }

    /// Replaces a meta, so that the old or the new one is there after a crash.
    ///
    /// # Errors
    /// A file operation fails; the old one is still there.
    pub fn save(&self, meta: &Meta) -> Result<(), MetaError> {
        let dir = self.dir(&meta.vm_id);
        let (path, partial) = (dir.join(META), dir.join("meta.tmp"));
        place("save: before");
        write(&partial, meta, Sync::Yes)?;
        place("save: written");
        fs::rename(&partial, &path).map_err(failed("replace", &path))?;
        place("save: replaced");
        let synced = fs::File::open(&dir).and_then(|d| d.sync_all());
        Ok(synced.map_err(failed("sync", &dir))?)
    }

    /// Everything in the directory, sorted by name.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn load(&self) -> Result<Vec<Found>, MetaError> {
        let entries = fs::read_dir(&self.root).map_err(failed("read", &self.root))?;
        let mut names: Vec<_> = entries
            .flatten()
            .filter_map(|e| e.file_name().into_string().ok())
            .collect();
        names.sort();
        let found = names
            .into_iter()
            .map(|name| match read(&self.dir(&name).join(META)) {
                Ok(meta) if meta.vm_id == name => Found::Vm(Box::new(meta)),
                Ok(_) => Found::Damaged {
                    error: failed("believe", &self.dir(&name).join(META))(io::Error::other(
                        "it names another VM",
                    ))
                    .into(),
                    name,
                },
                Err(error) => Found::Damaged { name, error },
            });
        Ok(found.collect())
    }

    /// Removes a VM's directory. Succeeds when it is gone.
    ///
    /// # Errors
    /// A file operation fails.
    pub fn remove(&self, vm_id: &str) -> io::Result<()> {
        match fs::remove_dir_all(self.dir(vm_id)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Sync {
    Yes,
    No,
}

fn write(path: &Path, meta: &Meta, sync: Sync) -> Result<(), MetaError> {
    let text = serde_json::to_vec_pretty(meta).map_err(|source| MetaError::Damaged {
        path: path.to_owned(),
        source,
    })?;
    let mut out = fs::File::create(path).map_err(failed("create", path))?;
    out.write_all(&text).map_err(failed("write", path))?;
    if sync == Sync::Yes {
        out.sync_all().map_err(failed("sync", path))?;
    }
    Ok(())
}

fn read(path: &Path) -> Result<Meta, MetaError> {
    let text = fs::read(path).map_err(failed("read", path))?;
    serde_json::from_slice(&text).map_err(|source| MetaError::Damaged {
        path: path.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::NetPlan;

    fn meta(vm_id: &str) -> Meta {
        Meta {
            vm_id: vm_id.into(),
            phase: Phase::Creating,
            spec: Spec {
                name: vm_id.into(),
                cpus: 1,
                memory_mb: 512,
                storage_gb: 10,
                region: String::new(),
                image: None,
                owner: Some("fleet".into()),
                huge_pages: false,
            },
            slot: NetPlan::new("fcv", "10.200.0.0/16", 19550, 9)
                .unwrap()
                .slot(3),
            disks: Disks {
                rootfs: "/base".into(),
                image_digest: "d".into(),
                overlay: "/overlay".into(),
            },
            gpus: Claim {
                gpus: 1,
                kind: "a100".into(),
                slots: vec!["0000:65:00.0".parse().unwrap()],
                ..Claim::default()
            },
            created_at: "2026-01-01T00:00:00Z".into(),
            process: None,
            boot_id: None,
            guest_version: None,
            seed_snapshot: None,
            sock: "/s".into(),
            surface_published: false,
            expose_endpoints: Vec::new(),
        }
    }

    #[test]
    fn a_meta_survives_and_keeps_the_names_of_the_contract() {
        let dir = tempfile::tempdir().unwrap();
        let metas = Metas::open(dir.path().to_owned()).unwrap();
        let mut vm = meta("vm-1");
        metas.create(&vm).unwrap();
        vm.phase = Phase::Ready;
        vm.process = Some(ProcessId { pid: 7, start: 9 });
        metas.save(&vm).unwrap();
        let found = metas.load().unwrap();
        assert!(matches!(&found[..], [Found::Vm(m)] if **m == vm));
        let text = fs::read_to_string(dir.path().join("vm-1/meta.json")).unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        for (field, want) in [
            ("index", "3"),
            ("tap", "\"fcv3\""),
            ("guest_ip", "\"10.200.3.2\""),
            ("mac", "\"06:00:AC:10:03:02\""),
            ("host_port", "19553"),
            ("pid", "7"),
            ("storage_gb", "10"),
            ("gpus", "1"),
            ("gpu_kind", "\"a100\""),
            ("gpu_slots", "[\"0000:65:00.0\"]"),
            // A whole GPU has neither.
            ("gpu_profile", "null"),
            ("gpu_mdevs", "null"),
        ] {
            assert_eq!(value[field].to_string(), want, "{field}");
        }
    }

    #[test]
    fn a_name_is_taken_once_and_unfinished_directories_go() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join(".new-left")).unwrap();
        let metas = Metas::open(dir.path().to_owned()).unwrap();
        metas.create(&meta("vm-1")).unwrap();
        assert!(metas.create(&meta("vm-1")).is_err());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        metas.remove("vm-1").unwrap();
        metas.remove("vm-1").unwrap();
        assert!(metas.load().unwrap().is_empty());
    }

    #[test]
    fn damage_is_reported_not_taken_for_a_vm() {
        let dir = tempfile::tempdir().unwrap();
        let metas = Metas::open(dir.path().to_owned()).unwrap();
        fs::create_dir(dir.path().join("empty")).unwrap();
        fs::create_dir(dir.path().join("broken")).unwrap();
        fs::write(dir.path().join("broken/meta.json"), b"{").unwrap();
        metas.create(&meta("vm-1")).unwrap();
        fs::rename(dir.path().join("vm-1"), dir.path().join("moved")).unwrap();
        let found = metas.load().unwrap();
        assert!(
            found.iter().all(|f| matches!(f, Found::Damaged { .. })),
            "{found:?}"
        );
        assert_eq!(found.len(), 3);
    }
}
