//! The shipped examples that need nothing but a guest, run as their READMEs say.

use anyhow::{Context, Result, ensure};
use fuse_testkit::{Fuse, boot_permit};
use serde_json::Value;

use crate::suite::{Suite, repository};

/// Steps are reported while they run, copied files arrive, the next job starts in a fork.
pub(crate) async fn the_ci_runner_and_a_fork_of_it(suite: Suite) -> Result<()> {
    let fuse = suite.stack().await?.fuse("ci-runner").await?;

    let events = up(&fuse, "ci-runner", &[]).await?;
    let steps: Vec<&Value> = events.iter().filter(|e| e["event"] == "step").collect();
    ensure!(steps.len() == 2, "{events:?}");
    ensure!(
        steps[0]["index"] == 1 && steps[0]["total"] == 2 && steps[1]["index"] == 2,
        "{steps:?}"
    );
    ensure!(
        steps.iter().all(|s| s["exit_code"].is_null()),
        "a step failed: {steps:?}"
    );
    let took = steps[1]["duration_ms"].as_u64().unwrap_or_default();
    ensure!(took > 0, "running tests took no time: {steps:?}");
    let report = cat(&fuse, "ci-runner", "/workspace/report.txt").await?;
    ensure!(report.ends_with("\nOK\n"), "{report}");
    fork_of_a_warm_one(&fuse, &report).await?;
    destroy(&fuse, "ci-runner").await
}

/// What the other examples promise is there.
pub(crate) async fn offline_ones_run(suite: Suite) -> Result<()> {
    let stack = suite.stack().await?;
    let fuse = stack.fuse("examples").await?;

    let key = stack.dir().join("examples-key");
    std::fs::write(&key, "the signing key\n")?;
    let key = format!("signing_key={}", key.display());
    let secrets = ["--secret", "api_token=abc123", "--secret-path", &key];
    up(&fuse, "secrets", &secrets).await?;
    let proof = cat(&fuse, "secrets", "/workspace/proof.txt").await?;
    ensure!(
        proof.starts_with("token of 6 characters\nsignature "),
        "{proof}"
    );
    destroy(&fuse, "secrets").await?;

    up(&fuse, "agent-sandbox", &[]).await?;
    let ready = cat(&fuse, "agent-sandbox", "/workspace/ready.json").await?;
    ensure!(
        ready.contains(r#""stdout": "ready\n""#),
        "the tool says {ready}"
    );
    let code = "import os; print(os.getuid() != 0); open('/etc/x', 'w')";
    let answer = fuse
        .run(&[
            "environment",
            "exec",
            "fuse-e2e-agent-sandbox",
            "--",
            "python3",
            "/workspace/sandbox/run.py",
            code,
        ])
        .await?
        .ok()?
        .json()?;
    ensure!(answer["stdout"] == "True\n", "{answer}");
    ensure!(
        answer["status"] == 1,
        "the agent may write to /etc: {answer}"
    );
    destroy(&fuse, "agent-sandbox").await
}

/// The CI runner's second half: a job in a fork of what is prepared, which has the report and runs the tests again.
/// The snapshot stays: a fork is recorded as its child.
async fn fork_of_a_warm_one(fuse: &Fuse, report: &str) -> Result<()> {
    let source = "fuse-e2e-ci-runner";
    let id_of = |value: Value| value["id"].as_str().map(str::to_owned).context("an id");
    let create = [
        "-o",
        "json",
        "snapshot",
        "create",
        source,
        "--comment",
        "warm",
    ];
    let snapshot = id_of(fuse.ok(&create).await?.json()?)?;
    let fork = [
        "-o",
        "json",
        "environment",
        "fork",
        source,
        "--reuse-snapshot",
        &snapshot,
    ];
    let turn = boot_permit(1).await?;
    let fork = id_of(fuse.ok(&fork).await?.json()?)?;
    drop(turn);
    let tests = "cd /workspace/project && cat ../report.txt && CI=true python3 -m unittest discover tests 2>&1";
    let run = ["environment", "exec", &fork, "--shell", tests];
    let said = fuse.ok(&run).await?.stdout;
    ensure!(
        said.starts_with(report) && said.ends_with("\nOK\n"),
        "{said}"
    );
    fuse.ok(&["environment", "destroy", &fork, "--yes"]).await?;
    Ok(())
}

/// Brings an example up and answers with the events that were shown meanwhile.
async fn up(fuse: &Fuse, name: &str, more: &[&str]) -> Result<Vec<Value>> {
    let file = repository(&format!("examples/{name}/Fusefile"));
    let file = file.to_string_lossy();
    let task = format!("e2e-{name}");
    let mut args = vec!["-o", "json", "up", "-f", &*file, "--task-id", &task];
    args.extend(more);
    let turn = boot_permit(1).await?;
    let run = fuse.run(&args).await?.ok()?;
    drop(turn);
    let events = run.stderr.lines().filter(|line| line.starts_with('{'));
    events
        .map(|line| serde_json::from_str(line).context("an event"))
        .collect()
}

async fn cat(fuse: &Fuse, name: &str, path: &str) -> Result<String> {
    let id = format!("fuse-e2e-{name}");
    let run = fuse
        .run(&["environment", "exec", &id, "--", "cat", path])
        .await?
        .ok()?;
    Ok(run.stdout)
}

async fn destroy(fuse: &Fuse, name: &str) -> Result<()> {
    let id = format!("fuse-e2e-{name}");
    fuse.run(&["environment", "destroy", &id, "--yes"])
        .await?
        .ok()?;
    Ok(())
}
