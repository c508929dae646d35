//! Real guests: create against a bare boot, exec round trip, the host's own work.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fuse_testkit::{Guest, Stack, StackOptions, leftovers, missing_for_guests};
use fuse_wire_guest::control;
use http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::bare::Recipe;
use crate::load::{Job, Target};
use crate::report::{Budget, Report};
use crate::stats::Series;

const GROUP: &str = "guest";

/// Boots and drives guests on a stack of their own.
pub(crate) async fn measure(report: &mut Report, quick: bool) -> Result<()> {
    if let Some(reason) = missing_for_guests() {
        report.skipped(GROUP, "real guests", &reason);
        return Ok(());
    }
    let stack = Stack::start(StackOptions::default()).await?;
    let result = figures(&stack, report, quick).await;
    let clean = stack.teardown().await;
    result.and(clean)
}

async fn figures(stack: &Stack, report: &mut Report, quick: bool) -> Result<()> {
    boots(stack, report, if quick { 1 } else { 5 }).await?;
    host_work(stack, report, if quick { 2 } else { 8 }).await?;
    exec(stack, report, if quick { 50 } else { 500 }).await
}

/// Alternates creates and bare boots, so that both see the same machine.
async fn boots(stack: &Stack, report: &mut Report, rounds: usize) -> Result<()> {
    let bare = BareSetup::make(stack).await?;
    let (mut created, mut booted) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        let start = Instant::now();
        let guest = create(stack, &format!("bench-{round}")).await?;
        guest.ok("true").await?;
        created.push(start.elapsed());
        guest.destroy().await?;
        booted.push(bare.boot().await?);
    }
    let (created, booted) = (Series::new(created), Series::new(booted));
    report.add(
        GROUP,
        "bare QEMU: start to first answer",
        booted.p50_ms(),
        "ms p50",
        Budget::None,
    );
    report.add(
        GROUP,
        "create to exec-ready",
        created.p50_ms(),
        "ms p50",
        Budget::None,
    );
    report.add(
        GROUP,
        "create to exec-ready / bare boot",
        created.p50_ms() / booted.p50_ms(),
        "ratio",
        Budget::AtMost(1.15),
    );
    Ok(())
}

async fn create(stack: &Stack, task: &str) -> Result<Guest> {
    stack
        .create(&json!({"task_id": task, "spec": {"cpus": 1, "ram_mb": 256, "storage_gb": 1}}))
        .await
}

/// What a bare boot needs in place of the agent's work, made outside the measured time.
struct BareSetup {
    recipe: Recipe,
    tap: String,
    overlay: PathBuf,
    pristine: PathBuf,
}

impl BareSetup {
    async fn make(stack: &Stack) -> Result<Self> {
        let dir = stack.dir().join("bare");
        std::fs::create_dir_all(&dir)?;
        let guest = create(stack, "bench-model").await?;
        let record = stack.record(&guest.id)?;
        let vm_dir = stack.fc_dir().join("agent-state/vms").join(&guest.id);
        let pid = qemu_of(&guest.id, &record.guest_ip)?;
        let tap = format!("{}b", stack.slot().tap_prefix());
        let (overlay, pristine) = (dir.join("overlay.img"), dir.join("pristine.img"));
        let vm_overlay = vm_dir.join("overlay.img");
        let recipe = Recipe::from_process(pid, &tap, (&vm_overlay, &overlay), &dir)?;
        let size = std::fs::metadata(&vm_overlay)
            .with_context(|| format!("size of {}", vm_overlay.display()))?
            .len();
        guest.destroy().await?;
        std::fs::File::create(&pristine)?.set_len(size)?;
        run("mkfs.ext4", &["-q", "-F", &text(&pristine)])?;
        Ok(Self {
            recipe,
            tap,
            overlay,
            pristine,
        })
    }

    async fn boot(&self) -> Result<Duration> {
        run(
            "cp",
            &[
                "--sparse=always",
                &text(&self.pristine),
                &text(&self.overlay),
            ],
        )?;
        run("ip", &["tuntap", "add", "dev", &self.tap, "mode", "tap"])?;
        let took = self.recipe.boot().await;
        run("ip", &["link", "delete", &self.tap])?;
        took
    }
}

