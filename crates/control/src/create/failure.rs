//! How bringing an environment up fails, and what the caller is told.

use std::{collections::BTreeMap, time::Duration};

use fuse_model::{EnvironmentId, ErrorKind};
use fuse_redact::Redactor;
use fuse_wire_host::HostError;

use crate::{
    error::chain,
    guest::CredentialError,
    provider::{LookupError, ProviderError},
};

/// Exit status that a compiled script reserves for its build phase.
const BUILD_STATUS: i32 = 90;
/// Most of a script's standard error that stands in a message (bytes).
const STDERR_TAIL: usize = 4096;
/// Most of any other failure's text, which may be a host's (bytes).
const TEXT_LIMIT: usize = 8192;

/// Which part of a startup script failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// The build steps.
    Build,
    /// What follows them.
    Run,
}

impl Phase {
    fn of(exit_code: i32) -> Self {
        if exit_code == BUILD_STATUS {
            Self::Build
        } else {
            Self::Run
        }
    }

    /// The name in `details.phase`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Build => "build",
            Self::Run => "run",
        }
    }
}

/// A failed create as it is told, stored and published: secret values are gone.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct CreateFailure {
    /// Decides on status and code.
    pub kind: ErrorKind,
    /// What happened.
    pub message: String,
    /// `exit_code` and `phase` of a failed script.
    pub details: BTreeMap<String, String>,
}

