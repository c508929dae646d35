//! Mistakes of a user: each ends with one message that says what is wrong and what to do.

use anyhow::{Result, ensure};
use fuse_testkit::{Fuse, Stack, free_port};

use crate::suite::{Suite, project};

/// Second line of every rejected token.
const RECONNECT: &str = "  re-run `fuse connect <url> --token <token>` with a valid token";

/// Unknown keys and missing secrets are refused before anything is sent.
pub(crate) async fn fusefile(suite: Suite) -> Result<()> {
    let stack = suite.stack().await?;
    let fuse = stack.fuse("bad-input").await?;
    let dir = project(
        stack,
        "bad-key",
        "version: 1\nname: e2e-bad\nresuorces:\n  cpus: 1\nrun: true\n",
    )?;
    let up = fuse.run_in(&dir, &["up"]).await?.expect(1)?;
    for text in ["Fusefile", "3", "resuorces"] {
        up.says(text)?;
    }
    up.says("resources")?;

    let dir = project(
        stack,
        "no-secret",
        "version: 1\nname: e2e-bad\nsecrets: [DB_PASSWORD, API_KEY]\nrun: true\n",
    )?;
    let up = fuse.run_in(&dir, &["up"]).await?.expect(1)?;
    up.says("API_KEY")?;
    up.says("DB_PASSWORD")?;
    let up = fuse
        .run_in(&dir, &["up", "--secret", "hunter2hunter2"])
        .await?
        .expect(1)?;
    ensure!(
        !up.stderr.contains("hunter2"),
        "repeats what may be a secret: {}",
        up.stderr
    );

    let dir = stack.dir().join("projects/empty");
    std::fs::create_dir_all(&dir)?;
    let up = fuse.run_in(&dir, &["up"]).await?.expect(1)?;
    for name in ["Fusefile", "Fusefile.yaml", "fusefile.yml"] {
        up.says(name)?;
    }
    stack
        .api()?
        .get("/v1/environments/fuse-e2e-bad")
        .await?
        .expect(404)?;
    Ok(())
}

/// Files that cannot become an environment here: refused with the reason, before or at placement, and nothing stays.
pub(crate) async fn impossible_fusefiles(suite: Suite) -> Result<()> {
    let stack = suite.stack().await?;
    let fuse = stack.fuse("impossible").await?;
    let cases: [(&str, &[&str]); 7] = [
        ("build: [a]\nsetup: [b]\n", &["set one of build/setup"]),
        (
            "copy: [{from: ., to: /fuse/x}]\nfiles: [{path: ../x, content: y}]\n",
            &["/fuse/x", "reserved for the guest agent", "parent segment"],
        ),
        (
            "copy: [{from: ./nowhere, to: x}]\n",
            &["copy[0].from", "nowhere"],
        ),
        ("placement: {host: no-such-host}\n", &["no-such-host"]),
        ("placement: {labels: {disk: nvme}}\n", &["no host"]),
        ("resources: {cpus: 10000}\n", &["no host", "10000"]),
        ("resources: {gpu: 1}\n", &["gpu"]),
    ];
    for (number, (text, says)) in cases.into_iter().enumerate() {
        let file = format!("version: 1\nname: e2e-impossible\n{text}run: \"true\"\n");
        let dir = project(stack, &format!("impossible-{number}"), &file)?;
        let up = fuse.run_in(&dir, &["up"]).await?.expect(1)?;
        for text in says {
            up.says(text)?;
        }
    }
    crate::failing::expect_nothing_of(stack, "fuse-e2e-impossible").await
}

/// Three programs can be called with the wrong token or under the wrong address; the message names the one at fault.
pub(crate) async fn wrong_tokens_name_the_layer(suite: Suite) -> Result<()> {
    let stack = suite.stack().await?;
    let fuse = stack.fuse("tokens").await?;
    connecting(stack, &fuse).await?;
    registering(stack, &fuse).await?;
    // Without the CLI: the bare answers of both programs.
    let agent = stack.agent_api()?;
    agent
        .with_token(Some("wrong"))
        .get("/v1/vm")
        .await?
        .expect(401)?;
    agent.with_token(None).get("/healthz").await?.expect(401)?;
    let anonymous = stack.api()?.with_token(None);
    let reply = anonymous.get("/v1/environments").await?.expect(401)?;
    let (_, message) = reply.error()?;
    ensure!(message == "missing or malformed credentials", "{message}");
    Ok(())
}

async fn connecting(stack: &Stack, fuse: &Fuse) -> Result<()> {
    let (url, agent) = (stack.url(), stack.agent_url());
    let wrong = [
        "connect",
        &url,
        "--token",
        stack.agent_token(),
        "--name",
        "wrong",
    ];
    let run = fuse.fails(&wrong).await?;
    for text in [url.as_str(), "rejected the token", "ORCH_AUTH_TOKEN"] {
        run.says(text)?;
    }
    let run = fuse
        .fails(&["connect", &agent, "--token", stack.token()])
        .await?;
    run.says("is not a fuse orchestrator")?;
    run.says("8090")?;
    let nobody = format!("http://127.0.0.1:{}", free_port()?);
    let run = fuse.fails(&["connect", &nobody, "--token", "x"]).await?;
    run.says("connection refused")?;
    run.says(&nobody)?;
    let contexts = fuse.ok(&["context", "list"]).await?.stdout;
    ensure!(
        contexts.contains("stack") && !contexts.contains("wrong"),
        "{contexts}"
    );

    // A context whose token has become stale.
    let stale = [
        "connect",
        &url,
        "--token",
        "stale",
        "--name",
        "stale",
        "--no-verify",
    ];
    fuse.ok(&stale).await?;
    let run = fuse.fails(&["environment", "list"]).await?;
    run.says("unauthorized: invalid token")?;
    run.says(RECONNECT)?;
    fuse.ok(&["context", "use", "stack"]).await?;
    Ok(())
}

async fn registering(stack: &Stack, fuse: &Fuse) -> Result<()> {
    let agent = stack.agent_url();
    let register = async |url: &str, token: &str| {
        let mut args = vec!["host", "register", "h2", "--url", url, "--max-vms", "1"];
        if !token.is_empty() {
            args.extend(["--token", token]);
        }
        fuse.fails(&args).await
    };
    let run = register(&agent, stack.token()).await?;
    run.says(&format!(
        "unauthorized: host agent at {agent} rejected the token. \
         this must be its FC_AGENT_TOKEN, not the orchestrator token\n{RECONNECT}"
    ))?;
    ensure!(!run.stderr.contains(stack.token()), "repeats the token");
    register(&agent, "").await?.says("FC_AGENT_TOKEN")?;
    let nobody = format!("http://127.0.0.1:{}", free_port()?);
    register(&nobody, "x").await?.says(
        "could not probe host capacity and cpus/ram_mb/storage_gb were not all declared explicitly",
    )?;
    stack.api()?.get("/v1/hosts/h2").await?.expect(404)?;
    Ok(())
}
