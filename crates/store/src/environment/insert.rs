//! The transactions that begin an environment.

use fuse_model::{
    AuditEntry, AuditKind, Environment, EnvironmentId, HostId, Operation, OperationKind, State,
    TaskId, TaskStatus, Version,
};
use jiff::Timestamp;

use super::expiry;
use crate::host::charge_in_tx;
use crate::sql::{binds, to_json};
use crate::writer::{Applied, Tx, Write};
use crate::{FailedCreate, Inserted, NewEnvironment, StoreError};

pub(super) struct Insert {
    pub(super) new: NewEnvironment,
    /// The secrets, sealed.
    pub(super) secrets: Option<Vec<u8>>,
}

impl Write for Insert {
    type Out = Inserted;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Applied<Inserted>, StoreError> {
        let new = &self.new;
        let assigned = TaskStatus::Assigned;
        if !claim_task(tx, &new.task_id, &new.id, assigned, "").await? {
            let holder = task_holder(tx, &new.task_id).await?;
            let holder = holder.unwrap_or_else(|| new.id.clone());
            return Ok(Applied::Keep(Inserted::TaskAssigned(holder)));
        }
        // From here on a refusal has something to take back.
        let mut host_id = None;
        for candidate in &new.candidates {
            if charge_in_tx(tx, candidate, new.spec.resources()).await? {
                host_id = Some(candidate.clone());
                break;
            }
        }
        if host_id.is_none() && !new.candidates.is_empty() {
            return Ok(Applied::Undo(Inserted::NoCapacity));
        }
        let environment = self.record(host_id, tx)?;
        if !self.insert(tx, &environment).await? {
            return Ok(Applied::Undo(Inserted::TaskAssigned(new.id.clone())));
        }
        if let Some(host) = &environment.host_id {
            self.insert_reservation(tx, host).await?;
        }
        tx.event(&new.id, State::Provisioning, "", "");
        tx.audit(&self.audit(environment.host_id.as_ref()));
        Ok(Applied::Keep(Inserted::Created(environment)))
    }
}

impl Insert {
    fn record(&self, host_id: Option<HostId>, tx: &Tx<'_>) -> Result<Environment, StoreError> {
        let new = &self.new;
        let expires_at = expiry(tx.now, new.operation_ttl);
        let expires_at =
            Timestamp::from_microsecond(expires_at).map_err(|error| StoreError::Corrupt {
                table: "environments",
                column: "op_expires_at",
                reason: error.to_string(),
            })?;
        Ok(Environment {
            id: new.id.clone(),
            version: Version::FIRST,
            spec: new.spec.clone(),
            tenant: new.tenant.clone(),
            task_id: Some(new.task_id.clone()),
            state: State::Provisioning,
            host_id,
            url: String::new(),
            endpoints: Vec::new(),
            error: String::new(),
            operation: Some(Operation {
                kind: OperationKind::Create,
                owner: tx.replica.clone(),
                expires_at,
            }),
            created_at: tx.now,
            updated_at: tx.now,
            activity_at: tx.now,
        })
    }

    /// `false` when the id is taken, which for ids made from task ids means that
    /// two task ids make the same one.
    async fn insert(&self, tx: &mut Tx<'_>, environment: &Environment) -> Result<bool, StoreError> {
        let sql = "INSERT INTO environments (id, version, state, task_id, tenant, host_id, \
             url, error, created_at, updated_at, activity_at, op_kind, op_owner, op_expires_at, \
             endpoints, spec, guest_token, secrets, request) \
             VALUES ($1, $2, $3, $4, $5, $6, '', '', $7, $7, $7, $8, $9, $10, '[]', $11, NULL, \
             $12, $13) ON CONFLICT (id) DO NOTHING";
        let values = binds![
            environment.id.as_str(),
            environment.version.0,
            environment.state.as_str(),
            self.new.task_id.as_str(),
            environment.tenant.as_str(),
            environment.host_id.as_ref().map(HostId::as_str),
            tx.now,
            OperationKind::Create.as_str(),
            tx.replica.as_str(),
            expiry(tx.now, self.new.operation_ttl),
            to_json("environments", "spec", &environment.spec)?,
            self.secrets.clone(),
            self.new.request.as_str()
        ];
        Ok(tx.execute("insert an environment", sql, values).await? > 0)
    }

    async fn insert_reservation(&self, tx: &mut Tx<'_>, host: &HostId) -> Result<(), StoreError> {
        let need = self.new.spec.resources();
        let sql = "INSERT INTO reservations \
             (environment_id, host_id, cpus, ram_mb, storage_gb, gpus) \
             VALUES ($1, $2, $3, $4, $5, $6)";
        let values = binds![
            self.new.id.as_str(),
            host.as_str(),
            need.cpus,
            need.ram_mb,
            need.storage_gb,
            need.gpus
        ];
        tx.execute("insert a reservation", sql, values)
            .await
            .map(drop)
    }

    fn audit(&self, host: Option<&HostId>) -> Vec<AuditEntry> {
        let name = |entry: &AuditEntry| match host {
            Some(host) if entry.kind == AuditKind::VmScheduled => {
                entry.clone().with("host_id", host.as_str())
            }
            _ => entry.clone(),
        };
        self.new.audit.iter().map(name).collect()
    }
}

pub(super) struct InsertFailed(pub(super) FailedCreate);

impl Write for InsertFailed {
    type Out = Option<EnvironmentId>;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Applied<Self::Out>, StoreError> {
        let failed = &self.0;
        let status = TaskStatus::Failed;
        if !claim_task(tx, &failed.task_id, &failed.id, status, &failed.error).await? {
            return Ok(Applied::Keep(task_holder(tx, &failed.task_id).await?));
        }
        tx.event(&failed.id, State::Failed, "", &failed.error);
        tx.audit(&failed.audit);
        Ok(Applied::Keep(None))
    }
}

/// Makes the task belong to the environment, unless a tracked one has it. A
/// failed task is claimed only to record its failure; it is not active.
async fn claim_task(
    tx: &mut Tx<'_>,
    task: &TaskId,
    id: &EnvironmentId,
    status: TaskStatus,
    error: &str,
) -> Result<bool, StoreError> {
    let sql = "INSERT INTO tasks \
         (id, environment_id, active, status, last_error, assigned_at, updated_at) \
         VALUES ($1, $2, $3, $4, $5, $6, $6) \
         ON CONFLICT (id) DO UPDATE SET environment_id = excluded.environment_id, \
         active = excluded.active, status = excluded.status, \
         last_error = excluded.last_error, assigned_at = excluded.assigned_at, \
         updated_at = excluded.updated_at, output_exit = NULL, output_stdout = NULL, \
         output_stderr = NULL WHERE tasks.active = 0";
    let active = i64::from(status == TaskStatus::Assigned);
    let values = binds![
        task.as_str(),
        id.as_str(),
        active,
        status.as_str(),
        error,
        tx.now
    ];
    Ok(tx.execute("claim a task", sql, values).await? > 0)
}

async fn task_holder(tx: &mut Tx<'_>, task: &TaskId) -> Result<Option<EnvironmentId>, StoreError> {
    let sql = "SELECT environment_id FROM tasks WHERE id = $1";
    let rows = tx
        .fetch("look up a task", sql, binds![task.as_str()])
        .await?;
    let id = rows
        .first()
        .map(|row| row.columns("tasks").text("environment_id"))
        .transpose()?;
    Ok(id.map(EnvironmentId::new))
}
