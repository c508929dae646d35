//! The two things a channel to a guest can do: dial in, and wait to be dialled.

use std::fmt::Debug;
use std::path::PathBuf;

use async_trait::async_trait;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};

/// A two-way byte stream to a guest.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// A boxed [`ByteStream`].
pub type GuestStream = Box<dyn ByteStream>;

/// A way to byte streams into one guest.
#[async_trait]
pub trait Transport: Debug + Send + Sync {
    /// Opens a stream to `port` of the guest. Callers set the bound.
    ///
    /// # Errors
    /// The VMM is gone, or nothing serves the port.
    async fn dial(&self, port: u32) -> Result<GuestStream, ChannelError>;

    /// Waits for the guest to dial `port` of the host. Must be called before the guest boots.
    ///
    /// # Errors
    /// The channel cannot be listened on.
    async fn listen(&self, port: u32) -> Result<Box<dyn GuestListener>, ChannelError>;
}

/// Takes streams that the guest opens. Dropping it stops listening.
#[async_trait]
pub trait GuestListener: Send {
    /// The next stream.
    ///
    /// # Errors
    /// The channel is gone.
    async fn accept(&mut self) -> Result<GuestStream, ChannelError>;
}

/// A channel that does not work.
#[derive(Debug, Error)]
pub enum ChannelError {
    /// The channel's socket cannot be reached.
    #[error("cannot reach the guest's channel {}", .path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// The reason.
        #[source]
        source: std::io::Error,
    },
    /// The guest does not take connections on the port.
    #[error("nothing answers on port {port} of the guest")]
    NotServed {
        /// The port.
        port: u32,
    },
    /// The channel broke while a stream was opened.
    #[error("the guest's channel broke while port {port} was dialled")]
    Broken {
        /// The port.
        port: u32,
        /// The reason.
        #[source]
        source: std::io::Error,
    },
    /// A socket for the guest to dial could not be made.
    #[error("cannot listen on {}", .path.display())]
    Listen {
        /// The socket.
        path: PathBuf,
        /// The reason.
        #[source]
        source: std::io::Error,
    },
    /// The channel is closed.
    #[error("the guest's channel is closed")]
    Closed,
}
