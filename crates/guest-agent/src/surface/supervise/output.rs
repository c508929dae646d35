//! The last lines that a program said.

use std::collections::VecDeque;
use std::process::ChildStderr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use tokio::net::unix::pipe;
use tokio::time::timeout;
use tokio_util::codec::{FramedRead, LinesCodec};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Lines of the program's output that are kept for error texts.
const KEPT_LINES: usize = 20;
const LINE_BYTES: usize = 1024;

/// A process in the background may hold the pipe open after the program's end.
const END_PATIENCE: Duration = Duration::from_millis(500);

#[derive(Clone, Debug, Default)]
pub(super) struct Output {
    lines: Arc<Mutex<VecDeque<String>>>,
    ended: CancellationToken,
}

impl Output {
    /// Keeps and logs the lines of `io` until it ends.
    pub(super) fn follow(io: Option<ChildStderr>, tasks: &TaskTracker) -> Self {
        let output = Self::default();
        let pipe = io.and_then(|io| pipe::Receiver::from_owned_fd(io.into()).ok());
        let Some(pipe) = pipe else {
            output.ended.cancel();
            return output;
        };
        let follower = output.clone();
        tasks.spawn(async move {
            let mut lines = FramedRead::new(pipe, LinesCodec::new_with_max_length(LINE_BYTES));
            while let Some(line) = lines.next().await {
                // Of a line that is too long only the fact is of interest.
                let line = line.unwrap_or_else(|error| format!("({error})"));
                tracing::info!("surface: {line}");
                follower.push(line);
            }
            follower.ended.cancel();
        });
        output
    }

    fn push(&self, line: String) {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() == KEPT_LINES {
            lines.pop_front();
        }
        lines.push_back(line);
    }

    /// What a program said that has ended.
    pub(super) async fn whole(&self) -> String {
        timeout(END_PATIENCE, self.ended.cancelled()).await.ok();
        self.so_far()
    }

    /// What it said until now.
    pub(super) fn so_far(&self) -> String {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        Vec::from_iter(lines.iter().map(String::as_str)).join("; ")
    }
}
