//! The Fusefile compiler as people meet it: a cold `fuse validate`, a very long file, a tree full of what stays behind.

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fuse_testkit::Bins;

use crate::report::{Budget, Report};
use crate::stats::Series;

const GROUP: &str = "fusefile";
/// Lines of the long file.
const LINES: usize = 5_000;
/// Directories of the tree, and files in each.
const DIRS: usize = 100;
const FILES: usize = 1_000;

/// Runs `fuse` on each of the three.
pub(crate) fn measure(report: &mut Report, quick: bool) -> Result<()> {
    let fuse = Bins::find()?.path("fuse")?;
    let dir = tempfile::tempdir()?;
    let rounds = if quick { 5 } else { 41 };

    let small = dir.path().join("small");
    project(
        &small,
        "version: 1\nname: small\nresources: { cpus: 1 }\nrun: uname -a\n",
    )?;
    let took = series(&fuse, &small, "validate", rounds)?;
    report.add(
        GROUP,
        "validate, cold, p50",
        took.p50_ms(),
        "ms",
        Budget::AtMost(15.0),
    );

    let long = dir.path().join("long");
    project(&long, &long_file())?;
    let took = series(&fuse, &long, "validate", rounds)?;
    report.add(
        GROUP,
        format!("validate, {LINES} lines, p50"),
        took.p50_ms(),
        "ms",
        Budget::AtMost(50.0),
    );

    let tree = dir.path().join("tree");
    project(
        &tree,
        "version: 1\nname: tree\ncopy: [{ from: src, to: src }]\n",
    )?;
    grow(&tree)?;
    let took = series(&fuse, &tree, "compile", if quick { 3 } else { 11 })?;
    report.add(
        GROUP,
        format!("copy past {} files left behind, p50", 2 * DIRS * FILES),
        took.p50_ms(),
        "ms",
        Budget::AtMost(500.0),
    );
    Ok(())
}

fn project(dir: &Path, fusefile: &str) -> Result<()> {
    std::fs::create_dir_all(dir)?;
    std::fs::write(dir.join("Fusefile"), fusefile)?;
    Ok(())
}

/// A valid file of exactly [`LINES`] lines, with some of everything that can be long.
fn long_file() -> String {
    let mut text = "version: 1\nname: long\nenv:\n".to_owned();
    for i in 0..1_000 {
        // Writing to a String cannot fail, here and below.
        writeln!(text, "  VARIABLE_{i}: {{ value: \"the value of {i}\" }}").ok();
    }
    text += "build:\n";
    for i in 0..1_000 {
        writeln!(text, "  - run: make part-{i}\n    workdir: parts/{i}").ok();
    }
    text += "run: |\n";
    let lines = text.lines().count();
    for i in lines..LINES {
        writeln!(text, "  echo line {i}").ok();
    }
    text
}

/// One half of the files is in a directory that is not looked into, the other has to be looked at, name by name.
fn grow(tree: &Path) -> Result<()> {
    std::fs::write(tree.join(".fuseignore"), "*.log\n")?;
    for dir in 0..DIRS {
        for (parent, name) in [("src/node_modules", "js"), ("src/logs", "log")] {
            let path = tree.join(parent).join(dir.to_string());
            std::fs::create_dir_all(&path)?;
            for file in 0..FILES {
                std::fs::write(path.join(format!("{file}.{name}")), "")?;
            }
        }
    }
    std::fs::write(tree.join("src/kept.txt"), "kept\n")?;
    Ok(())
}

fn series(fuse: &Path, dir: &Path, command: &str, rounds: usize) -> Result<Series> {
    // The first run finds nothing in the page cache.
    run(fuse, dir, command)?;
    let samples: Result<Vec<Duration>> = (0..rounds).map(|_| run(fuse, dir, command)).collect();
    Ok(Series::new(samples?))
}

fn run(fuse: &Path, dir: &Path, command: &str) -> Result<Duration> {
    let started = Instant::now();
    let status = Command::new(fuse)
        .arg(command)
        .current_dir(dir)
        .env("HOME", dir)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .with_context(|| format!("run {}", fuse.display()))?;
    ensure!(
        status.success(),
        "fuse {command} in {} failed",
        dir.display()
    );
    Ok(started.elapsed())
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_long_file_is_as_long_as_it_says() {
        assert_eq!(super::long_file().lines().count(), super::LINES);
    }
}
