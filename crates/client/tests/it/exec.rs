//! A streamed exec.

use fuse_client::api::{ErrorCode, ExecFrame, ExecRequest, Output};
use fuse_client::{Error, Reason};

use crate::server::{Server, json, stream};

fn command() -> ExecRequest {
    ExecRequest {
        cmd: vec!["make".into()],
        ..ExecRequest::default()
    }
}

async fn frames(text: &'static str) -> Result<Vec<ExecFrame>, Error> {
    let server = Server::start(move |_, _| stream(text)).await;
    let mut stream = server.client().exec_stream("fuse-a", &command()).await?;
    let mut frames = Vec::new();
    while let Some(frame) = stream.next().await? {
        frames.push(frame);
    }
    assert_eq!(
        server.seen()[0].line,
        "POST /v1/environments/fuse-a?action=exec&stream=1"
    );
    assert_eq!(server.seen()[0].body, r#"{"cmd":["make"]}"#);
    Ok(frames)
}

fn exit(exit_code: i32) -> ExecFrame {
    ExecFrame::Exit {
        exit_code,
        timed_out: false,
        signal: None,
    }
}

#[tokio::test]
async fn frames_are_read_and_what_is_newer_is_left_out() {
    let got = frames(
        "data: {\"event\":\"stdout\",\"data\":\"/wBh\"}\n\n: keepalive\n\n\
         data: {\"event\":\"progress\",\"percent\":7}\n\n\
         data: {\"event\":\"stderr\",\"data\":\"ZQ==\"}\n\n\
         data: {\"event\":\"exit\",\"exit_code\":3}\n\n",
    );
    let want = vec![
        ExecFrame::Stdout {
            data: Output(b"\xff\0a".to_vec()),
        },
        ExecFrame::Stderr {
            data: Output(b"e".to_vec()),
        },
        exit(3),
    ];
    assert_eq!(got.await.unwrap(), want);
}

#[tokio::test]
async fn an_end_without_a_status_is_an_error() {
    let told = frames(
        "data: {\"event\":\"error\",\"error\":{\"code\":\"conflict\",\"message\":\"it is gone\"}}\n\n",
    );
    let told = told.await.unwrap_err();
    let api = told.api().unwrap();
    assert_eq!(
        (api.code, &*api.message),
        (Some(ErrorCode::Conflict), "it is gone")
    );
    assert!(!told.is_retryable(), "the command may have done something");
    let lost = frames("data: {\"event\":\"stdout\",\"data\":\"ZQ==\"}\n\n").await;
    let is_lost = |error: &Error| {
        matches!(
            error,
            Error::Transport {
                reason: Reason::Lost,
                ..
            }
        )
    };
    assert!(is_lost(lost.as_ref().unwrap_err()), "{lost:?}");
    let mangled = frames("data: {\"event\":\"stdout\",\"data\":\"ZQ\"}\n\n").await;
    assert!(matches!(mangled, Err(Error::Decode { .. })), "{mangled:?}");
}

#[tokio::test]
async fn a_server_that_does_not_stream_is_shown_at_the_end() {
    let server = Server::start(|_, _| json(200, r#"{"exit_code":3,"stdout":"o","stderr":""}"#));
    let server = server.await;
    let client = server.client();
    let mut stream = client.exec_stream("fuse-a", &command()).await.unwrap();
    let mut all = Vec::new();
    while let Some(frame) = stream.next().await.unwrap() {
        all.push(frame);
    }
    assert_eq!(all.len(), 3);
    assert_eq!(all[2], exit(3));
    // Its command ran, without the input: that is not what was asked for.
    let session = client.exec_session("fuse-a", &command()).await;
    assert!(matches!(session, Err(Error::Decode { .. })), "{session:?}");
}
