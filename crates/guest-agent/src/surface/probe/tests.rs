//! The probe against real ports and commands.

use std::fs;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::attempt::attempt;
use super::verdict::State;
use super::*;

fn config(text: &str) -> Result<Option<Config>, ConfigError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("healthcheck.json");
    fs::write(&path, text).unwrap();
    load(&path)
}

fn usable(text: &str) -> Config {
    config(text).unwrap().unwrap()
}

#[test]
fn defaults_are_filled_in_and_a_timeout_is_clamped() {
    let plain = usable(r#"{"exec":["true"]}"#);
    assert_eq!(
        (
            plain.interval,
            plain.timeout,
            plain.retries,
            plain.start_period
        ),
        (
            Duration::from_secs(10),
            Duration::from_secs(2),
            3,
            Duration::ZERO
        )
    );
    let clamped = usable(r#"{"http":{"port":80},"interval_seconds":1,"timeout_seconds":5}"#);
    assert_eq!(clamped.timeout, Duration::from_secs(1));
    assert!(
        load(std::path::Path::new("/nonexistent"))
            .unwrap()
            .is_none()
    );
    for bad in [
        "{}",
        "[",
        r#"{"http":{"port":80},"exec":["x"]}"#,
        r#"{"http":{"port":0}}"#,
        r#"{"http":{"port":70000}}"#,
    ] {
        assert!(config(bad).is_err(), "{bad}");
    }
}

#[test]
fn verdicts_fold() {
    let now = Timestamp::UNIX_EPOCH;
    let later = Timestamp::from_second(60).unwrap();
    let fail = || Err("refused".to_owned());
    let mut verdict = Verdict::starting(now);
    verdict.fold(fail(), true, 2, later);
    assert_eq!((verdict.state, verdict.failures), (State::Starting, 0));
    assert_eq!(verdict.message, "refused");
    verdict.fold(Ok(()), true, 2, later);
    assert_eq!((verdict.state, verdict.since), (State::Passing, later));
    // The shield is gone with the first success.
    verdict.fold(fail(), true, 2, now);
    assert_eq!((verdict.state, verdict.failures), (State::Passing, 1));
    verdict.fold(fail(), true, 2, now);
    assert_eq!(
        (verdict.state, verdict.failures, verdict.since),
        (State::Failing, 2, now)
    );
    let text = serde_json::to_string(&verdict).unwrap();
    assert_eq!(
        text,
        r#"{"state":"failing","since":"1970-01-01T00:00:00Z","failures":2,"message":"refused"}"#
    );
    verdict.fold(Ok(()), false, 2, later);
    let text = serde_json::to_string(&verdict).unwrap();
    assert_eq!(
        text,
        r#"{"state":"passing","since":"1970-01-01T00:01:00Z"}"#
    );
}

/// Answers every request with this status line.
async fn answering(line: &'static str, tasks: &mut JoinSet<()>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tasks.spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = [0; 1024];
            let _read = stream.read(&mut head).await;
            let answer = format!("HTTP/1.1 {line}\r\ncontent-length: 0\r\n\r\n");
            let _sent = stream.write_all(answer.as_bytes()).await;
        }
    });
    port
}

#[tokio::test]
async fn http_passes_from_200_to_399() {
    let mut tasks = JoinSet::new();
    for (line, passes) in [
        ("200 OK", true),
        ("302 Found", true),
        ("404 Not Found", false),
        ("500 Oops", false),
    ] {
        let port = answering(line, &mut tasks).await;
        let probe = usable(&format!(r#"{{"http":{{"port":{port},"path":"/x"}}}}"#));
        assert_eq!(attempt(&probe).await.is_ok(), passes, "{line}");
    }
    let closed = usable(r#"{"http":{"port":1}}"#);
    assert!(attempt(&closed).await.unwrap_err().contains("port 1"));
}

/// Runs a test in a process of its own, and is true in that process: where other tests run, the
/// reaper of PID 1 collects children that the surface, which is another process, waits for itself.
fn alone(test: &str) -> bool {
    const ALONE: &str = "FUSE_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(ALONE, "1")
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let said = std::io::read_to_string(child.stdout.take().unwrap()).unwrap();
    // That reaper may have collected this child, too.
    let _collected = child.wait();
    assert!(said.contains("1 passed"), "{said}");
    false
}

#[tokio::test]
async fn commands_pass_by_their_status_and_end_with_their_time() {
    const NAME: &str =
        "surface::probe::tests::commands_pass_by_their_status_and_end_with_their_time";
    if !alone(NAME) {
        return;
    }
    let run = async |argv: &str| {
        let text = format!(r#"{{"exec":{argv},"interval_seconds":1}}"#);
        attempt(&usable(&text)).await
    };
    assert_eq!(run(r#"["true"]"#).await, Ok(()));
    assert_eq!(
        run(r#"["/bin/sh","-c","exit 3"]"#).await,
        Err("sh: exit status: 3".to_owned())
    );
    assert!(
        run(r#"["/no/such"]"#)
            .await
            .unwrap_err()
            .starts_with("such: ")
    );
    assert_eq!(
        run(r#"["sleep","60"]"#).await,
        Err("sleep: no answer within 1s".to_owned())
    );
}

#[tokio::test]
async fn verdicts_are_published_and_written() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("health.json");
    let mut tasks = JoinSet::new();
    let port = answering("200 OK", &mut tasks).await;
    let probe = usable(&format!(r#"{{"http":{{"port":{port}}}}}"#));
    let (sender, mut verdicts) = watch::channel(None);
    let stop = CancellationToken::new();
    tasks.spawn(run(probe, file.clone(), sender, stop.clone()));
    let passing = verdicts.wait_for(|verdict| {
        verdict
            .as_ref()
            .is_some_and(|verdict| verdict.state == State::Passing)
    });
    tokio::time::timeout(Duration::from_secs(20), passing)
        .await
        .unwrap()
        .unwrap();
    stop.cancel();
    let text = fs::read_to_string(&file).unwrap();
    assert!(
        text.starts_with(r#"{"state":"passing","since":""#),
        "{text}"
    );
}
