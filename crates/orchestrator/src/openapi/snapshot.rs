//! Snapshots, and what else is done to a running environment as a whole.

use fuse_wire_api::{
    CreateSnapshot, Environment, ForkEnvironment, MAX_BODY_SMALL, MigrateEnvironment,
    ResolvedSnapshot, Snapshot, SnapshotList,
};
use serde_json::{Value, json};

use super::{
    environment::{ENVIRONMENTS, MISSING, running},
    operation::{Call, Operation},
};

const SNAPSHOTS: (&str, &str) = ("Snapshots", "The snapshot's id.");
/// What `fuse build` derives from a step: 64 hexadecimal digits.
const LAYER_KEY: &str = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
const UNKNOWN: &str = "no such snapshot";
const NOT_RUNNING: &str = "the environment is not `running`, or another operation is under way";
const KEY: &str = "1 to 255 visible ASCII characters. For 24 hours a repeat of the request with \
                   the same key gets the first answer.";

pub(super) fn operations() -> Vec<Operation> {
    vec![
        Operation::new(
            ("POST", "/v1/environments/{vmId}/snapshots"),
            "createSnapshot",
            ENVIRONMENTS,
            create(),
        )
        .header("Idempotency-Key", KEY)
        .header(
            "Prefer",
            "`respond-async`: answer with 202 before it is taken; its `state` tells the rest.",
        ),
        Operation::new(
            ("GET", "/v1/environments/{vmId}/attach"),
            "attachToEnvironment",
            ENVIRONMENTS,
            attach(),
        )
        .query("tty", "`1` or `true`.")
        .query("rows", "Lines of the terminal, 1 to 65535.")
        .query("cols", "Columns of the terminal, 1 to 65535.")
        .query(
            "cmd",
            "One word of the command, repeated; none is root's login shell.",
        ),
        Operation::new(("GET", "/v1/snapshots"), "listSnapshots", SNAPSHOTS, list())
            .query("vm_id", "Only those of this environment.")
            .query("task_id", "Only those of this task.")
            .query("tenant_id", "Only those that count against this quota.")
            .query("state", "Only those in this state.")
            .query("mode", "Only those of this mode.")
            .query("name", "Only those with this `name` in their metadata.")
            .query("layer_key", "Only layers with this key.")
            .query("arch", "Only those of this architecture.")
            .query("host_id", "Only those on this host.")
            .paged(),
        Operation::new(
            ("GET", "/v1/snapshots/resolve"),
            "resolveSnapshot",
            SNAPSHOTS,
            resolve(),
        )
        .needs_query("layer_key", "Key of the layer.", LAYER_KEY)
        .needs_query("arch", "Architecture that it is for.", "amd64"),
        Operation::new(
            ("GET", "/v1/snapshots/{snapshotId}"),
            "getSnapshot",
            SNAPSHOTS,
            Call::new("Read a snapshot")
                .json::<Snapshot>(200, "The snapshot.", snapshot())
                .error(404, "not_found", UNKNOWN),
        ),
        Operation::actions(
            "/v1/snapshots/{snapshotId}",
            "actOnSnapshot",
            SNAPSHOTS,
            vec![("restore", restore())],
        ),
        Operation::new(
            ("DELETE", "/v1/snapshots/{snapshotId}"),
            "deleteSnapshot",
            SNAPSHOTS,
            delete(),
        ),
    ]
}

/// Actions on an environment that are no commands.
pub(super) fn actions() -> Vec<(&'static str, Call)> {
    vec![
        (
            "drain",
            Call::new("Ask the workload to stop")
                .about("Nothing is destroyed: it stays `draining` until it is.")
                .json::<Environment>(200, "It is draining.", draining())
                .empty(204, "It is gone meanwhile.")
                .error(404, "not_found", MISSING)
                .error(409, "conflict", NOT_RUNNING)
                .error(
                    500,
                    "internal",
                    "the drain command failed; it stays `draining`",
                ),
        ),
        (
            "rotate-token",
            Call::new("Give the guest agent new credentials")
                .about("In force when this is answered. The VM and its ports stay as they are.")
                .empty(204, "Rotated.")
                .error(404, "not_found", MISSING)
                .error(409, "conflict", NOT_RUNNING)
                .error(
                    409,
                    "conflict",
                    "there is no encryption key, so there are no credentials",
                )
                .error(
                    500,
                    "internal",
                    "a step failed; the old credentials are in force",
                ),
        ),
        (
            "fork",
            Call::new("Fork an environment")
                .about(
                    "A new environment that boots a copy of the source's disk, on the source's \
                     host, with an id and credentials of its own. Takes `Prefer` and \
                     `Idempotency-Key` as a create does.",
                )
                .optional_body::<ForkEnvironment>(MAX_BODY_SMALL, json!({"comment": "branch"}))
                .json::<Environment>(201, "The fork runs.", running())
                .json::<Environment>(202, "Accepted, with `Prefer: respond-async`.", running())
                .error(404, "not_found", MISSING)
                .error(
                    404,
                    "not_found",
                    "the snapshot is unknown, another environment's, or gone",
                )
                .error(409, "conflict", "the source is not `running`, or has GPUs")
                .error(
                    409,
                    "conflict",
                    "the snapshot is not `ready`, or the quota is used up",
                )
                .error(501, "unimplemented", "the backend cannot fork")
                .calls_an_agent()
                .error(
                    503,
                    "unavailable",
                    "`require_capacity`, and the host is full",
                ),
        ),
        ("migrate", migrate()),
    ]
}

