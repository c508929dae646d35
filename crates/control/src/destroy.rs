//! Destroys an environment, from any state, and is what every way of ending one comes
//! down to: store `destroying`, destroy the VM on its host, remove the record with its
//! `destroyed` event. When the host cannot do it the record stays and the reconcile
//! loop tries again.

use std::time::Duration;

use fuse_model::{Environment, EnvironmentId, OperationKind, State, Trigger};
use fuse_redact::Redactor;
use fuse_store::{Change, Guarded, OperationChange, Removal, StoreError, TaskChange};

use crate::{
    Control, Error,
    audit::{self, Reason},
    control::OPERATION_TTL,
    error::{Missing, chain},
    provider::{LookupError, ProviderError},
};

/// Text of a task whose environment was destroyed on request.
const FORCED: &str = "vm force destroyed";
/// Most of a failure's text that is stored (bytes).
const TEXT_LIMIT: usize = 8192;
/// Pause between two looks at an environment that somebody else destroys, in case its
/// event was missed.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// How long a call waits for a destroy that somebody else runs.
const WAIT_FOR_OTHER: Duration = Duration::from_secs(60);

/// The VM could not be destroyed on its host.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refused {
    #[error(transparent)]
    Lookup(#[from] LookupError),
    #[error(transparent)]
    Provider(#[from] ProviderError),
}

/// What became of a claim on an environment that is to be destroyed.
enum Claim {
    /// This call destroys it.
    Mine(Box<Environment>),
    /// Somebody else is at it.
    Theirs,
}

impl Control {
    /// Destroys an environment and waits until it is gone.
    ///
    /// # Errors
    /// It does not exist, the host fails (it stays `destroying`), or the store fails.
    pub async fn environment_destroy(&self, id: &EnvironmentId) -> Result<(), Error> {
        let control = self.clone();
        let id = id.clone();
        self.detached(async move {
            match control.claim(&id).await? {
                Claim::Mine(record) => {
                    control.inner.inflight.stop(&id).await;
                    control.finish_destroy(*record).await
                }
                Claim::Theirs => control.wait_for_other(&id).await,
            }
        })
        .await
    }

    /// Stores `destroying` and takes the operation, whoever has it; but a destroy that
    /// is under way is left to whoever runs it.
    async fn claim(&self, id: &EnvironmentId) -> Result<Claim, Error> {
        loop {
            let record = self.environment_get(id).await?;
            let destroying = record.state == State::Destroying;
            if destroying && self.is_at_work(&record) {
                return Ok(Claim::Theirs);
            }
            let operation = if destroying {
                OperationChange::Begin(OperationKind::Destroy, OPERATION_TTL)
            } else {
                OperationChange::Seize(OperationKind::Destroy, OPERATION_TTL)
            };
            let task = match record.task_id {
                Some(_) => TaskChange::Failed(FORCED.to_owned()),
                None => TaskChange::Keep,
            };
            let change = Change {
                task,
                operation,
                audit: audit::destroying(&record, Reason::Manual, FORCED),
                ..Change::default()
            };
            let stored = self
                .record_transition(&record, Trigger::DestroyRequested, change)
                .await?;
            match stored {
                Guarded::Updated(record) => return Ok(Claim::Mine(Box::new(record))),
                Guarded::Missing => return Err(Missing::Environment(id.clone()).into()),
                Guarded::Busy(_) => return Ok(Claim::Theirs),
                // It moved on between read and write; the next read sees how.
                Guarded::Stale => {}
            }
        }
    }

    /// Destroys the VM of a record in `destroying` whose operation this process holds,
    /// then removes the record.
    pub(crate) async fn finish_destroy(&self, record: Environment) -> Result<(), Error> {
        let destroyed = self.holding(&record.id, self.destroy_vm(&record)).await;
        match destroyed {
            Ok(Ok(())) => self.remove_destroyed(&record).await,
            Ok(Err(refused)) => Err(self.note_refusal(&record, refused).await),
            // The one who took it over answers for the rest.
            Err(_lost) => self.wait_for_other(&record.id).await,
        }
    }

    async fn destroy_vm(&self, record: &Environment) -> Result<(), Refused> {
        let (_, provider) = self.inner.providers.of(record.host_id.as_ref()).await?;
        Ok(provider.destroy(&record.id).await?)
    }

    /// Removes the record of an environment whose VM is gone.
    pub(crate) async fn remove_destroyed(&self, record: &Environment) -> Result<(), Error> {
        let removal = Removal {
            audit: audit::removed(record),
            ..Removal::default()
        };
        let removed = self
            .record_remove(record, Trigger::DestroyConfirmed, removal)
            .await?;
        match removed {
            Guarded::Updated(_) => {
                tracing::info!(vm_id = %record.id, "environment destroyed");
                Ok(())
            }
            // Somebody else removed it: the same result.
            Guarded::Missing => Ok(()),
            Guarded::Stale | Guarded::Busy(_) => self.wait_for_other(&record.id).await,
        }
    }

    /// Keeps the record and says why it is still there.
    async fn note_refusal(&self, record: &Environment, refused: Refused) -> Error {
        // A host's text: bounded, and without what a database does not take.
        let text = format!("destroy: {}", chain(&refused));
        let text = Redactor::default().clean_head(&text, TEXT_LIMIT);
        tracing::warn!(vm_id = %record.id, error = text, "cannot destroy a VM, will try again");
        let change = Change {
            error: Some(text),
            operation: OperationChange::End,
            ..Change::default()
        };
        let noted = self
            .record_transition(record, Trigger::DestroyRefused, change)
            .await;
        if let Err(e) = noted {
            tracing::warn!(vm_id = %record.id, error = %chain(&e), "cannot note a failed destroy");
        }
        match refused {
            Refused::Lookup(e) => e.into(),
            Refused::Provider(source) => Error::Provider {
                operation: "destroy",
                source,
            },
        }
    }

    /// Waits until somebody else's destroy has removed the record. An error if that
    /// one gives up or takes too long; the reconcile loop goes on with it.
    async fn wait_for_other(&self, id: &EnvironmentId) -> Result<(), Error> {
        let gone = async {
            let mut watch = self.inner.store.event_watch();
            loop {
                match self.inner.store.environment_get(id).await? {
                    None => return Ok::<bool, StoreError>(true),
                    Some(record) if record.operation.is_none() => return Ok(false),
                    Some(_) => {}
                }
                // The time-out is no failure: it only means another look.
                let _woken = tokio::time::timeout(LOOK_AGAIN, watch.changed()).await;
            }
        };
        match tokio::time::timeout(WAIT_FOR_OTHER, gone).await {
            Ok(Ok(true)) => Ok(()),
            Ok(Err(e)) => Err(e.into()),
            Ok(Ok(false)) | Err(_) => Err(Error::DestroyPending(id.clone())),
        }
    }
}
