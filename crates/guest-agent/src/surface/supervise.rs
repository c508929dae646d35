//! PID 1's side of the public surface: starts it, keeps it alive, replaces it.
//!
//! ```text
//!            start                 exits otherwise
//! stopped ----------> serving ----------------------> waiting to start again
//!    ^  ^------------ exits 0 |                                |
//!    |                        <--------------------------------+
//!    +--- a start that fails
//! ```
//!
//! One task owns the state and takes starts in order. A new start ends the
//! program that runs, first politely.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fuse_wire_guest::control::{SurfaceRequest, SurfaceStatus};
use futures_util::StreamExt as _;
use rustix::process::{Pid, Signal};
use thiserror::Error;
use tokio::net::unix::pipe;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::codec::{FramedRead, LinesCodec};
use tokio_util::task::TaskTracker;

use crate::cgroup::Cgroups;
use crate::reaper::{Exit, Reaper, Started};
use crate::sys::{self, ChildSetup};

/// The program when none is named: this one.
const OWN_PROGRAM: &str = "/proc/self/exe";

/// A program must answer on its port within this time.
const START_PATIENCE: Duration = Duration::from_secs(15);

/// Longer than the program's own time to finish requests.
const STOP_PATIENCE: Duration = Duration::from_secs(12);

/// Pause before the first restart; doubled for each that follows at once.
const FIRST_RESTART: Duration = Duration::from_millis(200);
const LAST_RESTART: Duration = Duration::from_secs(10);

/// A program that ran this long is started again without delay growing.
const STABLE_AFTER: Duration = Duration::from_secs(30);

/// Lines of the program's output that are kept for error texts.
const KEPT_LINES: usize = 20;
const LINE_BYTES: usize = 1024;

/// Why the surface does not serve.
#[derive(Debug, Error)]
pub(crate) enum SurfaceError {
    /// The request makes no sense, or cannot be met as things are.
    #[error("{0}")]
    Invalid(String),
    /// The program cannot be started.
    #[error("cannot start {program}")]
    Start {
        /// Which.
        program: String,
        /// What the kernel said.
        #[source]
        source: std::io::Error,
    },
    /// The program ended before it served.
    #[error("{program} ended with {exit} before it served: {output}")]
    Died {
        /// Which.
        program: String,
        /// How it ended.
        exit: Exit,
        /// The end of what it said.
        output: String,
    },
    /// The program runs but does not serve.
    #[error("{program} did not listen on {listen} within {} s: {output}", START_PATIENCE.as_secs())]
    Silent {
        /// Which.
        program: String,
        /// Where it should.
        listen: String,
        /// The end of what it said.
        output: String,
    },
}

/// Handle of the task.
#[derive(Debug)]
pub(crate) struct Supervisor {
    starts: mpsc::Sender<Start>,
    status: watch::Receiver<SurfaceStatus>,
}

#[derive(Debug)]
struct Start {
    request: SurfaceRequest,
    reply: oneshot::Sender<Result<SurfaceStatus, SurfaceError>>,
}

impl Supervisor {
    /// Starts the task that owns the surface.
    pub(crate) fn start_task(
        reaper: Arc<Reaper>,
        cgroups: Option<Arc<Cgroups>>,
        tasks: &TaskTracker,
    ) -> Self {
        let (starts, queue) = mpsc::channel(4);
        let (sender, status) = watch::channel(SurfaceStatus::default());
        let keeper = Keeper {
            reaper,
            cgroups,
            status: sender,
            tasks: tasks.clone(),
        };
        tasks.spawn(keeper.run(queue));
        Self { starts, status }
    }

    /// Starts the surface as asked, in place of the one that runs.
    ///
    /// # Errors
    /// It did not come to serve; then none runs.
    pub(crate) async fn start(
        &self,
        request: SurfaceRequest,
    ) -> Result<SurfaceStatus, SurfaceError> {
        let gone = || SurfaceError::Invalid("the guest is going down".to_owned());
        let (reply, answer) = oneshot::channel();
        self.starts
            .send(Start { request, reply })
            .await
            .map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }

    /// How it is.
    pub(crate) fn status(&self) -> SurfaceStatus {
        self.status.borrow().clone()
    }
}

struct Keeper {
    reaper: Arc<Reaper>,
    cgroups: Option<Arc<Cgroups>>,
    status: watch::Sender<SurfaceStatus>,
    tasks: TaskTracker,
}

/// A program that was started.
struct Program {
    request: SurfaceRequest,
    pid: u32,
    exit: oneshot::Receiver<Exit>,
    output: Output,
    since: Instant,
}

enum State {
    Stopped,
    Serving(Program),
    Waiting {
        request: SurfaceRequest,
        until: Instant,
    },
}

enum Event {
    Start(Box<Start>),
    Exited(Exit),
    Due,
    Closed,
}

impl State {
    /// What happens next.
    async fn next(&mut self, queue: &mut mpsc::Receiver<Start>) -> Event {
        let own = async {
            match self {
                Self::Stopped => std::future::pending().await,
                // The sender is gone only when the reaper is.
                Self::Serving(program) => {
                    Event::Exited((&mut program.exit).await.unwrap_or(Exit::Code(0)))
                }
                Self::Waiting { until, .. } => {
                    sleep_until(*until).await;
                    Event::Due
                }
            }
        };
        tokio::select! {
            start = queue.recv() => start.map_or(Event::Closed, |start| Event::Start(Box::new(start))),
            event = own => event,
        }
    }
}

