//! Forks a running environment: a new one that boots a copy of the source's disk, on the
//! source's host, with an identity and credentials of its own.
//!
//! The record is there before the snapshot and the VM are, so that whatever is made on
//! the host has a name in the table, and a fork that was asked for twice is made once.

use std::time::Instant;

use fuse_model::{
    AuditEntry, AuditKind, Environment, EnvironmentId, EnvironmentSpec, Host, OperationKind,
    Redacted, Snapshot, SnapshotId, SnapshotKind, SnapshotState, State, TaskId,
};
use fuse_redact::Redactor;
use fuse_store::{IdempotentKey, Inserted, NewEnvironment, SecretMap};
use fuse_wire_api::{CreateSnapshot, ForkEnvironment, Manifest, TaskPlacement};
use rand::Rng as _;
use tokio::sync::oneshot;

use super::{
    CreatedOnce, Creation, Once, StoredRequest, boot::Booted, failure::BootError, output::Output,
    report::Progress, services, start_request, steps::Steps,
};
use crate::{
    Control, Error,
    audit::{self, Scheduled},
    control::OPERATION_TTL,
    error::PlacementRefusal,
    guest::{self, Credentials, FileSources},
    provider::{FoundVm, NewVm, Provider, ProviderError, upload_request},
    snapshot::{LINEAGE, check_gpus, check_ready, default_tenant},
};

/// Mode of a snapshot that was taken to fork from.
const AUTO: &str = "auto";

/// A fork that was accepted.
struct Fork {
    record: Environment,
    source: Environment,
    /// The snapshot to start from; `None` = a fresh one.
    reuse: Option<SnapshotId>,
    comment: String,
    stored: StoredRequest,
    secrets: SecretMap,
}

fn not_running(vm: EnvironmentId, state: State) -> Error {
    Error::ForkNotRunning { vm, state }
}

impl Control {
    /// Accepts a fork of a running environment and starts bringing it up.
    ///
    /// # Errors
    /// The source does not exist, does not run, has GPUs or is on a backend without
    /// forks; the snapshot is not the source's or not usable; over quota; or the
    /// capacity that was required is not there.
    pub async fn environment_fork(
        &self,
        source: &EnvironmentId,
        request: ForkEnvironment,
        tenant: String,
    ) -> Result<Creation, Error> {
        self.fork_with(source, request, tenant, None).await
    }

    /// Accepts a fork, unless the request repeats an earlier one.
    ///
    /// # Errors
    /// As [`Control::environment_fork`], and when the key belongs to another request.
    pub async fn environment_fork_once(
        &self,
        source: &EnvironmentId,
        request: ForkEnvironment,
        tenant: String,
        once: Once,
    ) -> Result<CreatedOnce, Error> {
        let first = self.fork_with(source, request, tenant.clone(), Some(once.clone()));
        Box::pin(self.first_or_repeat(tenant, once, first)).await
    }

    async fn fork_with(
        &self,
        source: &EnvironmentId,
        request: ForkEnvironment,
        tenant: String,
        once: Option<Once>,
    ) -> Result<Creation, Error> {
        let control = self.clone();
        let source = source.clone();
        self.detached(async move {
            let key = once.as_ref().map(|once| once.key.clone());
            let fork = control.accept_fork(&source, request, tenant, key).await?;
            let accepted = fork.record.clone();
            let warnings = control.note_overcommit(&accepted).await;
            let (sender, finished) = oneshot::channel();
            let worker = control.clone();
            control.spawn(async move {
                let outcome = Box::pin(worker.bring_up_fork(fork, once)).await;
                // An error here means that nobody waits for the outcome.
                let _gone = sender.send(outcome);
            });
            Ok(Creation {
                accepted,
                warnings,
                finished,
            })
        })
        .await
    }

