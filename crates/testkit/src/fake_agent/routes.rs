//! The routes of a fake agent, with the statuses and texts of a real one.

use std::{collections::BTreeMap, sync::Arc};

use axum::{
    Json, Router,
    extract::{DefaultBodyLimit, Path, Query, Request, State as Shared},
    http::{StatusCode, header::AUTHORIZATION},
    middleware::{self, Next},
    response::{IntoResponse as _, Response},
    routing::{get, post},
};
use fuse_wire_host::{
    Capacity, CreateVmRequest, Endpoint, ExecRequest, ExecResponse, StartAgentRequest,
    StartAgentResponse, UploadRequest, VmList, VmState, VmView, generation, limits, name, text,
};
use serde_json::json;

use super::{
    TOKEN, artifacts, attach, logs, snapshots,
    state::{Failure, State, Step, Vm},
    surface::Surface,
};

pub(super) type Agent = Shared<Arc<State>>;
pub(super) type Answer = Result<Response, Failure>;

impl axum::response::IntoResponse for Failure {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (status, self.text).into_response()
    }
}

pub(super) fn failure(status: StatusCode, text: &str) -> Failure {
    Failure {
        status: status.as_u16(),
        text: text.to_owned(),
    }
}

pub(super) fn router(state: Arc<State>) -> Router {
    Router::new()
        .route("/v1/capacity", get(capacity))
        .route("/v1/vm", post(create).get(list))
        .route("/v1/vm/{id}", get(find).delete(delete))
        .route("/v1/vm/{id}/upload", post(upload))
        .route("/v1/vm/{id}/exec", post(exec))
        .route("/v1/vm/{id}/start-agent", post(start_agent))
        .merge(snapshots::router())
        .merge(attach::router())
        .merge(logs::router())
        .merge(artifacts::router())
        .layer(DefaultBodyLimit::max(limits::MAX_UPLOAD_BYTES))
        .layer(middleware::from_fn(authenticate))
        .layer(middleware::from_fn_with_state(state.clone(), tell))
        .with_state(state)
}

/// States what it speaks, and wakes whoever waits for a call.
async fn tell(Shared(state): Agent, request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    if let Some(stated) = state.lock().speaks.clone() {
        response.headers_mut().insert(generation::HEADER, stated);
    }
    state.answered().send_replace(());
    response
}

async fn authenticate(request: Request, next: Next) -> Response {
    if artifacts::is_granted(&request) {
        return next.run(request).await;
    }
    let wanted = format!("Bearer {TOKEN}");
    let given = request.headers().get(AUTHORIZATION);
    if given.is_none_or(|value| value.as_bytes() != wanted.as_bytes()) {
        return (StatusCode::UNAUTHORIZED, text::UNAUTHORIZED).into_response();
    }
    next.run(request).await
}

/// What the host has unless a test says otherwise.
pub(super) fn usual() -> Capacity {
    Capacity {
        cpus: 16,
        ram_mb: 65_536,
        storage_gb: 500,
        arch: "amd64".to_owned(),
        ..Capacity::default()
    }
}

async fn capacity(Shared(state): Agent) -> Answer {
    state.enter(Step::Capacity, "").await?;
    let inner = state.lock();
    let capacity = inner.capacity.clone().unwrap_or_else(usual);
    let capacity = Capacity {
        version: Some("9.8.7".to_owned()),
        guests: u32::try_from(inner.vms.len()).ok(),
        ..capacity
    };
    Ok(Json(capacity).into_response())
}

pub(super) fn view(id: &str, vm: &Vm) -> VmView {
    VmView {
        vm_id: id.to_owned(),
        url: match &vm.surface {
            Some(surface) => surface.address.to_string(),
            None => format!("203.0.113.1:{}", 19_551),
        },
        name: Some(id.to_owned()),
        owner: vm.owner.clone(),
        state: Some(if vm.stopped {
            VmState::Stopped
        } else {
            VmState::Running
        }),
        boot_id: Some(vm.boot_id()),
        guest_version: vm.guest_version.clone(),
        timings_ms: None,
    }
}

async fn create(Shared(state): Agent, Json(request): Json<CreateVmRequest>) -> Answer {
    let id = name::vm_id(request.name.as_deref().unwrap_or("vm"));
    state.enter(Step::Create, &id).await?;
    let surface = new_surface(&state).await?;
    let files = match &request.seed_snapshot {
        Some(seed) => snapshots::stored(&state, seed)?.files,
        None => BTreeMap::default(),
    };
    let mut inner = state.lock();
    if inner.vms.contains_key(&id) {
        return Err(failure(StatusCode::CONFLICT, "vm directory already exists"));
    }
    let vm = Vm {
        owner: request.owner.clone(),
        request,
        files,
        surface,
        ..Vm::default()
    };
    let answer = Json(view(&id, &vm)).into_response();
    inner.vms.insert(id, vm);
    inner.peak = inner.peak.max(inner.vms.len());
    Ok(answer)
}

