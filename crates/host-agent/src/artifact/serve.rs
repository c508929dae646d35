//! Serving an artifact to whoever brings a grant.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use fuse_wire_host::Grant;
use fuse_wire_host::grant::{Claims, GRANT_TTL};
use fuse_wire_host::limits::ARTIFACT_CHUNK;
use tokio::sync::mpsc;

use super::error::ServeError;
use super::{Artifacts, Inner};
use crate::disk::sparse_form;
use crate::file_error::failed;
use crate::snapshot::Held;

/// Chunks that are read ahead of the peer.
const AHEAD: usize = 2;
/// Transfers that are remembered.
const MAX_BEGUN: usize = 4096;

/// An artifact on its way out.
#[derive(Debug)]
pub struct Served {
    /// Bytes of the whole artifact.
    pub total: u64,
    /// The first byte that comes.
    pub from: u64,
    /// The base image that it belongs to, and what opens that.
    pub base: Option<(String, Grant)>,
    /// The bytes. Dropping it ends the reading.
    pub chunks: mpsc::Receiver<io::Result<Vec<u8>>>,
}

/// What is there under a digest.
enum Source {
    Disk(Held),
    Image,
}

impl Artifacts {
    /// Serves the artifact `digest` from byte `from` on; `None` is the whole of it.
    ///
    /// # Errors
    /// See [`ServeError`]. Without a valid grant nothing is looked up.
    pub async fn serve(
        &self,
        digest: &str,
        grant: Option<&Grant>,
        from: Option<u64>,
    ) -> Result<Served, ServeError> {
        let inner = &self.inner;
        let grant = grant.ok_or(ServeError::Forbidden)?;
        let claims = grant.verify(&inner.token, digest);
        let claims = claims.map_err(|_| ServeError::Forbidden)?;
        inner.admit(&claims, from.is_some())?;
        let turn = std::sync::Arc::clone(&inner.serving).try_acquire_owned();
        let turn = turn.map_err(|_| ServeError::Busy)?;
        let (source, file) = inner.find(digest)?;
        let base = match &source {
            Source::Disk(held) => inner.base_of(held),
            Source::Image => None,
        };
        let opened = tokio::task::spawn_blocking(move || {
            let total = source.length(&file);
            total.map(|total| (source, file, total))
        });
        let (source, file, total) = opened
            .await
            .map_err(io::Error::other)
            .and_then(|opened| opened)
            .map_err(failed("read", inner.snapshots.dir()))?;
        let begin = from.unwrap_or(0);
        if from.is_some() && begin >= total {
            return Err(ServeError::Range { total });
        }
        let (sender, chunks) = mpsc::channel(AHEAD);
        let sending = Sending::new(inner, sender);
        tokio::task::spawn_blocking(move || {
            let _turn = turn;
            sending.run(&source, &file, begin);
        });
        Ok(Served {
            total,
            from: begin,
            base,
            chunks,
        })
    }
}

impl Inner {
    /// A grant's expiry bounds the begin of a transfer: one that was begun in time may go on.
    fn admit(&self, claims: &Claims, goes_on: bool) -> Result<(), ServeError> {
        let now = Instant::now();
        if claims.is_open() {
            let until = now + self.settings.transfer_limit;
            self.begun.note(&claims.nonce, now, until);
            return Ok(());
        }
        if goes_on && self.begun.is_known(&claims.nonce, now) {
            return Ok(());
        }
        Err(ServeError::Forbidden)
    }

    fn find(&self, digest: &str) -> Result<(Source, File), ServeError> {
        let (source, path) = if let Some(held) = self.snapshots.hold_digest(digest) {
            let path = held.files().overlay();
            (Source::Disk(held), path)
        } else {
            let image = self.images.pinned(digest);
            (Source::Image, image.map_err(|_| ServeError::NotFound)?.path)
        };
        let file = File::open(&path).map_err(failed("open", &path))?;
        Ok((source, file))
    }

    fn base_of(&self, held: &Held) -> Option<(String, Grant)> {
        let digest = held.stored().view.base_digest.clone()?;
        let grant = Grant::mint(&self.token, &digest, GRANT_TTL).ok()?;
        Some((digest, grant))
    }
}

impl Source {
    fn length(&self, file: &File) -> io::Result<u64> {
        match self {
            Self::Disk(held) => {
                let blocks = held.stored().blocks;
                let blocks = blocks.map_or_else(|| sparse_form::count(file), Ok);
                blocks.map(sparse_form::length)
            }
            Self::Image => Ok(file.metadata()?.len()),
        }
    }
}

/// The reading half: a thread that hands chunks over as the peer takes them.
struct Sending {
    sender: mpsc::Sender<io::Result<Vec<u8>>>,
    runtime: tokio::runtime::Handle,
    shutdown: tokio_util::sync::CancellationToken,
    io_limit: Duration,
    deadline: Instant,
}

impl Sending {
    fn new(inner: &Inner, sender: mpsc::Sender<io::Result<Vec<u8>>>) -> Self {
        Self {
            sender,
            runtime: tokio::runtime::Handle::current(),
            shutdown: inner.shutdown.clone(),
            io_limit: inner.settings.io_limit,
            deadline: Instant::now() + inner.settings.transfer_limit,
        }
    }

    fn run(&self, source: &Source, file: &File, from: u64) {
        let send = |chunk| self.send(chunk);
        let sent = match source {
            Source::Disk(_) => sparse_form::pack(file, from, send),
            Source::Image => raw(file, from, send),
        };
        if let Err(error) = sent {
            tracing::debug!(%error, "an artifact was not served to its end");
            // The answer ends short, which its length gives away.
            let _full_or_gone = self.sender.try_send(Err(error));
        }
    }

    fn send(&self, chunk: Vec<u8>) -> io::Result<()> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        let limit = self.io_limit.min(left);
        self.runtime.block_on(async {
            tokio::select! {
                sent = tokio::time::timeout(limit, self.sender.send(Ok(chunk))) => match sent {
                    Ok(Ok(())) => Ok(()),
                    Ok(Err(_)) => Err(io::Error::other("the peer is gone")),
                    Err(_) => Err(io::Error::other("the peer takes too long")),
                },
                () = self.shutdown.cancelled() => Err(io::Error::other("the agent ends")),
            }
        })
    }
}

fn raw(file: &File, from: u64, mut emit: impl FnMut(Vec<u8>) -> io::Result<()>) -> io::Result<()> {
    let mut at = from;
    loop {
        let mut chunk = vec![0; ARTIFACT_CHUNK];
        let read = file.read_at(&mut chunk, at)?;
        if read == 0 {
            return Ok(());
        }
        chunk.truncate(read);
        at += read as u64;
        emit(chunk)?;
    }
}

/// Transfers that were begun with a grant that was open then.
#[derive(Debug, Default)]
pub(super) struct Begun(Mutex<HashMap<String, Instant>>);

impl Begun {
    fn note(&self, nonce: &str, now: Instant, until: Instant) {
        let mut begun = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        begun.retain(|_, until| *until > now);
        // One that is not remembered has to be done before its grant expires.
        if begun.len() < MAX_BEGUN {
            begun.entry(nonce.to_owned()).or_insert(until);
        }
    }

    fn is_known(&self, nonce: &str, now: Instant) -> bool {
        let begun = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        begun.get(nonce).is_some_and(|until| *until > now)
    }
}
