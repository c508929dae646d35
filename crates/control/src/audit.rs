//! Audit entries of the use cases. Payloads carry names, never values of secrets.

use fuse_model::{AuditEntry, AuditKind, Environment, EnvironmentId, HostId, TaskId};

/// Why an environment is being destroyed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    Manual,
    Missing,
    Interrupted,
    StuckTask,
    IdleTimeout,
    Migrated,
}

impl Reason {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Manual => "manual_destroy",
            Self::Missing => "missing_from_provider",
            Self::Interrupted => "provisioning_interrupted",
            Self::StuckTask => "stuck_task",
            Self::IdleTimeout => "idle_timeout",
            Self::Migrated => "migrated",
        }
    }
}

/// How a host was chosen.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scheduled {
    pub(crate) policy: &'static str,
    pub(crate) eligible: usize,
}

pub(crate) fn accepted(
    id: &EnvironmentId,
    task: &TaskId,
    scheduled: &Scheduled,
) -> Vec<AuditEntry> {
    vec![
        AuditEntry::new(AuditKind::VmProvisioning, id.as_str()).with("task_id", task.as_str()),
        AuditEntry::new(AuditKind::TaskAssigned, task.as_str()).with("vm_id", id.as_str()),
        AuditEntry::new(AuditKind::VmScheduled, id.as_str())
            .with("policy", scheduled.policy)
            .with("candidates", scheduled.eligible),
    ]
}

/// What is to take the place of `source` was accepted. It gets a task when it does.
pub(crate) fn moving(
    source: &EnvironmentId,
    id: &EnvironmentId,
    scheduled: &Scheduled,
) -> Vec<AuditEntry> {
    vec![
        AuditEntry::new(AuditKind::VmProvisioning, id.as_str())
            .with("source_vm_id", source.as_str()),
        AuditEntry::new(AuditKind::VmScheduled, id.as_str())
            .with("policy", scheduled.policy)
            .with("candidates", scheduled.eligible),
    ]
}

/// `target` took the place of `source`.
pub(crate) fn migrated<'a>(
    source: &Environment,
    target: &Environment,
    secrets: impl Iterator<Item = &'a String>,
) -> Vec<AuditEntry> {
    let mut entries = vec![
        AuditEntry::new(AuditKind::VmMigrated, target.id.as_str())
            .with("source_vm_id", source.id.as_str())
            .with("source_host_id", host_of(source))
            .with("target_vm_id", target.id.as_str())
            .with("target_host_id", host_of(target)),
        AuditEntry::new(AuditKind::VmRunning, target.id.as_str()),
    ];
    entries.extend(deployed(target, secrets));
    entries
}

/// Another environment has taken the place of this one, and its task.
pub(crate) fn leaving(source: &Environment, target: &Environment) -> Vec<AuditEntry> {
    vec![
        AuditEntry::new(AuditKind::VmDraining, source.id.as_str()),
        AuditEntry::new(AuditKind::VmDestroying, source.id.as_str())
            .with("reason", Reason::Migrated.as_str())
            .with("target_vm_id", target.id.as_str()),
    ]
}

pub(crate) fn refused(id: &EnvironmentId, task: &TaskId, error: &str) -> Vec<AuditEntry> {
    vec![
        AuditEntry::new(AuditKind::VmProvisionFailed, id.as_str()).with("error", error),
        AuditEntry::new(AuditKind::TaskFailed, task.as_str()).with("error", error),
    ]
}

pub(crate) fn running<'a>(
    record: &Environment,
    secrets: impl Iterator<Item = &'a String>,
) -> Vec<AuditEntry> {
    let mut entries = vec![AuditEntry::new(AuditKind::VmRunning, record.id.as_str())];
    entries.extend(task(record, AuditKind::TaskRunning));
    entries.extend(deployed(record, secrets));
    entries
}

fn deployed<'a>(
    record: &Environment,
    secrets: impl Iterator<Item = &'a String>,
) -> Option<AuditEntry> {
    let names: Vec<&str> = secrets.map(String::as_str).collect();
    let entry = AuditEntry::new(AuditKind::SecretsDeployed, record.id.as_str());
    (!names.is_empty()).then(|| entry.with("keys", names))
}

/// A create that was interrupted has come to its end after all.
pub(crate) fn adopted(record: &Environment) -> Vec<AuditEntry> {
    let mut entries = vec![recovered(record)];
    entries.extend(task(record, AuditKind::TaskRunning));
    entries
}

/// It was found on its host, in the state that it had before.
pub(crate) fn recovered(record: &Environment) -> AuditEntry {
    AuditEntry::new(AuditKind::VmRecovered, record.id.as_str())
        .with("host_id", host_of(record))
        .with("state", record.state.as_str())
}

/// The guest of a running environment was set up again after a boot.
pub(crate) fn set_up_again<'a>(
    record: &Environment,
    secrets: impl Iterator<Item = &'a String>,
) -> Vec<AuditEntry> {
    let names: Vec<&str> = secrets.map(String::as_str).collect();
    vec![AuditEntry::new(AuditKind::SecretsRecovered, record.id.as_str()).with("keys", names)]
}

pub(crate) fn set_up_failed(record: &Environment, error: &str) -> Vec<AuditEntry> {
    vec![AuditEntry::new(AuditKind::SecretsRecoveryFailed, record.id.as_str()).with("error", error)]
}

pub(crate) fn provision_failed(record: &Environment, error: &str) -> Vec<AuditEntry> {
    let mut entries = vec![
        AuditEntry::new(AuditKind::VmProvisionFailed, record.id.as_str()).with("error", error),
    ];
    entries.extend(task(record, AuditKind::TaskFailed).map(|entry| entry.with("error", error)));
    entries
}

pub(crate) fn destroying(record: &Environment, reason: Reason, error: &str) -> Vec<AuditEntry> {
    let mut entries = vec![
        AuditEntry::new(AuditKind::VmDestroying, record.id.as_str())
            .with("reason", reason.as_str()),
    ];
    entries.extend(task(record, AuditKind::TaskFailed).map(|entry| entry.with("error", error)));
    entries
}

pub(crate) fn removed(record: &Environment) -> Vec<AuditEntry> {
    vec![AuditEntry::new(AuditKind::VmRemoved, record.id.as_str()).with("reason", "destroyed")]
}

fn host_of(record: &Environment) -> &str {
    record.host_id.as_ref().map_or("", HostId::as_str)
}

fn task(record: &Environment, kind: AuditKind) -> Option<AuditEntry> {
    let task = record.task_id.as_ref()?;
    Some(AuditEntry::new(kind, task.as_str()).with("vm_id", record.id.as_str()))
}
