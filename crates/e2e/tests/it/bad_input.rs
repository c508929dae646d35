//! Mistakes of a user: each ends with one message that says what is wrong and what to do.

use anyhow::{Context, Result, ensure};
use fuse_testkit::{Fuse, Stack, StackOptions, free_port};
use serde_json::json;

use crate::suite::{Suite, project, with_stack};

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

/// Name of the task of every file below.
const TASK: &str = "e2e-impossible";

/// Files that cannot become an environment here, and all that is said of each: refused before or at placement.
const IMPOSSIBLE: [(&str, &str); 9] = [
    (
        "build: [a]\nsetup: [b]\n",
        "Fusefile:4: build: set one of build/setup; setup is the old name\n",
    ),
    (
        "copy: [{from: ., to: /fuse/x}]\nfiles: [{path: ../x, content: y}]\nworkspace: w\n",
        "Fusefile:5: workspace: must be absolute, got \"w\"\n\
         Fusefile:4: files[0].path: parent segment \"../x\"\n\
         Fusefile:3: copy[0].to: \"/fuse/x\" resolves to /fuse/x, reserved for the guest agent\n",
    ),
    (
        "copy: [{from: ./nowhere, to: x}]\n",
        "Fusefile:3: copy[0].from: cannot read \"./nowhere\": No such file or directory (os error 2)\n",
    ),
    (
        "secrets: [B, A]\n",
        "missing secrets: A, B. give each with --secret NAME=VALUE, --secret-env NAME, \
         --secret-path NAME=FILE or a --secrets-file\n",
    ),
    (
        "placement: {host: no-such-host}\n",
        "not found: spec.host_id: host \"no-such-host\" is not registered\n",
    ),
    (
        "placement: {labels: {disk: nvme}}\n",
        "unavailable: no host matches the requested placement labels: disk=nvme matched none of \
         1 schedulable hosts\n  rejected_labels: 1\n",
    ),
    (
        "resources: {cpus: 10000}\n",
        "unavailable: no host has sufficient capacity: need 10000CPU/0MB/0GB, no eligible host \
         fits\n  rejected_capacity: 1\n",
    ),
    (
        "resources: {memory: 1000GB}\n",
        "unavailable: no host has sufficient capacity: need 0CPU/1024000MB/0GB, no eligible host \
         fits\n  rejected_capacity: 1\n",
    ),
    (
        "resources: {gpu: 1}\n",
        "unavailable: no host has sufficient capacity: need 1 gpu, and none of 1 schedulable hosts \
         serves gpus\n  rejected_backend: 1\n",
    ),
];

/// Each with its message, and nothing stays: no VM, reservation, snapshot or file.
pub(crate) async fn impossible_fusefiles(_: Suite) -> Result<()> {
    with_stack("impossible", StackOptions::default(), async |stack| {
        let fuse = stack.fuse("impossible").await?;
        for (number, (text, said)) in IMPOSSIBLE.into_iter().enumerate() {
            let file = format!("version: 1\nname: {TASK}\n{text}run: \"true\"\n");
            let dir = project(stack, &format!("impossible-{number}"), &file)?;
            let up = fuse.run_in(&dir, &["up"]).await?.expect(1)?;
            ensure!(
                (up.stdout.as_str(), up.stderr.as_str()) == ("", said),
                "{text}: {up:?}"
            );
        }
        nothing_is_left(stack).await
    })
    .await
}

/// Of anything: the stack has been asked for nothing else.
async fn nothing_is_left(stack: &Stack) -> Result<()> {
    let api = stack.api()?;
    for (path, list) in [
        ("/v1/environments", "environments"),
        ("/v1/snapshots", "snapshots"),
    ] {
        let found = api.get(path).await?.expect(200)?.json()?;
        ensure!(found[list] == json!([]), "{found}");
    }
    let hosts = api.get("/v1/hosts").await?.expect(200)?.json()?;
    let allocated = hosts["hosts"][0]["allocated"].as_object();
    let allocated = allocated.context("what is allocated")?;
    ensure!(
        allocated.values().all(|amount| *amount == json!(0)),
        "{allocated:?}"
    );
    // A task that could not be placed keeps why, for a day, and nothing else.
    let task = api.get(&format!("/v1/tasks/{TASK}")).await?.expect(200)?;
    ensure!(task.json()?["run_status"] == "failed", "{}", task.text());
    ensure!(stack.vm_ids().await?.is_empty());
    let traces = stack.traces(TASK);
    ensure!(traces.is_empty(), "left:\n{}", traces.join("\n"));
    Ok(())
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
