//! Deletes what nobody keeps: snapshots past their retention, layers and copies that are not used
//! (the planner says which), and goes on with deletes that were begun.

use fuse_model::{AuditEntry, AuditKind, HostId, Snapshot, SnapshotState as S};
use fuse_planner::{CacheLimits, Cached, grace, unused};
use fuse_store::{CachedLayer, SnapshotChange, StoreError};

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
        self.collect_unfinished_copies().await?;
        for snapshot in self.inner.store.snapshot_list_collectable(BATCH).await? {
            let change = SnapshotChange {
                if_leaf: snapshot.state != S::Deleting,
                ..SnapshotChange::new(&[S::Ready, S::Error, S::Deleting], S::Deleting)
            };
            self.collect_and_log(&snapshot, change, "").await;
        }
        self.inner
            .store
            .snapshot_prune_lineage(LINEAGE, BATCH)
            .await
    }

    /// The pass over layers and copies.
    ///
    /// # Errors
    /// As [`Control::collect_snapshots`].
    pub(crate) async fn collect_layers(&self) -> Result<(), StoreError> {
        let settings = &self.inner.settings;
        let limits = CacheLimits {
            idle: settings.artifact_idle_ttl,
            max_per_tenant: settings.artifact_max_per_tenant,
        };
        let layers = self.inner.store.snapshot_list_cached().await?;
        let cached: Vec<Cached> = layers.iter().map(cached).collect();
        let now = self.inner.store.settled_now();
        for (id, why) in unused(&cached, limits, now) {
            let Some(layer) = layers.iter().find(|layer| layer.snapshot.id == *id) else {
                continue;
            };
            // Somebody may have found a use for it since it was read.
            let change = SnapshotChange {
                if_leaf: true,
                if_unused_since: Some(grace(now)),
                ..SnapshotChange::new(&[S::Ready, S::Error], S::Deleting)
            };
            self.collect_and_log(&layer.snapshot, change, why.as_str())
                .await;
        }
        Ok(())
    }

    pub(super) async fn collect_and_log(
        &self,
        snapshot: &Snapshot,
        change: SnapshotChange,
        why: &str,
    ) {
        if let Err(e) = self.collect(snapshot, change, why).await {
            tracing::warn!(
                snapshot_id = %snapshot.id, error = %chain(&e), "cannot collect a snapshot"
            );
        }
    }

    async fn collect(
        &self,
        seen: &Snapshot,
        change: SnapshotChange,
        why: &str,
    ) -> Result<(), Error> {
        let (_, provider) = self.inner.providers.of(seen.host_id.as_ref()).await?;
        let Some(snapshot) = self.snapshot_change(&seen.id, change).await? else {
            return Ok(());
        };
        match delete_bytes(&*provider, &snapshot.id).await {
            Bytes::Gone => {
                let audit = deleted(&snapshot, why);
                self.snapshot_remove(&snapshot.id, vec![audit]).await?;
                tracing::info!(snapshot_id = %snapshot.id, why, "snapshot collected");
                Ok(())
            }
            Bytes::InUse(_) => self.move_to(&snapshot, S::Ready, "", Vec::new()).await,
            // It stays `deleting`, so that the next cycle tries again.
            Bytes::Unknown(_) => Ok(()),
            Bytes::Failed(e) => {
                let error = host_text(&e);
                let kind = if snapshot.is_cached() {
                    AuditKind::ArtifactGcFailed
                } else {
                    AuditKind::SnapshotGcFailed
                };
                let audit = entry(&snapshot, kind).with("error", &*error);
                self.move_to(&snapshot, S::Error, &error, vec![audit]).await
            }
        }
    }
}

fn deleted(snapshot: &Snapshot, why: &str) -> AuditEntry {
    if !snapshot.is_cached() {
        return entry(snapshot, AuditKind::SnapshotGcDeleted);
    }
    let host = snapshot.host_id.as_ref().map_or("", HostId::as_str);
    AuditEntry::new(AuditKind::ArtifactGcDeleted, host)
        .with("snapshot_id", snapshot.id.as_str())
        .with("reason", why)
}

fn cached(layer: &CachedLayer) -> Cached {
    let snapshot = &layer.snapshot;
    Cached {
        id: snapshot.id.clone(),
        tenant: snapshot.tenant.clone(),
        counts: !snapshot.layer_key.is_empty() && snapshot.state == S::Ready,
        used_at: layer.used_at,
        is_held: layer.is_held,
        is_stray: layer.is_stray,
    }
}
