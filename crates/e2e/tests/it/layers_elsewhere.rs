//! Layers and those who may not have them: another caller, another architecture, another host.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use fuse_testkit::fake_agent::{FakeAgent, TOKEN};
use fuse_testkit::{Fuse, Stack, StackOptions, boot_permit};
use serde_json::{Value, json};

use crate::authority::Authority;
use crate::layers::forget;
use crate::machine::{self, Machine};
use crate::suite::{Suite, project, with_stack};

/// A step that leaves something which no second run could leave again; names are in no key, so it says its own.
fn fusefile(name: &str) -> String {
    format!(
        "version: 1\nname: {name}\nresources: {{cpus: 1, memory: 256MB}}\ncache: {{enabled: true}}\n\
         build:\n  - cp /proc/sys/kernel/random/uuid one && true {name}\nrun: \"true\"\n"
    )
}

async fn build(fuse: &Fuse, dir: &Path) -> Result<()> {
    let turn = boot_permit(1).await?;
    fuse.run_in(dir, &["build"]).await?.ok()?;
    drop(turn);
    Ok(())
}

/// Boots the project and answers with what its step left, and with what was said.
async fn boot(fuse: &Fuse, dir: &Path, name: &str, more: &[&str]) -> Result<(String, String)> {
    let turn = boot_permit(1).await?;
    let up = fuse.run_in(dir, &[&["up"], more].concat()).await?.ok()?;
    drop(turn);
    let id = format!("fuse-{name}");
    let cat = ["environment", "exec", &id, "--", "cat", "/workspace/one"];
    let left = fuse.ok(&cat).await?.stdout;
    fuse.ok(&["environment", "destroy", &id, "--yes"]).await?;
    Ok((left, up.stdout + &up.stderr))
}

/// A caller of its own: a key that may run commands, which a build takes.
async fn with_key(stack: &Stack, name: &str) -> Result<Fuse> {
    let fuse = stack.fuse(name).await?;
    let create = [
        "apikeys", "create", "--label", name, "--scope", "exec", "-o", "json",
    ];
    let made = fuse.ok(&create).await?.json()?;
    let key = made["key"].as_str().context("a key")?;
    let (url, context) = (stack.url(), format!("key-of-{name}"));
    fuse.ok(&["connect", &url, "--token", key, "--name", &context])
        .await?;
    Ok(fuse)
}

/// The same Fusefile, the same keys: what one caller built is not there for another, the master included.
pub(crate) async fn not_for_another_tenant(suite: Suite) -> Result<()> {
    let stack = suite.stack().await?;
    let name = "e2e-tenants";
    let dir = project(stack, name, &fusefile(name))?;
    let (ours, theirs) = (
        with_key(stack, "ours").await?,
        with_key(stack, "theirs").await?,
    );
    build(&ours, &dir).await?;
    let (first, said) = boot(&ours, &dir, name, &[]).await?;
    ensure!(said.contains("1 of 1 steps from layer"), "{said}");
    let (other, said) = boot(&theirs, &dir, name, &[]).await?;
    ensure!(said.contains("miss: no-entry"), "{said}");
    ensure!(!said.contains("from layer"), "{said}");
    ensure!(first != other, "another caller's layer was used");
    let (master, said) = boot(&stack.fuse("master").await?, &dir, name, &[]).await?;
    ensure!(said.contains("miss: no-entry"), "{said}");
    ensure!(first != master, "another caller's layer was used");
    forget(stack, name).await
}

