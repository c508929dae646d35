//! Tasks. They are written along with their environments; here they are read, and
//! get the output of their startup scripts.

use fuse_model::{EnvironmentId, Task, TaskId, TaskOutput};

use crate::sql::{Row, binds};
use crate::tx::Tx;
use crate::writer::{Applied, Write};
use crate::{Store, StoreError};

impl Store {
    /// One task; it stays readable after its environment is gone.
    ///
    /// # Errors
    /// The database fails.
    pub async fn task_get(&self, id: &TaskId) -> Result<Option<Task>, StoreError> {
        let sql = "SELECT id, environment_id, owner, status, last_error, assigned_at, updated_at \
             FROM tasks WHERE id = $1";
        let rows = self.read("read a task", sql, binds![id.as_str()]).await?;
        rows.first().map(from_row).transpose()
    }

    /// What a task's startup script wrote; `None` when there was no script, or for an
    /// unknown task. Kept apart from the task because it may be long.
    ///
    /// # Errors
    /// The database fails.
    pub async fn task_output(&self, id: &TaskId) -> Result<Option<TaskOutput>, StoreError> {
        let sql = "SELECT output_exit, output_stdout, output_stderr FROM tasks \
             WHERE id = $1 AND output_exit IS NOT NULL";
        let rows = self
            .read("read a task's output", sql, binds![id.as_str()])
            .await?;
        let Some(row) = rows.first() else {
            return Ok(None);
        };
        let mut columns = row.columns("tasks");
        Ok(Some(TaskOutput {
            exit_code: columns.small("output_exit")?,
            stdout: columns.text("output_stdout")?,
            stderr: columns.text("output_stderr")?,
        }))
    }

    /// Keeps what the startup script of an environment's task wrote, as long as the
    /// task belongs to that environment.
    ///
    /// # Errors
    /// The database fails.
    pub async fn task_set_output(
        &self,
        id: &TaskId,
        environment: &EnvironmentId,
        output: TaskOutput,
    ) -> Result<(), StoreError> {
        let write = SetOutput {
            id: id.clone(),
            environment: environment.clone(),
            output,
        };
        self.write(write).await
    }
}

struct SetOutput {
    id: TaskId,
    environment: EnvironmentId,
    output: TaskOutput,
}

impl Write for SetOutput {
    type Out = ();
    const ENTITY: &'static str = "task";

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Applied<()>, StoreError> {
        let sql = "UPDATE tasks SET output_exit = $3, output_stdout = $4, output_stderr = $5 \
             WHERE id = $1 AND environment_id = $2";
        let values = binds![
            self.id.as_str(),
            self.environment.as_str(),
            self.output.exit_code,
            self.output.stdout.as_str(),
            self.output.stderr.as_str()
        ];
        tx.execute("keep a task's output", sql, values).await?;
        Ok(Applied::Keep(()))
    }
}

fn from_row(row: &Row) -> Result<Task, StoreError> {
    let mut columns = row.columns("tasks");
    Ok(Task {
        id: TaskId::new(columns.text("id")?),
        environment_id: EnvironmentId::new(columns.text("environment_id")?),
        owner: columns.text("owner")?,
        status: columns.parsed("status")?,
        last_error: columns.text("last_error")?,
        assigned_at: columns.time("assigned_at")?,
        updated_at: columns.time("updated_at")?,
    })
}
