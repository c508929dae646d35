//! Moves a running environment to another host, cold: its disk is brought there and booted
//! under a new id, and that one takes its place.
//!
//! ```text
//! source  running, operation `migrate` ──────────────────────────────┬─ destroying ── gone
//!           snapshot ─ drain command ─ snapshot                      │ one transaction
//! target  provisioning, operation `migrate`: copy ─ boot ─ files ────┴─ running
//! ```
//! Until that transaction the source is the environment: whatever fails, the target is undone
//! and the source goes on. From then on the target is, and the source is one of many that are
//! being destroyed. Neither record has to know of the other: of a process that died, recovery
//! destroys a target that is still being made, and ends the operation of the source.

use std::sync::atomic::{AtomicBool, Ordering};

use fuse_model::{
    Environment, EnvironmentId, EnvironmentSpec, HostId, OperationKind, Redacted, Snapshot, State,
    TaskId,
};
use fuse_planner::{PlacementError, place};
use fuse_redact::Redactor;
use fuse_store::{
    Change, Guarded, Inserted, MovedEnvironment, NewEnvironment, OperationChange, Page, SecretMap,
    SnapshotFilter,
};
use fuse_wire_api::{CreateSnapshot, MigrateEnvironment, TaskPlacement};
use tokio::sync::oneshot;

use super::{
    Creation, StoredRequest,
    accept::{Choice, PLACEMENT_ATTEMPTS},
    boot::Booted,
    failure::BootError,
    fork::random_hex,
    report::Progress,
    seed::SEEDED,
};
use crate::{
    Control, Error, audit,
    control::OPERATION_TTL,
    drain::Outcome,
    error::{Missing, PlacementRefusal, chain},
    operation::not_running,
    provider::{NewVm, ProviderError},
    snapshot::{check_gpus, default_tenant},
};

/// Mode of the snapshots that a migration takes and deletes again.
const MIGRATE: &str = "migrate";
/// Their metadata that names the target. A mode alone may be a word of the caller's.
const TARGET: &str = "migrate_to";
/// When one that outlived a dead process is collected (seconds).
const RETENTION: i64 = 3600;
/// What a crash leaves to read at an environment that was not moved.
const INTERRUPTED: &str = "migrate: interrupted, it goes on where it is";
/// Most of a failure's text that is stored (bytes).
const TEXT_LIMIT: usize = 4096;

/// A migration that was accepted.
struct Migration {
    source: Environment,
    /// What is to take its place.
    record: Environment,
    stored: StoredRequest,
    secrets: SecretMap,
    /// Whether the source's workload was asked to stop.
    was_drained: AtomicBool,
}

impl Control {
    /// Accepts the move of a running environment to another host, and begins it. Its outcome
    /// is the environment that took the place.
    ///
    /// # Errors
    /// It or the target does not exist, the target is where it is already, it does not
    /// run or has GPUs, the target cannot resume its memory, somebody is at work on it, no
    /// other host can take it, or the backend cannot move environments.
    pub async fn environment_migrate(
        &self,
        id: &EnvironmentId,
        request: &MigrateEnvironment,
    ) -> Result<Creation, Error> {
        let (control, id, request) = (self.clone(), id.clone(), request.clone());
        self.detached(async move {
            let migration = control.accept_migration(&id, &request).await?;
            let accepted = migration.record.clone();
            let (sender, finished) = oneshot::channel();
            let worker = control.clone();
            control.spawn(async move {
                let outcome = Box::pin(worker.carry_out_migration(migration)).await;
                // An error here means that nobody waits for the outcome.
                let _gone = sender.send(outcome);
            });
            Ok(Creation {
                accepted,
                warnings: Vec::new(),
                finished,
            })
        })
        .await
    }

