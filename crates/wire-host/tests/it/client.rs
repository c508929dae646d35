//! Each test plays one canned answer and looks at the request that came.

use std::time::Duration;

use fuse_wire_host::limits::MAX_ERROR_BYTES;
use fuse_wire_host::{
    AgentToken, AgentUrl, CreateVmRequest, ExecRequest, FileUpload, Generations, HostClient,
    HostError, HostTransport, UploadRequest, generation,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// Serves one request with `answer` and gives back what it read.
async fn play(answer: Vec<u8>) -> (HostClient, JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/prefix", listener.local_addr().unwrap());
    let served = async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut seen = Vec::new();
        let mut buffer = [0u8; 4096];
        loop {
            let n = socket.read(&mut buffer).await.unwrap();
            seen.extend_from_slice(&buffer[..n]);
            if n == 0 || request_is_whole(&seen) {
                break;
            }
        }
        socket.write_all(&answer).await.unwrap();
        socket.shutdown().await.unwrap();
        String::from_utf8(seen).unwrap()
    };
    #[expect(clippy::disallowed_methods, reason = "the test joins it")]
    let server = tokio::spawn(served);
    let client = HostClient::new(
        HostTransport::new().unwrap(),
        AgentUrl::parse(&url).unwrap(),
        AgentToken::new("t0ken"),
    );
    (client, server)
}

fn request_is_whole(seen: &[u8]) -> bool {
    let text = String::from_utf8_lossy(seen);
    let Some((head, body)) = text.split_once("\r\n\r\n") else {
        return false;
    };
    let length = head
        .lines()
        .find_map(|l| {
            l.to_ascii_lowercase()
                .strip_prefix("content-length: ")
                .map(str::to_owned)
        })
        .map_or(0, |l| l.parse().unwrap());
    body.len() >= length
}

#[tokio::test]
async fn an_agent_of_another_generation_is_named_with_what_mends_it() {
    for (theirs, remedy) in [
        (
            "2-3",
            "update the orchestrator: ops/install-orchestrator.sh",
        ),
        (
            "0-0",
            "update that host: host-agent/firecracker/fc-update.sh",
        ),
    ] {
        let stated = format!("{}: {theirs}\r\n", generation::HEADER);
        // Whatever it answered with, it is not to be believed.
        for status in ["200 OK", "426 Upgrade Required"] {
            let (client, server) = play(answer(status, &stated, "{}")).await;
            let error = client.capacity().await.unwrap_err();
            assert!(matches!(error, HostError::Generation { .. }), "{error:?}");
            assert!(error.to_string().ends_with(remedy), "{error}");
            let seen = server.await.unwrap().to_ascii_lowercase();
            let ours = format!("{}: {}\r\n", generation::HEADER, Generations::OURS);
            assert!(seen.contains(&ours), "{seen}");
        }
    }
}

