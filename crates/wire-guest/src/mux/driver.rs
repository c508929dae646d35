//! The task that owns a link: it runs sessions and hands streams to both sides.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, Stream as _};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio_util::compat::{FuturesAsyncReadCompatExt as _, TokioAsyncReadCompatExt as _};

use super::handshake::handshake;
use super::link::{Link, MAX_PAYLOAD};
use super::stream::{Incoming, MuxStream};
use super::{MAX_STREAMS, Role};

/// A peer that opens a stream must name its port within this time.
const PREFACE_TIMEOUT: Duration = Duration::from_secs(10);

/// yamux ends the whole connection when its own limit is reached, so that
/// limit lies out of the way of the ones that both sides keep per stream.
const PROTOCOL_MAX_STREAMS: usize = 4096;

#[derive(Debug)]
pub(super) struct OpenRequest {
    pub(super) reply: oneshot::Sender<yamux::Stream>,
}

pub(super) struct Driver {
    role: Role,
    requests: mpsc::Receiver<OpenRequest>,
    inbound: mpsc::Sender<Incoming>,
    /// Streams of the peer that are in use here.
    slots: Arc<Semaphore>,
}

type Preface = Pin<Box<dyn Future<Output = Option<Incoming>> + Send>>;

impl Driver {
    pub(super) fn new(
        role: Role,
        requests: mpsc::Receiver<OpenRequest>,
        inbound: mpsc::Sender<Incoming>,
    ) -> Self {
        Self {
            role,
            requests,
            inbound,
            slots: Arc::new(Semaphore::new(MAX_STREAMS)),
        }
    }

    /// Runs until the link ends or, on the host, its session does.
    pub(super) async fn run<T>(mut self, io: T)
    where
        T: AsyncRead + AsyncWrite + Unpin + Send,
    {
        let mut link = Link::new(io);
        loop {
            if let Err(error) = handshake(&mut link, self.role).await {
                log_end(&error);
                return;
            }
            tracing::debug!(role = ?self.role, "mux session started");
            self.session(&mut link).await;
            if self.role == Role::Host || link.ended() {
                return;
            }
        }
    }

    async fn session<T>(&mut self, link: &mut Link<T>)
    where
        T: AsyncRead + AsyncWrite + Unpin + Send,
    {
        let mut config = yamux::Config::default();
        config
            .set_max_num_streams(PROTOCOL_MAX_STREAMS)
            .set_split_send_size(MAX_PAYLOAD);
        let mode = match self.role {
            Role::Host => yamux::Mode::Client,
            Role::Guest => yamux::Mode::Server,
        };
        let mut connection = yamux::Connection::new(link.compat(), config, mode);
        let mut prefaces = FuturesUnordered::new();
        let mut waiting = None;
        poll_fn(|cx| {
            loop {
                match connection.poll_next_inbound(cx) {
                    Poll::Ready(Some(Ok(stream))) => {
                        prefaces.extend(self.admit(stream));
                        continue;
                    }
                    Poll::Ready(Some(Err(error))) => {
                        tracing::debug!(error = %error, "mux session broke");
                        return Poll::Ready(());
                    }
                    Poll::Ready(None) => return Poll::Ready(()),
                    Poll::Pending => {}
                }
                let opened = self.poll_open(cx, &mut connection, &mut waiting);
                let named = self.poll_prefaces(cx, &mut prefaces);
                if !opened && !named {
                    return Poll::Pending;
                }
            }
        })
        .await;
    }

    /// Starts to read the port of a stream that the peer opened. Beyond the
    /// limit of streams the stream is reset instead.
    fn admit(&self, stream: yamux::Stream) -> Option<Preface> {
        match Arc::clone(&self.slots).try_acquire_owned() {
            Ok(slot) => Some(Box::pin(preface(stream, slot))),
            Err(_) => {
                tracing::warn!(limit = MAX_STREAMS, "mux stream refused: too many are open");
                None
            }
        }
    }

    /// Serves one request to open a stream; true if there was one.
    fn poll_open<T>(
        &mut self,
        cx: &mut Context<'_>,
        connection: &mut yamux::Connection<T>,
        waiting: &mut Option<OpenRequest>,
    ) -> bool
    where
        T: futures_util::AsyncRead + futures_util::AsyncWrite + Unpin,
    {
        if waiting.is_none() {
            match self.requests.poll_recv(cx) {
                Poll::Ready(Some(request)) => *waiting = Some(request),
                // All handles are gone; the task is about to be aborted.
                Poll::Ready(None) | Poll::Pending => return false,
            }
        }
        match connection.poll_new_outbound(cx) {
            Poll::Ready(Ok(stream)) => {
                if let Some(request) = waiting.take() {
                    // Nobody waits any more: the stream resets itself.
                    drop(request.reply.send(stream));
                }
                true
            }
            Poll::Ready(Err(_)) => {
                // The connection is closing; the request is told by its reply going away.
                *waiting = None;
                true
            }
            Poll::Pending => false,
        }
    }

    /// Hands out streams whose port is known; true if there was one.
    fn poll_prefaces(
        &self,
        cx: &mut Context<'_>,
        prefaces: &mut FuturesUnordered<Preface>,
    ) -> bool {
        match Pin::new(prefaces).poll_next(cx) {
            Poll::Ready(Some(Some(stream))) => {
                // Has room for every stream that holds a slot. If the receiver
                // is gone the stream resets itself.
                drop(self.inbound.try_send(stream));
                true
            }
            Poll::Ready(Some(None)) => true,
            Poll::Ready(None) | Poll::Pending => false,
        }
    }
}

async fn preface(stream: yamux::Stream, slot: OwnedSemaphorePermit) -> Option<Incoming> {
    let mut stream = stream.compat();
    let mut port = [0; 4];
    let read = tokio::time::timeout(PREFACE_TIMEOUT, stream.read_exact(&mut port)).await;
    match read {
        Ok(Ok(_)) => {
            let port = u32::from_be_bytes(port);
            Some(Incoming::new(MuxStream::new(
                stream.into_inner(),
                port,
                slot,
            )))
        }
        Ok(Err(_)) | Err(_) => None,
    }
}

fn log_end(error: &io::Error) {
    if error.kind() == io::ErrorKind::UnexpectedEof {
        tracing::debug!("mux link closed");
    } else {
        tracing::debug!(error = %error, "mux link broke");
    }
}
