//! Warnings: valid, yet probably not what the author wants.
//!
//! Guesses from text, so they never make a file invalid and err on the side of silence.

use crate::decode::Document;
use crate::diagnostic::{Diagnostic, Report, quoted};
use crate::grammar::duration::Duration;
use crate::grammar::guest_path;
use crate::model::{Field, Fusefile, Run, Step};

/// Longest bound of the startup script that a server takes.
const MAX_STARTUP: Duration = Duration::from_nanos(55_000_000_000);

/// Commands that do not return by themselves.
const FOREVER: [&str; 12] = [
    "sleep infinity",
    "tail -f",
    "http.server",
    "npm start",
    "npm run dev",
    "npm run start",
    "yarn start",
    "flask run",
    "rails server",
    "uvicorn",
    "gunicorn",
    "php -S",
];

/// The warnings about a document.
#[must_use]
pub fn lint(document: &Document) -> Vec<Diagnostic> {
    let file = &document.file;
    let mut report = Report::new(&document.path);
    image(file, &mut report);
    startup_timeout(file, &mut report);
    if !file.setup.is_empty() && file.build.is_empty() {
        let hint = Some("rename it to build".to_owned());
        report.warning(
            file.setup.at,
            "setup",
            "setup is the old name of build",
            hint,
        );
    }
    let (key, steps) = file.steps();
    for (i, item) in steps.iter().enumerate() {
        step(&format!("{key}[{i}].run"), item, &mut report);
    }
    run(&file.run, &mut report);
    dashes(file, &mut report);
    report.into_problems()
}

fn image(file: &Fusefile, report: &mut Report<'_>) {
    let image = &file.image;
    if image.contains(['/', ':', '@']) {
        let message = format!(
            "{} looks like a container image; this is the name of a root file system on the host",
            quoted(image)
        );
        let hint = "containers go under services".to_owned();
        report.warning(image.at, "image", message, Some(hint));
    }
}

fn startup_timeout(file: &Fusefile, report: &mut Report<'_>) {
    let timeout = &file.startup_timeout;
    if Duration::parse(timeout).is_ok_and(|timeout| timeout > MAX_STARTUP) {
        let message = format!("{} is above what servers take, 55s", quoted(timeout));
        report.warning(timeout.at, "startup_timeout", message, None);
    }
}

fn step(path: &str, step: &Field<Step>, report: &mut Report<'_>) {
    let text = step.run.as_str();
    let at = step.run.at.or(step.at);
    forever(path, at, text, report);
    if !step.workdir.is_empty() && swallows_the_next_word(text) {
        let message = "with workdir, a closing parenthesis follows the command on its last line";
        let hint = "end the command with a line break: use run: |".to_owned();
        report.warning(at, path, message, Some(hint));
    }
    if step.workdir.is_empty()
        && text
            .lines()
            .any(|line| matches!(line.trim(), "exit" | "exit 0"))
    {
        let message = "exit 0 ends the whole script as a success; later steps and run never start";
        report.warning(at, path, message, None);
    }
}

fn run(run: &Field<Run>, report: &mut Report<'_>) {
    let text = match &run.value {
        Run::Absent => return,
        Run::Shell(text) => text.clone(),
        Run::Exec(arguments) => arguments.join(" "),
    };
    forever("run", run.at, &text, report);
}

/// `mkdir -p '-d'` and `chmod 0644 '-x'` take the name for an option.
fn dashes(file: &Fusefile, report: &mut Report<'_>) {
    for (i, entry) in file.files.iter().enumerate() {
        let path = guest_path::clean(&entry.path);
        if path.starts_with('-') && (path.contains('/') || !entry.mode.is_empty()) {
            let message = format!(
                "{} starts with a dash, which tools take for an option",
                quoted(&path)
            );
            let hint = "write the path from the root".to_owned();
            report.warning(
                entry.path.at,
                format!("files[{i}].path"),
                message,
                Some(hint),
            );
        }
    }
}

/// A command in the foreground that does not return fails the create when its time is up.
fn forever(path: &str, at: Option<crate::Position>, text: &str, report: &mut Report<'_>) {
    let found = text.lines().find_map(|line| {
        let line = line.trim();
        let detached = line.starts_with('#') || line.ends_with('&') && !line.ends_with("&&");
        FOREVER
            .iter()
            .find(|command| line.contains(*command))
            .filter(|_| !detached)
    });
    if let Some(command) = found {
        let message = format!(
            "{} does not return, and startup waits for it",
            quoted(command)
        );
        let hint = "put it in the background with &".to_owned();
        report.warning(at, path, message, Some(hint));
    }
}

/// Whether what is put behind `text` on its last line would be part of a comment or of a here-document.
fn swallows_the_next_word(text: &str) -> bool {
    if text.ends_with('\n') {
        return false;
    }
    let last = text.lines().next_back().unwrap_or_default();
    let comment = last.starts_with('#') || last.contains(" #");
    let heredoc = text.contains("<<") && text.contains('\n');
    comment || heredoc
}
