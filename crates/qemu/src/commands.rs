//! The monitor's vocabulary, as far as Fuse speaks it.

use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};

/// A command: serializes to its arguments.
pub trait Command: Serialize {
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
        pub struct $type {
            $(
                #[doc = concat!("QEMU's argument `", stringify!($field), "`.")]
                pub $field: $kind
            ),*
        }

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
    /// Switches parts of the migration on.
    "migrate-set-capabilities":
        MigrateSetCapabilities { capabilities: Vec<MigrationCapability> } -> IgnoredAny;
    /// How fast a migration may go.
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

impl MigrateSetCapabilities {
    /// Has migrations report their progress as events.
    #[must_use]
    pub fn events() -> Self {
        Self {
            capabilities: vec![MigrationCapability {
                capability: "events",
                state: true,
            }],
        }
    }
}

/// A part of the migration, and whether it is wanted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MigrationCapability {
    capability: &'static str,
    state: bool,
}

impl SendKey {
    /// The three-finger salute.
    #[must_use]
    pub fn ctrl_alt_del() -> Self {
        let keys = ["ctrl", "alt", "delete"].map(|data| KeyValue {
            kind: "qcode",
            data,
        });
        Self { keys: keys.into() }
    }
}

/// A key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KeyValue {
    #[serde(rename = "type")]
    kind: &'static str,
    data: &'static str,
}

/// Answer of [`QueryMigrate`].
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct MigrationInfo {
    /// Why it failed.
    pub error_desc: Option<String>,
}

/// One line from the monitor.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Message {
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
pub(crate) struct Greeting {
    pub(crate) version: VersionInfo,
}

#[derive(Debug, Deserialize)]
pub(crate) struct VersionInfo {
    pub(crate) qemu: VersionTriple,
}

/// Version of QEMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct VersionTriple {
    pub(crate) major: u32,
    pub(crate) minor: u32,
    pub(crate) micro: u32,
}

#[derive(Debug, Deserialize)]
pub(crate) struct ErrorBody {
    pub(crate) desc: String,
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
