//! Client of the control API inside a guest: HTTP/1.1 over a [`Transport`].
//!
//! Idle connections are kept for a short while, so that calls in a row need no new stream. Dropping
//! a call's future closes its connection, which makes the guest stop what it does for it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use fuse_wire_guest::control::{
    ClockRequest, ClockResponse, ErrorBody, ExecRequest, ExecResponse, PowerAction, PowerRequest,
    Status, SurfaceRequest, SurfaceStatus, UploadRequest, UploadResponse, path,
};
use fuse_wire_guest::snapshot::{
    self, FreezeRequest, FreezeResponse, ResumedRequest, SeedRequest, ThawResponse,
};
use fuse_wire_guest::{Blob, CONTROL_PORT};
use http::StatusCode;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::transport::{ChannelError, GuestStream, Transport};

/// Most bytes of an answer: two exec streams of 8 MiB in base64, and room.
const MAX_ANSWER: usize = 32 * 1024 * 1024;
/// How long an idle connection is kept.
const IDLE: Duration = Duration::from_secs(30);
/// Idle connections per guest.
const MAX_IDLE: usize = 4;
/// What a guest may take beyond the limit it was given, to answer about it.
const GRACE: Duration = Duration::from_secs(10);

/// A failed call.
#[derive(Debug, Error)]
pub enum GuestError {
    /// No connection, or it broke before the answer was whole.
    #[error("the guest does not answer")]
    Channel(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// No answer in time.
    #[error("the guest did not answer within {} s", .0.as_secs())]
    Timeout(Duration),
    /// The guest refused the request.
    #[error("{reason}")]
    Refused {
        /// Its reason.
        reason: String,
    },
    /// The guest tried and failed.
    #[error("{reason}")]
    Failed {
        /// Its reason.
        reason: String,
    },
    /// The answer is not what the contract says.
    #[error("the guest sent an answer that does not parse")]
    Malformed(#[source] serde_json::Error),
}

/// Calls one guest. Cheap to clone; clones share connections.
#[derive(Debug, Clone)]
pub struct GuestClient {
    http: Client<Connector, Full<Bytes>>,
    transport: Arc<dyn Transport>,
}

impl GuestClient {
    /// A client over `transport`.
    #[must_use]
    pub fn new(transport: Arc<dyn Transport>) -> Self {
        let http = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .pool_max_idle_per_host(MAX_IDLE)
            .build(Connector {
                transport: Arc::clone(&transport),
            });
        Self { http, transport }
    }

    pub(super) fn transport(&self) -> &dyn Transport {
        self.transport.as_ref()
    }

    /// Runs a command to its end.
    ///
    /// # Errors
    /// See [`GuestError`]; a command that fails or times out is not an error.
    pub async fn exec(&self, request: &ExecRequest) -> Result<ExecResponse, GuestError> {
        let limit = Duration::from_millis(request.timeout_ms);
        self.post(path::EXEC, request, limit).await
    }

    /// Writes small files in one call.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn upload(
        &self,
        request: &UploadRequest,
        limit: Duration,
    ) -> Result<UploadResponse, GuestError> {
        self.post(path::FILES, request, limit).await
    }

    /// Writes one file of any size: its bytes travel as they are, so the guest needs no memory
    /// for them.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn upload_raw(
        &self,
        to: &str,
        mode: Option<&str>,
        content: Vec<u8>,
        limit: Duration,
    ) -> Result<UploadResponse, GuestError> {
        let target = file_target(to, mode);
        parse(
            &self
                .call(http::Method::PUT, &target, content, limit)
                .await?,
        )
    }

