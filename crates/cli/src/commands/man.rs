//! `man`: the manual pages of all commands, and the page of the manual that shows the same.

use std::path::{Path, PathBuf};
use std::{fs, io};

use clap::{Args, CommandFactory as _};

use super::done;
use crate::app::App;
use crate::args::Cli;
use crate::error::Error as CliError;

/// `man`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  fuse man ~/.local/share/man/man1\n\nThen `man fuse`, `man fuse-up`, \
    `man fuse-environment-exec`."
)]
pub(crate) struct ManArgs {
    /// Directory to write them to; it is made if it does not exist.
    #[arg(value_name = "DIR")]
    pub(crate) dir: PathBuf,
}

/// Pages that could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write manual pages to {}: {source}; name a directory that you may write to", dir.display())]
pub(crate) struct Error {
    dir: PathBuf,
    source: io::Error,
}

/// Writes the pages.
pub(crate) fn run(app: &App, args: &ManArgs) -> Result<(), CliError> {
    let dir = &args.dir;
    write(dir).map_err(|source| Error {
        dir: dir.clone(),
        source,
    })?;
    let shown = dir.display().to_string();
    done(app, &shown, "written", &format!("manual pages in {shown}"))
}

fn write(dir: &Path) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    clap_mangen::generate_to(tree(), dir)
}

/// The commands under the name that people type.
fn tree() -> clap::Command {
    Cli::command().display_name("fuse")
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/cli.md");

    /// Every command with its help, as `fuse help` prints it.
    fn page() -> String {
        let mut page = String::from(
            "<!-- Made from the command tree by the tests of crates/cli; do not edit. -->\n\n\
             # The commands of fuse\n\n\
             What `fuse help` prints, for reading and searching; the options of the first section are those \
             of every command. `fuse man DIR` writes the same as manual pages.\n",
        );
        let mut tree = tree().term_width(100);
        tree.build();
        section(&mut tree, 2, &mut page);
        page
    }

    fn section(command: &mut clap::Command, level: usize, page: &mut String) {
        let name = command.get_bin_name().unwrap_or("fuse").to_owned();
        let mut shown = command.clone();
        if level > 2 {
            for option in ["output", "context", "config"] {
                shown = shown.mut_arg(option, |option| option.hide(true));
            }
        }
        let help = shown.render_long_help().to_string();
        let lines: Vec<&str> = help.lines().map(str::trim_end).collect();
        let title = "#".repeat(level);
        let help = lines.join("\n");
        write!(page, "\n{title} {name}\n\n```text\n{help}\n```\n").unwrap();
        for below in command.get_subcommands_mut() {
            if below.get_name() != "help" && !below.is_hide_set() {
                section(below, level + 1, page);
            }
        }
    }

    #[test]
    fn the_page_of_the_manual_is_current() {
        let made = page();
        if std::env::var_os("UPDATE_CLI_DOCS").is_some() {
            fs::write(PAGE, &made).unwrap();
        }
        let kept = fs::read_to_string(PAGE).unwrap_or_default();
        assert!(
            kept == made,
            "docs/cli.md does not show the commands as they are; make it anew with \
             UPDATE_CLI_DOCS=1 cargo test -p fuse-cli the_page_of_the_manual"
        );
    }

    #[test]
    fn every_command_has_a_page() {
        let dir = tempfile::tempdir().unwrap();
        let under = dir.path().join("man/man1");
        write(&under).unwrap();
        for name in ["fuse", "fuse-up", "fuse-environment-exec"] {
            let page = fs::read_to_string(under.join(format!("{name}.1"))).unwrap();
            assert!(page.contains(".SH SYNOPSIS"), "{page}");
        }
        fs::write(dir.path().join("file"), "").unwrap();
        assert!(write(&dir.path().join("file/below")).is_err());
    }
}
