//! Programs of the image, and what they say.

use std::collections::VecDeque;
use std::io::Write as _;
use std::process::Stdio;

use rustix::pipe::{PipeFlags, pipe_with};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::net::unix::pipe;
use tokio::process::Command;

use super::Error;

/// Lines of a program's output that stand in an error.
const KEPT_LINES: usize = 20;
const MAX_LINE: usize = 1024;

/// Runs a program, called `name` in errors, to its end; what it says goes on to standard output, line by line.
pub(super) async fn run(name: &'static str, mut command: Command) -> Result<(), Error> {
    let program = command
        .as_std()
        .get_program()
        .to_string_lossy()
        .into_owned();
    let failed = |source| Error::Start {
        program: program.clone(),
        source,
    };
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).map_err(|e| failed(e.into()))?;
    let second = writer.try_clone().map_err(failed)?;
    command
        .stdin(Stdio::null())
        .stdout(writer)
        .stderr(second)
        .kill_on_drop(true);
    let mut child = command.spawn().map_err(failed)?;
    // The ends of the pipe that are in it would keep the reader waiting.
    drop(command);
    let reader = pipe::Receiver::from_owned_fd(reader).map_err(failed)?;
    let mut lines = BufReader::new(reader).lines();
    let mut last = VecDeque::new();
    while let Ok(Some(line)) = lines.next_line().await {
        // Whoever reads it may have gone; the services come up all the same.
        let _closed = writeln!(std::io::stdout(), "{line}");
        let line: String = line.chars().take(MAX_LINE).collect();
        if last.len() == KEPT_LINES {
            last.pop_front();
        }
        last.push_back(line);
    }
    let status = child.wait().await.map_err(failed)?;
    if status.success() {
        return Ok(());
    }
    Err(Error::Program {
        name,
        status: status.to_string(),
        output: Vec::from(last).join("\n"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn sh(script: &str) -> Result<(), Error> {
        loop {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            match run("compose", command).await {
                // The reaper of another test was faster.
                Err(Error::Start { source, .. })
                    if source.raw_os_error() == Some(rustix::io::Errno::CHILD.raw_os_error()) => {}
                outcome => return outcome,
            }
        }
    }

    #[tokio::test]
    async fn a_program_that_fails_is_quoted() {
        let error = sh("echo one; echo 'ERROR: no such image' >&2; exit 2").await;
        assert_eq!(
            error.unwrap_err().to_string(),
            "compose ended with exit status: 2:\none\nERROR: no such image"
        );
        sh("echo fine").await.unwrap();
    }
}
