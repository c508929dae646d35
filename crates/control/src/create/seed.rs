//! The snapshot that a new environment starts from. Its bytes are on one host and do not
//! travel, so that is where the environment goes.

use fuse_model::{EnvironmentSpec, HostId, Snapshot, SnapshotId, SnapshotKind};

use crate::{
    Control, Error,
    error::PlacementRefusal,
    snapshot::{LINEAGE, check_ready},
};

/// A seed that is usable, and its host.
pub(super) struct Seed {
    id: SnapshotId,
    host: HostId,
}

impl Control {
    /// Looks up the seed that a request of `tenant` names; empty is none.
    ///
    /// # Errors
    /// It does not exist or is not usable, or the store fails.
    pub(super) async fn seed_of(&self, id: &str, tenant: &str) -> Result<Option<Seed>, Error> {
        if id.is_empty() {
            return Ok(None);
        }
        let snapshot = self.snapshot_for(&SnapshotId::new(id), tenant).await?;
        check_ready(&snapshot)?;
        let refused = |why: &str| Error::SnapshotState {
            id: snapshot.id.clone(),
            why: why.to_owned(),
        };
        if snapshot.kind == SnapshotKind::Live {
            return Err(refused("a live snapshot cannot seed an environment"));
        }
        let host = host_of(&snapshot).ok_or_else(|| refused("it has no recorded host"))?;
        self.inner.store.snapshot_touch(&snapshot.id).await?;
        Ok(Some(Seed {
            id: snapshot.id,
            host,
        }))
    }
}

/// Records of lineage have no bytes anywhere.
fn host_of(snapshot: &Snapshot) -> Option<HostId> {
    let host = snapshot.host_id.clone();
    host.filter(|_| !snapshot.id.as_str().starts_with(LINEAGE))
}

impl Seed {
    /// The hosts that have its bytes.
    pub(super) fn holders(&self) -> &[HostId] {
        std::slice::from_ref(&self.host)
    }

    /// What the scheduler is asked for.
    ///
    /// # Errors
    /// The request pins another host.
    pub(super) fn narrow(
        &self,
        spec: &EnvironmentSpec,
    ) -> Result<EnvironmentSpec, PlacementRefusal> {
        if let Some(pin) = spec.host_id.as_ref().filter(|pin| **pin != self.host) {
            return Err(self.refuse(&format!("the request pins host {pin}")));
        }
        Ok(EnvironmentSpec {
            host_id: Some(self.host.clone()),
            ..spec.clone()
        })
    }

    /// The seed's host cannot take the environment.
    pub(super) fn refuse(&self, why: &str) -> PlacementRefusal {
        PlacementRefusal::Seed {
            snapshot: self.id.clone(),
            host: self.host.clone(),
            why: why.to_owned(),
        }
    }
}
