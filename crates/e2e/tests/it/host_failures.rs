//! A host that is not fit: full disk, port in use, a second instance, missing pieces. One message each, nothing made.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fuse_testkit::{Bins, Daemon, Image, Slot, Stack, StackOptions, until};
use serde_json::json;

use crate::failing::expect_nothing_of;
use crate::suite::{Suite, finish};

/// Programs that cannot start must say so by then.
const REFUSAL_DEADLINE: Duration = Duration::from_secs(15);

/// The agent's file system has no room for another VM: refused before the guest is harmed, nothing left.
pub(crate) async fn disk_is_full(_: Suite) -> Result<()> {
    let slot = Slot::claim()?;
    let fc_dir = small_file_system(&slot, &[])?;
    let options = StackOptions {
        fc_dir: Some(fc_dir.clone()),
        ..StackOptions::default()
    };
    let stack = Stack::start_in(slot, options).await?;
    finish("disk-full", stack, async |stack| {
        fill(&fc_dir)?;
        let body = json!({"task_id": "e2e-disk-full", "spec": {"cpus": 1, "ram_mb": 256, "storage_gb": 1}});
        let reply = stack.api()?.post("/v1/environments", &body).await?;
        ensure!(reply.status >= 400, "created on a full disk: {}", reply.text());
        let (_, message) = reply.error()?;
        let says = message.to_lowercase();
        ensure!(says.contains("space") || says.contains("disk") || says.contains("capacity"), "{message}");
        expect_nothing_of(stack, "fuse-e2e-disk-full").await?;
        let host = stack.api()?.get("/v1/hosts/h1").await?.expect(200)?.json()?;
        ensure!(host["allocated"]["vm_count"] == 0, "still reserved: {}", host["allocated"]);
        // Room again: the same create works, so nothing of the failed one is in the way.
        std::fs::remove_file(fc_dir.join("filler"))?;
        let guest = stack.boot("e2e-disk-full").await?;
        guest.destroy().await
    })
    .await
}

/// Whoever starts a second time on the same port, state or database is told, and the first is not disturbed.
pub(crate) async fn second_instances_and_ports_in_use(suite: Suite) -> Result<()> {
    let stack = suite.stack().await?;
    let other = Slot::claim()?;
    let orchestrator = stack.bins().path("orchestrator")?;
    let listen = |port: u16| ("ORCH_LISTEN".to_owned(), format!("127.0.0.1:{port}"));
    let taken = listen(stack.slot().orchestrator_port());
    let said = refused(&orchestrator, &[taken])?;
    ensure!(
        said.contains(&stack.slot().orchestrator_port().to_string()),
        "does not name the port: {said}"
    );

    let database = (
        "DATABASE_URL".to_owned(),
        format!("sqlite://{}", stack.database_file().display()),
    );
    let said = refused(
        &orchestrator,
        &[listen(other.orchestrator_port()), database],
    )?;
    ensure!(
        said.contains("fuse.db"),
        "does not name the database: {said}"
    );

    let agent = stack.bins().path("fc-agent")?;
    let mut env = agent_env(stack.image(), stack.bins(), &stack.fc_dir(), &other)?;
    let said = refused(&agent, &env)?;
    ensure!(
        said.contains(&*stack.fc_dir().to_string_lossy()),
        "does not name the state directory: {said}"
    );
    let other_dir = fc_dir(&other, stack.image())?;
    env = agent_env(stack.image(), stack.bins(), &other_dir, &other)?;
    env.push((
        "FC_AGENT_PORT".into(),
        stack.slot().agent_port().to_string(),
    ));
    let said = refused(&agent, &env)?;
    ensure!(
        said.contains(&stack.slot().agent_port().to_string()),
        "does not name the port: {said}"
    );

    stack.api()?.get("/ready").await?.expect(200)?;
    stack.agent_api()?.get("/healthz").await?.expect(200)?;
    let left = fuse_testkit::leftovers::find(&other);
    ensure!(
        left.is_empty(),
        "the refused programs left:\n{}",
        left.join("\n")
    );
    std::fs::remove_dir_all(other.dir())?;
    Ok(())
}

