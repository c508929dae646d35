//! A secret reaches the guest and nothing else: not process lists, logs, database, events, disks or errors.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fuse_testkit::scan::{self, Needle, ProcessWatch};
use fuse_testkit::{Fuse, Guest, Stack, boot_permit};

use crate::failing::expect_nothing_of;
use crate::suite::{Suite, project};

const STATE_DEADLINE: Duration = Duration::from_secs(120);

/// Build steps, literal and secret environment; then a search of everything that was written meanwhile.
pub(crate) async fn secret_is_only_in_the_guest(suite: Suite) -> Result<()> {
    let stack = suite.stack().await?;
    let fuse = stack.fuse("secrets").await?;
    let dir = project(stack, "secrets", FUSEFILE)?;
    let secret = format!("e2e-{:032x}", rand::random::<u128>());
    let needle = Needle::fresh(&secret);
    let file = SecretFile::write(&secret)?;

    let turn = boot_permit(1).await?;
    let watch = ProcessWatch::start(needle.clone());
    let up = fuse
        .run_in(&dir, &["up", "--secrets-file", file.path()])
        .await;
    let (seen, rounds) = watch.stop()?;
    drop(turn);
    let up = up?.ok()?;
    ensure!(rounds > 100, "the watch made only {rounds} rounds");
    ensure!(seen.is_empty(), "the secret was in the {seen:?}");
    for stream in [&up.stdout, &up.stderr] {
        ensure!(
            !needle.is_in(stream.as_bytes()),
            "fuse up printed the secret"
        );
    }

    // Steps and run ran, in order, in the workspace, with both variables; the secret is compared by digest.
    let guest = stack.guest("fuse-e2e-secrets").await?;
    let digest = guest
        .ok(". /fuse/env; printf %s \"$API_KEY\" | sha256sum")
        .await?;
    ensure!(
        guest.ok("cat /srv/work/key.sha").await? == digest,
        "the run phase saw another secret"
    );
    ensure!(
        guest.ok("cat /srv/work/trail").await? == "one\ntwo in /tmp\nrun hello there in /srv/work",
        "trail"
    );
    let modes = guest
        .ok("stat -c '%a %n' /fuse /fuse/env /fuse/secrets.json /fuse/auth-token")
        .await?;
    ensure!(
        modes == "700 /fuse\n600 /fuse/env\n600 /fuse/secrets.json\n600 /fuse/auth-token",
        "{modes}"
    );
    ensure!(
        guest.ok("stat -f -c %T /fuse").await? == "tmpfs",
        "/fuse is on a disk"
    );
    // In the guest, too, the value is not an argument of anything.
    let arguments = guest.ok("cat /proc/[0-9]*/cmdline | tr '\\0' ' '").await?;
    ensure!(
        !needle.is_in(arguments.as_bytes()),
        "the secret is in an argument inside the guest"
    );

    what_is_shown(&fuse, stack, &guest, &needle).await?;
    what_is_written(stack, &guest, &needle).await?;

    let record = stack.record(&guest.id)?;
    guest.destroy().await?;
    stack.expect_gone(&record)
}

/// Events and the environment object.
async fn what_is_shown(fuse: &Fuse, stack: &Stack, guest: &Guest, needle: &Needle) -> Result<()> {
    let mut events = stack.api()?.events(&guest.id).await?;
    events.until_state(&["running"], STATE_DEADLINE).await?;
    ensure!(!needle.is_in(events.raw()), "the secret is in an event");
    let object = fuse
        .run(&["-o", "json", "environment", "get", &guest.id])
        .await?
        .ok()?;
    ensure!(
        !needle.is_in(object.stdout.as_bytes()),
        "the secret is in the environment object"
    );
    Ok(())
}

/// Logs, databases, disks; first that the search finds what is there.
async fn what_is_written(stack: &Stack, guest: &Guest, needle: &Needle) -> Result<()> {
    guest.ok("sync").await?;
    // The search works: what is no secret is found in the database, the logs and on the guest's disk.
    let found = scan::files(&stack.dir(), &Needle::new("hello there in /srv/work"))?;
    ensure!(
        found.iter().any(|f| f.ends_with("overlay.img")),
        "not on the disk but in {found:?}"
    );
    ensure!(
        database_contains(stack, &Needle::new(&guest.id))?,
        "the id is not in the database"
    );
    expect_nowhere(stack, needle, "the task's secret")?;
    for (token, name) in [
        (stack.token(), "ORCH_AUTH_TOKEN"),
        (stack.agent_token(), "FC_AGENT_TOKEN"),
    ] {
        let found = scan::files(&stack.logs(), &Needle::new(token))?;
        ensure!(found.is_empty(), "{name} is in {found:?}");
        ensure!(
            !database_contains(stack, &Needle::new(token))?,
            "{name} is in the database"
        );
    }

    Ok(())
}

