//! Moving artifacts: what the control plane asks of agents, and what one agent asks of another.

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_RANGE, RANGE};
use http::{HeaderMap, Method, StatusCode};
use thiserror::Error;

use super::calls::{HostClient, Plan};
use super::error::{Call, HostError};
use super::transport::HostTransport;
use crate::artifact::{
    BASE_GRANT_HEADER, BASE_HEADER, DIGEST_HEADER, GRANT_HEADER, Pull, PullAnswer, PullRequest,
    is_digest,
};
use crate::grant::{GRANT_TTL, Grant, MintError};
use crate::limits;
use crate::url_policy::AgentUrl;

/// Most bytes of a refusal that are read.
const REASON_BYTES: usize = 1024;

impl HostClient {
    /// A grant for one artifact of this agent, signed with its token.
    ///
    /// # Errors
    /// The agent has no token, or `digest` is none.
    pub fn grant(&self, digest: &str) -> Result<Grant, MintError> {
        Grant::mint(self.token(), digest, GRANT_TTL)
    }

    /// `POST /v1/artifacts/{digest}/pull`. An agent that knows the asynchronous form answers at
    /// once if it is asked to; another one when the bytes are there.
    ///
    /// # Errors
    /// See [`HostError`]; [`HostError::Conflict`] when the id is something else's.
    pub async fn pull_artifact(
        &self,
        digest: &str,
        request: &PullRequest,
    ) -> Result<PullAnswer, HostError> {
        let path = ["v1", "artifacts", digest, "pull"];
        let plan = Plan::new(Call::Pull, Method::POST, &path, limits::ARTIFACT_TRANSFER);
        self.send_json(plan, request).await
    }

    /// `GET /v1/artifacts/pulls/{pull_id}`.
    ///
    /// # Errors
    /// See [`HostError`]; [`HostError::NotFound`] when the agent was started since it began.
    pub async fn artifact_pull(&self, pull_id: &str) -> Result<Pull, HostError> {
        let path = ["v1", "artifacts", "pulls", pull_id];
        let plan = Plan::new(Call::PullProgress, Method::GET, &path, limits::READ_LIMIT);
        self.get_json(plan).await
    }
}

/// An artifact could not be fetched.
#[derive(Debug, Error)]
pub enum FetchError {
    /// The peer refused.
    #[error("{peer} answered {status}: {reason}")]
    Refused {
        /// Who.
        peer: AgentUrl,
        /// How.
        status: StatusCode,
        /// What it said.
        reason: String,
    },
    /// The answer is not what the contract says.
    #[error("{peer} sent {what}")]
    Malformed {
        /// Who.
        peer: AgentUrl,
        /// What is wrong.
        what: &'static str,
    },
    /// The connection failed or was cut.
    #[error("the connection to {peer} failed")]
    Connection {
        /// Who.
        peer: AgentUrl,
        /// The reason.
        #[source]
        source: reqwest::Error,
    },
    /// The peer sent nothing for too long.
    #[error("{peer} sent nothing for {}s", .after.as_secs())]
    Silent {
        /// Who.
        peer: AgentUrl,
        /// For how long.
        after: std::time::Duration,
    },
}

impl FetchError {
    /// Whether going on from where it ended may help.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Connection { .. } | Self::Silent { .. } => true,
            Self::Refused { status, .. } => status.is_server_error(),
            Self::Malformed { .. } => false,
        }
    }
}

/// An artifact that is arriving.
#[derive(Debug)]
pub struct ArtifactStream {
    /// Bytes of the whole artifact.
    pub total: u64,
    /// The base image that it belongs to, and what opens that.
    pub base: Option<(String, Grant)>,
    peer: AgentUrl,
    io_limit: std::time::Duration,
    response: reqwest::Response,
    /// Bytes of the answer that were asked for by nobody: a peer that knows no ranges.
    skip: u64,
}