pub(super) async fn new_surface(state: &State) -> Result<Option<Surface>, Failure> {
    if !state.lock().has_surfaces {
        return Ok(None);
    }
    let surface = Surface::listen().await;
    surface
        .map(Some)
        .map_err(|e| failure(StatusCode::INTERNAL_SERVER_ERROR, &e.to_string()))
}

#[derive(serde::Deserialize)]
struct Prefix {
    #[serde(default)]
    prefix: String,
}

async fn list(Shared(state): Agent, Query(query): Query<Prefix>) -> Answer {
    state.enter(Step::List, "").await?;
    let inner = state.lock();
    let vms = inner
        .vms
        .iter()
        .filter(|(id, _)| id.starts_with(&query.prefix))
        .map(|(id, vm)| view(id, vm))
        .collect();
    let version = "9.8.7".to_owned();
    Ok(Json(VmList { vms, version }).into_response())
}

/// Runs `work` on a VM, or answers 404.
pub(super) fn with_vm<T>(
    state: &State,
    id: &str,
    work: impl FnOnce(&mut Vm) -> T,
) -> Result<T, Failure> {
    let mut inner = state.lock();
    let vm = inner
        .vms
        .get_mut(id)
        .ok_or_else(|| failure(StatusCode::NOT_FOUND, text::VM_NOT_FOUND))?;
    Ok(work(vm))
}

async fn find(Shared(state): Agent, Path(id): Path<String>) -> Answer {
    state.enter(Step::Get, &id).await?;
    let view = with_vm(&state, &id, |vm| view(&id, vm))?;
    Ok(Json(view).into_response())
}

async fn delete(Shared(state): Agent, Path(id): Path<String>) -> Answer {
    state.enter(Step::Delete, &id).await?;
    let mut inner = state.lock();
    // Ends those who follow it.
    inner.printed.retain(|(vm, _), _| *vm != id);
    match inner.vms.remove(&id) {
        Some(_) => Ok(StatusCode::NO_CONTENT.into_response()),
        None => Err(failure(StatusCode::NOT_FOUND, text::VM_NOT_FOUND)),
    }
}

async fn upload(
    Shared(state): Agent,
    Path(id): Path<String>,
    Json(request): Json<UploadRequest>,
) -> Answer {
    state.enter(Step::Upload, &id).await?;
    with_vm(&state, &id, |vm| {
        vm.files.extend(
            request
                .files
                .into_iter()
                .map(|file| (file.path, file.content)),
        );
    })?;
    Ok(Json(json!({ "ok": true })).into_response())
}

/// The question for the probe's verdict, which comes again and again and is no step of
/// any test.
fn asks_for_health(request: &ExecRequest) -> bool {
    matches!(request.cmd.as_slice(), [program, word, ..] if program == "/run/fused" && word == "health")
}

async fn exec(
    Shared(state): Agent,
    Path(id): Path<String>,
    Json(request): Json<ExecRequest>,
) -> Answer {
    Ok(Json(run(&state, &id, &request).await?).into_response())
}

/// Runs a command in a fake guest.
pub(super) async fn run(
    state: &State,
    id: &str,
    request: &ExecRequest,
) -> Result<ExecResponse, Failure> {
    if !asks_for_health(request) {
        state.enter(Step::Exec, id).await?;
    }
    let (serves, stopped, read) = with_vm(state, id, |vm| {
        let read = match request.cmd.as_slice() {
            [cat, path] if cat == "cat" => vm.files.get(path).cloned(),
            _ if asks_for_health(request) => Some(
                vm.files
                    .get("/fuse/health.json")
                    .cloned()
                    .unwrap_or_default(),
            ),
            _ => None,
        };
        (vm.serves, vm.stopped, read)
    })?;
    if stopped {
        return Err(failure(StatusCode::CONFLICT, "its VMM process has ended"));
    }
    let on_exec = state.lock().on_exec.clone();
    let asks_for_agent = request.cmd.iter().any(|arg| arg.contains(":254E"));
    Ok(match on_exec {
        // The question whether the guest agent serves is answered by the fake itself.
        _ if asks_for_agent => ExecResponse {
            exit_code: i32::from(!serves),
            ..ExecResponse::default()
        },
        _ if read.is_some() => ExecResponse {
            stdout: read.unwrap_or_default(),
            ..ExecResponse::default()
        },
        Some(on_exec) => on_exec(&request.cmd),
        None => ExecResponse::default(),
    })
}

async fn start_agent(
    Shared(state): Agent,
    Path(id): Path<String>,
    Json(request): Json<StartAgentRequest>,
) -> Answer {
    state.enter(Step::StartAgent, &id).await?;
    let keeps = state.lock().keeps_credentials;
    with_vm(&state, &id, |vm| {
        if let Some(surface) = &vm.surface
            && !(keeps && vm.serves)
        {
            surface.start(&vm.files);
        }
        vm.serves = true;
    })?;
    let endpoints = (32_000..)
        .zip(request.expose)
        .map(|(host_port, entry)| Endpoint {
            name: entry.name,
            url: format!("203.0.113.1:{host_port}"),
            port: entry.port,
            host_port,
            protocol: entry.protocol,
        })
        .collect();
    Ok(Json(StartAgentResponse {
        ok: true,
        endpoints,
    })
    .into_response())
}
