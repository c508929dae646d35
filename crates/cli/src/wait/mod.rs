//! Following an environment's events to a state, and what it means when the events end.
//!
//! Callers: `environment watch`, `environment create`, `up`, `build`.

mod keys;
mod live;
mod output;
mod standing;
mod view;

use std::time::Instant;

use fuse_client::{Client, EventStream};
use fuse_wire_api::{Event, KIND_SERVICE, KIND_STATE, KIND_STEP};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::error::Error as CliError;
use crate::render::api::startup_hint;
pub(crate) use standing::Standing;
pub(crate) use view::View;

/// Runs something until it ends, or until Ctrl-C or a termination signal: then `None`.
pub(crate) async fn interruptible<T>(work: impl Future<Output = T>) -> Result<Option<T>, CliError> {
    Signals::new()?.or(work).await
}

/// The signals that end the program. From the first of these on they do not end it any more: somebody has
/// to ask for them.
#[derive(Debug)]
pub(crate) struct Signals([Signal; 3]);

impl Signals {
    /// Those from now on.
    pub(crate) fn new() -> Result<Self, CliError> {
        let on = |kind| signal(kind).map_err(CliError::Runtime);
        Ok(Self([
            on(SignalKind::interrupt())?,
            on(SignalKind::terminate())?,
            on(SignalKind::hangup())?,
        ]))
    }

    /// Runs something until it ends, or until a signal came: then `None`. One that came before counts.
    pub(crate) async fn or<T>(
        &mut self,
        work: impl Future<Output = T>,
    ) -> Result<Option<T>, CliError> {
        tokio::select! {
            biased;
            () = self.any() => Ok(None),
            outcome = work => Ok(Some(outcome)),
        }
    }

    /// Resolves with the first of them.
    ///
    /// # Cancel safety
    /// A signal that came is seen by the next call.
    async fn any(&mut self) {
        let [interrupt, terminate, hangup] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}

/// When to stop following.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Until {
    /// At `running`, or at the end of the environment.
    Running,
    /// At the end of the environment.
    Terminal,
}

/// How following came to its end.
#[derive(Debug)]
pub(crate) enum End {
    /// The state waited for, or a terminal one, was reported.
    Reached(Event),
    /// The events ended without that; the last state event, if there was one.
    Ended(Option<Event>),
    /// The user pressed `q` or Esc.
    Left,
    /// Ctrl-C or a termination signal.
    Interrupted,
}

/// A wait that did not end well.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The create failed.
    #[error(
        "environment {id} failed to provision{}{}",
        after_colon(cause),
        hint(cause)
    )]
    Failed {
        /// The environment.
        id: String,
        /// What the server said, possibly nothing.
        cause: String,
    },
    /// Somebody destroyed it.
    #[error(
        "environment {id} was destroyed before it was ready{}",
        after_colon(cause)
    )]
    Destroyed {
        /// The environment.
        id: String,
        /// What the server said, possibly nothing.
        cause: String,
    },
    /// Not even the first event came.
    #[error(
        "the event stream of {id} ended with no events; `fuse environment get {id}` shows its state"
    )]
    NoEvents {
        /// The environment.
        id: String,
    },
    /// The stream ended on the way.
    #[error(
        "the event stream ended while {id} was {state}; `fuse environment get {id}` shows its state now"
    )]
    EndedIn {
        /// The environment.
        id: String,
        /// Its last known state.
        state: String,
    },
    /// The user stopped waiting; nothing happened to the environment.
    #[error(
        "stopped watching; environment {id} is still provisioning (`fuse environment watch {id}`)"
    )]
    Left {
        /// The environment.
        id: String,
    },
    /// The same, by a signal.
    #[error("interrupted; environment {id} is still provisioning (`fuse environment watch {id}`)")]
    Interrupted {
        /// The environment.
        id: String,
    },
}

fn after_colon(cause: &str) -> String {
    if cause.is_empty() {
        String::new()
    } else {
        format!(": {cause}")
    }
}

/// What to do about it, when that is known; on a line of its own.
fn hint(cause: &str) -> String {
    startup_hint(cause).map_or(String::new(), |hint| format!("\n  {hint}"))
}

impl Error {
    /// The stable word for programs.
    pub(crate) fn code(&self) -> &'static str {
        match self {
            Self::Failed { .. } => "provision_failed",
            Self::Destroyed { .. } => "destroyed",
            Self::NoEvents { .. } | Self::EndedIn { .. } => "stream_ended",
            Self::Left { .. } | Self::Interrupted { .. } => "interrupted",
        }
    }
}