impl HostTransport {
    /// `GET /v1/artifacts/{digest}` of a peer, from byte `from` on. Sends the grant and nothing
    /// else; `io_limit` bounds each wait for the peer.
    ///
    /// # Errors
    /// See [`FetchError`].
    pub async fn fetch_artifact(
        &self,
        peer: &AgentUrl,
        digest: &str,
        grant: &Grant,
        from: u64,
        io_limit: std::time::Duration,
    ) -> Result<ArtifactStream, FetchError> {
        let url = peer.route(&["v1", "artifacts", digest]);
        let mut request = self.http.get(url).header(GRANT_HEADER, grant.expose());
        if from > 0 {
            request = request.header(RANGE, format!("bytes={from}-"));
        }
        let silent = |_| FetchError::Silent {
            peer: peer.clone(),
            after: io_limit,
        };
        let sent = tokio::time::timeout(io_limit, request.send()).await;
        let response = sent.map_err(silent)?.map_err(|e| connection(peer, e))?;
        let malformed = |what| FetchError::Malformed {
            peer: peer.clone(),
            what,
        };
        let (total, skip) = match response.status() {
            StatusCode::OK => (length(response.headers()), from),
            StatusCode::PARTIAL_CONTENT => {
                let (start, total) = range(response.headers())
                    .ok_or_else(|| malformed("a range that does not parse"))?;
                if start != from {
                    return Err(malformed("another range than it was asked for"));
                }
                (Some(total), 0)
            }
            status => {
                let reason = tokio::time::timeout(io_limit, reason(response)).await;
                return Err(FetchError::Refused {
                    peer: peer.clone(),
                    status,
                    reason: reason.unwrap_or_default(),
                });
            }
        };
        let total = total.ok_or_else(|| malformed("no length"))?;
        if text(response.headers(), DIGEST_HEADER).is_some_and(|served| served != digest) {
            return Err(malformed("another artifact"));
        }
        Ok(ArtifactStream {
            total,
            base: base(response.headers()),
            peer: peer.clone(),
            io_limit,
            response,
            skip,
        })
    }
}

impl ArtifactStream {
    /// The next bytes; `None` at the end of the answer, which may come early.
    ///
    /// # Errors
    /// See [`FetchError`].
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, FetchError> {
        loop {
            let next = tokio::time::timeout(self.io_limit, self.response.chunk()).await;
            let next = next.map_err(|_| FetchError::Silent {
                peer: self.peer.clone(),
                after: self.io_limit,
            })?;
            let Some(mut bytes) = next.map_err(|e| connection(&self.peer, e))? else {
                return Ok(None);
            };
            let skipped = usize::try_from(self.skip).unwrap_or(usize::MAX);
            let skipped = bytes.split_to(skipped.min(bytes.len()));
            self.skip -= skipped.len() as u64;
            if !bytes.is_empty() {
                return Ok(Some(bytes));
            }
        }
    }
}

fn connection(peer: &AgentUrl, source: reqwest::Error) -> FetchError {
    FetchError::Connection {
        peer: peer.clone(),
        source: source.without_url(),
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

fn length(headers: &HeaderMap) -> Option<u64> {
    text(headers, CONTENT_LENGTH.as_str())?.parse().ok()
}

/// Start and total of `bytes 5-9/10`.
fn range(headers: &HeaderMap) -> Option<(u64, u64)> {
    let text = text(headers, CONTENT_RANGE.as_str())?.strip_prefix("bytes ")?;
    let (span, total) = text.split_once('/')?;
    let (start, _) = span.split_once('-')?;
    Some((start.parse().ok()?, total.parse().ok()?))
}

fn base(headers: &HeaderMap) -> Option<(String, Grant)> {
    let digest = text(headers, BASE_HEADER).filter(|digest| is_digest(digest))?;
    let grant = text(headers, BASE_GRANT_HEADER)?;
    Some((digest.to_owned(), Grant::from_text(grant)))
}

async fn reason(mut response: reqwest::Response) -> String {
    let mut read = Vec::new();
    while read.len() < REASON_BYTES {
        match response.chunk().await {
            Ok(Some(bytes)) => read.extend_from_slice(&bytes),
            Ok(None) | Err(_) => break,
        }
    }
    read.truncate(REASON_BYTES);
    String::from_utf8_lossy(&read).trim().to_owned()
}
