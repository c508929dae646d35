//! The directory of snapshots and the table of what is in it.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fuse_wire_host::Snapshot;
use thiserror::Error;

use super::record::{Files, Stored};
use crate::fail_point::place;
use crate::file_error::{FileError, failed};
use crate::report::chain;

const META: &str = "meta.json";
const STAGED: &str = ".new-";
const REMOVED: &str = ".old-";
/// Where disks from other hosts arrive, if there is no place for them beside the snapshots.
pub const ARRIVING: &str = ".pulls";

/// A snapshot that cannot be had.
#[derive(Debug, Error)]
pub enum StoreError {
    /// There is none of that id.
    #[error("snapshot not found")]
    NotFound,
    /// It is being read.
    #[error("snapshot {id} is in use")]
    InUse {
        /// Its id.
        id: String,
    },
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] FileError),
}

/// All snapshots of the host.
#[derive(Debug)]
pub struct Snapshots {
    root: PathBuf,
    table: Mutex<HashMap<String, Entry>>,
}

#[derive(Debug)]
struct Entry {
    stored: Arc<Stored>,
    users: usize,
}

impl Snapshots {
    /// Opens `root`, and removes what was never finished.
    ///
    /// # Errors
    /// The directory cannot be made or read, or an unfinished snapshot not removed.
    pub fn open(root: PathBuf) -> Result<Self, FileError> {
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(0o700);
        builder.create(&root).map_err(failed("create", &root))?;
        let mut table = HashMap::new();
        for entry in fs::read_dir(&root)
            .map_err(failed("read", &root))?
            .flatten()
        {
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            let path = entry.path();
            if name.starts_with(STAGED) || name.starts_with(REMOVED) {
                fs::remove_dir_all(&path).map_err(failed("remove", &path))?;
                continue;
            }
            if name == ARRIVING {
                continue;
            }
            match read(&path, &name) {
                Ok(stored) => {
                    let stored = Arc::new(stored);
                    table.insert(name, Entry { stored, users: 0 });
                }
                Err(error) => {
                    let error = chain(&error);
                    tracing::error!(
                        name,
                        error,
                        "not a snapshot; look at it and remove it by hand"
                    );
                }
            }
        }
        Ok(Self {
            root,
            table: Mutex::new(table),
        })
    }

    /// A place for a new snapshot.
    ///
    /// # Errors
    /// The directory cannot be made.
    pub fn stage(&self) -> Result<Staged, FileError> {
        let seconds = jiff::Timestamp::now().as_second();
        self.stage_as(format!(
            "snap-{seconds}-{:06x}",
            rand::random::<u32>() & 0x00ff_ffff
        ))
    }

    /// A place for a new snapshot whose id is known; no other one may be at work on it.
    ///
    /// # Errors
    /// The directory cannot be made.
    pub fn stage_as(&self, id: String) -> Result<Staged, FileError> {
        let dir = self.root.join(format!("{STAGED}{id}"));
        let mut builder = fs::DirBuilder::new();
        builder.mode(0o700);
        builder.create(&dir).map_err(failed("create", &dir))?;
        place("snapshot: staged");
        Ok(Staged { id, dir })
    }

    /// Makes a staged snapshot durable and visible. Fills in id, time and size.
    ///
    /// # Errors
    /// A file operation fails; nothing of it is left once `staged` is dropped.
    pub fn commit(&self, staged: &Staged, mut stored: Stored) -> Result<Snapshot, FileError> {
        let (now, id) = (jiff::Timestamp::now(), staged.id.clone());
        stored.view.snapshot_id.clone_from(&id);
        stored.view.created_at = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        stored.view.size_bytes = 0;
        for path in staged.files().of_kind(stored.view.kind) {
            let file = File::open(&path).map_err(failed("open", &path))?;
            file.sync_all().map_err(failed("sync", &path))?;
            let meta = file.metadata().map_err(failed("read", &path))?;
            stored.view.size_bytes += meta.blocks() * 512;
        }
        write(&staged.dir.join(META), &stored)?;
        sync_dir(&staged.dir)?;
        let dir = self.root.join(&id);
        place("snapshot: written");
        fs::rename(&staged.dir, &dir).map_err(failed("create", &dir))?;
        place("snapshot: there");
        sync_dir(&self.root)?;
        let view = stored.view.clone();
        let stored = Arc::new(stored);
        self.lock().insert(id, Entry { stored, users: 0 });
        Ok(view)
    }

