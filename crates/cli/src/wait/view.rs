//! How events are shown while they come in: nothing, lines, JSON lines, or a live view.

use std::time::Duration;

use fuse_client::Client;
use fuse_wire_api::{Event, KIND_STATE};
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::keys::Keys;
use super::output::Output;
use crate::error::Error as CliError;
use crate::io::Io;
use crate::render::event;
use crate::render::steps::{MissNote, Steps};
use crate::render::table::terminal_columns;

/// Where state and step lines go.
#[derive(Debug)]
enum Mode {
    /// Nowhere.
    Quiet,
    /// One line each, on stdout.
    Lines,
    /// One compact object per line, on stdout.
    Json,
    /// One compact object per line, on stderr: stdout is kept for the result.
    JsonAside,
    /// Lines above a spinner.
    Live(Box<Live>),
}

/// What is shown of a stream of events.
#[derive(Debug)]
pub(crate) struct View {
    io: Io,
    mode: Mode,
    steps: Steps,
    /// What the client knows of the cache and the server does not.
    misses: Vec<MissNote>,
}

#[derive(Debug)]
struct Live {
    bars: MultiProgress,
    spinner: ProgressBar,
    /// Appears with the first step: a bar that never moves would say something untrue.
    progress: Option<ProgressBar>,
    /// What the startup script printed last; appears with its first line.
    printed: Option<ProgressBar>,
    output: Option<Output>,
    keys: Option<Keys>,
}

impl View {
    /// The events are the data: objects in JSON mode, a live view on a terminal, else lines.
    pub(crate) fn of_events(io: Io, id: &str) -> Self {
        let mode = if io.is_json() {
            Mode::Json
        } else {
            Self::live_or_lines(io, id)
        };
        Self {
            io,
            mode,
            steps: Steps::default(),
            misses: Vec::new(),
        }
    }

    /// The result is the data: in JSON mode events go to stderr. `commands` are the build steps, as far
    /// as they are known, and `host` is where it was placed.
    pub(crate) fn of_result(io: Io, id: &str, host: &str, commands: &[String]) -> Self {
        let mode = if io.is_json() {
            Mode::JsonAside
        } else {
            Self::live_or_lines(io, id)
        };
        if let Mode::Live(live) = &mode
            && !host.is_empty()
        {
            live.say(&format!("booting on {host}"));
        }
        Self {
            io,
            mode,
            steps: Steps::new(commands),
            misses: Vec::new(),
        }
    }

    /// From here on steps are shown with why they were not in the cache, one note for each.
    pub(crate) fn expect_misses(&mut self, misses: Vec<MissNote>) {
        self.misses = misses;
    }

    /// Adds what is known of a step here.
    pub(crate) fn complete(&self, step: &mut Event) {
        let index = (step.index as usize).checked_sub(1);
        if let Some(note) = index.and_then(|index| self.misses.get(index)) {
            note.complete(step);
        }
    }

    /// The build step that failed, if one was reported.
    pub(crate) fn failed_step(&self) -> Option<&Event> {
        self.steps.failed()
    }

    /// Shows nothing.
    pub(crate) fn quiet(io: Io) -> Self {
        Self {
            io,
            mode: Mode::Quiet,
            steps: Steps::default(),
            misses: Vec::new(),
        }
    }

    fn live_or_lines(io: Io, id: &str) -> Mode {
        if !io.animated() {
            return Mode::Lines;
        }
        io.note(&format!("watching {id}"));
        Mode::Live(Box::new(Live::new()))
    }

    /// A live view also shows the last line that the startup script prints.
    pub(crate) fn follow_output(&mut self, client: &Client, id: &str) {
        if let Mode::Live(live) = &mut self.mode {
            live.output = Some(Output::of(client, id));
        }
    }

    /// Resolves when the user asks to stop watching; until then a live view shows what is printed.
    ///
    /// # Cancel safety
    /// Nothing is lost by dropping the future.
    pub(crate) async fn left(&mut self) {
        match &mut self.mode {
            Mode::Live(live) => live.quit().await,
            _ => std::future::pending().await,
        }
    }

