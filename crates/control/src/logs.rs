//! What environments print: their startup script from the store, where it is kept as it comes, and
//! their console and guest agent from their host. Secret values are taken out of all of it.

use std::{collections::VecDeque, io, time::Duration};

use fuse_model::{EnvironmentId, LogTail, State, TaskId, TaskLog};
use fuse_redact::Flow;
use fuse_store::EventWatch;
use fuse_wire_host::{HostError, LogSource as HostSource, LogStream};

use crate::{
    Control, Error,
    create::Phase,
    error::{Missing, chain},
    provider::ProviderError,
};

/// Least time between two looks of a follower at what a startup script has written. It is woken by
/// whatever happens in the fleet.
const PAUSE: Duration = Duration::from_millis(250);

/// Which output of an environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogSource {
    /// Of the startup script.
    Startup,
    /// Of the guest's serial console.
    Console,
    /// Of the guest agent.
    Agent,
}

impl LogSource {
    fn name(self) -> &'static str {
        match self {
            Self::Startup => "startup output",
            Self::Console => "console output",
            Self::Agent => "log of its guest agent",
        }
    }
}

/// An output that is being read.
#[derive(Debug)]
pub struct Logs {
    control: Control,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Startup(Startup),
    Host(Box<FromHost>),
}

impl Control {
    /// Reads an output of an environment that is there; a follower also gets what comes.
    ///
    /// # Errors
    /// It does not exist, has no guest, or its host or guest cannot say.
    pub async fn environment_logs(
        &self,
        id: &EnvironmentId,
        source: LogSource,
        phase: Option<Phase>,
        follow: bool,
    ) -> Result<Logs, Error> {
        let record = self.environment_get(id).await?;
        let source = match source {
            LogSource::Console => HostSource::Console,
            LogSource::Agent => HostSource::Agent,
            LogSource::Startup => {
                return Ok(Logs {
                    control: self.clone(),
                    kind: Kind::Startup(Startup {
                        watch: self.inner.store.event_watch(),
                        environment: record.id,
                        task: record.task_id,
                        phase,
                        follow,
                        build: 0,
                        run: 0,
                        pending: VecDeque::new(),
                        over: false,
                    }),
                });
            }
        };
        let (_, provider) = self.inner.providers.of(record.host_id.as_ref()).await?;
        let stream = provider
            .logs(id, source, follow)
            .await
            .map_err(|e| refused(id, e))?;
        let redactor = self.redactor_of(id).await;
        Ok(Logs {
            control: self.clone(),
            kind: Kind::Host(Box::new(FromHost {
                stream,
                flow: Flow::new(redactor),
                over: false,
            })),
        })
    }

    /// An output of a task whose environment is perhaps gone: of the startup script, or what was
    /// kept of a create that failed.
    ///
    /// # Errors
    /// There is no such task, it is kept from the caller, or nothing was kept.
    pub async fn task_logs(
        &self,
        id: &TaskId,
        caller: &str,
        source: LogSource,
        phase: Option<Phase>,
    ) -> Result<String, Error> {
        let details = self.task_get(id, caller).await?;
        let kept = match source {
            LogSource::Startup => {
                let log = self.inner.store.task_log(id).await?;
                Some(match (log, details.output) {
                    (Some(log), _) => text_of(log, phase),
                    // Of before phases were told apart.
                    (None, Some(output)) => output.stdout + &output.stderr,
                    (None, None) => String::new(),
                })
            }
            LogSource::Console => details.failure.map(|failure| failure.console),
            LogSource::Agent => details.failure.map(|failure| failure.agent),
        };
        let missing = || Missing::Output {
            task: id.clone(),
            what: source.name(),
        };
        Ok(kept.ok_or_else(missing)?)
    }
}

fn text_of(log: TaskLog, phase: Option<Phase>) -> String {
    match phase {
        Some(Phase::Build) => log.build.text,
        Some(Phase::Run) => log.run.text,
        None => log.build.text + &log.run.text,
    }
}

impl Logs {
    /// The next text; `None` at the end.
    ///
    /// # Errors
    /// The output ends early: the store or the host does not answer any more.
    pub async fn next(&mut self) -> Result<Option<String>, io::Error> {
        match &mut self.kind {
            Kind::Startup(startup) => startup.next(&self.control).await.map_err(cut),
            Kind::Host(host) => host.next(&self.control).await.map_err(cut),
        }
    }
}

