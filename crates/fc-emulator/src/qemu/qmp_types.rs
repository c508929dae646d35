//! The monitor's vocabulary, as far as the emulator speaks it.

use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};

use crate::config::Throttle;

/// A command: serializes to its arguments.
pub(crate) trait Command: Serialize {
    /// Name on the wire.
    const NAME: &'static str;
    /// What it returns.
    type Return: DeserializeOwned;
}

macro_rules! commands {
    ($($(#[$doc:meta])* $name:literal: $type:ident { $($field:ident: $kind:ty),* } -> $ret:ty;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Serialize)]
        #[serde(rename_all = "kebab-case")]
        pub(crate) struct $type { $(pub(crate) $field: $kind),* }

        impl Command for $type {
            const NAME: &'static str = $name;
            type Return = $ret;
        }
    )*};
}

commands! {
    /// Ends the negotiation; the first command.
    "qmp_capabilities": QmpCapabilities {} -> IgnoredAny;
    /// Lets the machine run.
    "cont": Cont {} -> IgnoredAny;
    /// Halts the machine.
    "stop": Stop {} -> IgnoredAny;
    /// Names the descriptor that comes with it.
    "getfd": GetFd { fdname: &'static str } -> IgnoredAny;
    "migrate-set-capabilities":
        MigrateSetCapabilities { capabilities: Vec<MigrationCapability> } -> IgnoredAny;
    "migrate-set-parameters": MigrateSetParameters { max_bandwidth: u64 } -> IgnoredAny;
    /// Starts to write memory and device state; events tell the rest.
    "migrate": Migrate { uri: &'static str } -> IgnoredAny;
    /// Starts to read memory and device state; events tell the rest.
    "migrate-incoming": MigrateIncoming { uri: &'static str } -> IgnoredAny;
    /// How the last migration went.
    "query-migrate": QueryMigrate {} -> MigrationInfo;
    /// Presses keys together and lets go of them.
    "send-key": SendKey { keys: Vec<KeyValue> } -> IgnoredAny;
}

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

impl MigrateSetCapabilities {
    /// Has migrations report their progress as events.
    pub(crate) fn events() -> Self {
        Self {
            capabilities: vec![MigrationCapability {
                capability: "events",
                state: true,
            }],
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct MigrationCapability {
    capability: &'static str,
    state: bool,
}

impl SendKey {
    /// The three-finger salute.
    pub(crate) fn ctrl_alt_del() -> Self {
        let keys = ["ctrl", "alt", "delete"].map(|data| KeyValue {
            kind: "qcode",
            data,
        });
        Self { keys: keys.into() }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct KeyValue {
    #[serde(rename = "type")]
    kind: &'static str,
    data: &'static str,
}

/// Answer of [`QueryMigrate`].
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct MigrationInfo {
    pub(crate) error_desc: Option<String>,
}

/// One line from the monitor.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Message {
    Greeting {
        #[serde(rename = "QMP")]
        qmp: Greeting,
    },
    Event {
        event: String,
        #[serde(default)]
        data: serde_json::Value,
    },
    Return {
        #[serde(rename = "return")]
        value: serde_json::Value,
    },
    Error {
        error: ErrorBody,
    },
}

#[derive(Debug, Deserialize)]
pub(super) struct Greeting {
    pub(super) version: VersionInfo,
}

#[derive(Debug, Deserialize)]
pub(super) struct VersionInfo {
    pub(super) qemu: VersionTriple,
}

/// Version of QEMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct VersionTriple {
    pub(super) major: u32,
    pub(super) minor: u32,
    pub(super) micro: u32,
}

#[derive(Debug, Deserialize)]
pub(super) struct ErrorBody {
    pub(super) desc: String,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn arguments(command: &impl Serialize) -> serde_json::Value {
        serde_json::to_value(command).unwrap()
    }

    #[test]
    fn commands_spell_their_arguments_as_qemu_does() {
        assert_eq!(arguments(&Cont {}), json!({}));
        assert_eq!(
            arguments(&MigrateSetParameters { max_bandwidth: 5 }),
            json!({"max-bandwidth": 5})
        );
        assert_eq!(
            arguments(&SendKey::ctrl_alt_del()),
            json!({"keys": [
                {"type": "qcode", "data": "ctrl"},
                {"type": "qcode", "data": "alt"},
                {"type": "qcode", "data": "delete"},
            ]})
        );
        let none = BlockSetIoThrottle::new("drive-a".into(), Throttle::default());
        assert_eq!(
            arguments(&none),
            json!({
                "id": "drive-a", "bps": 0, "bps_rd": 0, "bps_wr": 0,
                "iops": 0, "iops_rd": 0, "iops_wr": 0,
            })
        );
    }

    #[test]
    fn lines_are_told_apart() {
        let message = |text: &str| serde_json::from_str::<Message>(text).unwrap();
        assert!(matches!(
            message(r#"{"QMP":{"version":{"qemu":{"micro":22,"minor":2,"major":7},"package":"x"},"capabilities":["oob"]}}"#),
            Message::Greeting { qmp } if qmp.version.qemu.major == 7
        ));
        assert!(matches!(
            message(r#"{"return": {}}"#),
            Message::Return { .. }
        ));
        assert!(matches!(
            message(r#"{"error": {"class": "GenericError", "desc": "no"}}"#),
            Message::Error { error } if error.desc == "no"
        ));
        assert!(matches!(
            message(r#"{"timestamp": {"seconds": 1, "microseconds": 2}, "event": "SHUTDOWN", "data": {"guest": true, "reason": "guest-reset"}}"#),
            Message::Event { event, data } if event == "SHUTDOWN" && data["guest"] == true && data["reason"] == "guest-reset"
        ));
        assert!(matches!(
            message(r#"{"timestamp": {"seconds": 1, "microseconds": 2}, "event": "STOP"}"#),
            Message::Event { event, .. } if event == "STOP"
        ));
    }
}
