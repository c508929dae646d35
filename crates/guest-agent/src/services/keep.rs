//! `fused services keep`: what a service manager would do for podman.
//!
//! Listens on the socket of podman's API and hands it to podman, starts that again when it ends, and runs the containers'
//! health checks when they are due: podman itself only knows how to ask systemd for that. Whoever calls while podman
//! starts, which takes it seconds in a slow guest, waits for it instead of being refused.

use std::collections::HashMap;
use std::fs::Permissions;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
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
/// Gives podman the socket as services get theirs (`sd_listen_fds`): as descriptor 3, with the number of the process
/// that it is meant for, which before podman runs only a shell can name.
const HAND_OVER: &str = "export LISTEN_FDS=1 LISTEN_PID=$$; \
    exec \"$0\" system service --time=0 3<&0 0</dev/null";
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
    let socket = listen(Path::new(SOCKET))?;
    let on = |kind| {
        signal(kind).map_err(|source| Error::Start {
            program: "the keeper of services".to_owned(),
            source,
        })
    };
    let (mut term, mut interrupt) = (on(SignalKind::terminate())?, on(SignalKind::interrupt())?);
    let serve = || serve(&program, &socket, &podman, Path::new(LOG));
    let mut api = serve().await?;
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
                if let Ok(again) = serve().await {
                    api = again;
                }
            }
            // Given up when podman ends: its calls would wait for the next one.
            () = async { looks.tick().await; checks.look(&podman).await } => {}
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

/// The socket that podman is to serve on, for root only.
fn listen(path: &Path) -> Result<UnixListener, Error> {
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir).map_err(Error::file("make", dir))?;
    }
    // One that was left by a process that ended hard is in the way.
    let _none = std::fs::remove_file(path);
    let socket = UnixListener::bind(path).map_err(Error::file("listen on", path))?;
    let private = std::fs::set_permissions(path, Permissions::from_mode(0o600));
    private.map_err(Error::file("protect", path))?;
    Ok(socket)
}

/// Starts podman's API and waits until it answers.
async fn serve(
    program: &Path,
    socket: &UnixListener,
    podman: &Podman,
    log: &Path,
) -> Result<Child, Error> {
    // Bounded by what podman says between two starts, which is little.
    let said = std::fs::File::create(log).map_err(Error::file("write", log))?;
    let failed = |source| Error::Start {
        program: program.display().to_string(),
        source,
    };
    let socket = OwnedFd::from(socket.try_clone().map_err(failed)?);
    let mut api = Command::new("/bin/sh")
        .args(["-c", HAND_OVER])
        .arg(program)
        // Without systemd nobody would run podman's timers; see the module.
        .env("DISABLE_HC_SYSTEMD", "true")
        .stdin(socket)
        .stdout(Stdio::null())
        .stderr(said)
        .kill_on_drop(true)
        .spawn()
        .map_err(failed)?;
    // The call is in the socket's queue until podman serves.
    let answer = tokio::select! {
        biased;
        answer = timeout(API_PATIENCE, podman.ping()) => answer,
        ended = api.wait() => {
            let status = ended.map_or_else(|e| e.to_string(), |status| status.to_string());
            let said = std::fs::read_to_string(log).unwrap_or_default();
            let said = said.trim_end();
            return Err(Error::NoApi(format!("podman ended with {status}: {said}")));
        }
    };
    match answer {
        Ok(Ok(())) => Ok(api),
        Ok(Err(error)) => Err(Error::NoApi(error.to_string())),
        Err(_) => Err(Error::NoApi("podman does not answer".to_owned())),
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

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};

    use super::*;

    /// Runs `serve` for what stands for podman, a script.
    async fn serve_by(dir: &Path, socket: &UnixListener, script: &str) -> Result<Child, Error> {
        let program = dir.join("podman");
        std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
        let podman = Podman::at(dir.join("sock").to_str().unwrap());
        serve(&program, socket, &podman, &dir.join("log")).await
    }

    #[tokio::test]
    async fn podman_is_given_a_socket_that_calls_wait_in() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        std::fs::write(dir.join("sock"), "left by another").unwrap();
        let socket = listen(&dir.join("sock")).unwrap();
        let mode = std::fs::metadata(dir.join("sock")).unwrap().permissions();
        assert_eq!(mode.mode() & 0o777, 0o600);
        // As podman would, once it has seen that it is meant.
        let accepting = socket.try_clone().unwrap();
        let told = dir.join("told");
        let answering = std::thread::spawn(move || {
            while std::fs::read_to_string(&told)
                .unwrap_or_default()
                .is_empty()
            {
                std::thread::sleep(Duration::from_millis(1));
            }
            let (mut caller, _) = accepting.accept().unwrap();
            let asked = caller.read(&mut [0; 1024]).unwrap();
            assert!(asked > 0);
            let answer = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nOK";
            caller.write_all(answer.as_bytes()).unwrap();
        });
        let script = format!(
            "[ $LISTEN_PID = $$ ] && [ -S /proc/self/fd/3 ] && [ ! -S /proc/self/fd/0 ] && \
             echo \"$LISTEN_FDS $*\" >{}; exec sleep 600",
            dir.join("told").display()
        );
        let mut api = serve_by(dir, &socket, &script).await.unwrap();
        answering.join().unwrap();
        let told = std::fs::read_to_string(dir.join("told")).unwrap();
        assert_eq!(told, "1 system service --time=0\n");
        // The reaper of another test may be faster.
        let _gone = api.kill().await;
    }

    #[tokio::test]
    async fn podman_that_ends_is_quoted_though_its_socket_takes_calls() {
        let dir = tempfile::tempdir().unwrap();
        let socket = listen(&dir.path().join("sock")).unwrap();
        let ended = serve_by(dir.path(), &socket, "echo no store here >&2; exit 3").await;
        let said = ended.unwrap_err().to_string();
        assert!(said.ends_with(": no store here"), "{said}");
    }
}
