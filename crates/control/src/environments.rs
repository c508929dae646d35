//! Reading environments and tasks.

use fuse_model::{Environment, EnvironmentId, HostId, Task, TaskFailure, TaskId, TaskOutput};
use fuse_store::{EnvironmentFilter, Listing, Page};

use crate::{Control, Error, error::Missing};

/// A task and what is known of it.
#[derive(Debug, Clone)]
pub struct TaskDetails {
    /// The record.
    pub task: Task,
    /// What its startup script wrote, once that has ended.
    pub output: Option<TaskOutput>,
    /// What is kept of a create that failed.
    pub failure: Option<TaskFailure>,
}

impl Control {
    /// One environment.
    ///
    /// # Errors
    /// It does not exist, or the store fails.
    pub async fn environment_get(&self, id: &EnvironmentId) -> Result<Environment, Error> {
        let found = self.inner.store.environment_get(id).await?;
        Ok(found.ok_or_else(|| Missing::Environment(id.clone()))?)
    }

    /// Whose things a caller is kept to; `None`: it reaches everything. The empty caller
    /// is the master.
    #[must_use]
    pub fn kept_to<'a>(&self, caller: &'a str) -> Option<&'a str> {
        let keys_are_kept = self.inner.settings.scope_keys_to_owner;
        Some(caller).filter(|caller| keys_are_kept && !caller.is_empty())
    }

    /// One environment, as far as `caller` may know of it.
    ///
    /// # Errors
    /// It does not exist or is kept from the caller, or the store fails.
    pub async fn environment_for(
        &self,
        id: &EnvironmentId,
        caller: &str,
    ) -> Result<Environment, Error> {
        let record = self.environment_get(id).await?;
        match self.kept_to(caller) {
            Some(owner) if owner != record.tenant => Err(Missing::Environment(id.clone()).into()),
            Some(_) | None => Ok(record),
        }
    }

    /// A page of environments, by id.
    ///
    /// # Errors
    /// The store fails.
    pub async fn environment_list(
        &self,
        filter: &EnvironmentFilter,
        page: &Page<EnvironmentId>,
    ) -> Result<Listing<Environment, EnvironmentId>, Error> {
        Ok(self.inner.store.environment_list(filter, page).await?)
    }

    /// One task with what its startup script wrote and what is kept of a create that
    /// failed, as far as `caller` may know of it; all of it outlives the environment.
    ///
    /// # Errors
    /// It does not exist or is kept from the caller, or the store fails.
    pub async fn task_get(&self, id: &TaskId, caller: &str) -> Result<TaskDetails, Error> {
        let owner = self.kept_to(caller);
        let store = &self.inner.store;
        let found = store.task_get(id).await?;
        let found = found.filter(|task| owner.is_none_or(|owner| owner == task.owner));
        let task = found.ok_or_else(|| Missing::Task(id.clone()))?;
        Ok(TaskDetails {
            task,
            output: store.task_output(id).await?,
            failure: store.task_failure(id).await?,
        })
    }

    /// Checks that a host that a create request pins is registered.
    ///
    /// # Errors
    /// It is not, or the store fails.
    pub async fn check_pin(&self, host: &HostId) -> Result<(), Error> {
        match self.inner.store.host_get(host).await? {
            Some(_) => Ok(()),
            None => Err(Missing::Pin(host.clone()).into()),
        }
    }
}
