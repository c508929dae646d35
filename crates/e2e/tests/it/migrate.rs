//! A running environment moves to another host: two machines with real agents and guests.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fuse_testkit::{Stack, StackOptions, boot_permit, until};
use serde_json::{Value, json};

use crate::machine::{self, Machine};
use crate::suite::{Suite, with_stack};

/// Longest time until a host is empty.
const EMPTIED: Duration = Duration::from_secs(300);
/// Writes, flushes when it is told to stop, and ends.
const WORKLOAD: &str = "mkdir -p /data && echo kept >/data/a && \
    (trap 'echo flushed >/data/b; exit 0' TERM; while :; do sleep 1 & wait $!; done) \
    >/dev/null 2>&1 &";

/// One that a host is emptied of has its disk, what its workload wrote as it stopped, its task and
/// its secrets on the other host, and goes back on request.
pub(crate) async fn a_host_is_emptied_and_taken_back(_: Suite) -> Result<()> {
    with_stack("migrate", StackOptions::default(), async |stack| {
        let start =
            |name, token: &str| Machine::with(name, stack, token.to_owned(), stack.image().base());
        let east = start("east", "token-of-east")?;
        let test =
            async |east: &mut Machine, west: &Machine| there_and_back(stack, east, west).await;
        machine::between(east, start("west", "token-of-west"), test).await
    })
    .await
}

async fn there_and_back(stack: &Stack, east: &mut Machine, west: &Machine) -> Result<()> {
    let fuse = stack.fuse("migrate").await?;
    fuse.ok(&["host", "cordon", "h1"]).await?;
    east.register(&fuse, "us", "nvme").await?;
    // For a moment both of them are there.
    let _turn = boot_permit(2).await?;
    let request = json!({"task_id": "mover", "startup_script": WORKLOAD,
        "secrets": {"KEY": "of-the-mover"}, "expose": [{"port": 80, "as": "web"}],
        "spec": {"cpus": 1, "ram_mb": 256}});
    let source = stack.create(&request).await?;
    ensure!(source.object["host_id"] == "east", "{}", source.object);

    // There is nowhere to go, and that is said; it goes on.
    let refused = fuse.run(&["environment", "migrate", &source.id]).await?;
    ensure!(
        refused.code == 1 && refused.stderr.contains("no other host can take"),
        "{refused:?}"
    );
    ensure!(source.ok("cat /data/a").await? == "kept", "it is disturbed");

    west.register(&fuse, "eu", "hdd").await?;
    let drain = ["host", "drain", "east", "--evict", "migrate", "--wait"];
    let drained = fuse.ok(&drain).await?;
    ensure!(
        drained.stderr.contains("host east is empty"),
        "{}",
        drained.stderr
    );
    let moved = of_task(stack, "mover").await?;
    ensure!(moved["host_id"] == "west", "{moved}");
    ensure!(
        moved["created_at"] == source.object["created_at"],
        "it is as old as it was: {moved}"
    );
    let id = moved["id"].as_str().context("an id")?;
    let guest = stack.guest(id).await?;
    ensure!(guest.ok("cat /data/a").await? == "kept", "another disk");
    ensure!(
        guest.ok("cat /data/b").await? == "flushed",
        "it was cut off before it had written"
    );
    ensure!(
        guest
            .ok("cat /fuse/secrets.json")
            .await?
            .contains("of-the-mover"),
        "without its secrets"
    );
    let port = moved["endpoints"][0]["port"].as_u64();
    ensure!(port == Some(80), "{moved}");
    let path = format!("/v1/environments/{}", source.id);
    let old = stack.api()?.get(&path).await?;
    ensure!(old.status == 404, "both are there");

    // The machine is serviced and comes back; so does the environment, by the id that people know.
    east.kill_agent().await?;
    east.boot(stack)?;
    fuse.ok(&["host", "uncordon", "east"]).await?;
    let back = until("the agent is back", EMPTIED, || async {
        fuse.ok(&[
            "environment",
            "migrate",
            &source.id,
            "--to",
            "east",
            "-o",
            "json",
        ])
        .await
    });
    let back: Value = serde_json::from_str(&back.await?.stdout)?;
    ensure!(
        back["host_id"] == "east" && back["task_id"] == "mover",
        "{back}"
    );
    let guest = stack.guest(back["id"].as_str().context("an id")?).await?;
    ensure!(guest.ok("cat /data/b").await? == "flushed", "another disk");
    let list = stack.api()?.get("/v1/environments").await?.json()?;
    let all = list["environments"].as_array().context("a list")?;
    ensure!(all.len() == 1, "more than one is there: {list}");
    guest.destroy().await?;
    Ok(())
}

async fn of_task(stack: &Stack, task: &str) -> Result<Value> {
    let path = format!("/v1/environments?task_id={task}");
    let list = stack.api()?.get(&path).await?.expect(200)?.json()?;
    let found = list["environments"][0].clone();
    ensure!(found.is_object(), "no environment of task {task}");
    Ok(found)
}
