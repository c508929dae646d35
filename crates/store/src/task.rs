//! Tasks. They are written along with their environments; here they are read, and get
//! the output of their startup scripts and what is kept of creates that failed.

use fuse_model::{EnvironmentId, LogTail, Task, TaskFailure, TaskId, TaskLog, TaskOutput};

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

    /// The same by phase, also of a script that still runs; `None` until it wrote
    /// something.
    ///
    /// # Errors
    /// The database fails.
    pub async fn task_log(&self, id: &TaskId) -> Result<Option<TaskLog>, StoreError> {
        let sql = "SELECT log_build, log_build_bytes, log_run, log_run_bytes, output_exit \
             FROM tasks WHERE id = $1 AND log_build IS NOT NULL";
        let rows = self
            .read("read a task's log", sql, binds![id.as_str()])
            .await?;
        let Some(row) = rows.first() else {
            return Ok(None);
        };
        let mut columns = row.columns("tasks");
        Ok(Some(TaskLog {
            build: LogTail {
                text: columns.text("log_build")?,
                written: columns.small("log_build_bytes")?,
            },
            run: LogTail {
                text: columns.text("log_run")?,
                written: columns.small("log_run_bytes")?,
            },
            ended: columns.opt_int("output_exit")?.is_some(),
        }))
    }

    /// Keeps what the startup script of an environment's task has written so far, and
    /// with `output` all of it; as long as the task belongs to that environment. An
    /// [`EventWatch`](crate::EventWatch) fires, at every replica.
    ///
    /// # Errors
    /// The database fails.
    pub async fn task_set_log(
        &self,
        id: &TaskId,
        environment: &EnvironmentId,
        log: TaskLog,
        output: Option<TaskOutput>,
    ) -> Result<(), StoreError> {
        let write = SetLog {
            id: id.clone(),
            environment: environment.clone(),
            log,
            output,
        };
        self.write(write).await
    }

    /// Keeps what is known of the failed create of an environment's task, in the place of
    /// what was known of an earlier one.
    ///
    /// # Errors
    /// The database fails.
    pub async fn task_set_failure(
        &self,
        id: &TaskId,
        environment: &EnvironmentId,
        failure: TaskFailure,
    ) -> Result<(), StoreError> {
        let write = SetFailure {
            id: id.clone(),
            environment: environment.clone(),
            failure,
        };
        self.write(write).await
    }

    /// What is kept of a task's last create, if that failed and not long ago.
    ///
    /// # Errors
    /// The database fails.
    pub async fn task_failure(&self, id: &TaskId) -> Result<Option<TaskFailure>, StoreError> {
        let sql = "SELECT f.report, f.console, f.agent, f.kept_until FROM task_failures f \
             JOIN tasks t ON t.id = f.task_id AND t.assigned_at = f.assigned_at \
             WHERE f.task_id = $1 AND f.kept_until > $2 AND t.status = 'failed'";
        let values = binds![id.as_str(), self.settled_now()];
        let rows = self.read("read a task's failure", sql, values).await?;
        let Some(row) = rows.first() else {
            return Ok(None);
        };
        let mut columns = row.columns("task_failures");
        Ok(Some(TaskFailure {
            report: columns.text("report")?,
            console: columns.text("console")?,
            agent: columns.text("agent")?,
            kept_until: columns.time("kept_until")?,
        }))
    }

    /// Forgets failures that were kept for long enough, up to `limit` of them; answers
    /// how many.
    ///
    /// # Errors
    /// The database fails.
    pub async fn task_failure_prune(&self, limit: u32) -> Result<u64, StoreError> {
        self.write(PruneFailures { limit }).await
    }
}

struct SetLog {
    id: TaskId,
    environment: EnvironmentId,
    log: TaskLog,
    output: Option<TaskOutput>,
}

impl Write for SetLog {
    type Out = ();
    const ENTITY: &'static str = "task";

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Applied<()>, StoreError> {
        let sql = "UPDATE tasks SET log_build = $3, log_build_bytes = $4, log_run = $5, \
             log_run_bytes = $6, output_exit = $7, output_stdout = $8, output_stderr = $9 \
             WHERE id = $1 AND environment_id = $2";
        let output = self.output.as_ref();
        let values = binds![
            self.id.as_str(),
            self.environment.as_str(),
            self.log.build.text.as_str(),
            bytes(self.log.build.written),
            self.log.run.text.as_str(),
            bytes(self.log.run.written),
            output.map(|output| i64::from(output.exit_code)),
            output.map(|output| output.stdout.as_str()),
            output.map(|output| output.stderr.as_str())
        ];
        tx.execute("keep a task's log", sql, values).await?;
        tx.effects.news();
        Ok(Applied::Keep(()))
    }
}

struct SetFailure {
    id: TaskId,
    environment: EnvironmentId,
    failure: TaskFailure,
}

impl Write for SetFailure {
    type Out = ();
    const ENTITY: &'static str = "task";

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Applied<()>, StoreError> {
        let sql = "INSERT INTO task_failures \
             (task_id, environment_id, assigned_at, report, console, agent, kept_until) \
             SELECT id, environment_id, assigned_at, $3, $4, $5, $6 FROM tasks \
             WHERE id = $1 AND environment_id = $2 \
             ON CONFLICT (task_id) DO UPDATE SET environment_id = excluded.environment_id, \
             assigned_at = excluded.assigned_at, report = excluded.report, \
             console = excluded.console, agent = excluded.agent, kept_until = excluded.kept_until";
        let values = binds![
            self.id.as_str(),
            self.environment.as_str(),
            self.failure.report.as_str(),
            self.failure.console.as_str(),
            self.failure.agent.as_str(),
            self.failure.kept_until
        ];
        tx.execute("keep a failure", sql, values).await?;
        Ok(Applied::Keep(()))
    }
}

struct PruneFailures {
    limit: u32,
}

impl Write for PruneFailures {
    type Out = u64;
    const ENTITY: &'static str = "task";

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Applied<u64>, StoreError> {
        let sql = "DELETE FROM task_failures WHERE task_id IN \
             (SELECT task_id FROM task_failures WHERE kept_until <= $1 LIMIT $2)";
        let values = binds![tx.settled, self.limit];
        let pruned = tx.execute("prune failures", sql, values).await?;
        Ok(Applied::Keep(pruned))
    }
}

fn bytes(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
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