    async fn accept_fork(
        &self,
        id: &EnvironmentId,
        request: ForkEnvironment,
        tenant: String,
        idempotency: Option<IdempotentKey>,
    ) -> Result<Fork, Error> {
        let source = self.environment_get(id).await?;
        if source.state != State::Running {
            return Err(not_running(source.id, source.state));
        }
        check_gpus(&source)?;
        let (_, provider) = self.inner.providers.of(source.host_id.as_ref()).await?;
        if !provider.has_snapshots() {
            return Err(Error::Provider {
                operation: "fork",
                source: ProviderError::Unsupported { operation: "fork" },
            });
        }
        let reuse = self
            .check_seed(&source, &request, &tenant, &*provider)
            .await?;
        let text = self.inner.store.environment_request(id).await?;
        let text = text.unwrap_or_default();
        let secrets = self.secrets_of(id).await?;
        let task = TaskId::new(format!("fork-{}", random_hex()));
        let id = EnvironmentId::for_task(&self.inner.settings.vm_prefix, &task);
        let spec = spec_of(&source);
        let sized = self.accounted(&spec);
        let scheduled = Scheduled {
            policy: "source_host",
            eligible: 1,
        };
        let new = NewEnvironment {
            id: id.clone(),
            task_id: task.clone(),
            tenant,
            spec,
            charge: sized.resources(),
            candidates: source.host_id.iter().cloned().collect(),
            seed_holders: source.host_id.iter().cloned().collect(),
            has_probe: source.probe.is_set(),
            overcommit: !request.require_capacity,
            request: text.clone(),
            secrets: Redacted::new(secrets.clone()),
            operation: OperationKind::Create,
            operation_ttl: OPERATION_TTL,
            audit: audit::accepted(&id, &task, &scheduled),
            idempotency,
        };
        let record = match self.record_insert(new).await? {
            Inserted::Created(record) => record,
            Inserted::TaskAssigned(existing) => return Err(Error::TaskAssigned { task, existing }),
            Inserted::KeyTaken => return Err(Error::KeyTaken),
            Inserted::NoCapacity => return Err(PlacementRefusal::contended(&sized).into()),
        };
        Ok(Fork {
            record,
            source,
            reuse,
            comment: request.comment,
            stored: StoredRequest::from_json(&text),
            secrets,
        })
    }

    /// Checks what a fork is to start from, before anything is made.
    async fn check_seed(
        &self,
        source: &Environment,
        request: &ForkEnvironment,
        caller: &str,
        provider: &dyn Provider,
    ) -> Result<Option<SnapshotId>, Error> {
        if request.reuse_snapshot_id.is_empty() {
            self.check_free(source, not_running)?;
            let (tenant, wanted) = (default_tenant(source), CreateSnapshot::default());
            self.check_quota(&tenant, &wanted).await?;
            return Ok(None);
        }
        let id = SnapshotId::new(request.reuse_snapshot_id.clone());
        let snapshot = self.snapshot_for(&id, caller).await?;
        if snapshot.environment_id.as_ref() != Some(&source.id) {
            let owner = snapshot.environment_id.map(|vm| format!("vm {vm}"));
            return Err(Error::SnapshotOfAnother {
                id,
                owner: owner.unwrap_or_else(|| "no vm of this fleet".to_owned()),
                vm: source.id.clone(),
            });
        }
        check_ready(&snapshot)?;
        self.check_listed(source, &snapshot, provider).await?;
        Ok(Some(id))
    }

    /// Tells the log, and the caller, when a fork took more than its host has.
    async fn note_overcommit(&self, fork: &Environment) -> Vec<String> {
        let Some(id) = &fork.host_id else {
            return Vec::new();
        };
        let Ok(Some(host)) = self.inner.store.host_get(id).await else {
            return Vec::new();
        };
        let over = over(&host);
        if over.is_empty() {
            return Vec::new();
        }
        let what = over.join(", ");
        tracing::warn!(host_id = %id, vm_id = %fork.id, what, "a fork overcommits its host");
        self.audit(
            AuditEntry::new(AuditKind::HostOvercommitted, id.as_str())
                .with("vm_id", fork.id.as_str())
                .with("over", what.as_str()),
        );
        vec![format!(
            "host {id} has more allocated than it has: {what}; a fork never goes elsewhere"
        )]
    }

