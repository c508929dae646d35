//! `environment shell` in a real terminal (tmux), against a guest that is a few lines here.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::fuse::User;

const PATIENCE: Duration = Duration::from_secs(30);

/// Writes a frame.
fn send(stream: &mut TcpStream, kind: u8, payload: &[u8]) {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let frame = [&[kind, 0, 0, 0], &length[..], payload].concat();
    stream.write_all(&frame).unwrap();
}

/// Reads a frame; `None` at the end.
fn receive(stream: &mut TcpStream) -> Option<(u8, Vec<u8>)> {
    let mut header = [0; 8];
    stream.read_exact(&mut header).ok()?;
    let length = u32::from_be_bytes(header[4..].try_into().unwrap());
    let mut payload = vec![0; usize::try_from(length).unwrap()];
    stream.read_exact(&mut payload).ok()?;
    Some((header[0], payload))
}

/// A guest that shouts back what is typed, tells sizes, ends with 7 at an `X` and drops the
/// connection at a `D`.
fn guest(mut stream: TcpStream) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.extend(byte);
    }
    let head = String::from_utf8(head).unwrap();
    assert!(
        head.starts_with("GET /v1/environments/fuse-a/attach?tty=1&rows=30&cols=90&term="),
        "{head}"
    );
    assert!(head.contains("&cmd=top&cmd=-d&cmd=1 "), "{head}");
    // The first frame comes in one piece with the head of the answer.
    let answer = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: fuse-attach/1\r\n\
        Connection: Upgrade\r\n\r\n\x01\0\0\0\0\0\0\x08welcome ";
    stream.write_all(answer).unwrap();
    while let Some((kind, payload)) = receive(&mut stream) {
        match kind {
            0 if payload.contains(&b'X') => {
                send(&mut stream, 4, br#"{"exit_code":7}"#);
                return;
            }
            0 if payload.contains(&b'D') => return,
            0 => send(&mut stream, 1, &payload.to_ascii_uppercase()),
            3 => {
                let size: serde_json::Value = serde_json::from_slice(&payload).unwrap();
                let text = format!("[size {}x{}]", size["rows"], size["cols"]);
                send(&mut stream, 1, text.as_bytes());
            }
            other => panic!("frame of type {other}"),
        }
    }
}

struct Tmux {
    socket: String,
    user: User,
}

impl Tmux {
    fn run(&self, args: &[&str]) -> String {
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

    /// A terminal of 30 lines in which the shell runs, and what became of it is shown.
    fn start() -> Option<Self> {
        if Command::new("tmux").arg("-V").output().is_err() {
            println!("SKIP: there is no tmux on this machine");
            return None;
        }
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                std::thread::spawn(move || guest(stream));
            }
        });
        let user = User::connected(&url, "tok");
        let script = format!(
            "stty -echo; {} environment shell fuse-a -- top -d 1; echo \"<status $?>\"; \
             stty -a | grep -q -- '-icanon' && echo '<raw>' || echo '<cooked>'; sleep 60\n",
            env!("CARGO_BIN_EXE_fuse")
        );
        user.write("run.sh", &script);
        let socket = user.home().join("tmux").display().to_string();
        let tmux = Self { socket, user };
        let script = format!("sh {}", tmux.user.home().join("run.sh").display());
        tmux.run(&[
            "new-session",
            "-d",
            "-x",
            "90",
            "-y",
            "30",
            &script,
            ";",
            "set",
            "-g",
            "status",
            "off",
        ]);
        Some(tmux)
    }

    fn keys(&self, keys: &str) {
        self.run(&["send-keys", "-l", keys]);
    }

    /// Waits until the screen shows this.
    #[track_caller]
    fn shows(&self, text: &str) {
        let started = Instant::now();
        loop {
            let screen = self.run(&["capture-pane", "-p"]);
            if screen.contains(text) {
                return;
            }
            assert!(started.elapsed() < PATIENCE, "no {text:?} on:\n{screen}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        self.run(&["kill-server"]);
    }
}

#[test]
fn keys_sizes_and_the_exit_status_get_through() {
    let Some(tmux) = Tmux::start() else { return };
    tmux.shows("welcome");
    tmux.keys("hello ~. world");
    // In the middle of a line that is no way out.
    tmux.shows("HELLO ~. WORLD");
    tmux.run(&["resize-window", "-x", "100", "-y", "35"]);
    tmux.shows("[size 35x100]");
    tmux.keys("X");
    tmux.shows("<status 7>");
    tmux.shows("<cooked>");
}

#[test]
fn a_session_that_breaks_says_so_and_gives_the_terminal_back() {
    let Some(tmux) = Tmux::start() else { return };
    tmux.shows("welcome");
    tmux.keys("D");
    tmux.shows("the session ended before its command did");
    tmux.shows("<status 1>");
    tmux.shows("<cooked>");
}

#[test]
fn the_escape_leaves_and_a_signal_ends_it_in_good_order() {
    let Some(tmux) = Tmux::start() else { return };
    tmux.shows("welcome");
    tmux.keys("~.");
    tmux.shows("<status 0>");
    tmux.shows("<cooked>");

    let Some(tmux) = Tmux::start() else { return };
    tmux.shows("welcome");
    let tty = tmux.run(&["display-message", "-p", "#{pane_tty}"]);
    let tty = tty.trim().trim_start_matches("/dev/").to_owned();
    let killed = Command::new("pkill")
        .args(["-TERM", "-t", &tty, "-x", "fuse"])
        .status();
    assert!(killed.unwrap().success());
    tmux.shows("<status 143>");
    tmux.shows("<cooked>");
}

#[test]
fn without_a_terminal_there_is_no_shell() {
    User::connected("http://127.0.0.1:1", "tok")
        .run(&["env", "shell", "fuse-a"])
        .exits(1)
        .says("fuse environment exec");
}
