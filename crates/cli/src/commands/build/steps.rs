//! The steps of a build, in the builder, and what is kept of them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use fuse_fusefile::layers::Recipe;
use fuse_redact::Flow;
use fuse_wire_api::{CreateSnapshot, ExecFrame, ExecRequest, Snapshot};

use super::{Build, Error, MODE};
use crate::commands::{by_hand, cache};
use crate::error::Error as CliError;
use crate::wait::{View, tail};

/// Bound of each call that runs steps (milliseconds).
const STEP_LIMIT_MS: i64 = 600_000;
/// Most bytes of a step's output that are kept to be shown when it fails.
const KEPT: usize = 256 * 1024;

/// A builder that runs.
pub(super) struct Builder<'a> {
    build: &'a Build<'a>,
    id: &'a str,
    view: &'a mut View,
}

/// How a script ended.
struct Ended {
    code: i32,
    timed_out: bool,
    printed: String,
}

impl<'a> Builder<'a> {
    pub(super) fn new(build: &'a Build<'a>, id: &'a str, view: &'a mut View) -> Self {
        Self { build, id, view }
    }

    /// Runs the steps and keeps the result.
    pub(super) async fn snapshot(&mut self) -> Result<Snapshot, CliError> {
        self.steps().await?;
        self.view.say("keeping the result");
        let name = &self.build.name;
        let artifact = CreateSnapshot {
            mode: MODE.to_owned(),
            comment: format!("fuse build {name}"),
            metadata: BTreeMap::from([("name".to_owned(), name.clone())]),
            ..CreateSnapshot::default()
        };
        Ok(self
            .build
            .client
            .create_snapshot(self.id, &artifact)
            .await?)
    }

    /// Each cacheable step by itself, with a snapshot behind it; everything else in one go, in one shell.
    async fn steps(&mut self) -> Result<(), CliError> {
        let (plan, compiled) = (&self.build.plan, self.build.compiled);
        let script = &compiled.script;
        let count = script.fragments.len();
        let start = self.build.layer.as_ref().map_or(0, |layer| layer.steps);
        let cacheable = plan.steps.iter().filter(|step| step.cacheable).count();
        if cacheable == 0 {
            let phase = "build phase".to_owned();
            return self.run(&script.build(), 0..count, phase).await;
        }
        for index in start..cacheable {
            let text = script.range(index, index + 1, index == 0);
            let field = compiled.steps[index].field.clone();
            self.run(&text, index..index + 1, field).await?;
            self.keep_layer(index).await?;
        }
        let rest = start.max(cacheable);
        if rest == count {
            return Ok(());
        }
        let phase = format!("{} and what follows", compiled.steps[rest].field);
        let text = script.range(rest, count, false);
        self.run(&text, rest..count, phase).await
    }

    async fn keep_layer(&mut self, index: usize) -> Result<(), CliError> {
        let build = self.build;
        self.view.say(&format!("keeping layer {}", index + 1));
        let layer = CreateSnapshot {
            mode: MODE.to_owned(),
            layer_key: build.plan.steps[index].key.clone(),
            comment: format!("layer {} of {}", index + 1, build.name),
            metadata: Recipe::of(&build.plan, index, &build.history)
                .map(|recipe| recipe.metadata())
                .unwrap_or_default(),
            ..CreateSnapshot::default()
        };
        build.client.create_snapshot(self.id, &layer).await?;
        Ok(())
    }

    /// Runs one script in the builder, shows its output, and a line for the steps in it.
    async fn run(
        &mut self,
        script: &str,
        range: Range<usize>,
        phase: String,
    ) -> Result<(), CliError> {
        self.view.say(&self.doing(&range));
        let began = Instant::now();
        let ended = self.exec(script, &phase).await?;
        let mut can_be_read = true;
        if ended.code != 0 {
            can_be_read = self.view.reveal(ended.printed.as_bytes())?;
        }
        // Which of several steps failed, the shell does not say.
        if ended.code == 0 || range.len() == 1 {
            let last = range.end.saturating_sub(1);
            for index in range.clone() {
                let mut event = cache::step_event(index, self.build.plan.steps.len());
                event.exit_code = ended.code;
                // What ran in one call has one time, which belongs to its end.
                if index == last {
                    event.duration_ms = millis(began.elapsed());
                }
                self.view.step(event)?;
            }
        }
        match ended.code {
            0 => Ok(()),
            code => Err(self
                .failure(phase, code, &ended, can_be_read, &range)
                .into()),
        }
    }