/// No token, no kernel, no base image, no VMM, no `mkfs.ext4`, no root: each is named, with what to do.
pub(crate) async fn missing_pieces_are_named(_: Suite) -> Result<()> {
    let (bins, image, slot) = (Bins::find()?, Image::find()?, Slot::claim()?);
    let agent = bins.path("fc-agent")?;
    let fc_dir = fc_dir(&slot, &image)?;
    let complete = agent_env(&image, &bins, &fc_dir, &slot)?;
    let with = |name: &str, value: &str| -> Vec<(String, String)> {
        let mut env: Vec<_> = complete
            .iter()
            .filter(|(k, _)| k != name)
            .cloned()
            .collect();
        env.push((name.to_owned(), value.to_owned()));
        env
    };
    let nowhere = slot.dir().join("nowhere");
    let nowhere = nowhere.to_string_lossy();
    for (env, expected) in [
        (with("FC_AGENT_TOKEN", ""), "FC_AGENT_TOKEN"),
        (with("FC_BIN", &nowhere), &*nowhere),
        (with("BASE_ROOTFS", &nowhere), &*nowhere),
        (with("FC_INITRD", &nowhere), &*nowhere),
        (with("FC_DIR", &nowhere), "vmlinux.bin"),
        (with("PUBLIC_HOST", "not a host"), "PUBLIC_HOST"),
        (with("FC_AGENT_PORT", "eighty"), "FC_AGENT_PORT"),
    ] {
        let said = refused(&agent, &env)?;
        ensure!(said.contains(expected), "does not name {expected}: {said}");
        ensure!(!said.contains("panicked"), "{said}");
    }
    for tool in ["mkfs.ext4", "nft"] {
        missing_tool_is_named(&agent, &complete, tool)?;
    }
    unprivileged_is_refused(&agent, &complete)?;
    let left = fuse_testkit::leftovers::find(&slot);
    ensure!(
        left.is_empty(),
        "the refused agents left:\n{}",
        left.join("\n")
    );
    std::fs::remove_dir_all(slot.dir())?;
    a_good_agent_still_starts(&bins, &image, &slot).await
}

/// The control of [`missing_pieces_are_named`]: its environment is otherwise sound.
async fn a_good_agent_still_starts(bins: &Bins, image: &Image, slot: &Slot) -> Result<()> {
    let fc_dir = fc_dir(slot, image)?;
    let env = agent_env(image, bins, &fc_dir, slot)?;
    let mut agent = Daemon::spawn(
        "fc-agent",
        &bins.path("fc-agent")?,
        &["serve"],
        &env,
        &slot.dir().join("agent.log"),
    )?;
    let api = fuse_testkit::Api::new(
        format!("http://127.0.0.1:{}", slot.agent_port()),
        Some(TOKEN),
    )?;
    let served = until("the agent serves", REFUSAL_DEADLINE, || async {
        api.get("/healthz").await?.expect(200)
    })
    .await;
    let stopped = agent.stop().await?;
    served?;
    ensure!(stopped.success(), "the agent ended with {stopped}");
    fuse_testkit::leftovers::purge(slot)
}

const TOKEN: &str = "e2e-agent-token";

fn agent_env(
    image: &Image,
    bins: &Bins,
    fc_dir: &Path,
    slot: &Slot,
) -> Result<Vec<(String, String)>> {
    let mut env = slot.agent_env();
    let text = |path: &Path| path.to_string_lossy().into_owned();
    env.extend([
        ("FC_DIR".to_owned(), text(fc_dir)),
        ("FC_SOCK_DIR".to_owned(), text(&slot.dir().join("run"))),
        ("FC_BIN".to_owned(), text(&bins.path("fc-emulator")?)),
        ("FC_INITRD".to_owned(), text(&image.initramfs())),
        ("BASE_ROOTFS".to_owned(), text(&image.base())),
        ("FC_AGENT_TOKEN".to_owned(), TOKEN.to_owned()),
    ]);
    Ok(env)
}

