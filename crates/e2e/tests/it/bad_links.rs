//! A host with real guests behind a link that loses every fifth packet, and behind one that is cut for a minute:
//! calls take longer or fail, whatever was answered is true, and everything that was begun ends as documented.

use std::time::Duration;

use anyhow::{Result, ensure};
use fuse_testkit::{Fuse, Guest, Stack, StackOptions, boot_permit, until};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::machine::{Machine, NOTICED};
use crate::suite::{Suite, with_stack};

/// Nothing here takes as long; waiting longer means that it never comes.
const PATIENCE: Duration = Duration::from_secs(150);
/// How long the cable is out.
const CUT: Duration = Duration::from_secs(60);
/// Leaves a process that writes its last words when it is asked to stop.
const WRITER: &str =
    "(trap 'echo flushed > /root/last; exit' TERM; while :; do sleep 0.1; done) >/dev/null 2>&1 &";

/// Every fifth packet, both ways.
pub(crate) async fn loses_every_fifth_packet(_: Suite) -> Result<()> {
    with_machine("loss", async |stack, fuse, far| {
        far.lose(5)?;
        let turn = boot_permit(1).await?;
        let drained = create(stack, far, "loss-drained").await?;
        let destroyed = create(stack, far, "loss-destroyed").await?;
        drop(turn);
        for guest in [&drained, &destroyed] {
            until("a command's answer", PATIENCE, || {
                guest.ok("cat /etc/hostname")
            })
            .await?;
        }
        until("a process in the background", PATIENCE, || {
            drained.ok(WRITER)
        })
        .await?;
        // Answered or not: it was stored before the workload was asked, and it is asked once.
        fuse.run(&["environment", "drain", &drained.id]).await?;
        ensure!(drained.get().await?["state"] == "draining", "not draining");
        end(stack, &destroyed).await?;
        let lost = far.lose_nothing()?;
        ensure!(lost > 0, "no packet was lost");

        // By its agent, because it does not run any more.
        let last = drained.agent_exec(&["cat", "/root/last"], 10_000).await?;
        ensure!(last.out() == "flushed\n", "{} {}", last.out(), last.err());
        at_rest(stack, &["loss-drained"]).await?;
        end(stack, &drained).await?;
        at_rest(stack, &[]).await
    })
    .await
}

/// No packet for a minute. Nothing is destroyed for that, and what was asked for meanwhile happens afterwards.
pub(crate) async fn is_cut_for_a_minute(_: Suite) -> Result<()> {
    with_machine("cut", async |stack, fuse, far| {
        let turn = boot_permit(1).await?;
        let stays = create(stack, far, "cut-stays").await?;
        let goes = create(stack, far, "cut-goes").await?;
        drop(turn);
        let boot = "cat /proc/sys/kernel/random/boot_id";
        let before = stays.ok(boot).await?;
        far.cable("down")?;
        let cut = Instant::now();
        reachable(stack, false).await?;
        // Whoever asks is told that it is the host, and a destroy is accepted although it cannot be carried out.
        let refused = stays.sh("true").await.err();
        ensure!(refused.is_some(), "a command ran on a host that is cut off");
        fuse.fails(&["environment", "destroy", &goes.id, "--yes"])
            .await?;
        ensure!(goes.get().await?["state"] == "destroying", "not destroying");
        let create =
            json!({"task_id": "cut-new", "spec": {"cpus": 1, "ram_mb": 256, "host_id": "far"}});
        let reply = stack.api()?.post("/v1/environments", &create).await?;
        ensure!(reply.status == 503, "{}", reply.text());
        ensure!(
            reply.error()?.1.contains("does not answer"),
            "{}",
            reply.text()
        );
        tokio::time::sleep_until(cut + CUT).await;
        ensure!(stays.get().await?["state"] == "running", "given up");

        far.cable("up")?;
        reachable(stack, true).await?;
        gone(stack, &goes).await?;
        ensure!(stays.ok(boot).await? == before, "it was booted anew");
        at_rest(stack, &["cut-stays"]).await?;
        end(stack, &stays).await?;
        at_rest(stack, &[]).await
    })
    .await
}

/// A stack whose only host in use is `far`, behind a link of its own.
async fn with_machine(
    name: &'static str,
    test: impl AsyncFnOnce(&Stack, &Fuse, &Machine) -> Result<()>,
) -> Result<()> {
    let often = [
        "ORCH_HOST_CHECK_INTERVAL_SECONDS",
        "ORCH_RECONCILE_INTERVAL_SECONDS",
    ];
    let options = StackOptions {
        orchestrator_env: often.map(|name| (name.to_owned(), "2".to_owned())).into(),
        ..StackOptions::default()
    };
    with_stack(name, options, async |stack| {
        let mut far = Machine::start("far", stack)?;
        let outcome = async {
            let fuse = stack.fuse(name).await?;
            far.register(&fuse, "us", "nvme").await?;
            fuse.ok(&["host", "cordon", "h1"]).await?;
            test(stack, &fuse, &far).await
        };
        let outcome = outcome.await;
        far.remove().await?;
        outcome
    })
    .await
}

/// Creates until one comes through. One that does not says why and leaves nothing.
async fn create(stack: &Stack, far: &Machine, task: &str) -> Result<Guest> {
    let body = json!({"task_id": task, "spec": {"cpus": 1, "ram_mb": 256}});
    until("a create that comes through", PATIENCE, || async {
        let reply = stack.api()?.post("/v1/environments", &body).await?;
        if reply.status != 201 {
            ensure!(!reply.error()?.1.is_empty(), "{}", reply.text());
        }
        let object = reply.expect(201)?.json()?;
        ensure!(object["state"] == "running", "{object}");
        Guest::new(object, stack.api()?, far.agent_api()?)
    })
    .await
}

/// Destroys; refused or not, it was accepted and comes to its end.
async fn end(stack: &Stack, guest: &Guest) -> Result<()> {
    let path = format!("/v1/environments/{}", guest.id);
    let reply = stack.api()?.delete(&path).await?;
    ensure!(matches!(reply.status, 204 | 500), "{}", reply.text());
    gone(stack, guest).await
}

async fn gone(stack: &Stack, guest: &Guest) -> Result<()> {
    let path = format!("/v1/environments/{}", guest.id);
    until("its end", PATIENCE, || async {
        stack.api()?.get(&path).await?.expect(404).map(drop)
    })
    .await
}

/// These tasks' environments and no others: in the table, in the accounts, on the host.
async fn at_rest(stack: &Stack, tasks: &[&str]) -> Result<()> {
    until("a fleet at rest", PATIENCE, || async {
        let host = host(stack).await?;
        ensure!(host["allocated"]["vm_count"] == tasks.len(), "{host}");
        ensure!(host["agent"]["guests"] == tasks.len(), "{host}");
        let list = stack
            .api()?
            .get("/v1/environments")
            .await?
            .expect(200)?
            .json()?;
        let listed = list["environments"].as_array().map(Vec::len);
        ensure!(listed == Some(tasks.len()), "{list}");
        Ok(())
    })
    .await
}

async fn reachable(stack: &Stack, wanted: bool) -> Result<()> {
    until("the host is known to be there or not", NOTICED, || async {
        let host = host(stack).await?;
        ensure!(host["agent"]["reachable"] == wanted, "{host}");
        Ok(())
    })
    .await
}

async fn host(stack: &Stack) -> Result<Value> {
    stack.api()?.get("/v1/hosts/far").await?.expect(200)?.json()
}