    /// Shows a state event, and in JSON mode any event.
    pub(crate) fn show(&self, shown: &Event) -> Result<(), CliError> {
        let is_state = shown.event == KIND_STATE;
        match &self.mode {
            Mode::Json => self.io.json_line(shown)?,
            Mode::JsonAside => {
                if let Ok(text) = serde_json::to_string(shown) {
                    self.io.note(&text);
                }
            }
            Mode::Lines if is_state => self.io.data(&(event::line(shown) + "\n"))?,
            Mode::Live(live) if is_state => live.print(self.io, &event::live_line(shown))?,
            Mode::Quiet | Mode::Lines | Mode::Live(_) => {}
        }
        Ok(())
    }

    /// Shows a step.
    pub(crate) fn step(&mut self, step: Event) -> Result<(), CliError> {
        let lines = self.steps.add(step);
        match &mut self.mode {
            Mode::Lines => self.io.data(&(lines.join("\n") + "\n"))?,
            Mode::Live(live) => {
                live.print(self.io, &lines.join("\n"))?;
                live.forget_printed();
                live.advance(self.steps.done(), self.steps.total());
                live.say(self.steps.current().as_deref().unwrap_or("starting up"));
            }
            Mode::Quiet | Mode::Json | Mode::JsonAside => {}
        }
        Ok(())
    }

    /// Takes the moving parts away and shows the summary of the steps.
    pub(crate) fn finish(&mut self, wall: Duration, done: bool) -> Result<(), CliError> {
        if let Mode::Live(live) = &mut self.mode {
            live.stop();
            if done {
                self.io.faint("done");
            }
        }
        let wall_ms = u64::try_from(wall.as_millis()).unwrap_or(u64::MAX);
        if let (Mode::Lines | Mode::Live(_), Some(line)) = (&self.mode, self.steps.summary(wall_ms))
        {
            self.io.data(&(line + "\n"))?;
        }
        Ok(())
    }

    /// Takes the moving parts away because the stream broke.
    pub(crate) fn failed(&mut self, reason: &str) {
        if let Mode::Live(live) = &mut self.mode {
            live.stop();
            self.io.faint(&format!("stream error: {reason}"));
        }
    }
}

impl Live {
    fn new() -> Self {
        let bars = MultiProgress::with_draw_target(ProgressDrawTarget::stderr());
        let spinner = bars.add(ProgressBar::new_spinner());
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}  {elapsed}") {
            spinner.set_style(style);
        }
        spinner.set_message("waiting for transitions (q to stop)");
        spinner.enable_steady_tick(Duration::from_millis(120));
        Self {
            bars,
            spinner,
            progress: None,
            printed: None,
            output: None,
            keys: Keys::open().ok(),
        }
    }

    /// Says what goes on.
    fn say(&self, what: &str) {
        self.spinner.set_message(format!("{what} (q to stop)"));
    }

    /// Moves the bar, when the number of steps is known; a full bar goes.
    fn advance(&mut self, done: usize, total: usize) {
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

    /// Resolves when the user asks to stop; meanwhile shows what is printed.
    async fn quit(&mut self) {
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
            let line = tokio::select! {
                () = asked => return,
                line = printed => line,
            };
            self.show_printed(line);
        }
    }

    /// Shows a line below what goes on, cut where the terminal ends.
    fn show_printed(&mut self, line: String) {
        let bar = self.printed.get_or_insert_with(|| {
            let bar = ProgressBar::new_spinner();
            if let Ok(style) = ProgressStyle::with_template("    {wide_msg:.dim}") {
                bar.set_style(style);
            }
            self.bars.insert_after(&self.spinner, bar)
        });
        bar.set_message(line);
    }

    /// The step that printed it has ended.
    fn forget_printed(&mut self) {
        if let Some(bar) = self.printed.take() {
            bar.finish_and_clear();
            self.bars.remove(&bar);
        }
    }

    /// Prints above the moving parts.
    fn print(&self, io: Io, text: &str) -> std::io::Result<()> {
        self.bars.suspend(|| io.data(&format!("{text}\n")))
    }

    fn stop(&mut self) {
        self.keys = None;
        self.output = None;
        self.forget_printed();
        if let Some(progress) = self.progress.take() {
            progress.finish_and_clear();
        }
        self.spinner.finish_and_clear();
    }
}
