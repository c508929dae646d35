//! `fused services up`: compose brings the containers up, and here is watched how they do.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use tokio::process::Command;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use super::plan::Plan;
use super::podman::{Container, Podman};
use super::run::run;
use super::{COMPOSE_FILE, Error, MANIFEST, PROJECT, REPORTS, SOCKET, archives, find, keep};

/// How often containers are looked at while they come up.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A service that ran this long has come up. One that cannot work usually ends at once.
const STEADY: Duration = Duration::from_secs(2);
/// What compose is told beside its file. In memory, like everything that is made from the manifest.
const OVERRIDES: &str = "/run/fuse-services.yaml";

/// Brings all services up, within `limit`.
pub(super) async fn up(limit: Duration) -> Result<(), Error> {
    if !Path::new(COMPOSE_FILE).exists() {
        return Ok(());
    }
    let plan = Plan::read(Path::new(MANIFEST))?;
    let engine = find("podman")?;
    let compose = find("docker-compose")?;
    let mut watch = Watch::new(&plan)?;
    let podman = Podman::at(SOCKET);
    keep::ensure(&podman).await?;
    let mut command = Command::new(compose);
    command.args(["-f", COMPOSE_FILE]);
    if let Some(text) = plan.overrides() {
        let path = Path::new(OVERRIDES);
        std::fs::write(path, text).map_err(Error::file("write", path))?;
        command.args(["-f", OVERRIDES]);
    }
    command
        .args(["up", "-d"])
        .env("DOCKER_HOST", format!("unix://{SOCKET}"))
        .env("COMPOSE_PROJECT_NAME", PROJECT)
        // Pulling and unpacking an image may keep a call busy; the limit is ours.
        .env("COMPOSE_HTTP_TIMEOUT", limit.as_secs().to_string());
    let work = async {
        archives::load(&engine).await?;
        let outcome = watch.during(&podman, run("compose", command)).await;
        match outcome {
            Ok(()) => watch.settle(&podman).await,
            Err(error) => Err(watch.explain(&podman, error).await),
        }
    };
    let outcome = timeout(limit, work).await;
    outcome.unwrap_or(Err(Error::TimedOut(limit)))
}

/// How a service does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum Status {
    Started,
    Healthy,
    Unhealthy,
    /// By itself and with success.
    Exited,
    Failed,
}

#[derive(Debug, Serialize)]
struct Line<'a> {
    service: &'a str,
    status: Status,
    duration_ms: u64,
    exit_code: i32,
}

/// What was seen of a service.
#[derive(Debug, Default)]
struct Seen {
    id: String,
    status: Option<Status>,
    exit_code: i32,
    /// When it was first seen running.
    since: Option<Instant>,
}

impl Seen {
    /// Takes a look; the status if it is another one.
    fn update(&mut self, container: &Container, now: Instant) -> Option<Status> {
        self.exit_code = container.state.exit_code;
        let status = if container.is_running() {
            self.since.get_or_insert(now);
            match container.health() {
                "healthy" => Status::Healthy,
                "unhealthy" => Status::Unhealthy,
                _ => Status::Started,
            }
        } else if container.has_ended() {
            self.since = None;
            match container.state.exit_code {
                0 => Status::Exited,
                _ => Status::Failed,
            }
        } else {
            return None;
        };
        (self.status.replace(status) != Some(status)).then_some(status)
    }

    /// Whether it needs no more watching.
    fn is_settled(&self, now: Instant) -> bool {
        match self.status {
            Some(Status::Healthy | Status::Exited | Status::Failed) => true,
            Some(Status::Started | Status::Unhealthy) => {
                self.since.is_some_and(|since| now - since >= STEADY)
            }
            None => false,
        }
    }
}

/// Looks at the containers of the project and reports what changes.
struct Watch {
    begun: Instant,
    seen: BTreeMap<String, Seen>,
    reports: std::fs::File,
}

impl Watch {
    fn new(plan: &Plan) -> Result<Self, Error> {
        let path = Path::new(REPORTS);
        let reports = std::fs::File::create(path).map_err(Error::file("write", path))?;
        let names = plan.services.keys().cloned();
        Ok(Self {
            begun: Instant::now(),
            seen: names.map(|name| (name, Seen::default())).collect(),
            reports,
        })
    }

