//! Many VMs on one host: whether a create stays as fast, what the agent weighs, how fast it takes them
//! over after a restart. The VMs have no machine ([`crate::noop`]), everything else of them is real.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fuse_testkit::{Api, Stack, StackOptions, leftovers, missing_for_guests};
use serde_json::{Value, json};

use crate::report::{Budget, Report};
use crate::startup::resident_mib;
use crate::stats::Series;

const GROUP: &str = "many";
/// What a fleet's largest hosts have.
const VMS: usize = 500;
/// Creates that are compared, at the beginning and at the end.
const SAMPLE: usize = 50;

/// Makes them, looks at them, restarts the agent under them.
pub(crate) async fn measure(report: &mut Report, quick: bool) -> Result<()> {
    if let Some(reason) = missing_for_guests() {
        report.skipped(GROUP, "500 VMs on one host", &reason);
        return Ok(());
    }
    let program = std::env::current_exe()?;
    let settings = [
        ("FC_BIN", program.display().to_string()),
        ("FUSE_MAX_VMS", VMS.to_string()),
        // Room for the ports of all of them.
        ("FUSE_HOST_PORT_BASE", "50000".to_owned()),
        ("FUSE_MIN_FREE_MB", "64".to_owned()),
    ];
    let stack = Stack::start(StackOptions {
        agent_env: settings
            .map(|(name, value)| (name.to_owned(), value))
            .to_vec(),
        ..StackOptions::default()
    })
    .await?;
    let count = if quick { VMS / 10 } else { VMS };
    let result = figures(&stack, report, count).await;
    let clean = stack.teardown().await;
    result.and(clean)
}

async fn figures(stack: &Stack, report: &mut Report, count: usize) -> Result<()> {
    let agent = stack.agent_api()?;
    let mut host_work = Vec::with_capacity(count);
    for number in 0..count {
        host_work.push(create(&agent, number).await?);
    }
    let sample = SAMPLE.min(count / 2);
    let (first, last) = (&host_work[..sample], &host_work[count - sample..]);
    let (first, last) = (Series::new(first.to_vec()), Series::new(last.to_vec()));
    let at_most = Budget::AtMost(15.0);
    report.add(
        GROUP,
        format!("host's work of the first {sample} creates"),
        first.p50_ms(),
        "ms p50",
        at_most,
    );
    report.add(
        GROUP,
        format!("the same of the last {sample} of {count}"),
        last.p50_ms(),
        "ms p50",
        at_most,
    );
    listing(report, &agent, count).await?;
    let weight = || resident_mib(agent_pid(stack)?);
    report.add(
        GROUP,
        format!("fc-agent with {count} VMs"),
        weight()?,
        "MiB",
        Budget::AtMost(60.0),
    );
    stack.kill_agent().await?;
    let begun = Instant::now();
    stack.start_agent().await?;
    let took = begun.elapsed().as_secs_f64();
    report.add(
        GROUP,
        format!("fc-agent restarted, {count} VMs adopted"),
        took,
        "s",
        Budget::AtMost(5.0),
    );
    let kept = list(&agent).await?.len();
    ensure!(kept == count, "{kept} of {count} VMs were adopted");
    for number in 0..count {
        agent.delete(&path(number)).await?.expect(204)?;
    }
    Ok(())
}

fn path(number: usize) -> String {
    format!("/v1/vm/many-{number}")
}

/// Makes one; returns what the host did for it before the boot, by the agent's own clock.
async fn create(agent: &Api, number: usize) -> Result<Duration> {
    let body = json!({
        "name": format!("many-{number}"), "cpus": 1, "memory_mb": 128, "storage_gb": 1,
    });
    let answer: Value = agent.post("/v1/vm", &body).await?.expect(200)?.json()?;
    let host = answer["timings_ms"]["host"].as_f64();
    let host = host.with_context(|| format!("no timings in {answer}"))?;
    Ok(Duration::from_secs_f64(host / 1_000.0))
}

async fn list(agent: &Api) -> Result<Vec<Value>> {
    let answer: Value = agent.get("/v1/vm").await?.expect(200)?.json()?;
    let vms = answer["vms"].as_array();
    Ok(vms.with_context(|| format!("no vms in {answer}"))?.clone())
}

async fn listing(report: &mut Report, agent: &Api, count: usize) -> Result<()> {
    let mut samples = Vec::new();
    for _ in 0..50 {
        let begun = Instant::now();
        list(agent).await?;
        samples.push(begun.elapsed());
    }
    let p50 = Series::new(samples).p50_ms();
    report.add(
        GROUP,
        format!("list of {count} VMs"),
        p50,
        "ms p50",
        Budget::AtMost(10.0),
    );
    Ok(())
}

fn agent_pid(stack: &Stack) -> Result<u32> {
    let dir = format!("{}/", stack.dir().display());
    let of_stack = leftovers::processes_about(&dir).into_iter();
    let mut agents = of_stack.filter(|process| {
        let program = process.cmdline.split(' ').next().unwrap_or_default();
        program.ends_with("/fc-agent")
    });
    Ok(agents.next().context("fc-agent is not running")?.pid)
}
