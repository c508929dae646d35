//! One stream of a multiplexed link, and one that the peer still waits for.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::compat::{Compat, FuturesAsyncReadCompatExt as _};

/// What the acceptor sends in front of its bytes.
pub(super) const ACCEPTED: u8 = 0;

/// A stream that the peer wants to open. Dropping it refuses.
#[derive(Debug)]
pub struct Incoming {
    stream: MuxStream,
}

impl Incoming {
    pub(super) fn new(stream: MuxStream) -> Self {
        Self { stream }
    }

    /// The port that the peer asks for.
    #[must_use]
    pub fn port(&self) -> u32 {
        self.stream.port
    }

    /// Takes the stream: the peer's `open` returns.
    ///
    /// # Errors
    /// The link broke or the peer does not wait any more.
    pub async fn accept(self) -> io::Result<MuxStream> {
        let mut stream = self.stream;
        stream.write_all(&[ACCEPTED]).await?;
        Ok(stream)
    }
}

/// A two-way byte stream. Shutting down the writing side leaves the reading
/// side open; dropping it while the peer still sends resets it.
#[derive(Debug)]
pub struct MuxStream {
    io: Compat<yamux::Stream>,
    port: u32,
    /// Counts this stream against the limit of the side that opened it.
    _slot: OwnedSemaphorePermit,
}

impl MuxStream {
    pub(super) fn new(stream: yamux::Stream, port: u32, slot: OwnedSemaphorePermit) -> Self {
        Self {
            io: stream.compat(),
            port,
            _slot: slot,
        }
    }

    /// The port that the opener asked for.
    #[must_use]
    pub fn port(&self) -> u32 {
        self.port
    }
}

impl AsyncRead for MuxStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl AsyncWrite for MuxStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
