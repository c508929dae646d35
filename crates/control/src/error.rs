//! What the use cases answer with when they fail.
//!
//! Every error has a kind, a text that may be shown to the caller, and sometimes
//! details. The texts are wire texts where the HTTP contract fixes them.

use std::{collections::BTreeMap, time::Duration};

pub use fuse_daemon::log::chain;
use fuse_model::{
    EnvironmentId, EnvironmentSpec, ErrorKind, HostId, OperationKind, SnapshotId, State, TaskId,
};
use fuse_planner::{PlacementError, Rejections};
use fuse_store::StoreError;

use crate::{
    create::CreateFailure,
    hosts::RegisterError,
    provider::{LookupError, ProviderError},
};

/// A failed use case.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The named thing does not exist.
    #[error(transparent)]
    Missing(#[from] Missing),
    /// The task has an environment already.
    #[error("task already assigned: task {task} is assigned to vm {existing}")]
    TaskAssigned {
        /// The task.
        task: TaskId,
        /// Its environment.
        existing: EnvironmentId,
    },
    /// The idempotency key was used for another request.
    #[error("the Idempotency-Key was used for a different request within the last 24 hours")]
    KeyReused,
    /// The idempotency key was taken by another request at the same moment.
    #[error("the Idempotency-Key is in use by another request, try again in a moment")]
    KeyTaken,
    /// The request asks for a longer startup script than the server allows.
    #[error(
        "startup script timeout exceeds the configured maximum: {requested:?} is above {max:?}"
    )]
    ScriptBound {
        /// As asked for.
        requested: Duration,
        /// The most that the server allows.
        max: Duration,
    },
    /// The environment is not in the state that the operation needs.
    #[error("vm not running: vm {vm} is {state}")]
    NotRunning {
        /// The environment.
        vm: EnvironmentId,
        /// Its state.
        state: State,
    },
    /// Somebody is at work on it.
    #[error("vm {vm} is busy: another operation ({kind}) is under way, try again in a moment")]
    Busy {
        /// The environment.
        vm: EnvironmentId,
        /// What is being done.
        kind: OperationKind,
    },
    /// A rotation of something that does not run.
    #[error("token rotation requires running: vm {vm} is {state}")]
    RotateNotRunning {
        /// The environment.
        vm: EnvironmentId,
        /// Its state.
        state: State,
    },
    /// Without a key there are no guest credentials.
    #[error("token rotation requires a 32-byte encryption key")]
    RotateNeedsKey,
    /// A destroy or another process took the environment over.
    #[error("vm {0} was taken over by another operation")]
    TakenOver(EnvironmentId),
    /// A migration that makes no sense.
    #[error("{0}")]
    MigrateInvalid(&'static str),
    /// A live migration to a host that cannot go on with the guest's memory.
    #[error(
        "vm {0} cannot be migrated live: no host can resume the memory of a guest of another one; a cold migration boots it anew"
    )]
    MigrateCannotResume(EnvironmentId),
    /// A fork of something that does not run.
    #[error("fork requires running: vm {vm} is {state}")]
    ForkNotRunning {
        /// The source.
        vm: EnvironmentId,
        /// Its state.
        state: State,
    },
    /// Snapshots and forks leave GPUs out, for good.
    #[error("operation not supported for gpu environments: vm {0} has gpus")]
    GpuUnsupported(EnvironmentId),
    /// The tenant has as many snapshots, or bytes of them, as it may have.
    #[error("snapshot quota exceeded: {tenant} has {used} of {max} {what}")]
    SnapshotQuota {
        /// Whose quota.
        tenant: String,
        /// What it has.
        used: u64,
        /// What it may have.
        max: u64,
        /// Of what.
        what: &'static str,
    },
    /// The snapshot is not in the state that the operation needs.
    #[error("snapshot invalid state: snapshot {id}: {why}")]
    SnapshotState {
        /// The snapshot.
        id: SnapshotId,
        /// What it is.
        why: String,
    },
    /// Another snapshot was taken on top of it.
    #[error("snapshot has children: snapshot {0} is the parent of another one")]
    SnapshotHasChildren(SnapshotId),
    /// There is a record, and its host does not have the bytes.
    #[error("snapshot not found: snapshot {0} is missing from provider")]
    SnapshotGone(SnapshotId),
    /// A fork names a snapshot of another environment.
    #[error("snapshot not found: snapshot {id} was taken of {owner}, not of vm {vm}")]
    SnapshotOfAnother {
        /// The snapshot.
        id: SnapshotId,
        /// What it was taken of.
        owner: String,
        /// What is to be forked.
        vm: EnvironmentId,
    },
    /// The disk of a snapshot could not be brought to the host that needs it.
    #[error("artifact transfer failed: {0}")]
    Transfer(String),
    /// A step on the host or in the guest failed; the text says which, secrets taken out.
    #[error("{0}")]
    Failed(String),
    /// The record says that it runs, its host says that it does not.
    #[error("vm not running: {0}")]
    Stopped(String),
    /// No host can take the environment.
    #[error(transparent)]
    Placement(#[from] PlacementRefusal),
    /// The environment was accepted and could not be brought up.
    #[error(transparent)]
    Create(#[from] CreateFailure),
    /// The host could not be registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// Environments are assigned to the host.
    #[error("host still has vms assigned: host {host} still has vm {vm} assigned")]
    HostInUse {
        /// The host.
        host: HostId,
        /// The lowest of their ids.
        vm: EnvironmentId,
        /// How many they are.
        count: u64,
    },
    /// The backend failed or cannot do it.
    #[error("{}", provider_text(operation, source))]
    Provider {
        /// The use case.
        operation: &'static str,
        /// The reason.
        source: ProviderError,
    },
    /// The environment is `destroying`, and the host has not confirmed yet.
    #[error("vm {0} is still being destroyed; the reconcile loop keeps trying")]
    DestroyPending(EnvironmentId),
    /// The backend of an environment could not be found.
    #[error(transparent)]
    Lookup(LookupError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The process is going down.
    #[error("the orchestrator is shutting down, try again in a moment")]
    ShuttingDown,
}

/// A backend that is not found because the store fails is a failure of the store.
impl From<LookupError> for Error {
    fn from(error: LookupError) -> Self {
        match error {
            LookupError::Store(e) => Self::Store(e),
            error => Self::Lookup(error),
        }
    }
}

/// What callers are told of the store; what it says itself is for the log: it may name tables and
/// files.
#[must_use]
pub fn of_the_store(error: &StoreError) -> String {
    let kind = error.kind();
    if kind == ErrorKind::Unavailable {
        "the state store does not answer, try again in a moment".to_owned()
    } else if kind == ErrorKind::Conflict {
        error.to_string()
    } else {
        "internal error; the reason is in the orchestrator's log".to_owned()
    }
}

/// Something that was asked for by name and does not exist.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Missing {
    /// An environment.
    #[error("vm {0} not found")]
    Environment(EnvironmentId),
    /// A task.
    #[error("task {0} not found")]
    Task(TaskId),
    /// A host.
    #[error("host {0} not found")]
    Host(HostId),
    /// The host that a create request pins.
    #[error("spec.host_id: host \"{0}\" is not registered")]
    Pin(HostId),
    /// A snapshot.
    #[error("snapshot {0} not found")]
    Snapshot(String),
    /// An output of a task.
    #[error(
        "task {task} has no {what}: that is kept for 24 hours after a create failed; while its \
         environment exists ask that (`fuse environment logs`)"
    )]
    Output {
        /// The task.
        task: TaskId,
        /// Which output.
        what: &'static str,
    },
    /// An API key.
    #[error("api key not found")]
    ApiKey,
}

