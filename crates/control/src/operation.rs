//! The one operation that a running environment may be in: taking it and giving it back.

use std::time::Duration;

use fuse_model::{Environment, EnvironmentId, OperationKind, State};
use fuse_redact::Redactor;
use fuse_store::{Change, Guarded, OperationChange, SecretMap, StoreError};

use crate::{
    Control, Error,
    control::OPERATION_TTL,
    create::StoredRequest,
    error::Missing,
    exec::Command,
    guest::{CredentialError, Credentials},
};

/// How a use case words that the environment is in another state than `running`.
pub(crate) type Refusal = fn(EnvironmentId, State) -> Error;

/// The plain wording.
pub(crate) fn not_running(vm: EnvironmentId, state: State) -> Error {
    Error::NotRunning { vm, state }
}

/// A command line of ours for the guest's shell.
pub(crate) fn shell(script: &str, timeout: Duration) -> Command {
    Command {
        argv: ["sh", "-c", script].map(str::to_owned).to_vec(),
        timeout,
    }
}

impl Control {
    /// Takes the operation of a running environment for this process.
    ///
    /// # Errors
    /// It does not exist, is in another state, or somebody is at work on it.
    pub(crate) async fn begin_operation(
        &self,
        id: &EnvironmentId,
        kind: OperationKind,
        refusal: Refusal,
    ) -> Result<Environment, Error> {
        loop {
            let record = self.environment_get(id).await?;
            self.check_free(&record, refusal)?;
            let change = Change {
                operation: OperationChange::Begin(kind, OPERATION_TTL),
                ..Change::default()
            };
            match self.record_update(&record, change).await? {
                Guarded::Updated(record) => return Ok(record),
                Guarded::Missing => return Err(Missing::Environment(id.clone()).into()),
                Guarded::Busy(operation) => return Err(busy(id, operation.kind)),
                // It moved on between read and write; the next read sees how.
                Guarded::Stale => {}
            }
        }
    }

    /// Whether an operation may begin, as far as the record that was read tells.
    ///
    /// # Errors
    /// As [`Control::begin_operation`].
    pub(crate) fn check_free(&self, record: &Environment, refusal: Refusal) -> Result<(), Error> {
        if record.state != State::Running {
            return Err(refusal(record.id.clone(), record.state));
        }
        match &record.operation {
            Some(operation) if self.is_at_work(record) => Err(busy(&record.id, operation.kind)),
            _ => Ok(()),
        }
    }

    /// Gives the operation back and writes what came of it. `None` when somebody else
    /// took the environment over meanwhile: then there is nothing left to say.
    ///
    /// # Errors
    /// The store fails.
    pub(crate) async fn end_operation(
        &self,
        record: &Environment,
        change: Change,
    ) -> Result<Option<Environment>, Error> {
        let change = Change {
            operation: OperationChange::End,
            ..change
        };
        match self.record_update(record, change).await? {
            Guarded::Updated(record) => Ok(Some(record)),
            Guarded::Stale | Guarded::Missing | Guarded::Busy(_) => Ok(None),
        }
    }

    /// The secrets of an environment; empty without a key, because then none are kept.
    ///
    /// # Errors
    /// The store fails, or they do not open.
    pub(crate) async fn secrets_of(&self, id: &EnvironmentId) -> Result<SecretMap, Error> {
        if !self.inner.store.vault().has_key() {
            return Ok(SecretMap::new());
        }
        let secrets = self.inner.store.environment_secrets(id).await?;
        Ok(secrets
            .map(fuse_model::Redacted::into_inner)
            .unwrap_or_default())
    }

    /// What an environment was asked to be.
    ///
    /// # Errors
    /// The store fails.
    pub(crate) async fn request_of(&self, id: &EnvironmentId) -> Result<StoredRequest, StoreError> {
        let text = self.inner.store.environment_request(id).await?;
        Ok(StoredRequest::from_json(&text.unwrap_or_default()))
    }

    /// New credentials of a guest. They exist only with a key to store the token under.
    ///
    /// # Errors
    /// They cannot be made, which is a defect.
    pub(crate) fn new_credentials(
        &self,
        id: &EnvironmentId,
    ) -> Result<Option<Credentials>, CredentialError> {
        let has_key = self.inner.store.vault().has_key();
        has_key.then(|| Credentials::mint(id.as_str())).transpose()
    }

    /// Takes the secrets of an environment out of texts. Without being able to know
    /// them it takes out nothing.
    pub(crate) async fn redactor_of(&self, id: &EnvironmentId) -> Redactor {
        let secrets = self.secrets_of(id).await.unwrap_or_default();
        Redactor::new(secrets.values().map(String::as_str))
    }
}

pub(crate) fn busy(vm: &EnvironmentId, kind: OperationKind) -> Error {
    Error::Busy {
        vm: vm.clone(),
        kind,
    }
}
