//! Snapshots of a fake agent: copies of a VM's files, kept apart from it.

use std::{collections::BTreeMap, sync::Arc};

use axum::{
    Json, Router,
    extract::{Path, State as Shared},
    http::StatusCode,
    response::IntoResponse as _,
    routing::{delete, get, post},
};
use fuse_wire_host::{
    PullState, name,
    snapshot::{
        ForkRequest, RestoreRequest, RestoreResponse, Snapshot, SnapshotKind, SnapshotList,
        SnapshotRequest,
    },
    text,
};

use super::{
    routes::{Agent, Answer, failure, new_surface, view, with_vm},
    state::{Failure, State, Step, Vm},
};

/// A stored snapshot.
#[derive(Debug, Clone)]
pub(super) struct Stored {
    pub(super) record: Snapshot,
    pub(super) files: BTreeMap<String, Vec<u8>>,
}

pub(super) fn router() -> Router<Arc<State>> {
    Router::new()
        .route("/v1/vm/{id}/snapshot", post(take))
        .route("/v1/vm/{id}/snapshots", get(list))
        .route("/v1/vm/{id}/restore", post(restore))
        .route("/v1/vm/{id}/fork", post(fork))
        .route("/v1/snapshots/{id}", delete(remove))
}

async fn take(
    Shared(state): Agent,
    Path(id): Path<String>,
    Json(request): Json<SnapshotRequest>,
) -> Answer {
    state.enter(Step::Snapshot, &id).await?;
    let record = store(&state, id.clone(), request)?;
    state.enter(Step::SnapshotTaken, &id).await?;
    Ok(Json(record).into_response())
}

fn store(state: &State, id: String, request: SnapshotRequest) -> Result<Snapshot, Failure> {
    let files = with_vm(state, &id, |vm| vm.files.clone())?;
    let mut inner = state.lock();
    inner.snapshots_taken += 1;
    let number = inner.snapshots_taken;
    let record = Snapshot {
        snapshot_id: match request.snapshot_id.filter(|_| !inner.chooses_snapshot_ids) {
            Some(id) => id,
            None => format!("snap-{}-{:06x}", 1_700_000_000 + number, inner.number),
        },
        digest: match inner.hides_digests {
            true => String::new(),
            false => format!("{:032x}{number:032x}", inner.number),
        },
        base_digest: Some("ba5e".repeat(16)),
        kind: match request.live {
            Some(true) => SnapshotKind::Live,
            _ => SnapshotKind::Disk,
        },
        size_bytes: 1 << 20,
        comment: request.comment.unwrap_or_default(),
        created_at: "2026-01-15T10:00:00Z".to_owned(),
        origin_vm_id: id,
        pause_ms: Some(1.5),
        ..Snapshot::default()
    };
    let stored = Stored {
        record: record.clone(),
        files,
    };
    inner.snapshots.insert(record.snapshot_id.clone(), stored);
    Ok(record)
}

async fn list(Shared(state): Agent, Path(id): Path<String>) -> Answer {
    state.enter(Step::Snapshots, &id).await?;
    with_vm(&state, &id, |_| ())?;
    let inner = state.lock();
    let snapshots = inner
        .snapshots
        .values()
        .filter(|stored| stored.record.origin_vm_id == id)
        .map(|stored| stored.record.clone())
        .collect();
    Ok(Json(SnapshotList { snapshots }).into_response())
}

pub(super) fn stored(state: &State, id: &str) -> Result<Stored, Failure> {
    let found = state.lock().snapshots.get(id).cloned();
    found.ok_or_else(|| failure(StatusCode::NOT_FOUND, text::SNAPSHOT_NOT_FOUND))
}

async fn restore(
    Shared(state): Agent,
    Path(id): Path<String>,
    Json(request): Json<RestoreRequest>,
) -> Answer {
    state.enter(Step::Restore, &id).await?;
    let stored = stored(&state, &request.snapshot_id)?;
    let boot_id = with_vm(&state, &id, |vm| {
        let boots = stored.record.kind == SnapshotKind::Disk;
        vm.files = stored.files;
        if boots {
            vm.reboots += 1;
            vm.serves = false;
            vm.files.retain(|path, _| !path.starts_with("/fuse/"));
        }
        vm.boot_id()
    })?;
    let answer = RestoreResponse {
        ok: true,
        kind: stored.record.kind,
        boot_id: Some(boot_id),
        clock_synced: None,
    };
    Ok(Json(answer).into_response())
}

async fn fork(
    Shared(state): Agent,
    Path(source): Path<String>,
    Json(request): Json<ForkRequest>,
) -> Answer {
    state.enter(Step::Fork, &source).await?;
    with_vm(&state, &source, |_| ())?;
    let stored = stored(&state, &request.snapshot_id)?;
    let id = name::vm_id(request.name.as_deref().unwrap_or("vm"));
    let surface = new_surface(&state).await?;
    let mut inner = state.lock();
    if inner.vms.contains_key(&id) {
        return Err(failure(StatusCode::CONFLICT, "vm directory already exists"));
    }
    let mut files = stored.files;
    files.retain(|path, _| !path.starts_with("/fuse/"));
    let vm = Vm {
        owner: request.owner,
        files,
        surface,
        ..Vm::default()
    };
    let answer = Json(view(&id, &vm)).into_response();
    inner.vms.insert(id, vm);
    Ok(answer)
}

async fn remove(Shared(state): Agent, Path(id): Path<String>) -> Answer {
    state.enter(Step::DeleteSnapshot, &id).await?;
    let mut inner = state.lock();
    for pull in inner.pulls.values_mut() {
        let record = pull.record.as_ref();
        if record.is_some_and(|record| record.snapshot_id == id) {
            pull.state = PullState::Failed;
        }
    }
    match inner.snapshots.remove(&id) {
        Some(_) => Ok(StatusCode::NO_CONTENT.into_response()),
        None => Err(failure(StatusCode::NOT_FOUND, text::SNAPSHOT_NOT_FOUND)),
    }
}
