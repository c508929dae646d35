//! Streams between the host's Unix sockets and the guest's ports.
//!
//! ```text
//! host: connect(uds_path), "CONNECT 1024\n" --> open(1024) --> guest's listener
//! host: listens on <uds_path>_1025 <--connect-- accept() <---- guest dials 1025
//! ```
//!
//! A connection that cannot be made is closed without a word, in both
//! directions, as Firecracker does it. Dropping the [`Bridge`] ends all streams.

use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fuse_wire_guest::mux::{Incoming, Mux, MuxOpener, MuxStream, Role};
use fuse_wire_guest::vsock::{MAX_LINE_BYTES, listener_path, ok_line, parse_connect};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::io::{
    AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader,
    copy_bidirectional_with_sizes,
};
use tokio::net::UnixStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::Listener;

/// Firecracker gives the guest 2 s to take a connection; an emulated CPU is
/// about ten times slower.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);

/// Connections at a time, of both directions together; Firecracker's number.
const MAX_CONNECTIONS: usize = 1023;

/// Host-side ports begin here, as Firecracker's do.
const FIRST_HOST_PORT: u32 = 1 << 30;

const COPY_BYTES: usize = 64 * 1024;

/// The running device.
#[derive(Debug)]
pub(crate) struct Bridge {
    /// Holds the one task that runs it; aborts it when dropped.
    _task: JoinSet<()>,
}

impl Bridge {
    /// Serves `listener` from the guest at the other end of `port`, the host's
    /// end of its serial port.
    pub(crate) fn start(listener: Listener, port: UnixStream) -> Self {
        let mut task = JoinSet::new();
        task.spawn(run(listener, port));
        Self { _task: task }
    }
}

async fn run(listener: Listener, port: UnixStream) {
    let port = match port.into_std() {
        Ok(port) => port,
        Err(error) => return tracing::error!(%error, "vsock device has no serial port"),
    };
    // A session ends when the guest starts over; the port lives on.
    while !hung_up(&port) {
        let session = port.try_clone().and_then(UnixStream::from_std);
        match session {
            Ok(session) => serve(&listener, Mux::new(session, Role::Host)).await,
            Err(error) => return tracing::error!(%error, "vsock device lost its serial port"),
        }
        tracing::debug!("vsock session ended");
    }
}

/// Whether QEMU has closed its end.
fn hung_up(port: &std::os::unix::net::UnixStream) -> bool {
    let mut fds = [PollFd::new(port.as_fd(), PollFlags::empty())];
    let polled = poll(&mut fds, PollTimeout::ZERO);
    polled.is_err() || fds[0].any() == Some(true)
}

/// Serves one session, to its end.
async fn serve(listener: &Listener, mut mux: Mux) {
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut streams = JoinSet::new();
    let mut host_port = FIRST_HOST_PORT;
    loop {
        tokio::select! {
            accepted = listener.socket().accept() => match accepted {
                Ok((stream, _)) => {
                    let Ok(slot) = Arc::clone(&slots).try_acquire_owned() else {
                        tracing::warn!(limit = MAX_CONNECTIONS, "vsock connection refused: too many are open");
                        continue;
                    };
                    let opener = mux.opener();
                    let port = host_port;
                    host_port = host_port.checked_add(1).unwrap_or(FIRST_HOST_PORT);
                    streams.spawn(async move {
                        to_guest(stream, &opener, port).await;
                        drop(slot);
                    });
                }
                Err(error) => {
                    tracing::error!(%error, "vsock connection lost");
                    tokio::task::yield_now().await;
                }
            },
            incoming = mux.accept() => {
                let Some(incoming) = incoming else { return };
                let Ok(slot) = Arc::clone(&slots).try_acquire_owned() else {
                    tracing::warn!(limit = MAX_CONNECTIONS, "vsock connection of the guest refused: too many are open");
                    continue;
                };
                let path = listener_path(listener.path(), incoming.port());
                streams.spawn(async move {
                    to_host(incoming, path).await;
                    drop(slot);
                });
            }
            Some(_) = streams.join_next() => {}
        }
    }
}

/// Serves a connection that the host made.
async fn to_guest(stream: UnixStream, opener: &MuxOpener, host_port: u32) {
    let mut stream = BufReader::new(stream);
    let Some(port) = requested_port(&mut stream).await else {
        tracing::debug!("vsock connection without a CONNECT line");
        return;
    };
    let guest = match tokio::time::timeout(CONNECT_TIMEOUT, opener.open(port)).await {
        Ok(Ok(guest)) => guest,
        Ok(Err(error)) => {
            return tracing::debug!(port, %error, "vsock connection refused by the guest");
        }
        Err(_) => return tracing::debug!(port, "vsock connection was not taken by the guest"),
    };
    match stream.write_all(ok_line(host_port).as_bytes()).await {
        Ok(()) => splice(stream, guest, port).await,
        Err(error) => tracing::debug!(port, %error, "vsock client is gone"),
    }
}

/// Reads the line that names the port; nothing behind it is lost.
async fn requested_port(stream: &mut BufReader<UnixStream>) -> Option<u32> {
    let mut line = Vec::new();
    let mut limited = (&mut *stream).take(MAX_LINE_BYTES as u64);
    limited.read_until(b'\n', &mut line).await.ok()?;
    let line = String::from_utf8(line).ok()?;
    line.ends_with('\n').then(|| parse_connect(&line)).flatten()
}

/// Serves a connection that the guest wants; it learns whether the host listens.
async fn to_host(guest: Incoming, path: PathBuf) {
    let port = guest.port();
    let host = match UnixStream::connect(&path).await {
        Ok(host) => host,
        Err(error) => {
            tracing::debug!(port, path = %path.display(), %error, "vsock connection refused by the host");
            return;
        }
    };
    match guest.accept().await {
        Ok(guest) => splice(host, guest, port).await,
        Err(error) => tracing::debug!(port, %error, "the guest gave up its vsock connection"),
    }
}

async fn splice<T>(mut host: T, mut guest: MuxStream, port: u32)
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let copied = copy_bidirectional_with_sizes(&mut host, &mut guest, COPY_BYTES, COPY_BYTES).await;
    match copied {
        Ok((sent, received)) => tracing::debug!(port, sent, received, "vsock connection ended"),
        Err(error) => tracing::debug!(port, %error, "vsock connection broke"),
    }
}