fn cut(error: Error) -> io::Error {
    tracing::debug!(error = %chain(&error), "an output is cut short");
    io::Error::other(error)
}

/// The output of a startup script, of which this much was read.
#[derive(Debug)]
struct Startup {
    watch: EventWatch,
    environment: EnvironmentId,
    task: Option<TaskId>,
    phase: Option<Phase>,
    follow: bool,
    build: u64,
    run: u64,
    pending: VecDeque<String>,
    over: bool,
}

impl Startup {
    async fn next(&mut self, control: &Control) -> Result<Option<String>, Error> {
        // A record that is being destroyed has lost its task.
        let Some(task) = self.task.clone() else {
            return Ok(None);
        };
        loop {
            if let Some(text) = self.pending.pop_front() {
                return Ok(Some(text));
            }
            if self.over {
                return Ok(None);
            }
            // Asked for before the output is read, so that nothing comes behind it.
            let goes_on = self.follow && self.goes_on(control).await?;
            let log = control.inner.store.task_log(&task).await?;
            self.over = !goes_on || log.as_ref().is_some_and(|log| log.ended);
            if let Some(log) = log {
                self.take(&log);
            }
            if self.pending.is_empty() && !self.over {
                tokio::select! {
                    is_open = self.news() => self.over = !is_open,
                    () = control.stopping() => self.over = true,
                }
            }
        }
    }

    /// Waits until there may be more; `false`: there will not.
    async fn news(&mut self) -> bool {
        tokio::time::sleep(PAUSE).await;
        self.watch.changed().await
    }

    /// A script runs while its environment is being made.
    async fn goes_on(&self, control: &Control) -> Result<bool, Error> {
        let record = control
            .inner
            .store
            .environment_get(&self.environment)
            .await?;
        Ok(record.is_some_and(|record| record.state == State::Provisioning))
    }

    fn take(&mut self, log: &TaskLog) {
        let wanted = |phase| self.phase.is_none_or(|only| only == phase);
        if wanted(Phase::Build) {
            self.pending.extend(beyond(&log.build, &mut self.build));
        }
        if wanted(Phase::Run) {
            self.pending.extend(beyond(&log.run, &mut self.run));
        }
    }
}

/// What a tail holds beyond what was read; all of it when that was dropped.
fn beyond(tail: &LogTail, read: &mut u64) -> Option<String> {
    let new = usize::try_from(tail.written.saturating_sub(*read)).unwrap_or(usize::MAX);
    *read = tail.written;
    let from = tail.text.len().saturating_sub(new);
    tail.text
        .get(from..)
        .filter(|text| !text.is_empty())
        .map(str::to_owned)
}

/// What a host hands over.
#[derive(Debug)]
struct FromHost {
    stream: LogStream,
    flow: Flow,
    over: bool,
}

impl FromHost {
    async fn next(&mut self, control: &Control) -> Result<Option<String>, Error> {
        while !self.over {
            let chunk = tokio::select! {
                chunk = self.stream.chunk() => chunk,
                () = control.stopping() => Ok(None),
            };
            let text = match chunk.map_err(failed)? {
                Some(bytes) => self.flow.push(&bytes),
                None => {
                    self.over = true;
                    self.flow.finish()
                }
            };
            if !text.is_empty() {
                return Ok(Some(text));
            }
        }
        Ok(None)
    }
}

fn failed(source: HostError) -> Error {
    Error::Provider {
        operation: "logs",
        source: source.into(),
    }
}

fn refused(id: &EnvironmentId, source: ProviderError) -> Error {
    match source {
        ProviderError::Host(HostError::NotFound { .. }) => {
            Error::Stopped(format!("the host of vm {id} does not have it"))
        }
        ProviderError::Host(HostError::Conflict { text, .. }) => Error::Stopped(text),
        source => Error::Provider {
            operation: "logs",
            source,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_follower_gets_what_is_new() {
        let tail = |text: &str, written| LogTail {
            text: text.to_owned(),
            written,
        };
        let mut read = 0;
        assert_eq!(beyond(&tail("ab", 2), &mut read).as_deref(), Some("ab"));
        assert_eq!(beyond(&tail("ab", 2), &mut read), None);
        assert_eq!(beyond(&tail("abcd", 4), &mut read).as_deref(), Some("cd"));
        // More was written than is kept: what is kept is all there is.
        assert_eq!(beyond(&tail("xyz", 100), &mut read).as_deref(), Some("xyz"));
        assert_eq!(read, 100);
    }
}
