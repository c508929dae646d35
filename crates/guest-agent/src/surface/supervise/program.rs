//! Starting and ending the program that is the public surface.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use fuse_wire_guest::control::SurfaceRequest;
use rustix::process::{Pid, Signal};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};
use tokio_util::task::TaskTracker;

use super::SurfaceError;
use super::error::START_PATIENCE;
use super::output::Output;
use crate::cgroup::Cgroups;
use crate::reaper::{Exit, Reaper, Started};
use crate::sys::{self, ChildSetup};

/// The program when none is named: this one, where it has no file.
const OWN_PROGRAM: &str = "/proc/self/exe";
/// Name that it shows under.
const OWN_NAME: &str = "fused";

/// Longer than the program's own time to finish requests.
const STOP_PATIENCE: Duration = Duration::from_secs(12);

/// Time for processes to disappear that were killed.
const CLEAR_PATIENCE: Duration = Duration::from_secs(5);

/// Rather users' processes than the surface, rather the surface than PID 1.
const OOM_SCORE_ADJ: &str = "-900";

/// A program that was started.
pub(super) struct Program {
    pub(super) request: SurfaceRequest,
    pub(super) pid: u32,
    pub(super) exit: oneshot::Receiver<Exit>,
    pub(super) output: Output,
    pub(super) since: Instant,
}

/// Starts and ends programs.
pub(super) struct Launcher {
    reaper: Arc<Reaper>,
    cgroups: Option<Arc<Cgroups>>,
    tasks: TaskTracker,
}

impl Launcher {
    pub(super) fn new(
        reaper: Arc<Reaper>,
        cgroups: Option<Arc<Cgroups>>,
        tasks: TaskTracker,
    ) -> Self {
        Self {
            reaper,
            cgroups,
            tasks,
        }
    }

    /// Ends the program that runs: politely, then not.
    pub(super) async fn stop(&self, mut program: Program) {
        if let Some(pid) = Pid::from_raw(program.pid.cast_signed()) {
            // May have ended meanwhile.
            rustix::process::kill_process(pid, Signal::TERM).ok();
        }
        if timeout(STOP_PATIENCE, &mut program.exit).await.is_err() {
            self.kill(&mut program).await;
        }
    }

    async fn kill(&self, program: &mut Program) {
        let killed = self
            .cgroups
            .as_ref()
            .map(|cgroups| cgroups.surface().kill());
        if let (None | Some(Err(_)), Some(pid)) = (killed, Pid::from_raw(program.pid.cast_signed()))
        {
            rustix::process::kill_process_group(pid, Signal::KILL).ok();
        }
        drop(timeout(STOP_PATIENCE, &mut program.exit).await);
    }

    /// Ends what a program left behind when it ended.
    async fn clear(&self) {
        let Some(cgroups) = &self.cgroups else { return };
        let group = cgroups.surface();
        if group.is_empty() {
            return;
        }
        if let Err(error) = group.kill() {
            tracing::warn!(%error, "processes of the last surface are left");
        }
        // Killed processes are gone a moment later.
        let mut check = tokio::time::interval(Duration::from_millis(5));
        let gone = async {
            while !group.is_empty() {
                check.tick().await;
            }
        };
        drop(timeout(CLEAR_PATIENCE, gone).await);
    }

    /// Starts a program and waits until it serves. Gives the request back if it does not.
    pub(super) async fn launch(
        &self,
        request: SurfaceRequest,
    ) -> Result<Program, (SurfaceRequest, SurfaceError)> {
        // What the one before left behind may still hold its port.
        self.clear().await;
        let address = match free_address(&request.listen).await {
            Ok(address) => address,
            Err(error) => return Err((request, error)),
        };
        let started = match self.spawn(&request).await {
            Ok(started) => started,
            Err(error) => return Err((request, error)),
        };
        let mut child = started.child;
        let mut program = Program {
            request,
            pid: child.id(),
            exit: started.exit,
            output: Output::follow(child.stderr.take(), &self.tasks),
            since: Instant::now(),
        };
        let error = tokio::select! {
            () = answers(address) => return Ok(program),
            exit = &mut program.exit => SurfaceError::Died {
                program: program_of(&program.request),
                exit: exit.unwrap_or(Exit::Code(1)),
                output: program.output.whole().await,
            },
            () = tokio::time::sleep(START_PATIENCE) => SurfaceError::Silent {
                program: program_of(&program.request),
                listen: program.request.listen.clone(),
                output: program.output.so_far(),
            },
        };
        if matches!(error, SurfaceError::Silent { .. }) {
            self.kill(&mut program).await;
        }
        Err((program.request, error))
    }

