//! Commands attached to a caller: terminals, streams, ends.

use std::time::Duration;

use bytes::Bytes;
use fuse_wire_host::attach::{Codec, Exit, Frame, Request, Resize};
use fuse_wire_host::{AttachStream, HostError};
use futures_util::{SinkExt as _, StreamExt as _};
use sha2::{Digest as _, Sha256};
use tokio_util::codec::Framed;

use crate::agent::{Agent, FC, GPU, Program};
use crate::machine::{Image, on_a_machine};

type Session = Framed<AttachStream, Codec>;

/// Longest that anything here may take on a slow machine.
const PATIENCE: Duration = Duration::from_secs(60);

async fn attach(agent: &Agent, request: &Request) -> Session {
    match agent.client.attach("a", request).await {
        Ok(stream) => Framed::new(stream, Codec),
        Err(error) => panic!("{error}\n{}", agent.log()),
    }
}

fn command(script: &str) -> Request {
    Request {
        cmd: ["bash", "-c", script].map(str::to_owned).to_vec(),
        ..Request::default()
    }
}

/// Reads to the end: output, error output, exit status if there was one.
async fn rest(session: &mut Session) -> (Vec<u8>, Vec<u8>, Option<Exit>) {
    let (mut out, mut err, mut exit) = (Vec::new(), Vec::new(), None);
    let read = async {
        while let Some(Ok(frame)) = session.next().await {
            match frame {
                Frame::Stdout(bytes) => out.extend_from_slice(&bytes),
                Frame::Stderr(bytes) => err.extend_from_slice(&bytes),
                Frame::Exit(status) => exit = Some(status),
                frame => panic!("{frame:?}"),
            }
        }
    };
    tokio::time::timeout(PATIENCE, read).await.unwrap();
    (out, err, exit)
}

fn code(exit_code: i32) -> Option<Exit> {
    Some(Exit {
        exit_code,
        ..Exit::default()
    })
}

#[test]
fn commands_are_attached_until_either_end_is_done() {
    on_a_machine("attach", |image, _outside| attached(FC, image));
}

#[test]
fn commands_are_attached_by_the_gpu_agent() {
    on_a_machine("attach_gpu", |image, _outside| attached(GPU, image));
}

async fn attached(program: Program, image: Image) {
    let agent = Agent::start(program, &image, &[]).await;
    agent.create("a").await;
    terminal(&agent).await;
    streams(&agent).await;
    megabytes(&agent).await;
    ends(&agent).await;
    slow_reader(&agent).await;
    drain(&agent).await;
    let mut session = attach(&agent, &command("sleep 600")).await;
    agent.client.delete("a").await.unwrap();
    let (_, _, exit) = rest(&mut session).await;
    assert_eq!(exit, None, "a guest that is gone has no exit status");
    let gone = agent
        .client
        .attach("a", &Request::default())
        .await
        .unwrap_err();
    assert!(matches!(gone, HostError::NotFound { .. }), "{gone:?}");
}

async fn terminal(agent: &Agent) {
    let request = Request {
        tty: true,
        rows: Some(31),
        cols: Some(97),
        ..command("trap 'stty size; exit 7' WINCH; tty; stty size; echo $TERM; sleep 600 & wait")
    };
    let mut session = attach(agent, &request).await;
    let seen = until(&mut session, "color\r\n").await;
    assert!(
        seen.contains("/dev/pts/") && seen.contains("31 97"),
        "{seen}"
    );
    let size = Resize {
        rows: 50,
        cols: 120,
    };
    session.send(Frame::Resize(size)).await.unwrap();
    let (out, _, exit) = rest(&mut session).await;
    assert_eq!(String::from_utf8(out).unwrap(), "50 120\r\n");
    assert_eq!(exit, code(7));
    // What is typed goes through the terminal, Ctrl-C too.
    let request = Request {
        tty: true,
        ..Request::default()
    };
    let mut session = attach(agent, &request).await;
    let line = Frame::Stdin(Bytes::from("echo $((6*7)); sleep 606\n"));
    session.send(line).await.unwrap();
    until(&mut session, "42\r\n").await;
    // A shell that is interrupted before its command runs is another matter.
    let begun = async { while !running(agent, "sleep 606").await {} };
    tokio::time::timeout(PATIENCE, begun).await.unwrap();
    let interrupt = Frame::Stdin(Bytes::from("\x03"));
    session.send(interrupt).await.unwrap();
    let mut out = until(&mut session, "# ").await;
    session
        .send(Frame::Stdin(Bytes::from("exit 3\n")))
        .await
        .unwrap();
    out += &until(&mut session, "exit 3\r\n").await;
    let (_, _, exit) = rest(&mut session).await;
    assert_eq!(exit, code(3), "{out}");
}

