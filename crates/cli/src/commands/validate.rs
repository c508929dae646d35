//! `validate`: every problem of a Fusefile at once, without network. Exit status 0 when it is valid,
//! 1 when it is not, 2 when the file or the secrets could not be read.

use clap::Args;
use fuse_fusefile::{Diagnostic, lint};
use serde::Serialize;

use super::fusefile::{self, FileArgs};
use super::secrets::{self, SecretArgs};
use crate::app::App;
use crate::error::Error as CliError;

/// Exit status of an invalid file.
const INVALID: u8 = 1;
/// Exit status when something could not be read.
const UNREADABLE: u8 = 2;

/// `validate`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  fuse validate -f examples/hello/Fusefile")]
pub(crate) struct ValidateArgs {
    /// Which Fusefile.
    #[command(flatten)]
    pub(crate) file: FileArgs,
    /// Say nothing; the exit status tells.
    #[arg(long)]
    pub(crate) quiet: bool,
    /// A required secret without a value is a problem, too.
    #[arg(long)]
    pub(crate) check_secrets: bool,
    /// Secrets to check against.
    #[command(flatten)]
    pub(crate) secrets: SecretArgs,
}

/// The outcome, as JSON shows it.
#[derive(Debug, Serialize)]
struct Outcome {
    path: String,
    valid: bool,
    errors: Vec<Problem>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    required_secrets: Vec<String>,
}

/// One problem.
#[derive(Debug, Serialize)]
struct Problem {
    /// Path of the field.
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
    message: String,
}

impl From<&Diagnostic> for Problem {
    fn from(diagnostic: &Diagnostic) -> Self {
        Self {
            path: diagnostic.field.clone(),
            line: diagnostic.position.map(|position| position.line),
            message: diagnostic.text(),
        }
    }
}

/// Checks and reports.
pub(crate) fn run(app: &App, args: &ValidateArgs) -> Result<(), CliError> {
    let unreadable = |error: &dyn std::fmt::Display| {
        if !args.quiet {
            app.io.warn(&error.to_string());
        }
        CliError::Status(UNREADABLE)
    };
    let path = args.file.locate().map_err(|error| unreadable(&error))?;
    let loaded = fusefile::load(path).map_err(|error| unreadable(&error))?;
    let values = args.secrets.collect(|name| std::env::var(name).ok());
    let values = values.map_err(|error| unreadable(&error))?;

    let checked = &loaded.checked;
    let required = checked
        .compiled
        .as_ref()
        .map(|compiled| compiled.required_secrets.clone());
    let required = required.unwrap_or_default();
    let mut problems: Vec<_> = checked.problems.iter().map(Problem::from).collect();
    let mut lines = loaded.shown(&checked.problems, app.io.stdout_is_read());
    let file = loaded.path.display().to_string();
    for name in required.iter().filter(|_| args.check_secrets) {
        if secrets::require(std::slice::from_ref(name), &values, false).is_err() {
            let message = format!("{name} has no value");
            lines.push(format!("{file}: secrets: {message}"));
            problems.push(Problem {
                path: Some("secrets".to_owned()),
                line: None,
                message,
            });
        }
    }
    let valid = problems.is_empty();
    if app.io.is_json() {
        let outcome = Outcome {
            path: file,
            valid,
            errors: problems,
            required_secrets: required,
        };
        app.io.json(&outcome)?;
    } else if !args.quiet {
        let warnings = lint(&checked.document);
        for warning in loaded.shown(&warnings, app.io.stderr_is_read()) {
            app.io.warn(&warning);
        }
        if valid {
            app.io.success(&format!("{file} is valid"));
            if !required.is_empty() {
                app.io
                    .note(&format!("required secrets: {}", required.join(", ")));
            }
        } else {
            app.io.data(&(lines.join("\n") + "\n"))?;
        }
    }
    if valid {
        Ok(())
    } else {
        Err(CliError::Status(INVALID))
    }
}
