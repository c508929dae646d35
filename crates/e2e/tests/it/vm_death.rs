//! A VM that ends by itself: callers are told, nobody hangs, and the environment can be removed.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use fuse_testkit::{Guest, Stack, VmRecord, until};

use crate::suite::{Suite, say};

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
    ended_with_its_vm(stack, &guest, &record).await
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
        until_its_end(guest.exec(&["sleep", "300"], 300_000)),
        until_its_end(fuse.run(&streamed)),
        async {
            for seconds in [300, 301] {
                let started =
                    format!("until grep -qz '^{seconds}$' /proc/[0-9]*/cmdline; do :; done");
                guest.ok(&started).await?;
            }
            kill_vmm(&record)?;
            anyhow::Ok(Instant::now())
        }
    );
    let killed = killed?;
    let (long, ended) = long.context("the exec hung after its VM had died")?;
    say(&format!(
        "the buffered exec ended {:.1?} after its VM",
        ended - killed
    ));
    let error = match long {
        Ok(answer) => bail!("an exec in a dead guest answered {answer:?}"),
        Err(error) => format!("{error:#}"),
    };
    ensure!(error.contains("vm not running: "), "{error}");
    let (streamed, ended) = streamed.context("the streamed exec hung after its VM had died")?;
    say(&format!(
        "the streamed exec ended {:.1?} after its VM",
        ended - killed
    ));
    streamed?.expect(1)?.says("vm not running: ")?;
    ended_with_its_vm(stack, &guest, &record).await
}

/// What it came to, and when.
async fn until_its_end<T>(call: impl Future<Output = T>) -> Result<(T, Instant)> {
    let came_to = tokio::time::timeout(FAIL_DEADLINE, call).await?;
    Ok((came_to, Instant::now()))
}

fn kill_vmm(record: &VmRecord) -> Result<()> {
    let status = std::process::Command::new("kill")
        .args(["-9", &record.pid.to_string()])
        .status()?;
    ensure!(status.success(), "kill -9 {}", record.pid);
    Ok(())
}

/// The end of the VM shows: calls fail at once, the environment leaves `running`, and destroying leaves nothing.
async fn ended_with_its_vm(stack: &Stack, guest: &Guest, record: &VmRecord) -> Result<()> {
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