/// Why an environment was not placed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlacementRefusal {
    /// The scheduler found no host.
    #[error(transparent)]
    Scheduler(#[from] PlacementError),
    /// GPUs without any registered host.
    #[error("gpu workloads require a registered gpu host")]
    GpuHost,
    /// No host that has the seed, or could be brought it, can take the environment.
    #[error(
        "no host has sufficient capacity: snapshot {snapshot} is on host {holders} and {}: {why}",
        if *.moves { "can move" } else { "cannot move" }
    )]
    Seed {
        /// The seed.
        snapshot: SnapshotId,
        /// The hosts that have it, as a list.
        holders: String,
        /// Whether other hosts can be brought it.
        moves: bool,
        /// Why not.
        why: String,
    },
    /// The one host that has the seed is none of the fleet's any more.
    #[error(
        "no host has sufficient capacity: host {host} is required by the seed snapshot but is not active ({why})"
    )]
    SeedHost {
        /// The host.
        host: HostId,
        /// Why not.
        why: &'static str,
    },
    /// No other host can take what is to be moved.
    #[error("no other host can take vm {vm}: {why}")]
    Move {
        /// What is to be moved.
        vm: EnvironmentId,
        /// Why not.
        why: String,
        /// What turned the hosts away, where the whole fleet was considered.
        rejections: Option<Rejections>,
    },
    /// A pin or labels without any registered host.
    #[error("placement requires registered hosts")]
    NeedsHosts,
}

impl PlacementRefusal {
    /// What a request gets that lost every race for the last room of the fleet.
    pub(crate) fn contended(spec: &EnvironmentSpec) -> Self {
        Self::Scheduler(PlacementError::NoCapacity {
            need: format!("{}CPU/{}MB/{}GB", spec.cpus, spec.ram_mb, spec.storage_gb),
            rejections: Rejections::default(),
        })
    }

    fn kind(&self) -> ErrorKind {
        match self {
            Self::Scheduler(e) => e.kind(),
            Self::GpuHost
            | Self::NeedsHosts
            | Self::Seed { .. }
            | Self::SeedHost { .. }
            | Self::Move { .. } => ErrorKind::NoCapacity,
        }
    }

