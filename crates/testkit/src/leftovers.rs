//! What a stack may leave on a machine: processes, taps, nftables table, mounts, loop devices, control groups, files.
//!
//! [`find`] lists it for a test to fail on; [`purge`] removes it, for slots whose owner was killed. Both look at the
//! machine itself and ask none of the programs under test.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use sha2::{Digest as _, Sha256};

use crate::slot::Slot;

/// Directory of an agent's state, below its root directory.
const AGENT_STATE: &str = "agent-state";

/// Programs that a stack starts; only these are ever ended by [`purge`].
const PROGRAMS: [&str; 6] = [
    "qemu-system-",
    "fc-emulator",
    "fc-agent",
    "orchestrator",
    "fuse",
    "firecracker",
];

/// A running process, as far as it matters here.
#[derive(Debug, Clone)]
pub struct Process {
    /// Process id.
    pub pid: u32,
    /// Arguments joined by blanks.
    pub cmdline: String,
}

/// Processes whose arguments, environment or working directory contain `needle`, the calling process excepted.
#[must_use]
pub fn processes_about(needle: &str) -> Vec<Process> {
    let own = std::process::id();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|n| n.parse::<u32>().ok())
        else {
            continue;
        };
        if pid == own {
            continue;
        }
        let dir = entry.path();
        let read = |name: &str| std::fs::read(dir.join(name)).unwrap_or_default();
        let cmdline = String::from_utf8_lossy(&read("cmdline"))
            .replace('\0', " ")
            .trim()
            .to_owned();
        let about = cmdline.contains(needle)
            || String::from_utf8_lossy(&read("environ")).contains(needle)
            || std::fs::read_link(dir.join("cwd"))
                .is_ok_and(|cwd| cwd.to_string_lossy().contains(needle));
        if about {
            found.push(Process { pid, cmdline });
        }
    }
    found
}

/// Names of network interfaces that begin with `prefix`.
#[must_use]
pub fn interfaces(prefix: &str) -> Vec<String> {
    let entries = std::fs::read_dir("/sys/class/net")
        .into_iter()
        .flatten()
        .flatten();
    let mut names: Vec<String> = entries
        .filter_map(|e| e.file_name().into_string().ok())
        .filter(|name| name.starts_with(prefix))
        .collect();
    names.sort();
    names
}

/// Text of the nftables table `name` (of any family), or `None` when it does not exist.
#[must_use]
pub fn nft_table(name: &str) -> Option<String> {
    let text: String = nft_families(name)
        .iter()
        .filter_map(|family| {
            Command::new("nft")
                .args(["list", "table", family, name])
                .output()
                .ok()
        })
        .map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
        .collect();
    (!text.is_empty()).then_some(text)
}

/// Families in which a table `name` exists.
fn nft_families(name: &str) -> Vec<String> {
    let Ok(output) = Command::new("nft").args(["list", "tables"]).output() else {
        return Vec::new();
    };
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| line.strip_prefix("table ")?.split_once(' '))
        .filter(|(_, table)| *table == name)
        .map(|(family, _)| family.to_owned())
        .collect()
}

/// Mount points below or of `dir`, innermost first.
#[must_use]
pub fn mounts(dir: &Path) -> Vec<String> {
    let info = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut points: Vec<String> = info
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .filter(|point| Path::new(point).starts_with(dir))
        .map(str::to_owned)
        .collect();
    points.sort_by_key(|p| std::cmp::Reverse(p.len()));
    points
}

/// Loop devices whose backing file is below `dir`.
#[must_use]
pub fn loop_devices(dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/sys/block")
        .into_iter()
        .flatten()
        .flatten()
    {
        let backing =
            std::fs::read_to_string(entry.path().join("loop/backing_file")).unwrap_or_default();
        if Path::new(backing.trim_end()).starts_with(dir) {
            found.push(format!("/dev/{}", entry.file_name().to_string_lossy()));
        }
    }
    found
}

/// Control groups of VMs whose agent keeps its state below `dir`, in every hierarchy.
#[must_use]
pub fn vm_groups(dir: &Path) -> Vec<String> {
    let mut found: Vec<String> = agent_groups(dir)
        .iter()
        .flat_map(|agent| dirs_in(agent))
        .map(|group| group.display().to_string())
        .collect();
    found.sort();
    found
}

/// Control groups of agents whose state is below `dir`: they are named by a digest of its path.
fn agent_groups(dir: &Path) -> Vec<PathBuf> {
    // The usual place counts also when it has been removed.
    let usual = dir.join("fc").join(AGENT_STATE);
    let states = files_about(dir, AGENT_STATE).into_iter().map(PathBuf::from);
    let digests: Vec<String> = states
        .chain([usual])
        .map(|state| digest_of(&state))
        .collect();
    let info = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let trees = info
        .lines()
        .filter(|line| line.contains(" - cgroup"))
        .filter_map(|line| line.split(' ').nth(4));
    let mut open: Vec<PathBuf> = trees.map(PathBuf::from).collect();
    let mut found = Vec::new();
    while let Some(group) = open.pop() {
        let name = group.to_string_lossy();
        if digests.iter().any(|digest| name.ends_with(digest)) {
            found.push(group);
        } else {
            open.extend(dirs_in(&group));
        }
    }
    found.sort();
    found.dedup();
    found
}

/// How the name of an agent's group ends.
fn digest_of(state: &Path) -> String {
    let state = std::fs::canonicalize(state).unwrap_or_else(|_| state.to_owned());
    let digest = hex::encode(Sha256::digest(state.as_os_str().as_encoded_bytes()));
    format!("-{}", &digest[..8])
}

