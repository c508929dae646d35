//! A streamed exec, against a guest that is played by the test.

use std::time::Duration;

use fuse_control::Settings;
use fuse_testkit::fake_agent::{AttachedGuest, FakeAgent, Step};
use fuse_wire_host::attach::{Codec, Exit, Frame};
use futures_util::{SinkExt as _, StreamExt as _};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use reqwest::{Method, Response, StatusCode};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio_util::codec::{Decoder as _, Framed};

use crate::support::{Options, Orchestrator, Sse, with_agent};

const PATIENCE: Duration = Duration::from_secs(20);
const STREAM: &str = "/v1/environments/fuse-a?action=exec&stream=1";

type Guest = Framed<TokioIo<Upgraded>, Codec>;

struct Stage {
    fuse: Orchestrator,
    agent: FakeAgent,
    guests: UnboundedReceiver<AttachedGuest>,
}

impl Stage {
    async fn set() -> Self {
        let (fuse, agent) = with_agent(Options::default()).await;
        fuse.create(&json!({"task_id": "a"})).await.is(201);
        let guests = agent.answer_attached();
        Self {
            fuse,
            agent,
            guests,
        }
    }

    async fn send(&self, body: &Value, upgrade: bool) -> Response {
        let mut request = self.fuse.request(Method::POST, STREAM).json(body);
        if upgrade {
            request = request
                .header("Connection", "Upgrade")
                .header("Upgrade", "fuse-attach/1");
        }
        request.send().await.unwrap()
    }

    /// Starts a stream and is its guest.
    async fn stream(&mut self, body: &Value) -> (Sse, Guest) {
        let response = self.send(body, false).await;
        assert_eq!(response.status(), 200);
        let header = |name| response.headers()[name].to_str().unwrap().to_owned();
        assert_eq!(header("content-type"), "text/event-stream");
        assert_eq!(header("x-accel-buffering"), "no");
        let (_, guest) = self.guest().await;
        (Sse::of(response), guest)
    }

    async fn guest(&mut self) -> (fuse_wire_host::attach::Request, Guest) {
        let attached = tokio::time::timeout(PATIENCE, self.guests.recv()).await;
        let (wanted, stream) = attached.unwrap().unwrap();
        (wanted, Codec.framed(stream))
    }
}

fn exit(exit_code: i32) -> Frame {
    Frame::Exit(Exit {
        exit_code,
        ..Exit::default()
    })
}

#[tokio::test]
async fn output_comes_as_it_is_produced_and_the_status_last() {
    let mut stage = Stage::set().await;
    let body = json!({"cmd": ["sh", "-c", "x y"], "timeout_ms": 5000});
    let (mut sse, mut guest) = stage.stream(&body).await;
    assert_eq!(
        stage.agent.attach_queries(),
        ["tty=0&timeout_ms=5000&cmd=sh&cmd=-c&cmd=x+y"]
    );
    // Each is read before the guest says more.
    let bytes = b"\xff\0a".to_vec();
    guest.send(Frame::Stdout(bytes.into())).await.unwrap();
    let first = json!({"event": "stdout", "data": "/wBh"});
    assert_eq!(sse.next().await.unwrap(), first);
    guest.send(Frame::Stderr("e".into())).await.unwrap();
    let second = json!({"event": "stderr", "data": "ZQ=="});
    assert_eq!(sse.next().await.unwrap(), second);
    // A frame that only newer guests know is no output.
    guest
        .send(Frame::Resize(fuse_wire_host::attach::Resize {
            rows: 1,
            cols: 1,
        }))
        .await
        .unwrap();
    let killed = Exit {
        exit_code: 137,
        timed_out: true,
        signal: Some(9),
    };
    guest.send(Frame::Exit(killed)).await.unwrap();
    let last = json!({"event": "exit", "exit_code": 137, "timed_out": true, "signal": 9});
    assert_eq!(sse.next().await.unwrap(), last);
    assert_eq!(sse.next().await, None);
    stage.fuse.stop().await;
}

