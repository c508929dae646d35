//! `build` and `setup`.

use super::place;
use crate::diagnostic::{Report, quoted};
use crate::grammar::{guest_path, names};
use crate::model::{Field, Fusefile, Step};

pub(super) fn check(file: &Fusefile, report: &mut Report<'_>) {
    if !file.build.is_empty() && !file.setup.is_empty() {
        report.error(
            file.setup.at,
            "build",
            "set one of build/setup; setup is the old name",
        );
    }
    let (key, steps) = file.steps();
    for (i, step) in steps.iter().enumerate().filter(|(_, step)| !step.broken) {
        run(&format!("{key}[{i}]"), step, report);
        workdir(&format!("{key}[{i}]"), step, report);
        inputs(&format!("{key}[{i}].inputs"), step, report);
    }
}

fn run(path: &str, step: &Field<Step>, report: &mut Report<'_>) {
    if !step.run.broken && names::is_blank(&step.run) {
        report.error(
            place(&step.run, step.at),
            format!("{path}.run"),
            "command missing",
        );
    }
}

fn workdir(path: &str, step: &Field<Step>, report: &mut Report<'_>) {
    let dir = step.workdir.as_str();
    let what = if guest_path::has_control(dir) {
        "control character".to_owned()
    } else if guest_path::has_parent_segment(dir) {
        format!("parent segment {}", quoted(dir))
    } else {
        return;
    };
    let message = format!("not allowed in a directory: {what}");
    report.error(step.workdir.at, format!("{path}.workdir"), message);
}

fn inputs(path: &str, step: &Field<Step>, report: &mut Report<'_>) {
    if !step.inputs.is_empty() && *step.cache == Some(false) {
        report.error(step.inputs.at, path, "an uncacheable step takes no inputs");
    }
    for (j, pattern) in step
        .inputs
        .iter()
        .enumerate()
        .filter(|(_, pattern)| !pattern.broken)
    {
        let slashed = slashes(pattern);
        let message = if names::is_blank(pattern) {
            "empty".to_owned()
        } else if is_absolute(&slashed) {
            format!("must be relative to the Fusefile, got {}", quoted(pattern))
        } else if guest_path::clean(&slashed).split('/').next() == Some("..") {
            format!("leaves the Fusefile's directory: {}", quoted(pattern))
        } else {
            continue;
        };
        report.error(pattern.at, format!("{path}[{j}]"), message);
    }
}

/// A path of the author's machine with slashes for separators.
fn slashes(path: &str) -> String {
    if cfg!(windows) {
        path.replace('\\', "/")
    } else {
        path.to_owned()
    }
}

fn is_absolute(path: &str) -> bool {
    path.starts_with('/') || std::path::Path::new(path).is_absolute()
}
