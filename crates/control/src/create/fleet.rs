//! The hosts of a large fleet, kept for a moment between placements.
//!
//! Reading ten thousand rows takes longer than a create may, so in fleets above
//! [`KEPT_FROM`] a replica places on a picture that is up to [`FRESH`] old and charges
//! its own placements to it. While it is in use it is taken anew in the background, one
//! reader at a time, so that requests do not wait for it, let alone all at once. Nothing rests on the picture: the store charges a host only
//! if it is active and has room, a request that does not fit is placed anew on rows just
//! read, and small fleets are read every time.

use std::{
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use fuse_model::{EnvironmentSpec, Host, HostId};

/// Fleets of fewer hosts are read for every placement.
const KEPT_FROM: usize = 500;
/// How long a picture is used.
const FRESH: Duration = Duration::from_secs(1);
/// The age from which on the next one is read.
const DUE: Duration = Duration::from_millis(400);

#[derive(Debug)]
struct Picture {
    /// Sorted by id.
    hosts: Vec<Host>,
    read_at: Instant,
}

/// The picture of this replica.
#[derive(Debug, Default)]
pub(crate) struct Fleet {
    picture: Mutex<Option<Picture>>,
    is_read: AtomicBool,
}

/// The one reader of the next picture.
pub(super) struct Reader<'a>(&'a Fleet);

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        self.0.is_read.store(false, Ordering::Release);
    }
}

impl Fleet {
    fn lock(&self) -> MutexGuard<'_, Option<Picture>> {
        // A picture is replaced as a whole, so a panicked holder left it usable.
        self.picture.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps what was just read, if that is worth it.
    pub(crate) fn keep(&self, hosts: Vec<Host>) {
        if hosts.len() >= KEPT_FROM {
            let read_at = Instant::now();
            *self.lock() = Some(Picture { hosts, read_at });
        }
    }

    /// Whether the next picture is to be read and nobody does. Without a picture there is
    /// nobody to read one for.
    pub(super) fn is_due(&self) -> bool {
        let read_at = self.lock().as_ref().map(|picture| picture.read_at);
        read_at.is_some_and(|at| at.elapsed() >= DUE) && !self.is_read.load(Ordering::Acquire)
    }

    /// Who reads it; `None` when it is not due any more, or somebody was faster.
    pub(super) fn reader(&self) -> Option<Reader<'_>> {
        (self.is_due() && !self.is_read.swap(true, Ordering::AcqRel)).then(|| Reader(self))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time_reads_what_is_due() {
        let fleet = Fleet::default();
        assert!(fleet.reader().is_none(), "there is nothing to follow");
        let aged = |age| Picture {
            hosts: Vec::new(),
            read_at: Instant::now().checked_sub(age).unwrap(),
        };
        *fleet.lock() = Some(aged(Duration::ZERO));
        assert!(fleet.reader().is_none(), "it is not due");
        *fleet.lock() = Some(aged(DUE));
        let reader = fleet.reader();
        assert!(reader.is_some() && fleet.reader().is_none() && !fleet.is_due());
        drop(reader);
        assert!(fleet.is_due() && fleet.reader().is_some());
    }
}
