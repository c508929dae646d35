//! The layer cache on real guests: what was built is not built again, and what changed is.

use anyhow::{Context, Result, ensure};
use fuse_testkit::{Fuse, Stack, boot_permit};

use crate::suite::{Suite, project};

/// Each step leaves something that no second run could leave again.
const FUSEFILE: &str = "\
version: 1
name: e2e-layers
resources: {cpus: 1, memory: 256MB}
cache: {enabled: true}
env: {GREETING: {value: hello}}
files:
  - {path: conf/one.ini, content: \"a = 1\\n\", mode: \"0640\"}
  - {path: /etc/two, source: two.txt}
copy: [{from: src, to: app}]
build:
  - cp /proc/sys/kernel/random/uuid one
  - run: cp /proc/sys/kernel/random/uuid two
    inputs: [deps.txt]
  - run: cp /proc/sys/kernel/random/uuid three
    cache: false
run: echo \"$GREETING\" > greeting
";
/// What each boot brings along, whatever it starts from.
const BROUGHT: &str =
    "cd /workspace && stat -c %a conf/one.ini && cat conf/one.ini /etc/two app/deep/er greeting";

/// Miss, hit, deepest hit after a changed input; the step that opted out runs every time.
pub(crate) async fn built_once_found_again(suite: Suite) -> Result<()> {
    let stack = suite.stack().await?;
    let fuse = stack.fuse("layers").await?;
    let dir = project(stack, "layers", FUSEFILE)?;
    std::fs::write(dir.join("deps.txt"), "a\n")?;
    std::fs::write(dir.join("two.txt"), "two\n")?;
    std::fs::create_dir_all(dir.join("src/deep"))?;
    std::fs::write(dir.join("src/deep/er"), "deeper\n")?;
    std::fs::create_dir_all(dir.join("src/node_modules"))?;
    std::fs::write(dir.join("src/node_modules/x"), "dropped\n")?;

    let turn = boot_permit(1).await?;
    let build = fuse.run_in(&dir, &["build"]).await?.ok()?;
    drop(turn);
    let id = build.stdout.trim();
    ensure!(
        build.stdout == format!("{id}\n") && !id.is_empty(),
        "{}",
        build.stdout
    );
    build.says("miss: no-entry")?;
    build.says("miss: uncacheable")?;
    let artifact = stack.api()?.get(&format!("/v1/snapshots/{id}")).await?;
    let artifact = artifact.expect(200)?.json()?;
    ensure!(artifact["name"] == "e2e-layers", "{artifact}");
    ensure!(artifact["state"] == "ready", "{artifact}");
    let left = fuse.ok(&["environment", "list", "-o", "json"]).await?;
    ensure!(!left.stdout.contains("build-e2e-layers"), "{}", left.stdout);

    let first = boot(&fuse, &dir, "2 of 3 steps from layer", "uncacheable").await?;
    ensure!(
        first[3..] == ["640", "a = 1", "two", "deeper", "hello"],
        "{first:?}"
    );
    // `env` is in no key, and effective all the same.
    std::fs::write(dir.join("Fusefile"), FUSEFILE.replace("hello", "servus"))?;
    std::fs::write(dir.join("deps.txt"), "b\n")?;
    let second = boot(
        &fuse,
        &dir,
        "1 of 3 steps from layer",
        "inputs-changed (deps.txt)",
    )
    .await?;
    ensure!(
        first[0] == second[0],
        "step 1 ran again: {first:?} {second:?}"
    );
    ensure!(first[1] != second[1], "step 2 did not run again: {first:?}");
    ensure!(first[2] != second[2], "step 3 was remembered: {first:?}");
    ensure!(
        second[3..] == ["640", "a = 1", "two", "deeper", "servus"],
        "{second:?}"
    );
    forget(stack, "e2e-layers").await
}

/// A step that fails leaves the layers before it, so the next build starts there; one that is another is named.
pub(crate) async fn a_failed_step_resumes(suite: Suite) -> Result<()> {
    let stack = suite.stack().await?;
    let fuse = stack.fuse("resumes").await?;
    let build = async |second: &str| {
        let text = format!(
            "version: 1\nname: e2e-resumes\nresources: {{cpus: 1, memory: 256MB}}\n\
             cache: {{enabled: true}}\nbuild:\n  - echo first > one\n  - {second}\n"
        );
        let dir = project(stack, "resumes", &text)?;
        let _turn = boot_permit(1).await?;
        fuse.run_in(&dir, &["build"]).await
    };
    let failed = build("cat one no-such-file").await?.expect(1)?;
    // Its output as it came, which step it was, and the command that shows it.
    for text in [
        "first\n",
        "no-such-file: No such file",
        "build[1] ended with exit code 1",
        "fuse environment exec BUILDER --timeout 10m --shell 'cd '\\''/workspace'\\'' && cat one no-such-file'",
    ] {
        failed.says(text)?;
    }
    let resumed = build("cat one").await?.ok()?;
    resumed.says("1 of 2 steps from layer")?;
    resumed.says("first\n")?;
    let changed = build("cat one one").await?.ok()?;
    changed.says("1 of 2 steps from layer")?;
    changed.says("miss: step-changed")?;
    let left = fuse.ok(&["environment", "list", "-o", "json"]).await?;
    ensure!(!left.stdout.contains("e2e-resumes"), "{}", left.stdout);
    forget(stack, "e2e-resumes").await
}

/// Boots the project, which misses for this reason, and answers with what its three steps left.
async fn boot(fuse: &Fuse, dir: &std::path::Path, says: &str, miss: &str) -> Result<Vec<String>> {
    let turn = boot_permit(1).await?;
    let up = fuse.run_in(dir, &["up"]).await?.ok()?;
    drop(turn);
    up.says(says)?;
    ensure!(up.stdout.contains("CACHED [1/3]"), "{}", up.stdout);
    let note = format!("miss: {miss}\n");
    ensure!(up.stdout.contains(&note), "{}", up.stdout);
    let cat =
        format!("cd /workspace && cat one two three && test ! -e app/node_modules && {BROUGHT}");
    let id = "fuse-e2e-layers";
    let read = fuse
        .ok(&["environment", "exec", id, "--shell", &cat])
        .await?;
    fuse.ok(&["environment", "destroy", id, "--yes"]).await?;
    let lines: Vec<String> = read.stdout.lines().map(str::to_owned).collect();
    ensure!(lines.len() == 8, "{}", read.stdout);
    Ok(lines)
}

/// Removes what was kept of a project, newest first: one is the parent of the next.
pub(crate) async fn forget(stack: &Stack, name: &str) -> Result<()> {
    let api = stack.api()?;
    let list = api.get("/v1/snapshots?mode=build").await?.expect(200)?;
    let list = list.json()?;
    for snapshot in list["snapshots"].as_array().context("a list")? {
        let about = &snapshot["metadata"];
        if about["layer_of"] != name && about["name"] != name {
            continue;
        }
        let id = snapshot["id"].as_str().context("an id")?;
        api.delete(&format!("/v1/snapshots/{id}"))
            .await?
            .expect(204)?;
    }
    Ok(())
}
