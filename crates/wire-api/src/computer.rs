//! What is asked of a guest's screen.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Violation, json::null_default};

/// `POST /v1/environments/{id}/computer`. The other fields are the guest's to check.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct ComputerAction {
    /// `screenshot`, `left_click`, `type`, `key`, `scroll`, …
    #[serde(deserialize_with = "null_default")]
    #[schema(required = true)]
    pub action: String,
}

impl ComputerAction {
    /// Checks what does not depend on the guest.
    ///
    /// # Errors
    /// No action is named.
    pub fn check(&self) -> Result<(), Violation> {
        if self.action.is_empty() {
            return Err(Violation::invalid("action is required"));
        }
        Ok(())
    }
}
