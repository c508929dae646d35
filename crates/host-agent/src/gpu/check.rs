//! Whether what the inventories promise is there, and the layout what was asked for.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::inventory::{Inventory, Part, WholeGroup};
use super::smi;
use super::sysfs::Sysfs;
use crate::check::Finding;
use crate::config::GpuSettings;
use crate::report::chain;

const BIND: &str = "sudo host-agent/qemu/qemu-vfio-bind.sh";
const LAYOUT: &str = "sudo host-agent/qemu/qemu-mig-setup.sh";
const SWITCH_IOMMU_ON: &str = "sudo sed -i 's/^GRUB_CMDLINE_LINUX=\"/&intel_iommu=on iommu=pt /' \
     /etc/default/grub && sudo update-grub && sudo reboot   # amd_iommu=on on AMD's CPUs";

/// Everything about the devices.
pub(crate) async fn check(settings: &GpuSettings) -> Vec<Finding> {
    let sysfs = Sysfs::new(settings.sysfs.clone());
    let mut findings = vec![iommu(&sysfs)];
    let inventory = match Inventory::read(settings).await {
        Ok(inventory) => inventory,
        Err(error) => {
            let fix = match error.path() == settings.mig_inventory {
                true => format!("{LAYOUT} --list"),
                false => BIND.to_owned(),
            };
            findings.push(Finding::failed("gpu inventory", chain(&error), fix));
            return findings;
        }
    };
    let (groups, parts) = (&inventory.groups, &inventory.parts);
    findings.push(if groups.is_empty() && parts.is_empty() {
        Finding::warning(
            "gpu inventory",
            format!(
                "neither {} nor {} lists anything, so guests are given no GPUs",
                settings.vfio_inventory.display(),
                settings.mig_inventory.display()
            ),
            format!("{BIND}   # or, for parts: {LAYOUT} --profile 1g.10gb=4"),
        )
    } else {
        let (whole, parts) = (groups.len(), parts.len());
        Finding::ok("gpu inventory", format!("{whole} whole, {parts} in parts"))
    });
    if !groups.is_empty() {
        findings.push(if sysfs.has_driver() {
            Finding::ok("vfio-pci", "is loaded")
        } else {
            Finding::failed("vfio-pci", "is not loaded", "sudo modprobe vfio-pci")
        });
    }
    let knows_any = inventory
        .devices
        .iter()
        .any(|device| !device.uuid.is_empty());
    findings.extend(groups.iter().map(|group| whole(group, knows_any)));
    let wanted = match layout(&settings.mig_layout) {
        Ok(wanted) => wanted,
        Err(error) => {
            let detail = format!("cannot read {}: {error}", settings.mig_layout.display());
            findings.push(Finding::failed("mig layout", detail, LAYOUT));
            BTreeMap::new()
        }
    };
    if !wanted.is_empty() || !parts.is_empty() {
        findings.push(tool(&settings.nvidia_smi).await);
        findings.push(in_step(&wanted, parts));
    }
    findings
}

fn iommu(sysfs: &Sysfs) -> Finding {
    match sysfs.groups() {
        0 => Finding::failed(
            "iommu",
            "there are no IOMMU groups, so no guest can be given a device: it is off in the firmware or in \
             the kernel's command line",
            SWITCH_IOMMU_ON,
        ),
        groups => Finding::ok("iommu", format!("on: {groups} groups")),
    }
}

fn whole(group: &WholeGroup, knows_any: bool) -> Finding {
    let first = group.listed.slots.first();
    let slot = first.map(ToString::to_string).unwrap_or_default();
    let check = format!("gpu {slot}");
    if let Some(fault) = &group.fault {
        return Finding::failed(check, fault.clone(), BIND);
    }
    // The scheduler gives out what it can name, once it can name any.
    if knows_any && group.uuids.is_empty() {
        let detail = "its identifier is not known, so nothing is placed on it: NVIDIA's driver was not \
                      loaded when it was bound";
        let fix = format!("{BIND} --unbind {slot} && {BIND}");
        return Finding::warning(check, detail, fix);
    }
    Finding::ok(
        check,
        format!("{}, ready to be given away", group.listed.kind),
    )
}

/// The layout that was saved: how many instances of which profile.
fn layout(path: &Path) -> std::io::Result<BTreeMap<String, usize>> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(e) => return Err(e),
    };
    let mut wanted = BTreeMap::new();
    let lines = text.lines().map(str::trim);
    for line in lines.filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let said = line
            .split_once('=')
            .and_then(|(profile, count)| Some((profile, count.trim().parse().ok()?)));
        let (profile, count) = said.ok_or_else(|| {
            std::io::Error::other(format!("{line:?} is not a profile and a count"))
        })?;
        wanted.insert(profile.trim().to_lowercase(), count);
    }
    Ok(wanted)
}

