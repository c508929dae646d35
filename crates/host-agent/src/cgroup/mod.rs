//! Limits of the host around every VMM: CPU, memory, processes, disk.
//!
//! ```text
//! <the agent's own group>/fuse/<agent>-<digest of its state directory>/vm.<id>
//! ```
//!
//! A group is made before its VMM is started and joined by the child before it becomes the VMM, so
//! that nothing of a VM ever runs outside. It is removed with the VM, with whatever is left in it.
//! The name follows from the state directory, which one agent at a time has, so that the next agent
//! finds its predecessor's groups and no agent touches another's.
//!
//! Both versions of control groups are spoken, also side by side (0009 of the decisions says why not
//! through a library).

mod hierarchy;
mod limits;

#[cfg(test)]
mod tests;

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use sha2::{Digest as _, Sha256};
use thiserror::Error;

use hierarchy::{Hierarchy, Version};

pub use hierarchy::Controller;
pub use limits::{Device, IoLimits, Limits};

/// How long killed processes may take to leave a group.
const EMPTY_LIMIT: Duration = Duration::from_secs(10);
/// Pause between two looks at a group of version 1, which has no event for it.
const EMPTY_PAUSE: Duration = Duration::from_millis(5);
/// Where an agent of version 2 lives in a group that was handed to it.
const LEAF: &str = "agent";
/// What names of VMs' groups begin with, so that none is a file of the kernel's.
const PREFIX: &str = "vm.";

/// Whether VMs are limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// By whatever the host has.
    Auto,
    /// By CPU, memory and processes, or the agent does not start.
    Required,
    /// Not at all.
    Off,
}

/// Groups that cannot be used.
#[derive(Debug, Error)]
#[error("cannot {verb} the control group file {}", .path.display())]
pub struct CgroupError {
    verb: &'static str,
    path: PathBuf,
    #[source]
    source: io::Error,
}

fn failed<'a>(verb: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> CgroupError + 'a {
    move |source| CgroupError {
        verb,
        path: path.to_owned(),
        source,
    }
}

/// The groups of an agent's VMs.
#[derive(Debug, Clone, Default)]
pub struct Cgroups {
    trees: Vec<Tree>,
    disk: Option<Device>,
}

/// This agent's part of a hierarchy.
#[derive(Debug, Clone)]
struct Tree {
    version: Version,
    controllers: Vec<Controller>,
    dir: PathBuf,
}

/// The group of one VM; none of its directories need to exist.
#[derive(Debug, Clone, Default)]
pub struct Group {
    dirs: Vec<PathBuf>,
}

impl Cgroups {
    /// Those of the agent `app` whose state is in `state`. What the host does not have is left out.
    ///
    /// # Errors
    /// `/proc` cannot be read.
    pub fn open(app: &str, state: &Path) -> io::Result<Self> {
        let name = name_of(app, state);
        let trees = hierarchy::detect()?
            .into_iter()
            .filter_map(|found| Tree::prepare(found, &name))
            .collect();
        Ok(Self {
            trees,
            disk: disk_of(state),
        })
    }

    /// Controllers that limit nothing here.
    pub fn missing(&self) -> impl Iterator<Item = Controller> {
        let has = |controller: &Controller| {
            self.trees
                .iter()
                .any(|t| t.controllers.contains(controller))
        };
        Controller::ALL.into_iter().filter(move |c| !has(c))
    }

    /// Whether the disk of VMs can be limited.
    #[must_use]
    pub fn limits_disks(&self) -> bool {
        self.disk.is_some() && self.missing().all(|c| c != Controller::Io)
    }

    /// The group of a VM.
    #[must_use]
    pub fn group(&self, vm_id: &str) -> Group {
        let dirs = self.trees.iter();
        Group {
            dirs: dirs
                .map(|tree| tree.dir.join(format!("{PREFIX}{vm_id}")))
                .collect(),
        }
    }

