//! HTTP/1.1 on the API socket.
//!
//! Each request becomes one [`Request`] in a bounded queue, is carried out by
//! the controller in its turn and answered from there. The connection waits;
//! a client that goes away does not stop what it asked for.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use http::header::{CONTENT_TYPE, HeaderValue, SERVER};
use http::{HeaderName, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::{Body as _, Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::json;
use thiserror::Error;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::parse::parse;
use crate::action::{Action, Answer};
use crate::controller::ActionError;
use fuse_daemon::log::chain;

/// How long answers under way may take once the VM has ended.
const DRAIN: Duration = Duration::from_secs(1);

/// One action and where its outcome goes.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) action: Action,
    pub(crate) reply: oneshot::Sender<Result<Answer, ActionError>>,
}

/// The API socket cannot be had.
#[derive(Debug, Error)]
#[error(
    "Failed to open the API socket at {}; check that it is not already used, \
     and remove it if it is left over",
    path.display()
)]
pub(crate) struct ServerError {
    path: PathBuf,
    #[source]
    source: io::Error,
}

/// The bound API socket. Its file goes away with it.
#[derive(Debug)]
pub(crate) struct Server {
    listener: UnixListener,
    path: PathBuf,
    max_body: usize,
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::debug!(%error, "API socket was not removed");
        }
    }
}

impl Server {
    /// Binds `path`. Requests longer than `max_body` bytes are refused.
    ///
    /// # Errors
    /// The path cannot be bound, for instance because it exists.
    pub(crate) fn bind(path: &Path, max_body: usize) -> Result<Self, ServerError> {
        let listener = UnixListener::bind(path).map_err(|source| ServerError {
            path: path.to_owned(),
            source,
        })?;
        Ok(Self {
            listener,
            path: path.to_owned(),
            max_body,
        })
    }

    /// Serves until `stop`, then lets answers under way out.
    pub(crate) async fn run(self, queue: mpsc::Sender<Request>, stop: CancellationToken) {
        let tracker = TaskTracker::new();
        let handler = Arc::new(Handler {
            queue,
            max_body: self.max_body,
        });
        loop {
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                () = stop.cancelled() => break,
            };
            match accepted {
                Ok((stream, _)) => {
                    tracker.spawn(serve(stream, Arc::clone(&handler), stop.clone()));
                }
                // Out of descriptors, say: the next one may go through.
                Err(error) => {
                    tracing::error!(%error, "API connection lost");
                    tokio::task::yield_now().await;
                }
            }
        }
        tracker.close();
        if tokio::time::timeout(DRAIN, tracker.wait()).await.is_err() {
            tracing::warn!("API connections were cut off at the end");
        }
    }
}

async fn serve(stream: UnixStream, handler: Arc<Handler>, stop: CancellationToken) {
    let service = service_fn(move |request| {
        let handler = Arc::clone(&handler);
        async move { Ok::<_, std::convert::Infallible>(handler.handle(request).await) }
    });
    let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let result = tokio::select! {
        result = connection.as_mut() => result,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "API connection broke");
    }
}

struct Handler {
    queue: mpsc::Sender<Request>,
    max_body: usize,
}

impl Handler {
    async fn handle(&self, request: http::Request<Incoming>) -> Response<Full<Bytes>> {
        let (head, body) = request.into_parts();
        let body = match self.read(body).await {
            Ok(body) => body,
            Err(text) => return respond(StatusCode::BAD_REQUEST, &json!({ "error": text })),
        };
        let path = head.uri.path();
        let parsed = match parse(&head.method, path, &body) {
            Ok(parsed) => parsed,
            Err(error) => {
                let message = error.to_string();
                tracing::error!(method = %head.method, path, error = message, "API request refused");
                return fault(&message);
            }
        };
        let outcome = self.carry_out(parsed.action).await;
        let mut response = match outcome {
            Ok(Answer::Nothing) => {
                tracing::info!(method = %head.method, path, status = 204, "API request");
                empty()
            }
            Ok(answer) => {
                tracing::info!(method = %head.method, path, status = 200, "API request");
                respond(StatusCode::OK, &json!(answer))
            }
            Err(message) => {
                tracing::error!(method = %head.method, path, error = message, "API request failed");
                fault(&message)
            }
        };
        if parsed.deprecated {
            tracing::warn!(method = %head.method, path, "API request used a deprecated field");
            let name = HeaderName::from_static("deprecation");
            response
                .headers_mut()
                .insert(name, HeaderValue::from_static("true"));
        }
        response
    }

    async fn read(&self, body: Incoming) -> Result<Bytes, String> {
        let too_long = |size: String| {
            let max = self.max_body;
            format!(
                "Request payload with size {size} is larger than the limit of {max} allowed by server.\n\
                 All previous unanswered requests will be dropped."
            )
        };
        if let Some(size) = body
            .size_hint()
            .exact()
            .filter(|size| *size > self.max_body as u64)
        {
            return Err(too_long(size.to_string()));
        }
        match Limited::new(body, self.max_body).collect().await {
            Ok(collected) => Ok(collected.to_bytes()),
            Err(error) if error.is::<LengthLimitError>() => Err(too_long("unknown".to_owned())),
            Err(error) => Err(error.to_string()),
        }
    }

    async fn carry_out(&self, action: Action) -> Result<Answer, String> {
        const GONE: &str = "The microVM has ended.";
        let (reply, outcome) = oneshot::channel();
        let request = Request { action, reply };
        self.queue
            .send(request)
            .await
            .map_err(|_| GONE.to_owned())?;
        let outcome = outcome.await.map_err(|_| GONE.to_owned())?;
        outcome.map_err(|error| chain(&error))
    }
}

fn fault(message: &str) -> Response<Full<Bytes>> {
    respond(
        StatusCode::BAD_REQUEST,
        &json!({ "fault_message": message }),
    )
}

fn respond(status: StatusCode, body: &serde_json::Value) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body.to_string())));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(SERVER, HeaderValue::from_static("Firecracker API"));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn empty() -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let headers = response.headers_mut();
    headers.insert(SERVER, HeaderValue::from_static("Firecracker API"));
    response
}