    async fn accept_migration(
        &self,
        id: &EnvironmentId,
        request: &MigrateEnvironment,
    ) -> Result<Migration, Error> {
        self.check_migration(id, request).await?;
        let target = &request.target_host_id;
        let target = (!target.is_empty()).then(|| HostId::new(target.clone()));
        let source = self
            .begin_operation(id, OperationKind::Migrate, not_running)
            .await?;
        match self.insert_target(&source, target.as_ref()).await {
            Ok((record, stored, secrets)) => Ok(Migration {
                source,
                record,
                stored,
                secrets,
                was_drained: AtomicBool::new(false),
            }),
            Err(refused) => {
                self.end_operation(&source, Change::default()).await?;
                Err(refused)
            }
        }
    }

    async fn check_migration(
        &self,
        id: &EnvironmentId,
        request: &MigrateEnvironment,
    ) -> Result<(), Error> {
        let source = self.environment_get(id).await?;
        if !request.target_host_id.is_empty() {
            let target = HostId::new(request.target_host_id.clone());
            if self.inner.store.host_get(&target).await?.is_none() {
                return Err(Missing::Host(target).into());
            }
            if source.host_id.as_ref() == Some(&target) {
                return Err(Error::MigrateInvalid("target_host_id is the host it is on"));
            }
        }
        if request.lazy && !source.spec.huge_pages {
            return Err(Error::MigrateInvalid(
                "lazy needs an environment that was created with spec.huge_pages",
            ));
        }
        if source.state != State::Running {
            return Err(not_running(source.id, source.state));
        }
        check_gpus(&source)?;
        if request.live {
            // Memory travels on no agent's routes; a cold migration is never put in its place.
            return Err(Error::MigrateCannotResume(source.id));
        }
        // Only what a registered host has can be handed on.
        let here = source.host_id.as_ref().ok_or_else(cannot_migrate)?;
        if self.host_get(here).await?.backend != SEEDED {
            return Err(cannot_migrate());
        }
        Ok(())
    }

    /// Picks a host, charges it, and stores what is to run there.
    async fn insert_target(
        &self,
        source: &Environment,
        target: Option<&HostId>,
    ) -> Result<(Environment, StoredRequest, SecretMap), Error> {
        let text = self.inner.store.environment_request(&source.id).await?;
        let text = text.unwrap_or_default();
        let secrets = self.secrets_of(&source.id).await?;
        let spec = EnvironmentSpec {
            // A pin moves along with who it pins.
            host_id: source.spec.host_id.as_ref().and(target).cloned(),
            ..source.spec.clone()
        };
        let sized = self.accounted(&spec);
        let task = TaskId::new(format!("mig-{}", random_hex()));
        let id = EnvironmentId::for_task(&self.inner.settings.vm_prefix, &task);
        for _ in 0..PLACEMENT_ATTEMPTS {
            let choice = self.choose_target(source, &sized, target).await?;
            let new = NewEnvironment {
                id: id.clone(),
                task_id: task.clone(),
                tenant: source.tenant.clone(),
                spec: spec.clone(),
                charge: sized.resources(),
                candidates: choice.candidates,
                seed_holders: Vec::new(),
                has_probe: source.probe.is_set(),
                overcommit: false,
                request: text.clone(),
                secrets: Redacted::new(secrets.clone()),
                operation: OperationKind::Migrate,
                operation_ttl: OPERATION_TTL,
                audit: audit::moving(&source.id, &id, &choice.scheduled),
                idempotency: None,
            };
            match self.record_insert(new).await? {
                Inserted::Created(record) => {
                    return Ok((record, StoredRequest::from_json(&text), secrets));
                }
                Inserted::TaskAssigned(existing) => {
                    return Err(Error::TaskAssigned { task, existing });
                }
                Inserted::KeyTaken => return Err(Error::KeyTaken),
                Inserted::NoCapacity => self.inner.fleet.forget(),
            }
        }
        Err(PlacementRefusal::contended(&sized).into())
    }

