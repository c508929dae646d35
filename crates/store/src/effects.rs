//! What the writes of a batch have in common, collected while they run and
//! written once, at the end: tasks, reservations, charges to hosts, events and
//! audit entries.
//!
//! It saves most of the round trips, and it keeps the rows that all replicas
//! contend for (hosts, then the event clock) locked for the last few statements
//! of a batch only. They are taken in one order, so replicas do not deadlock.
//!
//! Events get their places here, under the clock's row lock: their order is the
//! order of commits, across all replicas.

use std::collections::{BTreeMap, BTreeSet};

use fuse_model::{
    AuditEntry, EnvironmentId, EventId, HostId, Resources, State, TaskId, TaskStatus,
};

use crate::host::{charge_in_tx, credit_in_tx};
use crate::multi_row::MultiRow;
use crate::sql::binds;
use crate::tx::Tx;
use crate::{Engine, StoreError, TaskChange};

/// Amounts taken from a host by one or more environments.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Charge {
    pub(crate) cpus: i64,
    pub(crate) ram_mb: i64,
    pub(crate) storage_gb: i64,
    pub(crate) gpus: i64,
    pub(crate) vms: i64,
}

impl Charge {
    /// What one environment takes.
    pub(crate) fn of(need: Resources) -> Self {
        Self {
            cpus: need.cpus.into(),
            ram_mb: need.ram_mb.into(),
            storage_gb: need.storage_gb.into(),
            gpus: need.gpus.into(),
            vms: 1,
        }
    }

    /// The same amounts, the other way.
    pub(crate) fn negative(self) -> Self {
        Self {
            cpus: -self.cpus,
            ram_mb: -self.ram_mb,
            storage_gb: -self.storage_gb,
            gpus: -self.gpus,
            vms: -self.vms,
        }
    }

    fn add(&mut self, other: Self) {
        self.cpus += other.cpus;
        self.ram_mb += other.ram_mb;
        self.storage_gb += other.storage_gb;
        self.gpus += other.gpus;
        self.vms += other.vms;
    }
}

/// The GPU units of an environment, beyond the count of whole devices.
#[derive(Debug, Clone, Default)]
pub(crate) struct GpuUnits {
    /// MIG profile; empty for whole devices.
    pub(crate) profile: String,
    /// Instances of the profile.
    pub(crate) mig_count: i32,
    /// Which units, as far as the host has an inventory.
    pub(crate) uuids: Vec<String>,
}

/// How a flush went.
#[derive(Debug)]
pub(crate) enum Flushed {
    /// All is written.
    Written {
        /// Whether watchers have something to read.
        is_news: bool,
    },
    /// A host does not have what was charged to it on trust.
    NoCapacity,
}

/// What is to be written at the end of a batch.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    /// Rows of the update of tasks.
    tasks: Vec<TaskRow>,
    /// Rows for `reservations`.
    reservations: Vec<(EnvironmentId, HostId, Resources, GpuUnits)>,
    releases: Vec<EnvironmentId>,
    charges: BTreeMap<HostId, Charge>,
    events: Vec<EventRow>,
    audit: Vec<AuditEntry>,
    /// Watchers are woken even if there is no event.
    is_news: bool,
}

#[derive(Debug)]
struct TaskRow {
    id: TaskId,
    environment_id: EnvironmentId,
    outcome: Option<(TaskStatus, String)>,
    active: bool,
}

#[derive(Debug)]
struct EventRow {
    environment_id: EnvironmentId,
    state: State,
    url: String,
    error: String,
    /// JSON of a step report; empty for a transition.
    step: String,
}

impl Effects {
    /// Changes a task, if it is still this environment's.
    pub(crate) fn task(&mut self, id: &TaskId, of: &EnvironmentId, change: &TaskChange) {
        if let Some(outcome) = outcome(change) {
            self.tasks.push(TaskRow {
                id: id.clone(),
                environment_id: of.clone(),
                outcome: Some(outcome),
                active: true,
            });
        }
    }

    /// Changes a task and lets its id be used again.
    pub(crate) fn free_task(&mut self, id: &TaskId, of: &EnvironmentId, change: &TaskChange) {
        self.tasks.push(TaskRow {
            id: id.clone(),
            environment_id: of.clone(),
            outcome: outcome(change),
            active: false,
        });
    }

