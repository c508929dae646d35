//! What can go wrong when a control plane calls a host agent, classified once.
//!
//! Callers branch on the variant, never on text. [`HostError::is_retryable`] says whether the same
//! call may be repeated as it is.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use http::StatusCode;
use thiserror::Error as ThisError;

use crate::Generations;
use crate::url_policy::AgentUrl;

/// Which call failed: for messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "each variant is the route it is named after")]
pub enum Call {
    Health,
    Capacity,
    Create,
    List,
    Get,
    Delete,
    Upload,
    Exec,
    StartAgent,
    Snapshot,
    Snapshots,
    DeleteSnapshot,
    Restore,
    Fork,
    Attach,
    Pull,
    PullProgress,
    Logs,
    Failure,
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Health => "health",
            Self::Capacity => "capacity",
            Self::Create => "create",
            Self::List => "list",
            Self::Get => "get",
            Self::Delete => "delete",
            Self::Upload => "upload",
            Self::Exec => "exec",
            Self::StartAgent => "start-agent",
            Self::Snapshot => "snapshot",
            Self::Snapshots => "snapshots",
            Self::DeleteSnapshot => "delete snapshot",
            Self::Restore => "restore",
            Self::Fork => "fork",
            Self::Attach => "attach",
            Self::Pull => "artifact pull",
            Self::PullProgress => "artifact pull progress",
            Self::Logs => "logs",
            Self::Failure => "failed create",
        })
    }
}

/// A failed call.
#[derive(Debug, ThisError)]
pub enum HostError {
    /// 401: the token is not this agent's.
    #[error(
        "host agent at {agent} rejected the token: register its host again, with the token that the agent has now"
    )]
    Unauthorized {
        /// Who answered.
        agent: AgentUrl,
    },
    /// The two ends have no generation of the contract in common.
    #[error(
        "{call}: host agent at {agent} speaks generations {theirs} of the host contract and this orchestrator {}: {remedy}",
        Generations::OURS
    )]
    Generation {
        /// The call.
        call: Call,
        /// Who answered.
        agent: AgentUrl,
        /// What it speaks.
        theirs: Generations,
        /// What mends it.
        remedy: &'static str,
    },
    /// 404: no such VM (or a route that this agent does not have).
    #[error("{call}: {text}")]
    NotFound {
        /// The call.
        call: Call,
        /// The agent's reason.
        text: String,
    },
    /// 409: in the way of something that exists.
    #[error("{call}: {text}")]
    Conflict {
        /// The call.
        call: Call,
        /// The agent's reason.
        text: String,
    },
    /// 400, 411, 413 or 422: the request itself is wrong.
    #[error("{call}: {text}")]
    BadRequest {
        /// The call.
        call: Call,
        /// The agent's reason.
        text: String,
    },
    /// 503: full or busy; the agent may have said when to come back.
    #[error("{call}: host agent at {agent} is busy: {text}")]
    Busy {
        /// The call.
        call: Call,
        /// Who answered.
        agent: AgentUrl,
        /// The agent's reason.
        text: String,
        /// From `Retry-After`.
        retry_after: Option<Duration>,
    },
    /// Any other status: the agent tried and failed.
    #[error("{call}: host agent at {agent} answered {status}: {text}")]
    Agent {
        /// The call.
        call: Call,
        /// Who answered.
        agent: AgentUrl,
        /// The status.
        status: StatusCode,
        /// The agent's reason.
        text: String,
    },
    /// No connection could be made, so the agent has not seen the call.
    #[error("{call}: host agent at {agent} is unreachable{}", tls_remedy(source))]
    Unreachable {
        /// The call.
        call: Call,
        /// Who did not answer.
        agent: AgentUrl,
        /// The reason.
        #[source]
        source: reqwest::Error,
    },
    /// The call was sent and no whole answer came back: it may or may not have happened.
    #[error("{call}: no answer from the host agent at {agent}")]
    NoAnswer {
        /// The call.
        call: Call,
        /// Who did not answer.
        agent: AgentUrl,
        /// The reason.
        #[source]
        source: reqwest::Error,
    },
    /// The answer is larger than the contract allows.
    #[error("{call}: the answer of the host agent at {agent} is larger than {limit} bytes")]
    TooLarge {
        /// The call.
        call: Call,
        /// Who answered.
        agent: AgentUrl,
        /// The bound.
        limit: usize,
    },
    /// The connection was not handed over in time, or the agent answered with something else.
    #[error("{call}: the host agent at {agent} did not hand the connection over")]
    NotUpgraded {
        /// The call.
        call: Call,
        /// Who answered.
        agent: AgentUrl,
    },
    /// A stream was asked for and nothing of it came in time.
    #[error("{call}: the host agent at {agent} did not begin its answer in time")]
    Silent {
        /// The call.
        call: Call,
        /// Who did not answer.
        agent: AgentUrl,
    },
    /// A success whose body is not what the contract says.
    #[error("{call}: host agent at {agent} sent an answer that does not parse")]
    Malformed {
        /// The call.
        call: Call,
        /// Who answered.
        agent: AgentUrl,
        /// The reason.
        #[source]
        source: serde_json::Error,
    },
}

