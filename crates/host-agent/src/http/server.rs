//! Accepting connections: a bounded number, each with bounded heads and patience.
//!
//! Above the bound a connection gets a 503 at once. Shutting down stops accepting, lets requests
//! under way end, and gives up on them after a deadline.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use fuse_wire_host::limits;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Connections at a time.
const CONNECTIONS: usize = 512;
/// How long requests may go on after the shutdown began.
const DRAIN_LIMIT: Duration = Duration::from_secs(10);
/// Pause after a failed accept, which means that descriptors ran out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

const FULL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain\r\n\
    Retry-After: 1\r\nConnection: close\r\nContent-Length: 27\r\n\r\nthe agent has no room left\n";

/// The first byte of whoever speaks TLS.
const HANDSHAKE: [u8; 1] = [0x16];

const CLEAR: &[u8] = b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\n\
    Connection: close\r\nContent-Length: 54\r\n\r\nthis agent speaks TLS: its address begins with https:\n";

/// Opens the listener.
///
/// # Errors
/// The address cannot be bound.
pub async fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    TcpListener::bind(address).await
}

/// Serves until `shutdown`, then drains.
pub async fn serve(
    (listener, tls): (TcpListener, Option<TlsAcceptor>),
    router: Router,
    idle: Duration,
    shutdown: CancellationToken,
) {
    let slots = Arc::new(Semaphore::new(CONNECTIONS));
    let connections = TaskTracker::new();
    loop {
        let stream = tokio::select! {
            stream = listener.accept() => stream,
            () = shutdown.cancelled() => break,
        };
        let stream = match stream {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        match Arc::clone(&slots).try_acquire_owned() {
            Ok(slot) => {
                let (router, shutdown) = (router.clone(), shutdown.clone());
                connections.spawn(connected(stream, tls.clone(), router, idle, shutdown, slot));
            }
            Err(_) => {
                connections.spawn(refuse(stream, FULL));
            }
        }
    }
    drop(listener);
    connections.close();
    if tokio::time::timeout(DRAIN_LIMIT, connections.wait())
        .await
        .is_err()
    {
        tracing::warn!("requests were cut off by the shutdown");
    }
}

async fn connected(
    stream: TcpStream,
    tls: Option<TlsAcceptor>,
    router: Router,
    idle: Duration,
    shutdown: CancellationToken,
    _slot: OwnedSemaphorePermit,
) {
    // Small answers are the rule; failing to set it costs latency only.
    let _slower = stream.set_nodelay(true);
    let Some(tls) = tls else {
        return connection(stream, router, idle, shutdown).await;
    };
    let secured = tokio::select! {
        secured = tokio::time::timeout(idle, secure(stream, &tls)) => secured,
        // Nothing was asked yet, so nothing is cut off.
        () = shutdown.cancelled() => return,
    };
    match secured {
        Ok(Ok(Some(stream))) => connection(stream, router, idle, shutdown).await,
        Ok(Ok(None)) => {}
        Ok(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
        Err(_) => tracing::debug!("TLS handshake took too long"),
    }
}

/// The handshake; `None` for those who speak no TLS, who are told so.
async fn secure(stream: TcpStream, tls: &TlsAcceptor) -> io::Result<Option<TlsStream<TcpStream>>> {
    let mut first = [0];
    if stream.peek(&mut first).await? == 1 && first != HANDSHAKE {
        refuse(stream, CLEAR).await;
        return Ok(None);
    }
    tls.accept(stream).await.map(Some)
}

async fn connection<S>(stream: S, router: Router, idle: Duration, shutdown: CancellationToken)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(idle)
        .max_headers(limits::MAX_HEADERS)
        .max_buf_size(2 * limits::MAX_HEADER_LINE)
        .keep_alive(true);
    let service = TowerToHyperService::new(router);
    let mut connection = std::pin::pin!(
        builder
            .serve_connection(TokioIo::new(stream), service)
            .with_upgrades()
    );
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = shutdown.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "connection ended early");
    }
}

/// Answers without reading the request, and waits a moment for its sender to leave: closing on what
/// was not read would take the answer back.
async fn refuse(mut stream: TcpStream, answer: &[u8]) {
    let refusal = async {
        stream.write_all(answer).await?;
        stream.shutdown().await?;
        tokio::io::copy(&mut stream, &mut tokio::io::sink()).await
    };
    let _left = tokio::time::timeout(ACCEPT_PAUSE, refusal).await;
}
