//! Several hosts: each a network namespace with an agent and guests of its own.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fuse_testkit::outside::Outside;
use fuse_testkit::{Daemon, Fuse, Guest, Slot, Stack, StackOptions, boot_permit, leftovers, until};
use serde_json::{Value, json};

use crate::suite::{Suite, with_stack};

/// Longest time until a host is known to be gone or back: a check each second, which may wait 5 s.
const NOTICED: Duration = Duration::from_secs(30);
/// Longest time until a guest is back after its host was.
const BACK: Duration = Duration::from_secs(120);

/// A machine of the fleet: namespace, agent, state directory.
struct Machine {
    name: &'static str,
    slot: Slot,
    network: Outside,
    agent: Option<Daemon>,
}

impl Machine {
    async fn start(name: &'static str, stack: &Stack) -> Result<Self> {
        let slot = Slot::claim()?;
        let network = Outside::create(&slot)?;
        std::fs::create_dir_all(slot.dir().join("fc"))?;
        let kernel = slot.dir().join("fc/vmlinux.bin");
        std::os::unix::fs::symlink(stack.image().kernel(), kernel)?;
        let mut machine = Self {
            name,
            slot,
            network,
            agent: None,
        };
        machine.boot(stack)?;
        Ok(machine)
    }

    /// Starts the agent (again).
    fn boot(&mut self, stack: &Stack) -> Result<()> {
        let (bins, image, dir) = (stack.bins(), stack.image(), self.slot.dir());
        let text = |path: PathBuf| path.to_string_lossy().into_owned();
        let mut env = self.slot.agent_env();
        env.extend([
            ("FC_DIR".to_owned(), text(dir.join("fc"))),
            ("FC_SOCK_DIR".to_owned(), text(dir.join("run"))),
            ("FC_BIN".to_owned(), text(bins.path("fc-emulator")?)),
            ("FC_INITRD".to_owned(), text(image.initramfs())),
            ("BASE_ROOTFS".to_owned(), text(image.base())),
            ("FC_AGENT_TOKEN".to_owned(), stack.agent_token().to_owned()),
        ]);
        let (namespace, agent) = (self.slot.namespace(), text(bins.path("fc-agent")?));
        let args = ["netns", "exec", &namespace, &agent, "serve"];
        let log = stack.logs().join(format!("fc-agent-{}.log", self.name));
        let ip = PathBuf::from("ip");
        self.agent = Some(Daemon::spawn("fc-agent", &ip, &args, &env, &log)?);
        Ok(())
    }

    fn url(&self) -> String {
        format!("http://{}:{}", self.network.ip, self.slot.agent_port())
    }

    async fn register(&self, fuse: &Fuse, stack: &Stack, region: &str, label: &str) -> Result<()> {
        let (url, label) = (self.url(), format!("disk={label}"));
        let token = stack.agent_token();
        let mut args = vec!["host", "register", self.name, "--url", &url];
        args.extend(["--token", token, "--region", region, "--label", &label]);
        args.extend(["--max-vms", "4", "--cpus", "8"]);
        // The agent of the machine may still be starting.
        let register = || async { fuse.ok(&args).await };
        let said = until("the agent answers", NOTICED, register).await?.stderr;
        ensure!(said.starts_with("registered host"), "{said}");
        Ok(())
    }

    /// The network cable.
    fn cable(&self, state: &str) -> Result<()> {
        let link = self.slot.outside_link();
        let done = std::process::Command::new("ip")
            .args(["link", "set", &link, state])
            .status()?;
        ensure!(done.success(), "ip link set {link} {state}");
        Ok(())
    }

    /// Power loss: the agent and all its guests at once.
    async fn lose_power(&mut self) -> Result<()> {
        let agent = self.agent.take();
        agent.context("the agent runs")?.kill().await?;
        let dir = format!("{}/", self.slot.dir().display());
        for process in leftovers::processes_about(&dir) {
            // One that has ended by itself meanwhile is as dead.
            let _gone = std::process::Command::new("kill")
                .args(["-9", &process.pid.to_string()])
                .output();
        }
        Ok(())
    }
}

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
        let mut east = Machine::start("east", stack).await?;
        let mut west = Machine::start("west", stack).await?;
        let outcome = in_a_fleet(stack, &mut east, &mut west).await;
        for machine in [&mut east, &mut west] {
            machine.lose_power().await.ok();
            leftovers::purge(&machine.slot)?;
        }
        outcome
    })
    .await
}

async fn in_a_fleet(stack: &Stack, east: &mut Machine, west: &mut Machine) -> Result<()> {
    let fuse = stack.fuse("fleet").await?;
    east.register(&fuse, stack, "us", "nvme").await?;
    west.register(&fuse, stack, "eu", "hdd").await?;
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
