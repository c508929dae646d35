//! Environments.
use std::time::Duration;

use fuse_model::{Environment, EnvironmentEvent, EnvironmentId, Redacted, Trigger};
use jiff::Timestamp;

use crate::{
    Change, EnvironmentFilter, FailedCreate, Guarded, Inserted, Listing, NewEnvironment, Page,
    Removal, SecretMap, Store, StoreError,
};

impl Store {
    /// Stores an environment in `provisioning` with its task and first event,
    /// charges it to the first candidate that fits and gives this replica its
    /// `create` operation.
    ///
    /// # Errors
    /// The database fails.
    pub async fn environment_insert_and_reserve(
        &self,
        _new: NewEnvironment,
    ) -> Result<Inserted, StoreError> {
        Err(StoreError::Closed)
    }

    /// Records a create that found no host: the task is `failed`, and the stream
    /// of the id that it would have had gets a `failed` event.
    /// Answers `Some` when the task belongs to a tracked environment instead.
    ///
    /// # Errors
    /// The database fails.
    pub async fn environment_insert_failed(
        &self,
        _failed: FailedCreate,
    ) -> Result<Option<EnvironmentId>, StoreError> {
        Err(StoreError::Closed)
    }

    /// One environment.
    ///
    /// # Errors
    /// The database fails.
    pub async fn environment_get(
        &self,
        _id: &EnvironmentId,
    ) -> Result<Option<Environment>, StoreError> {
        Err(StoreError::Closed)
    }

    /// A page of environments by id.
    ///
    /// # Errors
    /// The database fails.
    pub async fn environment_list(
        &self,
        _filter: &EnvironmentFilter,
        _page: &Page<EnvironmentId>,
    ) -> Result<Listing<Environment, EnvironmentId>, StoreError> {
        Err(StoreError::Closed)
    }

    /// Environments whose operation was interrupted: it expired, or the replica
    /// that did it is dead. At most `limit`, by id.
    ///
    /// # Errors
    /// The database fails.
    pub async fn environment_list_interrupted(
        &self,
        _limit: u32,
    ) -> Result<Vec<Environment>, StoreError> {
        Err(StoreError::Closed)
    }

    /// Moves an environment on, based on `seen`. Writes an event if the state
    /// changes. Not for triggers that end it: those are [`Store::environment_remove`].
    ///
    /// # Errors
    /// The state does not allow the trigger, or the database fails.
    pub async fn environment_transition(
        &self,
        _seen: &Environment,
        _trigger: Trigger,
        _change: Change,
    ) -> Result<Guarded<Environment>, StoreError> {
        Err(StoreError::Closed)
    }

    /// Changes an environment without moving it on, based on `seen`.
    ///
    /// # Errors
    /// The database fails.
    pub async fn environment_update(
        &self,
        _seen: &Environment,
        _change: Change,
    ) -> Result<Guarded<Environment>, StoreError> {
        Err(StoreError::Closed)
    }

    /// Ends an environment, based on `seen`: gives back its capacity, removes
    /// the record and writes the terminal event, which is returned.
    ///
    /// # Errors
    /// The state does not allow the trigger, or the database fails.
    pub async fn environment_remove(
        &self,
        _seen: &Environment,
        _trigger: Trigger,
        _removal: Removal,
    ) -> Result<Guarded<EnvironmentEvent>, StoreError> {
        Err(StoreError::Closed)
    }

    /// Extends this replica's operation on an environment to `ttl` from now.
    /// `false` when it is no longer this replica's.
    ///
    /// # Errors
    /// The database fails.
    pub async fn environment_operation_renew(
        &self,
        _id: &EnvironmentId,
        _ttl: Duration,
    ) -> Result<bool, StoreError> {
        Err(StoreError::Closed)
    }

    /// Sets the activity clock, unless it is already later.
    ///
    /// # Errors
    /// The database fails.
    pub async fn environment_touch(
        &self,
        _id: &EnvironmentId,
        _at: Timestamp,
    ) -> Result<(), StoreError> {
        Err(StoreError::Closed)
    }

    /// The create request as it was given to the insert.
    ///
    /// # Errors
    /// The database fails.
    pub async fn environment_request(
        &self,
        _id: &EnvironmentId,
    ) -> Result<Option<String>, StoreError> {
        Err(StoreError::Closed)
    }

    /// The secrets; `None` when none are stored.
    ///
    /// # Errors
    /// The database fails, or they do not open with the keys at hand.
    pub async fn environment_secrets(
        &self,
        _id: &EnvironmentId,
    ) -> Result<Option<Redacted<SecretMap>>, StoreError> {
        Err(StoreError::Closed)
    }

    /// The guest agent's token; `None` when none is stored.
    ///
    /// # Errors
    /// The database fails, or it does not open with the keys at hand.
    pub async fn environment_guest_token(
        &self,
        _id: &EnvironmentId,
    ) -> Result<Option<Redacted<String>>, StoreError> {
        Err(StoreError::Closed)
    }
}
