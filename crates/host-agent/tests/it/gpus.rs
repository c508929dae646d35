//! Devices of the host in real guests, on a host of files ([`GpuTree`]).

use std::fs;

use fuse_testkit::gpu_tree::{COUNT, GpuTree, PARTS};
use fuse_wire_host::{CreateVmRequest, HostError, SnapshotRequest, VmView};

use crate::agent::{Agent, GPU};
use crate::machine::{Image, on_a_machine};

/// A host with GPUs, and an agent on it.
async fn on_a_gpu_host(image: &Image) -> (tempfile::TempDir, GpuTree, Agent) {
    let dir = tempfile::tempdir().unwrap();
    let tree = GpuTree::new(dir.path().to_owned()).unwrap();
    let env = tree.env();
    let env: Vec<_> = env
        .iter()
        .map(|(name, value)| (*name, value.as_str()))
        .collect();
    let agent = Agent::start(GPU, image, &env).await;
    (dir, tree, agent)
}

fn request(name: &str, gpu_uuids: &[&str], parts: &[&str]) -> CreateVmRequest {
    let owned = |of: &[&str]| of.iter().map(|uuid| (*uuid).to_owned()).collect::<Vec<_>>();
    CreateVmRequest {
        name: Some(name.into()),
        memory_mb: Some(256),
        storage_gb: Some(1),
        gpus: u32::try_from(gpu_uuids.len() + parts.len()).ok(),
        gpu_profile: (!parts.is_empty()).then(|| "1g.10gb".to_owned()),
        gpu_uuids: owned(gpu_uuids),
        mig_instance_uuids: owned(parts),
        ..CreateVmRequest::default()
    }
}

async fn create(agent: &Agent, request: &CreateVmRequest) -> VmView {
    match agent.client.create(request).await {
        Ok(view) => view,
        Err(error) => panic!("{error}\n{}", agent.log()),
    }
}

async fn refused(agent: &Agent, request: &CreateVmRequest) -> String {
    match agent.client.create(request).await {
        Err(HostError::Conflict { text, .. }) => text,
        other => panic!("{other:?}"),
    }
}

/// How many devices of the host a guest sees on its PCI bus.
async fn seen(agent: &Agent, vm: &str) -> String {
    let counted = agent.exec(vm, &["sh", "-c", COUNT]).await;
    String::from_utf8(counted.stdout).unwrap().trim().to_owned()
}

#[test]
fn devices_are_in_the_guests_that_they_are_bound_to() {
    on_a_machine("gpus", |image, _outside| async move {
        let (_dir, host, mut agent) = on_a_gpu_host(&image).await;
        let capacity = agent.client.capacity().await.unwrap();
        assert_eq!(
            (capacity.gpus, capacity.gpu_kind.as_deref()),
            (2, Some("a100"))
        );
        assert_eq!(capacity.gpu_devices[1].iommu_group, "12");
        assert_eq!(capacity.mig_profiles["1g.10gb"], 2);

        let (one, part) = (
            request("one", &["GPU-2"], &[]),
            request("part", &[], &PARTS[..1]),
        );
        tokio::join!(create(&agent, &one), create(&agent, &part));
        assert_eq!(seen(&agent, "one").await, "2", "the card and its companion");
        assert_eq!(seen(&agent, "part").await, "1");
        for (pid, line) in agent.processes() {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
            for part in [
                "Uid:\t65534\t65534\t65534",
                "CapEff:\t0000000000000000",
                "Seccomp:\t2",
            ] {
                assert!(status.contains(part), "{part}: {line}: {status}");
            }
        }
        let text = refused(&agent, &request("x", &["GPU-2"], &[])).await;
        assert_eq!(text, "GPU GPU-2 is in use by vm one");
        let text = refused(&agent, &request("x", &[], &PARTS[..1])).await;
        assert_eq!(
            text,
            format!("MIG instance {} is in use by vm part", PARTS[0])
        );

        // A restart of the agent keeps both, and what they have.
        agent.kill();
        agent.launch().await;
        refused(&agent, &request("x", &["GPU-2"], &[])).await;
        assert_eq!(seen(&agent, "one").await, "2");

        let error = agent
            .client
            .snapshot("one", &SnapshotRequest::default())
            .await;
        let error = error.unwrap_err().to_string();
        assert!(
            error.contains("qemu-agent has no snapshots, restores or forks"),
            "{error}"
        );

        assert_eq!(host.layouts(), 0);
        agent.client.delete("part").await.unwrap();
        assert_eq!(host.layouts(), 1, "applied before the delete is answered");
        agent.client.delete("one").await.unwrap();
        assert_eq!(host.layouts(), 1, "a whole card has none");
        assert_eq!(agent.leftovers(), Vec::<String>::new());
    });
}

#[test]
fn an_agent_that_is_killed_while_it_attaches_gives_everything_back() {
    on_a_machine("gpus_killed", |image, _outside| async move {
        let (_dir, _host, mut agent) = on_a_gpu_host(&image).await;
        let wanted = request("cut", &["GPU-1"], &[]);
        let meta = agent.dir().join("agent-state/vms/cut/meta.json");
        let cut = async {
            // QEMU is there, and nobody has written down that it is.
            let started = |line: &str| line.contains("cut.sock");
            while !agent.processes().iter().any(|(_, line)| started(line)) {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            done = agent.client.create(&wanted) => panic!("{done:?}"),
            () = cut => {}
        }
        let claimed = fs::read_to_string(&meta).unwrap();
        assert!(
            claimed.contains("0000:65:00.1") && !claimed.contains("pid"),
            "{claimed}"
        );
        agent.kill();
        agent.launch().await;
        assert_eq!(agent.leftovers(), Vec::<String>::new());
        create(&agent, &wanted).await;
        agent.client.delete("cut").await.unwrap();
        assert_eq!(agent.leftovers(), Vec::<String>::new());
    });
}
