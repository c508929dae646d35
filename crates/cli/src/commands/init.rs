//! `init`: a Fusefile to start from, and its `.fuseignore`.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use clap::Args;
use fuse_fusefile::find::{NAMES, write_target};
use fuse_fusefile::fs::Disk;
use fuse_fusefile::{check, ignore, scaffold};

use super::done;
use super::fusefile::FileArgs;
use crate::app::App;
use crate::error::Error as CliError;

/// Why nothing, or not everything, was written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// Something is in the way.
    #[error("{} is there already, nothing was written; --force replaces it", path.display())]
    Exists {
        /// What is in the way.
        path: PathBuf,
    },
    /// A file cannot be written.
    #[error("could not write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// `init`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  fuse init\n  fuse init --minimal -f tools/Fusefile")]
pub(crate) struct InitArgs {
    /// Where to.
    #[command(flatten)]
    pub(crate) file: FileArgs,
    /// Replace files that are there.
    #[arg(long)]
    pub(crate) force: bool,
    /// Only version, size and run, instead of every block with a comment.
    #[arg(long)]
    pub(crate) minimal: bool,
}

/// Writes both files, or none when one of them is in the way.
pub(crate) fn run(app: &App, args: &InitArgs) -> Result<(), CliError> {
    let target = write_target(&Disk::new(""), args.file.given());
    let directory = target.parent().unwrap_or(Path::new(""));
    let fusefile = if args.minimal {
        scaffold::minimal()
    } else {
        scaffold::fusefile()
    };
    let files = [
        (target.clone(), fusefile.clone()),
        (directory.join(ignore::FILE_NAME), scaffold::fuseignore()),
    ];
    if !args.force
        && let Some((path, _)) = files
            .iter()
            .find(|(path, _)| path.symlink_metadata().is_ok())
    {
        return Err(Error::Exists { path: path.clone() }.into());
    }
    for (path, text) in &files {
        write(path, text, args.force)?;
        app.io.success(&format!("wrote {}", path.display()));
    }
    let shown = target.display().to_string();
    done(
        app,
        &shown,
        "init",
        &format!("next: {}", next(&target, &fusefile)),
    )
}

fn write(path: &Path, text: &str, force: bool) -> Result<(), Error> {
    let mut options = OpenOptions::new();
    options.write(true);
    if force {
        options.create(true).truncate(true);
    } else {
        // Whatever appeared since it was looked for stays as it is.
        options.create_new(true);
    }
    let fail = |source: io::Error| match source.kind() {
        io::ErrorKind::AlreadyExists => Error::Exists {
            path: path.to_owned(),
        },
        _ => Error::Write {
            path: path.to_owned(),
            source,
        },
    };
    let mut file = options.open(path).map_err(fail)?;
    file.write_all(text.as_bytes()).map_err(fail)
}

/// The command that starts what was written, with every secret that it needs.
fn next(target: &Path, text: &str) -> String {
    let mut words = vec!["fuse up".to_owned()];
    if !NAMES.iter().any(|name| Path::new(name) == target) {
        words.push(format!("-f {}", target.display()));
    }
    let compiled = check("", text.as_bytes(), None).compiled;
    let secrets = compiled.map(|compiled| compiled.required_secrets);
    for name in secrets.unwrap_or_default() {
        words.push(format!("--secret {name}=<value>"));
    }
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_command_names_file_and_secrets() {
        assert_eq!(next(Path::new("Fusefile"), &scaffold::minimal()), "fuse up");
        assert_eq!(
            next(Path::new("a/Fusefile"), &scaffold::fusefile()),
            "fuse up -f a/Fusefile --secret postgres_password=<value>"
        );
    }
}
