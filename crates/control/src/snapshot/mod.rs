//! Snapshots: taking and reading them; [`restore`], [`delete`] and [`collect`] are next to
//! this.
//!
//! A host takes and keeps the bytes and chooses the id, so a record is written once there
//! is something to record. Taking one holds the operation of its environment; if this
//! process dies in between, recovery finds that operation and deletes what the host has
//! and no record names.

mod background;
mod collect;
mod copy;
mod delete;
mod restore;

use fuse_model::{
    AuditEntry, AuditKind, Environment, EnvironmentId, OperationKind, Snapshot, SnapshotExport,
    SnapshotId, SnapshotKind, SnapshotState,
};
use fuse_store::{
    Change, IdempotentKey, KeptAnswer, Listing, Page, SnapshotFilter, SnapshotPlace, StoredAnswer,
    later,
};
use fuse_wire_api::CreateSnapshot;
use fuse_wire_host::{artifact::is_snapshot_id, snapshot as host};
use jiff::Timestamp;

pub(crate) use delete::LINEAGE;
pub(crate) use restore::check_ready;

use crate::{
    Control, Error,
    error::{Missing, chain},
    operation::not_running,
    provider::{Provider, ProviderError},
};

/// What a request with a key led to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AnsweredOnce {
    /// It was the first of its kind.
    New(StoredAnswer),
    /// It is a repeat, and this is what the first one was told.
    Repeat(StoredAnswer),
}

/// A key, and how the answer that is kept under it is worded.
pub(crate) struct Keep {
    key: IdempotentKey,
    wording: fn(Snapshot) -> StoredAnswer,
}

/// The mode of a snapshot that names none.
const MANUAL: &str = "manual";
/// Most of a host's text that is stored (bytes).
const TEXT_LIMIT: usize = 4096;

impl Control {
    /// One snapshot.
    ///
    /// # Errors
    /// It does not exist, or the store fails.
    pub async fn snapshot_get(&self, id: &SnapshotId) -> Result<Snapshot, Error> {
        let found = self.inner.store.snapshot_get(id).await?;
        Ok(found.ok_or_else(|| Missing::Snapshot(id.to_string()))?)
    }

    /// One snapshot, as far as `caller` may know of it.
    ///
    /// # Errors
    /// It does not exist or is kept from the caller, or the store fails.
    pub async fn snapshot_for(&self, id: &SnapshotId, caller: &str) -> Result<Snapshot, Error> {
        let snapshot = self.snapshot_get(id).await?;
        match self.kept_to(caller) {
            Some(owner) if owner != snapshot.owner => Err(Missing::Snapshot(id.to_string()).into()),
            Some(_) | None => Ok(snapshot),
        }
    }

    /// A page of snapshots, newest first.
    ///
    /// # Errors
    /// The store fails.
    pub async fn snapshot_list(
        &self,
        filter: &SnapshotFilter,
        page: &Page<SnapshotPlace>,
    ) -> Result<Listing<Snapshot, SnapshotPlace>, Error> {
        Ok(self.inner.store.snapshot_list(filter, page).await?)
    }

