//! A VMM for tests: a process that sleeps, and a guest served from within the test.
//!
//! What a test wants to go wrong is set before ([`FakeVmm::behave`]); the fake is its own host's
//! view of the world too: which of its processes still run, and what its guests were told.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use fuse_wire_guest::control::{
    ClockResponse, ErrorBody, ExecRequest, ExecResponse, Status, SurfaceRequest, SurfaceStatus,
    UploadFile, UploadRequest, UploadResponse, path,
};
use fuse_wire_guest::snapshot::{self, FreezeRequest, FreezeResponse, SeedRequest, ThawResponse};
use fuse_wire_guest::{GENERATION, READY_PORT, Ready, vsock};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde::Serialize;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;

use super::process::{spawn_detached, start_time};
use super::{HostDevice, Limits, MachineSpec, Process, ProcessId, Sockets, Vmm, VmmError};
use crate::guest::{Transport, VsockTransport};
use crate::snapshot::Files;

/// What the next machines do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum Behaviour {
    /// Boot and serve.
    #[default]
    Serve,
    /// The program cannot be started.
    NoProgram,
    /// The program refuses its description.
    Refuse,
    /// The program ends while the guest boots.
    Die,
    /// The guest never answers.
    Silent,
    /// The guest answers that it cannot be used.
    Unusable(&'static str),
    /// The guest's surface does not start.
    NoSurface,
    /// The guest does not know how to hold its disk still.
    NoFreeze,
    /// The guest's hold ends before it is told to.
    ShortHold,
    /// The program cannot write the memory.
    NoSave,
}

/// What a guest was told.
#[derive(Debug, Clone, Default)]
pub(crate) struct Told {
    pub(crate) execs: Vec<ExecRequest>,
    pub(crate) uploads: Vec<UploadRequest>,
    pub(crate) surfaces: Vec<SurfaceRequest>,
    pub(crate) power_offs: usize,
    /// What concerns snapshots, in order.
    pub(crate) snapshots: Vec<String>,
    /// How often it was told the time, those when it began included.
    pub(crate) clocks: usize,
    /// Calls to set its clock that break off before it has answered.
    deaf: usize,
}

/// Processes that were started, those that have ended included.
type Started = Arc<Mutex<Vec<ProcessId>>>;

#[derive(Debug)]
pub(crate) struct FakeVmm {
    dir: PathBuf,
    behaviour: Mutex<Behaviour>,
    started: Started,
    api: Mutex<HashMap<String, UnixListener>>,
    guests: Mutex<HashMap<String, JoinSet<()>>>,
    told: Arc<Mutex<Told>>,
    /// Whether it wants to be told everything when it starts.
    pub(crate) told_at_start: bool,
    pub(crate) snapshots: bool,
    /// Devices that machines were given, by VM.
    pub(crate) given: Mutex<HashMap<String, Vec<HostDevice>>>,
}

impl FakeVmm {
    pub(crate) fn new(dir: PathBuf) -> Self {
        Self {
            dir,
            behaviour: Mutex::default(),
            started: Arc::default(),
            api: Mutex::default(),
            guests: Mutex::default(),
            told: Arc::default(),
            told_at_start: false,
            snapshots: true,
            given: Mutex::default(),
        }
    }

    pub(crate) fn behave(&self, behaviour: Behaviour) {
        *self.behaviour.lock().unwrap() = behaviour;
    }

    pub(crate) fn told(&self) -> Told {
        self.told.lock().unwrap().clone()
    }

    /// As many of the next calls to set a clock break off.
    pub(crate) fn deafen(&self, calls: usize) {
        self.told.lock().unwrap().deaf = calls;
    }

    /// Pids of its processes that still run.
    pub(crate) fn processes(&self) -> Vec<i32> {
        running(&self.started)
    }

    /// Ends a machine as a crash of its VMM would.
    pub(crate) fn crash(&self, vm_id: &str) {
        self.api.lock().unwrap().remove(vm_id);
        self.guests.lock().unwrap().remove(vm_id);
        end_all(&self.started);
    }

