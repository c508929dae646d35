//! A VM that ends by itself: callers are told, nobody hangs, and the environment can be removed.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use fuse_testkit::{Guest, Stack, VmRecord, until};

use crate::suite::Suite;

/// How long a call into a dead guest may take to fail.
const FAIL_DEADLINE: Duration = Duration::from_secs(20);
/// Reconcile runs every second in these stacks.
const RECONCILE_DEADLINE: Duration = Duration::from_secs(60);

/// `poweroff` from inside.
pub(crate) async fn guest_powers_itself_off(suite: Suite) -> Result<()> {
    let stack = suite.stack().await?;
    let guest = stack.boot("e2e-poweroff").await?;
    let record = stack.record(&guest.id)?;
    // The call that does it may see the end of the guest or its answer.
    let _either = guest
        .sh("poweroff -f || reboot -f || echo o > /proc/sysrq-trigger")
        .await;
    ended(stack, &guest, &record).await
}

/// The VMM dies while a command runs: the call fails soon, and does not wait for its own timeout.
pub(crate) async fn vmm_is_killed_during_an_exec(suite: Suite) -> Result<()> {
    let stack = suite.stack().await?;
    let guest = stack.boot("e2e-vmm-killed").await?;
    let record = stack.record(&guest.id)?;
    let fuse = stack.fuse("vm-death").await?;
    let streamed = [
        "env",
        "exec",
        "--timeout",
        "10m",
        &guest.id,
        "--",
        "sleep",
        "301",
    ];
    let (long, streamed, killed) = tokio::join!(
        tokio::time::timeout(FAIL_DEADLINE, guest.exec(&["sleep", "300"], 300_000)),
        tokio::time::timeout(FAIL_DEADLINE, fuse.run(&streamed)),
        async {
            for seconds in [300, 301] {
                let started =
                    format!("until grep -qz '^{seconds}$' /proc/[0-9]*/cmdline; do :; done");
                guest.ok(&started).await?;
            }
            kill_vmm(&record)
        }
    );
    killed?;
    let long = long.context("the exec hung after its VM had died")?;
    ensure!(long.is_err(), "an exec in a dead guest answered {long:?}");
    let streamed = streamed.context("the streamed exec hung after its VM had died")??;
    streamed.expect(1)?.says("vm not running: ")?;
    ended(stack, &guest, &record).await
}

fn kill_vmm(record: &VmRecord) -> Result<()> {
    let status = std::process::Command::new("kill")
        .args(["-9", &record.pid.to_string()])
        .status()?;
    ensure!(status.success(), "kill -9 {}", record.pid);
    Ok(())
}

/// The end of the VM shows: calls fail at once, the environment leaves `running`, and destroying leaves nothing.
async fn ended(stack: &Stack, guest: &Guest, record: &VmRecord) -> Result<()> {
    let path = format!("/v1/environments/{}", guest.id);
    let api = stack.api()?;
    until(
        "the environment is not running any more",
        RECONCILE_DEADLINE,
        || async {
            let reply = api.get(&path).await?;
            if reply.status == 404 || reply.json()?["state"] != "running" {
                Ok(())
            } else {
                bail!("{}", reply.text())
            }
        },
    )
    .await?;
    let call = tokio::time::timeout(FAIL_DEADLINE, guest.sh("true"))
        .await
        .context("exec in a dead guest hung")?;
    ensure!(call.is_err(), "exec in a dead guest answered {call:?}");
    let destroyed = api.delete(&path).await?;
    ensure!(
        [204, 404].contains(&destroyed.status),
        "{} {}",
        destroyed.status,
        destroyed.text()
    );
    until("the agent has removed it", RECONCILE_DEADLINE, || async {
        let vms = stack.vm_ids().await?;
        ensure!(!vms.contains(&guest.id), "still listed: {vms:?}");
        Ok(())
    })
    .await?;
    stack.expect_gone(record)
}
