//! How events are shown while they come in: nothing, lines, JSON lines, or a live view.

use std::time::Duration;

use fuse_client::Client;
use fuse_wire_api::{Event, KIND_STATE};

use super::keys::Keys;
use super::live::Live;
use crate::error::Error as CliError;
use crate::io::{Io, raw_stderr};
use crate::render::event;
use crate::render::service;
use crate::render::steps::{MissNote, Steps};
use crate::render::table::terminal_columns;

/// In which form.
#[derive(Debug)]
enum Mode {
    /// Not at all.
    Quiet,
    /// One line each.
    Lines,
    /// One compact object per line.
    Json,
    /// Lines above a spinner.
    Live(Box<Live>),
}

/// Where to; what moves is always on stderr.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sink {
    /// The events are what the caller asked for.
    Stdout,
    /// Stdout is kept for the result.
    Stderr,
}

/// What is shown of a stream of events.
#[derive(Debug)]
pub(crate) struct View {
    io: Io,
    mode: Mode,
    sink: Sink,
    /// The environment.
    id: String,
    steps: Steps,
    /// What the client knows of the cache and the server does not.
    misses: Vec<MissNote>,
    /// Steps come after `running`, so that is not the end.
    goes_on: bool,
    /// The command ends with the error of the last state, in full.
    ends_with_error: bool,
}

impl View {
    /// The events are the data: objects in JSON mode, a live view on a terminal, else lines.
    pub(crate) fn of_events(io: Io, id: &str) -> Self {
        let moving = io.animated().then(Keys::open);
        Self::of(io, id, Sink::Stdout, moving.map(Result::ok))
    }

    /// The result is the data: in JSON mode events go to stderr. `commands` are the build steps, as far
    /// as they are known, and `host` is where it was placed.
    pub(crate) fn of_result(io: Io, id: &str, host: &str, commands: &[String]) -> Self {
        let sink = if io.is_json() {
            Sink::Stderr
        } else {
            Sink::Stdout
        };
        let moving = io.animated().then(Keys::open);
        let mut view = Self::of(io, id, sink, moving.map(Result::ok));
        view.steps = Steps::new(commands);
        view.ends_with_error = true;
        view.starts_on(host);
        view
    }

    /// The steps are the caller's own, and run in an environment that is up; stdout is the result's alone.
    pub(crate) fn of_build(io: Io, id: &str, host: &str, commands: &[String]) -> Self {
        // Whoever leaves a build ends it, which Ctrl-C does: no key stops watching.
        let moving = io.stderr_is_read().then_some(None);
        let mut view = Self::of(io, id, Sink::Stderr, moving);
        view.steps = Steps::new(commands);
        view.goes_on = true;
        view.ends_with_error = true;
        view.starts_on(host);
        view
    }

    /// Shows nothing.
    pub(crate) fn quiet(io: Io) -> Self {
        Self::new(io, "", Sink::Stderr, Mode::Quiet)
    }

    /// `moving` asks for a live view, with its keyboard.
    fn of(io: Io, id: &str, sink: Sink, moving: Option<Option<Keys>>) -> Self {
        let mode = match (io.is_json(), moving) {
            (true, _) => Mode::Json,
            (false, None) => Mode::Lines,
            (false, Some(keys)) => {
                io.note(&format!("watching {id}"));
                Mode::Live(Box::new(Live::new(keys)))
            }
        };
        Self::new(io, id, sink, mode)
    }

    fn new(io: Io, id: &str, sink: Sink, mode: Mode) -> Self {
        Self {
            io,
            mode,
            sink,
            id: id.to_owned(),
            steps: Steps::default(),
            misses: Vec::new(),
            goes_on: false,
            ends_with_error: false,
        }
    }

    fn starts_on(&self, host: &str) {
        if !host.is_empty() {
            self.say(&format!("starting on {host}"));
        }
    }

    /// Says what goes on, in a live view.
    pub(crate) fn say(&self, what: &str) {
        if let Mode::Live(live) = &self.mode {
            live.say(what);
        }
    }

    /// Whether more is to come after `running`.
    pub(crate) fn goes_on(&self) -> bool {
        self.goes_on
    }

    /// From here on steps are shown with why they were not in the cache, one note for each.
    pub(crate) fn expect_misses(&mut self, misses: Vec<MissNote>) {
        self.misses = misses;
    }

    /// The build step that failed, if one was reported.
    pub(crate) fn failed_step(&self) -> Option<&Event> {
        self.steps.failed()
    }

