//! A fleet with a GPU host: the host is of files, its guests are real, and so are the devices in them.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use fuse_testkit::gpu_tree::{COUNT, GpuTree};
use fuse_testkit::{Daemon, Fuse, Guest, Slot, Stack, StackOptions, boot_permit, leftovers, until};
use serde_json::{Value, json};

use crate::suite::{Suite, with_stack};

/// Longest time until an agent answers.
const ANSWERS: Duration = Duration::from_secs(30);
const HOST: &str = "gpu1";

/// The GPU host: a slot beside the stack's, and `qemu-agent`.
struct GpuHost {
    slot: Slot,
    tree: GpuTree,
    agent: Option<Daemon>,
}

impl GpuHost {
    fn start(stack: &Stack) -> Result<Self> {
        let slot = Slot::claim()?;
        let dir = slot.dir().join("tree");
        std::fs::create_dir_all(&dir)?;
        let tree = GpuTree::new(dir)?;
        let agent = None;
        let mut host = Self { slot, tree, agent };
        host.boot(stack)?;
        Ok(host)
    }

    /// Starts the agent (again).
    fn boot(&mut self, stack: &Stack) -> Result<()> {
        let (image, dir) = (stack.image(), self.slot.dir());
        let text = |path: PathBuf| path.to_string_lossy().into_owned();
        let mut env = self.slot.agent_env();
        let tree = self.tree.env().into_iter();
        env.extend(tree.map(|(name, value)| (name.to_owned(), value)));
        env.extend([
            (
                "QEMU_AGENT_PORT".to_owned(),
                self.slot.agent_port().to_string(),
            ),
            ("QEMU_DIR".to_owned(), text(dir.join("gpu"))),
            ("QEMU_SOCK_DIR".to_owned(), text(dir.join("run"))),
            ("QEMU_KERNEL".to_owned(), text(image.kernel())),
            ("QEMU_INITRD".to_owned(), text(image.initramfs())),
            ("BASE_ROOTFS".to_owned(), text(image.base())),
            (
                "QEMU_AGENT_TOKEN".to_owned(),
                stack.agent_token().to_owned(),
            ),
        ]);
        let program = stack.bins().path("qemu-agent")?;
        let log = stack.logs().join("qemu-agent.log");
        self.agent = Some(Daemon::spawn(
            "qemu-agent",
            &program,
            &["serve"],
            &env,
            &log,
        )?);
        Ok(())
    }

    async fn kill(&mut self) -> Result<()> {
        self.agent.take().context("the agent runs")?.kill().await
    }

    /// Registers the host with further flags; what was said.
    async fn register(&self, fuse: &Fuse, token: &str, more: &[&str]) -> Result<String> {
        let url = format!("http://127.0.0.1:{}", self.slot.agent_port());
        let mut args = vec!["host", "register", HOST, "--url", &url, "--token", token];
        args.extend(["--backend", "qemu", "--max-vms", "8", "--cpus", "8"]);
        args.extend(more);
        let run = fuse.run(&args).await?;
        Ok(run.stdout + &run.stderr)
    }

    /// What the agent has stored of an environment's devices.
    fn claim(&self, guest: &Guest) -> Result<Value> {
        let vms = self.slot.dir().join("gpu/agent-state/vms");
        let text = std::fs::read(vms.join(&guest.id).join("meta.json"))?;
        let meta: Value = serde_json::from_slice(&text)?;
        Ok(json!([meta["gpu_slots"], meta["gpu_mdevs"]]))
    }
}

/// Devices go where they are bound, to nobody else, and come back; whoever is restarted knows it.
pub(crate) async fn bound_attached_and_given_back(_: Suite) -> Result<()> {
    with_stack("gpus", StackOptions::default(), async |stack| {
        let mut host = GpuHost::start(stack)?;
        let outcome = in_a_fleet_with_gpus(stack, &mut host).await;
        host.kill().await.ok();
        let left = leftovers::find(&host.slot);
        leftovers::purge(&host.slot)?;
        outcome?;
        // The agent was killed, so its table is there; nothing of a VM is.
        let of_vms = |line: &&String| !line.contains("nft") && !line.contains("table");
        let left: Vec<_> = left.iter().filter(of_vms).collect();
        ensure!(left.is_empty(), "left on the GPU host: {left:?}");
        Ok(())
    })
    .await
}

async fn in_a_fleet_with_gpus(stack: &Stack, host: &mut GpuHost) -> Result<()> {
    let fuse = stack.fuse("gpus").await?;
    refused(
        stack,
        json!({"gpus": 1}),
        "none of 1 schedulable hosts serves gpus",
    )
    .await?;
    register(stack, host, &fuse).await?;

    let _turn = boot_permit(1).await?;
    let one = create(stack, "gpu-one", json!({"gpus": 1, "gpu_kind": "A100"})).await?;
    let profile = json!({"gpus": 1, "gpu_profile": "1g.10gb", "gpu_kind": "h100"});
    let part = create(stack, "gpu-part", profile.clone()).await?;
    ensure!(one.object["host_id"] == HOST && part.object["host_id"] == HOST);
    ensure!(
        one.ok(COUNT).await?.trim() == "2",
        "the card and its companion"
    );
    ensure!(part.ok(COUNT).await?.trim() == "1", "the part");
    let slots = json!([["0000:65:00.0", "0000:65:00.1"], null]);
    ensure!(host.claim(&one)? == slots, "{}", host.claim(&one)?);

    exhaustion(stack, &fuse).await?;
    refusals(stack, &one).await?;
    restarts(stack, host, &one, &part).await?;

    // Each gives back what it had, and only that.
    ensure!(host.tree.layouts() == 0);
    part.destroy().await?;
    ensure!(host.tree.layouts() == 1, "the layout was not applied again");
    let two = create(stack, "gpu-two", json!({"gpus": 1})).await?;
    refused(
        stack,
        json!({"gpus": 1}),
        "need 1CPU/256MB/0GB + 1 gpu, no eligible host fits",
    )
    .await?;
    one.destroy().await?;
    let again = create(stack, "gpu-again", json!({"gpus": 1})).await?;
    ensure!(host.claim(&again)? == slots, "not what was given back");
    two.ok("true").await?;
    again.destroy().await?;
    two.destroy().await?;
    let allocated = record(stack).await?["allocated"].clone();
    ensure!(allocated["gpus"].as_i64().unwrap_or(0) == 0, "{allocated}");
    fuse.ok(&["host", "remove", HOST, "--yes"]).await?;
    Ok(())
}