fn answer(status: &str, headers: &str, body: &str) -> Vec<u8> {
    format!(
        "HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .into()
}

#[tokio::test]
async fn create_sends_the_contract() {
    let (client, server) = play(answer("200 OK", "", r#"{"vm_id":"a","url":"h:1"}"#)).await;
    let request = CreateVmRequest {
        name: Some("a".into()),
        cpus: Some(2),
        owner: Some("fleet".into()),
        ..CreateVmRequest::default()
    };
    assert_eq!(client.create(&request).await.unwrap().vm_id, "a");
    let seen = server.await.unwrap();
    assert!(
        seen.starts_with("POST /prefix/v1/vm HTTP/1.1\r\n"),
        "{seen}"
    );
    assert!(seen.contains("authorization: Bearer t0ken\r\n"), "{seen}");
    assert!(
        seen.ends_with(r#"{"name":"a","cpus":2,"owner":"fleet"}"#),
        "{seen}"
    );
}

#[tokio::test]
async fn list_encodes_the_prefix() {
    let (client, server) = play(answer("200 OK", "", r#"{"vms":[]}"#)).await;
    assert!(client.list("a&b").await.unwrap().vms.is_empty());
    assert!(
        server
            .await
            .unwrap()
            .starts_with("GET /prefix/v1/vm?prefix=a%26b HTTP/1.1")
    );
}

#[tokio::test]
async fn an_id_cannot_leave_its_place_in_the_path() {
    let (client, server) = play(answer("204 No Content", "", "")).await;
    client.delete("../capacity?x=").await.unwrap();
    assert!(
        server
            .await
            .unwrap()
            .starts_with("DELETE /prefix/v1/vm/capacity-x HTTP/1.1")
    );
}

#[tokio::test]
async fn exec_carries_binary_output() {
    let body = r#"{"exit_code":1,"stdout":"AP8=","stderr":"","timed_out":true}"#;
    let (client, server) = play(answer("200 OK", "", body)).await;
    let request = ExecRequest {
        cmd: vec!["true".into()],
        ..ExecRequest::default()
    };
    let done = client.exec("a", &request).await.unwrap();
    assert_eq!(
        (done.exit_code, done.stdout, done.timed_out),
        (1, vec![0, 255], true)
    );
    assert!(server.await.unwrap().ends_with(r#"{"cmd":["true"]}"#));
}

#[tokio::test]
async fn one_file_uses_the_plain_form() {
    let (client, server) = play(answer("200 OK", "", r#"{"ok":true}"#)).await;
    let file = FileUpload {
        path: "/a".into(),
        content: b"hi".to_vec(),
        mode: None,
    };
    client
        .upload("a", &UploadRequest { files: vec![file] })
        .await
        .unwrap();
    assert!(
        server
            .await
            .unwrap()
            .ends_with(r#"{"path":"/a","content_b64":"aGk="}"#)
    );
}

#[tokio::test]
async fn statuses_are_sorted() {
    for (status, want) in [
        ("401 Unauthorized", "rejected the token"),
        ("404 Not Found", "delete: why"),
        ("409 Conflict", "delete: why"),
        ("413 Payload Too Large", "delete: why"),
        ("500 Internal Server Error", "answered 500"),
        ("301 Moved Permanently", "answered 301"),
    ] {
        let (client, _server) =
            play(answer(status, "Location: http://127.0.0.1:1/\r\n", "why")).await;
        let error = client.delete("a").await.unwrap_err();
        assert!(error.to_string().contains(want), "{status}: {error}");
        assert!(!error.is_retryable());
    }
}

#[tokio::test]
async fn busy_says_when_to_come_back() {
    let (client, _server) = play(answer(
        "503 Service Unavailable",
        "Retry-After: 7\r\n",
        "full",
    ))
    .await;
    let error = client
        .create(&CreateVmRequest::default())
        .await
        .unwrap_err();
    let HostError::Busy { retry_after, .. } = &error else {
        panic!("{error:?}")
    };
    assert_eq!(*retry_after, Some(Duration::from_secs(7)));
    assert!(error.is_retryable());
}

#[tokio::test]
async fn a_long_error_body_is_cut() {
    let (client, _server) = play(answer(
        "500 Internal Server Error",
        "",
        &"x".repeat(MAX_ERROR_BYTES + 999),
    ))
    .await;
    let HostError::Agent { text, .. } = client.get("a").await.unwrap_err() else {
        panic!()
    };
    assert_eq!(text.len(), MAX_ERROR_BYTES);
}

#[tokio::test]
async fn a_closed_port_is_unreachable() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let client = HostClient::new(
        HostTransport::new().unwrap(),
        AgentUrl::parse(&url).unwrap(),
        AgentToken::new("t0ken"),
    );
    let error = client.health().await.unwrap_err();
    assert!(matches!(error, HostError::Unreachable { .. }), "{error:?}");
    assert!(!format!("{client:?} {error:?}").contains("t0ken"));
}

#[tokio::test]
async fn half_an_answer_is_not_a_success() {
    let (client, _server) = play(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{".to_vec()).await;
    let error = client.capacity().await.unwrap_err();
    assert!(matches!(error, HostError::NoAnswer { .. }), "{error:?}");
}

#[tokio::test]
async fn an_attach_hands_over_the_bytes_that_came_with_the_answer() {
    let head = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: fuse-attach/1\r\n\
                Connection: Upgrade\r\n\r\n";
    let (client, server) = play([head.as_bytes(), b"first bytes"].concat()).await;
    let request = fuse_wire_host::attach::Request {
        tty: true,
        rows: Some(24),
        cmd: vec!["sh".into(), String::new()],
        ..Default::default()
    };
    let mut stream = client.attach("a", &request).await.unwrap();
    let mut got = String::new();
    stream.read_to_string(&mut got).await.unwrap();
    assert_eq!(got, "first bytes");
    let seen = server.await.unwrap();
    let line = "GET /prefix/v1/vm/a/attach?tty=1&rows=24&cmd=sh&cmd= HTTP/1.1\r\n";
    assert!(seen.starts_with(line), "{seen}");
    assert!(
        seen.to_lowercase().contains("upgrade: fuse-attach/1\r\n"),
        "{seen}"
    );
}

#[tokio::test]
async fn a_refused_attach_is_an_error_of_its_kind() {
    let (client, _server) = play(answer("409 Conflict", "", "not running")).await;
    let request = fuse_wire_host::attach::Request::default();
    let error = client.attach("a", &request).await.unwrap_err();
    assert!(matches!(error, HostError::Conflict { .. }), "{error:?}");
    let (client, _server) = play(answer("200 OK", "", "{}")).await;
    let error = client.attach("a", &request).await.unwrap_err();
    assert!(matches!(error, HostError::NotUpgraded { .. }), "{error:?}");
}

#[tokio::test]
async fn a_snapshot_id_cannot_leave_its_place_in_the_path() {
    let (client, server) = play(answer("204 No Content", "", "")).await;
    client.delete_snapshot("../vm/x").await.unwrap();
    let seen = server.await.unwrap();
    assert!(
        seen.starts_with("DELETE /prefix/v1/snapshots/..%2Fvm%2Fx HTTP/1.1"),
        "{seen}"
    );
}
