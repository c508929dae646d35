//! Exec in every shape: bytes, streams, statuses, signals, limits, and several at once.

use std::process::Stdio;

use anyhow::{Context as _, Result, ensure};
use fuse_testkit::{ExecResult, Guest};
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::suite::Suite;

/// One guest, all of it: booting costs more than every call here together.
pub(crate) async fn bytes_streams_statuses_and_limits(suite: Suite) -> Result<()> {
    let stack = suite.stack().await?;
    let guest = stack.boot("e2e-exec").await?;
    bytes(&guest).await?;
    statuses(&guest).await?;
    limits(&guest).await?;
    tokio::try_join!(side_by_side(&guest), refusals(stack, &guest))?;
    cli(stack, &guest).await?;
    streamed(stack, &guest).await?;
    long_bodies(stack, &guest).await?;
    // A running exec does not hold up the destroy, and ends with the guest instead of hanging.
    let record = stack.record(&guest.id)?;
    let (long, destroyed) = tokio::join!(guest.exec(&["sleep", "300"], 300_000), async {
        guest
            .ok("until grep -qz '^300$' /proc/[0-9]*/cmdline; do :; done")
            .await?;
        guest.destroy().await
    });
    destroyed?;
    ensure!(
        long.is_err(),
        "an exec in a destroyed guest answered {long:?}"
    );
    stack.expect_gone(&record)
}

async fn bytes(guest: &Guest) -> Result<()> {
    let all: Vec<u8> = (0..=255).collect();
    let got = guest
        .agent_exec(&["perl", "-e", "print pack('C*', 0..255)"], 30_000)
        .await?;
    ensure!(
        got.stdout == all,
        "256 byte values came back as {:?}",
        got.stdout
    );
    // 1 MiB of noise, checked against the guest's own digest.
    let got = guest
        .agent_exec(
            &["sh", "-c", "head -c 1048576 /dev/urandom | tee /tmp/noise"],
            60_000,
        )
        .await?;
    let digest = hex::encode(Sha256::digest(&got.stdout));
    ensure!(
        got.stdout.len() == 1 << 20,
        "{} bytes of 1 MiB",
        got.stdout.len()
    );
    ensure!(
        guest
            .ok("sha256sum < /tmp/noise")
            .await?
            .starts_with(&digest),
        "1 MiB came back altered"
    );
    // Through the orchestrator, whose answer is text.
    let got = guest
        .exec(
            &[
                "sh",
                "-c",
                "yes 0123456789abcde | head -c 1048576; printf '\\377' >&2",
            ],
            60_000,
        )
        .await?;
    ensure!(
        got.stdout.len() == 1 << 20 && got.err() == "\u{fffd}",
        "{} bytes, {:?}",
        got.stdout.len(),
        got.err()
    );
    // Streams are kept apart, arguments as they are.
    let got = guest
        .exec(&["sh", "-c", "echo out; echo err >&2"], 30_000)
        .await?;
    ensure!(
        (got.out().as_str(), got.err().as_str()) == ("out\n", "err\n"),
        "{got:?}"
    );
    let got = guest
        .exec(&["printf", "%s|", "a b", "", "*", "$HOME", "'\"\\"], 30_000)
        .await?;
    ensure!(got.out() == "a b||*|$HOME|'\"\\|", "{:?}", got.out());
    Ok(())
}

async fn statuses(guest: &Guest) -> Result<()> {
    let code = async |line: &str| -> Result<ExecResult> {
        guest.agent_exec(&["sh", "-c", line], 30_000).await
    };
    ensure!(code("exit 42").await?.exit_code == 42, "exit 42");
    let killed = code("kill -TERM $$").await?;
    ensure!(
        killed.exit_code == 143 && killed.answer["signal"] == 15,
        "{:?}",
        killed.answer
    );
    let missing = guest.exec(&["no-such-command"], 30_000).await?;
    ensure!(
        missing.exit_code == 127 && missing.err().contains("no-such-command"),
        "{missing:?}"
    );
    guest.ok("echo text > /tmp/plain").await?;
    let denied = guest.exec(&["/tmp/plain"], 30_000).await?;
    ensure!(
        denied.exit_code == 126 && denied.err().contains("/tmp/plain"),
        "{denied:?}"
    );
    Ok(())
}

