//! Tasks. They are written along with their environments; here they are read.

use fuse_model::{EnvironmentId, Task, TaskId};

use crate::sql::{Row, binds};
use crate::{Store, StoreError};

impl Store {
    /// One task; it stays readable after its environment is gone.
    ///
    /// # Errors
    /// The database fails.
    pub async fn task_get(&self, id: &TaskId) -> Result<Option<Task>, StoreError> {
        let sql = "SELECT id, environment_id, status, last_error, assigned_at, updated_at \
             FROM tasks WHERE id = $1";
        let rows = self.read("read a task", sql, binds![id.as_str()]).await?;
        rows.first().map(from_row).transpose()
    }
}

fn from_row(row: &Row) -> Result<Task, StoreError> {
    let mut columns = row.columns("tasks");
    Ok(Task {
        id: TaskId::new(columns.text("id")?),
        environment_id: EnvironmentId::new(columns.text("environment_id")?),
        status: columns.parsed("status")?,
        last_error: columns.text("last_error")?,
        assigned_at: columns.time("assigned_at")?,
        updated_at: columns.time("updated_at")?,
    })
}
