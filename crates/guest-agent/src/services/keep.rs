//! `fused services keep`: what a service manager would do for podman.
//!
//! Serves podman's API on its socket, starts it again when it ends, and runs the containers' health checks when
//! they are due: podman itself only knows how to ask systemd for that.

use std::collections::HashMap;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

use super::podman::Podman;
use super::{Error, GROUP, SOCKET, find};

/// How often containers are looked for.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// A check that hangs is given up after this; podman ends it at its own limit, usually sooner.
const CHECK_LIMIT: Duration = Duration::from_secs(300);
/// How long podman may take until its API answers.
const API_PATIENCE: Duration = Duration::from_secs(60);
/// What podman says while it serves.
const LOG: &str = "/run/podman/api.log";
/// Pause before the API is started again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// What `keep` says once the API answers.
const READY: &str = "ready";
/// Rather a container than what keeps them.
const OOM_SCORE_ADJ: &str = "-900";

/// Makes sure that podman's API answers, by a process in the background that keeps it.
pub(super) async fn ensure(podman: &Podman) -> Result<(), Error> {
    if podman.ping().await.is_ok() {
        return Ok(());
    }
    let mut command = std::process::Command::new(crate::PROGRAM);
    command
        .args(["services", "keep"])
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // Signals to the caller's group are not meant for it.
        .process_group(0);
    let failed = |source| Error::Start {
        program: crate::PROGRAM.to_owned(),
        source,
    };
    let mut keeper = Command::from(command).spawn().map_err(failed)?;
    let (stdout, stderr) = (keeper.stdout.take(), keeper.stderr.take());
    let (Some(stdout), Some(stderr)) = (stdout, stderr) else {
        return Err(Error::NoApi("it has no output".to_owned()));
    };
    let mut said = BufReader::new(stdout).lines();
    match timeout(API_PATIENCE, said.next_line()).await {
        Ok(Ok(Some(line))) if line == READY => Ok(()),
        Ok(_) => {
            let mut lines = BufReader::new(stderr).lines();
            let mut last = "it ended without a word".to_owned();
            while let Ok(Ok(Some(line))) = timeout(AGAIN_AFTER, lines.next_line()).await {
                last = line;
            }
            Err(Error::NoApi(last))
        }
        Err(_) => Err(Error::NoApi(format!(
            "no answer within {} s",
            API_PATIENCE.as_secs()
        ))),
    }
}

/// Runs until it is asked to end.
pub(super) async fn keep() -> Result<(), Error> {
    let program = find("podman")?;
    enter_group();
    // Best effort: it is protected less without.
    let _unprotected = std::fs::write("/proc/self/oom_score_adj", OOM_SCORE_ADJ);
    let podman = Podman::at(SOCKET);
    let dir = Path::new(SOCKET).parent().unwrap_or(Path::new("/run"));
    std::fs::create_dir_all(dir).map_err(Error::file("make", dir))?;
    let on = |kind| {
        signal(kind).map_err(|source| Error::Start {
            program: "the keeper of services".to_owned(),
            source,
        })
    };
    let (mut term, mut interrupt) = (on(SignalKind::terminate())?, on(SignalKind::interrupt())?);
    let mut api = serve(&program, &podman).await?;
    // Whoever started this may have gone.
    let _closed =
        std::io::Write::write_all(&mut std::io::stdout(), format!("{READY}\n").as_bytes());
    let mut checks = Checks::default();
    let mut looks = interval(LOOK_EVERY);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = term.recv() => break,
            _ = interrupt.recv() => break,
            _ended = api.wait() => {
                sleep(AGAIN_AFTER).await;
                // It is tried again with the next round.
                if let Ok(again) = serve(&program, &podman).await {
                    api = again;
                }
            }
            _ = looks.tick() => checks.look(&podman).await,
        }
    }
    // It ends with this process if it does not before.
    let _gone = api.kill().await;
    Ok(())
}

/// What is started from here on is in the group of services, not in that of the call that happened to start it.
fn enter_group() {
    // Outside of a guest there are no such groups.
    if std::fs::create_dir_all(GROUP).is_ok() {
        let _not_a_guest = std::fs::write(Path::new(GROUP).join("cgroup.procs"), "0");
    }
}

/// Starts podman's API and waits until it answers.
async fn serve(program: &Path, podman: &Podman) -> Result<Child, Error> {
    // One that was left by a process that ended hard is in the way.
    let _none = std::fs::remove_file(SOCKET);
    // Bounded by what podman says between two starts, which is little.
    let log = Path::new(LOG);
    let said = std::fs::File::create(log).map_err(Error::file("write", log))?;
    let mut api = Command::new(program)
        .args(["system", "service", "--time=0"])
        .arg(format!("unix://{SOCKET}"))
        // Without systemd nobody would run podman's timers; see the module.
        .env("DISABLE_HC_SYSTEMD", "true")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(said)
        .kill_on_drop(true)
        .spawn()
        .map_err(|source| Error::Start {
            program: program.display().to_string(),
            source,
        })?;
    let deadline = Instant::now() + API_PATIENCE;
    let mut pause = Duration::from_millis(20);
    loop {
        if podman.ping().await.is_ok() {
            return Ok(api);
        }
        if let Ok(Some(status)) = api.try_wait() {
            let said = std::fs::read_to_string(log).unwrap_or_default();
            let said = said.trim_end();
            return Err(Error::NoApi(format!("podman ended with {status}: {said}")));
        }
        if Instant::now() >= deadline {
            return Err(Error::NoApi("podman does not answer".to_owned()));
        }
        sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(500));
    }
}

/// When the health of which container is checked next.
#[derive(Debug, Default)]
struct Checks {
    due: HashMap<String, Check>,
    running: JoinSet<String>,
}

#[derive(Debug)]
struct Check {
    /// `None` for a container that has no check.
    every: Option<Duration>,
    next: Instant,
    /// Whether one is running.
    busy: bool,
}

impl Checks {
    /// Starts the checks that are due. An API that does not answer now does later.
    async fn look(&mut self, podman: &Podman) {
        while let Some(ended) = self.running.try_join_next() {
            if let Ok(id) = ended
                && let Some(check) = self.due.get_mut(&id)
            {
                check.busy = false;
                check.next = Instant::now() + check.every.unwrap_or(LOOK_EVERY);
            }
        }
        let Ok(listed) = podman.list(false).await else {
            return;
        };
        self.due
            .retain(|id, _| listed.iter().any(|it| it.id == *id));
        for container in &listed {
            if !self.due.contains_key(&container.id) {
                let Ok(shown) = podman.inspect(&container.id).await else {
                    continue;
                };
                let check = Check {
                    every: shown.check_interval(),
                    next: Instant::now(),
                    busy: false,
                };
                self.due.insert(container.id.clone(), check);
            }
            self.start_if_due(&container.id, container.is_running(), podman);
        }
    }

    fn start_if_due(&mut self, id: &str, is_running: bool, podman: &Podman) {
        let Some(check) = self.due.get_mut(id) else {
            return;
        };
        if check.every.is_none() || check.busy || !is_running || check.next > Instant::now() {
            return;
        }
        check.busy = true;
        let (podman, id) = (podman.clone(), id.to_owned());
        self.running.spawn(async move {
            // The verdict is podman's to keep; a check that cannot be run comes again.
            let _told_elsewhere = podman.check_health(&id, CHECK_LIMIT).await;
            id
        });
    }
}