    /// Those taken of a VM, oldest first.
    #[must_use]
    pub fn of_vm(&self, vm_id: &str) -> Vec<Snapshot> {
        let table = self.lock();
        let views = table.values().map(|entry| &entry.stored.view);
        let mut views: Vec<_> = views
            .filter(|view| view.origin_vm_id == vm_id)
            .cloned()
            .collect();
        drop(table);
        let key = |view: &Snapshot| (view.created_at.clone(), view.snapshot_id.clone());
        views.sort_by_key(key);
        views
    }

    /// What all of them take up, in bytes.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        let table = self.lock();
        table
            .values()
            .map(|entry| entry.stored.view.size_bytes)
            .sum()
    }

    /// What is stored under an id.
    #[must_use]
    pub fn get(&self, id: &str) -> Option<Arc<Stored>> {
        Some(Arc::clone(&self.lock().get(id)?.stored))
    }

    /// Keeps some snapshot with this digest from being removed for as long as the result lives.
    #[must_use]
    pub fn hold_digest(self: &Arc<Self>, digest: &str) -> Option<Held> {
        let mut table = self.lock();
        let entry = table
            .values_mut()
            .find(|entry| entry.stored.view.digest == digest)?;
        entry.users += 1;
        Some(Held {
            store: Arc::clone(self),
            stored: Arc::clone(&entry.stored),
        })
    }

    /// Keeps a snapshot from being removed for as long as the result lives.
    ///
    /// # Errors
    /// There is none of that id.
    pub fn hold(self: &Arc<Self>, id: &str) -> Result<Held, StoreError> {
        let mut table = self.lock();
        let entry = table.get_mut(id).ok_or(StoreError::NotFound)?;
        entry.users += 1;
        Ok(Held {
            store: Arc::clone(self),
            stored: Arc::clone(&entry.stored),
        })
    }

    /// Removes a snapshot.
    ///
    /// # Errors
    /// There is none, it is in use, or a file operation fails; what is left then goes at the next
    /// start.
    pub fn remove(&self, id: &str) -> Result<(), StoreError> {
        let removed = self.root.join(format!("{REMOVED}{id}"));
        {
            // Held for the rename, so that whoever asks next finds the table and the directory agree.
            let mut table = self.lock();
            match table.get(id) {
                None => return Err(StoreError::NotFound),
                Some(entry) if entry.users > 0 => {
                    return Err(StoreError::InUse { id: id.to_owned() });
                }
                Some(_) => {}
            }
            let dir = self.root.join(id);
            match fs::rename(&dir, &removed) {
                // Somebody has removed it by hand: it is gone all the same.
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(failed("remove", &dir)(error).into());
                }
                _ => {}
            }
            table.remove(id);
        }
        place("snapshot: hidden");
        sync_dir(&self.root)?;
        let gone = fs::remove_dir_all(&removed);
        place("snapshot: gone");
        match gone {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(failed("remove", &removed)(error).into())
            }
            _ => Ok(()),
        }
    }

    /// Directory that holds them.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.root
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Entry>> {
        // Every change is a single insert, remove or count.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A snapshot that is being taken. Dropping it removes what there is.
#[derive(Debug)]
pub struct Staged {
    id: String,
    dir: PathBuf,
}

impl Staged {
    /// Where its files go.
    #[must_use]
    pub fn files(&self) -> Files {
        Files::new(self.dir.clone())
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        match fs::remove_dir_all(&self.dir) {
            // Gone after a commit.
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(dir = %self.dir.display(), %error, "half a snapshot not removed");
            }
            _ => {}
        }
    }
}

/// A snapshot that stays while this lives.
#[derive(Debug)]
pub struct Held {
    store: Arc<Snapshots>,
    stored: Arc<Stored>,
}

impl Held {
    /// What is stored of it.
    #[must_use]
    pub fn stored(&self) -> &Stored {
        &self.stored
    }

    /// Its files.
    #[must_use]
    pub fn files(&self) -> Files {
        Files::new(self.store.root.join(&self.stored.view.snapshot_id))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(entry) = self.store.lock().get_mut(&self.stored.view.snapshot_id) {
            entry.users -= 1;
        }
    }
}

