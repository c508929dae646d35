//! A secret value is nowhere: not in answers, events, logs, or the database file.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use fuse_testkit::fake_agent::Step;
use fuse_wire_host::ExecResponse;
use serde_json::json;
use tracing_subscriber::{EnvFilter, Layer as _, layer::SubscriberExt as _};

use crate::support::{Logs, Options, with_agent};

const SECRET: &str = "hunter2-in-the-open";

/// Every file of a directory, as one string of bytes.
fn contents(dir: &std::path::Path) -> Vec<u8> {
    let files = std::fs::read_dir(dir).unwrap();
    files
        .flat_map(|file| std::fs::read(file.unwrap().path()).unwrap())
        .collect()
}

fn holds(haystack: &[u8], needle: &str) -> bool {
    haystack
        .windows(needle.len())
        .any(|window| window == needle.as_bytes())
}

#[tokio::test]
async fn a_secret_is_nowhere() {
    let logs = Logs::default();
    let writer = logs.clone();
    let layer = tracing_subscriber::fmt::layer()
        .with_writer(move || writer.clone())
        .with_filter(EnvFilter::new("trace"));
    // The whole process logs at the finest level from here on; other tests only add.
    let _installed =
        tracing::subscriber::set_global_default(tracing_subscriber::registry().with(layer));

    let dir = tempfile::tempdir().unwrap();
    let (fuse, agent) = with_agent(Options::file(dir.path())).await;
    let request = json!({
        "task_id": "a",
        "secrets": {"PW": SECRET},
        "gateway_url": "http://gateway", "gateway_token": SECRET,
        "startup_script": format!("login {SECRET}"),
        "files": {"/x": BASE64_STANDARD.encode(SECRET)},
    });
    let mut told = String::new();

    // A create that works, one whose script fails, one whose agent repeats the secret,
    // and a body that is not what it should be.
    told += &fuse.create(&request).await.text;
    told += &fuse.get("/v1/environments/fuse-a").await.text;
    fuse.delete("/v1/environments/fuse-a").await;
    agent.on_exec(|_| ExecResponse {
        exit_code: 1,
        stdout: SECRET.as_bytes().to_vec(),
        stderr: format!("bad password {SECRET}").into_bytes(),
        ..ExecResponse::default()
    });
    told += &fuse.create(&request).await.text;
    told += &fuse.get("/v1/tasks/a").await.text;
    agent.on_exec(|_| ExecResponse::default());
    agent.fail(
        Step::StartAgent,
        1,
        500,
        &format!("cannot start with {SECRET}"),
    );
    told += &fuse.create(&request).await.text;
    told += &fuse.get("/v1/tasks/a").await.text;
    told += &fuse
        .post_raw("/v1/environments", format!(r#"{{"secrets":"{SECRET}"}}"#))
        .await
        .text;
    let mut events = String::new();
    let store = fuse.control.store().clone();
    for event in store.event_list_after(0, 100).await.unwrap() {
        events += &format!("{event:?}\n");
    }
    assert!(agent.file("fuse-a", "/fuse/secrets.json").is_none());
    let token_seen = holds(&contents(dir.path()), fuse_testkit::fake_agent::TOKEN);
    fuse.stop().await;

    assert!(
        told.contains("[REDACTED]") && events.contains("[REDACTED]"),
        "{told}"
    );
    assert!(!told.contains(SECRET), "{told}");
    assert!(!events.contains(SECRET), "{events}");
    let logs = logs.text();
    assert!(logs.contains("create failed"), "no logs were collected");
    if let Some(at) = logs.find(SECRET) {
        panic!(
            "in the logs: {}",
            &logs[at.saturating_sub(300)..(at + 100).min(logs.len())]
        );
    }
    assert!(
        !holds(&contents(dir.path()), SECRET),
        "in the database file"
    );
    assert!(!token_seen, "the agent's token is in the database file");
}
