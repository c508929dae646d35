//! The operation lease of an environment: one operation at a time, fleet-wide.

use jiff::Timestamp;

use crate::ReplicaId;
use crate::names::named;

/// What somebody is doing to an environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OperationKind {
    /// Bringing the VM up.
    Create,
    /// Stopping the workload.
    Drain,
    /// Tearing the VM down.
    Destroy,
    /// Giving its guest agent new credentials.
    Rotate,
    /// Taking a snapshot of it.
    Snapshot,
    /// Putting a snapshot in its place.
    Restore,
    /// Moving it to another host: of the one that is moved, and of the one that is to take
    /// its place.
    Migrate,
    /// Finding out what became of an interrupted operation.
    Recover,
}

impl OperationKind {
    const ALL: [Self; 8] = [
        Self::Create,
        Self::Drain,
        Self::Destroy,
        Self::Rotate,
        Self::Snapshot,
        Self::Restore,
        Self::Migrate,
        Self::Recover,
    ];

    /// The name in the store.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Drain => "drain",
            Self::Destroy => "destroy",
            Self::Rotate => "rotate",
            Self::Snapshot => "snapshot",
            Self::Restore => "restore",
            Self::Migrate => "migrate",
            Self::Recover => "recover",
        }
    }
}

named!(OperationKind, "operation");

/// An operation under way. It is interrupted, and may be taken over, once
/// `expires_at` has passed or its owner has stopped beating.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operation {
    /// What is being done.
    pub kind: OperationKind,
    /// The process that does it.
    pub owner: ReplicaId,
    /// When it stops being believed, by the store's clock.
    pub expires_at: Timestamp,
}