    /// Starts the public surface, or starts it again.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn surface(
        &self,
        request: &SurfaceRequest,
        limit: Duration,
    ) -> Result<SurfaceStatus, GuestError> {
        self.post(path::SURFACE, request, limit).await
    }

    /// Makes the guest write everything back and power off. The answer comes before it does.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn power_off(&self, limit: Duration) -> Result<(), GuestError> {
        let request = PowerRequest {
            action: PowerAction::Poweroff,
        };
        let body = serde_json::to_vec(&request).map_err(GuestError::Malformed)?;
        self.call(http::Method::POST, path::POWER, body, limit)
            .await
            .map(drop)
    }

    /// Writes everything back in the guest and, for a `hold` above 0, keeps it from writing for that
    /// long.
    ///
    /// # Errors
    /// See [`GuestError`]; an older guest agent refuses.
    pub async fn freeze(&self, hold: Duration, limit: Duration) -> Result<(), GuestError> {
        let hold_ms = u64::try_from(hold.as_millis()).unwrap_or(u64::MAX);
        let request = FreezeRequest { hold_ms };
        let FreezeResponse { .. } = self.post(snapshot::path::FREEZE, &request, limit).await?;
        Ok(())
    }

    /// Ends a freeze; returns whether it lasted until now.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn thaw(&self, limit: Duration) -> Result<bool, GuestError> {
        let answer = self.call(http::Method::POST, snapshot::path::THAW, Vec::new(), limit);
        Ok(parse::<ThawResponse>(&answer.await?)?.held)
    }

    /// What the guest agent says of itself.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn status(&self, limit: Duration) -> Result<Status, GuestError> {
        let answer = self.call(http::Method::GET, path::STATUS, Vec::new(), limit);
        serde_json::from_slice(&answer.await?).map_err(GuestError::Malformed)
    }

    /// Gives the guest's kernel randomness, and the time.
    ///
    /// # Errors
    /// See [`GuestError`]; an older guest agent refuses.
    pub async fn seed(&self, limit: Duration) -> Result<(), GuestError> {
        let request = SeedRequest {
            seed_b64: fresh(),
            unix_micros: Some(now_micros()),
        };
        let body = serde_json::to_vec(&request).map_err(GuestError::Malformed)?;
        let path = snapshot::path::SEED;
        self.call(http::Method::POST, path, body, limit)
            .await
            .map(drop)
    }

    /// Tells the guest that it goes on from a snapshot, and what time it is.
    ///
    /// # Errors
    /// See [`GuestError`]; an older guest agent refuses.
    pub async fn resumed(&self, limit: Duration) -> Result<(), GuestError> {
        let request = ResumedRequest {
            unix_micros: now_micros(),
            seed_b64: fresh(),
        };
        let path = snapshot::path::RESUMED;
        self.post::<_, ClockResponse>(path, &request, limit)
            .await
            .map(drop)
    }

    /// Sets the guest's clock, if it is off by more than `tolerance`.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn set_clock(&self, tolerance: Duration, limit: Duration) -> Result<(), GuestError> {
        let request = ClockRequest {
            unix_micros: now_micros(),
            tolerance_micros: u64::try_from(tolerance.as_micros()).unwrap_or(u64::MAX),
        };
        self.post::<_, ClockResponse>(path::CLOCK, &request, limit)
            .await
            .map(drop)
    }

    /// What the guest agent has logged since the boot; with `follow` the body goes on with what it
    /// logs from then on. Only the begin of the answer is bounded.
    ///
    /// # Errors
    /// See [`GuestError`]; an older guest agent refuses.
    pub async fn log(&self, follow: bool, limit: Duration) -> Result<Incoming, GuestError> {
        let follow = if follow { "1" } else { "0" };
        let request = http::Request::get(format!("http://guest{}?follow={follow}", path::LOG))
            .body(Full::default())
            .map_err(|e| GuestError::Channel(e.into()))?;
        let begin = async {
            let response = self.http.request(request).await;
            let response = response.map_err(|e| GuestError::Channel(e.into()))?;
            let status = response.status();
            if status.is_success() {
                return Ok(response.into_body());
            }
            let body = Limited::new(response.into_body(), MAX_ANSWER)
                .collect()
                .await;
            Err(refusal(
                status,
                &body.map_err(GuestError::Channel)?.to_bytes(),
            ))
        };
        let begun = tokio::time::timeout(limit, begin).await;
        begun.unwrap_or(Err(GuestError::Timeout(limit)))
    }

    async fn post<B: Serialize + Sync, T: DeserializeOwned>(
        &self,
        path: &str,
        body: &B,
        limit: Duration,
    ) -> Result<T, GuestError> {
        let body = serde_json::to_vec(body).map_err(GuestError::Malformed)?;
        parse(&self.call(http::Method::POST, path, body, limit).await?)
    }

    /// The body of a successful answer.
    async fn call(
        &self,
        method: http::Method,
        target: &str,
        body: Vec<u8>,
        limit: Duration,
    ) -> Result<Bytes, GuestError> {
        let bound = limit.saturating_add(GRACE);
        // The host names the pool's key only; every connection of this client leads to its guest.
        let request = http::Request::builder()
            .method(method)
            .uri(format!("http://guest{target}"))
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body)))
            .map_err(|e| GuestError::Channel(e.into()))?;
        let exchange = async {
            let response = self
                .http
                .request(request)
                .await
                .map_err(|e| GuestError::Channel(e.into()))?;
            let status = response.status();
            let body = Limited::new(response.into_body(), MAX_ANSWER)
                .collect()
                .await;
            Ok((status, body.map_err(GuestError::Channel)?.to_bytes()))
        };
        let (status, body) = tokio::time::timeout(bound, exchange)
            .await
            .map_err(|_| GuestError::Timeout(bound))??;
        if status.is_success() {
            return Ok(body);
        }
        Err(refusal(status, &body))
    }
}

/// What a guest's clock is to show.
fn now_micros() -> i64 {
    jiff::Timestamp::now().as_microsecond()
}

/// Random bytes that are given once.
fn fresh() -> Blob {
    Blob(rand::random::<[u8; snapshot::SEED_BYTES]>().to_vec())
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, GuestError> {
    serde_json::from_slice(body).map_err(GuestError::Malformed)
}

/// Path and query of a raw upload.
fn file_target(to: &str, mode: Option<&str>) -> String {
    let mut query = url::form_urlencoded::Serializer::new(String::new());
    query.append_pair("path", to);
    if let Some(mode) = mode {
        query.append_pair("mode", mode);
    }
    format!("{}?{}", path::FILE, query.finish())
}

pub(super) fn refusal(status: StatusCode, body: &[u8]) -> GuestError {
    let reason = serde_json::from_slice::<ErrorBody>(body).map_or_else(
        |_| format!("the guest answered {status}"),
        |body| body.error,
    );
    if status.is_client_error() {
        GuestError::Refused { reason }
    } else {
        GuestError::Failed { reason }
    }
}

/// Gives hyper streams of one guest.
#[derive(Debug, Clone)]
struct Connector {
    transport: Arc<dyn Transport>,
}

impl tower::Service<http::Uri> for Connector {
    type Response = TokioIo<Stream>;
    type Error = ChannelError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, ChannelError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ChannelError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: http::Uri) -> Self::Future {
        let transport = Arc::clone(&self.transport);
        Box::pin(async move { Ok(TokioIo::new(Stream(transport.dial(CONTROL_PORT).await?))) })
    }
}

struct Stream(GuestStream);

impl Connection for Stream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