fn sync_dir(dir: &Path) -> Result<(), FileError> {
    let synced = File::open(dir).and_then(|dir| dir.sync_all());
    synced.map_err(failed("sync", dir))
}

fn write(path: &Path, stored: &Stored) -> Result<(), FileError> {
    let text = serde_json::to_vec_pretty(stored).map_err(io::Error::from);
    let text = text.map_err(failed("write", path))?;
    let mut file = File::create(path).map_err(failed("create", path))?;
    file.write_all(&text).map_err(failed("write", path))?;
    file.sync_all().map_err(failed("sync", path))
}

fn read(dir: &Path, name: &str) -> Result<Stored, FileError> {
    let path = dir.join(META);
    let text = fs::read(&path).map_err(failed("read", &path))?;
    let stored: Result<Stored, _> = serde_json::from_slice(&text);
    let stored = stored
        .map_err(io::Error::from)
        .map_err(failed("read", &path))?;
    if stored.view.snapshot_id != name {
        return Err(failed("believe", &path)(io::Error::other(
            "it names another snapshot",
        )));
    }
    Ok(stored)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fuse_wire_host::SnapshotKind;

    fn stored(vm: &str) -> Stored {
        Stored {
            view: Snapshot {
                origin_vm_id: vm.into(),
                digest: "d".into(),
                ..Snapshot::default()
            },
            storage_gb: 1,
            index: 3,
            boot_id: None,
            guest_version: None,
            blocks: Some(2),
            source_peer: None,
        }
    }

    fn open(dir: &Path) -> Arc<Snapshots> {
        Arc::new(Snapshots::open(dir.to_owned()).unwrap())
    }

    fn entries(dir: &Path) -> usize {
        fs::read_dir(dir).unwrap().count()
    }

    fn take(store: &Snapshots, vm: &str) -> Snapshot {
        let staged = store.stage().unwrap();
        fs::write(staged.files().overlay(), vec![1; 8192]).unwrap();
        store.commit(&staged, stored(vm)).unwrap()
    }

    #[test]
    fn a_snapshot_survives_and_is_removed_once() {
        let dir = tempfile::tempdir().unwrap();
        let taken = take(&open(dir.path()), "vm-1");
        assert!(taken.size_bytes >= 8192, "{taken:?}");
        let store = open(dir.path());
        assert_eq!(store.of_vm("vm-1"), std::slice::from_ref(&taken));
        assert!(store.of_vm("vm-2").is_empty());
        let id = &taken.snapshot_id;
        let held = store.hold(id).unwrap();
        assert!(held.files().overlay().exists());
        assert!(matches!(store.remove(id), Err(StoreError::InUse { .. })));
        drop(held);
        store.remove(id).unwrap();
        assert!(matches!(store.remove(id), Err(StoreError::NotFound)));
        assert!(matches!(store.hold(id), Err(StoreError::NotFound)));
        assert_eq!(entries(dir.path()), 0);
    }

    #[test]
    fn half_a_snapshot_is_never_visible() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path());
        let staged = store.stage().unwrap();
        let mut live = stored("vm");
        live.view.kind = SnapshotKind::Live;
        fs::write(staged.files().overlay(), b"x").unwrap();
        // The memory is missing.
        store.commit(&staged, live).unwrap_err();
        drop(staged);
        assert!(store.of_vm("vm").is_empty());
        assert_eq!(entries(dir.path()), 0);
        // The agent is killed while it takes one.
        std::mem::forget(store.stage().unwrap());
        fs::create_dir(dir.path().join(".old-snap-1")).unwrap();
        assert_eq!(entries(dir.path()), 2);
        open(dir.path());
        assert_eq!(entries(dir.path()), 0);
    }

    #[test]
    fn damage_is_left_for_somebody_to_look_at() {
        let dir = tempfile::tempdir().unwrap();
        let taken = take(&open(dir.path()), "vm");
        fs::rename(dir.path().join(taken.snapshot_id), dir.path().join("moved")).unwrap();
        assert!(open(dir.path()).of_vm("vm").is_empty());
        assert!(dir.path().join("moved").exists());
    }
}
