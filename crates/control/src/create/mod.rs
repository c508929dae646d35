//! Creates an environment: accept (place, reserve, store), then boot it.
//!
//! ```text
//! accept ── refused: task taken, no capacity (a `failed` event and task are stored)
//!   │ one transaction: record `provisioning`, task, reservation, event, operation
//!   ▼
//! boot   ── vm → files → startup script → services → guest agent   (each step may fail)
//!   │ one transaction: `running`, url, endpoints, token, task, event
//!   ▼
//! running
//! ```
//! A failed boot is undone: the VM is destroyed on its host, then the record is removed
//! with a `failed` event. An interrupted one is found by its expired operation and
//! finished or undone by recovery. The whole use case is a task of its own.

mod accept;
mod boot;
mod failure;
mod fleet;
mod fork;
mod migrate;
mod once;
mod output;
mod report;
mod request;
mod script;
mod seed;
mod services;
mod steps;

use fuse_model::{Environment, OperationKind, Redacted, State, Trigger};
use fuse_redact::Redactor;
use fuse_store::{Change, Guarded, OperationChange, Removal, SecretMap, TaskChange};
use fuse_wire_api::CheckedCreate;
use tokio::sync::oneshot;

pub use failure::{CreateFailure, Phase};
pub use once::{CreatedOnce, Once, Repeat, Wording};

pub(crate) use accept::domain_spec;
pub(crate) use boot::start_request;
pub(crate) use fleet::Fleet;
pub(crate) use migrate::cannot_migrate;
pub(crate) use request::StoredRequest;
pub(crate) use seed::{SEEDED, Seed};
pub(crate) use services::services_again;

use self::{
    boot::{Boot, Booted},
    failure::BootError,
    report::Progress,
};
use crate::{
    Control, Error,
    audit::{self, Reason},
};

/// An accepted create that goes on whether or not anybody waits for it.
#[derive(Debug)]
pub struct Creation {
    accepted: Environment,
    warnings: Vec<String>,
    finished: oneshot::Receiver<Result<Environment, Error>>,
}

impl Creation {
    /// The record in `provisioning`.
    #[must_use]
    pub fn accepted(&self) -> &Environment {
        &self.accepted
    }

    /// What whoever asked should know about it.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Waits for the end and answers with the running environment.
    ///
    /// # Errors
    /// The create failed; everything is undone by then.
    pub async fn finished(self) -> Result<Environment, Error> {
        self.finished.await.unwrap_or(Err(Error::ShuttingDown))
    }
}

impl Control {
    /// Accepts a create request and starts bringing the environment up.
    ///
    /// # Errors
    /// The request is refused: script bound, seed, task taken, no host.
    pub async fn environment_create(
        &self,
        request: CheckedCreate,
        tenant: String,
    ) -> Result<Creation, Error> {
        self.create_with(request, tenant, None).await
    }