    fn note(&self, what: &str) {
        self.told.lock().unwrap().snapshots.push(what.to_owned());
    }

    fn start_guest(&self, vm_id: &str, channel: UnixListener) {
        let told = Arc::clone(&self.told);
        let started = Arc::clone(&self.started);
        let mut guest = JoinSet::new();
        guest.spawn(serve(channel, told, started, self.behaviour()));
        self.guests.lock().unwrap().insert(vm_id.to_owned(), guest);
    }

    fn behaviour(&self) -> Behaviour {
        self.behaviour.lock().unwrap().clone()
    }
}

#[async_trait]
impl Vmm for FakeVmm {
    fn limits(&self) -> Limits {
        Limits {
            max_cpus: 4,
            snapshots: self.snapshots,
            told_at_start: self.told_at_start,
        }
    }

    fn sockets(&self, vm_id: &str, _dir: &Path) -> Sockets {
        Sockets {
            api: self.dir.join(format!("{vm_id}.sock")),
            channel: self.dir.join(format!("{vm_id}.v")),
        }
    }

    fn socket_files(&self, sockets: &Sockets) -> Vec<PathBuf> {
        let ready = vsock::listener_path(&sockets.channel, READY_PORT);
        vec![sockets.api.clone(), sockets.channel.clone(), ready]
    }

    fn transport(&self, sockets: &Sockets) -> Arc<dyn Transport> {
        Arc::new(VsockTransport::new(sockets.channel.clone()))
    }

    fn spawn(&self, spec: &MachineSpec) -> Result<ProcessId, VmmError> {
        let program = match self.behaviour() {
            Behaviour::NoProgram => "/nowhere/vmm",
            _ => "/bin/sh",
        };
        let mut command = Command::new(program);
        command
            .args(["-c", "sleep 600 & wait"])
            .arg(&spec.sockets.api);
        let devices = spec.devices.clone();
        self.given
            .lock()
            .unwrap()
            .insert(spec.vm_id.clone(), devices);
        std::fs::write(&spec.log, "vmm started\n").unwrap();
        let id = spawn_detached(&mut command, &spec.log, &spec.group).map_err(|source| {
            VmmError::Start {
                program: program.into(),
                source,
            }
        })?;
        self.started.lock().unwrap().push(id);
        Ok(id)
    }

    async fn open(&self, _: &MachineSpec, _: &Process) -> Result<(), VmmError> {
        Ok(())
    }

    async fn configure(&self, spec: &MachineSpec, _: &Process) -> Result<(), VmmError> {
        if self.behaviour() == Behaviour::Refuse {
            let fault = "no such kernel".to_owned();
            return Err(VmmError::Refused {
                call: "/boot-source",
                status: 400,
                fault,
            });
        }
        let listener = UnixListener::bind(&spec.sockets.api).unwrap();
        self.api
            .lock()
            .unwrap()
            .insert(spec.vm_id.clone(), listener);
        Ok(())
    }

    async fn boot(&self, spec: &MachineSpec) -> Result<(), VmmError> {
        let channel = UnixListener::bind(&spec.sockets.channel).unwrap();
        let behaviour = self.behaviour();
        let mut ready = Ready {
            generation: GENERATION,
            fused_version: "0.0.0".into(),
            vm_id: spec.vm_id.clone(),
            boot_id: "boot".into(),
            error: None,
        };
        match behaviour {
            Behaviour::Silent => return Ok(()),
            Behaviour::Die => {
                self.crash(&spec.vm_id);
                return Ok(());
            }
            Behaviour::Unusable(reason) => ready.error = Some(reason.to_owned()),
            _ => {}
        }
        self.start_guest(&spec.vm_id, channel);
        let path = vsock::listener_path(&spec.sockets.channel, READY_PORT);
        let mut stream = UnixStream::connect(path).await.unwrap();
        stream
            .write_all(&serde_json::to_vec(&ready).unwrap())
            .await
            .unwrap();
        Ok(())
    }

