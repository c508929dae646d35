//! Where the kernel keeps control groups: version 1, version 2, or some controllers in each.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// A kind of limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(
    missing_docs,
    reason = "each variant is the controller it is named after"
)]
pub enum Controller {
    Cpu,
    Memory,
    Pids,
    Io,
}

impl Controller {
    /// All that limits of a VM need.
    pub const ALL: [Self; 4] = [Self::Cpu, Self::Memory, Self::Pids, Self::Io];

    /// Its name in version 2, and in messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Memory => "memory",
            Self::Pids => "pids",
            Self::Io => "io",
        }
    }

    fn name_v1(self) -> &'static str {
        match self {
            Self::Io => "blkio",
            other => other.name(),
        }
    }
}

/// How limits are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Version {
    One,
    Two,
}

/// A tree of groups, and the part of it that is this agent's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hierarchy {
    pub(super) version: Version,
    /// The group under which the agent may make its own.
    pub(super) base: PathBuf,
    pub(super) controllers: Vec<Controller>,
}

/// Finds the trees by this process's own entries in `/proc`.
pub(super) fn detect() -> io::Result<Vec<Hierarchy>> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let own = fs::read_to_string("/proc/self/cgroup")?;
    Ok(find(&mounts, &own, &|root| {
        fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default()
    }))
}

/// `offered` reads which controllers the root of version 2 has to give.
fn find(mounts: &str, own: &str, offered: &dyn Fn(&Path) -> String) -> Vec<Hierarchy> {
    let mut found: Vec<Hierarchy> = Vec::new();
    let mut missing = Controller::ALL.to_vec();
    for mount in mounts.lines().filter_map(Mount::parse) {
        let (version, has): (_, Vec<&str>) = match mount.kind {
            "cgroup" => (Version::One, mount.options.split(',').collect()),
            "cgroup2" => (Version::Two, Vec::new()),
            _ => continue,
        };
        let root = PathBuf::from(mount.at);
        let offers = match version {
            Version::One => String::new(),
            Version::Two => offered(&root),
        };
        let controllers: Vec<Controller> = missing
            .iter()
            .copied()
            .filter(|wanted| match version {
                Version::One => has.contains(&wanted.name_v1()),
                Version::Two => offers.split_whitespace().any(|name| name == wanted.name()),
            })
            .collect();
        if controllers.is_empty() {
            continue;
        }
        missing.retain(|wanted| !controllers.contains(wanted));
        let base = mount.inside(own_path(own, version, controllers[0]));
        found.push(Hierarchy {
            version,
            base,
            controllers,
        });
    }
    found
}

/// A line of `/proc/<pid>/mountinfo`.
struct Mount<'a> {
    /// What of the tree is mounted.
    root: &'a str,
    at: &'a str,
    kind: &'a str,
    /// Options of the file system, the controllers of version 1 among them.
    options: &'a str,
}

impl<'a> Mount<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let (mount, system) = line.split_once(" - ")?;
        let mut mount = mount.split(' ').skip(3);
        let (root, at) = (mount.next()?, mount.next()?);
        let mut system = system.split(' ');
        let kind = system.next()?;
        let options = system.nth(1).unwrap_or_default();
        Some(Self {
            root,
            at,
            kind,
            options,
        })
    }

    /// The directory of the group `path`; of one outside of what is mounted, the mount itself.
    fn inside(&self, path: &str) -> PathBuf {
        let below = Path::new(path).strip_prefix(self.root);
        let below = below.unwrap_or(Path::new(""));
        Path::new(self.at).join(below)
    }
}

/// The group of a process in a tree, out of its `/proc/<pid>/cgroup`; the root when it has none.
pub(super) fn own_path(groups: &str, version: Version, controller: Controller) -> &str {
    let line = groups.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        let is_it = match version {
            Version::Two => controllers.is_empty(),
            Version::One => controllers
                .split(',')
                .any(|name| name == controller.name_v1()),
        };
        is_it.then_some(path)
    });
    line.unwrap_or("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1: &str = "\
30 25 0:26 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct
31 25 0:27 / /sys/fs/cgroup/memory rw,relatime shared:3 - cgroup cgroup rw,memory
32 25 0:28 / /sys/fs/cgroup/blkio rw,relatime - cgroup cgroup rw,blkio
33 25 0:29 / /sys/fs/cgroup/systemd rw,relatime - cgroup systemd rw,xattr,name=systemd
34 25 0:30 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
35 25 0:31 / /home rw,relatime - ext4 /dev/vda rw";
    const V1_OWN: &str = "5:blkio:/\n4:memory:/box/1\n2:cpu,cpuacct:/\n0::/unit";

    fn hierarchy(version: Version, base: &str, controllers: &[Controller]) -> Hierarchy {
        Hierarchy {
            version,
            base: base.into(),
            controllers: controllers.to_vec(),
        }
    }

    #[test]
    fn version_one_has_a_tree_per_controller() {
        use Controller::{Cpu, Io, Memory};
        let found = find(V1, V1_OWN, &|_| String::new());
        let want = [
            hierarchy(Version::One, "/sys/fs/cgroup/cpu", &[Cpu]),
            hierarchy(Version::One, "/sys/fs/cgroup/memory/box/1", &[Memory]),
            hierarchy(Version::One, "/sys/fs/cgroup/blkio", &[Io]),
        ];
        assert_eq!(found, want);
    }

    #[test]
    fn what_version_one_lacks_may_be_in_version_two() {
        let found = find(V1, V1_OWN, &|_| "hugetlb pids\n".to_owned());
        let pids = hierarchy(
            Version::Two,
            "/sys/fs/cgroup/unified/unit",
            &[Controller::Pids],
        );
        assert_eq!(found.last(), Some(&pids));
        assert_eq!(found.len(), 4);
    }

    #[test]
    fn version_two_has_one_for_all() {
        let mounts = "25 20 0:22 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate";
        let own = "0::/system.slice/fc-agent.service\n";
        let found = find(mounts, own, &|_| {
            "cpuset cpu io memory pids rdma".to_owned()
        });
        let base = "/sys/fs/cgroup/system.slice/fc-agent.service";
        assert_eq!(found, [hierarchy(Version::Two, base, &Controller::ALL)]);
        // A container that sees a part of the tree only.
        let mounts = mounts.replace(" / /sys", " /docker/7 /sys");
        let found = find(&mounts, "0::/docker/7/x", &|_| "cpu".to_owned());
        assert_eq!(found[0].base, Path::new("/sys/fs/cgroup/x"));
    }
}