impl Keeper {
    async fn run(self, mut queue: mpsc::Receiver<Start>) {
        let mut state = State::Stopped;
        let mut pause = FIRST_RESTART;
        loop {
            state = match (state.next(&mut queue).await, state) {
                (Event::Closed, _) => return,
                (Event::Start(start), state) => {
                    self.stop(state).await;
                    pause = FIRST_RESTART;
                    self.replace(*start).await
                }
                (Event::Exited(exit), State::Serving(program)) => {
                    self.after_exit(program, exit, &mut pause)
                }
                (Event::Due, State::Waiting { request, .. }) => {
                    self.restart(request, &mut pause).await
                }
                (Event::Exited(_) | Event::Due, state) => state,
            };
        }
    }

    /// Starts what was asked for and answers.
    async fn replace(&self, start: Start) -> State {
        let (state, answer) = match self.launch(start.request).await {
            Ok(program) => {
                self.status.send_replace(SurfaceStatus {
                    running: true,
                    listen: Some(program.request.listen.clone()),
                    pid: Some(program.pid),
                    ..SurfaceStatus::default()
                });
                (State::Serving(program), Ok(self.status.borrow().clone()))
            }
            Err((_, error)) => {
                self.status.send_replace(SurfaceStatus {
                    error: Some(error.to_string()),
                    ..SurfaceStatus::default()
                });
                (State::Stopped, Err(error))
            }
        };
        // Whoever asked may have gone; the surface serves all the same.
        drop(start.reply.send(answer));
        state
    }

    /// A clean end is a wish; anything else is repaired.
    fn after_exit(&self, program: Program, exit: Exit, pause: &mut Duration) -> State {
        let said = program.output.text();
        tracing::warn!(%exit, output = %said, "the public surface ended");
        if exit.success() {
            self.down(String::from("it stopped by itself"));
            return State::Stopped;
        }
        if program.since.elapsed() >= STABLE_AFTER {
            *pause = FIRST_RESTART;
        }
        self.down(format!("it ended with {exit} and is started again: {said}"));
        Self::wait(program.request, pause)
    }

    async fn restart(&self, request: SurfaceRequest, pause: &mut Duration) -> State {
        match self.launch(request).await {
            Ok(program) => {
                self.status.send_modify(|status| {
                    status.running = true;
                    status.pid = Some(program.pid);
                    status.restarts += 1;
                    status.error = None;
                });
                State::Serving(program)
            }
            Err((request, error)) => {
                tracing::warn!(%error, "the public surface does not come back yet");
                self.down(error.to_string());
                Self::wait(request, pause)
            }
        }
    }

    fn wait(request: SurfaceRequest, pause: &mut Duration) -> State {
        let until = Instant::now() + *pause;
        *pause = (*pause * 2).min(LAST_RESTART);
        State::Waiting { request, until }
    }

    fn down(&self, error: String) {
        self.status.send_modify(|status| {
            status.running = false;
            status.pid = None;
            status.error = Some(error);
        });
    }

    /// Ends the program that runs: politely, then not.
    async fn stop(&self, state: State) {
        let State::Serving(mut program) = state else {
            return;
        };
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

    /// Starts a program and waits until it serves. Gives the request back if it does not.
    async fn launch(
        &self,
        request: SurfaceRequest,
    ) -> Result<Program, (SurfaceRequest, SurfaceError)> {
        let address = match free_address(&request.listen).await {
            Ok(address) => address,
            Err(error) => return Err((request, error)),
        };
        let started = match self.spawn(&request).await {
            Ok(started) => started,
            Err(error) => return Err((request, error)),
        };
        let mut child = started.child;
        let output = Output::default();
        if let Some(io) = child.stderr.take() {
            output.follow(io, &self.tasks);
        }
        let pid = child.id();
        let mut program = Program {
            request,
            pid,
            exit: started.exit,
            output,
            since: Instant::now(),
        };
        let error = tokio::select! {
            () = answers(address) => return Ok(program),
            exit = &mut program.exit => SurfaceError::Died {
                program: program_of(&program.request),
                exit: exit.unwrap_or(Exit::Code(1)),
                output: program.output.text(),
            },
            () = tokio::time::sleep(START_PATIENCE) => SurfaceError::Silent {
                program: program_of(&program.request),
                listen: program.request.listen.clone(),
                output: program.output.text(),
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
        let mut command = Command::new(request.binary_path.as_deref().unwrap_or(OWN_PROGRAM));
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

/// Rather users' processes than the surface, rather the surface than PID 1.
const OOM_SCORE_ADJ: &str = "-900";

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

/// The last lines that a program said.
#[derive(Clone, Debug, Default)]
struct Output(Arc<Mutex<VecDeque<String>>>);

impl Output {
    /// Keeps and logs the lines of `io` until it ends.
    fn follow(&self, io: std::process::ChildStderr, tasks: &TaskTracker) {
        let Ok(pipe) = pipe::Receiver::from_owned_fd(io.into()) else {
            return;
        };
        let output = self.clone();
        tasks.spawn(async move {
            let mut lines = FramedRead::new(pipe, LinesCodec::new_with_max_length(LINE_BYTES));
            while let Some(line) = lines.next().await {
                // Of a line that is too long only the fact is of interest.
                let line = line.unwrap_or_else(|error| format!("({error})"));
                tracing::info!("surface: {line}");
                output.push(line);
            }
        });
    }

    fn push(&self, line: String) {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() == KEPT_LINES {
            lines.pop_front();
        }
        lines.push_back(line);
    }

    fn text(&self) -> String {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Vec::from_iter(lines.iter().map(String::as_str)).join("; ")
    }
}
