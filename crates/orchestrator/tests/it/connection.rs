//! Bounds of a connection: head, idle time, size, a reader that does not read; and TLS.

use std::time::{Duration, Instant};

use fuse_orchestrator::server::Timeouts;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::support::{MASTER, Options, Orchestrator};

async fn with(timeouts: Timeouts) -> (Orchestrator, TcpStream) {
    let fuse = Orchestrator::with(Options {
        timeouts,
        ..Options::default()
    })
    .await;
    let stream = connect(&fuse).await;
    (fuse, stream)
}

async fn connect(fuse: &Orchestrator) -> TcpStream {
    TcpStream::connect(fuse.base.trim_start_matches("http://"))
        .await
        .unwrap()
}

const GET: &[u8] = b"GET /v1/version HTTP/1.1\r\nHost: x\r\n\r\n";

/// Reads one answer that ends with `end`.
async fn read_answer(stream: &mut TcpStream, end: &str) -> String {
    let mut text = Vec::new();
    while !text.ends_with(end.as_bytes()) {
        let n = stream.read_buf(&mut text).await.unwrap();
        assert!(n > 0, "closed after {:?}", String::from_utf8_lossy(&text));
    }
    String::from_utf8(text).unwrap()
}

/// Waits for the other side to close.
async fn closed(stream: &mut TcpStream) {
    let mut rest = Vec::new();
    // A reset is a way of closing too.
    let _outcome = tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut rest))
        .await
        .expect("the connection is closed in time");
}

#[tokio::test]
async fn a_head_that_does_not_come_ends_the_connection() {
    let short = Timeouts {
        read_header: Duration::from_millis(100),
        ..Timeouts::default()
    };
    let (fuse, mut silent) = with(short).await;
    closed(&mut silent).await;
    let mut halting = connect(&fuse).await;
    halting.write_all(b"GET / HTTP/1.1\r\nHost").await.unwrap();
    closed(&mut halting).await;
    fuse.stop().await;
}

#[tokio::test]
async fn a_resting_connection_outlives_the_head_bound_and_ends_with_its_own() {
    let timeouts = Timeouts {
        read_header: Duration::from_millis(100),
        idle: Duration::from_millis(600),
        ..Timeouts::default()
    };
    let (fuse, mut stream) = with(timeouts).await;
    stream.write_all(GET).await.unwrap();
    read_answer(&mut stream, "}").await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    stream.write_all(GET).await.unwrap();
    read_answer(&mut stream, "}").await;
    closed(&mut stream).await;
    // The next head is bounded again.
    let mut stream = connect(&fuse).await;
    stream.write_all(GET).await.unwrap();
    read_answer(&mut stream, "}").await;
    stream.write_all(b"GET ").await.unwrap();
    closed(&mut stream).await;
    fuse.stop().await;
}

#[tokio::test]
async fn a_large_head_is_refused() {
    let (fuse, mut stream) = with(Timeouts::default()).await;
    let fits = format!(
        "GET /v1/version HTTP/1.1\r\nHost: x\r\nX-Pad: {}\r\n\r\n",
        "x".repeat(60_000)
    );
    stream.write_all(fits.as_bytes()).await.unwrap();
    assert!(
        read_answer(&mut stream, "}")
            .await
            .starts_with("HTTP/1.1 200")
    );
    let large = format!(
        "GET /v1/version HTTP/1.1\r\nHost: x\r\nX-Pad: {}",
        "x".repeat(80_000)
    );
    stream.write_all(large.as_bytes()).await.unwrap();
    let answer = read_answer(&mut stream, "\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 431"), "{answer}");
    fuse.stop().await;
}

#[tokio::test]
async fn a_reader_that_does_not_read_is_cut_off() {
    let timeouts = Timeouts {
        write: Duration::from_millis(300),
        ..Timeouts::default()
    };
    let (fuse, mut stream) = with(timeouts).await;
    for i in 0..200 {
        fuse.create(&json!({"task_id": format!("t{i}"), "spec": {"region": "r".repeat(200)}}))
            .await;
    }
    let ask = format!(
        "GET /v1/environments?limit=200 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {MASTER}\r\n\r\n"
    );
    // Many large answers, none of them read: the socket's buffers fill up.
    let started = Instant::now();
    loop {
        let written =
            tokio::time::timeout(Duration::from_millis(200), stream.write_all(ask.as_bytes()))
                .await;
        match written {
            Ok(Ok(())) if started.elapsed() < Duration::from_secs(20) => {}
            Ok(Ok(())) => panic!("the connection was never cut off"),
            Ok(Err(_)) => break,
            Err(_) => {
                assert!(started.elapsed() < Duration::from_secs(20), "never cut off");
            }
        }
    }
    fuse.stop().await;
}

#[tokio::test]
async fn a_slow_create_and_a_quiet_stream_are_not_cut_off() {
    let timeouts = Timeouts {
        write: Duration::from_millis(100),
        ..Timeouts::default()
    };
    let fuse = Orchestrator::with(Options {
        timeouts,
        ..Options::default()
    })
    .await;
    fuse.create(&json!({"task_id": "a"})).await.is(201);
    let mut events = fuse.events("fuse-a", None).await;
    assert_eq!(events.next().await.unwrap()["state"], "running");
    tokio::time::sleep(Duration::from_millis(300)).await;
    fuse.delete("/v1/environments/fuse-a").await;
    assert_eq!(events.states().await, ["destroying", "destroyed"]);
    fuse.stop().await;
}

#[tokio::test]
async fn a_source_that_is_not_allowed_gets_nothing_but_the_probes() {
    let allowlist = fuse_orchestrator::AddressBlocks::parse("192.0.2.0/24").unwrap();
    let fuse = Orchestrator::with(Options {
        allowlist,
        ..Options::default()
    })
    .await;
    for path in ["/v1/environments", "/v1/nope"] {
        let answer = fuse.get(path).await;
        answer.is_error(403, "forbidden", "source address not in allowlist");
        assert!(answer.header("x-request-id").starts_with("req_"));
    }
    assert_eq!(fuse.get("/health").await.status, 200);
    fuse.stop().await;
}

/// Sends a request with a body that comes later than its head, and answers whether the
/// response says that the connection ends.
async fn ends(stream: &mut TcpStream, request: &str, body: &str) -> bool {
    let head = format!(
        "{request} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    stream.write_all(body.as_bytes()).await.unwrap();
    let answer = read_answer(stream, "}}").await;
    answer.to_ascii_lowercase().contains("connection: close")
}

#[tokio::test]
async fn a_body_that_nobody_reads_ends_the_connection_and_says_so() {
    let fuse = Orchestrator::start().await;
    let mut stream = connect(&fuse).await;
    // Read to its end: the connection goes on.
    assert!(!ends(&mut stream, "POST /login", "{\"token\":3}").await);
    assert!(!ends(&mut stream, "POST /v1/nope", "").await);
    // Refused unread.
    assert!(ends(&mut stream, "POST /v1/hosts", "{}").await);
    closed(&mut stream).await;
    fuse.stop().await;
}

#[tokio::test]
async fn a_shutdown_answers_who_is_connected_already() {
    let (fuse, mut late) = with(Timeouts::default()).await;
    let asked = async {
        late.write_all(GET).await.unwrap();
        read_answer(&mut late, "}").await
    };
    let ((), answer) = tokio::join!(fuse.stop(), asked);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}