/// A layer of real guests beside a host of another architecture: not used there, and named.
pub(crate) async fn not_on_another_architecture(_: Suite) -> Result<()> {
    with_stack("architectures", StackOptions::default(), async |stack| {
        let fuse = stack.fuse("architectures").await?;
        let name = "e2e-architectures";
        let dir = project(stack, name, &fusefile(name))?;
        build(&fuse, &dir).await?;
        let arm = FakeAgent::start().await?;
        arm.has_arch("arm64");
        let host =
            json!({"id": "arm", "url": arm.url(), "token": TOKEN, "capacity": {"vm_count": 4}});
        stack.api()?.post("/v1/hosts", &host).await?.expect(201)?;

        // Hosts of both kinds: nobody knows where it will run, so nothing is looked up.
        let (_, said) = boot(&fuse, &pinned(stack, name, "h1")?, name, &[]).await?;
        ensure!(said.contains("1 of 1 steps from layer"), "{said}");
        let mixed = fuse.run_in(&dir, &["up", "--no-wait"]).await?.ok()?;
        mixed.says("the layer cache is left out: the hosts differ in architecture")?;
        let id = format!("fuse-{name}");
        fuse.ok(&["environment", "destroy", &id, "--yes"]).await?;
        // On the other one: the same key, and no layer for it.
        let on_arm = pinned(stack, name, "arm")?;
        let up = fuse.run_in(&on_arm, &["up", "-o", "json"]).await?.ok()?;
        ensure!(up.json()?["host_id"] == "arm", "{}", up.stdout);
        let seed = arm.request(&id).context("a VM")?.seed_snapshot;
        ensure!(seed.is_none(), "started from {seed:?}");
        let found = resolve(stack, "arm64").await?;
        ensure!(found["found"] == false, "{found}");
        let detail = found["miss_detail"].to_string();
        ensure!(detail.contains("amd64"), "{found}");
        fuse.ok(&["environment", "destroy", &id, "--yes"]).await?;
        forget(stack, name).await
    })
    .await
}

/// The project, pinned to a host.
fn pinned(stack: &Stack, name: &str, host: &str) -> Result<std::path::PathBuf> {
    let text = format!("{}placement: {{host: {host}}}\n", fusefile(name));
    project(stack, &format!("{name}-{host}"), &text)
}

/// What the only layer is for those of an architecture.
async fn resolve(stack: &Stack, arch: &str) -> Result<Value> {
    let api = stack.api()?;
    let list = api.get("/v1/snapshots?mode=build").await?.expect(200)?;
    let list = list.json()?;
    let layers = list["snapshots"].as_array().context("a list")?;
    let key = layers.iter().find_map(|s| s["layer_key"].as_str());
    let key = key.context("a layer")?;
    let path = format!("/v1/snapshots/resolve?layer_key={key}&arch={arch}");
    api.get(&path).await?.expect(200)?.json()
}

/// Built on one host, started from on another one: `fuse up` does not notice. When the layer's host is gone, it
/// says so and builds. Orchestrator and agents speak TLS with each other.
pub(crate) async fn on_another_host(_: Suite) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let authority = Authority::new(dir.path())?;
    let options = StackOptions {
        orchestrator_env: vec![("ORCH_AGENT_CA".to_owned(), authority.file())],
        ..StackOptions::default()
    };
    with_stack("layers-elsewhere", options, async |stack| {
        let east = Machine::secured("east", stack, &authority)?;
        let west = Machine::secured("west", stack, &authority);
        let test = async |east: &mut Machine, west: &Machine| two_hosts(stack, east, west).await;
        machine::between(east, west, test).await
    })
    .await
}

async fn two_hosts(stack: &Stack, east: &mut Machine, west: &Machine) -> Result<()> {
    let fuse = stack.fuse("elsewhere").await?;
    east.register(&fuse, "us", "nvme").await?;
    west.register(&fuse, "us", "nvme").await?;
    fuse.ok(&["host", "cordon", "h1"]).await?;
    fuse.ok(&["host", "cordon", "west"]).await?;
    let (travels, stays) = ("e2e-travels", "e2e-stays");
    for name in [travels, stays] {
        let dir = project(stack, name, &fusefile(name))?;
        build(&fuse, &dir).await?;
    }
    let dir = |name: &str| stack.dir().join("projects").join(name);
    let (built, said) = boot(&fuse, &dir(travels), travels, &[]).await?;
    ensure!(said.contains("placed on host east"), "{said}");

    fuse.ok(&["host", "cordon", "east"]).await?;
    fuse.ok(&["host", "uncordon", "west"]).await?;
    let (moved, said) = boot(&fuse, &dir(travels), travels, &[]).await?;
    ensure!(said.contains("placed on host west"), "{said}");
    ensure!(said.contains("1 of 1 steps from layer"), "{said}");
    ensure!(moved == built, "the step ran again: {built} {moved}");

    east.kill_agent().await?;
    let (_, said) = boot(&fuse, &dir(stays), stays, &[]).await?;
    ensure!(said.contains("cannot be used: "), "{said}");
    ensure!(said.contains("building from the start"), "{said}");
    ensure!(said.contains("miss: not-on-host"), "{said}");
    Ok(())
}
