//! Reports of the build steps while a startup script runs (lifecycle 7), and of services while they come up.
//!
//! The script appends a line of JSON to [`FILE`] whenever a step has ended, the guest agent one to
//! [`services::REPORTS`](super::services::REPORTS) whenever a service has changed; meanwhile the file is read once
//! a second and what is new is put on the event stream. A caller whose request says where the steps stand
//! gets the recording put in here, in front of the lines that steps begin with, so that no line changes its
//! number. What is in the file is the guest's word: it is bounded and parsed strictly, and nothing but
//! figures is taken from it.

use std::time::Duration;

use fuse_model::{EnvironmentId, GuestReport, ServiceReport, StepReport};
use fuse_wire_api::StartupSteps;
use serde::Deserialize;

use crate::{Control, exec::Command, provider::Provider};

/// Where steps are recorded in the guest.
pub(super) const FILE: &str = "/fuse/steps.ndjson";
/// How often it is read.
const PERIOD: Duration = Duration::from_secs(1);
/// Bound of one reading.
const READ_LIMIT: Duration = Duration::from_secs(5);
/// Most bytes of the file that are looked at.
const MAX_BYTES: usize = 256 * 1024;
/// Most steps that are reported.
const MAX_STEPS: usize = 1000;
/// The longest script that can be executed (bytes).
const MAX_SCRIPT: usize = 131_071;

/// The script with the recording in it; as it was, when a step would be changed by that.
pub(super) fn instrument(script: &str, steps: &StartupSteps) -> String {
    instrument_into(script, steps, FILE)
}

fn instrument_into(script: &str, steps: &StartupSteps, file: &str) -> String {
    let offsets: Vec<usize> = steps.offsets.iter().map(|at| *at as usize).collect();
    let Some((first, rest)) = offsets.split_first() else {
        return script.to_owned();
    };
    let lines = offsets.windows(2).map(|pair| script.get(pair[0]..pair[1]));
    if !lines.clone().all(|step| step.is_some_and(stands_alone)) {
        return script.to_owned();
    }
    let Some(mut out) = script.get(..*first).map(str::to_owned) else {
        return script.to_owned();
    };
    out += &begin(steps.first, steps.total, file);
    let mut at = *first;
    for next in rest {
        out += script.get(at..*next).unwrap_or_default();
        out += "__fuse_step 0; ";
        at = *next;
    }
    out += script.get(at..).unwrap_or_default();
    if out.len() > MAX_SCRIPT {
        return script.to_owned();
    }
    out
}

/// Whether a command can be put in front of the first line of a step and of the line behind it. Not when
/// the step only continues, or leaves open, what another one begins.
fn stands_alone(step: &str) -> bool {
    let word = step.split_whitespace().next().unwrap_or_default();
    let continues = word.starts_with([';', ')', '}', '&', '|'])
        || ["do", "done", "then", "else", "elif", "fi", "esac", "in"].contains(&word);
    let open = step.trim_end_matches('\n').ends_with('\\');
    !continues && !open
}

/// What stands in front of the first step, on its line: the recorder, and the exit trap of the build phase
/// with the report of the step that failed. Times come from the kernel's clock, because `date` cannot tell
/// fractions everywhere; a subshell keeps IFS, variables and failures to itself.
fn begin(first: u32, total: u32, file: &str) -> String {
    let now = "IFS=' ' read -r u x </proc/uptime; n=${u%.*}${u#*.}";
    let record = format!(
        "printf '{{\"index\":%d,\"total\":{total},\"duration_ms\":%d,\"exit_code\":%d}}\\n' \
         \"$__fuse_i\" \"$((($n-${{__fuse_t:-$n}})*10))\" \"$1\" >>{file}"
    );
    format!(
        "__fuse_i={first}; __fuse_t=$({{ {now}; echo \"$n\"; }} 2>/dev/null) || :; \
         __fuse_step() {{ \
         __fuse_t=$({{ {now}; {record}; echo \"$n\"; }} 2>/dev/null) || :; \
         __fuse_i=$((__fuse_i+1)); }}; \
         {{ : >{file}; }} 2>/dev/null || :; \
         trap '__fuse_s=$?; __fuse_step \"$__fuse_s\"; [ \"$__fuse_s\" -eq 0 ] || exit 90' EXIT; "
    )
}

/// Reads reports until it is dropped, and puts them on the stream.
#[derive(Debug)]
pub(super) struct Steps<'a> {
    control: &'a Control,
    provider: &'a dyn Provider,
    vm: &'a EnvironmentId,
    file: &'static str,
    /// Bytes of whole lines that were read.
    seen: usize,
    reported: usize,
}

