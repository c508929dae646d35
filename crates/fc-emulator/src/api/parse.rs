//! From method, path and body to an [`Action`].
//!
//! Routes, the order of the checks and the texts of the complaints are those of
//! the published API. Routes of devices that the emulator lacks are known here,
//! so that asking for one is told apart from a wrong path.

use http::Method;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::path::PathBuf;
use thiserror::Error;

use crate::action::{Action, Query};
use crate::config::{
    Drive, DriveUpdate, LoadSnapshot, MachineConfig, MachineConfigUpdate, MemoryBackend,
    MemoryBackendType, NetworkInterface, NetworkOverride, NetworkUpdate, VsockOverride,
};

/// A request that is none.
#[derive(Debug, Error)]
pub(super) enum ParseError {
    #[error("GET request cannot have a body.")]
    BodyOfGet,
    #[error("Empty PUT request.")]
    EmptyPut,
    #[error("Empty PATCH request.")]
    EmptyPatch,
    #[error("The ID cannot be empty.")]
    EmptyId,
    #[error("API Resource IDs can only contain alphanumeric characters and underscores.")]
    InvalidId,
    #[error("The id from the path does not match the id from the body!")]
    DriveIdMismatch,
    #[error("The id from the path [{path}] does not match the id from the body [{body}]!")]
    InterfaceIdMismatch { path: String, body: String },
    #[error("Missing snapshot operation type.")]
    MissingSnapshotOperation,
    #[error("An error occurred when deserializing the json body of a request: {0}.")]
    Json(#[source] serde_json::Error),
    #[error("Invalid request method and/or path: {method} {path}.")]
    Route { method: Method, path: String },
    #[error("The requested operation is not supported: fc-emulator has no {0}.")]
    Unsupported(&'static str),
}

/// A request that was understood.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Parsed {
    pub(super) action: Action,
    /// It used a field that the API has deprecated; the answer says so.
    pub(super) deprecated: bool,
}

impl From<Action> for Parsed {
    fn from(action: Action) -> Self {
        Self {
            action,
            deprecated: false,
        }
    }
}

/// Reads one request. `path` is the path alone, without a query.
///
/// # Errors
/// There is no such request, or its body is not one of it.
pub(super) fn parse(method: &Method, path: &str, body: &[u8]) -> Result<Parsed, ParseError> {
    let mut segments = path.trim_start_matches('/').split_terminator('/');
    let head = segments.next().unwrap_or("");
    let sub = segments.next();
    match (method, body.is_empty()) {
        (&Method::GET, true) => get(head, sub),
        (&Method::GET, false) => Err(ParseError::BodyOfGet),
        (&Method::PUT, false) => put(head, sub, body),
        (&Method::PUT, true) => Err(ParseError::EmptyPut),
        (&Method::PATCH, false) => patch(head, sub, body),
        (&Method::PATCH, true) => Err(ParseError::EmptyPatch),
        (other, _) => Err(route(other, head)),
    }
}

fn route(method: &Method, path: &str) -> ParseError {
    ParseError::Route {
        method: method.clone(),
        path: path.to_owned(),
    }
}

fn get(head: &str, sub: Option<&str>) -> Result<Parsed, ParseError> {
    let query = match (head, sub) {
        ("", None) => Query::InstanceInfo,
        ("version", _) => Query::Version,
        ("vm", Some("config")) => Query::FullConfig,
        ("machine-config", _) => Query::MachineConfig,
        _ => return Err(lacking(head, sub).unwrap_or_else(|| route(&Method::GET, head))),
    };
    Ok(Action::Query(query).into())
}

fn put(head: &str, sub: Option<&str>, body: &[u8]) -> Result<Parsed, ParseError> {
    let action = match head {
        "actions" => json::<ActionBody>(body)?.action_type.into(),
        "boot-source" => Action::ConfigureBootSource(json(body)?),
        "drives" => {
            let id = checked_id(sub)?;
            let drive: Box<Drive> = json(body)?;
            if drive.drive_id != id {
                return Err(ParseError::DriveIdMismatch);
            }
            Action::InsertDrive(drive)
        }
        "entropy" => Action::SetEntropy(json(body)?),
        "logger" => Action::ConfigureLogger(json(body)?),
        "machine-config" => {
            let machine: MachineConfig = json(body)?;
            let deprecated = machine.cpu_template.is_some();
            let action = Action::ConfigureMachine(machine.into());
            return Ok(Parsed { action, deprecated });
        }
        "network-interfaces" => {
            let id = checked_id(sub)?;
            let interface: Box<NetworkInterface> = json(body)?;
            same_interface(id, &interface.iface_id)?;
            Action::InsertNetwork(interface)
        }
        "serial" => Action::ConfigureSerial(json(body)?),
        "snapshot" => return snapshot(sub, body),
        "vsock" => {
            let vsock: crate::config::Vsock = json(body)?;
            let deprecated = vsock.vsock_id.is_some();
            let action = Action::SetVsock(vsock);
            return Ok(Parsed { action, deprecated });
        }
        _ => return Err(lacking(head, sub).unwrap_or_else(|| route(&Method::PUT, head))),
    };
    Ok(action.into())
}

fn patch(head: &str, sub: Option<&str>, body: &[u8]) -> Result<Parsed, ParseError> {
    let action = match head {
        "drives" => {
            let id = checked_id(sub)?;
            let update: DriveUpdate = json(body)?;
            if update.drive_id != id {
                return Err(ParseError::DriveIdMismatch);
            }
            Action::UpdateDrive(update)
        }
        "machine-config" => {
            let update: MachineConfigUpdate = json(body)?;
            if update.is_empty() {
                return Err(ParseError::EmptyPatch);
            }
            let deprecated = update.cpu_template.is_some();
            let action = Action::ConfigureMachine(update);
            return Ok(Parsed { action, deprecated });
        }
        "network-interfaces" => {
            let id = checked_id(sub)?;
            let update: NetworkUpdate = json(body)?;
            same_interface(id, &update.iface_id)?;
            Action::UpdateNetwork(update)
        }
        "vm" => match json::<VmBody>(body)?.state {
            VmState::Paused => Action::Pause,
            VmState::Resumed => Action::Resume,
        },
        _ => return Err(lacking(head, sub).unwrap_or_else(|| route(&Method::PATCH, head))),
    };
    Ok(action.into())
}

/// The complaint about a route that Firecracker has and the emulator lacks.
fn lacking(head: &str, sub: Option<&str>) -> Option<ParseError> {
    let device = match (head, sub) {
        ("balloon", _) => "balloon device",
        ("cpu-config", _) => "CPU templates",
        ("hotplug", Some("memory")) => "memory hotplug",
        ("metrics", _) => "metrics",
        ("mmds", _) => "metadata service (MMDS)",
        ("pmem", _) => "pmem devices",
        _ => return None,
    };
    Some(ParseError::Unsupported(device))
}

fn json<T: DeserializeOwned>(body: &[u8]) -> Result<T, ParseError> {
    serde_json::from_slice(body).map_err(ParseError::Json)
}

fn checked_id(segment: Option<&str>) -> Result<&str, ParseError> {
    let id = segment
        .filter(|id| !id.is_empty())
        .ok_or(ParseError::EmptyId)?;
    if id.chars().all(|c| c == '_' || c.is_alphanumeric()) {
        Ok(id)
    } else {
        Err(ParseError::InvalidId)
    }
}

fn same_interface(path: &str, body: &str) -> Result<(), ParseError> {
    if path == body {
        return Ok(());
    }
    Err(ParseError::InterfaceIdMismatch {
        path: path.to_owned(),
        body: body.to_owned(),
    })
}

fn snapshot(operation: Option<&str>, body: &[u8]) -> Result<Parsed, ParseError> {
    match operation {
        Some("create") => Ok(Action::CreateSnapshot(json(body)?).into()),
        Some("load") => load(json(body)?),
        Some(other) => Err(route(&Method::PUT, &format!("/snapshot/{other}"))),
        None => Err(ParseError::MissingSnapshotOperation),
    }
}

fn load(body: LoadBody) -> Result<Parsed, ParseError> {
    let complaint = |text: &str| ParseError::Json(serde::de::Error::custom(text));
    let deprecated = body.mem_file_path.is_some() || body.enable_diff_snapshots;
    let mem_backend = match (body.mem_backend, body.mem_file_path) {
        (Some(backend), None) => backend,
        (None, Some(backend_path)) => MemoryBackend {
            backend_path,
            backend_type: MemoryBackendType::File,
        },
        (Some(_), Some(_)) => {
            return Err(complaint(
                "too many fields: either `mem_backend` or `mem_file_path` exclusively is required",
            ));
        }
        (None, None) => {
            return Err(complaint(
                "missing field: either `mem_backend` or `mem_file_path` is required",
            ));
        }
    };
    let action = Action::LoadSnapshot(Box::new(LoadSnapshot {
        snapshot_path: body.snapshot_path,
        mem_backend,
        track_dirty_pages: body.track_dirty_pages || body.enable_diff_snapshots,
        resume_vm: body.resume_vm,
        network_overrides: body.network_overrides,
        vsock_override: body.vsock_override,
    }));
    Ok(Parsed { action, deprecated })
}

/// Body of `PUT /actions`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ActionBody {
    action_type: ActionType,
}

#[derive(Deserialize)]
enum ActionType {
    FlushMetrics,
    InstanceStart,
    SendCtrlAltDel,
}

impl From<ActionType> for Action {
    fn from(kind: ActionType) -> Self {
        match kind {
            ActionType::FlushMetrics => Self::FlushMetrics,
            ActionType::InstanceStart => Self::Start,
            ActionType::SendCtrlAltDel => Self::SendCtrlAltDel,
        }
    }
}

/// Body of `PATCH /vm`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct VmBody {
    state: VmState,
}

#[derive(Deserialize)]
enum VmState {
    Paused,
    Resumed,
}

/// Body of `PUT /snapshot/load` as it comes.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LoadBody {
    snapshot_path: PathBuf,
    mem_file_path: Option<PathBuf>,
    mem_backend: Option<MemoryBackend>,
    #[serde(default)]
    enable_diff_snapshots: bool,
    #[serde(default)]
    track_dirty_pages: bool,
    #[serde(default)]
    resume_vm: bool,
    #[serde(default)]
    network_overrides: Vec<NetworkOverride>,
    vsock_override: Option<VsockOverride>,
}