#[tokio::test]
async fn a_burst_of_megabytes_arrives_whole() {
    let mut stage = Stage::set().await;
    let (mut sse, mut guest) = stage.stream(&json!({"shell": "burst"})).await;
    let piece = vec![b'x'; 64 * 1024];
    let total = 200;
    let burst = async {
        for _ in 0..total {
            guest
                .send(Frame::Stdout(piece.clone().into()))
                .await
                .unwrap();
        }
        guest.send(exit(0)).await.unwrap();
    };
    let read = async {
        let mut records = 0;
        while let Some(record) = sse.next().await {
            if record["event"] == "exit" {
                return records;
            }
            records += record["data"].as_str().unwrap().len() / 4 * 3;
        }
        panic!("no exit")
    };
    let ((), bytes) = tokio::join!(burst, read);
    // Base64 pads to multiples of three.
    assert_eq!(bytes, (piece.len() / 3 + 1) * 3 * total);
    stage.fuse.stop().await;
}

#[tokio::test]
async fn a_guest_that_dies_is_told_from_a_connection_that_breaks() {
    let mut stage = Stage::set().await;
    let (mut sse, guest) = stage.stream(&json!({"cmd": ["x"]})).await;
    drop(guest);
    let record = sse.next().await.unwrap();
    assert_eq!(record["event"], "error");
    assert_eq!(record["error"]["code"], "internal", "{record}");
    let message = record["error"]["message"].as_str().unwrap();
    assert!(
        message.contains("broke before the command ended"),
        "{message}"
    );
    assert_eq!(sse.next().await, None);

    let (mut sse, guest) = stage.stream(&json!({"cmd": ["x"]})).await;
    stage.agent.end_vm("fuse-a");
    drop(guest);
    let record = sse.next().await.unwrap();
    let want = json!({"event": "error", "error": {
        "code": "conflict", "message": "vm not running: its VMM process has ended",
    }});
    assert_eq!(record, want);
    assert_eq!(sse.next().await, None);
    stage.fuse.stop().await;
}

#[tokio::test]
async fn frames_that_cannot_be_end_the_stream_and_nothing_else() {
    let mut stage = Stage::set().await;
    // Four gigabytes to come; an exit status that is none, and then the end.
    let bogus: [&[u8]; 2] = [b"\x01\0\0\0\xff\xff\xff\xff", b"\x04\0\0\0\0\0\0\x02{}"];
    for bytes in bogus {
        let (mut sse, guest) = stage.stream(&json!({"cmd": ["x"]})).await;
        let mut guest = guest.into_inner();
        guest.write_all(bytes).await.unwrap();
        guest.shutdown().await.unwrap();
        let record = sse.next().await.unwrap();
        assert_eq!(record["error"]["code"], "internal", "{record}");
        assert_eq!(sse.next().await, None);
    }
    stage.fuse.get("/v1/environments/fuse-a").await.is(200);
    stage.fuse.stop().await;
}

#[tokio::test]
async fn a_caller_that_leaves_ends_the_command() {
    let mut stage = Stage::set().await;
    let (sse, mut guest) = stage.stream(&json!({"cmd": ["x"]})).await;
    drop(sse);
    let end = tokio::time::timeout(PATIENCE, guest.next()).await.unwrap();
    assert!(end.is_none_or(|frame| frame.is_err()));
    stage.fuse.stop().await;
}

#[tokio::test]
async fn a_shutdown_is_told() {
    let mut stage = Stage::set().await;
    let (mut sse, _guest) = stage.stream(&json!({"cmd": ["x"]})).await;
    let told = async {
        let record = sse.next().await.unwrap();
        assert_eq!(record["error"]["code"], "unavailable", "{record}");
        assert_eq!(sse.next().await, None);
    };
    tokio::join!(told, stage.fuse.stop());
}

