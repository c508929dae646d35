//! Many streams over a VMM's virtio-serial port.
//!
//! The port is one Unix socket with no connections inside, so streams are multiplexed over it. One
//! task owns the session: it is started by the first call, handed to everybody, and started anew
//! when it has ended (the VMM was replaced, or the agent restarted).

use std::collections::HashMap;
use std::path::PathBuf;

use async_trait::async_trait;
use fuse_wire_guest::mux::{Incoming, MuxError, MuxOpener};
use fuse_wire_guest::{Mux, Role};
use futures_util::FutureExt as _;
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use super::transport::{ChannelError, GuestListener, GuestStream, Transport};

/// Calls that may wait for the session's owner.
const QUEUE: usize = 32;
/// Streams of a guest that may wait to be taken, per port; more are dropped.
const BACKLOG: usize = 16;

/// The channel of a guest whose VMM serves a virtio-serial port at a path.
#[derive(Debug)]
pub struct SerialTransport {
    requests: mpsc::Sender<Request>,
    _owner: JoinSet<()>,
}

enum Request {
    Opener(oneshot::Sender<Result<MuxOpener, ChannelError>>),
    Listen {
        port: u32,
        streams: mpsc::Sender<Incoming>,
        reply: oneshot::Sender<Result<(), ChannelError>>,
    },
}

impl SerialTransport {
    /// A channel through the port's socket at `path`. Must be called within a tokio runtime.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        let (requests, inbox) = mpsc::channel(QUEUE);
        let mut tasks = JoinSet::new();
        tasks.spawn(
            Owner {
                path,
                mux: None,
                listeners: HashMap::new(),
            }
            .run(inbox),
        );
        Self {
            requests,
            _owner: tasks,
        }
    }

    async fn ask<T>(
        &self,
        request: impl FnOnce(oneshot::Sender<Result<T, ChannelError>>) -> Request,
    ) -> Result<T, ChannelError> {
        let (reply, answer) = oneshot::channel();
        self.requests
            .send(request(reply))
            .await
            .map_err(|_| ChannelError::Closed)?;
        answer.await.map_err(|_| ChannelError::Closed)?
    }
}

#[async_trait]
impl Transport for SerialTransport {
    async fn dial(&self, port: u32) -> Result<GuestStream, ChannelError> {
        // A session that died is noticed by the first call on it; the second gets a new one.
        let first = self.ask(Request::Opener).await?.open(port).await;
        let stream = match first {
            Err(MuxError::Closed) => self.ask(Request::Opener).await?.open(port).await,
            first => first,
        };
        match stream {
            Ok(stream) => Ok(Box::new(stream)),
            Err(MuxError::Refused { port }) => Err(ChannelError::NotServed { port }),
            Err(error) => Err(ChannelError::Broken {
                port,
                source: std::io::Error::other(error),
            }),
        }
    }

    async fn listen(&self, port: u32) -> Result<Box<dyn GuestListener>, ChannelError> {
        let (streams, inbound) = mpsc::channel(BACKLOG);
        self.ask(|reply| Request::Listen {
            port,
            streams,
            reply,
        })
        .await?;
        Ok(Box::new(Listener { inbound }))
    }
}

struct Listener {
    inbound: mpsc::Receiver<Incoming>,
}

#[async_trait]
impl GuestListener for Listener {
    async fn accept(&mut self) -> Result<GuestStream, ChannelError> {
        loop {
            let incoming = self.inbound.recv().await.ok_or(ChannelError::Closed)?;
            // A guest that does not wait any more is no reason to stop listening.
            if let Ok(stream) = incoming.accept().await {
                return Ok(Box::new(stream));
            }
        }
    }
}

struct Owner {
    path: PathBuf,
    mux: Option<Mux>,
    listeners: HashMap<u32, mpsc::Sender<Incoming>>,
}

impl Owner {
    async fn run(mut self, mut inbox: mpsc::Receiver<Request>) {
        loop {
            // Without a session only a request can happen.
            let inbound = async {
                match &mut self.mux {
                    Some(mux) => mux.accept().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                request = inbox.recv() => match request {
                    Some(request) => self.answer(request).await,
                    None => return,
                },
                stream = inbound => match stream {
                    Some(stream) => self.deliver(stream),
                    None => self.mux = None,
                },
            }
        }
    }

    async fn answer(&mut self, request: Request) {
        // Who asked may be gone; the session stays for the next.
        match request {
            Request::Opener(reply) => {
                let _gone = reply.send(self.session().await.map(Mux::opener));
            }
            Request::Listen {
                port,
                streams,
                reply,
            } => {
                let ready = self.session().await.map(drop);
                if ready.is_ok() {
                    self.listeners.insert(port, streams);
                }
                let _gone = reply.send(ready);
            }
        }
    }

    async fn session(&mut self) -> Result<&Mux, ChannelError> {
        // Dead already, though its end has not been taken note of.
        let is_dead = |mux: &Mux| mux.opener().closed().now_or_never().is_some();
        let mux = match self.mux.take() {
            Some(mux) if !is_dead(&mux) => mux,
            _ => {
                let port = UnixStream::connect(&self.path).await.map_err(|source| {
                    ChannelError::Connect {
                        path: self.path.clone(),
                        source,
                    }
                })?;
                Mux::new(port, Role::Host)
            }
        };
        Ok(self.mux.insert(mux))
    }

    /// Streams for a port that nobody listens on, or that is full, are closed by dropping them.
    fn deliver(&mut self, stream: Incoming) {
        let port = stream.port();
        let Some(listener) = self.listeners.get(&port) else {
            return;
        };
        if let Err(mpsc::error::TrySendError::Closed(_)) = listener.try_send(stream) {
            self.listeners.remove(&port);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::UnixListener;

    #[tokio::test]
    async fn streams_go_both_ways_and_a_new_session_replaces_a_dead_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("serial");
        let port = UnixListener::bind(&path).unwrap();
        let transport = SerialTransport::new(path);
        // The guest's end of the port, twice: the VMM is replaced in between.
        for _session in 0..2 {
            let guest = async {
                let (io, _) = port.accept().await.unwrap();
                let mut guest = Mux::new(io, Role::Guest);
                let call = guest.accept().await.unwrap();
                assert_eq!(call.port(), 1024);
                let mut call = call.accept().await.unwrap();
                call.write_all(b"answer").await.unwrap();
                call.shutdown().await.unwrap();
                let mut ready = guest.open(1025).await.unwrap();
                ready.write_all(b"ready").await.unwrap();
                ready.shutdown().await.unwrap();
                let mut end = Vec::new();
                call.read_to_end(&mut end).await.unwrap();
                ready.read_to_end(&mut end).await.unwrap();
            };
            let host = async {
                let mut listener = transport.listen(1025).await.unwrap();
                let mut text = String::new();
                let mut stream = transport.dial(1024).await.unwrap();
                stream.read_to_string(&mut text).await.unwrap();
                drop(stream);
                listener
                    .accept()
                    .await
                    .unwrap()
                    .read_to_string(&mut text)
                    .await
                    .unwrap();
                assert_eq!(text, "answerready");
            };
            tokio::join!(guest, host);
        }
    }

    #[tokio::test]
    async fn a_missing_port_is_named() {
        let transport = SerialTransport::new("/nowhere/serial".into());
        let error = transport.dial(1).await.err().unwrap();
        assert!(error.to_string().contains("/nowhere/serial"), "{error}");
    }
}