const UNTRUSTED: &str = ": its certificate is not trusted; put it, or that of who signed it, into the \
    file that ORCH_AGENT_CA names (between hosts: FC_AGENT_CA), and see that it names the \
    host of this address";
const NO_TLS: &str = ": it speaks no TLS; register its host with an http:// address, or give the agent a \
    certificate (FC_AGENT_TLS_CERT, QEMU_AGENT_TLS_CERT)";

/// What mends a handshake that failed; empty for other failures.
fn tls_remedy(error: &reqwest::Error) -> &'static str {
    let mut cause = error.source();
    while let Some(error) = cause {
        match error.downcast_ref() {
            Some(rustls::Error::InvalidCertificate(_)) => return UNTRUSTED,
            Some(rustls::Error::InvalidMessage(_)) => return NO_TLS,
            _ => cause = below(error),
        }
    }
    ""
}

/// An I/O error shows the cause of what it wraps, and not that itself.
fn below<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
    match error.downcast_ref::<std::io::Error>() {
        Some(error) => error.get_ref().map(|inner| inner as &(dyn Error + 'static)),
        None => error.source(),
    }
}

impl HostError {
    /// Whether the agent says that it has no such VM. Any other 404 may be of somebody who knows
    /// nothing of VMs: a proxy, or whoever has the host's address while it is away.
    #[must_use]
    pub fn is_no_such_vm(&self) -> bool {
        matches!(self, Self::NotFound { text, .. } if text.trim() == crate::text::VM_NOT_FOUND)
    }

    /// Whether the agent refused before doing anything, so that the same call may simply be
    /// repeated. An interrupted call ([`Self::NoAnswer`]) is not: look first what came of it.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Busy { .. } | Self::Unreachable { .. } => true,
            Self::Unauthorized { .. }
            | Self::Generation { .. }
            | Self::NotFound { .. }
            | Self::Conflict { .. }
            | Self::BadRequest { .. }
            | Self::Agent { .. }
            | Self::NoAnswer { .. }
            | Self::TooLarge { .. }
            | Self::NotUpgraded { .. }
            | Self::Silent { .. }
            | Self::Malformed { .. } => false,
        }
    }

    /// Tells which of the two is behind.
    pub(super) fn generation(call: Call, agent: &AgentUrl, theirs: Generations) -> Self {
        let remedy = if theirs.is_behind(Generations::OURS) {
            "update that host: host-agent/firecracker/fc-update.sh"
        } else {
            "update the orchestrator: ops/install-orchestrator.sh"
        };
        Self::Generation {
            call,
            agent: agent.clone(),
            theirs,
            remedy,
        }
    }

    /// Sorts a non-success answer by its status.
    pub(super) fn from_status(
        call: Call,
        agent: &AgentUrl,
        status: StatusCode,
        retry_after: Option<Duration>,
        text: String,
    ) -> Self {
        let agent = agent.clone();
        // A host agent always says why.
        let text = match text.trim() {
            "" => format!("{status} without a reason: is another program at {agent}?"),
            _ => text,
        };
        match status.as_u16() {
            401 => Self::Unauthorized { agent },
            404 => Self::NotFound { call, text },
            409 => Self::Conflict { call, text },
            400 | 411 | 413 | 422 => Self::BadRequest { call, text },
            503 => Self::Busy {
                call,
                agent,
                text,
                retry_after,
            },
            _ => Self::Agent {
                call,
                agent,
                status,
                text,
            },
        }
    }
}
