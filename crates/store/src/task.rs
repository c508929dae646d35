//! Tasks.
use fuse_model::{Task, TaskId};

use crate::{Store, StoreError};

impl Store {
    /// One task; it stays readable after its environment is gone.
    ///
    /// # Errors
    /// The database fails.
    pub async fn task_get(&self, _id: &TaskId) -> Result<Option<Task>, StoreError> {
        Err(StoreError::Closed)
    }
}
