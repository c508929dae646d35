//! The audit log: what happened to whom. Payloads carry no secret, token or key.

use serde_json::{Map, Value};

/// What an audit entry is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AuditEntity {
    /// An environment.
    Vm,
    /// A task.
    Task,
    /// A host.
    Host,
    /// The API itself.
    Api,
}

impl AuditEntity {
    /// The name in the store and on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Vm => "vm",
            Self::Task => "task",
            Self::Host => "host",
            Self::Api => "api",
        }
    }
}

macro_rules! audit_kinds {
    ($($(#[$doc:meta])* $name:ident = $entity:ident $text:literal;)*) => {
        /// The type of an audit entry (lifecycle 19).
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum AuditKind { $($(#[$doc])* $name,)* }

        impl AuditKind {
            /// The name in the store and on the wire.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// What entries of this type are about.
            pub const fn entity(self) -> AuditEntity {
                match self { $(Self::$name => AuditEntity::$entity,)* }
            }
        }
    };
}

audit_kinds! {
    /// A create was accepted.
    VmProvisioning = Vm "vm.provisioning";
    /// A host was chosen.
    VmScheduled = Vm "vm.scheduled";
    /// It runs.
    VmRunning = Vm "vm.running";
    /// The create failed.
    VmProvisionFailed = Vm "vm.provision_failed";
    /// A drain was asked for; the drain command runs next.
    VmDraining = Vm "vm.draining";
    /// The drain command succeeded.
    VmDrained = Vm "vm.drained";
    /// The drain command failed; the environment stays `draining`.
    VmDrainFailed = Vm "vm.drain_failed";
    /// There was nothing to run a drain command in; the payload says why.
    VmDrainSkipped = Vm "vm.drain_skipped";
    /// A fork of it was made; the payload names the fork.
    VmForked = Vm "vm.forked";
    /// It took the place of another one, on another host; the payload names both.
    VmMigrated = Vm "vm.migrated";
    /// Its guest agent has new credentials.
    VmTokenRotated = Vm "vm.token_rotated";
    /// The verdict of its probe changed.
    VmHealthChanged = Vm "vm.health_changed";
    /// A snapshot of it was taken.
    SnapshotCreated = Vm "snapshot.created";
    /// A snapshot of it was deleted on request.
    SnapshotDeleted = Vm "snapshot.deleted";
    /// A snapshot was put in its place.
    SnapshotRestored = Vm "snapshot.restored";
    /// A snapshot past its retention was deleted.
    SnapshotGcDeleted = Vm "snapshot.gc_deleted";
    /// A snapshot past its retention could not be deleted.
    SnapshotGcFailed = Vm "snapshot.gc_failed";
    /// A layer that was not used could not be deleted.
    ArtifactGcFailed = Vm "artifact.gc_failed";
    /// Teardown started; the payload says why.
    VmDestroying = Vm "vm.destroying";
    /// The record was removed.
    VmRemoved = Vm "vm.removed";
    /// Found again after an interruption.
    VmRecovered = Vm "vm.recovered";
    /// It is idle for too long; the next cycle destroys it.
    VmIdleSuspected = Vm "vm.idle_suspected";
    /// A VM without a record could not be destroyed and is left alone.
    VmOrphanDeadLettered = Vm "vm.orphan_dead_lettered";
    /// Secrets are in the guest (key names only).
    SecretsDeployed = Vm "secrets.deployed";
    /// Secrets are in the guest again after it has booted anew (key names only).
    SecretsRecovered = Vm "secrets.recovered";
    /// They could not be written into the guest again.
    SecretsRecoveryFailed = Vm "secrets.recovery_failed";
    /// A task got its environment.
    TaskAssigned = Task "task.assigned";
    /// Its environment runs.
    TaskRunning = Task "task.running";
    /// It failed.
    TaskFailed = Task "task.failed";
    /// It was reported as done.
    TaskCompleted = Task "task.completed";
    /// It runs for too long; the next cycle destroys its environment.
    TaskStuckSuspected = Task "task.stuck_suspected";
    /// A host was registered or registered anew.
    HostRegistered = Host "host.registered";
    /// A host takes no placements any more.
    HostCordoned = Host "host.cordoned";
    /// A host takes placements again.
    HostUncordoned = Host "host.uncordoned";
    /// A host takes no placements any more and is being emptied.
    HostDraining = Host "host.draining";
    /// Boots failed in a row, so the host gets no placements.
    HostQuarantined = Host "host.quarantined";
    /// Boots work again, or the operator says so.
    HostReadmitted = Host "host.readmitted";
    /// A host was removed.
    HostRemoved = Host "host.removed";
    /// A fork took more than the host has.
    HostOvercommitted = Host "host.overcommitted";
    /// A snapshot's disk was copied to the host.
    ArtifactPulled = Host "artifact.pulled";
    /// A layer that was not used was deleted from the host.
    ArtifactGcDeleted = Host "artifact.gc_deleted";
    /// The agent of a host stopped answering.
    HostUnreachable = Host "host.unreachable";
    /// It answers again.
    HostReachable = Host "host.reachable";
    /// A request came without a usable credential.
    AuthFailed = Api "auth.failed";
    /// A request came from an address that is not allowed.
    IpRejected = Api "ip.rejected";
}

/// One entry, written in the transaction of what it tells.
#[derive(Debug, Clone, PartialEq)]
pub struct AuditEntry {
    /// What happened.
    pub kind: AuditKind,
    /// Whom it happened to: an id of the kind's entity.
    pub entity_id: String,
    /// Details.
    pub payload: Map<String, Value>,
}

impl AuditEntry {
    /// An entry without details.
    pub fn new(kind: AuditKind, entity_id: impl Into<String>) -> Self {
        Self {
            kind,
            entity_id: entity_id.into(),
            payload: Map::new(),
        }
    }

    /// Adds one detail.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.payload.insert(key.to_owned(), value.into());
        self
    }
}
