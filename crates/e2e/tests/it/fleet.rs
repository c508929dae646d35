//! Several hosts: each a network namespace with an agent and guests of its own.

use std::time::Duration;

use anyhow::{Result, ensure};
use fuse_testkit::{Fuse, Guest, Stack, StackOptions, boot_permit, until};
use serde_json::{Value, json};

use crate::machine::{Machine, NOTICED};
use crate::suite::{Suite, with_stack};

/// Longest time until a guest is back after its host was.
const BACK: Duration = Duration::from_secs(120);

/// Where things go in a fleet, and that losing the sight of a host, or the host, loses nothing else.
pub(crate) async fn placement_and_lost_hosts(_: Suite) -> Result<()> {
    let check_often = (
        "ORCH_HOST_CHECK_INTERVAL_SECONDS".to_owned(),
        "1".to_owned(),
    );
    let options = StackOptions {
        orchestrator_env: vec![check_often],
        ..StackOptions::default()
    };
    with_stack("fleet", options, async |stack| {
        let mut east = Machine::start("east", stack)?;
        let mut west = Machine::start("west", stack)?;
        let outcome = in_a_fleet(stack, &mut east, &mut west).await;
        for machine in [&mut east, &mut west] {
            machine.remove().await?;
        }
        outcome
    })
    .await
}

async fn in_a_fleet(stack: &Stack, east: &mut Machine, west: &mut Machine) -> Result<()> {
    let fuse = stack.fuse("fleet").await?;
    east.register(&fuse, "us", "nvme").await?;
    west.register(&fuse, "eu", "hdd").await?;
    fuse.ok(&["host", "cordon", "h1"]).await?;

    // Spread, then region, label and pin; each host once.
    let _turn = boot_permit(1).await?;
    let first = create(stack, "fleet-a", json!({})).await?;
    let second = create(stack, "fleet-b", json!({})).await?;
    ensure!(
        host_of(&first) == "east" && host_of(&second) == "west",
        "not spread by id"
    );
    for (flag, value, expected) in [
        ("--region", "eu", "host west"),
        ("--label", "disk=nvme", "host east"),
        ("--host", "west", "host west"),
        (
            "--region",
            "asia",
            "would be refused: no host has sufficient capacity",
        ),
        ("--host", "h1", "host \"h1\" is cordoned, not active"),
        (
            "--label",
            "disk=tape",
            "disk=tape matched none of 2 schedulable hosts",
        ),
    ] {
        let said = explain(&fuse, &[flag, value]).await?;
        ensure!(said.contains(expected), "{flag} {value}: {said}");
    }
    fuse.ok(&["host", "cordon", "east"]).await?;
    let said = explain(&fuse, &["--region", "us"]).await?;
    ensure!(said.contains("is cordoned, not active"), "{said}");
    fuse.ok(&["host", "uncordon", "east"]).await?;

    // The cable of one is pulled: nothing goes there, and what runs there stays.
    east.cable("down")?;
    let agent = until_reachable(stack, "east", false).await?;
    ensure!(agent["guests"] == 1, "forgot what it knew: {agent}");
    let listed = fuse.ok(&["hosts"]).await?.stdout;
    ensure!(listed.contains("│ unreachable (just now) │"), "{listed}");
    let said = explain(&fuse, &["--host", "east"]).await?;
    ensure!(said.contains("host \"east\" does not answer"), "{said}");
    ensure!(
        explain(&fuse, &[]).await?.contains("host west"),
        "not the other one"
    );
    ensure!(
        state_of(stack, &first).await? == "running",
        "lost with the cable"
    );
    east.cable("up")?;
    until_reachable(stack, "east", true).await?;
    first.ok("true").await?;

    // One loses power: the same, and its guest is back once it is.
    west.lose_power().await?;
    until_reachable(stack, "west", false).await?;
    ensure!(
        explain(&fuse, &[]).await?.contains("host east"),
        "not the other one"
    );
    ensure!(
        state_of(stack, &second).await? == "running",
        "lost with its host"
    );
    west.boot(stack)?;
    until_reachable(stack, "west", true).await?;
    until("the guest is back", BACK, || async {
        second.ok("true").await
    })
    .await?;
    first.destroy().await?;
    second.destroy().await?;
    for host in ["east", "west"] {
        fuse.ok(&["host", "remove", host, "--yes"]).await?;
    }
    Ok(())
}

async fn create(stack: &Stack, task: &str, mut spec: Value) -> Result<Guest> {
    spec["cpus"] = 1.into();
    spec["ram_mb"] = 256.into();
    stack.create(&json!({"task_id": task, "spec": spec})).await
}

fn host_of(guest: &Guest) -> String {
    guest.object["host_id"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

async fn state_of(stack: &Stack, guest: &Guest) -> Result<String> {
    let path = format!("/v1/environments/{}", guest.id);
    let record = stack.api()?.get(&path).await?.expect(200)?.json()?;
    Ok(record["state"].as_str().unwrap_or_default().to_owned())
}

async fn explain(fuse: &Fuse, flags: &[&str]) -> Result<String> {
    let command = ["environment", "create", "--explain", "--cpus", "1"];
    let run = fuse.ok(&[&command[..], flags].concat()).await?;
    Ok(run.stdout + &run.stderr)
}

async fn until_reachable(stack: &Stack, host: &str, wanted: bool) -> Result<Value> {
    let path = format!("/v1/hosts/{host}");
    let what = format!("{host} is known to be reachable: {wanted}");
    until(&what, NOTICED, || async {
        let host = stack.api()?.get(&path).await?.expect(200)?.json()?;
        ensure!(host["agent"]["reachable"] == wanted, "{}", host["agent"]);
        Ok(host["agent"].clone())
    })
    .await
}