/// The probe, what is declared over it, and the token of the wrong program.
async fn register(stack: &Stack, host: &GpuHost, fuse: &Fuse) -> Result<()> {
    let token = stack.agent_token();
    let wrong = || async {
        let said = host.register(fuse, "wrong", &[]).await?;
        ensure!(said.contains("this must be its QEMU_AGENT_TOKEN"), "{said}");
        Ok(())
    };
    // It may still be starting.
    until("the agent refuses a wrong token", ANSWERS, wrong).await?;
    let more = [
        "--mig-profile",
        "1g.10gb=3",
        "--gpu-kind",
        "h200",
        "--gpus",
        "3",
    ];
    let said = host.register(fuse, token, &more).await?;
    for warning in [
        "declared gpus (3) exceeds probed host capacity (2)",
        "declared gpu_kind (\"h200\") differs from probed host gpu_kind (\"a100\")",
        "declared mig_profiles[1g.10gb] (3) exceeds probed MIG instances (2)",
    ] {
        ensure!(said.contains(warning), "{warning}: {said}");
    }
    let said = host
        .register(fuse, token, &["--mig-profile", "1g.10gb=1"])
        .await?;
    // What is said of the CPUs is all there is to say.
    ensure!(said.matches("warning:").count() == 1, "{said}");
    let capacity = record(stack).await?["capacity"].clone();
    ensure!(
        capacity["gpus"] == 2 && capacity["gpu_kind"] == "a100",
        "{capacity}"
    );
    ensure!(
        capacity["gpu_devices"][1]["iommu_group"] == "12",
        "{capacity}"
    );
    Ok(())
}

/// What there is none of, or none left of, is said; a cordoned host gives nothing.
async fn exhaustion(stack: &Stack, fuse: &Fuse) -> Result<()> {
    let profile = |profile: &str| json!({"gpus": 1, "gpu_profile": profile});
    for (spec, said) in [
        (
            json!({"gpus": 1, "gpu_kind": "t4"}),
            "1 gpu of kind \"t4\", no eligible host fits",
        ),
        (json!({"gpus": 2}), "2 gpus, no eligible host fits"),
        (
            profile("1g.10gb"),
            "1 1g.10gb mig instance, no eligible host fits",
        ),
        (
            profile("2g.20gb"),
            "1 2g.20gb mig instance, no eligible host fits",
        ),
    ] {
        refused(stack, spec, said).await?;
    }
    fuse.ok(&["host", "cordon", HOST]).await?;
    refused(stack, json!({"gpus": 1}), "gpu").await?;
    fuse.ok(&["host", "uncordon", HOST]).await?;
    Ok(())
}

/// Snapshots and forks of an environment with a device, for good.
async fn refusals(stack: &Stack, guest: &Guest) -> Result<()> {
    for (path, body) in [
        (
            format!("/v1/environments/{}/snapshots", guest.id),
            json!({}),
        ),
        (
            format!("/v1/environments/{}?action=fork", guest.id),
            json!({}),
        ),
    ] {
        let (code, message) = stack
            .api()?
            .post(&path, &body)
            .await?
            .expect(409)?
            .error()?;
        let said = "operation not supported for gpu environments";
        ensure!(
            code == "conflict" && message.contains(said),
            "{path}: {code} {message}"
        );
    }
    Ok(())
}

/// Both sides are killed and started again: the guests never notice, and the devices stay theirs.
async fn restarts(stack: &Stack, host: &mut GpuHost, one: &Guest, part: &Guest) -> Result<()> {
    let before = (host.claim(one)?, host.claim(part)?);
    host.kill().await?;
    stack.kill_orchestrator().await?;
    host.boot(stack)?;
    stack.start_orchestrator().await?;
    until("the guest answers again", ANSWERS, || async {
        ensure!(one.ok(COUNT).await?.trim() == "2");
        Ok(())
    })
    .await?;
    ensure!(part.ok(COUNT).await?.trim() == "1");
    ensure!((host.claim(one)?, host.claim(part)?) == before);
    refused(stack, json!({"gpus": 2}), "2 gpus, no eligible host fits").await
}

async fn create(stack: &Stack, task: &str, spec: Value) -> Result<Guest> {
    stack
        .create(&json!({"task_id": task, "spec": sized(spec)}))
        .await
}

async fn refused(stack: &Stack, spec: Value, said: &str) -> Result<()> {
    let body = json!({"task_id": "gpu-refused", "spec": sized(spec)});
    let reply = stack
        .api()?
        .post("/v1/environments", &body)
        .await?
        .expect(503)?;
    let (_, message) = reply.error()?;
    ensure!(message.contains(said), "{said}: {message}");
    Ok(())
}

fn sized(mut spec: Value) -> Value {
    spec["cpus"] = 1.into();
    spec["ram_mb"] = 256.into();
    spec
}

async fn record(stack: &Stack) -> Result<Value> {
    stack
        .api()?
        .get(&format!("/v1/hosts/{HOST}"))
        .await?
        .expect(200)?
        .json()
}
