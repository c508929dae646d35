//! A command attached to a connection that speaks `fuse-attach/1`.
//!
//! Both directions are bounded: output is read from the command only as fast as the client takes
//! it, and input from the client only as fast as the command takes it. A client that goes away ends
//! the command with everything it started; a command that ends has its last output delivered, then
//! its exit status.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use fuse_wire_attach::{Codec, Exit, Frame, MAX_OUTPUT_FRAME, Request};
use fuse_wire_guest::control::ExecRequest;
use futures_util::{SinkExt as _, StreamExt as _};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadHalf, WriteHalf};
use tokio::net::unix::pipe;
use tokio::sync::{Mutex, OwnedSemaphorePermit, mpsc};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::codec::{FramedRead, FramedWrite};
use tokio_util::task::TaskTracker;

use super::capture::read_now;
use super::command::{Launched, Running};
use super::terminal::{Terminal, login_shell};
use super::{ExecError, Executor, Outcome, discard, exit_code_of};
use crate::exec::command;

/// Without a limit of the caller's.
const NO_LIMIT: Duration = Duration::from_secs(365 * 24 * 3600);
/// Frames of input that wait for the command; each may be large.
const INPUT_FRAMES: usize = 1;
/// After the command has ended, a process that it left behind may still hold its terminal.
const LAST_OUTPUT: Duration = Duration::from_millis(500);
/// How long a client may take for the last frames.
const FAREWELL: Duration = Duration::from_secs(60);
const TERM: &str = "xterm-256color";

/// A command that was started for a client that is about to be connected.
#[derive(Debug)]
pub(crate) struct Attached {
    launched: Launched,
    terminal: Option<Terminal>,
    limit: Duration,
    background: TaskTracker,
    _slot: OwnedSemaphorePermit,
}

impl Executor {
    /// Starts a command. Dropping the result ends it.
    ///
    /// # Errors
    /// The request is invalid, or the guest has no room for another process.
    pub(crate) async fn attach(&self, request: Request) -> Result<Attached, ExecError> {
        let slot = self.attach_slot()?;
        let limit = request.timeout_ms.map_or(NO_LIMIT, Duration::from_millis);
        let stdin = request.stdin;
        let (terminal, side) = if request.tty {
            let opened = Terminal::open(request.rows, request.cols);
            let (terminal, side) = opened.map_err(ExecError::Start)?;
            (Some(terminal), Some(side))
        } else {
            (None, None)
        };
        let exec = exec_request(request);
        command::check(&exec)?;
        let streams = match side {
            Some(side) => command::Streams::Terminal(side),
            None => command::Streams::Pipes { stdin },
        };
        let launched = self.launch(exec, streams).await?;
        Ok(Attached {
            launched,
            terminal,
            limit,
            background: self.background.clone(),
            _slot: slot,
        })
    }
}

fn exec_request(request: Request) -> ExecRequest {
    let mut exec = ExecRequest {
        cmd: request.cmd,
        cwd: request.cwd,
        timeout_ms: 1,
        ..ExecRequest::default()
    };
    if exec.cmd.is_empty() {
        exec.cmd = vec![login_shell(), "-l".to_owned()];
    }
    if request.tty {
        let term = request.term.unwrap_or_else(|| TERM.to_owned());
        exec.env.insert("TERM".to_owned(), term);
    }
    exec
}

type Frames<S> = Mutex<FramedWrite<WriteHalf<S>, Codec>>;

impl Attached {
    /// Serves the client until the command has ended or the client is gone.
    pub(crate) async fn serve<S: AsyncRead + AsyncWrite>(self, stream: S) {
        let (read, write) = tokio::io::split(stream);
        let output = Mutex::new(FramedWrite::new(write, Codec));
        let exit = match self.launched {
            Launched::Running(running) => {
                let client = FramedRead::new(read, Codec);
                match run(running, self.terminal, self.limit, client, &output).await {
                    Some((exit, left)) => {
                        // What is left in the background is not to end by a pipe nobody reads.
                        for pipe in left {
                            self.background.spawn(discard(pipe));
                        }
                        exit
                    }
                    // Nobody is there to be told.
                    None => return,
                }
            }
            Launched::Refused { exit_code, reason } => {
                let text = Bytes::from(reason);
                let frame = match self.terminal {
                    Some(_) => Frame::Stdout(text),
                    None => Frame::Stderr(text),
                };
                let _gone = output.lock().await.send(frame).await;
                Exit {
                    exit_code,
                    ..Exit::default()
                }
            }
        };
        let mut output = output.into_inner();
        let farewell = async {
            output.send(Frame::Exit(exit)).await?;
            output.get_mut().shutdown().await?;
            Ok::<_, fuse_wire_attach::FrameError>(())
        };
        // A client that left right at the end has missed nothing that it could still get.
        let _gone = timeout(FAREWELL, farewell).await;
    }
}

