//! Snapshots that are answered before they are taken (`Prefer: respond-async`).
//!
//! The record is there first, `creating`, under an id that the host is asked to use. It
//! is completed, or says why not, before the operation of its environment ends: a record
//! that is `creating` without one was left behind by a process that died.

use fuse_model::{
    Environment, EnvironmentId, OperationKind, Snapshot, SnapshotId, SnapshotState as S,
};
use fuse_store::{Change, IdempotentKey, KeptAnswer, SnapshotChange, StoreError, StoredAnswer};
use fuse_wire_api::CreateSnapshot;
use fuse_wire_host::snapshot as host;

use super::{AnsweredOnce, Keep, delete::host_text, drop_unrecorded, wanted};
use crate::{
    Control, Error,
    error::chain,
    operation::not_running,
    provider::{Provider, ProviderError},
};

/// What a process that died leaves to read.
const INTERRUPTED: &str = "interrupted by an orchestrator crash";
const TAKEN_OVER: &str = "the environment was taken over by another operation";

impl Control {
    /// Accepts a snapshot of a running environment and takes it in the background.
    /// Answers with its record, `creating`.
    ///
    /// # Errors
    /// As [`Control::snapshot_create`], as far as it is known without the host.
    pub async fn snapshot_begin(
        &self,
        id: &EnvironmentId,
        request: CreateSnapshot,
        caller: String,
    ) -> Result<Snapshot, Error> {
        self.begin_in_background(id, request, caller, None).await
    }

    /// Accepts a snapshot, unless the request repeats an earlier one.
    ///
    /// # Errors
    /// As [`Control::snapshot_begin`], and when the key belongs to another request.
    pub async fn snapshot_begin_once(
        &self,
        id: &EnvironmentId,
        request: CreateSnapshot,
        caller: String,
        key: IdempotentKey,
        wording: fn(Snapshot) -> StoredAnswer,
    ) -> Result<AnsweredOnce, Error> {
        if let Some(answer) = self.answered_before(&caller, &key).await? {
            return Ok(AnsweredOnce::Repeat(answer));
        }
        let once = Keep { key, wording };
        let begun = self.begin_in_background(id, request, caller, Some(once));
        Ok(AnsweredOnce::New(wording(begun.await?)))
    }

    async fn begin_in_background(
        &self,
        id: &EnvironmentId,
        request: CreateSnapshot,
        caller: String,
        once: Option<Keep>,
    ) -> Result<Snapshot, Error> {
        let (control, id) = (self.clone(), id.clone());
        self.detached(async move {
            let tenant = control.check_snapshot(&id, &request, &caller).await?;
            let record = control
                .begin_operation(&id, OperationKind::Snapshot, not_running)
                .await?;
            let begun = control
                .record_creating(&record, &request, (tenant, &caller), once)
                .await;
            match begun {
                Ok(snapshot) => {
                    let (worker, begun) = (control.clone(), snapshot.clone());
                    control.spawn(async move { worker.complete(record, begun, request).await });
                    Ok(snapshot)
                }
                Err(e) => {
                    control.end_operation(&record, Change::default()).await?;
                    Err(e)
                }
            }
        })
        .await
    }

    async fn record_creating(
        &self,
        record: &Environment,
        request: &CreateSnapshot,
        owners: (String, &str),
        once: Option<Keep>,
    ) -> Result<Snapshot, Error> {
        let (_, provider) = self.inner.providers.of(record.host_id.as_ref()).await?;
        if !provider.has_snapshots() {
            let operation = "snapshot";
            let source = ProviderError::Unsupported { operation };
            return Err(Error::Provider { operation, source });
        }
        let parent = self.inner.store.snapshot_newest(&record.id).await?;
        let expected = host::Snapshot {
            snapshot_id: self.new_snapshot_id(),
            ..host::Snapshot::default()
        };
        let caller = owners.1.to_owned();
        let snapshot = Snapshot {
            state: S::Creating,
            ..self
                .new_record(record, request, owners, parent.as_ref(), &expected)
                .await?
        };
        let kept = once.map(|once| KeptAnswer {
            tenant: caller,
            answer: (once.wording)(snapshot.clone()),
            key: once.key,
        });
        self.snapshot_insert(snapshot.clone(), Vec::new(), kept)
            .await?;
        Ok(snapshot)
    }

