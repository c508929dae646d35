//! The live view: lines that stay, and below them what moves: a bar, what goes on, and the last line that
//! it printed.

use std::time::Duration;

use fuse_client::Client;
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::keys::Keys;
use super::output::{LastLine, Output};
use crate::render::table::terminal_columns;

#[derive(Debug)]
pub(super) struct Live {
    bars: MultiProgress,
    spinner: ProgressBar,
    /// Appears with the first step: a bar that never moves would say something untrue.
    progress: Option<ProgressBar>,
    /// What was printed last; appears with its first line.
    printed: Option<ProgressBar>,
    line: LastLine,
    output: Option<Output>,
    /// What goes on once the first of it comes.
    then: Option<String>,
    keys: Option<Keys>,
}

impl Live {
    /// With the keyboard, when there is something that `q` stops.
    pub(super) fn new(keys: Option<Keys>) -> Self {
        let bars = MultiProgress::with_draw_target(ProgressDrawTarget::stderr());
        let spinner = bars.add(ProgressBar::new_spinner());
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}  {elapsed}") {
            spinner.set_style(style);
        }
        spinner.enable_steady_tick(Duration::from_millis(120));
        let live = Self {
            bars,
            spinner,
            progress: None,
            printed: None,
            line: LastLine::default(),
            output: None,
            then: None,
            keys,
        };
        live.say("waiting for transitions");
        live
    }

    /// Says what goes on; the time behind it is how long that already does.
    pub(super) fn say(&self, what: &str) {
        let message = match self.keys {
            Some(_) => format!("{what} (q to stop)"),
            None => what.to_owned(),
        };
        if self.spinner.message() != message {
            self.spinner.set_message(message);
            self.spinner.reset_elapsed();
        }
    }

    /// Moves the bar, when the number of steps is known; a full bar goes.
    pub(super) fn advance(&mut self, done: usize, total: usize) {
        if total == 0 {
            return;
        }
        let progress = self.progress.get_or_insert_with(|| {
            let columns = usize::from(terminal_columns()).saturating_sub(4).min(60);
            let bar = self
                .bars
                .insert_before(&self.spinner, ProgressBar::new(total as u64));
            match ProgressStyle::with_template(&format!("  {{bar:{columns}}} {{pos}}/{{len}}")) {
                Ok(style) => bar.with_style(style),
                Err(_) => bar,
            }
        });
        progress.set_position(done as u64);
        if done >= total {
            progress.finish_and_clear();
        }
    }

    /// No step follows.
    pub(super) fn end_bar(&mut self) {
        if let Some(progress) = self.progress.take() {
            progress.finish_and_clear();
        }
    }

    /// From here on shows what the startup script of an environment prints. With the first of it the script
    /// has begun, which nothing else tells: `then` goes on.
    pub(super) fn follow(&mut self, client: &Client, id: &str, then: Option<String>) {
        self.output = Some(Output::of(client, id));
        self.then = then;
    }

    /// Resolves when the user asks to stop; meanwhile shows what is printed.
    pub(super) async fn quit(&mut self) {
        loop {
            let (keys, output) = (&self.keys, &mut self.output);
            let asked = async {
                match keys {
                    Some(keys) => keys.quit().await,
                    None => std::future::pending().await,
                }
            };
            let printed = async {
                match output {
                    Some(output) => output.next().await,
                    None => std::future::pending().await,
                }
            };
            let piece = tokio::select! {
                () = asked => return,
                piece = printed => piece,
            };
            self.show_printed(&piece);
        }
    }

    /// Shows the last line of what is printed below what goes on, cut where the terminal ends.
    pub(super) fn show_printed(&mut self, piece: &[u8]) {
        if let Some(then) = self.then.take() {
            self.say(&then);
        }
        let line = self.line.push(piece);
        let bar = self.printed.get_or_insert_with(|| {
            let bar = ProgressBar::new_spinner();
            if let Ok(style) = ProgressStyle::with_template("    {wide_msg:.dim}") {
                bar.set_style(style);
            }
            self.bars.insert_after(&self.spinner, bar)
        });
        bar.set_message(line);
    }

    /// Shows one line in the place of what was printed last.
    pub(super) fn show_line(&mut self, line: &str) {
        self.show_printed(format!("\n{line}").as_bytes());
    }

    /// The step that printed it has ended.
    pub(super) fn forget_printed(&mut self) {
        self.then = None;
        self.line = LastLine::default();
        if let Some(bar) = self.printed.take() {
            bar.finish_and_clear();
            self.bars.remove(&bar);
        }
    }

    /// Writes above the moving parts.
    pub(super) fn above<T>(&self, write: impl FnOnce() -> T) -> T {
        self.bars.suspend(write)
    }

    fn stop(&mut self) {
        self.keys = None;
        self.output = None;
        self.forget_printed();
        self.end_bar();
        self.spinner.finish_and_clear();
    }
}

/// Whatever ends the wait, the moving parts do not stay.
impl Drop for Live {
    fn drop(&mut self) {
        self.stop();
    }
}
