//! The transactions that begin an environment.

use std::collections::{BTreeMap, BTreeSet};

use fuse_model::{
    AuditEntry, AuditKind, Environment, EnvironmentId, EnvironmentSpec, HostId, Probe, State,
    TaskId, TaskStatus, Version,
};

use super::change::taken;
use super::health::initial;
use crate::effects::{Charge, GpuUnits};
use crate::host::{bind_in_tx, charge_in_tx, credit_in_tx};
use crate::idempotency::claim_in_tx;
use crate::multi_row::{MultiRow, rounds};
use crate::sql::{Bind, Row, binds, to_json};
use crate::tx::Tx;
use crate::writer::{Applied, Write, WriteMany};
use crate::{FailedCreate, Inserted, NewEnvironment, StoreError};

/// Makes tasks belong to environments, except those that a tracked one has.
/// Answers the ids of those that were claimed.
const CLAIM: MultiRow = MultiRow {
    step: "claim tasks",
    before: "INSERT INTO tasks \
         (id, environment_id, owner, active, status, last_error, assigned_at, updated_at) \
         SELECT * FROM (VALUES ",
    after: ") AS r WHERE r.column1 IS NOT NULL \
         ON CONFLICT (id) DO UPDATE SET environment_id = excluded.environment_id, \
         owner = excluded.owner, \
         active = excluded.active, status = excluded.status, \
         last_error = excluded.last_error, assigned_at = excluded.assigned_at, \
         updated_at = excluded.updated_at, output_exit = NULL, output_stdout = NULL, \
         output_stderr = NULL, log_build = NULL, log_build_bytes = NULL, log_run = NULL, \
         log_run_bytes = NULL WHERE tasks.active = 0 RETURNING id",
};

const HOLDERS: MultiRow = MultiRow {
    step: "look up tasks",
    before: "SELECT id, environment_id FROM tasks WHERE id IN (VALUES ",
    after: ")",
};

const INSERT: MultiRow = MultiRow {
    step: "insert environments",
    before: "INSERT INTO environments (id, version, state, task_id, tenant, host_id, url, error, \
         created_at, updated_at, activity_at, op_kind, op_owner, op_expires_at, endpoints, spec, \
         secrets, request, health) SELECT * FROM (VALUES ",
    after: ") AS r WHERE r.column1 IS NOT NULL ON CONFLICT (id) DO NOTHING RETURNING id, task_id",
};

pub(super) struct Insert {
    pub(super) new: NewEnvironment,
    /// The secrets, sealed.
    pub(super) secrets: Option<Vec<u8>>,
}

impl WriteMany for Insert {
    type Out = Inserted;
    const ENTITY: &'static str = "vm";

    async fn apply_all(
        writes: &[&Self],
        tx: &mut Tx<'_>,
    ) -> Result<Vec<Applied<Inserted>>, StoreError> {
        let mut answers = BTreeMap::new();
        // Of equal tasks the first may win; the others then find it taken.
        for round in rounds(writes.iter().map(|write| &write.new.task_id)) {
            let part: Vec<&Self> = round
                .iter()
                .filter_map(|at| writes.get(*at).copied())
                .collect();
            answers.extend(round.into_iter().zip(apply_round(&part, tx).await?));
        }
        Ok(answers.into_values().collect())
    }
}

/// Inserts environments of different tasks.
async fn apply_round(
    writes: &[&Insert],
    tx: &mut Tx<'_>,
) -> Result<Vec<Applied<Inserted>>, StoreError> {
    let claims = writes.iter().map(|write| {
        let new = &write.new;
        claim(
            tx,
            &new.task_id,
            &new.id,
            &new.tenant,
            TaskStatus::Assigned,
            "",
        )
    });
    let claims = claims.collect();
    let claimed = claim_tasks(tx, claims).await?;
    let tasks = writes.iter().map(|write| &write.new.task_id);
    let holders = task_holders(tx, tasks.filter(|task| !claimed.contains(task))).await?;

    let mut steps = Vec::with_capacity(writes.len());
    for write in writes {
        steps.push(match holders.get(&write.new.task_id) {
            Some(holder) => Step::Refused(Applied::Keep(Inserted::TaskAssigned(holder.clone()))),
            None if !write.claim_key(tx).await? => Step::Refused(Applied::Undo(Inserted::KeyTaken)),
            None => write.prepare(tx).await?,
        });
    }
    let mut rows = Vec::with_capacity(writes.len());
    for (write, step) in writes.iter().zip(&steps) {
        if let Step::Record(environment) = step {
            rows.push(write.row(environment)?);
        }
    }
    let inserted = insert_rows(tx, rows).await?;
    let answers = writes.iter().zip(steps).map(|(write, step)| match step {
        Step::Refused(answer) => answer,
        Step::Record(environment) => write.finish(tx, environment, &inserted),
    });
    Ok(answers.collect())
}