    /// How many hosts each gate turned away.
    fn details(&self) -> BTreeMap<String, String> {
        let rejections = match self {
            Self::Scheduler(e) => e.rejections(),
            Self::Move { rejections, .. } => rejections.as_ref(),
            Self::GpuHost | Self::NeedsHosts | Self::Seed { .. } | Self::SeedHost { .. } => None,
        };
        let Some(rejections) = rejections else {
            return BTreeMap::new();
        };
        rejections
            .iter()
            .map(|(gate, count)| (format!("rejected_{}", gate.as_str()), count.to_string()))
            .collect()
    }
}

impl Error {
    /// The kind that decides on status and code.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Missing(_) | Self::SnapshotGone(_) | Self::SnapshotOfAnother { .. } => {
                ErrorKind::NotFound
            }
            Self::TaskAssigned { .. }
            | Self::KeyReused
            | Self::KeyTaken
            | Self::NotRunning { .. }
            | Self::Busy { .. }
            | Self::RotateNotRunning { .. }
            | Self::RotateNeedsKey
            | Self::TakenOver(_)
            | Self::ForkNotRunning { .. }
            | Self::GpuUnsupported(_)
            | Self::SnapshotQuota { .. }
            | Self::SnapshotState { .. }
            | Self::SnapshotHasChildren(_)
            | Self::Stopped(_)
            | Self::MigrateCannotResume(_)
            | Self::HostInUse { .. } => ErrorKind::Conflict,
            Self::ScriptBound { .. } | Self::MigrateInvalid(_) => ErrorKind::Invalid,
            Self::Placement(e) => e.kind(),
            Self::Create(e) => e.kind,
            Self::Register(e) => e.kind(),
            Self::Provider { source, .. } => source.kind(),
            Self::DestroyPending(_) | Self::Failed(_) | Self::Transfer(_) => ErrorKind::Internal,
            Self::Lookup(e) => e.kind(),
            Self::Store(e) => e.kind(),
            Self::ShuttingDown => ErrorKind::Unavailable,
        }
    }

    /// Facts beside the text.
    #[must_use]
    pub fn details(&self) -> BTreeMap<String, String> {
        match self {
            Self::Placement(e) => e.details(),
            Self::Create(e) => e.details.clone(),
            Self::HostInUse { count, .. } => [("vm_count".to_owned(), count.to_string())].into(),
            Self::TaskAssigned { existing, .. } => {
                [("vm_id".to_owned(), existing.to_string())].into()
            }
            Self::KeyReused => [("reason".to_owned(), "idempotency_key_reused".to_owned())].into(),
            Self::Missing(_)
            | Self::KeyTaken
            | Self::ScriptBound { .. }
            | Self::NotRunning { .. }
            | Self::Busy { .. }
            | Self::RotateNotRunning { .. }
            | Self::RotateNeedsKey
            | Self::TakenOver(_)
            | Self::MigrateInvalid(_)
            | Self::MigrateCannotResume(_)
            | Self::ForkNotRunning { .. }
            | Self::GpuUnsupported(_)
            | Self::SnapshotQuota { .. }
            | Self::SnapshotState { .. }
            | Self::SnapshotHasChildren(_)
            | Self::SnapshotGone(_)
            | Self::SnapshotOfAnother { .. }
            | Self::Failed(_)
            | Self::Transfer(_)
            | Self::Stopped(_)
            | Self::Register(_)
            | Self::Provider { .. }
            | Self::DestroyPending(_)
            | Self::Lookup(_)
            | Self::Store(_)
            | Self::ShuttingDown => BTreeMap::new(),
        }
    }
}

/// A capability gap is a text of the contract; everything else says what was tried.
fn provider_text(operation: &str, source: &ProviderError) -> String {
    match source {
        ProviderError::Unsupported { .. } => source.to_string(),
        ProviderError::Host(_) => format!("{operation}: {}", source.chain()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backend_that_the_store_hides_is_the_stores_failure() {
        let silent = Error::from(LookupError::Store(StoreError::Overloaded));
        assert!(matches!(silent, Error::Store(StoreError::Overloaded)));
        assert_eq!(
            of_the_store(&StoreError::Overloaded),
            "the state store does not answer, try again in a moment"
        );
        let unknown = Error::from(LookupError::UnknownHost(HostId::new("h")));
        assert!(matches!(unknown, Error::Lookup(_)));
    }

    #[test]
    fn texts_of_the_contract() {
        let vm = || EnvironmentId::new("fuse-a");
        assert_eq!(
            Missing::Environment(vm()).to_string(),
            "vm fuse-a not found"
        );
        assert_eq!(
            Missing::Pin(HostId::new("h")).to_string(),
            "spec.host_id: host \"h\" is not registered"
        );
        let in_use = Error::HostInUse {
            host: HostId::new("h"),
            vm: vm(),
            count: 2,
        };
        assert_eq!(
            in_use.to_string(),
            "host still has vms assigned: host h still has vm fuse-a assigned"
        );
        assert_eq!(in_use.details()["vm_count"], "2");
    }
}
