//! Deletes snapshots past their retention, and goes on with deletes that were begun.

use fuse_model::{AuditKind, Snapshot, SnapshotState as S};
use fuse_store::{SnapshotChange, StoreError};

use super::delete::{Bytes, LINEAGE, delete_bytes, entry, host_text};
use crate::{Control, Error, error::chain};

/// Snapshots that one cycle looks at.
const BATCH: u32 = 200;

impl Control {
    /// One pass of the reconcile loop.
    ///
    /// # Errors
    /// The store fails; what a host does is noted at the snapshot.
    pub(crate) async fn collect_snapshots(&self) -> Result<(), StoreError> {
        self.fail_abandoned().await?;
        for snapshot in self.inner.store.snapshot_list_collectable(BATCH).await? {
            if let Err(e) = self.collect(&snapshot).await {
                tracing::warn!(
                    snapshot_id = %snapshot.id, error = %chain(&e), "cannot collect a snapshot"
                );
            }
        }
        self.inner
            .store
            .snapshot_prune_lineage(LINEAGE, BATCH)
            .await
    }

    async fn collect(&self, seen: &Snapshot) -> Result<(), Error> {
        let (_, provider) = self.inner.providers.of(seen.host_id.as_ref()).await?;
        let change = SnapshotChange {
            if_leaf: seen.state != S::Deleting,
            ..SnapshotChange::new(&[S::Ready, S::Error, S::Deleting], S::Deleting)
        };
        let store = &self.inner.store;
        let Some(snapshot) = store.snapshot_change(&seen.id, change).await? else {
            return Ok(());
        };
        match delete_bytes(&*provider, &snapshot.id).await {
            Bytes::Gone => {
                let audit = entry(&snapshot, AuditKind::SnapshotGcDeleted);
                store.snapshot_remove(&snapshot.id, vec![audit]).await?;
                tracing::info!(snapshot_id = %snapshot.id, "snapshot collected");
                Ok(())
            }
            Bytes::InUse(_) => self.move_to(&snapshot, S::Ready, "", Vec::new()).await,
            // It stays `deleting`, so that the next cycle tries again.
            Bytes::Unknown(_) => Ok(()),
            Bytes::Failed(e) => {
                let why = host_text(&e);
                let audit = entry(&snapshot, AuditKind::SnapshotGcFailed).with("error", &*why);
                self.move_to(&snapshot, S::Error, &why, vec![audit]).await
            }
        }
    }
}
