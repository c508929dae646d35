//! Runs the distribution's programs.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::ImageError;

/// A program and the package it comes in, the same on Debian and Ubuntu.
pub(crate) type Tool = (&'static str, &'static str);

/// Output that is shown of a program that failed.
const SHOWN_LINES: usize = 15;

/// Checks that all programs are there.
///
/// # Errors
/// Names all that are not, at once.
pub(crate) fn require(tools: &[Tool]) -> Result<(), ImageError> {
    let missing: Vec<&Tool> = tools
        .iter()
        .filter(|(tool, _)| find(tool).is_none())
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let mut packages: Vec<&str> = missing.iter().map(|(_, package)| *package).collect();
    packages.sort_unstable();
    packages.dedup();
    let tools: Vec<&str> = missing.iter().map(|(tool, _)| *tool).collect();
    Err(ImageError::MissingTools {
        tools: tools.join(", "),
        packages: packages.join(" "),
    })
}

/// Where a program is; administrators' programs are found whoever asks.
fn find(tool: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    dirs.map(|dir| dir.join(tool)).find(|path| path.is_file())
}

/// A command with a predictable environment, in which it finds the system's
/// programs whatever root file system it is in.
pub(crate) fn command(tool: &str) -> Command {
    let mut command = Command::new(find(tool).unwrap_or_else(|| PathBuf::from(tool)));
    let path = std::env::var("PATH").unwrap_or_default();
    command
        .env("PATH", format!("{path}:/usr/sbin:/usr/bin:/sbin:/bin"))
        .env("LC_ALL", "C")
        .env("DEBIAN_FRONTEND", "noninteractive")
        .env("SOURCE_DATE_EPOCH", crate::rootfs::EPOCH.to_string())
        .stdin(Stdio::null());
    command
}

/// Runs a command to its end; returns its standard output.
pub(crate) fn run(step: &'static str, command: &mut Command) -> Result<Vec<u8>, ImageError> {
    let program = Path::new(command.get_program())
        .file_name()
        .unwrap_or_default();
    let program = program.to_string_lossy().into_owned();
    let failed = |detail: String| ImageError::Command {
        step,
        program: program.clone(),
        detail,
    };
    let output = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .output()
        .map_err(|error| failed(error.to_string()))?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    Err(failed(format!("{}\n{}", output.status, tail(&output))))
}

/// Runs a command that turns its input into its output.
pub(crate) fn filter(
    step: &'static str,
    command: &mut Command,
    input: &[u8],
) -> Result<Vec<u8>, ImageError> {
    let mut file = tempfile::tempfile().map_err(ImageError::file("make", Path::new("/tmp")))?;
    file.write_all(input)
        .map_err(ImageError::file("write", Path::new("/tmp")))?;
    std::io::Seek::rewind(&mut file).map_err(ImageError::file("read", Path::new("/tmp")))?;
    run(step, command.stdin(file))
}

fn tail(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_missing_tools_are_named_with_their_packages() {
        let error = require(&[("sh", "dash"), ("no-such-x", "px"), ("no-such-y", "py")]);
        assert_eq!(
            error.unwrap_err().to_string(),
            "missing no-such-x, no-such-y; install with: apt-get install px py"
        );
    }

    #[test]
    fn a_failure_shows_what_the_program_said() {
        let error = run("test", command("sh").args(["-c", "echo why >&2; exit 3"])).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("test failed: sh") && text.contains("why"),
            "{text}"
        );
        assert_eq!(
            filter("test", command("tr").args(["a", "b"]), b"aca").unwrap(),
            b"bcb"
        );
    }
}