    async fn pause(&self, _: &Sockets) -> Result<(), VmmError> {
        self.note("pause");
        Ok(())
    }

    async fn resume(&self, _: &Sockets, _: Duration) -> Result<(), VmmError> {
        self.note("resume");
        Ok(())
    }

    async fn save(&self, _: &Sockets, to: &Files) -> Result<(), VmmError> {
        self.note("save");
        if self.behaviour() == Behaviour::NoSave {
            let fault = "no space".to_owned();
            return Err(VmmError::Refused {
                call: "/snapshot/create",
                status: 400,
                fault,
            });
        }
        std::fs::write(to.vmstate(), b"state").unwrap();
        std::fs::write(to.memory(), b"memory").unwrap();
        Ok(())
    }

    async fn load(&self, spec: &MachineSpec, _: &Process, from: &Files) -> Result<(), VmmError> {
        self.note("load");
        if self.behaviour() == Behaviour::Refuse {
            let fault = "another version".to_owned();
            return Err(VmmError::Refused {
                call: "/snapshot/load",
                status: 400,
                fault,
            });
        }
        assert_eq!(std::fs::read(from.memory()).unwrap(), b"memory");
        let listener = UnixListener::bind(&spec.sockets.api).unwrap();
        self.api
            .lock()
            .unwrap()
            .insert(spec.vm_id.clone(), listener);
        let channel = UnixListener::bind(&spec.sockets.channel).unwrap();
        self.start_guest(&spec.vm_id, channel);
        Ok(())
    }

    async fn serves(&self, sockets: &Sockets) -> bool {
        UnixStream::connect(&sockets.api).await.is_ok()
    }
}

fn running(started: &Started) -> Vec<i32> {
    let started = started.lock().unwrap();
    let running = started
        .iter()
        .filter(|id| start_time(id.pid) == Some(id.start));
    running.map(|id| id.pid).collect()
}

fn end_all(started: &Started) {
    for pid in running(started) {
        let group = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process_group(group, rustix::process::Signal::KILL).unwrap();
    }
}

