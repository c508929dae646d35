//! Commands in a guest: to their end, as they go on, or with their input open.

use std::collections::VecDeque;
use std::time::Duration;

use fuse_wire_api::{ExecFrame, ExecRequest, ExecResponse, Output};
use futures_util::StreamExt as _;
use reqwest::Response;
use reqwest::header::HeaderValue;

use crate::attach::{Session, handed_over, upgrade_to_attach};
use crate::events::{Records, records};
use crate::transport::{Call, decode, header, read};
use crate::{ApiError, Client, Error, Reason};

/// What an exec may take beyond the guest's own limit.
const SLACK: Duration = Duration::from_secs(30);
/// The server's limits of an exec: what it uses when none is given, and the most it allows.
const DEFAULT_LIMIT: Duration = Duration::from_secs(60);
const LONGEST_LIMIT: Duration = Duration::from_secs(600);

/// What a command writes, as it writes it, then how it ended. Dropping it ends the command.
pub struct ExecStream {
    url: String,
    source: Source,
}

enum Source {
    Records(Records),
    /// All at once, from a server that does not stream.
    Whole(VecDeque<ExecFrame>),
    Ended,
}

impl std::fmt::Debug for ExecStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExecStream")
            .field("url", &self.url)
            .finish_non_exhaustive()
    }
}

impl Client {
    /// Runs a command in a guest. Any exit status is a success of the call.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn exec(&self, id: &str, request: &ExecRequest) -> Result<ExecResponse, Error> {
        let call = self.exec_call(id, request, None)?;
        self.fetch(call.timeout(Some(limit(request) + SLACK))).await
    }

    /// Starts a command in a guest.
    ///
    /// # Errors
    /// See [`Error`]; the command has not started then.
    pub async fn exec_stream(&self, id: &str, request: &ExecRequest) -> Result<ExecStream, Error> {
        let call = self
            .exec_call(id, request, Some("1"))?
            .header("accept", HeaderValue::from_static("text/event-stream"))
            // Silence is bounded instead: the server comments.
            .timeout(None);
        let url = call.shown();
        let response = tokio::time::timeout(limit(request) + SLACK, self.send(call)).await;
        let response = response.map_err(|_| timed_out(&url))??;
        let source = if is_events(&response) {
            Source::Records(records(response))
        } else {
            let whole = decode(&read(response, &url).await?, &url)?;
            Source::Whole(frames(whole))
        };
        Ok(ExecStream { url, source })
    }

    /// Starts a command in a guest whose input stays open: frames both ways, without a terminal. An
    /// empty stdin frame ends the input.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn exec_session(&self, id: &str, request: &ExecRequest) -> Result<Session, Error> {
        let call = upgrade_to_attach(self.exec_call(id, request, Some("1"))?);
        handed_over(self, call).await
    }

    fn exec_call(
        &self,
        id: &str,
        request: &ExecRequest,
        stream: Option<&str>,
    ) -> Result<Call, Error> {
        let call = self.act("environments", id, "exec")?;
        call.query(&[("stream", stream)])?.json(request)
    }
}

impl ExecStream {
    /// What comes next; `None` after the exit status.
    ///
    /// # Errors
    /// How the command ended cannot be told: [`Error::Api`] with the server's reason, or the stream
    /// broke.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub async fn next(&mut self) -> Result<Option<ExecFrame>, Error> {
        let frame = match &mut self.source {
            Source::Ended => return Ok(None),
            Source::Whole(frames) => frames.pop_front(),
            Source::Records(records) => loop {
                match records.next().await {
                    Some(Ok(record)) => {
                        if let Some(frame) = parse(&record.data, &self.url)? {
                            break Some(frame);
                        }
                    }
                    Some(Err(_)) | None => {
                        self.source = Source::Ended;
                        return Err(Error::Transport {
                            url: self.url.clone(),
                            reason: Reason::Lost,
                        });
                    }
                }
            },
        };
        match frame {
            Some(ExecFrame::Error { error }) => {
                self.source = Source::Ended;
                Err(ApiError::of(error).into())
            }
            Some(frame @ ExecFrame::Exit { .. }) => {
                self.source = Source::Ended;
                Ok(Some(frame))
            }
            frame => Ok(frame),
        }
    }
}

/// A record; `None` for one of a kind that this client does not know.
fn parse(data: &str, url: &str) -> Result<Option<ExecFrame>, Error> {
    #[derive(serde::Deserialize)]
    struct Kind<'a> {
        #[serde(borrow)]
        event: std::borrow::Cow<'a, str>,
    }
    let Kind { event } = decode_str(data, url)?;
    if !ExecFrame::KINDS.contains(&&*event) {
        return Ok(None);
    }
    decode_str(data, url).map(Some)
}

fn decode_str<'a, T: serde::Deserialize<'a>>(data: &'a str, url: &str) -> Result<T, Error> {
    serde_json::from_str(data).map_err(|error| Error::Decode {
        url: url.to_owned(),
        reason: error.to_string(),
    })
}

fn frames(whole: ExecResponse) -> VecDeque<ExecFrame> {
    let ExecResponse {
        exit_code,
        stdout,
        stderr,
    } = whole;
    VecDeque::from([
        ExecFrame::Stdout {
            data: Output(stdout.into_bytes()),
        },
        ExecFrame::Stderr {
            data: Output(stderr.into_bytes()),
        },
        ExecFrame::Exit {
            exit_code,
            timed_out: false,
            signal: None,
        },
    ])
}

/// How long the guest lets the command run.
fn limit(request: &ExecRequest) -> Duration {
    match u64::try_from(request.timeout_ms) {
        Ok(0) | Err(_) => DEFAULT_LIMIT,
        Ok(milliseconds) => Duration::from_millis(milliseconds).min(LONGEST_LIMIT),
    }
}

fn is_events(response: &Response) -> bool {
    header(response, "content-type").is_some_and(|value| value.starts_with("text/event-stream"))
}

fn timed_out(url: &str) -> Error {
    Error::Transport {
        url: url.to_owned(),
        reason: Reason::TimedOut,
    }
}
