//! `environment shell` in a real terminal (tmux), against a guest that is a few lines here.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::Command;

use crate::fuse::User;
use crate::terminal::Terminal;

/// Writes a frame.
pub(crate) fn send(stream: &mut TcpStream, kind: u8, payload: &[u8]) {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let frame = [&[kind, 0, 0, 0], &length[..], payload].concat();
    stream.write_all(&frame).unwrap();
}

/// Reads a frame; `None` at the end.
pub(crate) fn receive(stream: &mut TcpStream) -> Option<(u8, Vec<u8>)> {
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

/// The shell in a terminal; what became of it and of the terminal is shown at the end.
fn start(test: &str) -> Option<Terminal> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || guest(stream));
        }
    });
    let script = format!(
        "stty -echo; {} environment shell fuse-a -- top -d 1; echo \"<status $?>\"; \
         stty -a | grep -q -- '-icanon' && echo '<raw>' || echo '<cooked>'",
        env!("CARGO_BIN_EXE_fuse")
    );
    Terminal::run(test, User::connected(&url, "tok"), &script)
}

#[test]
fn keys_sizes_and_the_exit_status_get_through() {
    let Some(terminal) = start("shell::keys_sizes_and_the_exit_status_get_through") else {
        return;
    };
    terminal.shows("welcome");
    terminal.keys("hello ~. world");
    // In the middle of a line that is no way out.
    terminal.shows("HELLO ~. WORLD");
    terminal.tmux(&["resize-window", "-x", "100", "-y", "35"]);
    terminal.shows("[size 35x100]");
    terminal.keys("X");
    terminal.shows("<status 7>");
    terminal.shows("<cooked>");
}

#[test]
fn a_session_that_breaks_says_so_and_gives_the_terminal_back() {
    let Some(terminal) = start("shell::a_session_that_breaks_says_so_and_gives_the_terminal_back")
    else {
        return;
    };
    terminal.shows("welcome");
    terminal.keys("D");
    terminal.shows("the session ended before its command did");
    terminal.shows("<status 1>");
    terminal.shows("<cooked>");
}

#[test]
fn the_escape_leaves_and_a_signal_ends_it_in_good_order() {
    let Some(terminal) = start("shell::the_escape_leaves_and_a_signal_ends_it_in_good_order")
    else {
        return;
    };
    terminal.shows("welcome");
    terminal.keys("~.");
    terminal.shows("<status 0>");
    terminal.shows("<cooked>");

    let Some(terminal) = start("shell::the_escape_leaves_and_a_signal_ends_it_in_good_order")
    else {
        return;
    };
    terminal.shows("welcome");
    let tty = terminal.tmux(&["display-message", "-p", "#{pane_tty}"]);
    let tty = tty.trim().trim_start_matches("/dev/").to_owned();
    let killed = Command::new("pkill")
        .args(["-TERM", "-t", &tty, "-x", "fuse"])
        .status();
    assert!(killed.unwrap().success());
    terminal.shows("<status 143>");
    terminal.shows("<cooked>");
}

#[test]
fn without_a_terminal_there_is_no_shell() {
    User::connected("http://127.0.0.1:1", "tok")
        .run(&["env", "shell", "fuse-a"])
        .exits(1)
        .says("fuse environment exec");
}
