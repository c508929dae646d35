//! Reading environments and tasks.

use fuse_model::{Environment, EnvironmentId, HostId, Task, TaskId, TaskOutput};
use fuse_store::{EnvironmentFilter, Listing, Page};

use crate::{Control, Error, error::Missing};

impl Control {
    /// One environment.
    ///
    /// # Errors
    /// It does not exist, or the store fails.
    pub async fn environment_get(&self, id: &EnvironmentId) -> Result<Environment, Error> {
        let found = self.inner.store.environment_get(id).await?;
        Ok(found.ok_or_else(|| Missing::Environment(id.clone()))?)
    }

    /// One environment, if this tenant made it.
    ///
    /// # Errors
    /// It does not exist or is somebody else's, or the store fails.
    pub async fn environment_of(
        &self,
        id: &EnvironmentId,
        tenant: &str,
    ) -> Result<Environment, Error> {
        let record = self.environment_get(id).await?;
        if record.tenant != tenant {
            return Err(Missing::Environment(id.clone()).into());
        }
        Ok(record)
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

    /// One task and what its startup script wrote; both outlive the environment.
    ///
    /// # Errors
    /// It does not exist, or the store fails.
    pub async fn task_get(&self, id: &TaskId) -> Result<(Task, Option<TaskOutput>), Error> {
        let found = self.inner.store.task_get(id).await?;
        let task = found.ok_or_else(|| Missing::Task(id.clone()))?;
        Ok((task, self.inner.store.task_output(id).await?))
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