async fn tool(program: &Path) -> Finding {
    match smi::answers(program).await {
        Ok(()) => Finding::ok("nvidia-smi", "answers"),
        Err(error) => Finding::failed(
            "nvidia-smi",
            format!("parts of GPUs are made with it, and it does not work: {error}"),
            "sudo modprobe nvidia && nvidia-smi -L",
        ),
    }
}

/// Whether the instances that are there are those of the layout.
fn in_step(wanted: &BTreeMap<String, usize>, parts: &[Part]) -> Finding {
    let check = "mig layout";
    if let Some(gone) = parts.iter().find(|part| part.fault.is_some()) {
        let detail = format!("the instance {} of the inventory is gone", gone.listed.uuid);
        return Finding::failed(check, detail, LAYOUT);
    }
    let mut there: BTreeMap<&str, usize> = BTreeMap::new();
    for part in parts {
        *there.entry(&part.listed.profile).or_default() += 1;
    }
    for (profile, count) in wanted {
        let found = there.get(profile.as_str()).copied().unwrap_or(0);
        if found < *count {
            let detail = format!("{count} of {profile} are wanted and {found} are there");
            return Finding::failed(check, detail, LAYOUT);
        }
    }
    let said = |counts: Vec<(&str, usize)>| {
        let words = counts.iter().map(|(profile, n)| format!("{profile}={n}"));
        words.collect::<Vec<_>>()
    };
    let unsaved = there.iter().any(|(profile, found)| {
        let count = wanted.get(*profile).copied().unwrap_or(0);
        *found > count
    });
    let all = said(there.into_iter().collect());
    if unsaved {
        let flags = all.iter().map(|one| format!(" --profile {one}"));
        return Finding::warning(
            check,
            "more instances are there than the saved layout has; a reboot takes them",
            format!("{LAYOUT}{}", flags.collect::<String>()),
        );
    }
    Finding::ok(check, format!("in step: {}", all.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::super::sysfs::tests::Tree;
    use super::*;
    use crate::check::Status;
    use std::os::unix::fs::PermissionsExt;

    const ONE: &str = "c73b0b02-1e4b-4c5a-9d2e-000000000001";
    const TWO: &str = "c73b0b02-1e4b-4c5a-9d2e-000000000002";

    /// A host with one whole card and one in two parts, all as it should be.
    struct Host {
        tree: Tree,
        settings: GpuSettings,
    }

    impl Host {
        fn new() -> Self {
            let tree = Tree::new();
            tree.add("0000:65:00.0", "12", "vfio-pci", "0x030200");
            tree.add_mdev(ONE);
            tree.add_mdev(TWO);
            let path = |name: &str| tree.0.path().join(name);
            let settings = GpuSettings {
                vfio_inventory: path("vfio.txt"),
                mig_inventory: path("mig.txt"),
                mig_layout: path("layout.conf"),
                sysfs: tree.0.path().to_owned(),
                nvidia_smi: path("nvidia-smi"),
                mig_setup: None,
            };
            let host = Self { tree, settings };
            host.write("vfio.txt", "1 a100 65:00.0 | uuid=GPU-1;model=A\n");
            host.write(
                "mig.txt",
                &format!("1g.10gb a100 {ONE} GPU-3\n1g.10gb a100 {TWO} GPU-3\n"),
            );
            host.write("layout.conf", "# by hand\n1G.10GB=2\n");
            host.write("nvidia-smi", "#!/bin/sh\n[ $1 = -L ]\n");
            let mode = fs::Permissions::from_mode(0o755);
            fs::set_permissions(&host.settings.nvidia_smi, mode).unwrap();
            host
        }

        fn write(&self, name: &str, text: &str) {
            fs::write(self.tree.0.path().join(name), text).unwrap();
        }

        fn remove(&self, name: &str) {
            let path = self.tree.0.path().join(name);
            if path.is_dir() {
                fs::remove_dir_all(path).unwrap();
            } else {
                fs::remove_file(path).unwrap();
            }
        }

        /// The findings that are not as they should be.
        async fn wrong(&self) -> Vec<Finding> {
            let found = check(&self.settings).await;
            let wrong = found.into_iter().filter(|one| one.status != Status::Ok);
            wrong.collect()
        }

        async fn only(&self) -> (String, Status, String, String) {
            let wrong = self.wrong().await;
            let [one] = &wrong[..] else {
                panic!("{wrong:?}")
            };
            let one = one.clone();
            (one.check, one.status, one.detail, one.fix.unwrap())
        }
    }

    #[tokio::test]
    async fn a_host_as_it_should_be() {
        let host = Host::new();
        let found = check(&host.settings).await;
        let said: Vec<_> = found
            .iter()
            .map(|one| format!("{}: {}", one.check, one.detail))
            .collect();
        assert_eq!(
            said,
            [
                "iommu: on: 1 groups",
                "gpu inventory: 1 whole, 2 in parts",
                "vfio-pci: is loaded",
                "gpu 0000:65:00.0: a100, ready to be given away",
                "nvidia-smi: answers",
                "mig layout: in step: 1g.10gb=2",
            ]
        );
        assert!(host.wrong().await.is_empty());
    }

    #[tokio::test]
    async fn each_thing_that_is_wrong_alone_and_what_mends_it() {
        type Breaks = fn(&Host);
        let cases: [(Breaks, &str, Status, &str, &str); 9] = [
            (
                |host| host.write("vfio.txt", "1 a100\n"),
                "gpu inventory",
                Status::Failed,
                "vfio.txt:1: expected <count>",
                BIND,
            ),
            (
                |host| host.write("mig.txt", "1g.10gb a100 MIG-1\n"),
                "gpu inventory",
                Status::Failed,
                "mig.txt:1: ",
                "qemu-mig-setup.sh --list",
            ),
            (
                |host| host.write("vfio.txt", "1 a100 66:00.0 | uuid=GPU-2\n"),
                "gpu 0000:66:00.0",
                Status::Failed,
                "0000:66:00.0 is not on this host",
                BIND,
            ),
            (
                |host| {
                    host.tree.add("0000:66:00.0", "13", "vfio-pci", "0x030200");
                    host.write("vfio.txt", "1 a100 65:00.0 | uuid=GPU-1\n1 a100 66:00.0\n");
                },
                "gpu 0000:66:00.0",
                Status::Warning,
                "its identifier is not known",
                "--unbind 0000:66:00.0 && sudo host-agent/qemu/qemu-vfio-bind.sh",
            ),
            (
                |host| host.remove(&format!("bus/mdev/devices/{TWO}")),
                "mig layout",
                Status::Failed,
                TWO,
                LAYOUT,
            ),
            (
                |host| host.write("layout.conf", "1g.10gb=2\n2g.20gb=1\n"),
                "mig layout",
                Status::Failed,
                "1 of 2g.20gb are wanted and 0 are there",
                LAYOUT,
            ),
            (
                |host| host.write("layout.conf", "1g.10gb=1\n"),
                "mig layout",
                Status::Warning,
                "a reboot takes them",
                "qemu-mig-setup.sh --profile 1g.10gb=2",
            ),
            (
                |host| host.write("nvidia-smi", "#!/bin/sh\necho 'no driver' >&2; exit 9\n"),
                "nvidia-smi",
                Status::Failed,
                "no driver",
                "sudo modprobe nvidia",
            ),
            (
                |host| host.remove("nvidia-smi"),
                "nvidia-smi",
                Status::Failed,
                "does not work",
                "sudo modprobe nvidia",
            ),
        ];
        for (breaks, check, status, detail, fix) in cases {
            let host = Host::new();
            breaks(&host);
            let (found, its_status, said, mends) = host.only().await;
            assert_eq!((found.as_str(), its_status), (check, status), "{said}");
            assert!(said.contains(detail), "{check}: {said}");
            assert!(mends.contains(fix), "{check}: {mends}");
        }
    }

    #[tokio::test]
    async fn a_host_without_anything_and_one_without_an_iommu() {
        let host = Host::new();
        for file in ["vfio.txt", "mig.txt", "layout.conf", "nvidia-smi"] {
            host.remove(file);
        }
        let (check, status, _, fix) = host.only().await;
        assert_eq!((check.as_str(), status), ("gpu inventory", Status::Warning));
        assert!(fix.contains("qemu-mig-setup.sh --profile"), "{fix}");

        let host = Host::new();
        host.write("mig.txt", "");
        host.remove("layout.conf");
        host.remove("kernel/iommu_groups");
        host.remove("bus/pci/drivers");
        let wrong = host.wrong().await;
        let checks: Vec<_> = wrong.iter().map(|one| one.check.as_str()).collect();
        assert_eq!(checks, ["iommu", "vfio-pci"]);
        assert!(wrong[0].fix.as_ref().unwrap().contains("intel_iommu=on"));
        assert_eq!(wrong[1].fix.as_deref(), Some("sudo modprobe vfio-pci"));
    }
}
