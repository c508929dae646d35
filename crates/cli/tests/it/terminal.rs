//! A terminal to type into: a tmux server of one test's own.

use std::io::{Read as _, Write as _};
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use crate::fuse::User;

/// Nothing in these tests takes as long.
const PATIENCE: Duration = Duration::from_secs(30);

/// A script in a terminal of 90 columns and 30 lines. It is killed when dropped.
pub(crate) struct Terminal {
    socket: String,
    user: User,
    /// A message for each piece of output.
    output: Receiver<()>,
}

impl Terminal {
    /// Runs a script of `sh` there, or answers `None`, and says so, where there is no tmux.
    pub(crate) fn run(test: &str, user: User, script: &str) -> Option<Self> {
        if Command::new("tmux").arg("-V").output().is_err() {
            // Past the harness's capture: `make test` counts these lines.
            drop(writeln!(
                std::io::stderr().lock(),
                "SKIP {test}: tmux is not installed"
            ));
            return None;
        }
        // The screen stays readable when the script is through.
        user.write("run.sh", &format!("{script}\nsleep 60\n"));
        let socket = user.home().join("tmux").display().to_string();
        let output = user.home().join("output");
        let made = Command::new("mkfifo").arg(&output).status().unwrap();
        assert!(made.success());
        let terminal = Self {
            socket,
            user,
            output: follow(output.clone()),
        };
        let script = format!("sh {}", terminal.user.home().join("run.sh").display());
        let copy = format!("exec cat > {}", output.display());
        let new = ["new-session", "-d", "-x", "90", "-y", "30", &script];
        let pipe = [";", "pipe-pane", &copy];
        terminal.tmux(&[&new[..], &pipe, &[";", "set", "-g", "status", "off"]].concat());
        Some(terminal)
    }

    /// A command of tmux and what it printed.
    pub(crate) fn tmux(&self, args: &[&str]) -> String {
        let output = Command::new("tmux")
            .args(["-S", &self.socket, "-f", "/dev/null"])
            .args(args)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.user.home())
            .env("TERM", "xterm")
            .env("LC_ALL", "C.UTF-8")
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Types these characters.
    pub(crate) fn keys(&self, keys: &str) {
        self.tmux(&["send-keys", "-l", keys]);
    }

    /// Waits until the screen shows `text`, then types `keys` and Enter.
    #[track_caller]
    pub(crate) fn answer(&self, text: &str, keys: &str) {
        self.shows(text);
        if !keys.is_empty() {
            self.keys(keys);
        }
        self.tmux(&["send-keys", "Enter"]);
    }

    /// Takes back what was typed last.
    pub(crate) fn erase(&self, characters: usize) {
        for _ in 0..characters {
            self.tmux(&["send-keys", "BSpace"]);
        }
    }

    /// Waits until the screen shows `text`; the whole screen.
    #[track_caller]
    pub(crate) fn shows(&self, text: &str) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let screen = self.tmux(&["capture-pane", "-p"]);
            if screen.contains(text) {
                return screen;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let news = self.output.recv_timeout(left);
            assert!(news.is_ok(), "no {text:?} on:\n{screen}");
        }
    }
}

/// Tells of what is written to a pipe, until its writer is gone.
fn follow(pipe: std::path::PathBuf) -> Receiver<()> {
    let (tell, output) = channel();
    std::thread::spawn(move || {
        let mut pipe = std::fs::File::open(pipe).unwrap();
        let mut bytes = [0; 4096];
        while pipe.read(&mut bytes).is_ok_and(|read| read > 0) && tell.send(()).is_ok() {}
    });
    output
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.tmux(&["kill-server"]);
    }
}