    /// In the form in which hosts make them.
    fn new_snapshot_id(&self) -> String {
        let seconds = self.inner.store.now().as_second();
        format!("snap-{seconds}-{:06x}", rand::random::<u32>() & 0x00ff_ffff)
    }

    /// Takes the snapshot of a record that is `creating`, and gives its environment back.
    async fn complete(&self, record: Environment, begun: Snapshot, request: CreateSnapshot) {
        let taken = self
            .holding(&record.id, self.take_begun(&record, &begun, &request))
            .await;
        let outcome = match taken {
            Ok(outcome) => outcome,
            Err(_lost) => self.fail_begun(&begun.id, TAKEN_OVER).await,
        };
        if let Err(e) = outcome {
            tracing::error!(
                snapshot_id = %begun.id, error = %chain(&e),
                "cannot store what became of a snapshot, the reconcile loop will"
            );
        }
        if let Err(e) = self.end_operation(&record, Change::default()).await {
            tracing::warn!(vm_id = %record.id, error = %chain(&e), "cannot end a snapshot's operation");
        }
    }

    async fn take_begun(
        &self,
        record: &Environment,
        begun: &Snapshot,
        request: &CreateSnapshot,
    ) -> Result<(), StoreError> {
        let found = self.inner.providers.of(record.host_id.as_ref()).await;
        let provider = match found {
            Ok((_, provider)) => provider,
            Err(e) => return self.fail_begun(&begun.id, &chain(&e)).await,
        };
        let wanted = host::SnapshotRequest {
            snapshot_id: Some(begun.id.to_string()),
            ..wanted(request)
        };
        match provider.snapshot(&record.id, &wanted).await {
            Ok(taken) => self.complete_begun(&*provider, begun, &taken).await,
            Err(e) => self.fail_begun(&begun.id, &host_text(&e)).await,
        }
    }

    /// Completes the record with what the host has taken.
    async fn complete_begun(
        &self,
        provider: &dyn Provider,
        begun: &Snapshot,
        taken: &host::Snapshot,
    ) -> Result<(), StoreError> {
        if taken.snapshot_id != begun.id.as_str() {
            drop_unrecorded(provider, &SnapshotId::new(taken.snapshot_id.clone())).await;
            let why = "its host chose another id: that agent is older than snapshots in the \
                       background; take it without Prefer, or update the agent";
            return self.fail_begun(&begun.id, why).await;
        }
        let whole = super::with_bytes(begun.clone(), taken, self.inner.store.now());
        let audit = vec![super::created(&whole, taken)];
        let stored = self.snapshot_complete(whole, audit).await?;
        if stored {
            tracing::info!(snapshot_id = %begun.id, pause_ms = taken.pause_ms, "snapshot taken");
        } else {
            // Deleted meanwhile, when its bytes were not there yet.
            drop_unrecorded(provider, &begun.id).await;
        }
        Ok(())
    }

    async fn fail_begun(&self, id: &SnapshotId, why: &str) -> Result<(), StoreError> {
        tracing::warn!(snapshot_id = %id, error = why, "a snapshot was not taken");
        let change = SnapshotChange {
            last_error: why.to_owned(),
            ..SnapshotChange::new(&[S::Creating], S::Error)
        };
        // `None`: it was deleted meanwhile.
        let _changed = self.snapshot_change(id, change).await?;
        Ok(())
    }

    /// What became of an environment's snapshots whose process died: what the host has is
    /// whole and is taken over, the others say that there is nothing.
    pub(super) async fn settle_begun(
        &self,
        record: &Environment,
        provider: &dyn Provider,
        there: &[host::Snapshot],
    ) -> Result<(), StoreError> {
        for begun in self.inner.store.snapshot_list_creating(&record.id).await? {
            let taken = there
                .iter()
                .find(|one| one.snapshot_id == begun.id.as_str());
            match taken {
                Some(taken) => self.complete_begun(provider, &begun, taken).await?,
                None => self.fail_begun(&begun.id, INTERRUPTED).await?,
            }
        }
        Ok(())
    }

    /// The same for those whose environment is gone, or was taken over.
    pub(super) async fn fail_abandoned(&self) -> Result<(), StoreError> {
        let store = &self.inner.store;
        store.snapshot_fail_abandoned(INTERRUPTED.to_owned()).await
    }
}
