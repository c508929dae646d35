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

mod error;
mod output;
mod program;

pub(crate) use error::SurfaceError;

use std::sync::Arc;
use std::time::Duration;

use fuse_wire_guest::control::{SurfaceRequest, SurfaceStatus};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until};
use tokio_util::task::TaskTracker;

use crate::cgroup::Cgroups;
use crate::reaper::{Exit, Reaper};
use program::{Launcher, Program};

/// Pause before the first restart; doubled for each that follows at once.
const FIRST_RESTART: Duration = Duration::from_millis(200);
const LAST_RESTART: Duration = Duration::from_secs(10);

/// A program that ran this long is started again without delay growing.
const STABLE_AFTER: Duration = Duration::from_secs(30);

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
        let launcher = Launcher::new(reaper, cgroups, tasks.clone());
        let keeper = Keeper {
            launcher,
            status: sender,
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
    launcher: Launcher,
    status: watch::Sender<SurfaceStatus>,
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
                    if let State::Serving(program) = state {
                        self.launcher.stop(program).await;
                    }
                    pause = FIRST_RESTART;
                    self.replace(*start).await
                }
                (Event::Exited(exit), State::Serving(program)) => {
                    self.after_exit(program, exit, &mut pause).await
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
        let (state, answer) = match self.launcher.launch(start.request).await {
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
    async fn after_exit(&self, program: Program, exit: Exit, pause: &mut Duration) -> State {
        let said = program.output.whole().await;
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
        match self.launcher.launch(request).await {
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
}
