//! What drives VMs, as the use cases see it.
//!
//! Two providers exist: a host agent ([`agent`]) and a stub that keeps nothing and has
//! no guests ([`stub`]). [`Providers`] finds the one of an environment. Calls name a VM
//! by its environment id and are safe to repeat.

mod agent;
mod directory;
mod stub;

use std::fmt;

use async_trait::async_trait;
use fuse_model::{Endpoint, EnvironmentId, EnvironmentSpec, ErrorKind, FleetId, SnapshotId};
use fuse_wire_host::{
    Capacity, CreateTimings, ExecRequest, ExecResponse, FailedCreate, FileUpload, Grant, HostError,
    LogSource, LogStream, Pull, PullAnswer, PullRequest, StartAgentRequest, UploadRequest,
    attach::Request as AttachRequest,
    client::AttachStream,
    grant::MintError,
    snapshot::{Snapshot, SnapshotRequest},
};

pub(crate) use agent::AgentProvider;
pub use directory::LookupError;
pub(crate) use directory::{Place, Providers};
pub(crate) use stub::StubProvider;

/// A call to a provider failed.
#[derive(Debug, thiserror::Error)]
pub enum ProviderError {
    /// The provider cannot do this at all.
    #[error("{operation} not supported by provider")]
    Unsupported {
        /// What was asked for.
        operation: &'static str,
    },
    /// The host agent failed, refused or did not answer.
    #[error(transparent)]
    Host(#[from] HostError),
}

impl ProviderError {
    /// The kind that callers are answered with.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Unsupported { .. } => ErrorKind::Unsupported,
            // It works, it is only full: the same request may do later.
            Self::Host(HostError::Busy { .. }) => ErrorKind::Unavailable,
            Self::Host(HostError::Unauthorized { .. }) => ErrorKind::Unauthenticated,
            Self::Host(_) => ErrorKind::Internal,
        }
    }

    /// The text with its causes, as one line.
    #[must_use]
    pub fn chain(&self) -> String {
        crate::error::chain(self)
    }
}

/// A VM to be made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewVm<'a> {
    /// Its name, and its id on the host.
    pub(crate) id: &'a EnvironmentId,
    /// Size, image, region.
    pub(crate) spec: &'a EnvironmentSpec,
    /// Tag of the fleet that owns it.
    pub(crate) owner: &'a FleetId,
    /// The snapshot whose disk it starts with, if any.
    pub(crate) seed: Option<&'a SnapshotId>,
    /// The GPU units that are its own, where the host has an inventory.
    pub(crate) gpu_uuids: &'a [String],
}

/// A VM that a provider has.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct FoundVm {
    /// Its name.
    pub(crate) id: String,
    /// `host:port` of its guest agent.
    pub(crate) url: String,
    /// Tag of the fleet that owns it; `None` when the provider does not say.
    pub(crate) owner: Option<String>,
    /// The boot that its guest is in; `None` while it boots, or when the provider does
    /// not say.
    pub(crate) boot_id: Option<String>,
    /// Release of the agent in its guest; `None` when the provider does not say.
    pub(crate) guest_version: Option<String>,
    /// It has ended and its host does not boot it again.
    pub(crate) stopped: bool,
    /// How long its host took to make it, if it was made just now.
    pub(crate) timings: Option<CreateTimings>,
}

/// Something that makes, finds and removes VMs and talks to their guests.
#[async_trait]
pub(crate) trait Provider: fmt::Debug + Send + Sync {
    /// Whether VMs have a guest: files, commands and a guest agent.
    fn has_guest(&self) -> bool;

    /// What the host has; `None` from a provider without one.
    async fn capacity(&self) -> Result<Option<Capacity>, ProviderError>;

    /// Makes a VM and answers once its guest does.
    async fn create(&self, vm: NewVm<'_>) -> Result<FoundVm, ProviderError>;

    /// Writes files into the guest.
    async fn upload(&self, vm: &EnvironmentId, files: &UploadRequest) -> Result<(), ProviderError>;

    /// Runs a command in the guest.
    async fn exec(
        &self,
        vm: &EnvironmentId,
        command: &ExecRequest,
    ) -> Result<ExecResponse, ProviderError>;

    /// Starts (or restarts) the guest agent's public surface and publishes ports.
    async fn start_agent(
        &self,
        vm: &EnvironmentId,
        request: &StartAgentRequest,
    ) -> Result<Vec<Endpoint>, ProviderError>;

    /// Whether VMs can be forked, as far as it is known without asking.
    fn has_snapshots(&self) -> bool;

    /// Takes a snapshot.
    async fn snapshot(
        &self,
        vm: &EnvironmentId,
        request: &SnapshotRequest,
    ) -> Result<Snapshot, ProviderError>;

    /// The snapshots that were taken of a VM.
    async fn snapshots(&self, vm: &EnvironmentId) -> Result<Vec<Snapshot>, ProviderError>;

    /// Puts a snapshot in the place of its VM.
    async fn restore(&self, vm: &EnvironmentId, snapshot: &SnapshotId)
    -> Result<(), ProviderError>;

    /// Deletes a snapshot, whether or not its VM still exists.
    async fn delete_snapshot(&self, snapshot: &SnapshotId) -> Result<(), ProviderError>;

    /// Where another host fetches the artifact of this digest, and what opens it there.
    fn artifact(&self, digest: &str) -> Result<(String, Grant), MintError>;

    /// Begins to fetch an artifact from another host.
    async fn pull(&self, digest: &str, request: &PullRequest) -> Result<PullAnswer, ProviderError>;

    /// How far that is.
    async fn pulled(&self, pull_id: &str) -> Result<Pull, ProviderError>;

    /// Makes a VM of a snapshot of another one and answers once its guest does.
    async fn fork(
        &self,
        source: &EnvironmentId,
        snapshot: &SnapshotId,
        vm: NewVm<'_>,
    ) -> Result<FoundVm, ProviderError>;

    /// Starts a command and hands over the bytes of its streams.
    async fn attach(
        &self,
        vm: &EnvironmentId,
        request: &AttachRequest,
    ) -> Result<AttachStream, ProviderError>;

    /// What a VM, or its guest agent, printed; for a follower also what it prints.
    async fn logs(
        &self,
        vm: &EnvironmentId,
        source: LogSource,
        follow: bool,
    ) -> Result<LogStream, ProviderError>;

    /// What is known of the last create of that name that failed on the host.
    async fn failed_create(
        &self,
        vm: &EnvironmentId,
    ) -> Result<Option<FailedCreate>, ProviderError>;

    /// Looks a VM up; `None` when there is none.
    async fn find(&self, vm: &EnvironmentId) -> Result<Option<FoundVm>, ProviderError>;

    /// Every VM whose name starts with `prefix`; `None` from a provider that keeps no
    /// inventory, so that absence proves nothing.
    async fn list(&self, prefix: &str) -> Result<Option<Vec<FoundVm>>, ProviderError>;

    /// Removes a VM; one that does not exist counts as removed.
    async fn destroy(&self, vm: &EnvironmentId) -> Result<(), ProviderError>;
}

/// One call with many files.
#[must_use]
pub(crate) fn upload_request(files: Vec<FileUpload>) -> UploadRequest {
    UploadRequest { files }
}
