//! Many streams over one byte stream: yamux over a virtio-serial port.
//!
//! Either side opens streams: the opener writes the port it wants, four bytes
//! big-endian, the acceptor answers with one zero byte, and from then on both
//! own a plain two-way byte stream. A refused stream is reset instead.
//!
//! ```text
//! host                                guest
//!  | padding, hello(session) ---------> |   Mux::new on either side
//!  | <--------- padding, ack(session)   |
//!  | <======= yamux frames =======>     |   open / accept
//! ```
//!
//! A serial port has no connections: after the host side was replaced (an
//! emulator restarted, a guest resumed from a snapshot) the guest still sits in
//! a session that nobody speaks any more, perhaps in the middle of a frame. The
//! padding is longer than any frame and cannot start one, so whatever the guest
//! was reading ends there, and it joins the new session. A guest's [`Mux`]
//! therefore lives as long as its port; a host's lives for one session, and the
//! host makes a new one on the same port when it has ended.
//!
//! Used by `fused`, `fc-emulator` and whatever else drives QEMU.

mod driver;
mod handshake;
mod link;
mod stream;

#[cfg(test)]
mod tests;

pub use stream::{Incoming, MuxStream};

use std::io;
use std::sync::Arc;

use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;

use driver::{Driver, OpenRequest};

/// Streams that one side may have open at a time; each side enforces it for
/// itself on opening and for the peer on accepting.
pub const MAX_STREAMS: usize = 256;

/// Which end of the link this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Starts sessions.
    Host,
    /// Joins the session that the host starts, as often as it does.
    Guest,
}

/// Why a stream could not be opened.
#[derive(Debug, Error)]
pub enum MuxError {
    /// The link or the session ended.
    #[error("the link to the peer is closed")]
    Closed,
    /// Nobody serves the port on the other side.
    #[error("the peer refused a stream to port {port}")]
    Refused {
        /// Port that was asked for.
        port: u32,
    },
    /// The stream broke while it was opened.
    #[error("stream to port {port} broke while it was opened")]
    Broken {
        /// Port that was asked for.
        port: u32,
        /// What happened.
        #[source]
        source: io::Error,
    },
}

/// One end of a multiplexed link. Dropping it ends all of its streams.
#[derive(Debug)]
pub struct Mux {
    opener: MuxOpener,
    inbound: mpsc::Receiver<Incoming>,
    /// Holds the one task that moves the bytes; aborts it when dropped.
    _driver: JoinSet<()>,
}

impl Mux {
    /// Starts to speak on `io`. Returns at once: streams that are opened before
    /// the peer answers wait for it.
    ///
    /// Must be called within a tokio runtime.
    pub fn new<T>(io: T, role: Role) -> Self
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (requests, request_queue) = mpsc::channel(16);
        let (inbound_queue, inbound) = mpsc::channel(MAX_STREAMS);
        let mut driver = JoinSet::new();
        driver.spawn(Driver::new(role, request_queue, inbound_queue).run(io));
        let opener = MuxOpener {
            requests,
            slots: Arc::new(Semaphore::new(MAX_STREAMS)),
        };
        Self {
            opener,
            inbound,
            _driver: driver,
        }
    }

    /// A handle that opens streams and can be shared.
    #[must_use]
    pub fn opener(&self) -> MuxOpener {
        self.opener.clone()
    }

    /// Opens a stream to `port` of the peer. See [`MuxOpener::open`].
    ///
    /// # Errors
    /// The link is closed or breaks meanwhile.
    pub async fn open(&self, port: u32) -> Result<MuxStream, MuxError> {
        self.opener.open(port).await
    }

    /// The next stream that the peer wants to open, `None` once the link is closed.
    ///
    /// # Cancel safety
    /// Safe: no stream is lost.
    pub async fn accept(&mut self) -> Option<Incoming> {
        self.inbound.recv().await
    }
}

/// Opens streams of a [`Mux`]; cheap to clone.
#[derive(Clone, Debug)]
pub struct MuxOpener {
    requests: mpsc::Sender<OpenRequest>,
    slots: Arc<Semaphore>,
}

impl MuxOpener {
    /// Opens a stream to `port` of the peer. Waits while the peer has not joined
    /// the session or not answered and while [`MAX_STREAMS`] are open, without a
    /// limit of its own.
    ///
    /// # Errors
    /// The peer refuses, or the link is closed or breaks meanwhile.
    ///
    /// # Cancel safety
    /// Safe: a stream that nobody waits for any more is closed.
    pub async fn open(&self, port: u32) -> Result<MuxStream, MuxError> {
        let slot = Arc::clone(&self.slots)
            .acquire_owned()
            .await
            .map_err(|_| MuxError::Closed)?;
        let (reply, stream) = oneshot::channel();
        self.requests
            .send(OpenRequest { reply })
            .await
            .map_err(|_| MuxError::Closed)?;
        let stream = stream.await.map_err(|_| MuxError::Closed)?;
        let mut stream = MuxStream::new(stream, port, slot);
        let broken = |source| MuxError::Broken { port, source };
        stream
            .write_all(&port.to_be_bytes())
            .await
            .map_err(broken)?;
        let mut answer = [0];
        match stream.read(&mut answer).await.map_err(broken)? {
            1 if answer == [stream::ACCEPTED] => {}
            _ => return Err(MuxError::Refused { port }),
        }
        Ok(stream)
    }

    /// Resolves when the link is closed for good.
    pub async fn closed(&self) {
        self.requests.closed().await;
    }
}
