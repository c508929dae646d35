//! Collects what a command writes, within bounds.

use std::io;
use std::sync::Arc;

use tokio::net::unix::pipe;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

const CHUNK: usize = 64 * 1024;
/// Most commands write little: a small buffer first costs fewer page faults.
const FIRST_READ: usize = 4 * 1024;

/// Memory for the output of all running commands together.
#[derive(Debug)]
pub(super) struct Budget {
    chunks: Arc<Semaphore>,
}

impl Budget {
    pub(super) fn new(bytes: usize) -> Self {
        Self {
            chunks: Arc::new(Semaphore::new((bytes / CHUNK).max(1))),
        }
    }

    fn take_chunk(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.chunks).try_acquire_owned().ok()
    }
}

/// One output stream of a command that has ended.
#[derive(Debug, Default)]
pub(super) struct Captured {
    pub(super) bytes: Vec<u8>,
    pub(super) truncated: bool,
    /// The pipe, if a process in the background still holds its other end.
    pub(super) rest: Option<pipe::Receiver>,
    held: Vec<OwnedSemaphorePermit>,
}

impl Captured {
    /// Keeps what fits under `cap` and into the budget.
    fn keep(&mut self, bytes: &[u8], cap: usize, budget: &Budget) {
        let mut count = bytes.len().min(cap - self.bytes.len());
        while self.bytes.len() + count > self.held.len() * CHUNK {
            let Some(chunk) = budget.take_chunk() else {
                count = self.held.len() * CHUNK - self.bytes.len();
                break;
            };
            self.held.push(chunk);
        }
        self.bytes.extend_from_slice(&bytes[..count]);
        self.truncated |= count < bytes.len();
    }
}

/// Reads what is there. Once the writer is known to have ended it asks the pipe itself: the runtime
/// may hear of an end before it has noticed what was written last.
pub(super) fn read_now(
    pipe: &pipe::Receiver,
    buffer: &mut [u8],
    writer_ended: bool,
) -> io::Result<usize> {
    if writer_ended {
        return Ok(rustix::io::read(pipe, buffer)?);
    }
    pipe.try_read(buffer)
}

/// Reads `pipe` until its end, or until `ended` and everything written before
/// that is read. Beyond `cap` the output is read and dropped.
pub(super) async fn capture(
    pipe: Option<pipe::Receiver>,
    cap: usize,
    budget: &Budget,
    ended: &CancellationToken,
) -> Captured {
    let mut captured = Captured::default();
    let Some(pipe) = pipe else { return captured };
    let mut buffer = vec![0; FIRST_READ];
    // After the end no more than one full pipe can have been written before it.
    let mut left = rustix::pipe::fcntl_getpipe_size(&pipe).unwrap_or(CHUNK);
    loop {
        let draining = ended.is_cancelled();
        match read_now(&pipe, &mut buffer, draining) {
            Ok(0) => return captured,
            Ok(count) => {
                captured.keep(&buffer[..count], cap, budget);
                if count == buffer.len() && count < CHUNK {
                    buffer.resize(CHUNK, 0);
                }
                if draining {
                    left = left.saturating_sub(count);
                    if left == 0 {
                        break;
                    }
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if draining {
                    break;
                }
                tokio::select! {
                    readable = pipe.readable() => if readable.is_err() { return captured },
                    () = ended.cancelled() => {}
                }
            }
            Err(_) => return captured,
        }
    }
    captured.rest = Some(pipe);
    captured
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use futures_util::poll;

    use super::*;

    #[tokio::test]
    async fn what_was_written_just_before_the_end_is_kept() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let pipe = pipe::Receiver::from_owned_fd(reader).unwrap();
        let (budget, ended) = (Budget::new(CHUNK), CancellationToken::new());
        let mut capture = std::pin::pin!(capture(Some(pipe), CHUNK, &budget, &ended));
        assert!(poll!(&mut capture).is_pending());
        // The runtime hears of the end before it looks at the pipe again.
        rustix::io::write(&writer, b"last words").unwrap();
        ended.cancel();
        let Poll::Ready(captured) = poll!(&mut capture) else {
            panic!("waits for a pipe that others hold");
        };
        assert_eq!(captured.bytes, b"last words");
        assert!(captured.rest.is_some());
    }
}
