//! Devices of the host in real guests. The host's view of them (sysfs, inventories, the vendor's tool)
//! is a tree of the test's; what a guest gets for each is one that QEMU makes itself, put in its
//! place by a program between the agent and QEMU. Everything else is as on a host with GPUs.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use fuse_wire_host::{CreateVmRequest, HostError, SnapshotRequest, VmView};

use crate::agent::{Agent, GPU};
use crate::machine::{Image, on_a_machine};

/// Vendor and device of what stands in for a GPU: the one that QEMU has for teaching.
const STAND_IN: &str = "0x1234:0x11e8";
const PART: &str = "c73b0b02-1e4b-4c5a-9d2e-000000000001";
const OTHER_PART: &str = "c73b0b02-1e4b-4c5a-9d2e-000000000002";

/// A host with two cards that are given out whole, each with a companion, and one in parts.
struct Host {
    dir: tempfile::TempDir,
}

impl Host {
    fn new() -> Self {
        let host = Self {
            dir: tempfile::tempdir().unwrap(),
        };
        let root = host.dir.path();
        for (bus, group) in [("65", "11"), ("66", "12")] {
            for function in 0..2 {
                device(root, &format!("0000:{bus}:00.{function}"), group);
            }
        }
        for uuid in [PART, OTHER_PART] {
            fs::create_dir_all(root.join("bus/mdev/devices").join(uuid)).unwrap();
        }
        let vfio = "1 a100 0000:65:00.0 0000:65:00.1 | uuid=GPU-1;model=NVIDIA A100;memory_mb=40960\n\
                    1 a100 0000:66:00.0 0000:66:00.1 | uuid=GPU-2;model=NVIDIA A100;memory_mb=40960\n";
        fs::write(root.join("vfio"), vfio).unwrap();
        let mig = format!("1g.10gb h100 {PART} GPU-3\n1g.10gb h100 {OTHER_PART} GPU-3\n");
        fs::write(root.join("mig"), mig).unwrap();
        program(
            &root.join("qemu"),
            "n=$#\n\
             for word in \"$@\"; do\n\
             case $word in *'\"vfio-pci\"'*) word=edu ;; esac\n\
             set -- \"$@\" \"$word\"\n\
             done\n\
             shift \"$n\"\n\
             exec qemu-system-x86_64 \"$@\"",
        );
        let ran = root.join("layouts").display().to_string();
        program(&root.join("setup"), &format!("echo layout >>{ran}"));
        host
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    async fn agent(&self, image: &Image) -> Agent {
        let path = |name| self.path(name).display().to_string();
        let paths = [
            path("qemu"),
            path(""),
            path("vfio"),
            path("mig"),
            path("setup"),
        ];
        let [qemu, sysfs, vfio, mig, setup] = &paths;
        let settings = [
            ("QEMU_BIN", qemu.as_str()),
            ("FUSE_SYSFS", sysfs),
            ("VFIO_INVENTORY", vfio),
            ("MIG_INVENTORY", mig),
            ("MIG_LIFECYCLE_MANAGED", "1"),
            ("MIG_SETUP_SCRIPT", setup),
        ];
        Agent::start(GPU, image, &settings).await
    }

    fn layouts(&self) -> usize {
        let text = fs::read_to_string(self.path("layouts"));
        text.map_or(0, |text| text.lines().count())
    }
}

fn program(path: &Path, body: &str) {
    fs::write(path, format!("#!/bin/sh\n{body}\n")).unwrap();
    fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
}

fn device(root: &Path, slot: &str, group: &str) {
    let device = root.join("bus/pci/devices").join(slot);
    let members = root.join("kernel/iommu_groups").join(group).join("devices");
    let driver = root.join("bus/pci/drivers/vfio-pci");
    for dir in [&device, &members, &driver] {
        fs::create_dir_all(dir).unwrap();
    }
    symlink(driver, device.join("driver")).unwrap();
    symlink(members.parent().unwrap(), device.join("iommu_group")).unwrap();
    symlink(&device, members.join(slot)).unwrap();
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

/// How many of the stand-ins a guest sees on its PCI bus.
async fn seen(agent: &Agent, vm: &str) -> usize {
    let list =
        "cd /sys/bus/pci/devices && for d in *; do echo $(cat $d/vendor):$(cat $d/device); done";
    let listed = agent.exec(vm, &["sh", "-c", list]).await;
    let text = String::from_utf8(listed.stdout).unwrap();
    text.lines().filter(|line| *line == STAND_IN).count()
}

#[test]
fn devices_are_in_the_guests_that_they_are_bound_to() {
    on_a_machine("gpus", |image, _outside| async move {
        let host = Host::new();
        let mut agent = host.agent(&image).await;
        let capacity = agent.client.capacity().await.unwrap();
        assert_eq!(
            (capacity.gpus, capacity.gpu_kind.as_deref()),
            (2, Some("a100"))
        );
        assert_eq!(capacity.gpu_devices[1].iommu_group, "12");
        assert_eq!(capacity.mig_profiles["1g.10gb"], 2);

        let (one, part) = (
            request("one", &["GPU-2"], &[]),
            request("part", &[], &[PART]),
        );
        tokio::join!(create(&agent, &one), create(&agent, &part));
        assert_eq!(seen(&agent, "one").await, 2, "the card and its companion");
        assert_eq!(seen(&agent, "part").await, 1);
        let text = refused(&agent, &request("x", &["GPU-2"], &[])).await;
        assert_eq!(text, "GPU GPU-2 is in use by vm one");
        let text = refused(&agent, &request("x", &[], &[PART])).await;
        assert_eq!(text, format!("MIG instance {PART} is in use by vm part"));

        // A restart of the agent keeps both, and what they have.
        agent.kill();
        agent.launch().await;
        refused(&agent, &request("x", &["GPU-2"], &[])).await;
        assert_eq!(seen(&agent, "one").await, 2);

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
        let host = Host::new();
        let mut agent = host.agent(&image).await;
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