    async fn create_with(
        &self,
        request: CheckedCreate,
        tenant: String,
        once: Option<Once>,
    ) -> Result<Creation, Error> {
        let control = self.clone();
        self.detached(async move {
            let key = once.as_ref().map(|once| once.key.clone());
            let (accepted, placement) = control.accept(&request, tenant, key).await?;
            let (sender, finished) = oneshot::channel();
            let record = accepted.clone();
            let progress = Progress::placed(placement);
            let worker = control.clone();
            control.spawn(async move {
                let work = worker.bring_up(record, request, once, progress);
                let outcome = Box::pin(work).await;
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

    /// Boots an accepted environment and stores the outcome.
    async fn bring_up(
        &self,
        record: Environment,
        request: CheckedCreate,
        once: Option<Once>,
        progress: Progress,
    ) -> Result<Environment, Error> {
        let registration = self.inner.inflight.begin(&record.id);
        let redactor = Redactor::new(
            request
                .secrets
                .values()
                .chain([&request.gateway_token])
                .map(String::as_str),
        );
        let boot = Boot {
            control: self,
            record: &record,
            request: &request,
            redactor: &redactor,
            progress: &progress,
        };
        let outcome = tokio::select! {
            outcome = self.holding(&record.id, boot.run()) => {
                outcome.unwrap_or(Err(BootError::TakenOver))
            }
            () = registration.cancelled() => Err(BootError::TakenOver),
        };
        let failed = match outcome {
            Ok(booted) => match self
                .commit_running(&record, &request.secrets, booted)
                .await?
            {
                Some(running) => {
                    let outcome = Ok(running);
                    self.keep_answer(&record, once.as_ref(), &outcome).await;
                    return outcome;
                }
                None => BootError::TakenOver,
            },
            Err(failed) => failed,
        };
        if !matches!(failed, BootError::TakenOver) {
            self.keep_failure(&record, &failed, &progress, &redactor)
                .await;
        }
        let failure = failed.redacted(&record.id, &redactor);
        let outcome = Err(failure.clone().into());
        // Before the record goes: who sees it gone finds the answer.
        self.keep_answer(&record, once.as_ref(), &outcome).await;
        self.undo(&record, &failed, failure).await;
        outcome
    }

    /// `None` when the record was changed or removed meanwhile: somebody destroys it.
    ///
    /// A failure of the store leaves everything as it is, because the write may have
    /// been committed; recovery looks at the record once the operation has expired.
    async fn commit_running(
        &self,
        record: &Environment,
        secrets: &SecretMap,
        booted: Booted,
    ) -> Result<Option<Environment>, Error> {
        let change = Change {
            url: Some(booted.vm.url),
            boot_id: booted.vm.boot_id,
            guest_version: booted.vm.guest_version,
            endpoints: Some(booted.endpoints),
            guest_token: booted.token,
            task: TaskChange::Running,
            operation: OperationChange::End,
            audit: audit::running(record, secrets.keys()),
            ..Change::default()
        };
        let stored = self
            .record_transition(record, Trigger::Started, change)
            .await;
        match stored.map_err(|e| log_commit(record, e))? {
            Guarded::Updated(running) => {
                tracing::info!(vm_id = %running.id, host_id = host(&running), "environment runs");
                self.watch_probe(&running);
                Ok(Some(running))
            }
            Guarded::Stale | Guarded::Missing | Guarded::Busy(_) => Ok(None),
        }
    }

    /// Destroys what was made and removes the record. Who took the environment over
    /// does that himself.
    async fn undo(&self, record: &Environment, failed: &BootError, failure: CreateFailure) {
        if matches!(failed, BootError::TakenOver) {
            tracing::info!(vm_id = %record.id, "create was taken over");
            return;
        }
        tracing::warn!(
            vm_id = %record.id, host_id = host(record), step = failed.step(),
            error = failure.message, "create failed"
        );
        if failed.may_have_made_a_vm() {
            self.destroy_leftover(record).await;
        }
        let removal = Removal {
            audit: audit::provision_failed(record, &failure.message),
            task: TaskChange::Failed(failure.message.clone()),
            error: failure.message,
        };
        let removed = self
            .record_remove(record, Trigger::CreateFailed, removal)
            .await;
        match removed {
            Ok(Guarded::Updated(_) | Guarded::Missing) => {}
            Ok(Guarded::Stale | Guarded::Busy(_)) => {
                tracing::info!(vm_id = %record.id, "a failed create was taken over");
            }
            // The operation expires and recovery undoes it.
            Err(e) => tracing::error!(
                vm_id = %record.id, error = %crate::error::chain(&e),
                "cannot remove a failed environment, recovery will"
            ),
        }
    }

    /// Best effort: a VM that stays behind is an orphan, and the reconcile loop
    /// destroys those. A VM of another fleet that has the same name is left alone.
    async fn destroy_leftover(&self, record: &Environment) {
        let destroyed = async {
            let (_, provider) = self.inner.providers.of(record.host_id.as_ref()).await?;
            let ours = self.inner.store.fleet_id().as_str();
            match provider.find(&record.id).await? {
                Some(vm) if vm.owner.as_deref().is_none_or(|owner| owner == ours) => {
                    provider.destroy(&record.id).await?;
                }
                Some(_) | None => {}
            }
            Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
        };
        if let Err(e) = destroyed.await {
            tracing::warn!(
                vm_id = %record.id, host_id = host(record), error = %crate::error::chain(&*e),
                "cannot destroy the VM of a failed create, the reconcile loop will"
            );
        }
    }

    /// Ends an interrupted create whose VM is not usable.
    pub(crate) fn interrupted(record: &Environment) -> Change {
        const TEXT: &str = "provisioning interrupted by orchestrator crash";
        debug_assert_eq!(record.state, State::Provisioning);
        Change {
            error: Some(TEXT.to_owned()),
            task: TaskChange::Failed(TEXT.to_owned()),
            operation: OperationChange::Seize(
                OperationKind::Destroy,
                crate::control::OPERATION_TTL,
            ),
            audit: audit::destroying(record, Reason::Interrupted, TEXT),
            ..Change::default()
        }
    }
}

fn log_commit(record: &Environment, error: fuse_store::StoreError) -> Error {
    tracing::error!(
        vm_id = %record.id, error = %crate::error::chain(&error),
        "cannot store that an environment runs, recovery will look at it"
    );
    error.into()
}

fn host(record: &Environment) -> &str {
    record.host_id.as_ref().map_or("", |id| id.as_str())
}

/// The guest token of a booted environment, if it has one.
type GuestToken = Option<Redacted<String>>;