impl<'a> Steps<'a> {
    pub(super) fn new(
        control: &'a Control,
        provider: &'a dyn Provider,
        vm: &'a EnvironmentId,
        file: &'static str,
    ) -> Self {
        Self {
            control,
            provider,
            vm,
            file,
            seen: 0,
            reported: 0,
        }
    }

    /// Runs `script` and reports steps meanwhile, and those that are left when it has ended.
    pub(super) async fn during<T>(mut self, script: impl Future<Output = T>) -> T {
        let outcome = {
            let mut script = std::pin::pin!(script);
            let mut ticks = tokio::time::interval(PERIOD);
            ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            ticks.tick().await;
            loop {
                tokio::select! {
                    biased;
                    outcome = &mut script => break outcome,
                    _ = ticks.tick() => {}
                }
                // A reading that hangs must not keep the script's end waiting.
                tokio::select! {
                    biased;
                    outcome = &mut script => break outcome,
                    () = self.report() => {}
                }
            }
        };
        self.report().await;
        outcome
    }

    /// Publishes what is new. Best effort: losing a report is no reason to fail a create.
    async fn report(&mut self) {
        let Some(text) = self.read().await else {
            return;
        };
        let whole = text
            .iter()
            .rposition(|byte| *byte == b'\n')
            .map_or(0, |at| at + 1);
        let new: Vec<GuestReport> = text
            .get(..whole)
            .unwrap_or_default()
            .split(|byte| *byte == b'\n')
            .filter_map(parse)
            .take(MAX_STEPS.saturating_sub(self.reported))
            .collect();
        self.seen += whole;
        self.reported += new.len();
        if new.is_empty() {
            return;
        }
        let store = &self.control.inner.store;
        if let Err(e) = store.event_add_reports(self.vm, new).await {
            tracing::warn!(
                vm_id = %self.vm, error = %crate::error::chain(&e), "cannot publish reports"
            );
        }
    }

    /// What was appended since the last whole line.
    async fn read(&self) -> Option<Vec<u8>> {
        if self.seen >= MAX_BYTES || self.reported >= MAX_STEPS {
            return None;
        }
        let from = format!("+{}", self.seen + 1);
        let argv = ["tail", "-c", &from, self.file].map(str::to_owned).to_vec();
        let command = Command {
            argv,
            timeout: READ_LIMIT,
        };
        let answer = self.provider.exec(self.vm, &command.request()).await.ok()?;
        let mut text = answer.stdout;
        text.truncate(MAX_BYTES - self.seen);
        (answer.exit_code == 0).then_some(text)
    }
}

/// One line of the file; `None` when it is none of ours.
fn parse(line: &[u8]) -> Option<GuestReport> {
    #[derive(Deserialize)]
    struct Line {
        index: u32,
        #[serde(default)]
        total: u32,
        #[serde(default)]
        duration_ms: u64,
        #[serde(default)]
        exit_code: i32,
    }
    // Through a map: serde would also take an array for the struct.
    let map: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(line).ok()?;
    if map.contains_key("service") {
        let report: ServiceReport = serde_json::from_value(map.into()).ok()?;
        return is_service_name(&report.service).then_some(GuestReport::Service(report));
    }
    let line: Line = serde_json::from_value(map.into()).ok()?;
    (line.index > 0).then_some(GuestReport::Step(StepReport {
        index: line.index,
        total: line.total,
        duration_ms: line.duration_ms,
        exit_code: line.exit_code,
    }))
}