    /// Looks now and then while `work` is done.
    async fn during<T>(
        &mut self,
        podman: &Podman,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let mut work = std::pin::pin!(work);
        let mut looks = interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                outcome = &mut work => return outcome,
                _ = looks.tick() => {}
            }
            tokio::select! {
                outcome = &mut work => return outcome,
                // A look that fails is repeated.
                _repeated = self.look(podman) => {}
            }
        }
    }

    /// Looks until all services run steadily, or one has failed.
    async fn settle(&mut self, podman: &Podman) -> Result<(), Error> {
        let mut looks = interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            self.look(podman).await?;
            let failed = self
                .seen
                .iter()
                .find(|(_, seen)| seen.status == Some(Status::Failed));
            if let Some((name, seen)) = failed {
                return Err(Self::ended(podman, name, seen).await);
            }
            let now = Instant::now();
            if self.seen.values().all(|seen| seen.is_settled(now)) {
                return Ok(());
            }
        }
    }

    /// What is behind an error of compose's: a service that failed or is not healthy says more than compose does.
    async fn explain(&mut self, podman: &Podman, error: Error) -> Error {
        if self.look(podman).await.is_err() {
            return error;
        }
        for (name, seen) in &self.seen {
            match seen.status {
                Some(Status::Failed) => return Self::ended(podman, name, seen).await,
                Some(Status::Unhealthy) => {
                    let what = "is not healthy, and others wait for it".to_owned();
                    return Self::about(podman, name, seen, what).await;
                }
                Some(Status::Started | Status::Healthy | Status::Exited) | None => {}
            }
        }
        error
    }

    async fn ended(podman: &Podman, name: &str, seen: &Seen) -> Error {
        let what = format!(
            "ended with exit status {} when it was started",
            seen.exit_code
        );
        Self::about(podman, name, seen, what).await
    }

    async fn about(podman: &Podman, name: &str, seen: &Seen, what: String) -> Error {
        Error::Service {
            name: name.to_owned(),
            what,
            output: podman.tail(&seen.id).await.unwrap_or_default(),
        }
    }

    async fn look(&mut self, podman: &Podman) -> Result<(), Error> {
        for listed in podman.list(true).await? {
            let Some(seen) = listed.service().and_then(|name| self.seen.get_mut(name)) else {
                continue;
            };
            let container = podman.inspect(&listed.id).await?;
            seen.id.clone_from(&listed.id);
            if let Some(status) = seen.update(&container, Instant::now()) {
                let line = Line {
                    service: listed.service().unwrap_or_default(),
                    status,
                    duration_ms: u64::try_from(self.begun.elapsed().as_millis())
                        .unwrap_or(u64::MAX),
                    exit_code: container.state.exit_code,
                };
                // Losing a report is no reason to fail.
                if let Ok(text) = serde_json::to_string(&line) {
                    let _lost = writeln!(self.reports, "{text}");
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn container(status: &str, exit_code: i32, health: &str) -> Container {
        let text = format!(
            r#"{{"State":{{"Status":"{status}","ExitCode":{exit_code},"Health":{{"Status":"{health}"}}}}}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn every_change_is_reported_once() {
        let now = Instant::now();
        let mut seen = Seen::default();
        assert_eq!(seen.update(&container("created", 0, ""), now), None);
        assert_eq!(
            seen.update(&container("running", 0, "starting"), now),
            Some(Status::Started)
        );
        assert_eq!(seen.update(&container("running", 0, "starting"), now), None);
        assert!(!seen.is_settled(now));
        assert!(seen.is_settled(now + STEADY));
        assert_eq!(
            seen.update(&container("running", 0, "healthy"), now),
            Some(Status::Healthy)
        );
        assert!(seen.is_settled(now));
        assert_eq!(
            seen.update(&container("exited", 3, ""), now),
            Some(Status::Failed)
        );
        assert_eq!(
            seen.update(&container("running", 0, ""), now + STEADY),
            Some(Status::Started)
        );
        assert!(!seen.is_settled(now + STEADY), "it began anew");
    }
}
