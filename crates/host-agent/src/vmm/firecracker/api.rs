//! Calls on Firecracker's API socket: HTTP/1.1 over a Unix socket, one connection per call.

use std::path::Path;
use std::time::Duration;

use crate::unix_socket;
use crate::vmm::VmmError;
use bytes::Bytes;
use http::Method;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Bound of a call that describes the machine.
const CALL_LIMIT: Duration = Duration::from_secs(5);
/// Bound of the call that starts the machine; the program may have to load files for it.
const START_LIMIT: Duration = Duration::from_secs(20);
/// Most bytes of an answer that are read.
const MAX_ANSWER: usize = 64 * 1024;

/// `PUT path`.
pub(super) async fn put(socket: &Path, path: &'static str, body: &Value) -> Result<(), VmmError> {
    call(Method::PUT, socket, path, body, CALL_LIMIT).await
}

/// `PUT path` of a call with a bound of its own.
pub(super) async fn put_within(
    socket: &Path,
    path: &'static str,
    body: &Value,
    limit: Duration,
) -> Result<(), VmmError> {
    call(Method::PUT, socket, path, body, limit).await
}

/// Pauses or resumes the machine.
pub(super) async fn set_state(socket: &Path, state: &str, limit: Duration) -> Result<(), VmmError> {
    let body = json!({"state": state});
    call(Method::PATCH, socket, "/vm", &body, limit).await
}

/// Starts the machine.
pub(super) async fn start(socket: &Path) -> Result<(), VmmError> {
    call(
        Method::PUT,
        socket,
        "/actions",
        &json!({"action_type": "InstanceStart"}),
        START_LIMIT,
    )
    .await
}

async fn call(
    method: Method,
    socket: &Path,
    path: &'static str,
    body: &Value,
    limit: Duration,
) -> Result<(), VmmError> {
    let answer = tokio::time::timeout(limit, exchange(method, socket, path, body)).await;
    let (status, body) = answer
        .map_err(|_| VmmError::Timeout {
            call: path,
            seconds: limit.as_secs(),
        })?
        .map_err(|source| VmmError::Broken { call: path, source })?;
    if status < 300 {
        return Ok(());
    }
    let fault = serde_json::from_slice::<Value>(&body)
        .ok()
        .and_then(|v| v.get("fault_message")?.as_str().map(str::to_owned))
        .unwrap_or_else(|| String::from_utf8_lossy(&body).into_owned());
    Err(VmmError::Refused {
        call: path,
        status,
        fault,
    })
}

async fn exchange(
    method: Method,
    socket: &Path,
    path: &str,
    body: &Value,
) -> Result<(u16, Bytes), BoxError> {
    let stream = unix_socket::connect(socket).await?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let request = http::Request::builder()
        .method(method)
        .uri(path)
        .header(http::header::HOST, "localhost")
        .header(http::header::ACCEPT, "application/json")
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(Full::new(Bytes::from(serde_json::to_vec(body)?)))?;
    let answer = async {
        let response = sender.send_request(request).await?;
        let status = response.status().as_u16();
        let body = Limited::new(response.into_body(), MAX_ANSWER)
            .collect()
            .await?;
        Ok((status, body.to_bytes()))
    };
    // The connection is driven here rather than in a task, so that it ends with the call. It may end
    // in the same moment that it hands the answer over.
    let mut answer = std::pin::pin!(answer);
    tokio::select! {
        answer = &mut answer => answer,
        end = connection => match end {
            Ok(()) => answer.await,
            Err(error) => answer.await.map_err(|_: BoxError| error.into()),
        }
    }
}