fn dirs_in(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}

/// Files below `dir` whose path contains `needle`.
#[must_use]
pub fn files_about(dir: &Path, needle: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut open = vec![dir.to_owned()];
    while let Some(dir) = open.pop() {
        for entry in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.to_string_lossy().contains(needle) {
                found.push(path.display().to_string());
            } else if entry.file_type().is_ok_and(|t| t.is_dir()) {
                open.push(path);
            }
        }
    }
    found
}

/// Everything of `slot` that is still on the machine, one line each: processes, taps, nftables table, mounts, loops,
/// control groups of VMs.
#[must_use]
pub fn find(slot: &Slot) -> Vec<String> {
    let dir = slot.dir();
    let mut found = Vec::new();
    for process in processes_about(&format!("{}/", dir.display())) {
        found.push(format!("process {} {}", process.pid, process.cmdline));
    }
    found.extend(
        interfaces(&slot.tap_prefix())
            .into_iter()
            .map(|tap| format!("tap {tap}")),
    );
    found.extend(
        interfaces(&slot.outside_link())
            .into_iter()
            .map(|link| format!("link {link}")),
    );
    if let Some(text) = nft_table(&slot.nft_table()) {
        found.push(format!("nftables table {}:\n{text}", slot.nft_table()));
    }
    found.extend(
        mounts(&dir)
            .into_iter()
            .map(|point| format!("mount {point}")),
    );
    found.extend(
        loop_devices(&dir)
            .into_iter()
            .map(|dev| format!("loop device {dev}")),
    );
    found.extend(
        vm_groups(&dir)
            .into_iter()
            .map(|group| format!("control group {group}")),
    );
    found
}

/// Removes everything of `slot`: for a slot whose owner is gone, and as the last step of a teardown.
///
/// # Errors
/// When something is still there afterwards.
pub fn purge(slot: &Slot) -> Result<()> {
    let dir = slot.dir();
    for process in processes_about(&format!("{}/", dir.display())) {
        if PROGRAMS
            .iter()
            .any(|program| executable(process.pid).starts_with(program))
        {
            run("kill", &["-9", &process.pid.to_string()]);
        }
    }
    for tap in interfaces(&slot.tap_prefix()) {
        run("ip", &["link", "delete", &tap]);
    }
    run("ip", &["netns", "delete", &slot.namespace()]);
    run("ip", &["link", "delete", &slot.outside_link()]);
    for family in nft_families(&slot.nft_table()) {
        run("nft", &["delete", "table", &family, &slot.nft_table()]);
    }
    for point in mounts(&dir) {
        run("umount", &["-l", &point]);
    }
    for device in loop_devices(&dir) {
        run("losetup", &["-d", &device]);
    }
    let groups = agent_groups(&dir);
    if dir.exists() {
        std::fs::remove_dir_all(&dir).with_context(|| format!("remove {}", dir.display()))?;
    }
    // A killed process needs a moment to go; the kernel removes it from /proc when it is reaped.
    let look = || {
        let stay = groups.iter().filter(|group| !remove_group(group));
        let stay = stay.map(|group| format!("control group {}", group.display()));
        find(slot).into_iter().chain(stay).collect::<Vec<_>>()
    };
    let mut left = look();
    for _ in 0..100 {
        if left.is_empty() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
        left = look();
    }
    ensure!(left.is_empty(), "could not remove:\n{}", left.join("\n"));
    Ok(())
}

/// Whether an agent's group is gone, with those of its VMs. One that holds a process stays.
fn remove_group(agent: &Path) -> bool {
    for group in dirs_in(agent).iter().map(PathBuf::as_path).chain([agent]) {
        // The caller is told by what is there afterwards.
        let _busy = std::fs::remove_dir(group);
    }
    !agent.exists()
}

fn executable(pid: u32) -> String {
    let exe = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    exe.file_name()
        .map(|n| n.to_string_lossy().into_owned())
        .unwrap_or_default()
}

fn run(program: &str, args: &[&str]) {
    // Best effort: what matters is whether anything is left, which the caller checks.
    drop(
        Command::new(program)
            .args(args)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status(),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_vms_are_found_and_removed() {
        if let Some(reason) = crate::missing_for_guests() {
            crate::skip!("leftovers::groups", "{reason}");
        }
        let slot = Slot::claim().unwrap();
        // Not the usual place, so that it is found by what is below the slot's directory.
        let state = slot.dir().join("small/fc").join(AGENT_STATE);
        std::fs::create_dir_all(&state).unwrap();
        let info = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let tree = info
            .lines()
            .filter(|line| line.contains(" - cgroup"))
            .filter_map(|line| line.split(' ').nth(4))
            .map(|tree| Path::new(tree).join("fuse"))
            .find(|all| std::fs::create_dir_all(all).is_ok());
        let Some(all) = tree else {
            crate::skip!("leftovers::groups", "no control groups can be made here");
        };
        let agent = all.join(format!("fc-agent{}", digest_of(&state)));
        std::fs::create_dir_all(agent.join("vm.a")).unwrap();
        let line = format!("control group {}", agent.join("vm.a").display());
        assert_eq!(find(&slot), [line]);
        purge(&slot).unwrap();
        assert!(!agent.exists());
        assert!(find(&slot).is_empty());
        // Only if nobody else has one.
        let _others = std::fs::remove_dir(all);
    }
}