/// A root directory for an agent, with a kernel in it.
fn fc_dir(slot: &Slot, image: &Image) -> Result<PathBuf> {
    let dir = slot.dir().join("fc");
    std::fs::create_dir_all(&dir)?;
    std::os::unix::fs::symlink(image.kernel(), dir.join("vmlinux.bin"))?;
    Ok(dir)
}

/// Runs a program that must refuse to start; what it said.
fn refused(program: &Path, env: &[(String, String)]) -> Result<String> {
    let mut command = Command::new("/usr/bin/timeout");
    command
        .arg(REFUSAL_DEADLINE.as_secs().to_string())
        .arg(program);
    outcome(&mut command, env)
}

/// In a mount namespace in which the tool is covered.
fn missing_tool_is_named(agent: &Path, env: &[(String, String)], tool: &str) -> Result<()> {
    let script = "mount --bind /dev/null \"/usr/sbin/$1\" && exec timeout \"$2\" \"$0\"";
    let mut command = Command::new("/usr/bin/unshare");
    command
        .args(["--mount", "sh", "-c", script])
        .arg(agent)
        .arg(tool);
    command.arg(REFUSAL_DEADLINE.as_secs().to_string());
    let said = outcome(&mut command, env)?;
    ensure!(said.contains(tool), "does not name {tool}: {said}");
    Ok(())
}

fn unprivileged_is_refused(agent: &Path, env: &[(String, String)]) -> Result<()> {
    // A copy, because the build directory may not be readable by others.
    let copy = std::env::temp_dir().join(format!("fuse-e2e-agent-{}", std::process::id()));
    std::fs::copy(agent, &copy)?;
    let mut command = Command::new("/usr/bin/setpriv");
    command.args([
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        "/usr/bin/timeout",
    ]);
    command
        .arg(REFUSAL_DEADLINE.as_secs().to_string())
        .arg(&copy);
    let said = outcome(&mut command, env);
    std::fs::remove_file(&copy)?;
    let said = said?;
    ensure!(
        said.contains("root"),
        "does not say that it needs root: {said}"
    );
    Ok(())
}

fn outcome(command: &mut Command, env: &[(String, String)]) -> Result<String> {
    let path = std::env::var("PATH").unwrap_or_default();
    let Output {
        status,
        stdout,
        stderr,
    } = command
        .env_clear()
        .env("PATH", &path)
        .envs(env.iter().map(|(k, v)| (k, v)))
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("start {command:?}"))?;
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&stdout),
        String::from_utf8_lossy(&stderr)
    );
    ensure!(
        status.code() == Some(1),
        "expected a refusal with status 1, got {status}:\n{said}"
    );
    Ok(said)
}

/// An ext4 of 5 GiB (a sparse file) in the slot's directory, mounted; the teardown unmounts it.
pub(crate) fn small_file_system(slot: &Slot, mkfs: &[&str]) -> Result<PathBuf> {
    std::fs::create_dir_all(slot.dir())?;
    let (file, point) = (slot.dir().join("small.img"), slot.dir().join("small"));
    std::fs::create_dir_all(&point)?;
    std::fs::File::create(&file)?.set_len(5 << 30)?;
    run(Command::new("mkfs.ext4").arg("-q").args(mkfs).arg(&file))?;
    run(Command::new("mount")
        .args(["-o", "loop"])
        .arg(&file)
        .arg(&point))?;
    Ok(point.join("fc"))
}

/// Leaves some MiB free, without writing any.
fn fill(dir: &Path) -> Result<()> {
    let filler = dir.join("filler");
    run(Command::new("fallocate").args(["-l", "4500M"]).arg(&filler))
}

pub(crate) fn run(command: &mut Command) -> Result<()> {
    let output = command
        .output()
        .with_context(|| format!("start {command:?}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {said}");
    Ok(())
}