/// The QEMU process whose guest has this name or address on its kernel command line.
fn qemu_of(id: &str, guest_ip: &str) -> Result<u32> {
    leftovers::processes_about(guest_ip)
        .into_iter()
        .find(|p| {
            p.cmdline.contains(id) && p.cmdline.starts_with("qemu-system")
                || p.cmdline.contains("/qemu-system")
        })
        .map(|p| p.pid)
        .with_context(|| format!("no QEMU process for {id}"))
}

/// What the agent itself did before the VMM booted, by its own clock.
async fn host_work(stack: &Stack, report: &mut Report, rounds: usize) -> Result<()> {
    let agent = stack.agent_api()?;
    let mut samples = Vec::new();
    for round in 0..rounds {
        let name = format!("bench-host-{round}");
        let body = json!({"name": name, "cpus": 1, "memory_mb": 256, "storage_gb": 1});
        let answer: Value = agent.post("/v1/vm", &body).await?.expect(200)?.json()?;
        let host = answer["timings_ms"]["host"]
            .as_f64()
            .with_context(|| format!("no timings in {answer}"))?;
        samples.push(Duration::from_secs_f64(host / 1_000.0));
        agent.delete(&format!("/v1/vm/{name}")).await?.expect(204)?;
    }
    report.add(
        GROUP,
        "host's work before the boot",
        Series::new(samples).p50_ms(),
        "ms p50",
        Budget::AtMost(15.0),
    );
    Ok(())
}

/// `true` in the guest: through the orchestrator, through the agent, and straight into the guest channel.
async fn exec(stack: &Stack, report: &mut Report, count: usize) -> Result<()> {
    let guest = create(stack, "bench-exec").await?;
    let tcp = |port: u16| Target::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    let by_environment = format!("/v1/environments/{}?action=exec", guest.id);
    let by_vm = format!("/v1/vm/{}/exec", guest.id);
    let (control_plane, agent) = (
        tcp(stack.slot().orchestrator_port()),
        tcp(stack.slot().agent_port()),
    );
    let orchestrator = post_job(control_plane, stack.token(), &by_environment);
    let agent = post_job(agent, stack.agent_token(), &by_vm);
    let direct = post_job(
        Target::Guest(vsock_socket(stack, &guest.id)?),
        "",
        control::path::EXEC,
    );
    // Warm up: the first commands load the program from the base image.
    orchestrator.run(20, 1).await?;
    let whole = orchestrator.run(count, 1).await?.latency.p50_ms();
    let agent = agent.run(count, 1).await?.latency.p50_ms();
    let direct = direct.run(count, 1).await?.latency.p50_ms();
    let limit = Budget::AtMost(10.0);
    report.add(
        GROUP,
        "exec through the orchestrator",
        whole,
        "ms p50",
        limit,
    );
    report.add(
        GROUP,
        "exec through the agent",
        agent,
        "ms p50",
        Budget::None,
    );
    report.add(
        GROUP,
        "exec straight into the guest channel",
        direct,
        "ms p50",
        Budget::None,
    );
    let share = whole - direct;
    let what = "share of orchestrator and agent in an exec";
    report.add(GROUP, what, share, "ms p50", Budget::AtMost(1.5));
    guest.destroy().await
}

fn post_job(target: Target, token: &str, path: &str) -> Job {
    let path = path.to_owned();
    let body = json!({"cmd": ["true"], "timeout_ms": 30_000}).to_string();
    Job {
        target,
        token: token.to_owned(),
        request: Arc::new(move |_| (Method::POST, path.clone(), body.clone())),
        in_background: false,
        expected: StatusCode::OK,
    }
}

fn vsock_socket(stack: &Stack, id: &str) -> Result<PathBuf> {
    let socket = stack.dir().join("run").join(format!("{id}.v"));
    ensure!(
        socket.exists(),
        "no vsock socket of {id} at {}",
        socket.display()
    );
    Ok(socket)
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

fn run(program: &str, args: &[&str]) -> Result<()> {
    let output = Command::new(program)
        .args(args)
        .output()
        .with_context(|| format!("start {program}"))?;
    ensure!(
        output.status.success(),
        "{program} {}: {}",
        args.join(" "),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}
