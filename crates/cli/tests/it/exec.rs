//! `environment exec`, as its command goes on.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;

use crate::fake::{Fake, stream};
use crate::fuse::User;
use crate::shell::{receive, send};

const STREAM: &str = "POST /v1/environments/fuse-a?action=exec&stream=1";

/// An orchestrator that is a connection: its request's head was read, to its blank line.
fn orchestrator(serve: impl FnOnce(String, TcpStream) + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            head.extend(byte);
        }
        serve(String::from_utf8(head).unwrap(), stream);
    });
    url
}

#[test]
fn output_is_there_before_the_command_ends() {
    let (seen, wait) = std::sync::mpsc::channel::<()>();
    let url = orchestrator(move |_, mut stream| {
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n";
        stream.write_all(head.as_bytes()).unwrap();
        let first = "data: {\"event\":\"stdout\",\"data\":\"/2Zpcgo=\"}\n\n";
        stream.write_all(first.as_bytes()).unwrap();
        // Goes on only when that was seen.
        wait.recv().unwrap();
        let rest = "data: {\"event\":\"stderr\",\"data\":\"ZQ==\"}\n\n\
            data: {\"event\":\"exit\",\"exit_code\":124,\"timed_out\":true}\n\n";
        stream.write_all(rest.as_bytes()).unwrap();
    });
    let user = User::connected(&url, "tok");
    let mut child = user
        .command(&["env", "exec", "fuse-a", "--", "make"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 5];
    child
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut first)
        .unwrap();
    assert_eq!(&first, b"\xfffir\n");
    seen.send(()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(
        (output.status.code(), &*output.stdout),
        (Some(124), &b""[..])
    );
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.starts_with('e'), "{said}");
    assert!(said.contains("time limit"), "{said}");
}

#[test]
fn an_end_without_a_status_is_told() {
    let server = Fake::start(|seen| {
        (seen.line == STREAM).then(|| {
            stream(
                "data: {\"event\":\"error\",\"error\":{\"code\":\"conflict\",\
                 \"message\":\"vm not running: it ended\"}}\n\n",
            )
        })
    });
    User::connected(&server.url(), "tok")
        .run(&["env", "exec", "fuse-a", "--", "make"])
        .exits(1)
        .says("conflict: vm not running: it ended");
}

#[test]
fn with_interactive_our_input_is_the_commands() {
    let url = orchestrator(|head, mut stream| {
        assert!(head.starts_with(&format!("{STREAM} ")), "{head}");
        let head = head.to_lowercase();
        assert!(head.contains("upgrade: fuse-attach/1\r\n"), "{head}");
        let length = head.split("content-length: ").nth(1).unwrap();
        let length = length.split('\r').next().unwrap().parse().unwrap();
        let mut body = vec![0; length];
        stream.read_exact(&mut body).unwrap();
        assert_eq!(body, br#"{"cmd":["cat"]}"#);
        let answer = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: fuse-attach/1\r\n\
            Connection: Upgrade\r\n\r\n";
        stream.write_all(answer).unwrap();
        // What `cat` does, to the empty frame that ends its input.
        loop {
            let (kind, payload) = receive(&mut stream).unwrap();
            assert_eq!(kind, 0);
            if payload.is_empty() {
                break;
            }
            send(&mut stream, 1, &payload);
        }
        send(&mut stream, 4, br#"{"exit_code":5}"#);
    });
    let user = User::connected(&url, "tok");
    // More than any buffer on the way.
    let input = "0123456789abcde\n".repeat(40_000);
    let mut child = user
        .command(&["env", "exec", "-i", "fuse-a", "--", "cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let given = input.clone();
    let feed = std::thread::spawn(move || stdin.write_all(given.as_bytes()));
    let output = child.wait_with_output().unwrap();
    feed.join().unwrap().unwrap();
    assert!(
        output.stdout == input.as_bytes(),
        "{} bytes came back",
        output.stdout.len()
    );
    assert_eq!((output.status.code(), &*output.stderr), (Some(5), &b""[..]));
}

#[test]
fn a_session_that_breaks_is_told() {
    let url = orchestrator(|_, mut stream| {
        let answer = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: fuse-attach/1\r\n\
            Connection: Upgrade\r\n\r\n";
        stream.write_all(answer).unwrap();
        send(&mut stream, 1, b"begun\n");
    });
    User::connected(&url, "tok")
        .run(&["env", "exec", "-i", "fuse-a", "--", "cat"])
        .exits(1)
        .says("it is not known how the command ended")
        .prints("begun\n");
    User::connected(&url, "tok")
        .run(&["-o", "json", "env", "exec", "-i", "fuse-a", "--", "cat"])
        .exits(1);
}
