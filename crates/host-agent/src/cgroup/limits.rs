//! What a VM may use of its host, and how that is written down in either version.

use super::hierarchy::{Controller, Version};

/// Period over which CPU time is counted, in microseconds.
const PERIOD_US: u64 = 100_000;
/// Processes and threads of a VMM: it has a few per vCPU and disk.
const MAX_PROCESSES: u64 = 512;
/// Shares of a group of version 1 by default, which stand for one CPU.
const SHARES_PER_CPU: u64 = 1024;
/// The same of version 2.
const WEIGHT_PER_CPU: u64 = 100;

/// Bounds of one VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Virtual CPUs. It gets CPU time in proportion to them, and one CPU more than them at most: the
    /// VMM has work of its own.
    pub cpus: u32,
    /// Memory of the guest and its VMM in MiB.
    pub memory_mib: u64,
    /// Bounds of its disk.
    pub io: IoLimits,
}

/// Bounds of a VM's disk, each for reading and for writing; 0 is none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IoLimits {
    /// Bytes per second.
    pub bytes: u64,
    /// Operations per second.
    pub operations: u64,
}

impl IoLimits {
    /// Whether there are any.
    #[must_use]
    pub fn any(self) -> bool {
        self.bytes > 0 || self.operations > 0
    }
}

/// A block device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Device {
    /// Its driver.
    pub major: u32,
    /// Its number.
    pub minor: u32,
}

impl std::fmt::Display for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

/// A file of a group, and what is written to it.
pub(super) type Setting = (&'static str, String);

impl Limits {
    /// What is written for `controller`, in this order.
    pub(super) fn settings(
        &self,
        version: Version,
        controller: Controller,
        disk: Option<Device>,
    ) -> Vec<Setting> {
        let cpus = u64::from(self.cpus);
        let quota = (cpus + 1) * PERIOD_US;
        let memory = self.memory_mib * 1024 * 1024;
        match (controller, version) {
            (Controller::Cpu, Version::One) => vec![
                ("cpu.shares", (cpus * SHARES_PER_CPU).to_string()),
                ("cpu.cfs_period_us", PERIOD_US.to_string()),
                ("cpu.cfs_quota_us", quota.to_string()),
            ],
            (Controller::Cpu, Version::Two) => vec![
                (
                    "cpu.weight",
                    (cpus * WEIGHT_PER_CPU).min(10_000).to_string(),
                ),
                ("cpu.max", format!("{quota} {PERIOD_US}")),
            ],
            (Controller::Memory, Version::One) => {
                vec![("memory.limit_in_bytes", memory.to_string())]
            }
            (Controller::Memory, Version::Two) => vec![
                ("memory.max", memory.to_string()),
                // A VMM whose helper is gone is of no use.
                ("memory.oom.group", "1".to_owned()),
            ],
            (Controller::Pids, _) => vec![("pids.max", MAX_PROCESSES.to_string())],
            (Controller::Io, version) => disk.map_or_else(Vec::new, |disk| match version {
                Version::One => self.io_v1(disk),
                Version::Two => self.io_v2(disk),
            }),
        }
    }

    fn io_v1(&self, disk: Device) -> Vec<Setting> {
        let files = [
            ("blkio.throttle.read_bps_device", self.io.bytes),
            ("blkio.throttle.write_bps_device", self.io.bytes),
            ("blkio.throttle.read_iops_device", self.io.operations),
            ("blkio.throttle.write_iops_device", self.io.operations),
        ];
        // 0 takes a limit away that an agent with other settings has set.
        files
            .map(|(file, limit)| (file, format!("{disk} {limit}")))
            .to_vec()
    }

    fn io_v2(&self, disk: Device) -> Vec<Setting> {
        let limit = |limit: u64| match limit {
            0 => "max".to_owned(),
            limit => limit.to_string(),
        };
        let (bytes, operations) = (limit(self.io.bytes), limit(self.io.operations));
        let line =
            format!("{disk} rbps={bytes} wbps={bytes} riops={operations} wiops={operations}");
        vec![("io.max", line)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_limit_in_either_version() {
        let limits = Limits {
            cpus: 2,
            memory_mib: 1536,
            io: IoLimits {
                bytes: 1_000_000,
                operations: 0,
            },
        };
        let disk = Some(Device {
            major: 8,
            minor: 16,
        });
        let all = |version| -> Vec<String> {
            let each = Controller::ALL.map(|c| limits.settings(version, c, disk));
            let each = each.into_iter().flatten();
            each.map(|(file, value)| format!("{file} = {value}"))
                .collect()
        };
        assert_eq!(
            all(Version::One),
            [
                "cpu.shares = 2048",
                "cpu.cfs_period_us = 100000",
                "cpu.cfs_quota_us = 300000",
                "memory.limit_in_bytes = 1610612736",
                "pids.max = 512",
                "blkio.throttle.read_bps_device = 8:16 1000000",
                "blkio.throttle.write_bps_device = 8:16 1000000",
                "blkio.throttle.read_iops_device = 8:16 0",
                "blkio.throttle.write_iops_device = 8:16 0",
            ]
        );
        assert_eq!(
            all(Version::Two),
            [
                "cpu.weight = 200",
                "cpu.max = 300000 100000",
                "memory.max = 1610612736",
                "memory.oom.group = 1",
                "pids.max = 512",
                "io.max = 8:16 rbps=1000000 wbps=1000000 riops=max wiops=max",
            ]
        );
        assert!(
            limits
                .settings(Version::Two, Controller::Io, None)
                .is_empty()
        );
    }
}
