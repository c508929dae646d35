//! Puts a snapshot in the place of its running environment. The guest is set up again
//! afterwards: what the snapshot holds of credentials and secrets is of its own time.

use fuse_model::{
    AuditEntry, AuditKind, Environment, EnvironmentId, OperationKind, Snapshot, SnapshotId,
    SnapshotState as S,
};
use fuse_store::{Change, SnapshotChange};

use super::{TEXT_LIMIT, check_gpus, delete::host_text, snapshot_error};
use crate::{
    Control, Error,
    error::{Missing, chain},
    operation::not_running,
    provider::Provider,
};

const MISSING: &str = "snapshot missing from provider";
/// What a crash leaves to read, at the environment and at the snapshot.
const INTERRUPTED: &str = "restore interrupted by an orchestrator crash";

impl Control {
    /// Restores a snapshot in place.
    ///
    /// # Errors
    /// Snapshot or environment do not exist, the environment does not run or somebody is
    /// at work on it, the snapshot is not ready, the host does not have it or fails, or
    /// the store fails.
    pub async fn snapshot_restore(&self, id: &SnapshotId) -> Result<(), Error> {
        let control = self.clone();
        let id = id.clone();
        self.detached(async move {
            let snapshot = control.snapshot_get(&id).await?;
            let Some(vm) = &snapshot.environment_id else {
                // A copied artifact has no environment to be put in the place of.
                return Err(Missing::Environment(EnvironmentId::new("")).into());
            };
            let seen = control.environment_get(vm).await?;
            control.check_free(&seen, not_running)?;
            check_ready(&snapshot)?;
            check_gpus(&seen)?;
            let record = control
                .begin_operation(vm, OperationKind::Restore, not_running)
                .await?;
            let restored = control
                .holding(vm, control.restore(&record, &snapshot))
                .await
                .unwrap_or_else(|_lost| Err(Error::TakenOver(vm.clone())));
            let (change, outcome) = match restored {
                Ok(change) => (change, Ok(())),
                Err(Error::Failed(text)) => {
                    let change = Change {
                        error: Some(text.clone()),
                        ..Change::default()
                    };
                    (change, Err(Error::Failed(text)))
                }
                Err(e) => (Change::default(), Err(e)),
            };
            control.end_operation(&record, change).await?;
            outcome
        })
        .await
    }

    /// All steps; answers with what changed about the environment.
    async fn restore(&self, record: &Environment, snapshot: &Snapshot) -> Result<Change, Error> {
        let (_, provider) = self.inner.providers.of(record.host_id.as_ref()).await?;
        let change = SnapshotChange::new(&[S::Ready], S::Restoring);
        let begun = self.snapshot_change(&snapshot.id, change).await?;
        if begun.is_none() {
            let now = self.snapshot_get(&snapshot.id).await?;
            check_ready(&now)?;
        }
        let swapped = self.swap(record, snapshot, &*provider).await;
        let (to, why) = match &swapped {
            Ok(()) => (S::Ready, String::new()),
            Err(Error::Provider { source, .. }) => (S::Error, host_text(source)),
            Err(e) => (S::Error, e.to_string()),
        };
        self.end_restoring(snapshot, to, why).await?;
        swapped?;
        // The guest is another one now: whatever it had from us is of the snapshot's time.
        match self.set_up(record).await {
            Ok(mut change) => {
                change.audit.push(
                    AuditEntry::new(AuditKind::SnapshotRestored, record.id.as_str())
                        .with("snapshot_id", snapshot.id.as_str())
                        .with("kind", snapshot.kind.as_str()),
                );
                tracing::info!(vm_id = %record.id, snapshot_id = %snapshot.id, "snapshot restored");
                Ok(change)
            }
            Err(e) => {
                let redactor = self.redactor_of(&record.id).await;
                let text = format!(
                    "restore: the snapshot is in place and the guest could not be set up again: {}",
                    chain(&*e)
                );
                Err(Error::Failed(redactor.clean_head(&text, TEXT_LIMIT)))
            }
        }
    }

    async fn swap(
        &self,
        record: &Environment,
        snapshot: &Snapshot,
        provider: &dyn Provider,
    ) -> Result<(), Error> {
        self.check_listed(record, snapshot, provider).await?;
        provider
            .restore(&record.id, &snapshot.id)
            .await
            .map_err(|e| snapshot_error("restore", e))
    }

    /// Whether the host still has a snapshot of this environment.
    pub(crate) async fn check_listed(
        &self,
        record: &Environment,
        snapshot: &Snapshot,
        provider: &dyn Provider,
    ) -> Result<(), Error> {
        let there = provider
            .snapshots(&record.id)
            .await
            .map_err(|e| snapshot_error("snapshots", e))?;
        if there
            .iter()
            .any(|taken| taken.snapshot_id == snapshot.id.as_str())
        {
            return Ok(());
        }
        let change = SnapshotChange {
            last_error: MISSING.to_owned(),
            ..SnapshotChange::new(&[S::Ready, S::Restoring], S::Error)
        };
        // `None`: it is being deleted, which is as good a reason.
        let _marked = self.snapshot_change(&snapshot.id, change).await?;
        Err(Error::SnapshotGone(snapshot.id.clone()))
    }

    async fn end_restoring(&self, snapshot: &Snapshot, to: S, why: String) -> Result<(), Error> {
        let change = SnapshotChange {
            last_error: why,
            ..SnapshotChange::new(&[S::Restoring], to)
        };
        // `None`: the host does not have it, and the record says so already.
        let _moved = self.snapshot_change(&snapshot.id, change).await?;
        Ok(())
    }

    /// After a crash in the middle: the bytes of the snapshot are whole, and what the
    /// guest is in shows in its boot id, which the reconcile loop compares.
    pub(crate) async fn pick_up_restore(&self, record: &Environment) -> Result<Change, Error> {
        let filter = fuse_store::SnapshotFilter {
            environment_id: Some(record.id.to_string()),
            state: Some(S::Restoring),
            ..fuse_store::SnapshotFilter::default()
        };
        let page = fuse_store::Page {
            after: None,
            limit: 100,
        };
        for snapshot in self.snapshot_list(&filter, &page).await?.items {
            self.end_restoring(&snapshot, S::Ready, INTERRUPTED.to_owned())
                .await?;
        }
        Ok(Change {
            error: Some(INTERRUPTED.to_owned()),
            ..Change::default()
        })
    }
}

pub(crate) fn check_ready(snapshot: &Snapshot) -> Result<(), Error> {
    if snapshot.state == S::Ready {
        return Ok(());
    }
    Err(Error::SnapshotState {
        id: snapshot.id.clone(),
        why: format!("it is {}", snapshot.state),
    })
}
