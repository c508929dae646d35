//! Snapshots, restore and fork.

use http::Method;

use super::calls::{HostClient, Plan};
use super::error::{Call, HostError};
use crate::snapshot::{
    ForkRequest, RestoreRequest, RestoreResponse, Snapshot, SnapshotList, SnapshotRequest,
};
use crate::vm::VmView;
use crate::{limits, name};

impl HostClient {
    /// `POST /v1/vm/{id}/snapshot`.
    ///
    /// # Errors
    /// See [`HostError`].
    pub async fn snapshot(
        &self,
        vm: &str,
        request: &SnapshotRequest,
    ) -> Result<Snapshot, HostError> {
        let id = name::vm_id(vm);
        let path = ["v1", "vm", &id, "snapshot"];
        let plan = Plan::new(Call::Snapshot, Method::POST, &path, limits::SNAPSHOT_LIMIT);
        self.send_json(plan, request).await
    }

    /// `GET /v1/vm/{id}/snapshots`: those taken of the VM, oldest first.
    ///
    /// # Errors
    /// See [`HostError`]; [`HostError::NotFound`] when there is no such VM.
    pub async fn snapshots(&self, vm: &str) -> Result<Vec<Snapshot>, HostError> {
        let id = name::vm_id(vm);
        let path = ["v1", "vm", &id, "snapshots"];
        let plan = Plan::new(Call::Snapshots, Method::GET, &path, limits::READ_LIMIT);
        Ok(self.get_json::<SnapshotList>(plan).await?.snapshots)
    }

    /// `DELETE /v1/snapshots/{id}`: works whether or not its VM still exists.
    ///
    /// # Errors
    /// See [`HostError`]; [`HostError::NotFound`] when there is no such snapshot,
    /// [`HostError::Conflict`] while it is in use.
    pub async fn delete_snapshot(&self, snapshot_id: &str) -> Result<(), HostError> {
        let path = ["v1", "snapshots", snapshot_id];
        let limit = limits::DELETE_LIMIT;
        let plan = Plan::new(Call::DeleteSnapshot, Method::DELETE, &path, limit);
        self.send(plan, None).await.map(drop)
    }

    /// `POST /v1/vm/{id}/restore`: the VM goes on from the snapshot.
    ///
    /// # Errors
    /// See [`HostError`]; [`HostError::NotFound`] when VM or snapshot do not exist.
    pub async fn restore(
        &self,
        vm: &str,
        request: &RestoreRequest,
    ) -> Result<RestoreResponse, HostError> {
        let id = name::vm_id(vm);
        let path = ["v1", "vm", &id, "restore"];
        let plan = Plan::new(Call::Restore, Method::POST, &path, limits::RESTORE_LIMIT);
        self.send_json(plan, request).await
    }

    /// `POST /v1/vm/{id}/fork`: a new VM from a snapshot. Returns when its guest has answered.
    ///
    /// # Errors
    /// See [`HostError`]; [`HostError::Conflict`] when a VM of that name exists.
    pub async fn fork(&self, source: &str, request: &ForkRequest) -> Result<VmView, HostError> {
        let id = name::vm_id(source);
        let path = ["v1", "vm", &id, "fork"];
        let plan = Plan::new(Call::Fork, Method::POST, &path, limits::FORK_LIMIT);
        self.send_json(plan, request).await
    }
}