    /// Notes what an environment takes from its host, which is charged apart.
    pub(crate) fn reserve(
        &mut self,
        id: &EnvironmentId,
        host: &HostId,
        need: Resources,
        gpus: GpuUnits,
    ) {
        self.reservations
            .push((id.clone(), host.clone(), need, gpus));
    }

    /// Charges a host.
    pub(crate) fn charge(&mut self, host: &HostId, need: Resources) {
        self.charges
            .entry(host.clone())
            .or_default()
            .add(Charge::of(need));
    }

    /// Gives back what an environment took, if it did.
    pub(crate) fn release(&mut self, id: &EnvironmentId) {
        self.releases.push(id.clone());
    }

    /// Tells the stream that an environment is in a new state.
    pub(crate) fn event(&mut self, id: &EnvironmentId, state: State, url: &str, error: &str) {
        self.events.push(EventRow {
            environment_id: id.clone(),
            state,
            url: url.to_owned(),
            error: error.to_owned(),
            step: String::new(),
        });
    }

    /// Tells the stream that a step of an environment's startup script ended.
    pub(crate) fn step_event(&mut self, id: &EnvironmentId, state: State, step: String) {
        self.events.push(EventRow {
            environment_id: id.clone(),
            state,
            url: String::new(),
            error: String::new(),
            step,
        });
    }

    /// Wakes watchers, here and at other replicas: what has changed is no event, and
    /// somebody may be waiting for it.
    pub(crate) fn news(&mut self) {
        self.is_news = true;
    }

    /// Adds audit entries.
    pub(crate) fn audit(&mut self, entries: &[AuditEntry]) {
        self.audit.extend_from_slice(entries);
    }
}

fn outcome(change: &TaskChange) -> Option<(TaskStatus, String)> {
    match change {
        TaskChange::Keep => None,
        TaskChange::Running => Some((TaskStatus::Running, String::new())),
        TaskChange::Completed => Some((TaskStatus::Completed, String::new())),
        TaskChange::Failed(error) => Some((TaskStatus::Failed, error.clone())),
    }
}