    /// Runs a script and shows what it prints while it does.
    async fn exec(&mut self, script: &str, phase: &str) -> Result<Ended, CliError> {
        let request = ExecRequest {
            cmd: vec!["sh".to_owned(), "-lc".to_owned(), script.to_owned()],
            timeout_ms: STEP_LIMIT_MS,
            ..ExecRequest::default()
        };
        let mut stream = self.build.client.exec_stream(self.id, &request).await?;
        let mut printed = String::new();
        let flow = || Flow::new(self.build.redactor.clone());
        let (mut stdout, mut stderr) = (flow(), flow());
        while let Some(frame) = stream.next().await? {
            match frame {
                ExecFrame::Stdout { data } => self.show(&stdout.push(&data.0), &mut printed)?,
                ExecFrame::Stderr { data } => self.show(&stderr.push(&data.0), &mut printed)?,
                ExecFrame::Exit {
                    exit_code,
                    timed_out,
                    ..
                } => {
                    self.show(&stdout.finish(), &mut printed)?;
                    self.show(&stderr.finish(), &mut printed)?;
                    return Ok(Ended {
                        code: exit_code,
                        timed_out,
                        printed,
                    });
                }
                // The client makes an error of it.
                ExecFrame::Error { .. } => break,
            }
        }
        let phase = phase.to_owned();
        Err(Error::Lost { phase }.into())
    }

    /// Shows what was printed, and keeps it.
    fn show(&mut self, text: &str, printed: &mut String) -> Result<(), CliError> {
        keep(printed, text);
        self.view.printed(text.as_bytes())
    }

    /// What a live view says while these steps run.
    fn doing(&self, range: &Range<usize>) -> String {
        let total = self.build.commands.len();
        match self.build.commands.get(range.start) {
            Some(command) if range.len() == 1 => {
                let command: Vec<_> = command.split_whitespace().collect();
                format!("[{}/{total}] {}", range.end, command.join(" "))
            }
            _ => format!("[{}-{}/{total}]", range.start + 1, range.end),
        }
    }

    fn failure(
        &self,
        phase: String,
        code: i32,
        ended: &Ended,
        can_be_read: bool,
        range: &Range<usize>,
    ) -> Error {
        let limit = match ended.timed_out {
            true => "it ran into the limit of 10m that a call has. ",
            false => "",
        };
        let (id, left) = match self.build.keep {
            true => (self.id, "to try it by hand"),
            false => (
                "BUILDER",
                "nothing of the builder is left; `fuse build --keep` leaves one, to try it by hand",
            ),
        };
        let by_itself = range.len() == 1;
        let command = by_hand::build(&self.build.compiled.script, range.start, id)
            .filter(|_| by_itself)
            .unwrap_or_else(|| format!("fuse environment shell {id}"));
        let printed = match can_be_read {
            true => String::new(),
            false => tail(&ended.printed).to_owned(),
        };
        Error::Step {
            phase,
            code,
            printed,
            hint: format!("{limit}{left}:\n  {command}"),
        }
    }
}

/// Adds to what is kept; of what is too long, the end.
fn keep(kept: &mut String, text: &str) {
    kept.push_str(text);
    // Not for every piece: moving the rest costs as much as it is long.
    if kept.len() > 2 * KEPT {
        let mut start = kept.len() - KEPT;
        while !kept.is_char_boundary(start) {
            start += 1;
        }
        kept.drain(..start);
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_long_output_is_kept() {
        let mut kept = String::new();
        for n in 0_u32..200_000 {
            keep(&mut kept, &format!("{n}\n"));
        }
        assert!(
            kept.len() <= 2 * KEPT && kept.len() >= KEPT,
            "{}",
            kept.len()
        );
        assert!(kept.ends_with("199998\n199999\n"));
    }
}