async fn limits(guest: &Guest) -> Result<()> {
    // What was printed until then comes back; the command and what it started are gone.
    let got = guest
        .agent_exec(
            &[
                "sh",
                "-c",
                "echo begun; sleep 4321 & setsid sleep 4322; wait",
            ],
            1_000,
        )
        .await?;
    ensure!(
        got.exit_code == 124 && got.answer["timed_out"] == true,
        "{:?}",
        got.answer
    );
    ensure!(got.out() == "begun\n", "{:?}", got.out());
    let left = guest
        .ok("grep -lz '^432[12]' /proc/[0-9]*/cmdline || true")
        .await?;
    ensure!(left.is_empty(), "still runs after its timeout: {left}");
    let got = guest.exec(&["sleep", "4323"], 500).await?;
    ensure!(got.exit_code == 124, "through the orchestrator: {got:?}");
    // 8 MiB of each stream are kept; the rest is dropped and said to be.
    let got = guest
        .agent_exec(&["head", "-c", "9437184", "/dev/zero"], 60_000)
        .await?;
    ensure!(
        got.stdout.len() == 8 << 20 && got.answer["stdout_truncated"] == true,
        "{} bytes",
        got.stdout.len()
    );
    Ok(())
}

async fn side_by_side(guest: &Guest) -> Result<()> {
    let marker = "/tmp/side-by-side";
    let wait = format!("while [ ! -e {marker} ]; do sleep 0.05; done; echo seen");
    // The first can only end after the second has run: they are not queued.
    let (first, second) = tokio::join!(guest.ok(&wait), guest.ok("touch /tmp/side-by-side"));
    second?;
    ensure!(first? == "seen", "the waiting command saw nothing");
    Ok(())
}

async fn refusals(stack: &fuse_testkit::Stack, guest: &Guest) -> Result<()> {
    let path = format!("/v1/environments/{}?action=exec", guest.id);
    let api = stack.api()?;
    for (body, text) in [
        (json!({}), "one of cmd or shell is required"),
        (json!({"cmd": []}), "one of cmd or shell is required"),
        (
            json!({"cmd": ["true"], "shell": "true"}),
            "cmd and shell are mutually exclusive",
        ),
    ] {
        let (code, message) = api.post(&path, &body).await?.expect(400)?.error()?;
        ensure!(
            code == "invalid_argument" && message.contains(text),
            "{body}: {code}: {message}"
        );
    }
    stack
        .agent_api()?
        .post(&format!("/v1/vm/{}/exec", guest.id), &json!({"cmd": []}))
        .await?
        .expect(400)?;
    let reply = api
        .post(
            "/v1/environments/fuse-nobody?action=exec",
            &json!({"cmd": ["true"]}),
        )
        .await?
        .expect(404)?;
    ensure!(
        reply.error()?.1 == "vm fuse-nobody not found",
        "{}",
        reply.text()
    );
    Ok(())
}

async fn cli(stack: &fuse_testkit::Stack, guest: &Guest) -> Result<()> {
    let fuse = stack.fuse("exec").await?;
    let run = fuse
        .run(&[
            "environment",
            "exec",
            &guest.id,
            "--",
            "sh",
            "-c",
            "echo out; echo err >&2; exit 3",
        ])
        .await?;
    ensure!(
        (run.code, run.stdout.as_str(), run.stderr.as_str()) == (3, "out\n", "err\n"),
        "{run:?}"
    );
    let run = fuse
        .run(&[
            "environment",
            "exec",
            &guest.id,
            "--shell",
            "echo $((6 * 7)) | cat",
        ])
        .await?
        .ok()?;
    ensure!(run.stdout == "42\n", "{run:?}");
    let run = fuse
        .run(&[
            "-o",
            "json",
            "environment",
            "exec",
            &guest.id,
            "--",
            "sh",
            "-c",
            "echo out; exit 3",
        ])
        .await?;
    ensure!(
        run.code == 3 && run.json()?["exit_code"] == 3 && run.json()?["stdout"] == "out\n",
        "{run:?}"
    );
    fuse.run(&[
        "environment",
        "exec",
        &guest.id,
        "--timeout",
        "1s",
        "--",
        "sleep",
        "4324",
    ])
    .await?
    .expect(124)?;
    Ok(())
}

