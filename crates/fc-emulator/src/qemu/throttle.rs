//! The monitor's command that limits a disk.

use fuse_qemu::commands::Command;
use serde::Serialize;
use serde::de::IgnoredAny;

use crate::config::Throttle;

/// Replaces all limits of a block device; zero is none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct BlockSetIoThrottle {
    id: String,
    bps: u64,
    bps_rd: u64,
    bps_wr: u64,
    iops: u64,
    iops_rd: u64,
    iops_wr: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    bps_max: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    iops_max: Option<u64>,
}

impl Command for BlockSetIoThrottle {
    const NAME: &'static str = "block_set_io_throttle";
    type Return = IgnoredAny;
}

impl BlockSetIoThrottle {
    pub(crate) fn new(device: String, throttle: Throttle) -> Self {
        Self {
            id: device,
            bps: throttle.bytes.map_or(0, |rate| rate.per_second),
            bps_rd: 0,
            bps_wr: 0,
            iops: throttle.operations.map_or(0, |rate| rate.per_second),
            iops_rd: 0,
            iops_wr: 0,
            bps_max: throttle.bytes.map(|rate| rate.burst),
            iops_max: throttle.operations.map(|rate| rate.burst),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn no_limit_is_zero() {
        let none = BlockSetIoThrottle::new("drive-a".into(), Throttle::default());
        assert_eq!(
            serde_json::to_value(none).unwrap(),
            json!({
                "id": "drive-a", "bps": 0, "bps_rd": 0, "bps_wr": 0,
                "iops": 0, "iops_rd": 0, "iops_wr": 0,
            })
        );
    }
}
