//! The HTTP server of the public surface.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use axum::extract::{Request, State};
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use axum::{Json, Router};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use serde::Serialize;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::credentials::Credentials;
use super::options::Facts;
use super::probe::Verdict;

/// A client must finish its request's head, and before that its TLS handshake, within this time.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);

/// How long open requests may take to finish after a stop.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

const MAX_CONNECTIONS: usize = 512;

/// Pause after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// How serving ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Served {
    /// All requests were answered.
    Drained,
    /// Some were not.
    CutOff,
}

/// A bound server.
#[derive(Debug)]
pub(super) struct Server {
    listener: TcpListener,
    router: Router,
    credentials: watch::Receiver<Credentials>,
}

#[derive(Clone, Debug)]
struct Shared {
    facts: Arc<Facts>,
    credentials: watch::Receiver<Credentials>,
    health: watch::Receiver<Option<Verdict>>,
}

impl Server {
    /// Binds `listen`.
    ///
    /// # Errors
    /// The address is not one, or is in use.
    pub(super) async fn bind(
        listen: &str,
        facts: Facts,
        credentials: watch::Receiver<Credentials>,
        health: watch::Receiver<Option<Verdict>>,
    ) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(listen)
            .await
            .with_context(|| format!("cannot listen on {listen}"))?;
        let shared = Shared {
            facts: Arc::new(facts),
            credentials: credentials.clone(),
            health,
        };
        let tls = credentials.borrow().tls.is_some();
        tracing::info!(address = %listener.local_addr()?, tls, "serving");
        Ok(Self {
            listener,
            router: router(shared),
            credentials,
        })
    }

    /// The bound address.
    #[cfg(test)]
    pub(super) fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `stop`, then lets open requests finish.
    pub(super) async fn run(self, stop: CancellationToken) -> Served {
        let connections = TaskTracker::new();
        let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        while let Some(Ok(slot)) = stop
            .run_until_cancelled(Arc::clone(&slots).acquire_owned())
            .await
        {
            let Some(accepted) = stop.run_until_cancelled(self.listener.accept()).await else {
                break;
            };
            let Ok((stream, peer)) = accepted else {
                // The client left, or the guest is out of memory; nothing tells when it is not.
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            };
            let serve = self.serve(stream, peer, stop.clone());
            connections.spawn(async move {
                serve.await;
                drop(slot);
            });
        }
        drop(self.listener);
        connections.close();
        match timeout(DRAIN_TIMEOUT, connections.wait()).await {
            Ok(()) => Served::Drained,
            Err(_) => Served::CutOff,
        }
    }

    fn serve(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
        stop: CancellationToken,
    ) -> impl Future<Output = ()> + use<> {
        let tls = self.credentials.borrow().tls.clone();
        let router = self.router.clone();
        async move {
            match tls {
                None => serve_http(stream, router, stop).await,
                Some(config) => {
                    let handshake = TlsAcceptor::from(config).accept(stream);
                    match timeout(HEAD_TIMEOUT, handshake).await {
                        Ok(Ok(stream)) => serve_http(stream, router, stop).await,
                        Ok(Err(error)) => tracing::debug!(%peer, %error, "no TLS handshake"),
                        Err(_) => tracing::debug!(%peer, "TLS handshake took too long"),
                    }
                }
            }
        }
    }
}

async fn serve_http<T>(stream: T, router: Router, stop: CancellationToken)
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut connection = std::pin::pin!(connection);
    let served = tokio::select! {
        served = connection.as_mut() => served,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = served {
        tracing::debug!(%error, "connection ended early");
    }
}

fn router(shared: Shared) -> Router {
    let guarded = Router::new()
        .route("/v1/info", get(info))
        .fallback(async || (StatusCode::NOT_FOUND, "not found"))
        .layer(middleware::from_fn_with_state(shared.clone(), authorize));
    Router::new()
        .route("/health", get(health))
        .merge(guarded)
        .with_state(shared)
}

async fn authorize(State(shared): State<Shared>, request: Request, next: Next) -> Response {
    let header = request
        .headers()
        .get(AUTHORIZATION)
        .map(HeaderValue::as_bytes);
    let admitted = shared.credentials.borrow().access.admits(header);
    if admitted {
        next.run(request).await
    } else {
        (StatusCode::UNAUTHORIZED, "unauthorized").into_response()
    }
}

#[derive(Serialize)]
struct Health {
    status: &'static str,
    vm_id: String,
    /// Absent without a probe. The status of the answer never depends on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    healthcheck: Option<Verdict>,
}

async fn health(State(shared): State<Shared>) -> Json<Health> {
    Json(Health {
        status: "ok",
        vm_id: shared.facts.vm_id.clone(),
        healthcheck: shared.health.borrow().clone(),
    })
}

#[derive(Serialize)]
struct Info {
    vm_id: String,
    manifest_bytes: u64,
    secret_count: usize,
    gateway: bool,
    tls: bool,
}

async fn info(State(shared): State<Shared>) -> Json<Info> {
    let facts = shared.facts.as_ref().clone();
    Json(Info {
        vm_id: facts.vm_id,
        manifest_bytes: facts.manifest_bytes,
        secret_count: facts.secret_count,
        gateway: facts.gateway,
        tls: shared.credentials.borrow().tls.is_some(),
    })
}
