//! The snapshot that a new environment starts from. Hosts that have its disk come first;
//! another one has it copied there before the boot, if it can be.

use fuse_model::{
    Arch, Backend, Environment, EnvironmentSpec, Host, HostId, Snapshot, SnapshotId, SnapshotKind,
};
use fuse_planner::PlacementError;
use fuse_wire_api::CheckedCreate;

use super::failure::BootError;
use crate::{
    Control, Error,
    error::PlacementRefusal,
    snapshot::{LINEAGE, check_ready},
};

/// The backend whose hosts start environments from snapshots.
pub(crate) const SEEDED: Backend = Backend::Firecracker;

/// A seed that is usable, and where it is.
pub(crate) struct Seed {
    snapshot: Snapshot,
    /// Its own host, which is the only one that it can run on if it cannot move.
    host: HostId,
    holders: Vec<HostId>,
}

impl Control {
    /// Looks up the seed that a request of `tenant` names, if any.
    ///
    /// # Errors
    /// It does not exist or is not usable, or the store fails.
    pub(super) async fn seed_of(
        &self,
        request: &CheckedCreate,
        tenant: &str,
    ) -> Result<Option<Seed>, Error> {
        let Some(seed) = self.find_seed(&request.seed_snapshot_id, tenant).await? else {
            return Ok(None);
        };
        if request.spec.gpus > 0 {
            return Err(seed.unusable("it cannot seed an environment with gpus"));
        }
        if !self.inner.store.snapshot_touch(&seed.snapshot.id).await? {
            return Err(seed.unusable("it is being deleted"));
        }
        Ok(Some(seed))
    }

    /// The seed of this id, which may be empty, for somebody who only asks: that is no use of it.
    ///
    /// # Errors
    /// As [`Control::seed_of`].
    pub(crate) async fn find_seed(&self, id: &str, tenant: &str) -> Result<Option<Seed>, Error> {
        if id.is_empty() {
            return Ok(None);
        }
        let snapshot = self.snapshot_for(&SnapshotId::new(id), tenant).await?;
        check_ready(&snapshot)?;
        if snapshot.kind == SnapshotKind::Live {
            let why = "a live snapshot cannot seed an environment";
            return Err(unusable(&snapshot, why));
        }
        let host =
            host_of(&snapshot).ok_or_else(|| unusable(&snapshot, "it has no recorded host"))?;
        let holders = self.inner.store.snapshot_holders(&snapshot).await?;
        let mut holders: Vec<HostId> = holders.into_iter().map(|holder| holder.host).collect();
        if !holders.contains(&host) {
            holders.push(host.clone());
        }
        Ok(Some(Seed {
            snapshot,
            host,
            holders,
        }))
    }

    /// The id under which the host of `record` has the seed, which is brought there if need
    /// be. It is kept from being collected for as long as the environment exists.
    pub(super) async fn local_seed(
        &self,
        record: &Environment,
        id: &str,
    ) -> Result<Option<SnapshotId>, BootError> {
        if id.is_empty() {
            return Ok(None);
        }
        let seed = async {
            let seed = self.snapshot_get(&SnapshotId::new(id)).await?;
            let local = match &record.host_id {
                Some(host) => self.bring_to(&seed, host).await?,
                None => seed.id,
            };
            let store = &self.inner.store;
            store.environment_note_seed(&record.id, &local).await?;
            Ok(Some(local))
        };
        seed.await.map_err(|e| BootError::Seed(Box::new(e)))
    }
}

fn unusable(snapshot: &Snapshot, why: &str) -> Error {
    Error::SnapshotState {
        id: snapshot.id.clone(),
        why: why.to_owned(),
    }
}

/// Records of lineage have no bytes anywhere.
fn host_of(snapshot: &Snapshot) -> Option<HostId> {
    let host = snapshot.host_id.clone();
    host.filter(|_| !snapshot.id.as_str().starts_with(LINEAGE))
}

impl Seed {
    fn unusable(&self, why: &str) -> Error {
        unusable(&self.snapshot, why)
    }

    /// The hosts that have its bytes.
    pub(crate) fn holders(&self) -> &[HostId] {
        &self.holders
    }

    /// Whether other hosts can be brought its bytes. What cannot be verified does not travel.
    fn can_move(&self) -> bool {
        !self.snapshot.digest.is_empty()
    }

    /// What the scheduler is asked for.
    ///
    /// # Errors
    /// The request pins a host that it cannot get to, or wants another architecture.
    pub(crate) fn narrow(
        &self,
        spec: &EnvironmentSpec,
    ) -> Result<EnvironmentSpec, PlacementRefusal> {
        let arch: Option<Arch> = self.snapshot.arch.parse().ok();
        if let (Some(wanted), Some(arch)) = (spec.arch, arch)
            && wanted != arch
        {
            return Err(self.refuse(&format!("it is of {arch}, the spec requires {wanted}")));
        }
        let spec = EnvironmentSpec {
            arch: spec.arch.or(arch),
            ..spec.clone()
        };
        if self.can_move() {
            return Ok(spec);
        }
        if let Some(pin) = spec.host_id.as_ref().filter(|pin| **pin != self.host) {
            return Err(self.refuse(&format!("the request pins host {pin}")));
        }
        Ok(EnvironmentSpec {
            host_id: Some(self.host.clone()),
            ..spec
        })
    }

    /// The scheduler found no host among those that can be brought a snapshot; `unable` are the others.
    pub(crate) fn refuse_placement(
        &self,
        refused: &PlacementError,
        unable: &[Host],
    ) -> PlacementRefusal {
        let pinned =
            |host: &&Host| matches!(refused, PlacementError::PinUnknown(id) if *id == host.id);
        if let Some(Host { id, backend, .. }) = unable.iter().find(pinned) {
            let why = format!(
                "host \"{id}\" has backend \"{backend}\", seed snapshots require \"{SEEDED}\""
            );
            return self.refuse(&why);
        }
        match refused {
            PlacementError::PinUnknown(host) if !self.can_move() => PlacementRefusal::SeedHost {
                host: host.clone(),
                why: "not registered",
            },
            refused => self.refuse(&refused.to_string()),
        }
    }

    /// No host can take the environment.
    fn refuse(&self, why: &str) -> PlacementRefusal {
        let names = self.holders.iter().map(HostId::as_str);
        PlacementRefusal::Seed {
            snapshot: self.snapshot.id.clone(),
            holders: names.collect::<Vec<_>>().join(", "),
            moves: self.can_move(),
            why: why.to_owned(),
        }
    }
}
