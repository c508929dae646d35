//! Build steps as lines, and their summary.

use std::fmt::Write as _;

use fuse_wire_api::Event;
use owo_colors::OwoColorize as _;

use super::time;

/// Columns of a step's label.
const LABEL_WIDTH: usize = 48;
/// Left margin of the notes below a step.
const NOTE_MARGIN: &str = "         ";

/// Why a step was not in the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MissNote {
    /// The stable word.
    pub(crate) reason: &'static str,
    /// What there is instead.
    pub(crate) detail: Vec<String>,
}

impl MissNote {
    /// Adds it to the step's event. What the server says itself stays.
    pub(crate) fn complete(&self, step: &mut Event) {
        if !step.cached && step.miss_reason.is_empty() {
            self.reason.clone_into(&mut step.miss_reason);
            step.miss_detail.clone_from(&self.detail);
        }
    }
}

/// The steps seen so far, and the names they have in the Fusefile.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    labels: Vec<String>,
    seen: Vec<Event>,
}

impl Steps {
    /// Steps whose commands are known. Without labels, steps are numbered only.
    pub(crate) fn new(commands: &[String]) -> Self {
        let collapse = |text: &String| text.split_whitespace().collect::<Vec<_>>().join(" ");
        Self {
            labels: commands.iter().map(collapse).collect(),
            seen: Vec::new(),
        }
    }

    /// How many steps have been reported.
    pub(crate) fn done(&self) -> usize {
        self.seen.len()
    }

    /// How many there are, when that is known.
    pub(crate) fn total(&self) -> usize {
        self.labels.len()
    }

    /// What runs now, when the commands are known: `[2/3] make test`.
    pub(crate) fn current(&self) -> Option<String> {
        let index = self.seen.last().map_or(0, |event| event.index as usize);
        let label = self.labels.get(index)?;
        let place = format!("[{}/{}]", index + 1, self.total());
        Some(format!("{place} {}", fit(label).trim_end()))
    }

    /// The step that failed, if one did.
    pub(crate) fn failed(&self) -> Option<&Event> {
        self.seen.iter().find(|event| event.exit_code != 0)
    }

    /// Takes a step event and renders its line and the notes below it.
    pub(crate) fn add(&mut self, event: Event) -> Vec<String> {
        self.seen.push(event);
        let number = self.seen.len();
        self.seen
            .last()
            .map(|event| self.lines(event, number))
            .unwrap_or_default()
    }

    fn lines(&self, event: &Event, number: usize) -> Vec<String> {
        let index = usize::try_from(event.index)
            .ok()
            .filter(|i| *i > 0)
            .unwrap_or(number);
        let total = usize::try_from(event.total)
            .ok()
            .filter(|n| *n > 0)
            .unwrap_or(self.total());
        let verdict = match event {
            Event { exit_code, .. } if *exit_code != 0 => "FAILED".red().to_string(),
            Event { cached: true, .. } => "CACHED".green().to_string(),
            _ => "RUN   ".to_owned(),
        };
        let place = if total > 0 {
            format!("[{index}/{total}]")
        } else {
            format!("[{index}]")
        };
        let label = match self.labels.get(index - 1) {
            Some(label) => fit(label),
            None => fit(&format!("(step {index})")),
        };
        let took = time::duration_ms(event.duration_ms);
        let mut lines = vec![format!("  {verdict} {place:<7} {label} {took:>7}")];
        if !event.cached && !event.miss_reason.is_empty() {
            let mut note = format!("{NOTE_MARGIN}miss: {}", event.miss_reason);
            if !event.miss_detail.is_empty() {
                // Writing to a String cannot fail.
                write!(note, " ({})", event.miss_detail.join(", ")).ok();
            }
            lines.push(note.dimmed().to_string());
        }
        if event.exit_code != 0 {
            lines.push(
                format!("{NOTE_MARGIN}exit code {}", event.exit_code)
                    .dimmed()
                    .to_string(),
            );
        }
        lines
    }

    /// The line under all steps; nothing without any.
    pub(crate) fn summary(&self, wall_ms: u64) -> Option<String> {
        if self.seen.is_empty() {
            return None;
        }
        let cached = self.seen.iter().filter(|event| event.cached).count();
        let about_cache = self
            .seen
            .iter()
            .any(|e| e.cached || !e.miss_reason.is_empty());
        let mut parts = vec![if about_cache {
            format!("{cached} cached, {} built", self.seen.len() - cached)
        } else {
            format!("{} steps", self.seen.len())
        }];
        let setup: u64 = self.seen.iter().map(|event| event.duration_ms).sum();
        if setup > 0 {
            parts.push(format!("setup {}", time::duration_ms(setup)));
        }
        if wall_ms > 0 {
            parts.push(format!("total {}", time::duration_ms(wall_ms)));
        }
        Some(format!("  layers  {}", parts.join("   ")))
    }
}

/// A label in exactly its columns.
pub(super) fn fit(label: &str) -> String {
    if label.chars().count() <= LABEL_WIDTH {
        return format!("{label:<LABEL_WIDTH$}");
    }
    let head: String = label.chars().take(LABEL_WIDTH - 3).collect();
    format!("{head}...")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(index: u32, total: u32, duration_ms: u64) -> Event {
        let at = "2026-01-15T10:00:00Z".parse().unwrap();
        let mut event = Event::state("1".into(), "fuse-a".into(), "", at);
        event.event = fuse_wire_api::KIND_STEP.to_owned();
        event.index = index;
        event.total = total;
        event.duration_ms = duration_ms;
        event
    }

    #[test]
    fn lines_and_summary() {
        let mut steps = Steps::new(&[
            "apt-get update\n  && apt-get install -y build-essential git curl jq".to_owned(),
            "make".to_owned(),
        ]);
        let mut first = step(1, 2, 12_340);
        first.cached = true;
        let mut second = step(2, 2, 65_000);
        second.miss_reason = "inputs-changed".into();
        second.miss_detail = vec!["Makefile".into(), "src/a.c".into()];
        second.exit_code = 2;
        let mut unknown = step(0, 0, 0);
        unknown.total = 0;
        let lines: Vec<_> = [first, second, unknown]
            .into_iter()
            .flat_map(|event| steps.add(event))
            .collect();
        let text = lines.join("\n") + "\n" + &steps.summary(80_000).unwrap();
        insta::assert_snapshot!("steps", anstream::adapter::strip_str(&text).to_string());
    }

    #[test]
    fn what_runs_now() {
        let mut steps = Steps::new(&["make\n  all".to_owned(), "make test".to_owned()]);
        assert_eq!(steps.current().as_deref(), Some("[1/2] make all"));
        steps.add(step(1, 2, 10));
        assert_eq!(steps.current().as_deref(), Some("[2/2] make test"));
        assert_eq!(steps.failed(), None);
        let mut last = step(2, 2, 10);
        last.exit_code = 3;
        steps.add(last);
        assert_eq!(steps.current(), None);
        assert_eq!(steps.failed().map(|event| event.index), Some(2));
        assert_eq!(Steps::new(&[]).current(), None);
    }

    #[test]
    fn nothing_known_nothing_said() {
        let mut steps = Steps::new(&[]);
        assert_eq!(steps.summary(10), None);
        let line = steps.add(step(0, 0, 0)).remove(0);
        assert_eq!(line, format!("  RUN    [1]     {:<48}       -", "(step 1)"));
        assert_eq!(steps.summary(0).unwrap(), "  layers  1 steps");
    }
}