    /// A live view also shows the last line that the startup script prints.
    pub(crate) fn follow_output(&mut self, client: &Client) {
        if let (Mode::Live(live), false) = (&mut self.mode, self.goes_on) {
            live.follow(client, &self.id, self.steps.current());
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

    /// Shows what a step of the caller's own prints: its last line in a live view, all of it beside lines.
    pub(crate) fn printed(&mut self, piece: &[u8]) -> Result<(), CliError> {
        match &mut self.mode {
            Mode::Lines => raw_stderr(piece)?,
            Mode::Live(live) => live.show_printed(piece),
            Mode::Quiet | Mode::Json => {}
        }
        Ok(())
    }

    /// Shows what a step has printed, unless that was shown when it came; answers whether it can be read now.
    pub(crate) fn reveal(&mut self, printed: &[u8]) -> Result<bool, CliError> {
        match &mut self.mode {
            Mode::Lines => Ok(true),
            Mode::Live(live) => {
                live.forget_printed();
                live.above(|| raw_stderr(printed))?;
                Ok(true)
            }
            Mode::Quiet | Mode::Json => Ok(false),
        }
    }

    /// Shows an event that is not of a step: a state, and in JSON mode any.
    pub(crate) fn show(&self, shown: &Event) -> Result<(), CliError> {
        let is_state = shown.event == KIND_STATE;
        match &self.mode {
            Mode::Json => self.object(shown)?,
            Mode::Lines if is_state => self.line(&event::line(shown))?,
            Mode::Live(_) if is_state => {
                let room = self.ends_with_error.then(terminal_columns);
                self.line(&event::live_line(shown, room.map(usize::from)))?;
            }
            Mode::Quiet | Mode::Lines | Mode::Live(_) => {}
        }
        Ok(())
    }

    /// Shows a step, with what is known of it here.
    pub(crate) fn step(&mut self, mut step: Event) -> Result<(), CliError> {
        let index = (step.index as usize).checked_sub(1);
        if let Some(note) = index.and_then(|index| self.misses.get(index)) {
            note.complete(&mut step);
        }
        if step.vm_id.is_empty() {
            step.vm_id.clone_from(&self.id);
        }
        if let Mode::Json = self.mode {
            self.object(&step)?;
        }
        let lines = self.steps.add(step).join("\n");
        if let Mode::Lines | Mode::Live(_) = self.mode {
            self.line(&lines)?;
        }
        if let Mode::Live(live) = &mut self.mode {
            live.forget_printed();
            if self.steps.failed().is_some() {
                live.end_bar();
                live.say("undoing what was begun");
            } else {
                live.advance(self.steps.done(), self.steps.total());
                live.say(self.steps.current().as_deref().unwrap_or("starting up"));
            }
        }
        Ok(())
    }

    /// Shows what became of a service.
    pub(crate) fn service(&mut self, shown: &Event) -> Result<(), CliError> {
        if let Mode::Lines | Mode::Live(_) = self.mode {
            self.line(&service::line(shown))?;
        }
        if let Mode::Live(live) = &mut self.mode {
            live.forget_printed();
            live.say("bringing services up");
        }
        Ok(())
    }

    /// Takes the moving parts away and shows the summary of the steps.
    pub(crate) fn finish(&mut self, wall: Duration, done: bool) -> Result<(), CliError> {
        let is_shown = matches!(self.mode, Mode::Lines | Mode::Live(_));
        if self.stop() && done {
            self.io.faint("done");
        }
        let wall_ms = u64::try_from(wall.as_millis()).unwrap_or(u64::MAX);
        match self.steps.summary(wall_ms) {
            Some(line) if is_shown => self.line(&line),
            _ => Ok(()),
        }
    }

    /// Takes the moving parts away because the stream broke.
    pub(crate) fn failed(&mut self, reason: &str) {
        if self.stop() {
            self.io.faint(&format!("stream error: {reason}"));
        }
    }

    /// Takes the moving parts away; whether there were any.
    fn stop(&mut self) -> bool {
        let is_live = matches!(self.mode, Mode::Live(_));
        if is_live {
            self.mode = Mode::Lines;
        }
        is_live
    }

    fn object(&self, event: &Event) -> Result<(), CliError> {
        match self.sink {
            Sink::Stdout => self.io.json_line(event)?,
            Sink::Stderr => {
                if let Ok(text) = serde_json::to_string(event) {
                    self.io.note(&text);
                }
            }
        }
        Ok(())
    }

    /// Writes a line, above what moves.
    fn line(&self, text: &str) -> Result<(), CliError> {
        let write = || match self.sink {
            Sink::Stdout => self.io.data(&format!("{text}\n")),
            Sink::Stderr => {
                self.io.note(text);
                Ok(())
            }
        };
        match &self.mode {
            Mode::Live(live) => live.above(write)?,
            _ => write()?,
        }
        Ok(())
    }
}