/// How far one of several inserts has come.
enum Step {
    Refused(Applied<Inserted>),
    Record(Environment),
}

impl Insert {
    /// Takes the request's idempotency key, if it has one.
    async fn claim_key(&self, tx: &mut Tx<'_>) -> Result<bool, StoreError> {
        match &self.new.idempotency {
            Some(key) => claim_in_tx(tx, key, &self.new).await,
            None => Ok(true),
        }
    }

    /// Charges a host and makes the record. A refusal has to take back the claim
    /// on the task.
    async fn prepare(&self, tx: &mut Tx<'_>) -> Result<Step, StoreError> {
        let Some((host_id, units)) = self.charge(tx).await? else {
            return Ok(Step::Refused(Applied::Undo(Inserted::NoCapacity)));
        };
        let new = &self.new;
        if let Some(host) = &host_id {
            tx.effects.reserve(&new.id, host, new.charge, units);
        }
        Ok(Step::Record(Environment {
            id: new.id.clone(),
            version: Version::FIRST,
            spec: new.spec.clone(),
            tenant: new.tenant.clone(),
            task_id: Some(new.task_id.clone()),
            state: State::Provisioning,
            host_id,
            url: String::new(),
            endpoints: Vec::new(),
            boot_id: String::new(),
            guest_version: String::new(),
            probe: match new.has_probe {
                true => Probe::Waiting,
                false => Probe::None,
            },
            error: String::new(),
            operation: Some(taken(tx, new.operation, new.operation_ttl)?),
            created_at: tx.now,
            updated_at: tx.now,
            activity_at: tx.now,
        }))
    }

    /// Charges a host. `None`: no candidate fits; no host: there are no candidates, it
    /// is for the default backend.
    ///
    /// In a batch the first candidate is taken on trust and charged along with
    /// all others of the batch. If that does not work out, each write runs again
    /// alone, and then goes through its candidates. GPU units are chosen under the
    /// lock of the host's row, so a write that needs some runs alone from the start.
    async fn charge(
        &self,
        tx: &mut Tx<'_>,
    ) -> Result<Option<(Option<HostId>, GpuUnits)>, StoreError> {
        let spec = &self.new.spec;
        let need = self.new.charge;
        let Some(first) = self.new.candidates.first() else {
            return Ok(Some((None, GpuUnits::default())));
        };
        if !tx.alone {
            if spec.gpus > 0 {
                return Ok(None);
            }
            tx.effects.charge(first, need);
            return Ok(Some((Some(first.clone()), GpuUnits::default())));
        }
        for candidate in &self.new.candidates {
            if !charge_in_tx(tx, candidate, &Charge::of(need)).await? {
                continue;
            }
            let uuids = if spec.gpus > 0 {
                bind_in_tx(tx, candidate, spec).await?
            } else {
                Some(Vec::new())
            };
            match uuids {
                Some(uuids) => return Ok(Some((Some(candidate.clone()), units(spec, uuids)))),
                None => credit_in_tx(tx, candidate, &Charge::of(need)).await?,
            }
        }
        if self.new.overcommit {
            // Taking is giving back the negative: without asking for room.
            credit_in_tx(tx, first, &Charge::of(need).negative()).await?;
            // Only forks do, and what has GPUs is not forked.
            return Ok(Some((Some(first.clone()), GpuUnits::default())));
        }
        Ok(None)
    }

    fn row(&self, environment: &Environment) -> Result<Vec<Bind>, StoreError> {
        let operation = environment.operation.as_ref();
        Ok(binds![
            environment.id.as_str(),
            environment.version.0,
            environment.state.as_str(),
            self.new.task_id.as_str(),
            environment.tenant.as_str(),
            environment.host_id.as_ref().map(HostId::as_str),
            environment.url.as_str(),
            environment.error.as_str(),
            environment.created_at,
            environment.updated_at,
            environment.activity_at,
            operation.map(|operation| operation.kind.as_str()),
            operation.map(|operation| operation.owner.as_str()),
            operation.map(|operation| operation.expires_at),
            to_json("environments", "endpoints", &environment.endpoints)?,
            to_json("environments", "spec", &environment.spec)?,
            self.secrets.clone(),
            self.new.request.as_str(),
            initial(self.new.has_probe)
        ])
    }

