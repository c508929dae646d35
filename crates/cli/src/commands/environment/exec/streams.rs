//! A command's streams on ours, as it goes on.

use std::io::{self, Read as _};

use bytes::Bytes;
use fuse_client::attached::{Exit, Frame, FrameError};
use fuse_client::{ExecStream, Session};
use fuse_wire_api::{ExecFrame, Output};
use futures_util::{Sink, SinkExt as _, Stream, StreamExt as _};
use tokio::sync::mpsc;

use super::Error;
use crate::error::Error as CliError;
use crate::io as streams;

/// Most bytes of input that are read at a time.
const INPUT_BYTES: usize = 64 * 1024;

/// How a command ended.
pub(super) struct Ended {
    pub(super) exit_code: i32,
    pub(super) timed_out: bool,
}

/// Shows what the command writes until it has ended.
pub(super) async fn show(mut stream: ExecStream) -> Result<Ended, CliError> {
    while let Some(frame) = stream.next().await? {
        match frame {
            ExecFrame::Stdout { data } => write(streams::raw_stdout, data).await?,
            ExecFrame::Stderr { data } => write(streams::raw_stderr, data).await?,
            ExecFrame::Exit {
                exit_code,
                timed_out,
                ..
            } => {
                return Ok(Ended {
                    exit_code,
                    timed_out,
                });
            }
            // The client makes an error of it.
            ExecFrame::Error { .. } => break,
        }
    }
    Err(lost("the orchestrator closed it").into())
}

/// The same, and passes our input on. Neither direction waits for the other: two full buffers would
/// wait for each other.
pub(super) async fn relay(session: Session) -> Result<Ended, CliError> {
    let (to_guest, from_guest) = session.split();
    tokio::select! {
        end = output(from_guest) => end,
        end = input(to_guest) => end,
    }
}

async fn output(
    mut frames: impl Stream<Item = Result<Frame, FrameError>> + Unpin,
) -> Result<Ended, CliError> {
    while let Some(frame) = frames.next().await {
        match frame {
            Ok(Frame::Stdout(bytes)) => write(streams::raw_stdout, Output(bytes.into())).await?,
            Ok(Frame::Stderr(bytes)) => write(streams::raw_stderr, Output(bytes.into())).await?,
            Ok(Frame::Exit(Exit {
                exit_code,
                timed_out,
                ..
            })) => {
                return Ok(Ended {
                    exit_code,
                    timed_out,
                });
            }
            Ok(Frame::Stdin(_) | Frame::Resize(_) | Frame::Other(_)) => {}
            Err(error) => return Err(lost(&error.to_string()).into()),
        }
    }
    Err(lost("the guest, its host or the orchestrator went away").into())
}

/// Ends with an error of ours only: what becomes of the command is told by its output.
async fn input<S>(mut frames: S) -> Result<Ended, CliError>
where
    S: Sink<Frame, Error = FrameError> + Unpin,
{
    let mut input = read_stdin().map_err(Error::Input)?;
    loop {
        let bytes = match input.recv().await {
            Some(Ok(bytes)) => bytes,
            Some(Err(error)) => return Err(Error::Input(error).into()),
            // The thread is done: an empty frame has ended the command's input.
            None => return std::future::pending().await,
        };
        // A connection that takes nothing any more has more to say about it as output.
        if frames.send(Frame::Stdin(bytes)).await.is_err() {
            return std::future::pending().await;
        }
    }
}

/// Reads our input on a thread of its own, which nobody waits for: a read cannot be cut off. An empty
/// piece is the end.
fn read_stdin() -> io::Result<mpsc::Receiver<io::Result<Bytes>>> {
    let (queue, input) = mpsc::channel(1);
    let read = move || {
        let mut stdin = io::stdin().lock();
        let mut buffer = vec![0; INPUT_BYTES];
        loop {
            let read = stdin.read(&mut buffer);
            let read = read.map(|count| Bytes::copy_from_slice(&buffer[..count]));
            let last = !matches!(&read, Ok(bytes) if !bytes.is_empty());
            if queue.blocking_send(read).is_err() || last {
                return;
            }
        }
    };
    std::thread::Builder::new().spawn(read)?;
    Ok(input)
}

/// On a thread of its own: a reader of ours that is slow must not stop what goes the other way.
async fn write(to: fn(&[u8]) -> io::Result<()>, data: Output) -> io::Result<()> {
    let written = tokio::task::spawn_blocking(move || to(&data.0)).await;
    written.map_err(io::Error::other)?
}

fn lost(reason: &str) -> Error {
    Error::CommandLost {
        reason: reason.to_owned(),
    }
}