    /// Makes the group of a VM, or brings its limits up to date.
    ///
    /// # Errors
    /// A group cannot be made or a limit not be set.
    pub fn make(&self, vm_id: &str, limits: &Limits) -> Result<Group, CgroupError> {
        let group = self.group(vm_id);
        for (tree, dir) in self.trees.iter().zip(&group.dirs) {
            // A disk without limits is left alone, unless an agent with other settings has set some.
            let disk = self.disk.filter(|_| limits.io.any() || dir.exists());
            fs::create_dir_all(dir).map_err(failed("make", dir))?;
            for controller in &tree.controllers {
                for (file, value) in limits.settings(tree.version, *controller, disk) {
                    let path = dir.join(file);
                    fs::write(&path, value).map_err(failed("write", &path))?;
                }
            }
        }
        Ok(group)
    }

    /// Ids of the VMs that have a group.
    #[must_use]
    pub fn known(&self) -> Vec<String> {
        let entries = self.trees.iter().flat_map(|tree| fs::read_dir(&tree.dir));
        let names = entries.flatten().flatten().filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            name.strip_prefix(PREFIX).map(str::to_owned)
        });
        let mut ids: Vec<String> = names.collect();
        ids.sort();
        ids.dedup();
        ids
    }

    /// Removes what holds the groups, once no VM has one.
    pub fn leave(&self) {
        for tree in &self.trees {
            // What still holds a group stays.
            if fs::remove_dir(&tree.dir).is_ok()
                && let Some(all) = tree.dir.parent()
            {
                let _others = fs::remove_dir(all);
            }
        }
    }
}

impl Tree {
    /// `None` for one in which this process may make no groups.
    fn prepare(found: Hierarchy, name: &str) -> Option<Self> {
        let mut base = found.base;
        if found.version == Version::Two && is_inner(&base) {
            if is_delegated(&base) {
                retire_to_leaf(&base)?;
            } else {
                // Somebody's session, which is not to be rearranged: beside it.
                base = root_of(&base);
            }
        }
        let dir = base.join("fuse").join(name);
        if let Err(error) = fs::create_dir_all(&dir) {
            tracing::debug!(dir = %dir.display(), %error, "no control groups");
            return None;
        }
        let mut controllers = found.controllers;
        if found.version == Version::Two {
            let chain = [base.clone(), base.join("fuse"), dir.clone()];
            controllers.retain(|controller| chain.iter().all(|group| enable(group, *controller)));
        }
        (!controllers.is_empty()).then_some(Self {
            version: found.version,
            controllers,
            dir,
        })
    }
}

/// Hands a controller of version 2 on to the groups in `group`.
fn enable(group: &Path, controller: Controller) -> bool {
    let file = group.join("cgroup.subtree_control");
    let done = fs::write(&file, format!("+{}", controller.name()));
    if let Err(error) = &done {
        tracing::debug!(file = %file.display(), controller = controller.name(), %error, "not enabled");
    }
    done.is_ok()
}

/// Whether the group is not the root of its tree: only a root may hold processes and groups.
fn is_inner(group: &Path) -> bool {
    group.join("cgroup.type").exists()
}

fn root_of(group: &Path) -> PathBuf {
    let inner = group.ancestors().skip_while(|dir| is_inner(dir));
    inner.map(Path::to_owned).next().unwrap_or_default()
}

/// Whether the service manager has handed the group over (`Delegate=` of a unit).
fn is_delegated(group: &Path) -> bool {
    ["user.delegate", "trusted.delegate"].iter().any(|name| {
        let mut value = [0_u8; 1];
        let read = rustix::fs::getxattr(group, *name, &mut value[..]);
        read.is_ok() && value == *b"1"
    })
}

/// Moves everything in the group into one below it, so that it may hand its controllers on.
fn retire_to_leaf(group: &Path) -> Option<()> {
    let leaf = group.join(LEAF);
    fs::create_dir_all(&leaf).ok()?;
    for pid in processes(group) {
        // One that has ended meanwhile needs no place.
        let _ended = fs::write(leaf.join("cgroup.procs"), pid.to_string());
    }
    Some(())
}

fn processes(group: &Path) -> Vec<i32> {
    let list = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    list.lines().filter_map(|line| line.parse().ok()).collect()
}

fn name_of(app: &str, state: &Path) -> String {
    let state = fs::canonicalize(state).unwrap_or_else(|_| state.to_owned());
    let digest = hex::encode(Sha256::digest(state.as_os_str().as_encoded_bytes()));
    format!("{app}-{}", &digest[..8])
}

