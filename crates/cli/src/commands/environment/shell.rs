//! `environment shell`: a command with a terminal in a guest, on this terminal.

mod escape;

use std::io;

use bytes::Bytes;
use clap::Args;
use fuse_client::Session;
use fuse_client::attached::{Frame, Request, Resize};
use futures_util::{Sink, SinkExt as _, Stream, StreamExt as _};
use rustix::termios::Termios;
use tokio::signal::unix::{SignalKind, signal};

use self::escape::Escape;
use super::{Error, of_environment};
use crate::app::App;
use crate::error::Error as CliError;
use crate::tty::{self, Tty};

/// `environment shell`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  fuse environment shell fuse-hello\n  \
    fuse environment shell fuse-hello -- top\n\n\
    `~.` at the beginning of a line leaves, and ends the command. Needs the master token.")]
pub(crate) struct ShellArgs {
    /// Id of the environment; a task id works too.
    pub(crate) id: String,
    /// The command and its arguments [default: root's login shell].
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

/// How a session ended.
enum End {
    /// The command's exit status.
    Exit(i32),
    /// The user left.
    Detached,
    /// A signal told this process to go.
    Signal(u8),
}

/// Runs the shell; its exit status becomes ours.
pub(crate) async fn run(app: &App, args: ShellArgs) -> Result<(), CliError> {
    if !app.io.interactive() {
        return Err(Error::NoTerminal.into());
    }
    let client = app.client()?;
    let (rows, cols) = tty::size();
    let request = Request {
        tty: true,
        rows: Some(rows),
        cols: Some(cols),
        cmd: args.command,
        term: std::env::var("TERM").ok().filter(|term| !term.is_empty()),
        ..Request::default()
    };
    let session = of_environment(app, &client, &args.id, async |id| {
        client.attach(id, &request).await
    });
    let session = session.await?;
    // Raw only now, so that a refusal is printed on an ordinary terminal.
    let terminal = Tty::open(Termios::make_raw).map_err(Error::Terminal)?;
    let outcome = relay(session, &terminal).await;
    drop(terminal);
    match outcome? {
        End::Exit(0) => Ok(()),
        End::Exit(code) => Err(CliError::Status(u8::try_from(code).unwrap_or(1))),
        End::Detached => {
            app.io.note("left the session");
            Ok(())
        }
        End::Signal(number) => Err(CliError::Status(128 + number)),
    }
}

/// Both directions at once: neither may wait for the other, or two full buffers would
/// wait for each other.
async fn relay(session: Session, terminal: &Tty) -> Result<End, Error> {
    let mut term = signal(SignalKind::terminate()).map_err(Error::Terminal)?;
    let mut hup = signal(SignalKind::hangup()).map_err(Error::Terminal)?;
    let (to_guest, from_guest) = session.split();
    tokio::select! {
        end = output(from_guest) => end,
        end = input(to_guest, terminal) => end,
        _ = term.recv() => Ok(End::Signal(15)),
        _ = hup.recv() => Ok(End::Signal(1)),
    }
}

async fn output(
    mut frames: impl Stream<Item = Result<Frame, fuse_client::attached::FrameError>> + Unpin,
) -> Result<End, Error> {
    loop {
        match frames.next().await {
            Some(Ok(Frame::Stdout(bytes) | Frame::Stderr(bytes))) => {
                write(bytes).await.map_err(Error::Terminal)?;
            }
            Some(Ok(Frame::Exit(exit))) => return Ok(End::Exit(exit.exit_code)),
            Some(Ok(Frame::Stdin(_) | Frame::Resize(_) | Frame::Other(_))) => {}
            Some(Err(error)) => {
                return Err(Error::SessionLost {
                    reason: error.to_string(),
                });
            }
            None => {
                return Err(Error::SessionLost {
                    reason: "the orchestrator or the host agent closed it".to_owned(),
                });
            }
        }
    }
}

/// On a thread of its own: a terminal that was stopped (Ctrl-S) must not stop what is typed.
async fn write(bytes: Bytes) -> io::Result<()> {
    let written = tokio::task::spawn_blocking(move || crate::io::raw_stdout(&bytes)).await;
    written.map_err(io::Error::other)?
}

async fn input<S>(mut frames: S, terminal: &Tty) -> Result<End, Error>
where
    S: Sink<Frame, Error = fuse_client::attached::FrameError> + Unpin,
{
    let mut resized = signal(SignalKind::window_change()).map_err(Error::Terminal)?;
    let mut escape = Escape::default();
    let mut buffer = vec![0; 16 * 1024];
    loop {
        let frame = tokio::select! {
            read = terminal.read(&mut buffer) => match read {
                Ok(0) => return Ok(End::Signal(1)),
                Ok(count) => {
                    let read = escape.pass(&buffer[..count]);
                    if read.leave {
                        return Ok(End::Detached);
                    }
                    Frame::Stdin(Bytes::from(read.bytes))
                }
                Err(error) => return Err(Error::Terminal(error)),
            },
            _ = resized.recv() => {
                let (rows, cols) = tty::size();
                Frame::Resize(Resize { rows: rows.into(), cols: cols.into() })
            }
        };
        if matches!(&frame, Frame::Stdin(bytes) if bytes.is_empty()) {
            continue;
        }
        // A connection that takes nothing any more has more to say about it as output.
        if frames.send(frame).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
