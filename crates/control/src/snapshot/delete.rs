//! Deletes a snapshot: the record says `deleting`, then the host's bytes go, then the record.

use std::sync::Arc;

use fuse_model::{AuditEntry, AuditKind, EnvironmentId, Snapshot, SnapshotId, SnapshotState as S};
use fuse_redact::Redactor;
use fuse_store::SnapshotChange;
use fuse_wire_host::{HostError, text};

use super::{TEXT_LIMIT, snapshot_error};
use crate::{
    Control, Error,
    error::{Missing, chain},
    provider::{Provider, ProviderError},
};

/// Name of the records that say what a fork was made of; no host has bytes of them.
pub(crate) const LINEAGE: &str = "fork-seed-";
/// States that a delete may begin in. A failed or interrupted one is begun again.
const DELETABLE: &[S] = &[S::Ready, S::Error, S::Creating, S::Deleting];

/// How deleting the bytes went.
pub(super) enum Bytes {
    Gone,
    /// Something on the host uses them.
    InUse(String),
    /// The host does not answer: they may or may not be there.
    Unknown(ProviderError),
    Failed(ProviderError),
}

impl Control {
    /// Deletes a snapshot that is parent of no other.
    ///
    /// # Errors
    /// It does not exist, has children, is being restored, is in use on its host, its
    /// host fails, or the store does.
    pub async fn snapshot_delete(&self, id: &SnapshotId) -> Result<(), Error> {
        let control = self.clone();
        let id = id.clone();
        self.detached(async move {
            let (snapshot, provider) = control.begin_delete(&id).await?;
            match delete_bytes(&*provider, &snapshot.id).await {
                Bytes::Gone => {
                    let audit = entry(&snapshot, AuditKind::SnapshotDeleted);
                    control.snapshot_remove(&id, vec![audit]).await?;
                    Ok(())
                }
                Bytes::InUse(why) => {
                    control.move_to(&snapshot, S::Ready, "", Vec::new()).await?;
                    Err(Error::SnapshotState { id, why })
                }
                Bytes::Unknown(e) | Bytes::Failed(e) => {
                    let why = host_text(&e);
                    control
                        .move_to(&snapshot, S::Error, &why, Vec::new())
                        .await?;
                    Err(snapshot_error("delete snapshot", e))
                }
            }
        })
        .await
    }

    async fn begin_delete(&self, id: &SnapshotId) -> Result<(Snapshot, Arc<dyn Provider>), Error> {
        let seen = self.snapshot_get(id).await?;
        // Before anything is written: without its host it cannot be deleted.
        let (_, provider) = self.inner.providers.of(seen.host_id.as_ref()).await?;
        let change = SnapshotChange {
            if_leaf: true,
            ..SnapshotChange::new(DELETABLE, S::Deleting)
        };
        let store = &self.inner.store;
        if let Some(snapshot) = self.snapshot_change(id, change).await? {
            return Ok((snapshot, provider));
        }
        let Some(now) = store.snapshot_get(id).await? else {
            return Err(Missing::Snapshot(id.to_string()).into());
        };
        Err(if store.snapshot_has_child(id).await? {
            Error::SnapshotHasChildren(id.clone())
        } else {
            Error::SnapshotState {
                id: id.clone(),
                why: format!("it is {}", now.state),
            }
        })
    }

    /// Moves a snapshot that is being deleted on.
    pub(super) async fn move_to(
        &self,
        snapshot: &Snapshot,
        to: S,
        error: &str,
        audit: Vec<AuditEntry>,
    ) -> Result<(), Error> {
        let change = SnapshotChange {
            last_error: error.to_owned(),
            audit,
            ..SnapshotChange::new(&[S::Deleting], to)
        };
        // `None`: somebody else has deleted it meanwhile.
        let _moved = self.snapshot_change(&snapshot.id, change).await?;
        Ok(())
    }
}

/// An audit entry about a snapshot.
pub(super) fn entry(snapshot: &Snapshot, kind: AuditKind) -> AuditEntry {
    let vm = snapshot.environment_id.as_ref();
    AuditEntry::new(kind, vm.map_or("", EnvironmentId::as_str))
        .with("snapshot_id", snapshot.id.as_str())
}

pub(super) async fn delete_bytes(provider: &dyn Provider, id: &SnapshotId) -> Bytes {
    if id.as_str().starts_with(LINEAGE) {
        return Bytes::Gone;
    }
    match provider.delete_snapshot(id).await {
        Ok(()) => Bytes::Gone,
        // An agent without the route does not know about any snapshot.
        Err(ProviderError::Host(HostError::NotFound { text: said, .. }))
            if said != text::NOT_FOUND =>
        {
            Bytes::Gone
        }
        Err(ProviderError::Host(HostError::Conflict { text, .. })) => {
            Bytes::InUse(format!("its host says: {text}"))
        }
        Err(
            e @ ProviderError::Host(HostError::Unreachable { .. } | HostError::NoAnswer { .. }),
        ) => Bytes::Unknown(e),
        Err(e) => Bytes::Failed(e),
    }
}

/// A host's text: bounded, and without what a database does not take.
pub(super) fn host_text(error: &ProviderError) -> String {
    Redactor::default().clean_head(&chain(error), TEXT_LIMIT)
}