/// Follows events until the state, showing them on the way.
pub(crate) async fn follow(
    events: &mut EventStream,
    until: Until,
    view: &mut View,
    signals: &mut Signals,
) -> Result<End, CliError> {
    let started = Instant::now();
    let mut last = None;
    let end = loop {
        let next = tokio::select! {
            next = events.next() => next,
            () = view.left() => break End::Left,
            () = signals.any() => break End::Interrupted,
        };
        let event = match next {
            Ok(Some(event)) => event,
            Ok(None) => break End::Ended(last),
            Err(error) => {
                view.failed(&error.to_string());
                return Err(error.into());
            }
        };
        if event.event == KIND_STEP {
            view.step(event)?;
            continue;
        }
        view.show(&event)?;
        if event.event == KIND_STATE {
            if event.is_terminal() || (until == Until::Running && event.state == "running") {
                break End::Reached(event);
            }
            last = Some(event);
        } else if event.event == KIND_SERVICE {
            view.service(&event)?;
        }
    };
    let goes_on = matches!(&end, End::Reached(event) if event.state == "running" && view.goes_on());
    if !goes_on {
        let done = matches!(end, End::Reached(_) | End::Ended(_));
        view.finish(started.elapsed(), done)?;
    }
    Ok(end)
}

/// Judges the end of a wait for `running`.
pub(crate) fn judge(id: &str, end: End) -> Result<(), Error> {
    let id = id.to_owned();
    match end {
        End::Reached(event) => match event.state.as_str() {
            "running" => Ok(()),
            "failed" => Err(Error::Failed {
                id,
                cause: event.error,
            }),
            _ => Err(Error::Destroyed {
                id,
                cause: event.error,
            }),
        },
        End::Ended(None) => Err(Error::NoEvents { id }),
        End::Ended(Some(event)) => Err(Error::EndedIn {
            id,
            state: event.state,
        }),
        End::Left => Err(Error::Left { id }),
        End::Interrupted => Err(Error::Interrupted { id }),
    }
}

/// Waits for `running`. When it fails, the cause is completed from the task's record, which outlives
/// the environment: its error, and the end of what the startup script wrote to stderr.
pub(crate) async fn until_running(
    client: &Client,
    id: &str,
    task_id: &str,
    view: &mut View,
    signals: &mut Signals,
) -> Result<(), CliError> {
    view.follow_output(client);
    let outcome = match client.events(id).await {
        Ok(mut events) => judge(
            id,
            follow(&mut events, Until::Running, view, signals).await?,
        ),
        // It failed so soon that the record is gone already.
        Err(error) if error.is_not_found() => Err(Error::NoEvents { id: id.to_owned() }),
        Err(error) => return Err(error.into()),
    };
    let Err(mut error) = outcome else {
        return Ok(());
    };
    if let Error::NoEvents { .. } | Error::EndedIn { .. } | Error::Failed { .. } = &error
        && let Ok(task) = client.task(task_id).await
        && task.vm_id == id
        && task.run_status == "failed"
    {
        let mut cause = match &error {
            Error::Failed { cause, .. } if !cause.is_empty() => cause.clone(),
            _ => task.last_error,
        };
        let written = task.output.map(|output| output.stderr).unwrap_or_default();
        let tail = tail(&written);
        if !tail.is_empty() && !cause.contains(tail) {
            cause = format!("{cause}\n{tail}");
        }
        error = Error::Failed {
            id: id.to_owned(),
            cause,
        };
    }
    Err(error.into())
}

/// The last lines of an output, short enough for an error message.
pub(crate) fn tail(text: &str) -> &str {
    const LINES: usize = 20;
    let text = text.trim_end();
    let start = text
        .rmatch_indices('\n')
        .nth(LINES - 1)
        .map_or(0, |(at, _)| at + 1);
    &text[start..]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(state: &str, error: &str) -> Event {
        let at = "2026-01-15T10:00:00Z".parse().unwrap();
        let mut event = Event::state("1".into(), "fuse-a".into(), state, at);
        event.error = error.into();
        event
    }

    #[test]
    fn outcomes() {
        let text = |end| judge("fuse-a", end).map_err(|error| error.to_string());
        assert_eq!(text(End::Reached(event("running", ""))), Ok(()));
        assert_eq!(
            text(End::Reached(event("failed", "boot timed out"))).unwrap_err(),
            "environment fuse-a failed to provision: boot timed out"
        );
        assert_eq!(
            text(End::Reached(event("destroyed", ""))).unwrap_err(),
            "environment fuse-a was destroyed before it was ready"
        );
        assert!(text(End::Ended(None)).unwrap_err().contains("no events"));
        assert!(
            text(End::Ended(Some(event("provisioning", ""))))
                .unwrap_err()
                .contains("provisioning")
        );
        assert!(text(End::Left).unwrap_err().starts_with("stopped watching"));
    }

    #[test]
    fn tails() {
        assert_eq!(tail(""), "");
        assert_eq!(tail("a\nb\n"), "a\nb");
        let many: Vec<_> = (1..=30).map(|n| n.to_string()).collect();
        assert_eq!(tail(&many.join("\n")), many[10..].join("\n"));
    }
}