    async fn spawn(&self, request: &SurfaceRequest) -> Result<Started, SurfaceError> {
        let name = program_of(request);
        let failed = |source| SurfaceError::Start {
            program: name.clone(),
            source,
        };
        let mut command = match request.binary_path.as_deref() {
            Some(program) => Command::new(program),
            None => own_program(),
        };
        command
            .args(arguments(request))
            .env_clear()
            .env(
                "PATH",
                "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            )
            .env("HOME", "/root")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut setup = ChildSetup::default();
        if let Some(cgroups) = &self.cgroups {
            setup.cgroup = Some(cgroups.surface().procs().map_err(failed)?);
            setup.oom_score_adj = Some(OOM_SCORE_ADJ);
        }
        sys::isolate(&mut command, setup);
        let reaper = Arc::clone(&self.reaper);
        let spawned = tokio::task::spawn_blocking(move || reaper.spawn(&mut command)).await;
        spawned
            .map_err(|e| failed(std::io::Error::other(e)))?
            .map_err(failed)
    }
}

fn own_program() -> Command {
    let file = if Path::new(crate::PROGRAM).exists() {
        crate::PROGRAM
    } else {
        OWN_PROGRAM
    };
    let mut command = Command::new(file);
    command.arg0(OWN_NAME);
    command
}

fn program_of(request: &SurfaceRequest) -> String {
    request
        .binary_path
        .clone()
        .unwrap_or_else(|| "the guest agent's surface".to_owned())
}

fn arguments(request: &SurfaceRequest) -> Vec<String> {
    let mut arguments = Vec::new();
    let mut flag = |name: &str, value: Option<&String>| {
        if let Some(value) = value {
            arguments.extend([name.to_owned(), value.clone()]);
        }
    };
    flag("--listen", Some(&request.listen));
    flag("--manifest", Some(&request.manifest_path));
    flag("--secrets", Some(&request.secrets_path));
    flag("--vm-id", Some(&request.vm_id));
    flag("--tls-cert", request.tls_cert_path.as_ref());
    flag("--tls-key", request.tls_key_path.as_ref());
    flag("--auth-token-file", request.auth_token_file.as_ref());
    flag("--gateway", request.gateway.as_ref());
    arguments.extend(request.extra_args.iter().cloned());
    arguments
}

/// The address to find the program on, if nobody else has it.
async fn free_address(listen: &str) -> Result<SocketAddr, SurfaceError> {
    let mut address: SocketAddr = listen.parse().map_err(|_| {
        SurfaceError::Invalid(format!(
            "listen {listen:?} is not an address such as 0.0.0.0:9550"
        ))
    })?;
    if address.port() == 0 {
        return Err(SurfaceError::Invalid(
            "listen needs a port above 0".to_owned(),
        ));
    }
    TcpListener::bind(address).await.map_err(|error| {
        SurfaceError::Invalid(format!(
            "a process in the guest is in the way of listening on {listen} ({error});              stop it or choose another port"
        ))
    })?;
    if address.ip().is_unspecified() {
        address.set_ip(match address.ip() {
            IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    Ok(address)
}

/// Resolves when something accepts connections. The program may be anybody's,
/// so its port is the only sign there is.
async fn answers(address: SocketAddr) {
    let mut pause = Duration::from_millis(5);
    while TcpStream::connect(address).await.is_err() {
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(100));
    }
}
