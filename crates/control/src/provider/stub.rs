//! The provider of an orchestrator without hosts: VMs exist in the store only. There
//! is no guest, so uploads and scripts succeed without doing anything and commands
//! are refused.

use async_trait::async_trait;
use fuse_model::{Endpoint, EnvironmentId, SnapshotId};
use fuse_wire_host::{
    Capacity, ExecRequest, ExecResponse, FailedCreate, Grant, LogSource, LogStream, Pull,
    PullAnswer, PullRequest, StartAgentRequest, UploadRequest,
    attach::Request as AttachRequest,
    client::AttachStream,
    grant::MintError,
    snapshot::{Snapshot, SnapshotRequest},
};

use super::{FoundVm, NewVm, Provider, ProviderError};

/// See the module.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct StubProvider;

const NO_SNAPSHOTS: ProviderError = ProviderError::Unsupported {
    operation: "snapshot",
};

fn found(vm: &EnvironmentId) -> FoundVm {
    FoundVm {
        id: vm.to_string(),
        url: format!("fc://{vm}"),
        owner: None,
        boot_id: None,
        guest_version: None,
        stopped: false,
        timings: None,
    }
}

#[async_trait]
impl Provider for StubProvider {
    fn has_guest(&self) -> bool {
        false
    }

    async fn capacity(&self) -> Result<Option<Capacity>, ProviderError> {
        Ok(None)
    }

    async fn create(&self, vm: NewVm<'_>) -> Result<FoundVm, ProviderError> {
        Ok(found(vm.id))
    }

    async fn upload(&self, _vm: &EnvironmentId, _: &UploadRequest) -> Result<(), ProviderError> {
        Ok(())
    }

    async fn exec(
        &self,
        _vm: &EnvironmentId,
        _command: &ExecRequest,
    ) -> Result<ExecResponse, ProviderError> {
        Err(ProviderError::Unsupported { operation: "exec" })
    }

    async fn start_agent(
        &self,
        _vm: &EnvironmentId,
        _request: &StartAgentRequest,
    ) -> Result<Vec<Endpoint>, ProviderError> {
        Ok(Vec::new())
    }

    fn has_snapshots(&self) -> bool {
        false
    }

    async fn snapshot(
        &self,
        _vm: &EnvironmentId,
        _request: &SnapshotRequest,
    ) -> Result<Snapshot, ProviderError> {
        Err(NO_SNAPSHOTS)
    }

    async fn snapshots(&self, _vm: &EnvironmentId) -> Result<Vec<Snapshot>, ProviderError> {
        Err(NO_SNAPSHOTS)
    }

    async fn restore(
        &self,
        _vm: &EnvironmentId,
        _snapshot: &SnapshotId,
    ) -> Result<(), ProviderError> {
        Err(NO_SNAPSHOTS)
    }

    async fn delete_snapshot(&self, _snapshot: &SnapshotId) -> Result<(), ProviderError> {
        Err(NO_SNAPSHOTS)
    }

    fn artifact(&self, _digest: &str) -> Result<(String, Grant), MintError> {
        Err(MintError::NoToken)
    }

    async fn pull(&self, _digest: &str, _: &PullRequest) -> Result<PullAnswer, ProviderError> {
        Err(NO_SNAPSHOTS)
    }

    async fn pulled(&self, _pull_id: &str) -> Result<Pull, ProviderError> {
        Err(NO_SNAPSHOTS)
    }

    async fn fork(
        &self,
        _source: &EnvironmentId,
        _snapshot: &SnapshotId,
        _vm: NewVm<'_>,
    ) -> Result<FoundVm, ProviderError> {
        Err(ProviderError::Unsupported { operation: "fork" })
    }

    async fn attach(
        &self,
        _vm: &EnvironmentId,
        _request: &AttachRequest,
    ) -> Result<AttachStream, ProviderError> {
        Err(ProviderError::Unsupported {
            operation: "attach",
        })
    }

    async fn logs(
        &self,
        _vm: &EnvironmentId,
        _source: LogSource,
        _follow: bool,
    ) -> Result<LogStream, ProviderError> {
        Err(ProviderError::Unsupported { operation: "logs" })
    }

    async fn failed_create(
        &self,
        _vm: &EnvironmentId,
    ) -> Result<Option<FailedCreate>, ProviderError> {
        Ok(None)
    }

    async fn find(&self, vm: &EnvironmentId) -> Result<Option<FoundVm>, ProviderError> {
        Ok(Some(found(vm)))
    }

    async fn list(&self, _prefix: &str) -> Result<Option<Vec<FoundVm>>, ProviderError> {
        Ok(None)
    }

    async fn destroy(&self, _vm: &EnvironmentId) -> Result<(), ProviderError> {
        Ok(())
    }
}