    /// The hosts that can take it, best first: like its own, and not its own. Those that have
    /// its newest snapshot come first.
    async fn choose_target(
        &self,
        source: &Environment,
        spec: &EnvironmentSpec,
        target: Option<&HostId>,
    ) -> Result<Choice, Error> {
        let refused = |why: String| PlacementRefusal::Move {
            vm: source.id.clone(),
            why,
            rejections: None,
        };
        let here = source.host_id.as_ref().ok_or_else(cannot_migrate)?;
        if let (None, Some(pin)) = (target, &source.spec.host_id) {
            let why = format!("it is pinned to host {pin}; a target that is named moves the pin");
            return Err(refused(why).into());
        }
        let arch = self.host_get(here).await?.arch();
        let holders = match self.inner.store.snapshot_newest(&source.id).await? {
            Some(newest) => self.inner.store.snapshot_holders(&newest).await?,
            None => Vec::new(),
        };
        let holders: Vec<HostId> = holders.into_iter().map(|holder| holder.host).collect();
        let mut hosts = self.placeable_hosts().await?;
        hosts.retain(|host| host.id != *here && host.backend == SEEDED);
        let wanted = EnvironmentSpec {
            host_id: target.cloned(),
            arch: Some(arch),
            ..spec.clone()
        };
        let policy = self.inner.settings.placement_policy;
        let refusal = match place(&wanted, &hosts, policy, &holders) {
            Ok(placement) => return Ok(Choice::of(&placement)),
            Err(PlacementError::NoHosts) => {
                refused(format!("no other {SEEDED} host is registered"))
            }
            // It is registered, and of another kind.
            Err(PlacementError::PinUnknown(host)) => refused(format!(
                "host \"{host}\" has another backend than \"{SEEDED}\""
            )),
            Err(e) => PlacementRefusal::Move {
                vm: source.id.clone(),
                why: e.to_string(),
                rejections: e.rejections().copied(),
            },
        };
        Err(refusal.into())
    }

    async fn carry_out_migration(&self, migration: Migration) -> Result<Environment, Error> {
        let (source, record) = (&migration.source, &migration.record);
        let of_source = self.inner.inflight.begin(&source.id);
        let of_target = self.inner.inflight.begin(&record.id);
        let redactor = Redactor::new(migration.secrets.values().map(String::as_str));
        let progress = Progress::placed(TaskPlacement {
            host_id: record
                .host_id
                .clone()
                .map(HostId::into_string)
                .unwrap_or_default(),
            policy: MIGRATE.to_owned(),
            ..TaskPlacement::default()
        });
        let work = self.holding(&record.id, self.move_over(&migration, &progress));
        let outcome = tokio::select! {
            outcome = self.holding(&source.id, work) => match outcome {
                Ok(outcome) => outcome.unwrap_or(Err(BootError::TakenOver)),
                Err(_lost) => Err(BootError::SourceGone(source.id.clone())),
            },
            () = of_source.cancelled() => Err(BootError::SourceGone(source.id.clone())),
            () = of_target.cancelled() => Err(BootError::TakenOver),
        };
        let failed = match outcome {
            Ok(booted) => match self.cut_over(&migration, booted).await? {
                Some(moved) => {
                    drop((of_source, of_target));
                    self.leave(moved.source).await;
                    self.watch_probe(&moved.target);
                    return Ok(moved.target);
                }
                None => BootError::SourceGone(source.id.clone()),
            },
            Err(failed) => failed,
        };
        if !matches!(failed, BootError::TakenOver) {
            self.keep_failure(record, &failed, &progress, &redactor)
                .await;
        }
        let failure = failed.redacted(&record.id, &redactor);
        self.undo(record, &failed, failure.clone()).await;
        let text = Redactor::default().clean_head(&format!("migrate: {failure}"), TEXT_LIMIT);
        self.stay(&migration, text).await;
        Err(failure.into())
    }