fn migrate() -> Call {
    Call::new("Move an environment to another host")
        .about(
            "Its workload is asked to stop, its disk is copied, and a new environment \
             (`fuse-mig-...`) boots from it at the target and takes over task, secrets, ports and \
             age; the source is destroyed then. The answer is the new one. Takes `Prefer` as a \
             create does. An environment that cannot be moved goes on where it is; a live \
             migration is never replaced by a cold one.",
        )
        .optional_body::<MigrateEnvironment>(MAX_BODY_SMALL, json!({"target_host_id": "host-2"}))
        .json::<Environment>(201, "It runs at the target.", running())
        .json::<Environment>(202, "Accepted, with `Prefer: respond-async`.", running())
        .error(
            400,
            "invalid_argument",
            "it is there already, `lazy` without `live`, or without `huge_pages`",
        )
        .error(404, "not_found", "no such environment, or no such target")
        .error(
            409,
            "conflict",
            "it is not `running`, has GPUs, or `live` and the target cannot resume it",
        )
        .error(501, "unimplemented", "the backend cannot move it")
        .error(503, "unavailable", "no other host can take it")
}

fn create() -> Call {
    Call::new("Take a snapshot")
        .optional_body::<CreateSnapshot>(
            MAX_BODY_SMALL,
            json!({"comment": "before the upgrade", "metadata": {"name": "before"}}),
        )
        .json::<Snapshot>(201, "It is `ready`.", snapshot())
        .json::<Snapshot>(
            202,
            "It is `creating`, with `Prefer: respond-async`.",
            snapshot(),
        )
        .error(404, "not_found", MISSING)
        .error(409, "conflict", NOT_RUNNING)
        .error(
            409,
            "conflict",
            "the quota is used up, or the environment has GPUs",
        )
        .error(500, "internal", "the host failed; nothing of it is left")
        .error(501, "unimplemented", "the backend cannot take snapshots")
        .calls_an_agent()
}

fn attach() -> Call {
    Call::new("Attach to a command in the guest")
        .about(
            "An upgrade to `fuse-attach/1`: frames of a type byte, three zero bytes, a length of \
             four bytes and a payload, both ways.",
        )
        .scope("attach")
        .empty(101, "The connection speaks `fuse-attach/1` from here on.")
        .error(
            400,
            "invalid_argument",
            "no `Upgrade: fuse-attach/1`, or no `tty=1`",
        )
        .error(404, "not_found", MISSING)
        .error(409, "conflict", "the environment is not `running`")
        .error(500, "internal", "the host refuses or does not answer")
        .error(501, "unimplemented", "there is no guest")
        .calls_an_agent()
}

fn list() -> Call {
    Call::new("List snapshots")
        .about("Newest first. Filters are exact and combine; an empty value is none.")
        .json::<SnapshotList>(200, "One page.", json!({"snapshots": [snapshot()]}))
}

fn resolve() -> Call {
    Call::new("Find a build layer")
        .about("The newest usable one of the caller with this key. That there is none is no error.")
        .json::<ResolvedSnapshot>(
            200,
            "Whether there is one.",
            json!({"found": true, "snapshot": snapshot()}),
        )
        .error(400, "invalid_argument", "`layer_key` or `arch` is missing")
}

fn restore() -> Call {
    Call::new("Restore a snapshot in place")
        .about("Its own environment goes on from it: a `disk` one boots, a `live` one resumes.")
        .empty(204, "Restored.")
        .error(404, "not_found", UNKNOWN)
        .error(
            404,
            "not_found",
            "its environment is gone, or its host has lost it",
        )
        .error(409, "conflict", NOT_RUNNING)
        .error(409, "conflict", "the snapshot is not `ready`")
        .error(
            500,
            "internal",
            "the host failed; the snapshot is in `error`",
        )
        .error(501, "unimplemented", "the backend cannot restore")
}

fn delete() -> Call {
    Call::new("Delete a snapshot")
        .about("Its bytes go first, then its record.")
        .empty(204, "Deleted.")
        .error(404, "not_found", UNKNOWN)
        .error(
            409,
            "conflict",
            "another snapshot was taken on top of it, or it is in use",
        )
        .error(
            500,
            "internal",
            "the host failed; the snapshot is in `error`",
        )
}

fn snapshot() -> Value {
    json!({
        "id": "snap-1768471200-0a1b2c", "vm_id": "fuse-build-17", "task_id": "build-17",
        "tenant_id": "build-17", "host_id": "host-1", "mode": "manual", "state": "ready",
        "kind": "disk", "comment": "before the upgrade", "name": "before", "arch": "amd64",
        "size_bytes": 52_428_800, "created_at": "2026-01-15T10:00:00Z",
        "updated_at": "2026-01-15T10:00:00Z",
    })
}

fn draining() -> Value {
    let mut shown = running();
    shown["state"] = "draining".into();
    shown
}