/// The disk that a directory is on. Limits are for whole disks; a file system that is on none of one
/// (or on many) has none.
fn disk_of(dir: &Path) -> Option<Device> {
    let device = fs::metadata(dir).ok()?.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let entry = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    if !entry.join("partition").exists() {
        return entry.exists().then_some(Device { major, minor });
    }
    let whole = fs::canonicalize(&entry).ok()?;
    let numbers = fs::read_to_string(whole.parent()?.join("dev")).ok()?;
    let (major, minor) = numbers.trim().split_once(':')?;
    Some(Device {
        major: major.parse().ok()?,
        minor: minor.parse().ok()?,
    })
}

impl Group {
    /// Files to which a child writes `0` in order to join.
    ///
    /// # Errors
    /// The group does not exist.
    pub fn entrances(&self) -> io::Result<Vec<OwnedFd>> {
        let open = |dir: &PathBuf| {
            let file = fs::OpenOptions::new()
                .write(true)
                .open(dir.join("cgroup.procs"))?;
            Ok(file.into())
        };
        self.dirs.iter().map(open).collect()
    }

    /// Whether a process is in the group.
    #[must_use]
    pub fn holds(&self, pid: i32) -> bool {
        self.dirs.iter().all(|dir| processes(dir).contains(&pid))
    }

    /// Moves processes into the group.
    ///
    /// # Errors
    /// The group does not exist, or the process has ended.
    pub fn adopt(&self, pids: &[i32]) -> Result<(), CgroupError> {
        for file in self.dirs.iter().map(|dir| dir.join("cgroup.procs")) {
            for pid in pids {
                fs::write(&file, pid.to_string()).map_err(failed("write", &file))?;
            }
        }
        Ok(())
    }

    /// [`Group::remove`] off the runtime's threads.
    ///
    /// # Errors
    /// As there.
    pub async fn removed(self) -> Result<(), CgroupError> {
        let path = self.dirs.first().cloned().unwrap_or_default();
        let done = tokio::task::spawn_blocking(move || self.remove()).await;
        done.unwrap_or_else(|lost| Err(failed("remove", &path)(io::Error::other(lost))))
    }

    /// Ends whatever is left in the group and removes it. Fine for one that does not exist.
    ///
    /// # Errors
    /// It does not become empty.
    pub fn remove(&self) -> Result<(), CgroupError> {
        let until = Instant::now() + EMPTY_LIMIT;
        for dir in &self.dirs {
            // Opened before the first look, so that no change is missed.
            let events = Events::of(dir);
            while let Err(error) = remove_empty(dir) {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(failed("remove", dir)(error));
                }
                kill(dir);
                match &events {
                    Some(events) if events.is_populated() => events.wait(left),
                    _ => std::thread::sleep(EMPTY_PAUSE.min(left)),
                }
            }
        }
        Ok(())
    }
}

/// What a group of version 2 tells of itself.
#[derive(Debug)]
struct Events(fs::File);

impl Events {
    /// `None` in version 1.
    fn of(dir: &Path) -> Option<Self> {
        fs::File::open(dir.join("cgroup.events")).ok().map(Self)
    }

    /// Whether processes are in it. A change from here on ends [`Self::wait`].
    fn is_populated(&self) -> bool {
        let mut text = [0; 128];
        let read = rustix::io::pread(&self.0, &mut text, 0);
        let said = &text[..read.unwrap_or(0)];
        said.split(|byte| *byte == b'\n')
            .any(|line| line == b"populated 1")
    }

    /// Returns after the next change, or `limit`.
    fn wait(&self, limit: Duration) {
        let mut change = [PollFd::new(&self.0, PollFlags::PRI)];
        let limit = Timespec::try_from(limit).ok();
        // Interrupted or not, the caller looks again.
        let _changed = poll(&mut change, limit.as_ref());
    }
}

fn remove_empty(dir: &Path) -> io::Result<()> {
    match fs::remove_dir(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Kills everything in a group. Version 2 does it in one, which no fork escapes.
fn kill(dir: &Path) {
    if fs::write(dir.join("cgroup.kill"), "1").is_ok() {
        return;
    }
    for pid in processes(dir).into_iter().filter_map(Pid::from_raw) {
        // One that has ended meanwhile has left by itself.
        let _ended = kill_process(pid, Signal::KILL);
    }
}
