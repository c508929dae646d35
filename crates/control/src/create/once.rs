//! Creates with an `Idempotency-Key`: a repeat of the request gets the answer of the
//! first one, for a day, from any replica, also after restarts.
//!
//! The key is stored in the transaction that inserts the environment, so a request that
//! was refused before that may be tried again under its key. What the caller was told
//! is kept before a failed environment is removed and after a running one is committed.
//! If a process dies in between, recovery finishes or undoes the create, and the answer
//! is made from what it left.

use std::collections::BTreeMap;

use fuse_model::{Environment, EnvironmentId, ErrorKind, State, TaskId};
use fuse_store::{IdempotencyRecord, IdempotentKey, StoredAnswer};
use fuse_wire_api::CheckedCreate;

use super::{CreateFailure, Creation};
use crate::{Control, Error, error::Missing};

/// How the answer to a create is worded. The HTTP layer knows.
pub type Wording = fn(&Result<Environment, Error>) -> StoredAnswer;

/// The key of a request.
#[derive(Debug, Clone)]
pub struct Once {
    /// The caller's key and the request's digest.
    pub key: IdempotentKey,
    /// Words the answer that is kept.
    pub wording: Wording,
}

/// What a create with a key led to.
#[derive(Debug)]
pub enum CreatedOnce {
    /// It is the first of its kind.
    New(Box<Creation>),
    /// It is a repeat, and this is the answer.
    Answered(StoredAnswer),
    /// It is a repeat of a create that is under way, or whose answer got lost.
    UnderWay(Repeat),
}

/// A repeat that has to wait for the first one.
#[derive(Debug)]
pub struct Repeat {
    /// The environment of the first request.
    pub environment: EnvironmentId,
    task: TaskId,
    tenant: String,
    once: Once,
}

impl Control {
    /// Accepts a create request, unless it repeats an earlier one.
    ///
    /// # Errors
    /// As [`Control::environment_create`], and when the key belongs to another request.
    pub async fn environment_create_once(
        &self,
        request: CheckedCreate,
        tenant: String,
        once: Once,
    ) -> Result<CreatedOnce, Error> {
        let first = self.create_with(request, tenant.clone(), Some(once.clone()));
        Box::pin(self.first_or_repeat(tenant, once, first)).await
    }

    /// Does what `first` does, unless the key has been used.
    pub(super) async fn first_or_repeat(
        &self,
        tenant: String,
        once: Once,
        first: impl Future<Output = Result<Creation, Error>>,
    ) -> Result<CreatedOnce, Error> {
        let store = &self.inner.store;
        if let Some(found) = store.idempotency_get(&tenant, &once.key.key).await? {
            return repeat(found, tenant, once);
        }
        match first.await {
            // Perhaps the very same request was quicker.
            Err(refused @ (Error::TaskAssigned { .. } | Error::KeyTaken)) => {
                match store.idempotency_get(&tenant, &once.key.key).await? {
                    Some(found) => repeat(found, tenant, once),
                    None => Err(refused),
                }
            }
            outcome => outcome.map(|creation| CreatedOnce::New(Box::new(creation))),
        }
    }

    /// Waits for the create that `repeat` repeats and answers like it.
    ///
    /// # Errors
    /// The store fails, or the process goes down.
    pub async fn environment_created(&self, repeat: Repeat) -> Result<StoredAnswer, Error> {
        self.settled(&repeat.environment).await?;
        let store = &self.inner.store;
        let kept = store
            .idempotency_get(&repeat.tenant, &repeat.once.key.key)
            .await?;
        if let Some(answer) = kept.and_then(|record| record.answer) {
            return Ok(answer);
        }
        let outcome = match store.environment_get(&repeat.environment).await? {
            Some(record) if record.state != State::Destroying => Ok(record),
            // Undone, or destroyed since: nothing that a caller could use.
            record => Err(self.lost_failure(&repeat, record).await?.into()),
        };
        Ok((repeat.once.wording)(&outcome))
    }

    /// Completes when the environment is not `provisioning` any more.
    async fn settled(&self, id: &EnvironmentId) -> Result<(), Error> {
        let mut events = match self.environment_events(id, None).await {
            Ok(events) => events,
            Err(Error::Missing(Missing::Environment(_))) => return Ok(()),
            Err(e) => return Err(e),
        };
        while let Some(event) = events.next().await {
            if event.state != State::Provisioning {
                return Ok(());
            }
        }
        Err(Error::ShuttingDown)
    }

    /// Why an environment is gone, or going, whose answer was not kept: its record or its task knows.
    async fn lost_failure(
        &self,
        repeat: &Repeat,
        record: Option<Environment>,
    ) -> Result<CreateFailure, Error> {
        let task = self.inner.store.task_get(&repeat.task).await?;
        let of_task = task
            .filter(|task| task.environment_id == repeat.environment)
            .map(|task| task.last_error);
        let mut reasons = record.map(|record| record.error).into_iter().chain(of_task);
        let message = reasons.find(|reason| !reason.is_empty());
        Ok(CreateFailure {
            kind: ErrorKind::Internal,
            message: message
                .unwrap_or_else(|| format!("vm {} was created and is gone", repeat.environment)),
            details: BTreeMap::new(),
        })
    }

    /// Keeps what the caller of a create is told. Best effort: without it a repeat
    /// finds the environment, or why its task failed.
    pub(super) async fn keep_answer(
        &self,
        record: &Environment,
        once: Option<&Once>,
        outcome: &Result<Environment, Error>,
    ) {
        let Some(once) = once else { return };
        let answer = (once.wording)(outcome);
        let kept = self
            .inner
            .store
            .idempotency_answer(&record.tenant, &once.key.key, answer)
            .await;
        if let Err(e) = kept {
            tracing::warn!(vm_id = %record.id, error = %crate::error::chain(&e), "cannot keep an answer");
        }
    }
}

fn repeat(found: IdempotencyRecord, tenant: String, once: Once) -> Result<CreatedOnce, Error> {
    if found.fingerprint != once.key.fingerprint {
        return Err(Error::KeyReused);
    }
    Ok(match found.answer {
        Some(answer) => CreatedOnce::Answered(answer),
        None => CreatedOnce::UnderWay(Repeat {
            environment: found.environment_id,
            task: found.task_id,
            tenant,
            once,
        }),
    })
}
