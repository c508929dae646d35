//! One connection: requests one after the other, until it rests for too long, breaks a
//! limit, or the process shuts down.

use std::{
    convert::Infallible,
    net::SocketAddr,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    http::{HeaderValue, StatusCode, header::CONNECTION},
};
use hyper::{
    body::{Body as _, Frame, Incoming, SizeHint},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use super::{Peer, Timeouts, Unhurried, clock::Clock, timed_io::TimedIo};

/// How long a stopping server waits for the first request of a connection. Hyper would
/// close one at once from which it has read nothing; but its client was let in, and
/// cannot know whether the request that it sends into the close was run.
const FIRST_REQUEST: Duration = Duration::from_secs(1);

/// Serves a connection to its end. On `stop` the request under way is finished and no
/// other one accepted.
pub(super) async fn serve<S>(
    stream: S,
    peer: SocketAddr,
    router: Router,
    timeouts: Timeouts,
    stop: CancellationToken,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let clock = Arc::new(Clock::new(timeouts));
    let io = TokioIo::new(TimedIo::new(stream, clock.clone()));
    let asked = CancellationToken::new();
    let service = service_fn({
        let asked = asked.clone();
        move |request| {
            asked.cancel();
            // Hyper keeps the room of a future for as long as the connection lasts. That of
            // the routes is large, and an event stream lasts.
            Box::pin(answer(request, peer, router.clone(), clock.clone()))
        }
    });
    let connection = http1::Builder::new()
        .max_buf_size(timeouts.max_header_bytes)
        .serve_connection(io, service)
        .with_upgrades();
    let mut connection = pin!(connection);
    let outcome = tokio::select! {
        outcome = connection.as_mut() => outcome,
        () = stop.cancelled() => {
            let first = tokio::time::timeout(FIRST_REQUEST, asked.cancelled());
            tokio::select! {
                outcome = connection.as_mut() => outcome,
                _asked_or_late = first => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            }
        }
    };
    if let Err(e) = outcome {
        tracing::debug!(%peer, error = %fuse_daemon::log::chain(&e), "connection ended");
    }
}

async fn answer(
    request: hyper::Request<Incoming>,
    peer: SocketAddr,
    router: Router,
    clock: Arc<Clock>,
) -> Result<hyper::Response<Timed>, Infallible> {
    clock.requested();
    let left = Arc::new(AtomicBool::new(false));
    let mut request = request.map(|body| {
        let left = left.clone();
        Body::new(Received {
            body,
            is_over: false,
            left,
        })
    });
    request.extensions_mut().insert(Peer::from(peer));
    let mut response = router.oneshot(request).await?;
    if left.load(Ordering::Relaxed) {
        // The connection cannot go on behind a body that nobody reads. Said in time,
        // so that the client does not send its next request into the close.
        let headers = response.headers_mut();
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        clock.upgraded();
    } else {
        clock.responding(response.extensions().get::<Unhurried>().is_some());
    }
    Ok(response.map(|body| Timed { body, clock }))
}

/// A request body that tells when it was dropped before its end.
struct Received {
    body: Incoming,
    is_over: bool,
    left: Arc<AtomicBool>,
}

impl hyper::body::Body for Received {
    type Data = bytes::Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.body).poll_frame(cx);
        this.is_over |= matches!(polled, Poll::Ready(None));
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        if !self.is_over && !self.body.is_end_stream() {
            self.left.store(true, Ordering::Relaxed);
        }
    }
}

/// A response body that tells the connection's clock when it is over.
struct Timed {
    body: Body,
    clock: Arc<Clock>,
}

impl hyper::body::Body for Timed {
    type Data = bytes::Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.get_mut().body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Timed {
    fn drop(&mut self) {
        self.clock.responded();
    }
}
