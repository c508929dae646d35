//! Handing a caller's connection over to a command in a guest.
//!
//! The agent looks at no frames: once both ends are connected it copies bytes, each direction only as
//! fast as its reader takes them. A direction that ends is passed on, so that the last output arrives
//! behind a client that has nothing more to say.

use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, RawQuery, Request, State};
use axum::http::header::{CONNECTION, UPGRADE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use fuse_wire_host::attach::PROTOCOL;
use fuse_wire_host::{attach, name};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader, copy_buf, sink, split};

use super::{ApiError, App};

/// Bytes that are under way in each direction.
const COPY_BYTES: usize = 64 * 1024;

/// How long one end may take to close after the other has.
const LINGER: Duration = Duration::from_secs(10);

/// The command is in the query.
pub(super) async fn attach(
    State(app): State<App>,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
    request: Request,
) -> Result<Response, ApiError> {
    let wanted = attach::Request::from_query(&query.unwrap_or_default())
        .map_err(|error| ApiError::bad_request(error.to_string()));
    start(&app, &id, request, wanted).await
}

/// The command is in the body, for one that is too long for a query.
pub(super) async fn attach_long(
    State(app): State<App>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Response, ApiError> {
    let (head, body) = request.into_parts();
    let wanted = app.read(&head.headers, body, app.config.http.body).await;
    start(&app, &id, Request::from_parts(head, Body::empty()), wanted).await
}

async fn start(
    app: &App,
    id: &str,
    mut request: Request,
    wanted: Result<attach::Request, ApiError>,
) -> Result<Response, ApiError> {
    let asked = request.headers().get(UPGRADE);
    if !asked.is_some_and(|name| name.as_bytes().eq_ignore_ascii_case(PROTOCOL.as_bytes())) {
        let text = format!("the route is for an upgrade to {PROTOCOL}");
        return Err(ApiError::bad_request(text));
    }
    let wanted = wanted?;
    let lease = app.registry.lease(&name::vm_id(id))?;
    let guest = lease.attach(&wanted).await?;
    let connection = hyper::upgrade::on(&mut request);
    app.registry.beside(async move {
        let client = match connection.await {
            Ok(client) => TokioIo::new(client),
            Err(error) => return tracing::debug!(%error, "a caller left before it was attached"),
        };
        tokio::select! {
            () = relay(client, guest) => {}
            () = lease.over() => {}
        }
    });
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(UPGRADE, HeaderValue::from_static(PROTOCOL));
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    Ok(response)
}

/// Copies until both ends are through.
async fn relay(client: impl AsyncRead + AsyncWrite, guest: impl AsyncRead + AsyncWrite) {
    let (from_client, mut to_client) = split(client);
    let (from_guest, mut to_guest) = split(guest);
    let mut from_client = BufReader::with_capacity(COPY_BYTES, from_client);
    let mut from_guest = BufReader::with_capacity(COPY_BYTES, from_guest);
    let down = async {
        let copied = copy_buf(&mut from_guest, &mut to_client).await;
        copied.and(to_client.shutdown().await)
    };
    let up = async {
        if copy_buf(&mut from_client, &mut to_guest).await.is_ok() {
            to_guest.shutdown().await?;
        }
        // The guest takes no more. Unread bytes would make the client's system throw away what it
        // has not read yet, the exit status above all.
        copy_buf(&mut from_client, &mut sink()).await.map(drop)
    };
    let (mut down, mut up) = (std::pin::pin!(down), std::pin::pin!(up));
    let ended = tokio::select! {
        ended = &mut down => ended.and(tokio::time::timeout(LINGER, up).await.unwrap_or(Ok(()))),
        ended = &mut up => ended.and(tokio::time::timeout(LINGER, down).await.unwrap_or(Ok(()))),
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "an attached connection broke");
    }
}