/// Moves bytes until the command has ended; `None` when the client went away first.
async fn run<S: AsyncRead + AsyncWrite>(
    mut running: Running,
    terminal: Option<Terminal>,
    limit: Duration,
    client: FramedRead<ReadHalf<S>, Codec>,
    output: &Frames<S>,
) -> Option<(Exit, Vec<pipe::Receiver>)> {
    let (queue, mut input) = mpsc::channel(INPUT_FRAMES);
    let stdin = running.stdin.take();
    let (stdout, stderr) = (running.stdout.take(), running.stderr.take());
    let terminal = terminal.as_ref();
    let listen = listen(client, terminal, queue);
    let feed = async {
        match terminal {
            Some(terminal) => feed_terminal(terminal, &mut input).await,
            None => feed_pipe(stdin, &mut input).await,
        }
        // The client is listened to all the same.
        std::future::pending::<()>().await;
    };
    let (ended, end) = tokio::sync::watch::channel(None);
    let show = async {
        match terminal {
            Some(terminal) => {
                let shown = show_terminal(terminal, output, end).await;
                shown.map(|()| Vec::new())
            }
            None => {
                let out = show_pipe(stdout, Frame::Stdout, output, end.clone());
                let err = show_pipe(stderr, Frame::Stderr, output, end);
                let left = tokio::try_join!(out, err);
                left.map(|(out, err)| out.into_iter().chain(err).collect())
            }
        }
    };
    let finish = async {
        let outcome = running.wait(limit).await;
        ended.send_replace(Some(Instant::now()));
        outcome
    };
    let work = async { tokio::join!(finish, show) };
    let (outcome, shown) = tokio::select! {
        done = work => done,
        () = listen => return None,
        () = feed => return None,
    };
    Some((exit_of(outcome), shown.ok()?))
}

fn exit_of(outcome: Outcome) -> Exit {
    let (exit_code, signal) = exit_code_of(outcome);
    Exit {
        exit_code,
        timed_out: outcome.timed_out,
        signal,
    }
}

/// Takes frames until the client is gone or talks nonsense.
async fn listen<S: AsyncRead>(
    mut client: FramedRead<ReadHalf<S>, Codec>,
    terminal: Option<&Terminal>,
    queue: mpsc::Sender<Bytes>,
) {
    while let Some(Ok(frame)) = client.next().await {
        match (frame, terminal) {
            (Frame::Stdin(bytes), Some(_)) if bytes.is_empty() => {}
            (Frame::Stdin(bytes), _) => {
                // A command that has closed its input does not want this.
                let _unwanted = queue.send(bytes).await;
            }
            (Frame::Resize(size), Some(terminal)) => {
                if let Some((rows, cols)) = size.size()
                    && let Err(error) = terminal.resize(rows, cols)
                {
                    tracing::debug!(%error, "terminal keeps its size");
                }
            }
            _ => {}
        }
    }
}

async fn feed_terminal(terminal: &Terminal, input: &mut mpsc::Receiver<Bytes>) {
    while let Some(bytes) = input.recv().await {
        if terminal.write(&bytes).await.is_err() {
            return input.close();
        }
    }
}

/// An empty frame ends the command's input.
async fn feed_pipe(pipe: Option<pipe::Sender>, input: &mut mpsc::Receiver<Bytes>) {
    let Some(mut pipe) = pipe else {
        return input.close();
    };
    while let Some(bytes) = input.recv().await {
        if bytes.is_empty() || pipe.write_all(&bytes).await.is_err() {
            return input.close();
        }
    }
}

/// When the command ended.
type End = tokio::sync::watch::Receiver<Option<Instant>>;

async fn show_terminal<S: AsyncWrite>(
    terminal: &Terminal,
    output: &Frames<S>,
    mut end: End,
) -> io::Result<()> {
    let mut buffer = vec![0; MAX_OUTPUT_FRAME];
    loop {
        let read = tokio::select! {
            biased;
            read = terminal.read(&mut buffer) => read,
            () = quiet(&mut end) => None,
        };
        let Some(count) = read else { return Ok(()) };
        send(
            output,
            Frame::Stdout(Bytes::copy_from_slice(&buffer[..count])),
        )
        .await?;
    }
}

/// Resolves some time after the command's end.
async fn quiet(end: &mut End) {
    let ended = end.wait_for(Option::is_some).await.ok().and_then(|at| *at);
    let until = ended.unwrap_or_else(Instant::now) + LAST_OUTPUT;
    let _elapsed = timeout_at(until, std::future::pending::<()>()).await;
}

async fn show_pipe<S: AsyncWrite>(
    pipe: Option<pipe::Receiver>,
    frame: fn(Bytes) -> Frame,
    output: &Frames<S>,
    mut end: End,
) -> io::Result<Option<pipe::Receiver>> {
    let Some(pipe) = pipe else { return Ok(None) };
    let mut buffer = vec![0; MAX_OUTPUT_FRAME];
    // After the end no more than one full pipe can have been written before it; others may hold the
    // pipe for ever.
    let mut left = rustix::pipe::fcntl_getpipe_size(&pipe).unwrap_or(MAX_OUTPUT_FRAME);
    loop {
        let over = end.borrow().is_some();
        match read_now(&pipe, &mut buffer, over) {
            Ok(0) => return Ok(None),
            Ok(count) => {
                send(output, frame(Bytes::copy_from_slice(&buffer[..count]))).await?;
                if over {
                    left = left.saturating_sub(count);
                }
                if left == 0 {
                    return Ok(Some(pipe));
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && over => {
                return Ok(Some(pipe));
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                tokio::select! {
                    readable = pipe.readable() => readable?,
                    _ = end.wait_for(Option::is_some) => {}
                }
            }
            Err(error) => return Err(error),
        }
    }
}

async fn send<S: AsyncWrite>(output: &Frames<S>, frame: Frame) -> io::Result<()> {
    let sent = output.lock().await.send(frame).await;
    sent.map_err(io::Error::other)
}
