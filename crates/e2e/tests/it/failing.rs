//! Creates that fail: the reason comes back, and nothing stays behind.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use fuse_testkit::{Fuse, Stack, boot_permit};
use serde_json::json;

use crate::suite::{Suite, project};

/// The run phase exits non-zero: exit status and the tail of its stderr are in the error, for both kinds of callers.
pub(crate) async fn run_phase(suite: Suite) -> Result<()> {
    let stack = suite.stack().await?;
    let fuse = stack.fuse("failing").await?;
    let dir = project(
        stack,
        "failing",
        "version: 1\nname: e2e-failing\nresources: {cpus: 1, memory: 256MB}\n\
         run: |\n  echo started\n  echo 'cannot open /data/input.csv' >&2\n  exit 7\n",
    )?;
    let turn = boot_permit(1).await?;
    let up = fuse.run_in(&dir, &["up"]).await?.expect(1)?;
    up.says("cannot open /data/input.csv")?;
    up.says("7")?;
    expect_nothing_of(stack, "fuse-e2e-failing").await?;

    let body = json!({"task_id": "e2e-failing", "spec": {"cpus": 1, "ram_mb": 256},
        "startup_script": "echo 'cannot open /data/input.csv' >&2; exit 7"});
    let reply = stack
        .api()?
        .post("/v1/environments", &body)
        .await?
        .expect(400)?;
    drop(turn);
    let (code, message) = reply.error()?;
    ensure!(
        code == "invalid_argument" && message.contains("cannot open /data/input.csv"),
        "{code}: {message}"
    );
    let details = &reply.json()?["error"]["details"];
    ensure!(
        details["exit_code"] == "7" && details["phase"] == "run",
        "{details}"
    );
    let task = stack
        .api()?
        .get("/v1/tasks/e2e-failing")
        .await?
        .expect(200)?
        .json()?;
    ensure!(task["run_status"] == "failed", "{task}");
    ensure!(
        task["last_error"]
            .as_str()
            .is_some_and(|e| e.contains("cannot open /data/input.csv")),
        "{task}"
    );
    expect_nothing_of(stack, "fuse-e2e-failing").await?;
    tells_what_was_printed(&fuse).await
}

/// The guest is gone, and what it printed is still there: its script, its kernel, its agent; and how long each step
/// took.
async fn tells_what_was_printed(fuse: &Fuse) -> Result<()> {
    let task = fuse.run(&["task", "get", "e2e-failing"]).await?.expect(0)?;
    for row in [
        "failed step        script",
        "  host.spawn",
        "  upload",
        "  script",
    ] {
        ensure!(task.stdout.contains(row), "{row:?} in {}", task.stdout);
    }
    let logs = async |more: &[&str]| {
        let words = [&["task", "logs", "e2e-failing"], more].concat();
        anyhow::Ok(fuse.run(&words).await?.expect(0)?.stdout)
    };
    let run = logs(&["--phase", "run"]).await?;
    ensure!(run == "cannot open /data/input.csv\n", "{run}");
    let console = logs(&["--source", "console"]).await?;
    ensure!(!console.trim().is_empty(), "the console said nothing");
    let agent = logs(&["--source", "agent"]).await?;
    ensure!(agent.starts_with('['), "{agent}");
    Ok(())
}

/// A server in the foreground: `validate` warns of it, the create ends at its bound and says what to do.
pub(crate) async fn run_that_does_not_return(suite: Suite) -> Result<()> {
    let stack = suite.stack().await?;
    let fuse = stack.fuse("blocking").await?;
    let dir = project(
        stack,
        "blocking",
        "version: 1\nname: e2e-blocking\nresources: {cpus: 1, memory: 256MB}\nstartup_timeout: 2s\n\
         build: [\"echo built\"]\nrun: sleep infinity\n",
    )?;
    let valid = fuse.run_in(&dir, &["validate"]).await?.ok()?;
    valid.says("\"sleep infinity\" does not return")?;
    let turn = boot_permit(1).await?;
    let up = fuse.run_in(&dir, &["up"]).await?.expect(1)?;
    drop(turn);
    up.says("startup script did not complete in time after 2s")?;
    up.says("\n  the startup script runs inside create, so it must end: ")?;
    // The step before it is told as done.
    ensure!(
        up.stdout.contains("  RUN    [1/1]   echo built"),
        "{}",
        up.stdout
    );
    expect_nothing_of(stack, "fuse-e2e-blocking").await
}

/// A base image that has no `/bin/sh`: one message that says so.
pub(crate) async fn image_without_a_shell(suite: Suite) -> Result<()> {
    let stack = suite.stack().await?;
    let root = stack.dir().join("shell-less");
    std::fs::create_dir_all(root.join("etc"))?;
    std::fs::write(root.join("etc/hostname"), "bare\n")?;
    let image = stack.images_dir().join("shell-less.ext4");
    let made = Command::new("mkfs.ext4")
        .args(["-q", "-d"])
        .args([&root, &image])
        .arg("16M")
        .output()
        .context("mkfs.ext4")?;
    ensure!(made.status.success(), "mkfs.ext4: {made:?}");

    let body = json!({"task_id": "e2e-no-shell", "spec": {"cpus": 1, "ram_mb": 256, "image": "shell-less"}});
    let turn = boot_permit(1).await?;
    let reply = stack.api()?.post("/v1/environments", &body).await?;
    drop(turn);
    ensure!(
        reply.status >= 400,
        "a guest without a shell was created: {}",
        reply.text()
    );
    let (_, message) = reply.error()?;
    ensure!(
        message.contains("/bin/sh"),
        "does not name the shell: {message}"
    );
    ensure!(
        message.contains("shell-less"),
        "does not name the image: {message}"
    );
    expect_nothing_of(stack, "fuse-e2e-no-shell").await
}

/// An image that is not on the host: refused before anything is made.
pub(crate) async fn missing_image(suite: Suite) -> Result<()> {
    let stack = suite.stack().await?;
    let body =
        json!({"task_id": "e2e-no-image", "spec": {"cpus": 1, "ram_mb": 256, "image": "nowhere"}});
    let reply = stack.api()?.post("/v1/environments", &body).await?;
    ensure!(reply.status >= 400, "{}", reply.text());
    let (_, message) = reply.error()?;
    ensure!(
        message.contains("nowhere"),
        "does not name the image: {message}"
    );
    expect_nothing_of(stack, "fuse-e2e-no-image").await?;

    // The same through the agent: its own contract, and names that try to leave the images directory.
    let agent = stack.agent_api()?;
    for image in ["nowhere", "../vmlinux", "/etc/passwd", "~root", "a\u{7}b"] {
        let reply = agent
            .post("/v1/vm", &json!({"name": "e2e-no-image", "image": image}))
            .await?
            .expect(400)?;
        ensure!(!reply.text().is_empty(), "no reason for {image:?}");
    }
    expect_nothing_of(stack, "e2e-no-image").await
}

/// The API does not know `id`, neither does the agent, and the host has no trace of it.
pub(crate) async fn expect_nothing_of(stack: &Stack, id: &str) -> Result<()> {
    stack
        .api()?
        .get(&format!("/v1/environments/{id}"))
        .await?
        .expect(404)?;
    stack
        .agent_api()?
        .get(&format!("/v1/vm/{id}"))
        .await?
        .expect(404)?;
    let traces = stack.traces(id);
    ensure!(
        traces.is_empty(),
        "{id} failed and left:\n{}",
        traces.join("\n")
    );
    Ok(())
}