/// What compose takes for one, and short.
fn is_service_name(name: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    (1..=64).contains(&name.len()) && name.bytes().all(plain)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Output};

    use super::*;

    const HEAD: &str = "set -eu\n# fuse: build phase\ntrap '[ $? -eq 0 ] || exit 90' EXIT\n";

    /// A script of these steps, and where they stand.
    fn script(steps: &[&str]) -> (String, StartupSteps) {
        let mut text = HEAD.to_owned();
        let mut offsets = Vec::new();
        for step in steps {
            offsets.push(u32::try_from(text.len()).unwrap());
            text += &format!("{step}\n");
        }
        offsets.push(u32::try_from(text.len()).unwrap());
        text += "trap - EXIT\necho run $((2+2))\n";
        let total = u32::try_from(steps.len()).unwrap();
        (
            text,
            StartupSteps {
                first: 1,
                total,
                offsets,
            },
        )
    }

    /// What a shell does with it, and what was recorded.
    fn run(shell: &[&str], steps: &[&str]) -> (Output, Vec<(u32, u32, i32)>) {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("steps");
        let (text, places) = script(steps);
        let instrumented = instrument_into(&text, &places, file.to_str().unwrap());
        assert_ne!(instrumented, text);
        assert_eq!(instrumented.lines().count(), text.lines().count());
        let output = Command::new(shell[0])
            .args(&shell[1..])
            .args(["-c", &instrumented])
            .output()
            .unwrap();
        let recorded = std::fs::read(&file).unwrap_or_default();
        let reports = recorded
            .split(|byte| *byte == b'\n')
            .filter_map(parse)
            .filter_map(|report| match report {
                GuestReport::Step(step) => Some((step.index, step.total, step.exit_code)),
                GuestReport::Service(_) => None,
            })
            .collect();
        (output, reports)
    }

    fn shells() -> Vec<Vec<&'static str>> {
        let all = [vec!["sh"], vec!["bash"], vec!["busybox", "sh"]];
        let is_there = |shell: &Vec<&str>| {
            Command::new(shell[0])
                .args(&shell[1..])
                .args(["-c", ":"])
                .output()
                .is_ok()
        };
        all.into_iter().filter(is_there).collect()
    }

    #[test]
    fn every_step_is_recorded_and_the_script_does_what_it_did() {
        for shell in shells() {
            let steps = [
                "# a comment first\nA=1; IFS=,; echo $A",
                "(cd /tmp; pwd)",
                "cat <<X\nA=$A\nX",
                "if true; then\n  : \nfi",
            ];
            let (output, reports) = run(&shell, &steps);
            assert_eq!(output.status.code(), Some(0), "{shell:?} {output:?}");
            assert_eq!(
                String::from_utf8_lossy(&output.stdout),
                "1\n/tmp\nA=1\nrun 4\n"
            );
            assert!(output.stderr.is_empty(), "{output:?}");
            assert_eq!(reports, [(1, 4, 0), (2, 4, 0), (3, 4, 0), (4, 4, 0)]);
        }
    }

    #[test]
    fn a_failed_step_is_the_last_and_the_status_stays_90() {
        for shell in shells() {
            let (output, reports) = run(&shell, &["true", "sh -c 'exit 7'", "echo never"]);
            assert_eq!(output.status.code(), Some(90), "{shell:?}");
            assert!(output.stdout.is_empty());
            assert_eq!(reports, [(1, 3, 0), (2, 3, 7)]);
            let (output, reports) = run(&shell, &["exit 0", "echo never"]);
            assert_eq!(output.status.code(), Some(0), "{shell:?}");
            assert_eq!(reports, [(1, 2, 0)]);
        }
    }

    #[test]
    fn steps_that_belong_together_are_left_alone() {
        for steps in [
            &["if true; then", "echo", "fi"][..],
            &["echo a \\", "b"],
            &["f() {", "echo; }", "f"][..2],
            &["(", "true", ")"],
        ] {
            let (text, places) = script(steps);
            let is_split = steps.iter().any(|step| !stands_alone(step));
            let instrumented = instrument_into(&text, &places, "/dev/null");
            assert_eq!(instrumented == text, is_split, "{steps:?}");
            let output = Command::new("sh")
                .args(["-c", &instrumented])
                .output()
                .unwrap();
            assert_eq!(output.status.code(), Some(0), "{steps:?} {output:?}");
        }
    }

    #[test]
    fn a_script_at_the_limit_is_left_alone() {
        let long = format!("true {}", "x".repeat(MAX_SCRIPT - 200));
        let (text, places) = script(&[&long]);
        assert_eq!(instrument_into(&text, &places, "/dev/null"), text);
    }

    #[test]
    fn what_the_guest_writes_is_figures_or_nothing() {
        assert_eq!(
            parse(br#"{"index":2,"total":3,"duration_ms":40,"exit_code":1,"error":"x"}"#),
            Some(GuestReport::Step(StepReport {
                index: 2,
                total: 3,
                duration_ms: 40,
                exit_code: 1
            }))
        );
        assert_eq!(
            parse(br#"{"service":"db","status":"healthy","duration_ms":5,"exit_code":0,"x":"y"}"#),
            Some(GuestReport::Service(ServiceReport {
                service: "db".to_owned(),
                status: fuse_model::ServiceStatus::Healthy,
                duration_ms: 5,
                exit_code: 0
            }))
        );
        for bad in [
            &b""[..],
            b"{",
            b"[1]",
            b"\xff",
            br#"{"index":0}"#,
            br#"{"index":-1}"#,
            br#"{"index":1,"exit_code":"0"}"#,
            br#"{"index":99999999999}"#,
            br#"{"service":"db","status":"fine","duration_ms":5,"exit_code":0}"#,
            br#"{"service":"a b","status":"started","duration_ms":5,"exit_code":0}"#,
            br#"{"service":"","status":"started","duration_ms":5,"exit_code":0}"#,
            br#"{"service":7,"status":"started","duration_ms":5,"exit_code":0}"#,
        ] {
            assert_eq!(parse(bad), None);
        }
    }
}
