//! Vsock through a VMM's Unix socket.
//!
//! The host connects to the socket and names a port in a line of text; after the VMM's `OK` the
//! stream is the guest's. A guest that dials the host makes the VMM connect to `<socket>_<port>`.

use std::io;
use std::path::PathBuf;

use async_trait::async_trait;
use fuse_wire_guest::vsock;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};

use crate::unix_socket;

use super::transport::{ChannelError, GuestListener, GuestStream, Transport};

/// The channel of a guest whose VMM serves vsock at a path.
#[derive(Debug)]
pub struct VsockTransport {
    path: PathBuf,
}

impl VsockTransport {
    /// A channel through the VMM's socket at `path`.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self { path }
    }
}

#[async_trait]
impl Transport for VsockTransport {
    async fn dial(&self, port: u32) -> Result<GuestStream, ChannelError> {
        let mut stream =
            unix_socket::connect(&self.path)
                .await
                .map_err(|source| ChannelError::Connect {
                    path: self.path.clone(),
                    source,
                })?;
        let broken = |source| ChannelError::Broken { port, source };
        stream
            .write_all(vsock::connect_line(port).as_bytes())
            .await
            .map_err(broken)?;
        match read_line(&mut stream).await.map_err(broken)? {
            Some(line) if vsock::parse_ok(&line).is_some() => Ok(Box::new(stream)),
            // A VMM closes the connection when the guest refuses the port.
            Some(_) | None => Err(ChannelError::NotServed { port }),
        }
    }

    async fn listen(&self, port: u32) -> Result<Box<dyn GuestListener>, ChannelError> {
        let path = vsock::listener_path(&self.path, port);
        let listener = unix_socket::listen(&path).map_err(|source| ChannelError::Listen {
            path: path.clone(),
            source,
        })?;
        Ok(Box::new(Listener { listener, path }))
    }
}

struct Listener {
    listener: UnixListener,
    path: PathBuf,
}

#[async_trait]
impl GuestListener for Listener {
    async fn accept(&mut self) -> Result<GuestStream, ChannelError> {
        let (stream, _) = self
            .listener
            .accept()
            .await
            .map_err(|source| ChannelError::Listen {
                path: self.path.clone(),
                source,
            })?;
        Ok(Box::new(stream))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _gone = unix_socket::remove(&self.path);
    }
}

/// One line without reading past it: what follows belongs to the stream. `None` at end of stream
/// or for a line longer than the handshake's.
async fn read_line(stream: &mut UnixStream) -> io::Result<Option<String>> {
    let mut line = Vec::with_capacity(vsock::MAX_LINE_BYTES);
    while line.len() < vsock::MAX_LINE_BYTES {
        match stream.read_u8().await {
            Ok(b'\n') => return Ok(String::from_utf8(line).ok()),
            Ok(byte) => line.push(byte),
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(e) => return Err(e),
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_dialled_stream_starts_after_the_handshake() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("v.sock");
        let vmm = UnixListener::bind(&path).unwrap();
        let transport = VsockTransport::new(path);
        let serve = async {
            let (mut stream, _) = vmm.accept().await.unwrap();
            assert_eq!(
                read_line(&mut stream).await.unwrap().as_deref(),
                Some("CONNECT 1024")
            );
            stream.write_all(b"OK 5\nhello").await.unwrap();
        };
        let (stream, ()) = tokio::join!(transport.dial(1024), serve);
        let mut text = String::new();
        stream.unwrap().read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "hello");
    }

    #[tokio::test]
    async fn a_refused_or_endless_handshake_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("v.sock");
        let vmm = UnixListener::bind(&path).unwrap();
        let transport = VsockTransport::new(path);
        let no = b"NO\n".to_vec();
        for answer in [Vec::new(), no, vec![b'x'; 200]] {
            let serve = async {
                let (mut stream, _) = vmm.accept().await.unwrap();
                read_line(&mut stream).await.unwrap();
                stream.write_all(&answer).await.unwrap();
            };
            let (stream, ()) = tokio::join!(transport.dial(7), serve);
            assert!(matches!(
                stream.err(),
                Some(ChannelError::NotServed { port: 7 })
            ));
        }
    }

    #[tokio::test]
    async fn a_listener_takes_streams_and_leaves_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let transport = VsockTransport::new(dir.path().join("v.sock"));
        let path = dir.path().join("v.sock_1025");
        std::fs::write(&path, b"left behind").unwrap();
        let mut listener = transport.listen(1025).await.unwrap();
        let mut guest = UnixStream::connect(&path).await.unwrap();
        guest.write_all(b"x").await.unwrap();
        let mut stream = listener.accept().await.unwrap();
        assert_eq!(stream.read_u8().await.unwrap(), b'x');
        drop(listener);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn a_missing_vmm_is_named() {
        let transport = VsockTransport::new("/nowhere/v.sock".into());
        let error = transport.dial(1).await.err().unwrap();
        assert!(error.to_string().contains("/nowhere/v.sock"), "{error}");
    }
}
