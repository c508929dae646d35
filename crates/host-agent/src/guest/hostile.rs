//! A guest that answers its host with whatever may harm it: every call ends with an error, within
//! bounds, and the next call to a guest that behaves succeeds.

use std::sync::Arc;
use std::time::Duration;

use fuse_wire_guest::control::{ExecRequest, ExecResponse};
use tokio::io::{
    AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader,
};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;

use super::*;
use fuse_wire_host::attach;

/// What the guest says to one connection.
#[derive(Debug, Clone)]
enum Answer {
    /// These bytes, then the end.
    Bytes(Vec<u8>),
    /// These bytes, then more of the same for ever.
    Endless(Vec<u8>, Vec<u8>),
    /// These bytes, then nothing, and no end either.
    Silence(Vec<u8>),
    /// These bytes before anything was asked.
    Early(Vec<u8>),
}

/// A bound that a test waits for.
const SHORT: Duration = Duration::from_millis(200);
const PIECE: usize = 64 * 1024;

/// The guest's end: every connection gets the same, until the host hangs up.
fn guest(listener: UnixListener, answer: Answer) -> JoinSet<()> {
    let mut guest = JoinSet::new();
    guest.spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            connections.spawn(serve(stream, answer.clone()));
        }
    });
    guest
}

/// Reads to the blank line, or to the end.
async fn read_head(from: &mut (impl AsyncBufRead + Unpin)) {
    let mut line = String::new();
    while line != "\r\n" {
        line.clear();
        if from.read_line(&mut line).await.is_ok_and(|read| read == 0) {
            return;
        }
    }
}

async fn serve(stream: UnixStream, answer: Answer) {
    let (from, mut to) = stream.into_split();
    let mut from = BufReader::new(from);
    let mut line = String::new();
    // The handshake of the device, which is not the guest's to answer.
    from.read_line(&mut line).await.unwrap();
    to.write_all(b"OK 5\n").await.unwrap();
    if !matches!(answer, Answer::Early(_)) {
        read_head(&mut from).await;
    }
    let talk = async {
        match answer {
            Answer::Early(bytes) | Answer::Bytes(bytes) => drop(to.write_all(&bytes).await),
            Answer::Endless(first, piece) => {
                let mut sent = to.write_all(&first).await;
                while sent.is_ok() {
                    sent = to.write_all(&piece).await;
                }
            }
            Answer::Silence(bytes) => {
                drop(to.write_all(&bytes).await);
                std::future::pending::<()>().await;
            }
        }
    };
    let mut sink = Vec::new();
    // Whatever the host says is read, or it would wait for that.
    tokio::select! {
        () = talk => {}
        _end = from.read_to_end(&mut sink) => {}
    }
}

fn command(timeout_ms: u64) -> ExecRequest {
    ExecRequest {
        cmd: vec!["true".into()],
        timeout_ms,
        ..ExecRequest::default()
    }
}

fn http(head: &str, body: &[u8]) -> Vec<u8> {
    [format!("HTTP/1.1 {head}\r\n\r\n").as_bytes(), body].concat()
}