    async fn bring_up_fork(&self, fork: Fork, once: Option<Once>) -> Result<Environment, Error> {
        let record = &fork.record;
        let registration = self.inner.inflight.begin(&record.id);
        let redactor = Redactor::new(fork.secrets.values().map(String::as_str));
        let progress = Progress::placed(TaskPlacement {
            host_id: record
                .host_id
                .as_ref()
                .map(ToString::to_string)
                .unwrap_or_default(),
            policy: "fork".to_owned(),
            candidates: 1,
            ..TaskPlacement::default()
        });
        let outcome = tokio::select! {
            outcome = self.holding(&record.id, self.boot_fork(&fork, &progress)) => {
                outcome.unwrap_or(Err(BootError::TakenOver))
            }
            () = registration.cancelled() => Err(BootError::TakenOver),
        };
        let failed = match outcome {
            Ok((booted, seed)) => match self.commit_running(record, &fork.secrets, booted).await? {
                Some(running) => {
                    self.note_lineage(&fork, &seed).await;
                    let outcome = Ok(running);
                    self.keep_answer(record, once.as_ref(), &outcome).await;
                    return outcome;
                }
                None => BootError::TakenOver,
            },
            Err(failed) => failed,
        };
        if !matches!(failed, BootError::TakenOver) {
            self.keep_failure(record, &failed, &progress, &redactor)
                .await;
        }
        let failure = failed.redacted(&record.id, &redactor);
        let outcome = Err(failure.clone().into());
        // Before the record goes: who sees it gone finds the answer.
        self.keep_answer(record, once.as_ref(), &outcome).await;
        self.undo(record, &failed, failure).await;
        outcome
    }

    async fn boot_fork(
        &self,
        fork: &Fork,
        progress: &Progress,
    ) -> Result<(Booted, SnapshotId), BootError> {
        let started = Instant::now();
        let record = &fork.record;
        let seed = match &fork.reuse {
            Some(id) => id.clone(),
            None => {
                let wanted = CreateSnapshot {
                    comment: fork.comment.clone(),
                    mode: AUTO.to_owned(),
                    ..CreateSnapshot::default()
                };
                let taken = self.snapshot_take(&fork.source.id, &wanted, &record.tenant, None);
                let taken = Box::pin(progress.measure("snapshot", taken)).await;
                taken.map_err(|e| BootError::Seed(Box::new(e)))?.id
            }
        };
        let host = fork.source.host_id.as_ref();
        let found = self.inner.providers.of(host).await;
        let (_, provider) = found.map_err(BootError::Lookup)?;
        let new = NewVm {
            id: &record.id,
            spec: &record.spec,
            owner: self.inner.store.fleet_id(),
            seed: None,
            gpu_uuids: &[],
        };
        let forked = provider.fork(&fork.source.id, &seed, new);
        let vm = progress.measure("boot", forked).await;
        let vm = vm.map_err(BootError::Boot)?;
        let guest = (&fork.stored, &fork.secrets);
        let booted = self.set_up_copy(record, guest, &*provider, vm, progress);
        let booted = booted.await?;
        tracing::debug!(vm_id = %record.id, elapsed_ms = started.elapsed().as_millis(), "fork is up");
        Ok((booted, seed))
    }

    /// Sets up the guest of a VM that booted a copy of another one's disk. That has none of
    /// what the control plane writes into a guest's memory, and what it may have is the
    /// other's: everything is written, credentials anew.
    pub(super) async fn set_up_copy(
        &self,
        record: &Environment,
        (stored, secrets): (&StoredRequest, &SecretMap),
        provider: &dyn Provider,
        vm: FoundVm,
        progress: &Progress,
    ) -> Result<Booted, BootError> {
        if let Some(timings) = &vm.timings {
            progress.note_host(timings);
        }
        let written = self.write_copy(&record.id, stored, secrets, provider);
        let credentials = progress.measure("upload", written).await?;
        let guest = (stored, secrets);
        self.services_of_copy(&record.id, guest, provider, progress)
            .await?;
        let start = start_request(&self.inner.settings, stored, credentials.is_some());
        let started_agent = provider.start_agent(&record.id, &start);
        let endpoints = progress.measure("start-agent", started_agent).await;
        Ok(Booted {
            vm,
            endpoints: endpoints.map_err(BootError::StartAgent)?,
            token: credentials.map(|made| made.token),
        })
    }