/// Output of a terminal until it shows `text`.
async fn until(session: &mut Session, text: &str) -> String {
    let mut seen = String::new();
    let read = async {
        while !seen.contains(text) {
            let Some(Ok(Frame::Stdout(bytes))) = session.next().await else {
                panic!("{seen}")
            };
            seen += &String::from_utf8_lossy(&bytes);
        }
    };
    tokio::time::timeout(PATIENCE, read).await.unwrap();
    seen
}

async fn streams(agent: &Agent) {
    let request = Request {
        stdin: true,
        ..command("cat; echo err >&2; exit 5")
    };
    let mut session = attach(agent, &request).await;
    // It arrives as it is produced.
    session
        .send(Frame::Stdin(Bytes::from("one\n")))
        .await
        .unwrap();
    let first = tokio::time::timeout(PATIENCE, session.next())
        .await
        .unwrap();
    assert_eq!(first.unwrap().unwrap(), Frame::Stdout(Bytes::from("one\n")));
    session.send(Frame::Stdin(Bytes::new())).await.unwrap();
    let (out, err, exit) = rest(&mut session).await;
    assert_eq!(
        (&out[..], &err[..], exit),
        (&b""[..], &b"err\n"[..], code(5))
    );
    // Without input the command reads its end.
    let mut session = attach(agent, &command("wc -c; kill -9 $$")).await;
    let (out, _, exit) = rest(&mut session).await;
    assert_eq!(out, b"0\n");
    assert_eq!(
        exit.unwrap(),
        Exit {
            exit_code: 137,
            signal: Some(9),
            ..Exit::default()
        }
    );
    let missing = Request {
        cmd: vec!["no-such-program".into()],
        ..Request::default()
    };
    let (_, err, exit) = rest(&mut attach(agent, &missing).await).await;
    assert_eq!(exit, code(127));
    assert!(
        String::from_utf8(err)
            .unwrap()
            .contains("command not found")
    );
    let late = Request {
        timeout_ms: Some(500),
        ..command("echo begun; sleep 600")
    };
    let (out, _, exit) = rest(&mut attach(agent, &late).await).await;
    assert_eq!(out, b"begun\n");
    assert!(
        exit.is_some_and(|exit| exit.exit_code == 124 && exit.timed_out),
        "{exit:?}"
    );
}

/// Megabytes both ways at once, through pipes and back.
async fn megabytes(agent: &Agent) {
    let request = Request {
        stdin: true,
        ..command("cat")
    };
    let session = attach(agent, &request).await;
    let (mut write, mut read) = session.split();
    let sent: Vec<u8> = (0..4_000_000u32)
        .map(|n| (n ^ (n >> 9)).to_le_bytes()[0])
        .collect();
    let send = async {
        for part in sent.chunks(100_000) {
            let frame = Frame::Stdin(Bytes::copy_from_slice(part));
            write.send(frame).await.unwrap();
        }
        write.send(Frame::Stdin(Bytes::new())).await.unwrap();
    };
    let receive = async {
        let mut hash = Sha256::new();
        loop {
            match read.next().await.unwrap().unwrap() {
                Frame::Stdout(bytes) => hash.update(&bytes),
                Frame::Exit(exit) => return (hash.finalize(), exit.exit_code),
                frame => panic!("{frame:?}"),
            }
        }
    };
    let both = async { tokio::join!(send, receive) };
    let ((), (got, exit)) = tokio::time::timeout(PATIENCE, both).await.unwrap();
    assert_eq!((got, exit), (Sha256::digest(&sent), 0));
    // A terminal's last bytes are not lost when its program ends.
    let tty = Request {
        tty: true,
        ..command("stty -opost; head -c 2000000 /dev/zero | tr '\\0' x; echo end")
    };
    let (out, _, exit) = rest(&mut attach(agent, &tty).await).await;
    assert_eq!((out.len(), exit), (2_000_004, code(0)));
}