/// Everything that a guest may think of, by what it is.
fn attacks() -> Vec<(&'static str, Answer)> {
    let noise: Vec<u8> = (0_u8..251).cycle().step_by(97).take(PIECE).collect();
    let chunked = http("200 OK\r\ntransfer-encoding: chunked", b"");
    let chunk = [b"10000\r\n".as_slice(), &[b'x'; PIECE], b"\r\n"].concat();
    let header = format!("x-{}: y\r\n", "z".repeat(1000)).into_bytes();
    let deep = [vec![b'['; PIECE], vec![b']'; PIECE]].concat();
    let length = |length: usize| format!("200 OK\r\ncontent-length: {length}");
    vec![
        ("nothing", Answer::Bytes(Vec::new())),
        (
            "an answer to no question",
            Answer::Early(http(&length(2), b"{}")),
        ),
        ("noise", Answer::Endless(Vec::new(), noise)),
        ("zeros", Answer::Endless(Vec::new(), vec![0; PIECE])),
        (
            "headers without end",
            Answer::Endless(b"HTTP/1.1 200 OK\r\n".to_vec(), header),
        ),
        (
            "a header line without end",
            Answer::Endless(b"HTTP/1.1 200 OK\r\nx: ".to_vec(), vec![b'y'; PIECE]),
        ),
        ("a body without end", Answer::Endless(chunked, chunk)),
        (
            "a body of exabytes",
            Answer::Endless(http(&length(usize::MAX / 2), b""), vec![b'1'; PIECE]),
        ),
        (
            "a length that is none",
            Answer::Bytes(http("200 OK\r\ncontent-length: -1", b"{}")),
        ),
        (
            "a chunk of exabytes",
            Answer::Bytes(http(
                "200 OK\r\ntransfer-encoding: chunked",
                b"7fffffffffffffff\r\nx",
            )),
        ),
        ("half a body", Answer::Bytes(http(&length(100), b"{\"exit"))),
        (
            "an upgrade nobody wants",
            Answer::Bytes(http(
                "101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade",
                b"hi",
            )),
        ),
        ("another type", Answer::Bytes(http(&length(2), b"[]"))),
        (
            "JSON of a thousand levels",
            Answer::Bytes(http(&length(deep.len()), &deep)),
        ),
        (
            "a redirect",
            Answer::Bytes(http(
                "302 Found\r\nlocation: http://169.254.169.254/\r\ncontent-length: 0",
                b"",
            )),
        ),
    ]
}

#[tokio::test]
async fn no_answer_of_a_guest_is_more_than_an_error() {
    for (what, answer) in attacks() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("v");
        let _guest = guest(UnixListener::bind(&path).unwrap(), answer);
        let client = GuestClient::new(Arc::new(VsockTransport::new(path)));
        let request = command(60_000);
        let call = client.exec(&request);
        let outcome = tokio::time::timeout(Duration::from_secs(60), call).await;
        let outcome = outcome.unwrap_or_else(|_| panic!("{what}: the host waits"));
        assert!(outcome.is_err(), "{what}: {outcome:?}");
        let wanted = attach::Request::default();
        let upgrade = client.attach(&wanted, Duration::from_secs(60));
        let upgrade = upgrade.await.map(drop);
        // The one that wants an upgrade is handed one; its bytes are the caller's, unread.
        assert_eq!(upgrade.is_ok(), what == "an upgrade nobody wants", "{what}");
    }
}

#[tokio::test]
async fn a_guest_that_says_nothing_more_is_given_up_on() {
    for said in [Vec::new(), http("200 OK\r\ncontent-length: 100", b"{")] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("v");
        let _guest = guest(UnixListener::bind(&path).unwrap(), Answer::Silence(said));
        let client = GuestClient::new(Arc::new(VsockTransport::new(path)));
        let wanted = attach::Request::default();
        let error = client.attach(&wanted, SHORT).await.map(drop).unwrap_err();
        assert!(matches!(error, GuestError::Timeout(_)), "{error:?}");
    }
}

#[tokio::test]
async fn a_channel_that_was_attacked_serves_the_next_call() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("v");
    let listener = UnixListener::bind(&path).unwrap();
    let answer = serde_json::to_vec(&ExecResponse::default()).unwrap();
    let good = http(
        &format!("200 OK\r\ncontent-length: {}", answer.len()),
        &answer,
    );
    let _guest = {
        let mut guest = JoinSet::new();
        guest.spawn(async move {
            let noise = Answer::Endless(Vec::new(), vec![0xff; PIECE]);
            for answer in [noise.clone(), noise, Answer::Bytes(good)] {
                let (stream, _) = listener.accept().await.unwrap();
                serve(stream, answer).await;
            }
        });
        guest
    };
    let client = GuestClient::new(Arc::new(VsockTransport::new(path)));
    assert!(client.exec(&command(60_000)).await.is_err());
    assert!(client.exec(&command(60_000)).await.is_err());
    assert_eq!(client.exec(&command(60_000)).await.unwrap().exit_code, 0);
}
