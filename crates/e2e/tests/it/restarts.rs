//! The programs are killed and started again while environments run or are being made: nothing is lost, nothing is
//! destroyed, nothing is left half-made.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use fuse_testkit::{Api, Guest, Stack, StackOptions, boot_permit, until};
use serde_json::{Value, json};

use crate::failing::expect_nothing_of;
use crate::suite::{Suite, with_stack};

/// Boots that were cut off are swept or finished within this.
const RECOVERY_DEADLINE: Duration = Duration::from_secs(90);

/// Two environments live through the end of the agent, of the orchestrator, and of both, by signal 9 and in order.
pub(crate) async fn everything_survives_kill_9(_: Suite) -> Result<()> {
    with_stack("restarts", StackOptions::default(), async |stack| {
        let (a, b) = tokio::try_join!(stack.boot("e2e-keep-a"), stack.boot("e2e-keep-b"))?;
        let before = Snapshot::take(stack, [&a, &b]).await?;
        // The public surface keeps answering through everything: it needs neither program.
        let surface = Api::new(
            format!("https://{}", a.object["url"].as_str().context("url")?),
            None,
        )?;

        stack.kill_agent().await?;
        surface.get("/health").await?.expect(200)?;
        // An unreachable host is no reason to give anything up, however often it is looked at.
        reconcile_cycles(stack, 3).await?;
        stack.start_agent().await?;
        before
            .expect_same(stack, [&a, &b])
            .await
            .context("after kill -9 of the agent")?;

        stack.kill_orchestrator().await?;
        surface.get("/health").await?.expect(200)?;
        stack.start_orchestrator().await?;
        before
            .expect_same(stack, [&a, &b])
            .await
            .context("after kill -9 of the orchestrator")?;

        stack.kill_orchestrator().await?;
        stack.kill_agent().await?;
        stack.start_orchestrator().await?;
        reconcile_cycles(stack, 2).await?;
        stack.start_agent().await?;
        reconcile_cycles(stack, 2).await?;
        before
            .expect_same(stack, [&a, &b])
            .await
            .context("after kill -9 of both")?;
        surface.get("/health").await?.expect(200)?;

        let records = [stack.record(&a.id)?, stack.record(&b.id)?];
        for (guest, record) in [&a, &b].into_iter().zip(&records) {
            guest.destroy().await?;
            stack.expect_gone(record)?;
        }
        Ok(())
    })
    .await
}

/// The orchestrator dies while a guest boots: its successor adopts the VM or undoes it, and the books are right.
pub(crate) async fn create_cut_off_by_an_orchestrator_crash(_: Suite) -> Result<()> {
    with_stack(
        "orchestrator-crash",
        StackOptions::default(),
        async |stack| {
            let turn = boot_permit(1).await?;
            let body = small("e2e-cut-off");
            let api = stack.api()?;
            let (create, crashed) = tokio::join!(api.post("/v1/environments", &body), async {
                vm_directory_exists(stack, "fuse-e2e-cut-off").await?;
                stack.kill_orchestrator().await
            });
            crashed?;
            ensure!(create.is_err(), "a dead orchestrator answered {create:?}");
            stack.start_orchestrator().await?;
            let adopted = until("adopted or undone", RECOVERY_DEADLINE, || {
                settled(stack, "fuse-e2e-cut-off")
            })
            .await?;
            drop(turn);
            let host = api.get("/v1/hosts/h1").await?.expect(200)?.json()?;
            let expected = u64::from(adopted.is_some());
            ensure!(
                host["allocated"]["vm_count"] == expected,
                "allocated {} for {expected} VMs",
                host["allocated"]
            );
            if let Some(object) = adopted {
                let guest = Guest::new(object, stack.api()?, stack.agent_api()?)?;
                guest
                    .ok("true")
                    .await
                    .context("the adopted environment does not answer")?;
                let record = stack.record(&guest.id)?;
                guest.destroy().await?;
                stack.expect_gone(&record)?;
            }
            Ok(())
        },
    )
    .await
}

