//! Moves an environment to another host: checked here, refused while no backend can.

use fuse_model::{EnvironmentId, HostId, State};
use fuse_wire_api::MigrateEnvironment;

use crate::{
    Control, Error, create::Creation, error::Missing, operation::not_running,
    provider::ProviderError, snapshot::check_gpus,
};

impl Control {
    /// Moves a running environment.
    ///
    /// # Errors
    /// It or the target does not exist, the target is where it is already, it does not
    /// run or has GPUs, the target cannot resume its memory, no other host can take it,
    /// or the backend cannot move environments.
    pub async fn environment_migrate(
        &self,
        id: &EnvironmentId,
        request: &MigrateEnvironment,
    ) -> Result<Creation, Error> {
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
        Err(cannot_migrate())
    }
}

/// No agent hands its snapshots on.
pub(crate) fn cannot_migrate() -> Error {
    Error::Provider {
        operation: "migrate",
        source: ProviderError::Unsupported {
            operation: "migrate",
        },
    }
}