    /// The containers are on the copied disk; what they are started with was written anew.
    async fn services_of_copy(
        &self,
        id: &EnvironmentId,
        (stored, secrets): (&StoredRequest, &SecretMap),
        provider: &dyn Provider,
        progress: &Progress,
    ) -> Result<(), BootError> {
        let manifest = Manifest::parse(stored.manifest_text().as_bytes());
        if !manifest.is_ok_and(|manifest| services::are_wanted(&manifest)) {
            return Ok(());
        }
        let redactor = Redactor::new(secrets.values().map(String::as_str));
        let mut output = Output::new(&redactor, None);
        let coming = services::up(provider, id, &mut output, |_| Box::pin(async {}));
        let coming = progress.measure("services", coming);
        let reports = Steps::new(self, provider, id, services::REPORTS);
        reports.during(coming).await.map(drop)
    }

    async fn write_copy(
        &self,
        id: &EnvironmentId,
        stored: &StoredRequest,
        secrets: &SecretMap,
        provider: &dyn Provider,
    ) -> Result<Option<Credentials>, BootError> {
        let credentials = self.new_credentials(id).map_err(BootError::Credentials)?;
        let manifest_bytes = stored.manifest_text().as_bytes();
        // It was read once, when the first of them was created.
        let manifest = Manifest::parse(manifest_bytes).unwrap_or_default();
        let files = guest::profile_files(FileSources {
            manifest_bytes,
            manifest: &manifest,
            secrets,
            credentials: credentials.as_ref(),
            healthcheck: stored.healthcheck.as_ref(),
            desktop: stored.desktop.as_ref(),
            files: &[],
        });
        let uploaded = provider.upload(id, &upload_request(files)).await;
        uploaded.map_err(BootError::Upload)?;
        Ok(credentials)
    }

    /// Records what the fork was made of: the seed has a child as long as the fork
    /// exists. It runs either way, so a failure is no reason to undo it.
    async fn note_lineage(&self, fork: &Fork, seed: &SnapshotId) {
        let now = self.inner.store.now();
        let record = &fork.record;
        let lineage = Snapshot {
            id: SnapshotId::new(format!("{LINEAGE}{}", random_hex())),
            environment_id: Some(record.id.clone()),
            task_id: record
                .task_id
                .clone()
                .map(TaskId::into_string)
                .unwrap_or_default(),
            host_id: record.host_id.clone(),
            tenant: default_tenant(record),
            owner: record.tenant.clone(),
            parent_id: seed.to_string(),
            mode: AUTO.to_owned(),
            state: SnapshotState::Ready,
            kind: SnapshotKind::Disk,
            layer_key: String::new(),
            arch: String::new(),
            digest: String::new(),
            base_digest: String::new(),
            size_bytes: 0,
            retention_until: None,
            metadata: [("source_vm_id".to_owned(), fork.source.id.to_string())].into(),
            exports: Vec::new(),
            last_error: String::new(),
            created_at: now,
            updated_at: now,
        };
        let forked = AuditEntry::new(AuditKind::VmForked, fork.source.id.as_str())
            .with("fork_id", record.id.as_str())
            .with("snapshot_id", seed.as_str());
        if let Err(e) = self.snapshot_insert(lineage, vec![forked], None).await {
            tracing::warn!(vm_id = %record.id, error = %crate::error::chain(&e), "cannot note what a fork is made of");
        }
    }
}

/// The source's, without what decided where the source went.
fn spec_of(source: &Environment) -> EnvironmentSpec {
    EnvironmentSpec {
        host_id: None,
        labels: fuse_model::Labels::default(),
        ..source.spec.clone()
    }
}

/// What a host has too little of.
fn over(host: &Host) -> Vec<String> {
    let (has, given) = (&host.capacity, &host.allocated);
    [
        ("cpus", given.cpus, has.cpus),
        ("ram_mb", given.ram_mb, has.ram_mb),
        ("storage_gb", given.storage_gb, has.storage_gb),
        ("vm_count", given.vm_count, has.vm_count),
    ]
    .into_iter()
    .filter(|(_, given, has)| given > has)
    .map(|(what, given, has)| format!("{what} {given} of {has}"))
    .collect()
}

/// 32 hex digits.
pub(super) fn random_hex() -> String {
    let mut bytes = [0u8; 16];
    rand::rng().fill_bytes(&mut bytes);
    hex::encode(bytes)
}
