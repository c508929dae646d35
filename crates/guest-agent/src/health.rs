//! `fused health`: prints the verdict of the probe once it is another one than the caller knows.
//!
//! Whatever answers for this guest may write the file, so nothing is taken for granted: no more than
//! a little of it is read, and a name that is no file blocks nobody.

use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// Longest verdict in bytes.
const LIMIT: u64 = 4096;

/// Prints the verdict of the health probe, once it differs from a known one.
#[derive(Debug, Parser)]
#[command(name = "fused health")]
struct Options {
    /// The verdict that is known already; with none, any is printed
    #[arg(long, default_value = "", value_name = "TEXT")]
    unlike: String,
    /// Seconds to wait for another one; then what is there is printed
    #[arg(long, default_value_t = 55, value_name = "SECONDS")]
    timeout: u64,
    /// Where the verdict is written
    #[arg(long, default_value = "/fuse/health.json", value_name = "FILE")]
    file: PathBuf,
}

/// Runs the subcommand from this process's command line: 0 with the verdict on standard output, which
/// is nothing as long as there is none, 1 if it cannot be watched.
pub(crate) fn run() -> ExitCode {
    let options = Options::parse_from(std::env::args_os().skip(1));
    let deadline = Instant::now() + Duration::from_secs(options.timeout);
    let verdict = wait(&options.file, options.unlike.as_bytes(), deadline);
    match verdict.and_then(|text| std::io::stdout().write_all(&text)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nobody is left to be told if this fails.
            let _closed = writeln!(
                std::io::stderr(),
                "fused health: cannot watch {}: {error}",
                options.file.display()
            );
            ExitCode::FAILURE
        }
    }
}

/// The verdict, as soon as it is not `known`, or whatever it is at the deadline.
fn wait(file: &Path, known: &[u8], deadline: Instant) -> std::io::Result<Vec<u8>> {
    let changes = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
    let dir = file.parent().unwrap_or(Path::new("/"));
    // The directory, because a verdict is a new file that takes the name of the old one. Watched
    // before the first look, so that nothing falls between the two.
    inotify::add_watch(
        &changes,
        dir,
        WatchFlags::MOVED_TO | WatchFlags::CLOSE_WRITE | WatchFlags::DELETE,
    )?;
    loop {
        let verdict = read(file);
        if verdict != known || !change(&changes, deadline)? {
            return Ok(verdict);
        }
    }
}

/// The head of the file; nothing if there is none that can be read.
fn read(file: &Path) -> Vec<u8> {
    let mut text = Vec::new();
    // A pipe of that name must not hold the caller up.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    if let Ok(file) = rustix::fs::open(file, flags, Mode::empty()) {
        // What was read of a file that fails half-way is compared like any other text.
        let _partial = std::fs::File::from(file).take(LIMIT).read_to_end(&mut text);
    }
    text
}

/// Waits for changes and forgets them. Whether there were any.
fn change(changes: &OwnedFd, deadline: Instant) -> std::io::Result<bool> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(std::io::Error::other)?;
        let mut event = [PollFd::new(changes, PollFlags::IN)];
        match poll(&mut event, Some(&left)) {
            Ok(0) => return Ok(false),
            Ok(_) => break,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let mut buffer = [0_u8; 4096];
    loop {
        match rustix::io::read(changes, &mut buffer) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(true),
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAR: Duration = Duration::from_secs(60);

    fn write(file: &Path, text: &str) {
        let new = file.with_extension("new");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, file).unwrap();
    }

    #[test]
    fn answers_at_once_if_the_verdict_is_another_one() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("health.json");
        write(&file, "new");
        let deadline = Instant::now() + FAR;
        assert_eq!(wait(&file, b"old", deadline).unwrap(), b"new");
        assert_eq!(wait(&file, b"", deadline).unwrap(), b"new");
        std::fs::remove_file(&file).unwrap();
        assert_eq!(wait(&file, b"new", deadline).unwrap(), b"");
    }

    #[test]
    fn a_flip_ends_the_wait_and_other_files_do_not() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("health.json");
        write(&file, "same");
        let known = file.clone();
        let asked = std::thread::spawn(move || wait(&known, b"same", Instant::now() + FAR));
        std::fs::write(dir.path().join("other"), "text").unwrap();
        write(&file, "same");
        write(&file, "other");
        assert_eq!(asked.join().unwrap().unwrap(), b"other");
    }

    #[test]
    fn what_is_there_at_the_deadline_is_the_answer() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("health.json");
        assert_eq!(wait(&file, b"", Instant::now()).unwrap(), b"");
        write(&file, "same");
        assert_eq!(wait(&file, b"same", Instant::now()).unwrap(), b"same");
    }

    #[test]
    fn hostile_files_cost_little() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("health.json");
        std::fs::write(&file, vec![b'x'; 1 << 20]).unwrap();
        let deadline = Instant::now() + FAR;
        assert_eq!(wait(&file, b"", deadline).unwrap().len(), 4096);
        std::fs::remove_file(&file).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, &file, Mode::RUSR | Mode::WUSR).unwrap();
        assert_eq!(wait(&file, b"x", deadline).unwrap(), b"");
        let gone = dir.path().join("no/health.json");
        assert!(wait(&gone, b"", deadline).is_err());
    }
}
