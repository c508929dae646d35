//! A provider behind a host agent.

use async_trait::async_trait;
use fuse_model::{Endpoint, EnvironmentId, SnapshotId};
use fuse_wire_host::{
    Capacity, CreateVmRequest, ExecRequest, ExecResponse, FailedCreate, Grant, HostClient,
    HostError, LogSource, LogStream, Pull, PullAnswer, PullRequest, StartAgentRequest,
    UploadRequest, VmState, VmView,
    attach::Request as AttachRequest,
    client::AttachStream,
    grant::MintError,
    snapshot::{ForkRequest, RestoreRequest, Snapshot, SnapshotRequest},
    start_agent, text,
    vm::guest_version,
};

use super::{FoundVm, NewVm, Provider, ProviderError};
use crate::fail_point::effect;

/// VMs of one host.
#[derive(Debug, Clone)]
pub(crate) struct AgentProvider {
    client: HostClient,
}

impl AgentProvider {
    /// Drives VMs through `client`.
    #[must_use]
    pub(crate) fn new(client: HostClient) -> Self {
        Self { client }
    }

    /// Removes a VM of ours that stands in the way of a new one: what an earlier
    /// environment of the same name left behind on a host that could not be reached
    /// when it was destroyed. A VM of another fleet stays.
    async fn clear_leftover(&self, vm: NewVm<'_>) -> Result<bool, ProviderError> {
        let found = match self.client.get(vm.id.as_str()).await {
            // Something else is in the way, a device that is in use for example.
            Err(HostError::NotFound { .. }) => return Ok(false),
            found => found?,
        };
        if found.owner.as_deref() != Some(vm.owner.as_str()) {
            return Ok(false);
        }
        tracing::warn!(vm_id = %vm.id, agent = %self.client.agent(), "removing a leftover VM");
        self.destroy(vm.id).await?;
        Ok(true)
    }
}

fn create_request(vm: NewVm<'_>) -> CreateVmRequest {
    let text = |value: &str| (!value.is_empty()).then(|| value.to_owned());
    let size = |value: i32| u32::try_from(value).ok().filter(|n| *n > 0);
    let whole = vm.spec.gpu_profile.is_empty();
    CreateVmRequest {
        name: Some(vm.id.to_string()),
        cpus: size(vm.spec.cpus),
        memory_mb: size(vm.spec.ram_mb),
        storage_gb: size(vm.spec.storage_gb),
        region: text(&vm.spec.region),
        image: text(&vm.spec.image),
        owner: Some(vm.owner.to_string()),
        seed_snapshot: vm.seed.map(ToString::to_string),
        gpus: size(vm.spec.gpus),
        gpu_kind: text(&vm.spec.gpu_kind),
        gpu_profile: text(&vm.spec.gpu_profile),
        gpu_uuids: if whole {
            vm.gpu_uuids.to_vec()
        } else {
            Vec::new()
        },
        mig_instance_uuids: if whole {
            Vec::new()
        } else {
            vm.gpu_uuids.to_vec()
        },
        huge_pages: vm.spec.huge_pages.then_some(true),
    }
}

/// An agent without the route, or whose machines cannot do it, is no failure of it.
fn unless_unsupported(operation: &'static str, error: HostError) -> ProviderError {
    match error {
        HostError::NotFound { text: said, .. } if said == text::NOT_FOUND => {
            ProviderError::Unsupported { operation }
        }
        HostError::Agent { status, .. } if status.as_u16() == 501 => {
            ProviderError::Unsupported { operation }
        }
        other => other.into(),
    }
}

fn found(view: VmView) -> FoundVm {
    // A guest that is not up yet may still be listed with the boot before.
    let up = matches!(view.state, None | Some(VmState::Running));
    FoundVm {
        id: view.vm_id,
        url: view.url,
        owner: view.owner,
        boot_id: view.boot_id.filter(|_| up),
        guest_version: view.guest_version.as_deref().and_then(guest_version),
        stopped: view.state == Some(VmState::Stopped),
        timings: view.timings_ms,
    }
}

fn endpoint(published: start_agent::Endpoint) -> Endpoint {
    let protocol = match published.protocol {
        // Older agents do not say; absent means tcp on the wire too.
        start_agent::Protocol::Tcp => String::new(),
        start_agent::Protocol::Udp => "udp".to_owned(),
    };
    Endpoint {
        name: published.name,
        url: published.url,
        port: published.port,
        protocol,
    }
}

#[async_trait]
impl Provider for AgentProvider {
    fn has_guest(&self) -> bool {
        true
    }

    async fn capacity(&self) -> Result<Option<Capacity>, ProviderError> {
        Ok(Some(self.client.capacity().await?))
    }

    async fn create(&self, vm: NewVm<'_>) -> Result<FoundVm, ProviderError> {
        let request = create_request(vm);
        match effect("create", vm.id.as_str(), self.client.create(&request)).await {
            Ok(view) => Ok(found(view)),
            Err(conflict @ HostError::Conflict { .. }) => {
                if !self.clear_leftover(vm).await? {
                    return Err(conflict.into());
                }
                Ok(found(self.client.create(&request).await?))
            }
            Err(e) => Err(e.into()),
        }
    }

    async fn upload(&self, vm: &EnvironmentId, files: &UploadRequest) -> Result<(), ProviderError> {
        let upload = self.client.upload(vm.as_str(), files);
        Ok(effect("upload", vm.as_str(), upload).await?)
    }