/// A step that prints the secret and fails: phase, status and text come back, without the value.
pub(crate) async fn failing_build_step_redacts(suite: Suite) -> Result<()> {
    let stack = suite.stack().await?;
    let fuse = stack.fuse("failing-build").await?;
    let dir = project(
        stack,
        "failing-build",
        "version: 1\nname: e2e-failing-build\nresources: {cpus: 1, memory: 256MB}\n\
         env:\n  API_KEY: {secret: API_KEY}\n\
         build:\n  - true\n  - \"echo \\\"login with $API_KEY refused\\\" >&2; exit 3\"\n\
         run: touch /ran\n",
    )?;
    let secret = format!("e2e-{:032x}", rand::random::<u128>());
    let needle = Needle::fresh(&secret);
    let file = SecretFile::write(&secret)?;

    let turn = boot_permit(1).await?;
    let up = fuse
        .run_in(&dir, &["up", "--secrets-file", file.path()])
        .await?
        .expect(1)?;
    drop(turn);
    up.says("build")?;
    up.says("login with [REDACTED] refused")?;
    up.says("build[1] ended with exit code 3.")?;
    ensure!(up.stdout.contains("  FAILED [2/2] "), "{}", up.stdout);
    ensure!(
        !needle.is_in(up.stderr.as_bytes()),
        "fuse up printed the secret"
    );
    let task = stack
        .api()?
        .get("/v1/tasks/e2e-failing-build")
        .await?
        .expect(200)?;
    ensure!(
        task.text().contains("login with [REDACTED] refused"),
        "{}",
        task.text()
    );
    expect_nothing_of(stack, "fuse-e2e-failing-build").await?;
    expect_nowhere(stack, &needle, "the secret of a failed task")
}

const FUSEFILE: &str = r#"version: 1
name: e2e-secrets
resources: {cpus: 1, memory: 256MB}
workspace: /srv/work
env:
  GREETING: {value: "hello there"}
  API_KEY: {secret: API_KEY}
build:
  - echo one > trail
  - run: echo "two in $PWD" >> /srv/work/trail
    workdir: /tmp
run: |
  echo "run $GREETING in $PWD" >> trail
  printf %s "$API_KEY" | sha256sum > key.sha
"#;

/// Logs, database, disks and metadata of the stack, and the CLI's files: the secret is in none.
fn expect_nowhere(stack: &Stack, needle: &Needle, what: &str) -> Result<()> {
    let found = scan::files(&stack.dir(), needle).context("search the stack's directory")?;
    ensure!(found.is_empty(), "{what} is in {found:?}");
    Ok(())
}

fn database_contains(stack: &Stack, needle: &Needle) -> Result<bool> {
    // Beside the database itself lie its log and its shared memory.
    let file = stack.database_file();
    let name = file.file_name().context("database file")?.to_string_lossy();
    for entry in std::fs::read_dir(file.parent().context("database directory")?)? {
        let path = entry?.path();
        let part = path
            .file_name()
            .is_some_and(|file| file.to_string_lossy().starts_with(&*name));
        if part && !scan::files(&path, needle)?.is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A secrets file outside every directory that is searched; removed on drop.
struct SecretFile(String);

impl SecretFile {
    fn write(secret: &str) -> Result<Self> {
        let path =
            std::env::temp_dir().join(format!("fuse-e2e-secrets-{:016x}", rand::random::<u64>()));
        std::fs::write(&path, format!("# test\nAPI_KEY={secret}\n"))?;
        Ok(Self(path.to_string_lossy().into_owned()))
    }

    fn path(&self) -> &str {
        &self.0
    }
}

impl Drop for SecretFile {
    fn drop(&mut self) {
        let _gone = std::fs::remove_file(&self.0);
    }
}