/// The agent dies while a guest boots: the create fails, and the agent's next run sweeps what it had made.
pub(crate) async fn create_cut_off_by_an_agent_crash(_: Suite) -> Result<()> {
    with_stack("agent-crash", StackOptions::default(), async |stack| {
        let turn = boot_permit(1).await?;
        let api = stack.api()?;
        let body = small("e2e-agent-cut");
        let (create, crashed) = tokio::join!(api.post("/v1/environments", &body), async {
            vm_directory_exists(stack, "fuse-e2e-agent-cut").await?;
            stack.kill_agent().await?;
            stack.start_agent().await
        });
        crashed?;
        let create = create?;
        ensure!(
            create.status >= 500,
            "a create without its agent answered {}: {}",
            create.status,
            create.text()
        );
        until("swept", RECOVERY_DEADLINE, || {
            expect_nothing_of(stack, "fuse-e2e-agent-cut")
        })
        .await?;
        drop(turn);
        let host = api.get("/v1/hosts/h1").await?.expect(200)?.json()?;
        ensure!(
            host["allocated"]["vm_count"] == 0,
            "still reserved: {}",
            host["allocated"]
        );
        Ok(())
    })
    .await
}

fn small(task: &str) -> Value {
    json!({"task_id": task, "spec": {"cpus": 1, "ram_mb": 256}})
}

async fn vm_directory_exists(stack: &Stack, id: &str) -> Result<()> {
    let dir = stack.fc_dir().join("agent-state/vms").join(id);
    until("the agent has begun", Duration::from_secs(30), || async {
        if dir.exists() {
            Ok(())
        } else {
            bail!("no {}", dir.display())
        }
    })
    .await
}

/// `Some(environment)` once it runs, `None` once every trace is gone; an error while neither holds.
async fn settled(stack: &Stack, id: &str) -> Result<Option<Value>> {
    let reply = stack.api()?.get(&format!("/v1/environments/{id}")).await?;
    if reply.status == 404 {
        expect_nothing_of(stack, id).await?;
        return Ok(None);
    }
    let object = reply.expect(200)?.json()?;
    ensure!(object["state"] == "running", "{object}");
    Ok(Some(object))
}

/// Waits until the running orchestrator has looked at its host in `count` more reconcile cycles.
async fn reconcile_cycles(stack: &Stack, count: u32) -> Result<()> {
    let api = stack.api()?;
    let checked_at = async || -> Result<String> {
        let host = api.get("/v1/hosts/h1").await?.expect(200)?.json()?;
        let at = host["agent"]["checked_at"].as_str();
        Ok(at
            .with_context(|| format!("never looked at: {host}"))?
            .to_owned())
    };
    for _ in 0..count {
        let before = checked_at().await.unwrap_or_default();
        until("a reconcile cycle", Duration::from_secs(60), || async {
            ensure!(checked_at().await? != before, "not since {before}");
            Ok(())
        })
        .await?;
    }
    Ok(())
}

/// What must not change in a restart.
struct Snapshot {
    objects: Vec<Value>,
    boots: Vec<String>,
}

impl Snapshot {
    async fn take(stack: &Stack, guests: [&Guest; 2]) -> Result<Self> {
        let (mut objects, mut boots) = (Vec::new(), Vec::new());
        for guest in guests {
            objects.push(stack.guest(&guest.id).await?.object);
            boots.push(guest.ok("cat /proc/sys/kernel/random/boot_id").await?);
        }
        Ok(Self { objects, boots })
    }

    /// Same environments (state, host, url, endpoints, creation), same boots of the same guests.
    async fn expect_same(&self, stack: &Stack, guests: [&Guest; 2]) -> Result<()> {
        let now = Self::take(stack, guests).await?;
        for (before, now) in self.objects.iter().zip(&now.objects) {
            for field in [
                "id",
                "state",
                "task_id",
                "host_id",
                "url",
                "spec",
                "endpoints",
                "created_at",
            ] {
                ensure!(
                    before[field] == now[field],
                    "{field} was {} and is {}",
                    before[field],
                    now[field]
                );
            }
        }
        ensure!(self.boots == now.boots, "a guest was booted again");
        let list = stack
            .api()?
            .get("/v1/environments")
            .await?
            .expect(200)?
            .json()?;
        ensure!(
            list["environments"]
                .as_array()
                .is_some_and(|l| l.len() == 2),
            "{list}"
        );
        let vms = stack.vm_ids().await?;
        ensure!(vms.len() == 2, "the agent lists {vms:?}");
        Ok(())
    }
}