async fn running(agent: &Agent, pattern: &str) -> bool {
    let found = agent.exec("a", &["pgrep", "-fx", pattern]).await;
    found.exit_code == 0
}

/// A caller that goes away takes the command and everything it started along.
async fn ends(agent: &Agent) {
    for tty in [false, true] {
        let request = Request {
            tty,
            stdin: true,
            ..command("exec 9>/run/ends; flock 9; sleep 4242 & echo begun; sleep 4242")
        };
        let mut session = attach(agent, &request).await;
        let first = tokio::time::timeout(PATIENCE, session.next())
            .await
            .unwrap();
        assert!(matches!(first, Some(Ok(Frame::Stdout(_)))), "{first:?}");
        assert!(running(agent, "sleep 4242").await);
        drop(session);
        // Whoever is left holds the lock.
        let gone = agent.exec("a", &["flock", "/run/ends", "true"]);
        tokio::time::timeout(PATIENCE, gone).await.unwrap();
        assert!(!running(agent, "sleep 4242").await);
    }
}

/// A reader that does not read stops the command and fills nobody's memory.
async fn slow_reader(agent: &Agent) {
    let session = attach(
        agent,
        &command("head -c 300000000 /dev/zero; echo written >&2"),
    )
    .await;
    let figure = async |script: &str| -> u64 {
        let answer = agent.exec("a", &["sh", "-c", script]).await;
        let text = String::from_utf8(answer.stdout).unwrap();
        text.trim().parse().unwrap_or_default()
    };
    let written = "awk '/wchar/ {print $2}' /proc/$(pgrep -fx 'head -c 300000000 /dev/zero')/io";
    let held_up = async {
        let mut before = 0;
        loop {
            let now = figure(written).await;
            if now > 0 && now == before {
                break;
            }
            before = now;
        }
    };
    tokio::time::timeout(PATIENCE, held_up).await.unwrap();
    let kib = figure("awk '/VmRSS/ {print $2}' /proc/1/status").await;
    assert!(kib > 0);
    assert!(kib < 60_000, "the guest agent holds {kib} KiB");
    assert!(running(agent, "head -c 300000000 /dev/zero").await);
    drop(session);
}

/// What was left in the background is asked to stop; the caller is told what does not.
async fn drain(agent: &Agent) {
    let start = "nohup sleep 777 >/dev/null 2>&1 & echo $!";
    agent.exec("a", &["bash", "-c", start]).await;
    assert!(running(agent, "sleep 777").await);
    let drained = agent.exec("a", &["fused", "drain"]).await;
    let text = String::from_utf8_lossy(&drained.stderr);
    assert_eq!(drained.exit_code, 0, "{text}");
    assert!(!running(agent, "sleep 777").await);
    let stubborn = "(trap '' TERM; exec sleep 888) >/dev/null 2>&1 &";
    agent.exec("a", &["bash", "-c", stubborn]).await;
    let drained = agent
        .exec("a", &["sh", "-c", "fused drain --timeout 1"])
        .await;
    let text = String::from_utf8_lossy(&drained.stderr);
    assert_eq!(drained.exit_code, 1, "{text}");
    assert!(text.contains("still running: sleep"), "{text}");
}
