//! Task records, which outlive their environments.

use fuse_wire_api::Task;
use reqwest::Method;

use crate::{Client, Error};

impl Client {
    /// Reads what became of a task: its last error and the output of its startup script.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn task(&self, task_id: &str) -> Result<Task, Error> {
        self.fetch(self.call(Method::GET, &["v1", "tasks", task_id])?)
            .await
    }
}
