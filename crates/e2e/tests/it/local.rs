//! `fuse local`: one command to a running fleet, and environments that survive its restart.

use anyhow::{Result, ensure};
use fuse_testkit::{Bins, Fuse, Image, Slot, boot_permit, leftovers};

use crate::suite::Suite;

/// up, an environment, down, up again (the environment still answers), down and purge (nothing left).
pub(crate) async fn up_status_down_up(_: Suite) -> Result<()> {
    let (bins, slot) = (Bins::find()?, Slot::claim()?);
    let fuse = local_user(&bins, &slot)?;
    let result = scenario(&fuse, &slot).await;
    // Whatever happened: stop what runs before looking at what is left.
    let stopped = fuse.run(&["local", "down", "--purge", "--yes"]).await;
    let left = leftovers::find(&slot);
    leftovers::purge(&slot)?;
    result?;
    stopped?.ok()?;
    ensure!(
        left.is_empty(),
        "`fuse local down --purge` left:\n{}",
        left.join("\n")
    );
    Ok(())
}

async fn scenario(fuse: &Fuse, slot: &Slot) -> Result<()> {
    fuse.run(&["local", "status"]).await?;
    let turn = boot_permit(2).await?;
    let up = fuse.run(&["local", "up"]).await?.ok()?;
    ensure!(
        up.stderr.contains("emulat") || up.stderr.contains("firecracker"),
        "does not say which VMM: {}",
        up.stderr
    );
    let again = fuse.run(&["local", "up"]).await?.ok()?;
    ensure!(
        !again.stderr.to_lowercase().contains("error"),
        "the second up: {}",
        again.stderr
    );
    ensure!(
        count(slot, "/orchestrator") == 1 && count(slot, "/fc-agent") == 1,
        "two instances run"
    );

    fuse.run(&[
        "environment",
        "create",
        "--task-id",
        "kept",
        "--cpus",
        "1",
        "--ram-mb",
        "256",
    ])
    .await?
    .ok()?;
    fuse.run(&[
        "environment",
        "exec",
        "fuse-kept",
        "--",
        "sh",
        "-c",
        "echo precious > /root/data",
    ])
    .await?
    .ok()?;
    drop(turn);
    let hosts = fuse.run(&["-o", "json", "hosts"]).await?.ok()?.json()?;
    ensure!(hosts["hosts"][0]["id"] == "local", "{hosts}");
    let status = fuse.run(&["local", "status"]).await?.ok()?;
    let said = format!("{}{}", status.stdout, status.stderr);
    ensure!(said.contains("healthy"), "{said}");

    fuse.run(&["local", "down"]).await?.ok()?;
    let left = leftovers::find(slot);
    ensure!(
        left.is_empty(),
        "`fuse local down` left:\n{}",
        left.join("\n")
    );
    let status = fuse.run(&["local", "status"]).await?;
    let said = format!("{}{}", status.stdout, status.stderr);
    ensure!(said.contains("not running"), "status after down: {said}");
    let list = fuse.run(&["environment", "list"]).await?.expect(1)?;
    list.says("connection refused")?;

    let turn = boot_permit(2).await?;
    up_twice_at_once(fuse).await?;
    ensure!(
        count(slot, "/orchestrator") == 1 && count(slot, "/fc-agent") == 1,
        "two instances run after two ups at once"
    );
    ensure!(
        exec(fuse, "cat /root/data").await? == "precious\n",
        "the disk of the environment"
    );
    drop(turn);
    port_in_use(fuse, slot).await?;
    fuse.run(&["environment", "destroy", "fuse-kept", "--yes"])
        .await?
        .ok()?;
    Ok(())
}

/// One of the two does it, the other is told to wait or finds it done.
async fn up_twice_at_once(fuse: &Fuse) -> Result<()> {
    let (first, second) = tokio::join!(fuse.run(&["local", "up"]), fuse.run(&["local", "up"]));
    let (first, second) = (first?, second?);
    ensure!(first.code == 0 || second.code == 0, "{first:?} {second:?}");
    for refused in [first, second].iter().filter(|run| run.code != 0) {
        refused.says("another `fuse local` command is at work")?;
    }
    Ok(())
}

/// A second stack of the same user on ports that are taken: named, and nothing is started.
async fn port_in_use(fuse: &Fuse, slot: &Slot) -> Result<()> {
    let other = fuse
        .clone()
        .with_env([("FUSE_LOCAL_DIR", slot.dir().join("other").to_string_lossy())]);
    let up = other.run(&["local", "up"]).await?.expect(1)?;
    up.says(&slot.orchestrator_port().to_string())?;
    ensure!(
        count(slot, "/orchestrator") == 1 && count(slot, "/fc-agent") == 1,
        "the refused stack runs"
    );
    Ok(())
}

async fn exec(fuse: &Fuse, line: &str) -> Result<String> {
    Ok(fuse
        .run(&["environment", "exec", "fuse-kept", "--", "sh", "-c", line])
        .await?
        .ok()?
        .stdout)
}

/// Processes of the slot whose program path ends in `name`.
fn count(slot: &Slot, name: &str) -> usize {
    let about = leftovers::processes_about(&format!("{}/", slot.dir().display()));
    about
        .iter()
        .filter(|p| {
            p.cmdline
                .split(' ')
                .next()
                .is_some_and(|program| program.ends_with(name))
        })
        .count()
}

fn local_user(bins: &Bins, slot: &Slot) -> Result<Fuse> {
    let home = slot.dir().join("home");
    let image = Image::find()?;
    let text = |path: &std::path::Path| path.to_string_lossy().into_owned();
    let mut env = slot.agent_env();
    env.retain(|(name, _)| name != "FC_AGENT_PORT");
    env.extend([
        ("FUSE_LOCAL_DIR".to_owned(), text(&slot.dir().join("local"))),
        ("FUSE_LOCAL_BIN_DIR".to_owned(), text(bins.dir())),
        ("FUSE_IMAGE_DIR".to_owned(), text(image.dir())),
        (
            "FUSE_LOCAL_ORCH_PORT".to_owned(),
            slot.orchestrator_port().to_string(),
        ),
        (
            "FUSE_LOCAL_AGENT_PORT".to_owned(),
            slot.agent_port().to_string(),
        ),
    ]);
    Ok(Fuse::new(bins, &home)?.with_env(env))
}