    /// Brings up the target.
    async fn move_over(
        &self,
        migration: &Migration,
        progress: &Progress,
    ) -> Result<Booted, BootError> {
        let record = &migration.record;
        let seed = self.capture(migration, progress).await?;
        let at_seed = |e| BootError::Seed(Box::new(e));
        let host = record
            .host_id
            .as_ref()
            .ok_or_else(|| at_seed(cannot_migrate()))?;
        let copied = progress.measure("copy", self.bring_to(&seed, host)).await;
        let local = copied.map_err(at_seed)?;
        let found = self.inner.providers.of(Some(host)).await;
        let (_, provider) = found.map_err(BootError::Lookup)?;
        let new = NewVm {
            id: &record.id,
            spec: &record.spec,
            owner: self.inner.store.fleet_id(),
            seed: Some(&local),
            gpu_uuids: &[],
        };
        let made = progress.measure("boot", provider.create(new)).await;
        self.note_boot(record, &made).await;
        let vm = made.map_err(BootError::Boot)?;
        let guest = (&migration.stored, &migration.secrets);
        self.set_up_copy(record, guest, &*provider, vm, progress)
            .await
    }

    /// The disk as the stopped workload left it. That it can be captured at all is found out
    /// before the workload is asked to stop.
    async fn capture(
        &self,
        migration: &Migration,
        progress: &Progress,
    ) -> Result<Snapshot, BootError> {
        let at_seed = |e| BootError::Seed(Box::new(e));
        let take = || progress.measure("snapshot", self.take_for_migration(migration));
        let before = Box::pin(take()).await.map_err(at_seed)?;
        if before.digest.is_empty() {
            // What cannot be verified does not travel.
            return Err(at_seed(cannot_migrate()));
        }
        migration.was_drained.store(true, Ordering::Relaxed);
        let drained = self.drain_command(&migration.source);
        match progress.measure("drain", drained).await {
            Outcome::Drained => {}
            Outcome::NoVm => {
                let why = "there is no vm to run it in".to_owned();
                return Err(BootError::Drain(why));
            }
            Outcome::Failed(why) => return Err(BootError::Drain(why)),
        }
        let after = Box::pin(take()).await.map_err(at_seed)?;
        let is_same = before.digest == after.digest && before.base_digest == after.base_digest;
        Ok(if is_same { before } else { after })
    }

    async fn take_for_migration(&self, migration: &Migration) -> Result<Snapshot, Error> {
        let source = &migration.source;
        let request = CreateSnapshot {
            comment: "to move it to another host".to_owned(),
            mode: MIGRATE.to_owned(),
            retention_seconds: RETENTION,
            metadata: [(TARGET.to_owned(), migration.record.id.to_string())].into(),
            ..CreateSnapshot::default()
        };
        let (tenant, owner) = (default_tenant(source), &source.tenant);
        self.take_and_record(source, &request, tenant, owner, |_| None)
            .await
    }

    /// `None` when one of the two was changed or removed meanwhile. A failure of the store
    /// leaves everything to recovery, because the write may have been committed.
    async fn cut_over(
        &self,
        migration: &Migration,
        booted: Booted,
    ) -> Result<Option<MovedEnvironment>, Error> {
        let (source, record) = (&migration.source, &migration.record);
        let leaving = Change {
            error: Some(String::new()),
            operation: OperationChange::Seize(OperationKind::Destroy, OPERATION_TTL),
            audit: audit::leaving(source, record),
            ..Change::default()
        };
        let arrived = Change {
            url: Some(booted.vm.url),
            boot_id: booted.vm.boot_id,
            endpoints: Some(booted.endpoints),
            guest_token: booted.token,
            operation: OperationChange::End,
            audit: audit::migrated(source, record, migration.secrets.keys()),
            ..Change::default()
        };
        let stored = self
            .record_cut_over((source, leaving), (record, arrived))
            .await;
        match stored? {
            Guarded::Updated(moved) => {
                tracing::info!(
                    vm_id = %source.id, moved_to = %moved.target.id,
                    host_id = moved.target.host_id.as_ref().map_or("", |id| id.as_str()),
                    "environment moved to another host"
                );
                Ok(Some(moved))
            }
            Guarded::Stale | Guarded::Missing | Guarded::Busy(_) => Ok(None),
        }
    }