    async fn exec(
        &self,
        vm: &EnvironmentId,
        command: &ExecRequest,
    ) -> Result<ExecResponse, ProviderError> {
        let exec = self.client.exec(vm.as_str(), command);
        Ok(effect("exec", vm.as_str(), exec).await?)
    }

    async fn start_agent(
        &self,
        vm: &EnvironmentId,
        request: &StartAgentRequest,
    ) -> Result<Vec<Endpoint>, ProviderError> {
        let start = self.client.start_agent(vm.as_str(), request);
        let answer = effect("start-agent", vm.as_str(), start).await?;
        Ok(answer.endpoints.into_iter().map(endpoint).collect())
    }

    fn has_snapshots(&self) -> bool {
        true
    }

    async fn snapshot(
        &self,
        vm: &EnvironmentId,
        request: &SnapshotRequest,
    ) -> Result<Snapshot, ProviderError> {
        let take = self.client.snapshot(vm.as_str(), request);
        let taken = effect("snapshot", vm.as_str(), take).await;
        taken.map_err(|e| unless_unsupported("snapshot", e))
    }

    async fn snapshots(&self, vm: &EnvironmentId) -> Result<Vec<Snapshot>, ProviderError> {
        let there = self.client.snapshots(vm.as_str()).await;
        there.map_err(|e| unless_unsupported("snapshot", e))
    }

    async fn restore(
        &self,
        vm: &EnvironmentId,
        snapshot: &SnapshotId,
    ) -> Result<(), ProviderError> {
        let request = RestoreRequest {
            snapshot_id: snapshot.to_string(),
        };
        let restore = self.client.restore(vm.as_str(), &request);
        let restored = effect("restore", vm.as_str(), restore).await;
        restored
            .map(drop)
            .map_err(|e| unless_unsupported("snapshot restore", e))
    }

    async fn delete_snapshot(&self, snapshot: &SnapshotId) -> Result<(), ProviderError> {
        let delete = self.client.delete_snapshot(snapshot.as_str());
        Ok(effect("delete-snapshot", snapshot.as_str(), delete).await?)
    }

    fn artifact(&self, digest: &str) -> Result<(String, Grant), MintError> {
        Ok((self.client.agent().to_string(), self.client.grant(digest)?))
    }

    async fn pull(&self, digest: &str, request: &PullRequest) -> Result<PullAnswer, ProviderError> {
        let pull = self.client.pull_artifact(digest, request);
        let id = request.snapshot_id.as_deref().unwrap_or_default();
        let begun = effect("pull", id, pull).await;
        begun.map_err(|e| unless_unsupported("artifact pull", e))
    }

    async fn pulled(&self, pull_id: &str) -> Result<Pull, ProviderError> {
        Ok(self.client.artifact_pull(pull_id).await?)
    }

    async fn fork(
        &self,
        source: &EnvironmentId,
        snapshot: &SnapshotId,
        vm: NewVm<'_>,
    ) -> Result<FoundVm, ProviderError> {
        let create = create_request(vm);
        let request = ForkRequest {
            snapshot_id: snapshot.to_string(),
            name: create.name,
            cpus: create.cpus,
            memory_mb: create.memory_mb,
            storage_gb: create.storage_gb,
            region: create.region,
            owner: create.owner,
        };
        let fork = self.client.fork(source.as_str(), &request);
        let forked = effect("fork", vm.id.as_str(), fork).await;
        forked.map(found).map_err(|e| unless_unsupported("fork", e))
    }

    async fn attach(
        &self,
        vm: &EnvironmentId,
        request: &AttachRequest,
    ) -> Result<AttachStream, ProviderError> {
        let attach = self.client.attach(vm.as_str(), request);
        let stream = effect("attach", vm.as_str(), attach).await;
        stream.map_err(|e| unless_unsupported("attach", e))
    }

    async fn logs(
        &self,
        vm: &EnvironmentId,
        source: LogSource,
        follow: bool,
    ) -> Result<LogStream, ProviderError> {
        let stream = self.client.logs(vm.as_str(), source, follow).await;
        stream.map_err(|e| unless_unsupported("logs", e))
    }

    async fn failed_create(
        &self,
        vm: &EnvironmentId,
    ) -> Result<Option<FailedCreate>, ProviderError> {
        match self.client.failed_create(vm.as_str()).await {
            Ok(failure) => Ok(Some(failure)),
            Err(HostError::NotFound { .. }) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    async fn find(&self, vm: &EnvironmentId) -> Result<Option<FoundVm>, ProviderError> {
        match self.client.get(vm.as_str()).await {
            Ok(view) => Ok(Some(found(view))),
            Err(e) if e.is_no_such_vm() => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    async fn list(&self, prefix: &str) -> Result<Option<Vec<FoundVm>>, ProviderError> {
        let list = self.client.list(prefix).await?;
        Ok(Some(list.vms.into_iter().map(found).collect()))
    }

    async fn destroy(&self, vm: &EnvironmentId) -> Result<(), ProviderError> {
        match effect("destroy", vm.as_str(), self.client.delete(vm.as_str())).await {
            Err(e) if !e.is_no_such_vm() => Err(e.into()),
            Ok(()) | Err(_) => Ok(()),
        }
    }
}