    /// Adds what goes with a record that was inserted. If it was not, its id is
    /// taken: for ids made from task ids that means that two make the same one.
    fn finish(
        &self,
        tx: &mut Tx<'_>,
        environment: Environment,
        inserted: &BTreeSet<(EnvironmentId, TaskId)>,
    ) -> Applied<Inserted> {
        let new = &self.new;
        if !inserted.contains(&(new.id.clone(), new.task_id.clone())) {
            return Applied::Undo(Inserted::TaskAssigned(new.id.clone()));
        }
        tx.effects.event(&new.id, State::Provisioning, "", "");
        tx.effects.audit(&self.audit(environment.host_id.as_ref()));
        Applied::Keep(Inserted::Created(environment))
    }

    fn audit(&self, host: Option<&HostId>) -> Vec<AuditEntry> {
        let holders = &self.new.seed_holders;
        let name = |entry: &AuditEntry| match host {
            Some(host) if entry.kind == AuditKind::VmScheduled => {
                let named = entry.clone().with("host_id", host.as_str());
                match holders.is_empty() {
                    true => named,
                    false => named.with("artifact_local", holders.contains(host)),
                }
            }
            _ => entry.clone(),
        };
        self.new.audit.iter().map(name).collect()
    }
}

fn units(spec: &EnvironmentSpec, uuids: Vec<String>) -> GpuUnits {
    GpuUnits {
        profile: spec.gpu_profile.clone(),
        mig_count: if spec.gpu_profile.is_empty() {
            0
        } else {
            spec.gpus
        },
        uuids,
    }
}

pub(super) struct InsertFailed(pub(super) FailedCreate);

impl Write for InsertFailed {
    type Out = Option<EnvironmentId>;
    const ENTITY: &'static str = "vm";

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Applied<Self::Out>, StoreError> {
        let failed = &self.0;
        let row = claim(
            tx,
            &failed.task_id,
            &failed.id,
            &failed.tenant,
            TaskStatus::Failed,
            &failed.error,
        );
        if !claim_tasks(tx, vec![row]).await?.contains(&failed.task_id) {
            let mut holders = task_holders(tx, std::iter::once(&failed.task_id)).await?;
            return Ok(Applied::Keep(holders.remove(&failed.task_id)));
        }
        tx.effects
            .event(&failed.id, State::Failed, "", &failed.error);
        tx.effects.audit(&failed.audit);
        Ok(Applied::Keep(None))
    }
}

/// A row of [`CLAIM`]. A task that has failed already is claimed only to record
/// that; it is not active.
fn claim(
    tx: &Tx<'_>,
    task: &TaskId,
    id: &EnvironmentId,
    owner: &str,
    status: TaskStatus,
    error: &str,
) -> Vec<Bind> {
    let active = i64::from(status == TaskStatus::Assigned);
    binds![
        task.as_str(),
        id.as_str(),
        owner,
        active,
        status.as_str(),
        error,
        tx.now,
        tx.now
    ]
}

async fn claim_tasks(
    tx: &mut Tx<'_>,
    claims: Vec<Vec<Bind>>,
) -> Result<BTreeSet<TaskId>, StoreError> {
    let rows = CLAIM.run(tx, claims).await?;
    rows.iter()
        .map(|row| Ok(TaskId::new(row.columns("tasks").text("id")?)))
        .collect()
}

/// The environments that tasks belong to.
async fn task_holders(
    tx: &mut Tx<'_>,
    tasks: impl Iterator<Item = &TaskId>,
) -> Result<BTreeMap<TaskId, EnvironmentId>, StoreError> {
    let values = tasks.map(|task| binds![task.as_str()]).collect();
    let rows = HOLDERS.run(tx, values).await?;
    let holder = |row: &Row| {
        let mut columns = row.columns("tasks");
        let task = TaskId::new(columns.text("id")?);
        Ok((task, EnvironmentId::new(columns.text("environment_id")?)))
    };
    rows.iter().map(holder).collect()
}

async fn insert_rows(
    tx: &mut Tx<'_>,
    rows: Vec<Vec<Bind>>,
) -> Result<BTreeSet<(EnvironmentId, TaskId)>, StoreError> {
    let rows = INSERT.run(tx, rows).await?;
    let inserted = |row: &Row| {
        let mut columns = row.columns("environments");
        let id = EnvironmentId::new(columns.text("id")?);
        Ok((id, TaskId::new(columns.text("task_id")?)))
    };
    rows.iter().map(inserted).collect()
}
