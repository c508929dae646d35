//! Writes to the records of environments and snapshots, by whoever works on one.
//!
//! A write that the store did not answer may have happened or not. Who asked for it
//! answers his caller and is done; but the operation may still stand in the record, in
//! the name of this living process, and everybody would wait for it until it expires.
//! So it is given up as soon as the store answers again, and the reconcile loop picks
//! it up like any other interrupted operation.

use std::time::Duration;

use fuse_model::{
    AuditEntry, Environment, EnvironmentId, ErrorKind, OperationKind, Snapshot, SnapshotId, Trigger,
};
use fuse_store::{
    Change, Guarded, Inserted, KeptAnswer, MovedEnvironment, NewEnvironment, OperationChange,
    Removal, SnapshotChange, StoreError,
};
use tokio::time::Instant;

use crate::{Control, control::OPERATION_TTL, error::chain, fail_point::effect};

/// Pause before the store is asked again; it doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

impl Control {
    /// [`fuse_store::Store::environment_insert_and_reserve`].
    pub(crate) async fn record_insert(&self, new: NewEnvironment) -> Result<Inserted, StoreError> {
        let (id, kind) = (new.id.clone(), new.operation);
        let insert = self.inner.store.environment_insert_and_reserve(new);
        let stored = effect("insert", id.as_str(), insert).await;
        stored.inspect_err(|e| self.doubt(&id, Some(kind), e))
    }

    /// [`fuse_store::Store::environment_transition`].
    pub(crate) async fn record_transition(
        &self,
        seen: &Environment,
        trigger: Trigger,
        change: Change,
    ) -> Result<Guarded<Environment>, StoreError> {
        let kind = held_after(seen, &change);
        let store = &self.inner.store;
        let write = store.environment_transition(seen, trigger, change);
        let stored = effect("transition", seen.id.as_str(), write).await;
        stored.inspect_err(|e| self.doubt(&seen.id, kind, e))
    }

    /// [`fuse_store::Store::environment_cut_over`].
    pub(crate) async fn record_cut_over(
        &self,
        source: (&Environment, Change),
        target: (&Environment, Change),
    ) -> Result<Guarded<MovedEnvironment>, StoreError> {
        let (from, to) = (source.0.id.clone(), target.0.id.clone());
        let write = self.inner.store.environment_cut_over(source, target);
        let stored = effect("cut-over", to.as_str(), write).await;
        stored.inspect_err(|e| {
            self.doubt(&from, Some(OperationKind::Migrate), e);
            self.doubt(&from, Some(OperationKind::Destroy), e);
            self.doubt(&to, Some(OperationKind::Migrate), e);
        })
    }

    /// [`fuse_store::Store::environment_update`].
    pub(crate) async fn record_update(
        &self,
        seen: &Environment,
        change: Change,
    ) -> Result<Guarded<Environment>, StoreError> {
        let kind = held_after(seen, &change);
        let write = self.inner.store.environment_update(seen, change);
        let stored = effect("update", seen.id.as_str(), write).await;
        stored.inspect_err(|e| self.doubt(&seen.id, kind, e))
    }

    /// [`fuse_store::Store::environment_remove`].
    pub(crate) async fn record_remove(
        &self,
        seen: &Environment,
        trigger: Trigger,
        removal: Removal,
    ) -> Result<Guarded<()>, StoreError> {
        let kind = seen.operation.as_ref().map(|operation| operation.kind);
        let store = &self.inner.store;
        let write = store.environment_remove(seen, trigger, removal);
        let removed = effect("remove", seen.id.as_str(), write).await;
        removed.inspect_err(|e| self.doubt(&seen.id, kind, e))
    }

    /// [`fuse_store::Store::snapshot_insert`].
    pub(crate) async fn snapshot_insert(
        &self,
        new: Snapshot,
        audit: Vec<AuditEntry>,
        kept: Option<KeptAnswer>,
    ) -> Result<(), StoreError> {
        // Counted with its environment, where it has one.
        let id = new
            .environment_id
            .as_ref()
            .map_or(new.id.as_str(), EnvironmentId::as_str);
        let id = id.to_owned();
        let insert = self.inner.store.snapshot_insert(new, audit, kept);
        effect("record-snapshot", &id, insert).await
    }

    /// [`fuse_store::Store::snapshot_complete`].
    pub(crate) async fn snapshot_complete(
        &self,
        whole: Snapshot,
        audit: Vec<AuditEntry>,
    ) -> Result<bool, StoreError> {
        let id = whole.id.clone();
        let complete = self.inner.store.snapshot_complete(whole, audit);
        effect("complete-snapshot", id.as_str(), complete).await
    }

    /// [`fuse_store::Store::snapshot_change`].
    pub(crate) async fn snapshot_change(
        &self,
        id: &SnapshotId,
        change: SnapshotChange,
    ) -> Result<Option<Snapshot>, StoreError> {
        let change = self.inner.store.snapshot_change(id, change);
        effect("change-snapshot", id.as_str(), change).await
    }

    /// [`fuse_store::Store::snapshot_remove`].
    pub(crate) async fn snapshot_remove(
        &self,
        id: &SnapshotId,
        audit: Vec<AuditEntry>,
    ) -> Result<bool, StoreError> {
        let remove = self.inner.store.snapshot_remove(id, audit);
        effect("remove-snapshot", id.as_str(), remove).await
    }

    /// Gives up the operation that may stand in a record after a write failed.
    fn doubt(&self, id: &EnvironmentId, kind: Option<OperationKind>, error: &StoreError) {
        if let Some(kind) = kind.filter(|_| error.kind() == ErrorKind::Unavailable) {
            self.abandon(id, kind);
        }
    }

    /// Leaves an operation of this process to recovery, as soon as the store answers.
    pub(crate) fn abandon(&self, id: &EnvironmentId, kind: OperationKind) {
        let (control, id) = (self.clone(), id.clone());
        let failed_at = self.inner.store.now();
        self.spawn(async move {
            let deadline = Instant::now() + OPERATION_TTL;
            let mut pause = FIRST_PAUSE;
            // Past the deadline it has expired, and a process that stops gives up
            // everything that it holds.
            while Instant::now() < deadline && !control.stop_token().is_cancelled() {
                let store = &control.inner.store;
                match store
                    .environment_operation_abandon(&id, kind, failed_at, OPERATION_TTL)
                    .await
                {
                    Ok(true) => {
                        tracing::info!(vm_id = %id, operation = kind.as_str(), "gave up an operation whose outcome could not be stored");
                        control.reconcile_now();
                        return;
                    }
                    Ok(false) => return,
                    Err(e) => tracing::debug!(vm_id = %id, error = %chain(&e), "cannot give up an operation yet"),
                }
                tokio::select! {
                    () = tokio::time::sleep(pause) => {}
                    () = control.stop_token().cancelled() => {}
                }
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        });
    }
}

/// The operation of this process that stands in the record if the change happened, or
/// if it did not.
fn held_after(seen: &Environment, change: &Change) -> Option<OperationKind> {
    match change.operation {
        OperationChange::Begin(kind, _) | OperationChange::Seize(kind, _) => Some(kind),
        OperationChange::Keep | OperationChange::End => {
            seen.operation.as_ref().map(|operation| operation.kind)
        }
    }
}