async fn serve(
    channel: UnixListener,
    told: Arc<Mutex<Told>>,
    started: Started,
    behaviour: Behaviour,
) {
    let mut connections = JoinSet::new();
    loop {
        let (mut stream, _) = channel.accept().await.unwrap();
        let (told, started) = (Arc::clone(&told), Arc::clone(&started));
        let behaviour = behaviour.clone();
        connections.spawn(async move {
            let mut line = Vec::new();
            while line.last() != Some(&b'\n') {
                line.push(stream.read_u8().await.unwrap());
            }
            stream
                .write_all(vsock::ok_line(1).as_bytes())
                .await
                .unwrap();
            let service = service_fn(|request| {
                answer(
                    request,
                    Arc::clone(&told),
                    Arc::clone(&started),
                    behaviour.clone(),
                )
            });
            let http = hyper::server::conn::http1::Builder::new();
            let _closed = http.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn answer(
    request: Request<Incoming>,
    told: Arc<Mutex<Told>>,
    started: Started,
    behaviour: Behaviour,
) -> std::io::Result<Response<Full<Bytes>>> {
    let route = request.uri().path().to_owned();
    let query = request.uri().query().map(str::to_owned);
    let body = request.into_body().collect().await.unwrap().to_bytes();
    if let Some(answer) = answer_host(&route, &body, &told, &behaviour) {
        return answer;
    }
    let surface = behaviour != Behaviour::NoSurface;
    Ok(match route.as_str() {
        path::EXEC => {
            let request: ExecRequest = serde_json::from_slice(&body).unwrap();
            told.lock().unwrap().execs.push(request.clone());
            match request.cmd[0].as_str() {
                "forever" => std::future::pending().await,
                "refuse" => refuse(StatusCode::BAD_REQUEST, "no such directory"),
                _ => {
                    let stdout_b64 = request.cmd.join(" ").into_bytes().into();
                    json(&ExecResponse {
                        stdout_b64,
                        ..ExecResponse::default()
                    })
                }
            }
        }
        path::FILES => {
            let request: UploadRequest = serde_json::from_slice(&body).unwrap();
            let written = u32::try_from(request.files.len()).unwrap();
            told.lock().unwrap().uploads.push(request);
            json(&UploadResponse { written })
        }
        path::FILE => {
            let files = vec![UploadFile {
                path: query.unwrap(),
                mode: None,
                content_b64: body.to_vec().into(),
            }];
            told.lock().unwrap().uploads.push(UploadRequest { files });
            json(&UploadResponse { written: 1 })
        }
        path::STATUS => json(&status()),
        path::POWER => {
            told.lock().unwrap().power_offs += 1;
            end_all(&started);
            let mut accepted = Response::new(Full::default());
            *accepted.status_mut() = StatusCode::ACCEPTED;
            accepted
        }
        path::SURFACE => {
            told.lock()
                .unwrap()
                .surfaces
                .push(serde_json::from_slice(&body).unwrap());
            let error = (!surface).then(|| "certificate does not parse".to_owned());
            json(&SurfaceStatus {
                running: surface,
                error,
                ..SurfaceStatus::default()
            })
        }
        _ => refuse(StatusCode::NOT_FOUND, "no such route"),
    })
}

/// What hosts tell guests around a snapshot, and what time it is.
fn answer_host(
    route: &str,
    body: &Bytes,
    told: &Mutex<Told>,
    behaviour: &Behaviour,
) -> Option<std::io::Result<Response<Full<Bytes>>>> {
    let note = |what: &str| told.lock().unwrap().snapshots.push(what.to_owned());
    Some(Ok(match route {
        snapshot::path::FREEZE if *behaviour == Behaviour::NoFreeze => {
            refuse(StatusCode::NOT_FOUND, "no such route")
        }
        snapshot::path::FREEZE => {
            let request: FreezeRequest = serde_json::from_slice(body).unwrap();
            let frozen = request.hold_ms > 0;
            note(if frozen { "freeze" } else { "sync" });
            json(&FreezeResponse { frozen })
        }
        snapshot::path::THAW => {
            note("thaw");
            let held = *behaviour != Behaviour::ShortHold;
            json(&ThawResponse { held })
        }
        snapshot::path::SEED => {
            let request: SeedRequest = serde_json::from_slice(body).unwrap();
            let told_time = usize::from(request.unix_micros.is_some());
            told.lock().unwrap().clocks += told_time;
            let mut taken = Response::new(Full::default());
            *taken.status_mut() = StatusCode::NO_CONTENT;
            taken
        }
        snapshot::path::RESUMED => {
            note("resumed");
            told.lock().unwrap().clocks += 1;
            json(&ClockResponse { offset_micros: 1 })
        }
        path::CLOCK => {
            let mut told = told.lock().unwrap();
            if let Some(left) = told.deaf.checked_sub(1) {
                told.deaf = left;
                return Some(Err(std::io::ErrorKind::BrokenPipe.into()));
            }
            told.clocks += 1;
            json(&ClockResponse { offset_micros: 1 })
        }
        _ => return None,
    }))
}

fn status() -> Status {
    Status {
        generation: GENERATION,
        fused_version: "0.0.0".to_owned(),
        vm_id: String::new(),
        boot_id: "boot".to_owned(),
        uptime_ms: 1,
        error: None,
        surface: SurfaceStatus::default(),
    }
}

fn json<T: Serialize>(body: &T) -> Response<Full<Bytes>> {
    Response::new(Full::new(Bytes::from(serde_json::to_vec(body).unwrap())))
}

fn refuse(status: StatusCode, error: &str) -> Response<Full<Bytes>> {
    let mut response = json(&ErrorBody {
        error: error.to_owned(),
    });
    *response.status_mut() = status;
    response
}