/// A failed step, before redaction. Never leaves this module tree.
#[derive(Debug, thiserror::Error)]
pub(super) enum BootError {
    #[error("cannot reach the backend")]
    Lookup(#[source] LookupError),
    #[error("egress through a proxy is not supported by provider")]
    Egress,
    #[error("cannot make guest credentials")]
    Credentials(#[source] CredentialError),
    /// The text of a refusal is the contract's.
    #[error("{0}")]
    Seed(Box<crate::Error>),
    #[error("cannot boot the vm")]
    Boot(#[source] ProviderError),
    #[error("cannot write files into the guest")]
    Upload(#[source] ProviderError),
    #[error("cannot run the startup script")]
    Script(#[source] ProviderError),
    #[error("startup script did not complete in time after {limit:?}")]
    ScriptTimeout {
        limit: Duration,
        exit_code: i32,
        stderr: String,
    },
    #[error("startup script exited with status {exit_code}")]
    ScriptExit { exit_code: i32, stderr: String },
    #[error("the connection to the startup script broke before the script ended")]
    ScriptCut,
    /// The text is what the guest agent says of it.
    #[error("services did not come up")]
    Services { said: String },
    #[error("cannot bring services up")]
    ServicesCall(#[source] ProviderError),
    #[error("the connection to the guest broke before the services were up")]
    ServicesCut,
    #[error("cannot start the guest agent")]
    StartAgent(#[source] ProviderError),
    #[error("drain command: {0}")]
    Drain(String),
    #[error("vm {0} was taken over by another operation while it was being moved")]
    SourceGone(EnvironmentId),
    #[error("it was destroyed while it was being created")]
    TakenOver,
}

impl BootError {
    /// The failed step, for logs.
    pub(super) fn step(&self) -> &'static str {
        match self {
            Self::Lookup(_) => "lookup",
            Self::Egress => "egress",
            Self::Credentials(_) => "credentials",
            Self::Seed(_) => "snapshot",
            Self::Boot(_) => "boot",
            Self::Upload(_) => "upload",
            Self::Script(_)
            | Self::ScriptTimeout { .. }
            | Self::ScriptExit { .. }
            | Self::ScriptCut => "script",
            Self::Services { .. } | Self::ServicesCall(_) | Self::ServicesCut => "services",
            Self::StartAgent(_) => "start-agent",
            Self::Drain(_) => "drain",
            Self::SourceGone(_) => "source",
            Self::TakenOver => "taken-over",
        }
    }

    /// Whether there may be a VM of ours on the host. A refused create made none, and
    /// what is in its way under the same name belongs to somebody else.
    pub(super) fn may_have_made_a_vm(&self) -> bool {
        match self {
            Self::Lookup(_)
            | Self::Egress
            | Self::Seed(_)
            | Self::Drain(_)
            | Self::TakenOver
            | Self::Boot(ProviderError::Unsupported { .. }) => false,
            Self::Boot(ProviderError::Host(e)) => !matches!(
                e,
                HostError::Conflict { .. }
                    | HostError::BadRequest { .. }
                    | HostError::Unauthorized { .. }
                    | HostError::Generation { .. }
                    | HostError::Busy { .. }
                    | HostError::Unreachable { .. }
            ),
            Self::Credentials(_)
            | Self::Upload(_)
            | Self::Script(_)
            | Self::ScriptTimeout { .. }
            | Self::ScriptExit { .. }
            | Self::ScriptCut
            | Self::Services { .. }
            | Self::ServicesCall(_)
            | Self::ServicesCut
            | Self::StartAgent(_)
            | Self::SourceGone(_) => true,
        }
    }

    fn kind(&self) -> ErrorKind {
        match self {
            Self::Lookup(e) => e.kind(),
            Self::Seed(e) => e.kind(),
            Self::Egress => ErrorKind::Unsupported,
            Self::ScriptTimeout { .. } | Self::ScriptExit { .. } | Self::Services { .. } => {
                ErrorKind::Invalid
            }
            Self::SourceGone(_) | Self::TakenOver => ErrorKind::Conflict,
            Self::Boot(e)
            | Self::Upload(e)
            | Self::Script(e)
            | Self::ServicesCall(e)
            | Self::StartAgent(e) => e.kind(),
            Self::Credentials(_) | Self::ScriptCut | Self::ServicesCut | Self::Drain(_) => {
                ErrorKind::Internal
            }
        }
    }

    /// What the caller may see.
    pub(super) fn redacted(&self, vm: &EnvironmentId, redactor: &Redactor) -> CreateFailure {
        let mut details = BTreeMap::new();
        let message = match self {
            Self::ScriptExit { exit_code, stderr } => {
                let phase = Phase::of(*exit_code);
                details.insert("exit_code".to_owned(), exit_code.to_string());
                details.insert("phase".to_owned(), phase.as_str().to_owned());
                with_tail(
                    &format!(
                        "startup script failed in the {} phase with exit status {exit_code}",
                        phase.as_str()
                    ),
                    stderr,
                    redactor,
                )
            }
            Self::Services { said } => with_tail(&self.to_string(), said, redactor),
            Self::ScriptTimeout { stderr, .. } => with_tail(&self.to_string(), stderr, redactor),
            Self::TakenOver => format!("vm {vm} was destroyed while it was being created"),
            Self::Lookup(e @ LookupError::Store(_)) => e.to_string(),
            Self::Lookup(_)
            | Self::Egress
            | Self::Seed(_)
            | Self::Drain(_)
            | Self::SourceGone(_)
            | Self::Credentials(_)
            | Self::Boot(_)
            | Self::Upload(_)
            | Self::Script(_)
            | Self::ScriptCut
            | Self::ServicesCall(_)
            | Self::ServicesCut
            | Self::StartAgent(_) => redactor.clean_head(&chain(self), TEXT_LIMIT),
        };
        CreateFailure {
            kind: self.kind(),
            message,
            details,
        }
    }
}

fn with_tail(text: &str, stderr: &str, redactor: &Redactor) -> String {
    let tail = redactor.clean_tail(stderr.as_bytes(), STDERR_TAIL);
    match tail.trim_end() {
        "" => text.to_owned(),
        tail => format!("{text}: {tail}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redacted(error: &BootError) -> CreateFailure {
        error.redacted(
            &EnvironmentId::new("fuse-a"),
            &Redactor::new(["hunter2hunter2"]),
        )
    }

    #[test]
    fn what_a_store_says_that_does_not_answer_is_for_the_log() {
        let store = fuse_store::StoreError::Overloaded;
        assert_eq!(store.kind(), ErrorKind::Unavailable);
        let told = redacted(&BootError::Lookup(LookupError::Store(store)));
        assert_eq!(
            (told.kind, told.message.as_str()),
            (
                ErrorKind::Unavailable,
                "the state store does not answer, try again in a moment"
            )
        );
    }

    #[test]
    fn a_failed_script_tells_phase_status_and_tail() {
        let run = redacted(&BootError::ScriptExit {
            exit_code: 3,
            stderr: "no hunter2hunter2 here\n".to_owned(),
        });
        assert_eq!(run.kind, ErrorKind::Invalid);
        assert_eq!(
            run.message,
            "startup script failed in the run phase with exit status 3: no [REDACTED] here"
        );
        assert_eq!(run.details["exit_code"], "3");
        let build = redacted(&BootError::ScriptExit {
            exit_code: 90,
            stderr: String::new(),
        });
        assert_eq!(build.details["phase"], "build");
    }

    #[test]
    fn services_that_do_not_come_up_say_why() {
        let failure = redacted(&BootError::Services {
            said: "service db ended with exit status 1: hunter2hunter2".to_owned(),
        });
        assert_eq!(failure.kind, ErrorKind::Invalid);
        assert_eq!(
            failure.message,
            "services did not come up: service db ended with exit status 1: [REDACTED]"
        );
    }

    #[test]
    fn the_tail_is_bounded() {
        let stderr = "x".repeat(10_000);
        let failure = redacted(&BootError::ScriptExit {
            exit_code: 1,
            stderr,
        });
        assert!(failure.message.len() < STDERR_TAIL + 200);
    }

    #[test]
    fn a_script_that_ran_out_of_time_keeps_the_contract_prefix() {
        let limit = Duration::from_secs(30);
        let failure = redacted(&BootError::ScriptTimeout {
            limit,
            exit_code: 124,
            stderr: "slow".to_owned(),
        });
        assert_eq!(
            failure.message,
            "startup script did not complete in time after 30s: slow"
        );
        assert_eq!(failure.kind, ErrorKind::Invalid);
    }
}