    /// Clears up at the source. Whatever is not done here the reconcile loop does: its VM is
    /// destroyed as any other, its snapshots have an end.
    async fn leave(&self, source: Environment) {
        let id = source.id.clone();
        if let Err(e) = self.finish_destroy(source).await {
            tracing::warn!(
                vm_id = %id, error = %chain(&e),
                "cannot destroy what was moved away yet, the reconcile loop will"
            );
        }
        self.drop_transfers(&id).await;
    }

    /// The source goes on where it is.
    async fn stay(&self, migration: &Migration, error: String) {
        let source = &migration.source;
        let stayed = async {
            self.clear_away(source, migration.was_drained.load(Ordering::Relaxed))
                .await?;
            let change = Change {
                error: Some(error),
                ..Change::default()
            };
            self.end_operation(source, change).await?;
            Ok::<(), Error>(())
        };
        if let Err(e) = stayed.await {
            tracing::warn!(
                vm_id = %source.id, error = %chain(&e),
                "cannot put back what was not moved yet, recovery will"
            );
            self.abandon(&source.id, OperationKind::Migrate);
        }
    }

    /// What is left of a migration of `record` that a process was cut short in.
    pub(crate) async fn pick_up_migration(&self, record: &Environment) -> Result<Change, Error> {
        self.clear_away(record, true).await?;
        Ok(Change {
            error: Some(INTERRUPTED.to_owned()),
            ..Change::default()
        })
    }

    /// Starts the guest agent and the services, which the drain command may have stopped, and
    /// deletes the snapshots.
    async fn clear_away(&self, source: &Environment, was_drained: bool) -> Result<(), Error> {
        let now = self.inner.store.environment_get(&source.id).await?;
        if now.is_none_or(|now| now.version != source.version) {
            // Somebody took it over, most likely to destroy it, and does with it what he wants.
            self.drop_transfers(&source.id).await;
            return Ok(());
        }
        if was_drained {
            let (_, provider) = self.inner.providers.of(source.host_id.as_ref()).await?;
            let token = self.inner.store.environment_guest_token(&source.id).await?;
            let started = self.start_agent_again(&*provider, &source.id, token.is_some());
            started.await?;
            self.services_after_drain(&*provider, &source.id).await?;
        }
        self.drop_unrecorded_snapshots(source).await?;
        self.drop_transfers(&source.id).await;
        Ok(())
    }

    /// Deletes the snapshots that a migration of `id` took. Best effort: they have an end.
    async fn drop_transfers(&self, id: &EnvironmentId) {
        let filter = SnapshotFilter {
            environment_id: Some(id.to_string()),
            mode: Some(MIGRATE.to_owned()),
            ..SnapshotFilter::default()
        };
        let page = Page {
            after: None,
            limit: 100,
        };
        let dropped = async {
            // Newest first, so children before their parents.
            for snapshot in self.snapshot_list(&filter, &page).await?.items {
                if snapshot.metadata.contains_key(TARGET) {
                    self.snapshot_delete(&snapshot.id).await?;
                }
            }
            Ok::<(), Error>(())
        };
        if let Err(e) = dropped.await {
            tracing::warn!(
                vm_id = %id, error = %chain(&e), "cannot delete the snapshots of a migration yet"
            );
        }
    }
}

/// Its backend does not hand disks on.
pub(crate) fn cannot_migrate() -> Error {
    Error::Provider {
        operation: "migrate",
        source: ProviderError::Unsupported {
            operation: "migrate",
        },
    }
}