#[tokio::test]
async fn what_cannot_start_is_an_ordinary_error() {
    let stage = Stage::set().await;
    let refused = async |body: &Value, upgrade| -> (StatusCode, String) {
        let response = stage.send(body, upgrade).await;
        let status = response.status();
        let body: Value = response.json().await.unwrap();
        (
            status,
            body["error"]["message"].as_str().unwrap().to_owned(),
        )
    };
    let command = json!({"cmd": ["x"]});
    for upgrade in [false, true] {
        let (status, message) = refused(&json!({}), upgrade).await;
        assert_eq!(
            (status.as_u16(), &*message),
            (400, "one of cmd or shell is required")
        );
        stage.agent.fail(Step::Attach, 1, 500, "no pipe");
        let (status, message) = refused(&command, upgrade).await;
        assert_eq!(status, 500);
        assert!(message.starts_with("exec: "), "{message}");
        assert!(message.contains("no pipe"), "{message}");
        stage.agent.fail(Step::Attach, 1, 404, "not found");
        let (status, message) = refused(&command, upgrade).await;
        assert_eq!(
            (status.as_u16(), &*message),
            (501, "exec not supported by provider")
        );
        stage
            .agent
            .fail(Step::Attach, 1, 409, "its VMM process has ended");
        let (status, message) = refused(&command, upgrade).await;
        let want = "vm not running: its VMM process has ended";
        assert_eq!((status.as_u16(), &*message), (409, want));
    }
    stage
        .fuse
        .post_raw("/v1/environments/fuse-a?action=drain", "")
        .await
        .is(200);
    let (status, message) = refused(&command, false).await;
    assert_eq!(
        (status.as_u16(), &*message),
        (409, "vm not running: vm fuse-a is draining")
    );
    stage.fuse.stop().await;
}

#[tokio::test]
async fn with_an_upgrade_input_goes_in_too() {
    let mut stage = Stage::set().await;
    // Too long for a query on the way to the agent.
    let long = "ü".repeat(20_000);
    let response = stage.send(&json!({"cmd": ["cat", long]}), true).await;
    assert_eq!(response.status(), 101);
    assert_eq!(response.headers()["upgrade"], "fuse-attach/1");
    let mut caller = Codec.framed(response.upgrade().await.unwrap());
    let (wanted, mut guest) = stage.guest().await;
    assert_eq!(
        (wanted.tty, wanted.stdin, wanted.timeout_ms),
        (false, true, Some(60_000))
    );
    assert_eq!(wanted.cmd, ["cat", &long]);
    caller.send(Frame::Stdin("in".into())).await.unwrap();
    assert_eq!(
        guest.next().await.unwrap().unwrap(),
        Frame::Stdin("in".into())
    );
    caller.send(Frame::Stdin(Vec::new().into())).await.unwrap();
    assert_eq!(
        guest.next().await.unwrap().unwrap(),
        Frame::Stdin(Vec::new().into())
    );
    guest.send(exit(3)).await.unwrap();
    assert_eq!(caller.next().await.unwrap().unwrap(), exit(3));
    stage.fuse.stop().await;
}

/// The guest is at work for as long as a command runs, however little is said about it.
#[tokio::test]
async fn a_long_command_is_no_idleness() {
    let settings = Settings {
        reconcile_interval: Duration::from_millis(100),
        default_idle_timeout: Duration::from_secs(1),
        ..Settings::default()
    };
    let options = Options {
        settings,
        ..Options::default()
    };
    let (fuse, agent) = with_agent(options).await;
    fuse.create(&json!({"task_id": "a"})).await.is(201);
    let mut gate = agent.hold(Step::Exec);
    let command = json!({"cmd": ["make"]});
    let path = "/v1/environments/fuse-a?action=exec";
    let looks = |agent: &FakeAgent| agent.calls().iter().filter(|c| *c == "list").count();
    let (answer, ()) = tokio::join!(fuse.post(path, &command), async {
        gate.reached().await;
        // Three limits and more.
        let enough = looks(&agent) + 35;
        agent.until(|agent| looks(agent) >= enough).await;
        let record = fuse.get("/v1/environments/fuse-a").await.is(200);
        assert_eq!(record["state"], "running");
        gate.open();
    });
    answer.is(200);
    // Afterwards it is idle like any other.
    fuse.until("/v1/environments/fuse-a", |answer| answer.status == 404)
        .await;
    fuse.stop().await;
}
