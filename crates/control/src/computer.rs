//! The screen of an environment. No guest agent here has one yet, so after the checks that
//! do not depend on it the answer is that the backend cannot.

use std::convert::Infallible;

use fuse_model::{EnvironmentId, State};

use crate::{Control, Error, operation::not_running, provider::ProviderError};

impl Control {
    /// Finds the screen of a running environment.
    ///
    /// # Errors
    /// It does not exist, does not run, or has no screen.
    pub async fn computer(&self, id: &EnvironmentId) -> Result<Infallible, Error> {
        let record = self.environment_get(id).await?;
        if record.state != State::Running {
            return Err(not_running(record.id, record.state));
        }
        Err(Error::Provider {
            operation: "computer",
            source: ProviderError::Unsupported {
                operation: "computer",
            },
        })
    }
}
