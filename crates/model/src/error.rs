//! What kind of failure an error is, apart from its text.
//!
//! The control plane maps a kind to a status and a stable code in exactly one
//! place (`orchestrator`); everything below only says which kind it is.

use thiserror::Error;

/// The closed list of failure kinds. Every error of the control plane has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The named thing does not exist.
    NotFound,
    /// A precondition on the current state does not hold.
    Conflict,
    /// The request itself is wrong; repeating it cannot help.
    Invalid,
    /// The request is over a size limit.
    TooLarge,
    /// No usable credential.
    Unauthenticated,
    /// The credential is good but does not allow this.
    Forbidden,
    /// No host can take the environment now.
    NoCapacity,
    /// Something that is needed does not answer; the same request may work later.
    Unavailable,
    /// The backend cannot do this at all.
    Unsupported,
    /// A defect or an unexpected failure; details are for the log only.
    Internal,
}

impl ErrorKind {
    /// Whether the same request may succeed later without being changed.
    pub const fn is_retryable(self) -> bool {
        match self {
            Self::NoCapacity | Self::Unavailable => true,
            Self::NotFound
            | Self::Conflict
            | Self::Invalid
            | Self::TooLarge
            | Self::Unauthenticated
            | Self::Forbidden
            | Self::Unsupported
            | Self::Internal => false,
        }
    }
}

/// A name that is not in the closed list that it was looked up in.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("unknown {what} {name:?}")]
pub struct UnknownName {
    /// What was looked up, for example `state`.
    pub what: &'static str,
    /// The name as given.
    pub name: String,
}

impl UnknownName {
    /// Says that `name` is no known `what`.
    pub fn new(what: &'static str, name: &str) -> Self {
        Self {
            what,
            name: name.to_owned(),
        }
    }
}
