//! Task records, which outlive their environments.

use fuse_wire_api::{LogQuery, Task};
use reqwest::Method;

use crate::{Client, Error, LogStream};

impl Client {
    /// Reads what became of a task: its last error and the output of its startup script.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn task(&self, task_id: &str) -> Result<Task, Error> {
        self.fetch(self.call(Method::GET, &["v1", "tasks", task_id])?)
            .await
    }

    /// Reads what a task printed, as it is kept after its environment is gone.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn task_logs(&self, task_id: &str, query: &LogQuery) -> Result<LogStream, Error> {
        self.logs(&["v1", "tasks", task_id, "logs"], query).await
    }
}