    /// The newest usable layer of a tenant with this key; finding it counts as a use.
    ///
    /// # Errors
    /// The store fails.
    pub async fn snapshot_resolve(
        &self,
        tenant: &str,
        layer_key: &str,
        arch: &str,
    ) -> Result<Option<Snapshot>, Error> {
        let store = &self.inner.store;
        while let Some(found) = store.snapshot_resolve(tenant, layer_key, arch).await? {
            // Otherwise it is being deleted, and there may be another one.
            if store.snapshot_touch(&found.id).await? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Why there is no usable layer, as far as what the tenant itself has tells.
    ///
    /// # Errors
    /// The store fails.
    pub async fn snapshot_miss(
        &self,
        tenant: &str,
        layer_key: &str,
        arch: &str,
    ) -> Result<Vec<String>, Error> {
        let near = self
            .inner
            .store
            .snapshot_near_misses(tenant, layer_key)
            .await?;
        let told = near.into_iter().map(|(of, state)| match of == arch {
            true => format!("the layer is {state}"),
            false => format!("there is one for {of}, not for {arch}"),
        });
        Ok(told.collect())
    }

    /// Takes a snapshot of a running environment.
    ///
    /// # Errors
    /// It does not exist, does not run, has GPUs, is over its quota, somebody is at work
    /// on it, its host cannot take snapshots or fails, or the store fails.
    pub async fn snapshot_create(
        &self,
        id: &EnvironmentId,
        request: CreateSnapshot,
        tenant: String,
    ) -> Result<Snapshot, Error> {
        let control = self.clone();
        let id = id.clone();
        self.detached(async move { control.snapshot_take(&id, &request, &tenant, None).await })
            .await
    }

    /// Takes a snapshot, unless the request repeats an earlier one. A request that was
    /// refused, or that failed, may be tried again under its key.
    ///
    /// # Errors
    /// As [`Control::snapshot_create`], and when the key belongs to another request.
    pub async fn snapshot_create_once(
        &self,
        id: &EnvironmentId,
        request: CreateSnapshot,
        tenant: String,
        key: IdempotentKey,
        wording: fn(Snapshot) -> StoredAnswer,
    ) -> Result<AnsweredOnce, Error> {
        if let Some(answer) = self.answered_before(&tenant, &key).await? {
            return Ok(AnsweredOnce::Repeat(answer));
        }
        let control = self.clone();
        let id = id.clone();
        self.detached(async move {
            let once = Keep { key, wording };
            let taken = control.snapshot_take(&id, &request, &tenant, Some(once));
            taken
                .await
                .map(|snapshot| AnsweredOnce::New(wording(snapshot)))
        })
        .await
    }

    /// What the first request with this key was told.
    async fn answered_before(
        &self,
        caller: &str,
        key: &IdempotentKey,
    ) -> Result<Option<StoredAnswer>, Error> {
        match self.inner.store.idempotency_get(caller, &key.key).await? {
            None => Ok(None),
            Some(found) if found.fingerprint != key.fingerprint => Err(Error::KeyReused),
            Some(found) => found.answer.map(Some).ok_or(Error::KeyTaken),
        }
    }

    /// Whether a snapshot may be taken, as far as records tell; answers with its tenant.
    async fn check_snapshot(
        &self,
        id: &EnvironmentId,
        request: &CreateSnapshot,
        caller: &str,
    ) -> Result<String, Error> {
        let seen = self.environment_get(id).await?;
        self.check_free(&seen, not_running)?;
        let tenant = tenant_of(&seen, request, caller);
        self.check_quota(&tenant, request).await?;
        check_gpus(&seen)?;
        Ok(tenant)
    }

    pub(crate) async fn snapshot_take(
        &self,
        id: &EnvironmentId,
        request: &CreateSnapshot,
        caller: &str,
        once: Option<Keep>,
    ) -> Result<Snapshot, Error> {
        let tenant = self.check_snapshot(id, request, caller).await?;
        let record = self
            .begin_operation(id, OperationKind::Snapshot, not_running)
            .await?;
        let taken = self
            .holding(id, async {
                let kept = |snapshot: &Snapshot| {
                    once.map(|once| KeptAnswer {
                        tenant: caller.to_owned(),
                        answer: (once.wording)(snapshot.clone()),
                        key: once.key,
                    })
                };
                self.take_and_record(&record, request, tenant, caller, kept)
                    .await
            })
            .await;
        // Whatever came of it, the environment is free again.
        self.end_operation(&record, Change::default()).await?;
        taken.unwrap_or_else(|_lost| Err(Error::TakenOver(id.clone())))
    }

    /// Refuses a tenant that has as much as it may have. Layers are not counted.
    pub(crate) async fn check_quota(
        &self,
        tenant: &str,
        request: &CreateSnapshot,
    ) -> Result<(), Error> {
        let settings = &self.inner.settings;
        let (count, bytes) = (settings.snapshot_max_count, settings.snapshot_max_bytes);
        if request.mode == Snapshot::BUILD || (count == 0 && bytes == 0) {
            return Ok(());
        }
        let usage = self.inner.store.snapshot_usage(tenant).await?;
        let over = |used, max, what| {
            (max > 0 && used >= max).then(|| Error::SnapshotQuota {
                tenant: tenant.to_owned(),
                used,
                max,
                what,
            })
        };
        match over(usage.count, count, "snapshots").or_else(|| over(usage.bytes, bytes, "bytes")) {
            Some(refused) => Err(refused),
            None => Ok(()),
        }
    }

    /// Takes a snapshot of an environment whose operation this process holds.
    pub(crate) async fn take_and_record(
        &self,
        record: &Environment,
        request: &CreateSnapshot,
        tenant: String,
        caller: &str,
        kept: impl FnOnce(&Snapshot) -> Option<KeptAnswer>,
    ) -> Result<Snapshot, Error> {
        let parent = self.inner.store.snapshot_newest(&record.id).await?;
        let (_, provider) = self.inner.providers.of(record.host_id.as_ref()).await?;
        let taken = provider
            .snapshot(&record.id, &wanted(request))
            .await
            .map_err(|e| snapshot_error("snapshot", e))?;
        if !is_snapshot_id(&taken.snapshot_id) {
            return Err(Error::Failed(
                "snapshot: the host named it by an id that is not one".to_owned(),
            ));
        }
        let snapshot = self
            .new_record(record, request, (tenant, caller), parent.as_ref(), &taken)
            .await?;
        let audit = created(&snapshot, &taken);
        let stored = self
            .snapshot_insert(snapshot.clone(), vec![audit], kept(&snapshot))
            .await;
        if let Err(e) = stored {
            drop_unrecorded(&*provider, &snapshot.id).await;
            return Err(e.into());
        }
        tracing::info!(
            vm_id = %record.id, snapshot_id = %snapshot.id, kind = snapshot.kind.as_str(),
            size_bytes = snapshot.size_bytes, pause_ms = taken.pause_ms, "snapshot taken"
        );
        Ok(snapshot)
    }

    async fn new_record(
        &self,
        record: &Environment,
        request: &CreateSnapshot,
        (tenant, owner): (String, &str),
        parent: Option<&Snapshot>,
        taken: &host::Snapshot,
    ) -> Result<Snapshot, Error> {
        let now = self.inner.store.now();
        // Two within the same second of the host's clock still have an order.
        let after_parent = parent.map(|parent| later(parent.created_at, TICK));
        let retention = u64::try_from(request.retention_seconds)
            .ok()
            .filter(|seconds| *seconds > 0)
            .map(std::time::Duration::from_secs)
            .or_else(|| {
                let default = self.inner.settings.snapshot_retention;
                (!default.is_zero()).then_some(default)
            });
        let mut metadata = request.metadata.clone();
        if let Some(comment) = comment_of(request) {
            metadata.insert("comment".to_owned(), comment);
        }
        let record = Snapshot {
            id: SnapshotId::new(taken.snapshot_id.clone()),
            environment_id: Some(record.id.clone()),
            task_id: task_of(record).to_owned(),
            host_id: record.host_id.clone(),
            tenant,
            owner: owner.to_owned(),
            parent_id: parent
                .map(|parent| parent.id.to_string())
                .unwrap_or_default(),
            mode: match request.mode.as_str() {
                "" => MANUAL.to_owned(),
                mode => mode.to_owned(),
            },
            state: SnapshotState::Ready,
            kind: SnapshotKind::Disk,
            layer_key: request.layer_key.clone(),
            arch: self.arch_of(record).await?,
            digest: String::new(),
            base_digest: String::new(),
            size_bytes: 0,
            retention_until: retention.map(|retention| later(now, retention)),
            metadata,
            exports: export(request, now).into_iter().collect(),
            last_error: String::new(),
            created_at: after_parent.unwrap_or_default(),
            updated_at: now,
        };
        Ok(with_bytes(record, taken, now))
    }

    /// The architecture of an environment's host; a host that does not say is amd64.
    async fn arch_of(&self, record: &Environment) -> Result<String, Error> {
        let Some(id) = &record.host_id else {
            return Ok(String::new());
        };
        let host = self.inner.store.host_get(id).await?;
        let arch = host.map(|host| host.capacity.arch.unwrap_or(fuse_model::Arch::Amd64));
        Ok(arch
            .map(|arch| arch.as_str().to_owned())
            .unwrap_or_default())
    }

    /// Deletes what a host has of an environment's snapshots and no record names: what
    /// an interrupted one left behind.
    pub(crate) async fn drop_unrecorded_snapshots(
        &self,
        record: &Environment,
    ) -> Result<(), Error> {
        let (_, provider) = self.inner.providers.of(record.host_id.as_ref()).await?;
        let there = provider
            .snapshots(&record.id)
            .await
            .map_err(|e| snapshot_error("snapshots", e))?;
        self.settle_begun(record, &*provider, &there).await?;
        for taken in there {
            let id = SnapshotId::new(taken.snapshot_id);
            if self.inner.store.snapshot_get(&id).await?.is_none() {
                drop_unrecorded(&*provider, &id).await;
            }
        }
        Ok(())
    }
}

/// The resolution of stored times.
const TICK: std::time::Duration = std::time::Duration::from_micros(1);

async fn drop_unrecorded(provider: &dyn Provider, id: &SnapshotId) {
    match provider.delete_snapshot(id).await {
        Ok(()) => tracing::info!(snapshot_id = %id, "deleted a snapshot that was not recorded"),
        Err(e) => tracing::warn!(
            snapshot_id = %id, error = %chain(&e), "cannot delete a snapshot that was not recorded"
        ),
    }
}

/// A record with what its host says of the bytes. It is never older than it was.
fn with_bytes(record: Snapshot, taken: &host::Snapshot, now: Timestamp) -> Snapshot {
    let reported = taken.created_at.parse::<Timestamp>().ok();
    Snapshot {
        kind: match taken.kind {
            host::SnapshotKind::Live => SnapshotKind::Live,
            host::SnapshotKind::Disk => SnapshotKind::Disk,
        },
        digest: taken.digest.clone(),
        base_digest: taken.base_digest.clone().unwrap_or_default(),
        size_bytes: taken.size_bytes,
        created_at: reported.unwrap_or(now).max(record.created_at),
        ..record
    }
}

/// What a host is asked for.
fn wanted(request: &CreateSnapshot) -> host::SnapshotRequest {
    host::SnapshotRequest {
        snapshot_id: None,
        comment: comment_of(request),
        live: request.live.then_some(true),
    }
}

fn created(snapshot: &Snapshot, taken: &host::Snapshot) -> AuditEntry {
    delete::entry(snapshot, AuditKind::SnapshotCreated)
        .with("kind", snapshot.kind.as_str())
        .with("size_bytes", snapshot.size_bytes)
        .with("pause_ms", taken.pause_ms)
}

/// Layers belong to who builds them; everything else to the task.
fn tenant_of(record: &Environment, request: &CreateSnapshot, caller: &str) -> String {
    if request.layer_key.is_empty() {
        default_tenant(record)
    } else {
        caller.to_owned()
    }
}

/// Whose quota an environment's snapshots count against.
pub(crate) fn default_tenant(record: &Environment) -> String {
    match task_of(record) {
        "" => record.id.to_string(),
        task => task.to_owned(),
    }
}

fn task_of(record: &Environment) -> &str {
    record.task_id.as_ref().map_or("", |task| task.as_str())
}

/// GPUs cannot be part of a snapshot.
pub(crate) fn check_gpus(record: &Environment) -> Result<(), Error> {
    if record.spec.gpus > 0 {
        return Err(Error::GpuUnsupported(record.id.clone()));
    }
    Ok(())
}

fn comment_of(request: &CreateSnapshot) -> Option<String> {
    (!request.comment.is_empty()).then(|| request.comment.clone())
}

fn export(request: &CreateSnapshot, now: Timestamp) -> Option<SnapshotExport> {
    if request.export_ref.is_empty() {
        return None;
    }
    Some(SnapshotExport {
        destination: request.export_ref.clone(),
        status: match request.export_status.as_str() {
            "" => "pending".to_owned(),
            status => status.to_owned(),
        },
        requested_at: now,
        updated_at: now,
        last_error: String::new(),
    })
}

pub(crate) fn snapshot_error(operation: &'static str, source: ProviderError) -> Error {
    Error::Provider { operation, source }
}
