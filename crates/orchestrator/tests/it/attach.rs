//! `fuse-attach/1` through the orchestrator, byte by byte.

use std::time::Duration;

use fuse_testkit::fake_agent::{FakeAgent, Step};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::support::{MASTER, Options, Orchestrator, with_agent};

const PATIENCE: Duration = Duration::from_secs(20);
const UPGRADE: &str = "Upgrade: Fuse-Attach/1\r\nConnection: Upgrade\r\n";

async fn running() -> (Orchestrator, FakeAgent) {
    let (fuse, agent) = with_agent(Options::default()).await;
    fuse.create(&json!({"task_id": "a"})).await.is(201);
    (fuse, agent)
}

/// Sends a request with `behind` right behind its head, and reads the head of the answer.
async fn attach(
    fuse: &Orchestrator,
    query: &str,
    headers: &str,
    behind: &[u8],
) -> (String, TcpStream) {
    let address = fuse.base.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!(
        "GET /v1/environments/fuse-a/attach?{query} HTTP/1.1\r\nHost: x\r\n\
         Authorization: Bearer {MASTER}\r\n{headers}\r\n"
    );
    let request = [head.as_bytes(), behind].concat();
    stream.write_all(&request).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    (String::from_utf8(head).unwrap().to_lowercase(), stream)
}

async fn refused(fuse: &Orchestrator, query: &str, headers: &str) -> (u16, String) {
    let (head, mut stream) = attach(fuse, query, headers, b"").await;
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let length = head.split("content-length: ").nth(1).unwrap();
    let length: usize = length.split('\r').next().unwrap().parse().unwrap();
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.unwrap();
    let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
    (
        status,
        body["error"]["message"].as_str().unwrap().to_owned(),
    )
}

#[tokio::test]
async fn bytes_go_both_ways_as_they_are() {
    let (fuse, agent) = running().await;
    let query = "tty=1&rows=40&cols=0&cmd=sh&cmd=&cmd=a%20b";
    // A frame of a type that nobody knows, split at the end of the head.
    let (head, mut stream) = attach(&fuse, query, UPGRADE, b"\x09\0\0\0\0").await;
    assert!(
        head.starts_with("http/1.1 101 switching protocols\r\n"),
        "{head}"
    );
    assert!(head.contains("upgrade: fuse-attach/1\r\n"), "{head}");
    assert!(head.contains("connection: upgrade\r\n"), "{head}");
    stream.write_all(b"\0\0\x01z").await.unwrap();
    let mut echo = [0; 9];
    stream.read_exact(&mut echo).await.unwrap();
    assert_eq!(&echo, b"\x09\0\0\0\0\0\0\x01z");
    assert_eq!(
        agent.attach_queries(),
        ["tty=1&rows=40&cmd=sh&cmd=&cmd=a+b"]
    );
    // An environment with an open session stays in use, and the session has no deadline
    // of the connection.
    let burst: Vec<u8> = (0..4_000_000u32).map(|n| (n % 251) as u8).collect();
    let (mut from, mut to) = stream.split();
    let sent = burst.clone();
    let send = async {
        to.write_all(&sent).await.unwrap();
        to.flush().await.unwrap();
    };
    let mut received = vec![0; burst.len()];
    let receive = async { from.read_exact(&mut received).await.unwrap() };
    tokio::time::timeout(PATIENCE, async { tokio::join!(send, receive) })
        .await
        .unwrap();
    assert!(received == burst, "the burst came back changed");
    // The end of one is the end of the other.
    drop(stream);
    tokio::time::timeout(PATIENCE, agent.attach_ended(1))
        .await
        .unwrap();
    fuse.stop().await;
}

#[tokio::test]
async fn a_shutdown_ends_sessions() {
    let (fuse, agent) = running().await;
    let (_, mut stream) = attach(&fuse, "tty=1", UPGRADE, b"").await;
    fuse.stop().await;
    let mut rest = Vec::new();
    let read = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut rest)).await;
    assert_eq!(read.unwrap().unwrap(), 0);
    tokio::time::timeout(PATIENCE, agent.attach_ended(1))
        .await
        .unwrap();
}

#[tokio::test]
async fn checks_come_in_order() {
    let (fuse, agent) = running().await;
    let upgrade = "attach requires the header Upgrade: fuse-attach/1";
    assert_eq!(refused(&fuse, "", "").await, (400, upgrade.to_owned()));
    let tty = "attach requires tty=1; use ?action=exec for non-interactive commands";
    assert_eq!(
        refused(&fuse, "tty=0", UPGRADE).await,
        (400, tty.to_owned())
    );
    agent.fail(Step::Attach, 1, 500, "no pty");
    let (status, message) = refused(&fuse, "tty=true", UPGRADE).await;
    assert_eq!(status, 500);
    assert!(message.contains("no pty"), "{message}");
    agent.fail(Step::Attach, 1, 404, "not found");
    let unsupported = (501, "attach not supported by provider".to_owned());
    assert_eq!(refused(&fuse, "tty=1", UPGRADE).await, unsupported);
    fuse.post_raw("/v1/environments/fuse-a?action=drain", "")
        .await
        .is(200);
    let (status, message) = refused(&fuse, "tty=1", UPGRADE).await;
    assert_eq!(
        (status, &*message),
        (409, "vm not running: vm fuse-a is draining")
    );
    fuse.stop().await;
}
