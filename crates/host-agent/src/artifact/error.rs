//! What goes wrong with artifacts.

use std::path::PathBuf;
use std::time::Duration;

use fuse_wire_host::client::TransportError;
use fuse_wire_host::{FetchError, RootsError};
use thiserror::Error;

use crate::disk::SpaceError;
use crate::disk::sparse_form::UnpackError;
use crate::file_error::FileError;

/// Artifacts cannot be kept.
#[derive(Debug, Error)]
pub enum OpenError {
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// A rename would not do.
    #[error(
        "{} is not in the file system of {}: set FC_AGENT_ARTIFACT_TMP_DIR to a directory beside the \
         snapshots", .staging.display(), .snapshots.display()
    )]
    Apart {
        /// Where artifacts arrive.
        staging: PathBuf,
        /// Where they are to go.
        snapshots: PathBuf,
    },
    /// The other agents' certificates cannot be read.
    #[error("the certificates of other agents (FC_AGENT_CA) cannot be used")]
    Roots(#[from] RootsError),
    /// The HTTP client cannot be built.
    #[error(transparent)]
    Transport(#[from] TransportError),
}

/// An artifact is not served.
#[derive(Debug, Error)]
pub enum ServeError {
    /// The grant does not open it; it is not said why.
    #[error("forbidden")]
    Forbidden,
    /// There is none.
    #[error("artifact not found")]
    NotFound,
    /// It has no byte there.
    #[error("the artifact is {total} bytes long")]
    Range {
        /// How many it has.
        total: u64,
    },
    /// Enough are being served.
    #[error("the agent serves as many artifacts as it may; try again shortly")]
    Busy,
    /// It cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
}

/// A pull that was refused.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum PullError {
    /// The request is wrong.
    #[error("{0}")]
    Request(String),
    /// The id is that of something else.
    #[error("snapshot {id} exists and is another artifact")]
    Taken {
        /// The id.
        id: String,
    },
    /// Too many wait already.
    #[error("the agent has as many pulls as it may; try again shortly")]
    Busy,
    /// The transfer failed; nothing of it is left.
    #[error("{0}")]
    Failed(String),
}

/// A transfer that failed.
#[derive(Debug, Error)]
pub(super) enum TransferError {
    /// The peer, or the way to it.
    #[error("cannot fetch {what}")]
    Fetch {
        what: &'static str,
        #[source]
        source: FetchError,
    },
    #[error("{what} was cut off after {received} of {total} bytes, {tries} times in a row")]
    Cut {
        what: &'static str,
        received: u64,
        total: u64,
        tries: usize,
        #[source]
        source: Option<FetchError>,
    },
    #[error(
        "{what} is {bytes} bytes long, more than the {max} that are taken (FC_AGENT_MAX_ARTIFACT_BYTES)"
    )]
    TooLarge {
        what: &'static str,
        bytes: u64,
        max: u64,
    },
    #[error(
        "the host lacks {missing_mib} MiB of disk space where {} lies: {needed_mib} MiB are to be \
         fetched, {free_mib} MiB are free, {kept_mib} MiB of them are kept", .dir.display()
    )]
    NoRoom {
        dir: PathBuf,
        needed_mib: u64,
        free_mib: u64,
        kept_mib: u64,
        missing_mib: u64,
    },
    #[error("the snapshot was deleted before it was there")]
    GivenUp,
    #[error(
        "the disk of the host filled up during the transfer: {missing_mib} MiB more were needed"
    )]
    Full { missing_mib: u64 },
    #[error("the bytes of {what} are not those of its digest: {got} arrived")]
    Digest { what: &'static str, got: String },
    #[error("the peer does not name the base image that the disk belongs to")]
    NoBase,
    #[error("the peer's disk belongs to base image {offered}, not to {wanted}")]
    OtherBase { offered: String, wanted: String },
    #[error(transparent)]
    Space(#[from] SpaceError),
    #[error(transparent)]
    Form(#[from] UnpackError),
    #[error(transparent)]
    File(#[from] FileError),
    #[error("the transfer took longer than {}s (FC_AGENT_ARTIFACT_TRANSFER_TIMEOUT)", .limit.as_secs())]
    TooLong { limit: Duration },
    #[error("the agent is shutting down")]
    ShuttingDown,
    #[error("a task of the transfer was lost")]
    Lost,
}