impl Tx<'_> {
    /// Writes the effects of the batch.
    pub(crate) async fn flush(&mut self, engine: Engine) -> Result<Flushed, StoreError> {
        let effects = std::mem::take(&mut self.effects);
        self.write_tasks(effects.tasks).await?;
        self.write_reservations(effects.reservations).await?;
        let credits = self.delete_reservations(&effects.releases).await?;
        let hosts: BTreeSet<&HostId> = credits.keys().chain(effects.charges.keys()).collect();
        for host in hosts {
            if let Some(credit) = credits.get(host) {
                credit_in_tx(self, host, credit).await?;
            }
            if let Some(charge) = effects.charges.get(host)
                && !charge_in_tx(self, host, charge).await?
            {
                return Ok(Flushed::NoCapacity);
            }
        }
        let is_news = effects.is_news || !effects.events.is_empty();
        let is_told = !effects.events.is_empty() || !effects.audit.is_empty();
        self.write_log(effects.events, effects.audit, engine)
            .await?;
        if is_news && !is_told && engine == Engine::Postgres {
            let sql = "SELECT pg_notify('fuse_events', '')";
            self.fetch("wake other replicas", sql, binds![]).await?;
        }
        Ok(Flushed::Written { is_news })
    }

    async fn write_tasks(&mut self, tasks: Vec<TaskRow>) -> Result<(), StoreError> {
        let now = self.now;
        let rows = tasks.into_iter().map(|row| {
            let (status, error) = row.outcome.unzip();
            binds![
                row.id.as_str(),
                row.environment_id.as_str(),
                status.map(TaskStatus::as_str),
                error.as_deref(),
                i64::from(row.active),
                now
            ]
        });
        let sql = MultiRow {
            step: "change tasks",
            before: "UPDATE tasks SET status = COALESCE(r.column3, status), \
                 last_error = COALESCE(r.column4, last_error), active = r.column5, \
                 updated_at = r.column6 FROM (VALUES ",
            after: ") AS r WHERE tasks.id = r.column1 AND tasks.environment_id = r.column2",
        };
        sql.run(self, rows.collect()).await.map(drop)
    }

    async fn write_reservations(
        &mut self,
        reservations: Vec<(EnvironmentId, HostId, Resources, GpuUnits)>,
    ) -> Result<(), StoreError> {
        let rows = reservations.into_iter().map(|(id, host, need, units)| {
            let Resources {
                cpus,
                ram_mb,
                storage_gb,
                gpus,
            } = need;
            binds![
                id.as_str(),
                host.as_str(),
                cpus,
                ram_mb,
                storage_gb,
                gpus,
                units.profile,
                units.mig_count,
                serde_json::Value::from(units.uuids).to_string()
            ]
        });
        let sql = MultiRow {
            step: "insert reservations",
            before: "INSERT INTO reservations \
                 (environment_id, host_id, cpus, ram_mb, storage_gb, gpus, gpu_profile, \
                 mig_count, gpu_uuids) \
                 SELECT * FROM (VALUES ",
            after: ") AS r WHERE r.column1 IS NOT NULL",
        };
        sql.run(self, rows.collect()).await.map(drop)
    }

    /// Deletes reservations and answers what they took, by host. One that is not
    /// there gives nothing back: that is what makes a release idempotent.
    async fn delete_reservations(
        &mut self,
        releases: &[EnvironmentId],
    ) -> Result<BTreeMap<HostId, Charge>, StoreError> {
        let sql = MultiRow {
            step: "release reservations",
            before: "DELETE FROM reservations WHERE environment_id IN (VALUES ",
            after: ") RETURNING host_id, cpus, ram_mb, storage_gb, gpus",
        };
        let rows = releases.iter().map(|id| binds![id.as_str()]);
        let mut credits: BTreeMap<HostId, Charge> = BTreeMap::new();
        for row in sql.run(self, rows.collect()).await? {
            let mut columns = row.columns("reservations");
            let host = HostId::new(columns.text("host_id")?);
            credits.entry(host).or_default().add(Charge {
                cpus: columns.int("cpus")?,
                ram_mb: columns.int("ram_mb")?,
                storage_gb: columns.int("storage_gb")?,
                gpus: columns.int("gpus")?,
                vms: 1,
            });
        }
        Ok(credits)
    }

    /// Gives events and audit entries their places and writes them.
    async fn write_log(
        &mut self,
        events: Vec<EventRow>,
        audit: Vec<AuditEntry>,
        engine: Engine,
    ) -> Result<(), StoreError> {
        let count = events.len() + audit.len();
        if count == 0 {
            return Ok(());
        }
        let mut places = self.take_places(count, engine).await?;
        let now = self.now;
        let rows = events.into_iter().zip(&mut places).map(|(event, seq)| {
            binds![
                seq,
                EventId::at(seq).to_string(),
                event.environment_id.as_str(),
                event.state.as_str(),
                event.url,
                event.error,
                event.step,
                now
            ]
        });
        let sql = MultiRow {
            step: "insert events",
            before: "INSERT INTO events (seq, id, environment_id, state, url, error, step, at) \
                 SELECT * FROM (VALUES ",
            after: ") AS r WHERE r.column1 IS NOT NULL",
        };
        sql.run(self, rows.collect()).await?;
        let rows = audit.into_iter().zip(places).map(|(entry, seq)| {
            binds![
                seq,
                entry.kind.entity().as_str(),
                entry.entity_id,
                entry.kind.as_str(),
                serde_json::Value::Object(entry.payload).to_string(),
                now
            ]
        });
        let sql = MultiRow {
            step: "insert audit entries",
            before: "INSERT INTO audit_events \
                 (seq, entity_type, entity_id, type, payload, at) SELECT * FROM (VALUES ",
            after: ") AS r WHERE r.column1 IS NOT NULL",
        };
        sql.run(self, rows.collect()).await.map(drop)
    }

    /// Takes `count` places from the event clock, whose row stays locked until
    /// the commit. On PostgreSQL the commit also wakes the other replicas.
    async fn take_places(
        &mut self,
        count: usize,
        engine: Engine,
    ) -> Result<std::ops::RangeFrom<i64>, StoreError> {
        let sql = match engine {
            Engine::Memory | Engine::File => {
                "UPDATE event_clock SET value = value + $1 WHERE id = 1 RETURNING value"
            }
            Engine::Postgres => {
                "UPDATE event_clock SET value = value + $1 WHERE id = 1 \
                 RETURNING value, pg_notify('fuse_events', '')"
            }
        };
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        let rows = self
            .fetch("advance the event clock", sql, binds![count])
            .await?;
        let row = rows.first().ok_or_else(|| StoreError::Corrupt {
            table: "event_clock",
            column: "value",
            reason: "the row is missing".to_owned(),
        })?;
        Ok(row.columns("event_clock").int("value")? - count + 1..)
    }
}
