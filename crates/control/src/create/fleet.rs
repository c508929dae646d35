//! The hosts of a large fleet, kept for a moment between placements.
//!
//! Reading ten thousand rows takes longer than a create may, so in fleets above
//! [`KEPT_FROM`] a replica places on a picture that is up to [`FRESH`] old and charges
//! its own placements to it. Nothing rests on the picture: the store charges a host only
//! if it is active and has room, a request that does not fit is placed anew on rows just
//! read, and small fleets are read every time.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use fuse_model::{EnvironmentSpec, Host, HostId};

/// Fleets of fewer hosts are read for every placement.
const KEPT_FROM: usize = 500;
/// How long a picture is used.
const FRESH: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Picture {
    /// Sorted by id.
    hosts: Vec<Host>,
    read_at: Instant,
}

/// The picture of this replica.
#[derive(Debug, Default)]
pub(crate) struct Fleet(Mutex<Option<Picture>>);

impl Fleet {
    fn lock(&self) -> MutexGuard<'_, Option<Picture>> {
        // A picture is replaced as a whole, so a panicked holder left it usable.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps what was just read, if that is worth it.
    pub(crate) fn keep(&self, hosts: Vec<Host>) {
        if hosts.len() >= KEPT_FROM {
            let read_at = Instant::now();
            *self.lock() = Some(Picture { hosts, read_at });
        }
    }

    /// Forgets the picture: a host was changed here, or the store disagreed with it.
    pub(crate) fn forget(&self) {
        *self.lock() = None;
    }

    /// Lets `choose` pick from the picture and charges the environment to its choice.
    /// `None` without a fresh picture, and when nothing was chosen.
    pub(crate) fn choose<T>(
        &self,
        spec: &EnvironmentSpec,
        choose: impl FnOnce(&[Host]) -> Option<(HostId, T)>,
    ) -> Option<T> {
        // Which GPU units are free is for the store to say.
        if spec.gpus > 0 {
            return None;
        }
        let mut kept = self.lock();
        let picture = kept
            .as_mut()
            .filter(|picture| picture.read_at.elapsed() < FRESH)?;
        let (id, chosen) = choose(&picture.hosts)?;
        let at = picture
            .hosts
            .binary_search_by(|host| host.id.cmp(&id))
            .ok()?;
        let taken = &mut picture.hosts.get_mut(at)?.allocated;
        let need = spec.resources();
        taken.cpus = taken.cpus.saturating_add(need.cpus);
        taken.ram_mb = taken.ram_mb.saturating_add(need.ram_mb);
        taken.storage_gb = taken.storage_gb.saturating_add(need.storage_gb);
        taken.vm_count = taken.vm_count.saturating_add(1);
        Some(chosen)
    }
}