/// As the command goes on: output before its end, exact bytes, input, and nothing left behind by a caller that leaves.
async fn streamed(stack: &fuse_testkit::Stack, guest: &Guest) -> Result<()> {
    let fuse = stack.fuse("exec-stream").await?;
    let go_on = "echo begun; until [ -e /tmp/go-on ]; do sleep 0.05; done; echo over >&2; exit 7";
    let mut child = fuse
        .command(&["env", "exec", &guest.id, "--shell", go_on])
        .spawn()?;
    let mut first = [0; 6];
    let stdout = child.stdout.as_mut().context("stdout")?;
    stdout.read_exact(&mut first).await?;
    ensure!(&first == b"begun\n", "{first:?}");
    guest.ok("touch /tmp/go-on").await?;
    let done = child.wait_with_output().await?;
    ensure!(
        (done.status.code(), done.stderr.as_slice()) == (Some(7), b"over\n"),
        "{done:?}"
    );
    let noise = [
        "env",
        "exec",
        &guest.id,
        "--shell",
        "head -c 3000000 /dev/urandom | tee /tmp/n",
    ];
    let done = fuse.command(&noise).output().await?;
    let digest = hex::encode(Sha256::digest(&done.stdout));
    let told = guest.ok("sha256sum < /tmp/n").await?;
    ensure!(
        done.stdout.len() == 3_000_000 && told.starts_with(&digest),
        "{} bytes came, altered",
        done.stdout.len()
    );
    let mut child = fuse
        .command(&["env", "exec", "-i", &guest.id, "--", "sha256sum"])
        .stdin(Stdio::piped())
        .spawn()?;
    let mut stdin = child.stdin.take().context("stdin")?;
    let feed = async {
        stdin.write_all(&done.stdout).await?;
        drop(stdin);
        anyhow::Ok(())
    };
    let (fed, summed) = tokio::join!(feed, child.wait_with_output());
    fed?;
    let summed = summed?;
    ensure!(summed.stdout.starts_with(digest.as_bytes()), "{summed:?}");
    let mut child = fuse
        .command(&["env", "exec", &guest.id, "--", "sleep", "4325"])
        .spawn()?;
    guest
        .ok("until grep -qz '^4325$' /proc/[0-9]*/cmdline; do :; done")
        .await?;
    child.kill().await?;
    guest
        .ok("while grep -qz '^4325$' /proc/[0-9]*/cmdline; do :; done")
        .await
        .map(drop)
}

/// Commands as long as a request may be arrive whole, in both forms; longer ones are refused.
async fn long_bodies(stack: &fuse_testkit::Stack, guest: &Guest) -> Result<()> {
    let words: Vec<String> = ('a'..='i').map(|c| c.to_string().repeat(100_000)).collect();
    let sum = hex::encode(Sha256::digest(words.concat()));
    let mut cmd = vec!["sh", "-c", "printf %s \"$@\" | sha256sum", "sh"];
    cmd.extend(words.iter().map(String::as_str));
    let told = guest.exec(&cmd, 60_000).await?.out();
    ensure!(told.starts_with(&sum), "{told} is not {sum}");
    let fuse = stack.fuse("exec-long").await?;
    let args = [&["env", "exec", &guest.id, "--"], &cmd[..]].concat();
    let told = fuse.ok(&args).await?.stdout;
    ensure!(told.starts_with(&sum), "streamed: {told} is not {sum}");
    // A word that no process can have, and a request that no server takes.
    let long = "x".repeat(200_000);
    let got = guest.exec(&["true", &long], 60_000).await;
    let said = match got {
        Ok(answer) => format!("{} {}", answer.exit_code, answer.err()),
        Err(error) => format!("{error:#}"),
    };
    ensure!(
        said.to_lowercase().contains("argument list too long"),
        "{said}"
    );
    let body = json!({"cmd": ["true", long.repeat(6)]});
    let path = format!("/v1/environments/{}?action=exec", guest.id);
    let reply = stack.api()?.post(&path, &body).await?.expect(413)?;
    let (code, message) = reply.error()?;
    ensure!(message.contains("1048576"), "{code}: {message}");
    Ok(())
}
